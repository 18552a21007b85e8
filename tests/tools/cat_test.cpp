// `millrace cat` as a user runs it: two processes of the real command, files and pipes around them.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::test::ChildProcess;
using millrace::test::Exit;
using namespace std::chrono_literals;

std::string in_quotes(const std::string& text) { return "'" + text + "'"; }

/// A folder of its own for each test, an address nobody else has, and the command's two ends.
class Cat : public testing::Test {
  protected:
    [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
    /// Runs one end through the shell, so that redirections are the user's. `redirections` may
    /// use > >> < and |; errors go to the file `errors`.
    ChildProcess run(const std::string& arguments, const std::string& redirections,
                     const std::string& errors) const {
        return ChildProcess::start_program({"sh", "-c",
                                            "exec " MILLRACE_COMMAND " cat " + arguments + " " +
                                                redirections + " 2> " + in_quotes(path(errors))});
    }
    ChildProcess listen(const std::string& redirections, const std::string& options = "") const {
        return run("listen " + in_quotes(address_) + " " + options, redirections, "receiver.err");
    }
    ChildProcess send(const std::string& redirections, const std::string& options = "") const {
        return run(in_quotes(address_) + " " + options, redirections, "sender.err");
    }
    [[nodiscard]] std::string text(const std::string& name) const { return folder_.content(name); }
    void write_file(const std::string& name, std::size_t bytes) const {
        std::ofstream file{path(name), std::ios::binary};
        std::uint64_t state = bytes + 1;
        std::string block;
        while (bytes > 0) {
            block.clear();
            for (int i = 0; i < 8192; ++i) {
                state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                block.append(reinterpret_cast<const char*>(&state), sizeof state);
            }
            block.resize(std::min(block.size(), bytes));
            file << block;
            bytes -= block.size();
        }
    }
    void expect_copied(const std::string& from, const std::string& to) const {
        EXPECT_EQ(fs::file_size(path(from)), fs::file_size(path(to)));
        EXPECT_TRUE(text(from) == text(to)) << "the content differs";
    }
    /// Waits until the file `name` has content: how a test knows that bytes flow.
    [[nodiscard]] bool wait_for_bytes(const std::string& name, std::uintmax_t bytes = 1) const {
        for (int i = 0; i < 2000; ++i) {
            std::error_code none;
            if (fs::exists(path(name)) && fs::file_size(path(name), none) >= bytes) return true;
            std::this_thread::sleep_for(10ms);
        }
        return false;
    }
    [[nodiscard]] std::string errors() const {
        return "receiver: " + text("receiver.err") + "\nsender: " + text("sender.err");
    }

    millrace::test::TemporaryFolder folder_;
    std::string address_ = "unix:" + path("socket");
};

TEST_F(Cat, CopiesFilesOfManySizes) {
    for (const std::size_t size : {0, 1, 63, 64, 65, 131071, 131072, 131073, 5'000'000}) {
        write_file("in", size);
        ChildProcess receiver = listen("> " + in_quotes(path("out")));
        ChildProcess sender = send("< " + in_quotes(path("in")));
        EXPECT_TRUE(sender.wait().success()) << size << "\n" << errors();
        EXPECT_TRUE(receiver.wait().success()) << size << "\n" << errors();
        expect_copied("in", "out");
    }
}

TEST_F(Cat, CopiesMoreThanFitsInAnyRingWithTheSameChecksumOnBothSides) {
    write_file("in", 64'000'000);
    ChildProcess receiver = listen("> " + in_quotes(path("out")), "--checksum");
    ChildProcess sender = send("< " + in_quotes(path("in")));
    EXPECT_TRUE(sender.wait().success()) << errors();
    EXPECT_TRUE(receiver.wait().success()) << errors();
    expect_copied("in", "out");
    EXPECT_EQ(text("receiver.err").rfind("xxh3 ", 0), 0U) << errors();
    EXPECT_EQ(text("receiver.err"), text("sender.err")) << "asked for by one, printed by both";
}

TEST_F(Cat, CopiesInEveryMode) {
    write_file("in", 3'000'000);
    for (const std::string mode : {"dynamic", "direct", "indirect"}) {
        ChildProcess receiver = listen("> " + in_quotes(path("out")), "--mode " + mode);
        ChildProcess sender = send("< " + in_quotes(path("in")));
        EXPECT_TRUE(sender.wait().success()) << mode << "\n" << errors();
        EXPECT_TRUE(receiver.wait().success()) << mode << "\n" << errors();
        expect_copied("in", "out");
    }
}

TEST_F(Cat, ModesThatExcludeEachOtherAreAnError) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")), "--mode direct --timeout 5");
    ChildProcess sender = send("< /dev/null", "--mode indirect");
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
    EXPECT_TRUE(receiver.wait().exited_with(1)) << errors();
    EXPECT_NE(text("sender.err").find("choose the same mode on both sides"), std::string::npos)
        << errors();
    ChildProcess misspelt = run(in_quotes(address_) + " --mode both", "< /dev/null", "late.err");
    EXPECT_TRUE(misspelt.wait().exited_with(2)) << text("late.err");
}

