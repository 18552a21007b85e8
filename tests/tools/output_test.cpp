// What every subcommand has in common: output that is lost is a failure, --json, the width of the
// terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
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
using testing::AllOf;
using testing::HasSubstr;

class Output : public testing::Test {
  protected:
    Output() {
        std::filesystem::create_directory(file("files"));
        std::ofstream{file("files/one")} << std::string(5000, 'x');
    }
    [[nodiscard]] std::string file(const std::string& name) const { return folder_.path(name); }
    [[nodiscard]] std::string demo() const {
        return "demo '" + file("files") + "' --rounds 1 --only message";
    }

    millrace::test::TemporaryFolder folder_;
};

TEST_F(Output, ThatIsLostToAFullDiskIsAFailure) {
    for (const std::string& arguments :
         {std::string{"--version"}, std::string{"--help"}, std::string{"soft --help"},
          std::string{"bench --help"}, std::string{"doctor"}, std::string{"doctor --json"},
          std::string{"devices"}, std::string{"devices --json"}, std::string{"soft status"},
          std::string{"soft status --json"}, std::string{"soft clean --dry-run"}, demo(),
          demo() + " --json"}) {
        const Outcome lost = run_line("exec \"$0\" " + arguments + " 2>&1 >/dev/full");
        EXPECT_TRUE(lost.exit.exited_with(1)) << arguments << ": " << lost.exit << lost.text;
        EXPECT_THAT(lost.text, HasSubstr("No space left on device")) << arguments;
        const Outcome arrived = run_line("exec \"$0\" " + arguments + " 2>&1 >/dev/null");
        EXPECT_TRUE(arrived.exit.success()) << arguments << ": " << arrived.exit << arrived.text;
        EXPECT_EQ(arrived.text, "") << arguments;
    }
}

TEST_F(Output, ThatAFullDiskWillNotTakeIsRefusedBeforeAnythingIsMeasured) {
    const auto expect_refused = [](const Outcome& outcome) {
        EXPECT_TRUE(outcome.exit.exited_with(1)) << outcome.exit << outcome.text;
        EXPECT_THAT(outcome.text,
                    AllOf(HasSubstr("write the results as JSON"),
                          HasSubstr("No space left on device"), HasSubstr("on a disk with room")));
        EXPECT_THAT(outcome.text, testing::Not(HasSubstr("items/s")));
    };
    expect_refused(run_line("exec \"$0\" " + demo() + " --json /dev/full 2>&1"));
    // A new file, and one that is there and stays as it is.
    std::filesystem::create_directory(file("small"));
    const std::string fill =
        "mount -t tmpfs -o size=16k none '" + file("small") + "' && cd '" + file("small") +
        "' && echo before > there && head -c 16384 /dev/zero > rest 2> /dev/null; ";
    for (const std::string name : {"new", "there"}) {
        const Outcome outcome = run_line(
            "exec 2>&1; unshare --mount true || exit 77; exec unshare --mount /bin/sh -c \"$1\" "
            "\"$0\"",
            {fill + "\"$0\" " + demo() + " --json " + name +
             "; status=$?; cat there; exit $status"});
        if (outcome.exit.exited_with(77)) GTEST_SKIP() << "no mounts may be made here";
        expect_refused(outcome);
        EXPECT_THAT(outcome.text, HasSubstr("before"));
    }
}

TEST_F(Output, AsJsonIsAloneWithoutAFileAndBesideTheLinesWithOne) {
    for (const std::string& arguments :
         {std::string{"doctor"}, std::string{"devices"}, std::string{"soft status"}, demo()}) {
        const Outcome alone = run_line("exec \"$0\" " + arguments + " --json");
        EXPECT_TRUE(alone.exit.success()) << arguments << alone.exit;
        EXPECT_TRUE(nlohmann::json::accept(alone.text)) << arguments << ":\n" << alone.text;

        const std::string path = file("document.json");
        const Outcome beside = run_line("exec \"$0\" " + arguments + " --json '" + path + "'");
        EXPECT_TRUE(beside.exit.success()) << arguments << beside.exit;
        EXPECT_FALSE(beside.text.empty()) << arguments;
        EXPECT_FALSE(nlohmann::json::accept(beside.text)) << arguments << ":\n" << beside.text;
        const std::string written = folder_.content("document.json");
        EXPECT_TRUE(nlohmann::json::accept(written)) << arguments << written;
        std::filesystem::remove(path);

        const Outcome refused =
            run_line("exec \"$0\" " + arguments + " --json '" + file("nowhere/x") + "' 2>&1");
        EXPECT_TRUE(refused.exit.exited_with(1)) << arguments << refused.exit;
        EXPECT_THAT(refused.text, AllOf(HasSubstr("nowhere/x"), HasSubstr("No such file"),
                                        HasSubstr("name a path that is writable")))
            << arguments;
    }
}

