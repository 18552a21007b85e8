// What a user's program needs of the public headers: that they say when the language is too old,
// that what they throw can be caught, and that they ask for no package but libibverbs' header.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

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
            found[entry.path().lexically_relative(root).string()] =
                millrace::architecture::text_of(entry.path());
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

/// What is said outside of comments and texts.
std::string code_of(const std::string& text) {
    static const std::regex comment{R"rx(//[^\n]*)rx"};
    static const std::regex quoted{R"rx("(?:\\.|[^"\\\n])*")rx"};
    return std::regex_replace(std::regex_replace(text, comment, ""), quoted, "");
}

// The headers are compiled alone with these at hand already, which takes a quarter of the time: so
// this is where one is found that lives on what another includes.
TEST(PublicFace, IncludesTheStandardHeadersOfWhatItNames) {
    static const std::map<std::string, std::regex> names_in = [] {
        std::map<std::string, std::regex> made;
        for (const auto& [header, names] : std::map<std::string, std::string>{
                 {"algorithm", "min|max|clamp|copy|copy_n|fill|find_if|sort|all_of|any_of|none_of"},
                 {"array", "array"},
                 {"atomic", "atomic|atomic_ref|memory_order_[a-z_]+"},
                 {"chrono", "chrono"},
                 {"condition_variable", "condition_variable"},
                 {"coroutine", "coroutine_handle|suspend_always|suspend_never"},
                 {"cstddef", "size_t|byte|ptrdiff_t|nullptr_t"},
                 {"cstdint", "u?int(8|16|32|64)_t|uintptr_t"},
                 {"cstring", "memcpy|memset|memcmp|memmove"},
                 {"exception", "exception_ptr|current_exception|rethrow_exception"},
                 {"functional", "function|invoke|reference_wrapper"},
                 {"map", "map"},
                 {"memory", "unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared"},
                 {"mutex", "mutex|lock_guard|unique_lock|scoped_lock"},
                 {"optional", "optional|nullopt"},
                 {"span", "span|as_bytes|as_writable_bytes"},
                 {"string", "string|to_string"},
                 {"string_view", "string_view"},
                 {"thread", "thread|this_thread"},
                 {"type_traits",
                  "is_[a-z_]+_v|conditional_t|remove_cvref_t|decay_t|invoke_result_t"},
                 {"utility", "move|forward|exchange|swap|pair"},
                 {"variant", "variant|monostate|visit"},
                 {"vector", "vector"}}) {
            made.emplace(header, "\\bstd::(" + names + ")\\b");
        }
        return made;
    }();
    std::set<std::string> missing;
    for (const auto& [name, text] : headers()) {
        const std::set<std::string> included = included_by(text);
        const std::string code = code_of(text);
        for (const auto& [header, names] : names_in) {
            if (!included.contains(header) && std::regex_search(code, names)) {
                missing.insert(name + ": <" + header + ">");
            }
        }
    }
    EXPECT_THAT(missing, IsEmpty());
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