TEST_F(Cat, SpeaksTcpToo) {
    write_file("in", 300'000);
    // Port 0 lets the listener choose; --progress says which.
    ChildProcess receiver =
        run("listen 127.0.0.1:0 --progress", "> " + in_quotes(path("out")), "receiver.err");
    ASSERT_TRUE(wait_for_bytes("receiver.err"));
    std::string address = text("receiver.err");
    address = address.substr(address.find("127.0.0.1:"));
    address = address.substr(0, address.find('\n'));
    ChildProcess sender = run(address, "< " + in_quotes(path("in")), "sender.err");
    EXPECT_TRUE(sender.wait().success()) << errors();
    EXPECT_TRUE(receiver.wait().success()) << errors();
    expect_copied("in", "out");
}

TEST_F(Cat, CopiesForWhoHasTheSecretAndForNobodyElse) {
    write_file("in", 300'000);
    const auto write_secret = [&](const std::string& name, const std::string& secret) {
        std::ofstream{path(name)} << secret << '\n';
        fs::permissions(path(name), fs::perms::owner_read | fs::perms::owner_write);
        return "--secret-file " + in_quotes(path(name));
    };
    const std::string right = write_secret("right", "a secret of this test");
    const std::string wrong = write_secret("wrong", "a secret of another test");
    ChildProcess receiver = listen("> " + in_quotes(path("out")), right);
    for (const std::string& options : {wrong, std::string{}}) {
        ChildProcess sender = send("< " + in_quotes(path("in")), options);
        EXPECT_TRUE(sender.wait().exited_with(1));
        EXPECT_NE(text("sender.err").find("the peer refused: "), std::string::npos) << errors();
        EXPECT_NE(text("sender.err").find("secret"), std::string::npos) << errors();
    }
    fs::permissions(path("wrong"), fs::perms{0644});
    ChildProcess careless = send("< " + in_quotes(path("in")), wrong);
    EXPECT_TRUE(careless.wait().exited_with(1));
    EXPECT_NE(text("sender.err").find("chmod 600"), std::string::npos) << errors();
    ChildProcess sender = send("< " + in_quotes(path("in")), right);
    EXPECT_TRUE(sender.wait().success()) << errors();
    EXPECT_TRUE(receiver.wait().success()) << errors();
    expect_copied("in", "out");
}

TEST_F(Cat, PassesOnWhatAPipeGivesAsItComes) {
    ChildProcess receiver = listen("");
    ChildProcess sender = send("");
    for (int i = 0; i < 50; ++i) {
        const std::string line = "line " + std::to_string(i);
        ASSERT_TRUE(sender.write_line(line));
        ASSERT_EQ(receiver.read_line(), line) << "each line arrives before the next is sent";
    }
    sender.close_input();
    EXPECT_TRUE(sender.wait().success()) << errors();
    EXPECT_EQ(receiver.read_all(), "");
    EXPECT_TRUE(receiver.wait().success()) << errors();
}

TEST_F(Cat, AFullDiskIsAnErrorOnBothSides) {
    write_file("in", 10'000'000);
    ChildProcess receiver = listen("> /dev/full");
    ChildProcess sender = send("< " + in_quotes(path("in")));
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
    EXPECT_TRUE(receiver.wait().exited_with(1)) << errors();
    EXPECT_NE(text("receiver.err").find("No space left on device"), std::string::npos) << errors();
    EXPECT_NE(text("sender.err").find("No space left on device"), std::string::npos) << errors();
}

TEST_F(Cat, ABrokenPipeIsAnErrorOnBothSides) {
    write_file("in", 10'000'000);
    ChildProcess receiver = ChildProcess::start_program(
        {"sh", "-c",
         "{ " MILLRACE_COMMAND " cat listen " + in_quotes(address_) + " 2> " +
             in_quotes(path("receiver.err")) + "; echo $? > " + in_quotes(path("status")) +
             "; } | head -c 10 > /dev/null"});
    ChildProcess sender = send("< " + in_quotes(path("in")));
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
    EXPECT_TRUE(receiver.wait().success());
    EXPECT_EQ(text("status"), "1\n") << errors();
    EXPECT_NE(text("sender.err").find("Broken pipe"), std::string::npos) << errors();
}

TEST_F(Cat, AnUnreadableInputIsAnErrorOnBothSides) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("< " + in_quotes(folder_.path()));  // a folder: EISDIR
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
    EXPECT_TRUE(receiver.wait().exited_with(1)) << errors();
    EXPECT_NE(text("sender.err").find("EISDIR"), std::string::npos) << errors();
}

TEST_F(Cat, AClosedInputIsAnEmptyOne) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("<&-");
    EXPECT_TRUE(sender.wait().success()) << text("sender.err");
    EXPECT_TRUE(receiver.wait().success()) << text("receiver.err");
    EXPECT_EQ(text("out"), "");
}

