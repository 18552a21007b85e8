// Every fuzzer is in the documentation, and nothing that is none: the threat model says what each
// proves, and docs/testing.md how many `make fuzz` runs.
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::add_matches;
using millrace::architecture::source_tree;
using millrace::architecture::text_of;
using testing::HasSubstr;
using testing::IsEmpty;

std::set<std::string> fuzzers() {
    static const std::regex made{R"rx((?:^|\n)millrace_fuzzer\(([a-z_]+))rx"};
    std::set<std::string> names;
    add_matches(text_of(source_tree() / "fuzz" / "CMakeLists.txt"), made, names);
    return names;
}

TEST(Fuzzers, AreThoseThatTheThreatModelLists) {
    static const std::regex listed{R"rx(`fuzz/([a-z_]+)\.cpp`)rx"};
    std::set<std::string> names;
    add_matches(text_of(source_tree() / "docs" / "threat-model.md"), listed, names);
    const auto made = fuzzers();
    EXPECT_TRUE(made.contains("soft_block"));
    EXPECT_EQ(names, made);
}

TEST(Fuzzers, AreAsManyAsThePageOfTestsSays) {
    EXPECT_THAT(text_of(source_tree() / "docs" / "testing.md"),
                HasSubstr("SECONDS for each of " + std::to_string(fuzzers().size()) + " programs"));
}

TEST(Fuzzers, HaveInputsToBeginWith) {
    std::set<std::string> without;
    for (const std::string& name : fuzzers()) {
        const fs::path corpus = source_tree() / "fuzz" / "corpus" / name;
        if (!fs::is_directory(corpus) || fs::is_empty(corpus)) without.insert(name);
    }
    EXPECT_THAT(without, IsEmpty());
}

}  // namespace
