// What a user's program needs of the public headers: that they say when the language is too old,
// that what they throw can be caught, and that they ask for no package but libibverbs' header.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

/// base/log.hpp is the floors' own and is not installed.
constexpr const char* own_log = "millrace/base/log.hpp";

/// The text of each public header by the name that programs include it by.
const std::map<std::string, std::string>& headers() {
    static const auto all = [] {
        std::map<std::string, std::string> found;
        const fs::path root = fs::path{MILLRACE_SOURCE_DIR} / "include";
        for (const auto& entry : fs::recursive_directory_iterator{root}) {
            if (entry.path().extension() != ".hpp") continue;
            std::ostringstream text;
            text << std::ifstream{entry.path()}.rdbuf();
            found[entry.path().lexically_relative(root).string()] = text.str();
        }
        found.erase(own_log);
        return found;
    }();
    return all;
}

std::set<std::string> included_by(const std::string& text) {
    static const std::regex include{R"rx(#include [<"]([^>"]+)[>"])rx"};
    std::set<std::string> names;
    for (std::sregex_iterator match{text.begin(), text.end(), include}, end; match != end;
         ++match) {
        names.insert((*match)[1]);
    }
    return names;
}

bool reaches(const std::string& header, const std::string& wanted) {
    if (header == wanted) return true;
    const auto found = headers().find(header);
    if (found == headers().end()) return false;
    for (const std::string& name : included_by(found->second)) {
        if (reaches(name, wanted)) return true;
    }
    return false;
}

TEST(PublicFace, WasFound) { EXPECT_GE(headers().size(), 40U); }

TEST(PublicFace, SaysInEveryHeaderThatTheLanguageIsTooOld) {
    std::set<std::string> silent;
    for (const auto& [name, text] : headers()) {
        if (!reaches(name, "millrace/base/language.hpp")) silent.insert(name);
    }
    EXPECT_THAT(silent, IsEmpty());
}

TEST(PublicFace, DeclaresTheErrorWhereItIsThrown) {
    static const std::regex thrown{"[Tt]hrows (base::)?Error"};
    std::set<std::string> missing;
    for (const auto& [name, text] : headers()) {
        if (name != "millrace/base/error.hpp" && std::regex_search(text, thrown) &&
            !included_by(text).contains("millrace/base/error.hpp")) {
            missing.insert(name);
        }
    }
    EXPECT_THAT(missing, IsEmpty());
}

TEST(PublicFace, NeedsNoOtherPackagesHeaderButLibibverbs) {
    std::set<std::string> foreign;
    for (const auto& [name, text] : headers()) {
        for (const std::string& used : included_by(text)) {
            const bool known = used.starts_with("millrace/") || used == "infiniband/verbs.h" ||
                               used.starts_with("sanitizer/") || used.starts_with("sys/") ||
                               used.starts_with("linux/") || used.find('/') == std::string::npos;
            if (!known || used == own_log) foreign.insert(name + " includes " + used);
        }
    }
    EXPECT_THAT(foreign, IsEmpty());
}

}  // namespace