TEST_F(Cat, NothingListeningIsAnErrorAfterTheTimeout) {
    ChildProcess sender = send("< /dev/null", "--timeout 1");
    EXPECT_TRUE(sender.wait().exited_with(1));
    EXPECT_FALSE(text("sender.err").empty());
}

TEST_F(Cat, AListenerWaitsAsLongAsItIsTold) {
    ChildProcess receiver = listen("> /dev/null", "--timeout 1");
    EXPECT_TRUE(receiver.wait().exited_with(1)) << errors();
    EXPECT_NE(text("receiver.err").find("nobody connected in time"), std::string::npos) << errors();
}

TEST_F(Cat, ASecondSenderIsRefusedByNameWhileTheFirstGoesOn) {
    ChildProcess receiver = listen("");
    ChildProcess first = send("");
    ASSERT_TRUE(first.write_line("one"));
    ASSERT_EQ(receiver.read_line(), "one");
    for (int i = 0; i < 2; ++i) {
        ChildProcess second =
            run(in_quotes(address_) + " --timeout 1000", "< /dev/null", "late.err");
        EXPECT_TRUE(second.wait().exited_with(1)) << text("late.err") << errors();
        EXPECT_NE(text("late.err").find("it already receives from another sender"),
                  std::string::npos)
            << text("late.err");
    }
    ASSERT_TRUE(first.write_line("two"));
    ASSERT_EQ(receiver.read_line(), "two");
    first.close_input();
    EXPECT_TRUE(first.wait().success()) << errors();
    EXPECT_TRUE(receiver.wait().success()) << errors();
}

TEST_F(Cat, AWrongAddressIsRefusedWithTheAcceptedForms) {
    ChildProcess sender = run("'not an address'", "< /dev/null", "sender.err");
    EXPECT_TRUE(sender.wait().exited_with(2));
    EXPECT_NE(text("sender.err").find("not an address"), std::string::npos);
}

class CatInterrupted : public Cat, public testing::WithParamInterface<int> {};