std::size_t columns_of(const std::string& line) {
    return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
    }));
}

/// The lines that are wider than `width` although they have a space to break at.
std::vector<std::string> too_wide(const std::string& text, std::size_t width) {
    std::vector<std::string> found;
    std::istringstream lines{text};
    for (std::string line; std::getline(lines, line);) {
        const auto begin = std::min(line.find_first_not_of(' '), line.size());
        if (columns_of(line) > width && line.find(' ', begin) != std::string::npos) {
            found.push_back(line);
        }
    }
    return found;
}

/// Without the names of fabrics, which other programs choose, and which stay whole.
std::string without_fabrics(const std::string& text) {
    std::string kept;
    std::istringstream lines{text};
    for (std::string line; std::getline(lines, line);) {
        if (line.find("fabric ") == std::string::npos) kept += line + '\n';
    }
    return kept;
}

TEST_F(Output, FitsTheTerminal) {
    for (const std::string& arguments :
         {std::string{"doctor"}, std::string{"devices"}, std::string{"soft status"},
          std::string{"soft clean --dry-run"}, std::string{"--help"}, std::string{"cat --help"},
          std::string{"soft trace --help"}, std::string{"bench --help"},
          std::string{"bench flow --help"}, demo()}) {
        for (const std::size_t width : {80u, 60u}) {
            const Outcome outcome =
                run_line("exec \"$0\" " + arguments, {}, {"COLUMNS=" + std::to_string(width)});
            EXPECT_TRUE(outcome.exit.success()) << outcome.exit;
            EXPECT_THAT(too_wide(without_fabrics(outcome.text), width), testing::IsEmpty())
                << arguments;
        }
        // Neither a terminal nor COLUMNS: 80.
        const Outcome unknown = run_line("unset COLUMNS; exec \"$0\" " + arguments);
        EXPECT_THAT(too_wide(without_fabrics(unknown.text), 80), testing::IsEmpty()) << arguments;
    }
}

TEST_F(Output, OfHelpBreaksADescriptionAtTheMargin) {
    const Outcome outcome = run_line("exec \"$0\" soft run --help", {}, {"COLUMNS=60"});
    EXPECT_THAT(outcome.text, testing::StartsWith("Run an unmodified verbs program, with soft0 "
                                                  "beside the\nmachine's own devices:\n"
                                                  "millrace soft run -- "));
}

TEST_F(Output, OfATableLosesNoFigureOnANarrowTerminal) {
    for (const char* const width : {"COLUMNS=200", "COLUMNS=60"}) {
        const Outcome outcome = run_line("exec \"$0\" " + demo(), {}, {width});
        for (const char* const heading : {"items/s", "ratio", "MB/s", "latency", "p99", "CPU s",
                                          "work req.", "sys. calls", "message channel"}) {
            EXPECT_THAT(outcome.text, HasSubstr(heading)) << width;
        }
    }
}

TEST_F(Output, OfTheVersionNamesCommitCompilerAndDevice) {
    const Outcome outcome = run_command({"--version"}, {"MILLRACE_DEVICE=soft0"});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text, testing::ContainsRegex("^millrace [0-9.]+\ncommit    .+\n"
                                                     "compiler  (GCC|Clang) .+\ndevice    soft0 "));
    const Outcome without = run_command({"--version"}, {"MILLRACE_DEVICE=none-such"});
    EXPECT_TRUE(without.exit.success()) << without.text;
    EXPECT_THAT(without.text, HasSubstr("there is no device of that name"));
    const Outcome refused = run_command({"--version"}, {"MILLRACE_LOG=loud"});
    EXPECT_THAT(refused.text, HasSubstr("it is 'loud', which is no level"))
        << "the device refuses to be opened";
}

TEST_F(Output, OfADemoFitsATerminalOf80Columns) {
    if (run_line("command -v script && script --version").exit.exited_with(127)) {
        GTEST_SKIP() << "there is no script(1) to give it a terminal";
    }
    const Outcome outcome =
        run_line("exec script -qec 'stty cols 80; unset COLUMNS; exec \"'\"$0\"'\" " + demo() +
                 "' /dev/null");
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("% ")) << "it shows how far it is";
    std::string line;
    std::size_t columns = 0;
    for (std::size_t i = 0; i < outcome.text.size(); ++i) {
        const char one = outcome.text[i];
        if (one == '\r' || one == '\n') {
            EXPECT_LE(columns, 80U) << line;
            line.clear();
            columns = 0;
        } else if (outcome.text.compare(i, 3, "\033[K") == 0) {
            i += 2;
        } else {
            line += one;
            columns += (static_cast<unsigned char>(one) & 0xc0) != 0x80 ? 1 : 0;
        }
    }
}

}  // namespace
}  // namespace millrace::tools
