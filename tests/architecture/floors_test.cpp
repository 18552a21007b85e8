// A floor uses the floors below it, never its neighbour or one above: every #include says so.
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using testing::SizeIs;

/// Which floors each floor may use, itself included. Verbs are the only interface to what carries
/// us: above verbs/ nobody knows the soft device.
const std::map<std::string, std::set<std::string>>& may_use() {
    static const std::map<std::string, std::set<std::string>> rules{
        {"base", {"base"}},
        {"roce", {"base", "roce"}},
        {"soft", {"base", "roce", "soft"}},
        {"cm", {"base", "soft", "cm"}},
        {"verbs", {"base", "soft", "verbs"}},
        {"connect", {"base", "verbs", "connect"}},
        {"end", {"base", "verbs", "connect", "end"}},
        {"ring", {"base", "verbs", "connect", "end", "ring"}},
        {"flow", {"base", "verbs", "connect", "end", "ring", "flow"}},
        {"message", {"base", "verbs", "connect", "end", "ring", "message"}},
        {"stream", {"base", "verbs", "connect", "end", "ring", "stream"}},
        {"rpc", {"base", "verbs", "connect", "end", "ring", "message", "rpc"}},
        {"kv", {"base", "verbs", "connect", "end", "ring", "message", "kv"}},
        {"ibverbs", {"base", "soft", "cm", "ibverbs"}},  // the drop-in beside the house
    };
    return rules;
}

/// The floor that a path below include/millrace/ or src/ belongs to: its first folder.
std::optional<std::string> floor_of(const fs::path& relative) {
    if (std::distance(relative.begin(), relative.end()) < 2) return std::nullopt;
    return relative.begin()->string();
}

/// The breaches of one file. `is_public`: it lies below include/millrace/.
std::vector<std::string> breaches_in(const std::string& floor, const fs::path& relative,
                                     bool is_public, const std::string& text) {
    std::vector<std::string> breaches;
    const auto rule = may_use().find(floor);
    const auto name = relative.string();
    if (rule == may_use().end()) return {name + ": '" + floor + "' is not a floor of this house"};
    const auto judge = [&](const std::string& header, const std::string& used) {
        if (!rule->second.contains(used)) {
            breaches.push_back(name + ": floor '" + floor + "' includes " + header);
        }
    };
    static const std::regex include{R"rx(^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"])rx"};
    std::istringstream lines{text};
    for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string header = match[1];
        const fs::path path = header;
        if (header.starts_with("millrace/")) {
            judge(header, floor_of(path.lexically_relative("millrace")).value_or(header));
        } else if (header.starts_with("roce/")) {
            judge(header, "roce");  // it has no public face
        } else if (line.find('"') != std::string::npos) {
            // A private header, relative to the file's own folder.
            const auto target = (relative.parent_path() / path).lexically_normal();
            judge(header, floor_of(target).value_or(header));
            if (is_public)
                breaches.push_back(name + ": a public header includes private " + header);
        }
    }
    return breaches;
}

struct Scan {
    std::vector<std::string> breaches;
    std::set<std::string> floors;
    int files = 0;
};

void scan_folder(const fs::path& root, bool is_public, Scan& scan) {
    for (const auto& entry : fs::recursive_directory_iterator{root}) {
        const auto extension = entry.path().extension();
        if (extension != ".hpp" && extension != ".cpp" && extension != ".h" && extension != ".c") {
            continue;
        }
        const auto relative = entry.path().lexically_relative(root);
        const auto floor = floor_of(relative);
        if (!floor) {
            scan.breaches.push_back(relative.string() + ": lies on no floor");
            continue;
        }
        auto found =
            breaches_in(*floor, relative, is_public, millrace::architecture::text_of(entry.path()));
        scan.breaches.insert(scan.breaches.end(), found.begin(), found.end());
        scan.floors.insert(*floor);
        ++scan.files;
    }
}

TEST(Floors, IncludeOnlyThemselvesAndTheFloorsBelow) {
    Scan scan;
    scan_folder(fs::path{MILLRACE_SOURCE_DIR} / "include" / "millrace", true, scan);
    scan_folder(fs::path{MILLRACE_SOURCE_DIR} / "src", false, scan);
    EXPECT_THAT(scan.breaches, IsEmpty());
    EXPECT_GE(scan.files, 10);  // the house was found
    EXPECT_TRUE(scan.floors.contains("base"));
    EXPECT_TRUE(scan.floors.contains("soft"));
}

/// The top floor's rooms: which of them each one's sources include, besides what lies below them
/// all. tools/command_line is a library of its own, whose headers have no other room's name.
const std::map<std::string, std::set<std::string>>& rooms_at_the_top() {
    static const std::map<std::string, std::set<std::string>> rules{
        {"workload", {"workload"}},
        {"tools", {"workload"}},
        {"bench", {"workload", "bench"}},
        {"studies", {"workload", "bench", "studies"}},
    };
    return rules;
}