TEST_P(CatInterrupted, TheSenderEndsWith128AndTheSignalAndTheReceiverHearsOfIt) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("");
    ASSERT_TRUE(sender.write_line("so it flows"));
    ASSERT_TRUE(wait_for_bytes("out"));
    sender.send_signal(GetParam());
    EXPECT_TRUE(sender.wait().exited_with(128 + GetParam())) << errors();
    EXPECT_TRUE(receiver.wait().exited_with(1)) << errors();
    EXPECT_NE(text("receiver.err").find("interrupted"), std::string::npos) << errors();
}

TEST_P(CatInterrupted, TheReceiverEndsWith128AndTheSignalAndTheSenderHearsOfIt) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("");
    ASSERT_TRUE(sender.write_line("so it flows"));
    ASSERT_TRUE(wait_for_bytes("out"));
    receiver.send_signal(GetParam());
    EXPECT_TRUE(receiver.wait().exited_with(128 + GetParam())) << errors();
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
    EXPECT_NE(text("sender.err").find("interrupted"), std::string::npos) << errors();
}

TEST_P(CatInterrupted, AListenerThatWaitsEnds) {
    ChildProcess receiver =
        run("listen " + in_quotes(address_) + " --progress", "> /dev/null", "receiver.err");
    ASSERT_TRUE(wait_for_bytes("receiver.err"));
    receiver.send_signal(GetParam());
    EXPECT_TRUE(receiver.wait().exited_with(128 + GetParam())) << errors();
}

TEST_P(CatInterrupted, AReceiverWhoseOutputIsStuckEnds) {
    write_file("in", 10'000'000);
    ChildProcess receiver = listen("");  // its output is a pipe that nobody reads here
    ChildProcess sender = send("< " + in_quotes(path("in")));
    // Once something can be read, it flows; then the pipe fills up.
    ASSERT_TRUE(receiver.read_line().has_value());
    receiver.send_signal(GetParam());
    EXPECT_TRUE(receiver.wait().exited_with(128 + GetParam())) << errors();
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
}

INSTANTIATE_TEST_SUITE_P(Signals, CatInterrupted, testing::Values(SIGINT, SIGTERM),
                         [](const auto& tested) {
                             return tested.param == SIGINT ? "Interrupt" : "Terminate";
                         });

TEST_F(Cat, AKilledSenderIsAnErrorAtTheReceiver) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("");
    ASSERT_TRUE(sender.write_line("so it flows"));
    ASSERT_TRUE(wait_for_bytes("out"));
    EXPECT_TRUE(sender.kill_and_wait().killed_by(SIGKILL));
    EXPECT_TRUE(receiver.wait().exited_with(1)) << errors();
}

TEST_F(Cat, AKilledReceiverIsAnErrorAtTheSender) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("");
    ASSERT_TRUE(sender.write_line("so it flows"));
    ASSERT_TRUE(wait_for_bytes("out"));
    EXPECT_TRUE(receiver.kill_and_wait().killed_by(SIGKILL));
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
}

TEST_F(Cat, AKilledReceiverIsAnErrorAtASenderWithMuchToSend) {
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("< /dev/zero");
    ASSERT_TRUE(wait_for_bytes("out", 1'000'000));
    receiver.kill();
    EXPECT_TRUE(sender.wait().exited_with(1)) << errors();
    EXPECT_TRUE(receiver.wait().killed_by(SIGKILL));
}

TEST_F(Cat, AStoppedReceiverLosesNothing) {
    write_file("in", 20'000'000);
    ChildProcess receiver = listen("> " + in_quotes(path("out")));
    ChildProcess sender = send("< " + in_quotes(path("in")));
    ASSERT_TRUE(wait_for_bytes("out"));
    (void)receiver.stop(500ms);  // it may have ended already; then there is nothing to stop
    std::this_thread::sleep_for(300ms);
    receiver.resume();
    EXPECT_TRUE(sender.wait().success()) << errors();
    EXPECT_TRUE(receiver.wait().success()) << errors();
    expect_copied("in", "out");
}

}  // namespace
