// The soft device, src/soft: its rooms and their order, from the ground up. A room includes itself
// and rooms below it. What is left of the time before there were rooms may not grow: files that
// include each other in circles, long files, lines, arrows upward. Whoever makes it smaller lowers
// the number.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::Files;
using millrace::architecture::files_of_soft;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAreArray;

/// What there is at most.
constexpr std::size_t largest_circle = 0;
constexpr std::ptrdiff_t longest_file = 450;
constexpr std::ptrdiff_t all_lines = 23121;  // but for wire/, which is of packets and not of memory

/// The rooms, each above all that it includes.
const std::vector<std::string> rooms{
    "system",        // what the kernel and the processor give: descriptors, mappings, fences, locks
    "layout",        // what two processes share, and nothing else
    "regions",       // this process's registered memory
    "fabric",        // nodes, this process's and its peers', and copies between their memory
    "receives",      // pools of receives, and what has arrived in them
    "completion",    // sub-rings, queues, channels and bells
    "transport",     // how requests travel: at once, or over a modelled link
    "copy_service",  // copies that their memory's owner makes
    "process",       // what a process and a context have once
    "datagram",      // UD: addresses, targets, sends
    "wire",          // sockets to other hosts, and the queue pairs whose requests travel there
    "queue_pair",    // the queue pair, its states and its errors
    "objects",       // the calls that programs make
};

/// Whom each module includes.
using Graph = std::map<std::string, std::set<std::string>>;

/// A header and its source are one module. So is a source without a header of its name and the
/// header whose name begins its own: queue_pair_states.cpp belongs to queue_pair.
std::string module_of(const std::string& file, const Files& files) {
    std::string module = fs::path{file}.stem();
    for (auto name = module;; name.resize(name.rfind('_'))) {
        if (files.contains(name + ".hpp")) return name;
        if (name.find('_') == std::string::npos) return module;
    }
}

