// Words on the command line that the command does not understand: exit status 2, and the wrong word
// is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/command.hpp"

namespace millrace::tools {
namespace {

using millrace::test::run_command;
using Outcome = millrace::test::CommandOutcome;
using testing::AllOf;
using testing::HasSubstr;

template <class... Words>
void refuses(const std::vector<std::string>& arguments, Words... words) {
    const Outcome outcome = run_command(arguments);
    EXPECT_TRUE(outcome.exit.exited_with(2)) << outcome.exit << '\n' << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr(words)...));
}

TEST(Usage, IsToldByHelpAsWell) {
    EXPECT_EQ(run_command({"help"}).text, run_command({"--help"}).text);
    EXPECT_EQ(run_command({"help", "kv", "get"}).text, run_command({"kv", "get", "--help"}).text);
    EXPECT_EQ(run_command({"help", "bench", "flow"}).text,
              run_command({"bench", "flow", "--help"}).text);
    EXPECT_TRUE(run_command({"help", "kv"}).exit.success());
}

TEST(Usage, AnUnknownCommandIsNamedWithThoseThereAre) {
    refuses({"frobnicate"}, "'frobnicate'", "of millrace;",
            "demo, devices, doctor, cat, perf, kv, rpc, soft");
    refuses({"frobnicate", "--loudly"}, "no command 'frobnicate'");
    refuses({"soft", "frobnicate"}, "'frobnicate'", "of millrace soft;", "run, trace, status");
    refuses({"bench", "frobnicate"}, "'frobnicate'", "of millrace bench;", "bars, limits");
}

TEST(Usage, AMissingCommandIsAskedFor) {
    refuses({}, "millrace needs a command", "demo, devices");
    refuses({"soft"}, "millrace soft needs a command", "run, trace");
    refuses({"bench"}, "millrace bench needs a command", "bars, limits");
    refuses({"cat", "listen"}, "the address to listen on");
}

TEST(Usage, AnUnknownOptionIsNamedEvenIfMoreIsWrong) {
    refuses({"doctor", "--frobnicate"}, "no option '--frobnicate' of millrace doctor");
    refuses({"cat", "--frobnicate"}, "no option '--frobnicate' of millrace cat");
    refuses({"bench", "bars", "--frobnicate"}, "no option '--frobnicate' of millrace bench bars");
    refuses({"--frobnicate", "doctor"}, "no option '--frobnicate' of millrace");
}

TEST(Usage, AWordTooManyIsNamed) {
    refuses({"doctor", "house"}, "'house'", "millrace doctor");
    refuses({"bench", "limits", "house"}, "'house'", "millrace bench limits");
    refuses({"cat", "hear", "unix:/nowhere/x"}, "'hear'", "listen");
}

TEST(Usage, AValueOutOfRangeIsNamed) {
    refuses({"demo", "--limit", "0"}, "--limit", "from 1 to 1e");
    refuses({"demo", "--limit", "much"}, "--limit", "much");
    refuses({"demo", "--only", "pigeons"}, "pigeons", "flow-1", "message", "tcp");
    refuses({"demo", "--ring", "1000"}, "--ring 1000", "power of two");
    refuses({"demo", "--rounds", "0"}, "--rounds", "0");
    refuses({"bench", "limits", "--rounds", "0"}, "--rounds", "see millrace bench limits --help");
    refuses({"cat", "listen", "unix:/nowhere/x", "--timeout", "0"}, "--timeout", "0");
    refuses({"cat", "not an address"}, "not an address");
    refuses({"soft", "run", "--mode", "wireless", "--", "true"}, "wireless");
}

/// An option that takes a number, as --help shows it: "-n,--bytes UINT:from 1 to 1e".
struct NumericOption {
    std::vector<std::string> command;  ///< its words
    std::string name;
};

/// Of the command and of all below it.
void find_numeric_options(const std::vector<std::string>& command,
                          std::vector<NumericOption>& found) {
    std::vector<std::string> words = command;
    words.emplace_back("--help");
    std::istringstream lines{run_command(words).text};
    std::string heading;
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(' ')) heading = line;
        static const std::regex numeric{
            R"(^  (?:-\w,)?(--[-\w]+)\S* (?:UINT|INT|FLOAT|SECONDS|NUMBERS)\b.*)"};
        static const std::regex below{R"(^  ([a-z]+)\b.*)"};
        std::smatch match;
        if (heading == "Options:" && std::regex_match(line, match, numeric)) {
            found.push_back({command, match[1]});
        } else if (heading == "Subcommands:" && std::regex_match(line, match, below)) {
            std::vector<std::string> deeper = command;
            deeper.push_back(match[1]);
            find_numeric_options(deeper, found);
        }
    }
}

