// `millrace manual`: every command has a man page, and every option that --help shows is in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::tools {
namespace {

using millrace::test::run_command;
using millrace::test::run_line;
using Outcome = millrace::test::CommandOutcome;
using testing::HasSubstr;

class Manual : public testing::Test {
  protected:
    Manual() {
        const Outcome outcome = run_command({"manual", folder_.path("man")});
        EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    }
    [[nodiscard]] std::string page(const std::string& name) const {
        return folder_.content("man/" + name + ".1");
    }

    millrace::test::TemporaryFolder folder_;
};

/// The words that begin the lines below a heading of --help ("Subcommands:").
std::vector<std::string> listed(const std::string& help, const std::string& heading) {
    std::vector<std::string> words;
    std::istringstream lines{help};
    bool below = false;
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(' ')) below = line == heading;
        static const std::regex word{R"(^  ((-\w,)?[-\w]+))"};
        std::smatch match;
        if (below && std::regex_search(line, match, word)) words.push_back(match[1]);
    }
    return words;
}

TEST_F(Manual, HasAPageForEveryCommandWithEveryOptionThatHelpShows) {
    std::vector<std::vector<std::string>> commands{{}};
    std::size_t options_seen = 0;
    for (std::size_t i = 0; i < commands.size(); ++i) {
        std::vector<std::string> words = commands[i];
        std::string name = "millrace";
        for (const auto& word : words) name += "-" + word;
        const std::string text = page(name);
        EXPECT_THAT(text, HasSubstr(".SH SYNOPSIS")) << name;

        words.push_back("--help");
        const std::string help = run_command(words).text;
        static const std::regex machines_words{R"(\{false\}|[0-9]e[+-]?[0-9])"};
        EXPECT_FALSE(std::regex_search(help, machines_words)) << help;
        for (const std::string& option : listed(help, "Options:")) {
            const auto dashes = option.find("--");
            if (dashes == std::string::npos) continue;
            const std::string escaped =
                std::regex_replace(option.substr(dashes), std::regex{"-"}, "\\-");
            EXPECT_THAT(text, HasSubstr(escaped)) << name << '\n' << help;
            ++options_seen;
        }
        words.pop_back();
        for (const std::string& below : listed(help, "Subcommands:")) {
            commands.push_back(words);
            commands.back().push_back(below);
        }
    }
    EXPECT_THAT(commands, testing::Contains(std::vector<std::string>{"bench", "flow"}));
    EXPECT_GE(commands.size(), 12U) << "the commands were found";
    EXPECT_GE(options_seen, 30U) << "the options were found";
}

TEST_F(Manual, IsAsManReadsIt) {
    const Outcome outcome =
        run_line("command -v groff >/dev/null || exit 0; groff -man -ww -z \"$1\"/man/*.1 2>&1",
                 {folder_.path()});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_EQ(outcome.text, "");
}

}  // namespace
}  // namespace millrace::tools