/// The names of own headers, as they are written.
std::set<std::string> own_headers_in(const std::string& text) {
    static const std::regex include{R"rx((?:^|\n)[ \t]*#[ \t]*include[ \t]*"([^"]+)")rx"};
    std::set<std::string> headers;
    millrace::architecture::add_matches(text, include, headers);
    return headers;
}

Graph graph_of(const Files& files) {
    Graph graph;
    for (const auto& [file, text] : files) {
        const std::string module = module_of(file, files);
        auto& used = graph[module];
        for (const fs::path path : own_headers_in(text)) {
            const std::string header = path.filename();
            if (files.contains(header)) used.insert(module_of(header, files));
        }
        used.erase(module);
    }
    return graph;
}

/// All that can be reached from a module.
std::set<std::string> reach_of(const std::string& module, const Graph& graph) {
    std::set<std::string> reached;
    std::vector<std::string> next{module};
    while (!next.empty()) {
        const auto from = next.back();
        next.pop_back();
        for (const auto& used : graph.at(from)) {
            if (reached.insert(used).second) next.push_back(used);
        }
    }
    return reached;
}

/// The largest set of modules of which each reaches each; empty: there is no circle.
std::vector<std::string> circle_in(const Graph& graph) {
    std::map<std::string, std::set<std::string>> reach;
    for (const auto& [module, used] : graph) reach[module] = reach_of(module, graph);
    std::vector<std::string> largest;
    for (const auto& [module, reached] : reach) {
        std::vector<std::string> circle;
        for (const auto& other : reached) {
            if (reach[other].contains(module)) circle.push_back(other);
        }
        if (circle.size() > largest.size()) largest = circle;
    }
    return largest;
}

/// Each name stands in one room only, so that it names a module.
Files without_rooms(const Files& files) {
    Files named;
    for (const auto& [file, text] : files) named[fs::path{file}.filename()] += text;
    return named;
}

std::ptrdiff_t height_of(const std::string& room) {
    return std::find(rooms.begin(), rooms.end(), room) - rooms.begin();
}

/// Includes that are not of the room itself or one below: file and room.
std::set<std::pair<std::string, std::string>> arrows_upward(const Files& files) {
    std::set<std::pair<std::string, std::string>> arrows;
    for (const auto& [file, text] : files) {
        const std::string room = fs::path{file}.parent_path();
        for (const fs::path header : own_headers_in(text)) {
            if (*header.begin() == "millrace" || *header.begin() == "roce") continue;
            const std::string used = header.parent_path();
            if (height_of(used) > height_of(room)) arrows.emplace(file, used);
        }
    }
    return arrows;
}

std::ptrdiff_t lines_of(const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
}

TEST(SoftRooms, HaveNoLargerCircleOfModules) {
    const auto circle = circle_in(graph_of(without_rooms(files_of_soft())));
    EXPECT_LE(circle.size(), largest_circle) << testing::PrintToString(circle);
}

TEST(SoftRooms, AreThoseThatHaveAnOrder) {
    std::set<std::string> found;
    std::set<std::string> names;
    for (const auto& [file, text] : files_of_soft()) {
        found.insert(fs::path{file}.parent_path());
        EXPECT_TRUE(names.insert(fs::path{file}.filename()).second) << file << ": named twice";
    }
    EXPECT_THAT(found, UnorderedElementsAreArray(rooms));
}

TEST(SoftRooms, IncludeOnlyThemselvesAndRoomsBelow) {
    EXPECT_THAT(arrows_upward(files_of_soft()), IsEmpty());
}

TEST(SoftRooms, HaveTestsInRoomsOfTheSameNames) {
    for (const auto& entry :
         fs::directory_iterator{millrace::architecture::source_tree() / "tests" / "soft"}) {
        if (!entry.is_directory()) continue;
        EXPECT_THAT(rooms, Contains(entry.path().filename().string()));
    }
}

TEST(SoftRooms, HaveNoLongerFileAndNoMoreLines) {
    std::ptrdiff_t all = 0;
    for (const auto& [file, text] : files_of_soft()) {
        EXPECT_LE(lines_of(text), longest_file) << file;
        if (!file.starts_with("wire/")) all += lines_of(text);
    }
    EXPECT_LE(all, all_lines);
    EXPECT_GT(all, all_lines / 2);  // the folder was found
}

TEST(SoftRoomsCheck, FindsACircleThroughASourceWithoutAHeader) {
    const Files files{{"a.hpp", ""},
                      {"a_more.cpp", "#include \"a.hpp\"\n#include \"b.hpp\"\n"},
                      {"b.hpp", "#include <vector>\n#include \"room/a.hpp\"\n"},
                      {"c.hpp", "#include \"a.hpp\"\n"}};
    EXPECT_THAT(circle_in(graph_of(files)), ElementsAre("a", "b"));
}

TEST(SoftRoomsCheck, FindsNoCircleWhereThereIsNone) {
    const Files files{{"a.hpp", ""},
                      {"a.cpp", "#include \"a.hpp\"\n"},
                      {"ab.hpp", "#include \"a.hpp\"\n// #include \"c.hpp\"\n"},
                      {"c.cpp", "#include \"ab.hpp\"\n"}};
    EXPECT_THAT(circle_in(graph_of(files)), IsEmpty());
}

TEST(SoftRoomsCheck, FindsAnArrowUpwardAndAHeaderWithoutARoom) {
    const Files files{{"fabric/node.cpp",
                       "#include \"layout/layout.hpp\"\n#include \"objects/device.hpp\"\n"
                       "#include \"millrace/base/log.hpp\"\n#include \"fabric/node.hpp\"\n"},
                      {"objects/device.cpp", "#include \"fabric.hpp\"\n"}};
    EXPECT_THAT(arrows_upward(files),
                ElementsAre(Pair("fabric/node.cpp", "objects"), Pair("objects/device.cpp", "")));
}

}  // namespace