TEST(Usage, NoOptionTakesANumberThatIsNone) {
    std::vector<NumericOption> options;
    find_numeric_options({}, options);
    // What commands need beside the option.
    const std::map<std::string, std::vector<std::string>> needed{
        {"cat", {"unix:/nowhere/x"}},
        {"perf", {"-c", "unix:/nowhere/x"}},
        {"get", {"key"}},
        {"set", {"key", "value"}},
        {"del", {"key"}},
        {"exists", {"key"}},
        {"setopt", {"sweep", "5"}},
        {"list", {"unix:/nowhere/x"}},
        {"rpc", {"--figure", "none"}},
        {"flow", {"--figure", "none"}},
        {"serve", {"--listen", "unix:/nowhere/x"}},
        {"demo", {"/nowhere"}},
    };
    // 0 says something to these, or the command says itself what they need.
    const std::set<std::string> may_be_zero{"--cores",       "--if-version",       "--interval",
                                            "--ring",        "--expires",          "--get-percent",
                                            "--value-bytes", "kv bench --threads", "tune --seed"};
    std::set<std::string> seen;
    for (const auto& [command, name] : options) {
        std::string path;
        for (const std::string& word : command) path += word + ' ';
        seen.insert(path + name);
        std::vector<std::string> values{"99999999999999999999", "nan"};
        if (name != "--expires") values.emplace_back("-5");  // a time that is over already
        if (!may_be_zero.contains(name) && !may_be_zero.contains(path + name)) {
            values.emplace_back("0");
        }
        for (const std::string& value : values) {
            SCOPED_TRACE(path + name + ' ' + value);
            std::vector<std::string> words = command;
            if (const auto more = needed.find(command.back()); more != needed.end()) {
                words.insert(words.end(), more->second.begin(), more->second.end());
            }
            words.push_back(name);
            words.push_back(value);
            refuses(words, name + ": '" + value + "' is not a ", "from ");
        }
    }
    // It has looked at all programs and at those below.
    for (const char* one :
         {"demo --limit", "cat --timeout", "perf --bytes", "kv serve --memory",
          "kv set --if-version", "kv bench --rate", "rpc list --timeout", "bench flow --items",
          "bench rpc --response-memory", "bench ycsb --rate"}) {
        EXPECT_TRUE(seen.contains(one)) << one;
    }
}

TEST(Usage, BytesMayBeSaidByUnits) {
    // Behind the words stands an address where nobody is: they were right.
    for (const char* bytes : {"8388608", "8m", "8MiB", "8192kb", "1t"}) {
        const Outcome outcome =
            run_command({"kv", "serve", "--listen", "unix:/nowhere/x", "--memory", bytes});
        EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.text;
        EXPECT_THAT(outcome.text, HasSubstr("/nowhere/x"));
    }
    for (const char* bytes : {"", "m", "8x", "8 m m", "1.5g", "0x800000", "8388607", "1025g",
                              "16777216t", "18014398509481985k"}) {
        refuses({"kv", "serve", "--memory", bytes},
                "--memory: '" + std::string{bytes} + "' is not a number of bytes, from 8m to 1t");
    }
}

TEST(Usage, HelpIsNoError) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                      {"cat", "--help"},
                                                      {"soft", "run", "--help"},
                                                      {"bench", "bars", "--help"}}) {
        const Outcome outcome = run_command(arguments);
        EXPECT_TRUE(outcome.exit.success()) << outcome.exit << '\n' << outcome.text;
        EXPECT_THAT(outcome.text, HasSubstr("Usage: "));
    }
}

TEST(Usage, AnUnknownLevelOfTheLogIsRefused) {
    const Outcome outcome = run_command({"devices"}, {"MILLRACE_LOG=loud"});
    EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << '\n' << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("MILLRACE_LOG"), HasSubstr("'loud'"),
                                    HasSubstr("trace, debug, info, warn, error or off")));
}

}  // namespace
}  // namespace millrace::tools
