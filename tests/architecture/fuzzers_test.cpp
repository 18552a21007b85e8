// Every fuzzer is in the documentation, and nothing that is none: the threat model says what each
// proves, and docs/testing.md how many `make fuzz` runs.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

std::string text_of(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream{fs::path{MILLRACE_SOURCE_DIR} / path}.rdbuf();
    return text.str();
}

std::set<std::string> found_in(const fs::path& path, const std::regex& pattern) {
    const std::string text = text_of(path);
    std::set<std::string> names;
    for (std::sregex_iterator match{text.begin(), text.end(), pattern}, end; match != end;
         ++match) {
        names.insert((*match)[1]);
    }
    return names;
}

std::set<std::string> fuzzers() {
    static const std::regex made{R"rx((?:^|\n)millrace_fuzzer\(([a-z_]+))rx"};
    return found_in(fs::path{"fuzz"} / "CMakeLists.txt", made);
}

TEST(Fuzzers, AreThoseThatTheThreatModelLists) {
    static const std::regex listed{R"rx(`fuzz/([a-z_]+)\.cpp`)rx"};
    const auto made = fuzzers();
    EXPECT_TRUE(made.contains("soft_block"));
    EXPECT_EQ(found_in(fs::path{"docs"} / "threat-model.md", listed), made);
}

TEST(Fuzzers, AreAsManyAsThePageOfTestsSays) {
    EXPECT_THAT(text_of(fs::path{"docs"} / "testing.md"),
                HasSubstr("SECONDS for each of " + std::to_string(fuzzers().size()) + " programs"));
}

TEST(Fuzzers, HaveInputsToBeginWith) {
    std::set<std::string> without;
    for (const std::string& name : fuzzers()) {
        const fs::path corpus = fs::path{MILLRACE_SOURCE_DIR} / "fuzz" / "corpus" / name;
        if (!fs::is_directory(corpus) || fs::is_empty(corpus)) without.insert(name);
    }
    EXPECT_THAT(without, IsEmpty());
}

}  // namespace