std::vector<std::string> breaches_at_the_top(const std::string& room, const std::string& name,
                                             const std::string& text) {
    static const std::regex include{R"rx(^#include "((workload|bench|studies)/[^"]+)")rx"};
    std::vector<std::string> breaches;
    std::istringstream lines{text};
    for (std::string line; std::getline(lines, line);) {
        std::smatch match;
        if (std::regex_search(line, match, include) &&
            !rooms_at_the_top().at(room).contains(match[2])) {
            breaches.push_back(name + ": includes " + match[1].str());
        }
    }
    return breaches;
}

TEST(RoomsAtTheTop, IncludeOnlyThemselvesAndThoseBelow) {
    std::vector<std::string> breaches;
    int files = 0;
    for (const auto& [room, below] : rooms_at_the_top()) {
        for (const auto& entry :
             fs::recursive_directory_iterator{fs::path{MILLRACE_SOURCE_DIR} / room}) {
            const std::string extension = entry.path().extension();
            const std::string name = entry.path().lexically_relative(MILLRACE_SOURCE_DIR);
            // The program of both bars and studies.
            if ((extension != ".hpp" && extension != ".cpp") || name == "bench/main.cpp") continue;
            const auto found =
                breaches_at_the_top(room, name, millrace::architecture::text_of(entry.path()));
            breaches.insert(breaches.end(), found.begin(), found.end());
            ++files;
        }
    }
    EXPECT_THAT(breaches, IsEmpty());
    EXPECT_GT(files, 200);
}

TEST(RoomsAtTheTopCheck, ReportsALoadThatKnowsWhoMeasuresIt) {
    EXPECT_THAT(breaches_at_the_top("workload", "x.cpp", "#include \"bench/framework/pair.hpp\"\n"),
                SizeIs(1));
    EXPECT_THAT(breaches_at_the_top("bench", "x.cpp", "#include \"studies/flow/figures.hpp\"\n"),
                SizeIs(1));
    EXPECT_THAT(breaches_at_the_top("studies", "x.cpp", "#include \"bench/limits/limits.hpp\"\n"),
                IsEmpty());
}

TEST(FloorCheck, ReportsAHigherFloor) {
    EXPECT_THAT(
        breaches_in("base", "base/x.cpp", false, "#include \"millrace/verbs/device.hpp\"\n"),
        SizeIs(1));
    EXPECT_THAT(breaches_in("soft", "soft/x.cpp", false, "#  include <millrace/ring/ring.hpp>\n"),
                SizeIs(1));
}

TEST(FloorCheck, ReportsWhoReachesPastVerbsToTheSoftDevice) {
    EXPECT_THAT(
        breaches_in("connect", "connect/x.cpp", false, "#include \"millrace/soft/device.hpp\"\n"),
        SizeIs(1));
    EXPECT_THAT(
        breaches_in("verbs", "verbs/x.cpp", false, "#include \"millrace/soft/device.hpp\"\n"),
        IsEmpty());
}

TEST(FloorCheck, ReportsANeighbour) {
    EXPECT_THAT(
        breaches_in("flow", "flow/x.hpp", true, "#include \"millrace/message/channel.hpp\""),
        SizeIs(1));
    EXPECT_THAT(
        breaches_in("message", "message/x.hpp", true, "#include \"millrace/flow/queue.hpp\""),
        SizeIs(1));
}

TEST(FloorCheck, ReportsAPrivateHeaderOfAnotherFloorReachedByPath) {
    EXPECT_THAT(breaches_in("verbs", "verbs/x.cpp", false, "#include \"../connect/link.hpp\""),
                SizeIs(1));
}

TEST(FloorCheck, ReportsAPublicHeaderThatNeedsAPrivateOne) {
    EXPECT_THAT(breaches_in("soft", "soft/x.hpp", true, "#include \"fabric.hpp\""), SizeIs(1));
}

TEST(FloorCheck, ReportsTheDropInReachingAboveTheSoftDevice) {
    EXPECT_THAT(
        breaches_in("ibverbs", "ibverbs/x.cpp", false, "#include \"millrace/verbs/device.hpp\""),
        SizeIs(1));
    EXPECT_THAT(breaches_in("ibverbs", "ibverbs/x.cpp", false, "#include \"../soft/layout.hpp\""),
                IsEmpty());
}

TEST(FloorCheck, ReportsAFolderThatIsNoFloor) {
    EXPECT_THAT(breaches_in("cellar", "cellar/x.cpp", false, ""), SizeIs(1));
}

TEST(FloorCheck, AcceptsLowerFloorsOwnHeadersAndTheSystem) {
    EXPECT_THAT(breaches_in("flow", "flow/x.cpp", false,
                            "#include \"millrace/base/clock.hpp\"\n#include \"private.hpp\"\n"
                            "#include <vector>\n#include <infiniband/verbs.h>\n"
                            "// #include \"millrace/message/channel.hpp\"\n"),
                IsEmpty());
}

}  // namespace
