// What a user who makes a mistake gets to read from the command: the cause, what to do, an exit
// status that is not 0, and soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::CommandOutcome;
using millrace::test::Exit;
using millrace::test::run_command;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class Command : public testing::Test {
  protected:
    Command() {
        std::filesystem::create_directory(folder_.path("empty"));
        std::filesystem::create_directory(files());
        std::ofstream{folder_.path("files/one")} << std::string(5000, 'x');
    }
    [[nodiscard]] const std::string& folder() const { return folder_.path(); }
    [[nodiscard]] std::string files() const { return folder_.path("files"); }

    /// It ends by itself, not with 0, and says all of `words`.
    template <class... Words>
    static void refuses(const CommandOutcome& outcome, Words... words) {
        EXPECT_EQ(outcome.exit.how, Exit::How::exited) << outcome.exit << '\n' << outcome.text;
        EXPECT_NE(outcome.exit.value, 0) << outcome.text;
        EXPECT_THAT(outcome.text, AllOf(HasSubstr(words)...));
    }

  private:
    millrace::test::TemporaryFolder folder_;
};

TEST_F(Command, DemoNamesAPathThatDoesNotExist) {
    refuses(run_command({"demo", folder() + "/nowhere"}), "nowhere", "No such file",
            "name a folder");
}

TEST_F(Command, DemoNamesAFolderWithoutFiles) {
    refuses(run_command({"demo", folder() + "/empty"}), "empty", "no regular file", "name another");
}

TEST_F(Command, DemoNamesAFolderThatCannotBeRead) {
    if (geteuid() == 0) GTEST_SKIP() << "root may read every folder";
    ASSERT_EQ(chmod(files().c_str(), 0), 0);
    refuses(run_command({"demo", files()}), "files", "ermission");
    EXPECT_EQ(chmod(files().c_str(), 0700), 0);
}

TEST_F(Command, DemoSaysHowManyFilesItLeavesOutAndWhy) {
    for (const char* const name : {"/big", "/bigger"}) {
        std::ofstream{files() + name} << std::string(2'000'000, 'x');
    }
    const CommandOutcome beyond =
        run_command({"demo", files(), "--limit", "1000000", "--rounds", "1", "--only", "flow-1"});
    EXPECT_TRUE(beyond.exit.success()) << beyond.text;
    EXPECT_THAT(beyond.text, HasSubstr("1 file, 5 records, 0 MB (2 files left out, and in no "
                                       "figure: 2 beyond the limit of 1 MB (--limit))"));
    refuses(run_command({"demo", files(), "--limit", "1000"}), "within the limit",
            "3 files left out", "raise --limit");

    if (geteuid() == 0) return;  // root may read every file
    ASSERT_EQ(chmod((files() + "/big").c_str(), 0), 0);
    const CommandOutcome unreadable =
        run_command({"demo", files(), "--rounds", "1", "--only", "flow-1"});
    EXPECT_TRUE(unreadable.exit.success()) << unreadable.text;
    EXPECT_THAT(unreadable.text, HasSubstr("(1 file left out, and in no figure: 1 unreadable)"));
}

TEST_F(Command, DemoNamesTheRangeOfARecordsSize) {
    refuses(run_command({"demo", files(), "--record-size", "0"}), "--record-size", "1048576");
    refuses(run_command({"demo", files(), "--record-size", "2000000"}), "--record-size", "1048576");
}

TEST_F(Command, DemoNamesTheRingThatItsRecordsNeed) {
    for (const char* const ring : {"0", "1", "4096", "1000000", "1000000000000"}) {
        refuses(run_command({"demo", files(), "--record-size", "4096", "--ring", ring}),
                "--ring " + std::string{ring}, "power of two", "16384");
    }
    // A size that only just suffices does.
    const CommandOutcome least = run_command({"demo", files(), "--record-size", "4096", "--ring",
                                              "16384", "--only", "flow-1", "--rounds", "1"});
    EXPECT_TRUE(least.exit.success()) << least.text;
}

TEST_F(Command, DemoNamesATransportThatDoesNotExist) {
    refuses(run_command({"demo", files(), "--only", "pigeon"}), "pigeon", "flow-1");
}

TEST_F(Command, DemoRefusesAResultFileBeforeItBegins) {
    const CommandOutcome outcome =
        run_command({"demo", files(), "--json", folder() + "/nowhere/x.json"});
    refuses(outcome, "x.json", "cannot write the results");
    EXPECT_THAT(outcome.text, testing::Not(HasSubstr("items/s")));
}

TEST_F(Command, NamesADeviceThatDoesNotExist) {
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"demo", files()},
          std::vector<std::string>{"cat", "unix:" + folder() + "/x"}}) {
        refuses(run_command(arguments, {"MILLRACE_DEVICE=nosuch0"}), "nosuch0", "MILLRACE_DEVICE",
                "there are: ");
    }
}

TEST_F(Command, NamesAFabricThatCannotBe) {
    for (const std::string fabric : {"a b", "../../etc", "\x01\xff", "ünlaut"}) {
        for (const std::vector<std::string>& arguments :
             {std::vector<std::string>{"demo", files()},
              std::vector<std::string>{"cat", "listen", "unix:" + folder() + "/x"},
              std::vector<std::string>{"cat", "unix:" + folder() + "/x"}}) {
            // Without the log, so that the error itself must say it.
            refuses(run_command(arguments, {"MILLRACE_DEVICE=soft0", "MILLRACE_FABRIC=" + fabric,
                                            "MILLRACE_LOG=off"}),
                    "set MILLRACE_FABRIC", "characters");
        }
    }
}

TEST_F(Command, CatNamesWhatIsWrongWithAnAddress) {
    refuses(run_command({"cat", "nonsense"}), "nonsense", "no port", "host:port");
    refuses(run_command({"cat", "host:99999"}), "99999", "65535");
    refuses(run_command({"cat", "unix:" + std::string(200, 'a')}), "107");
    refuses(run_command({"cat", "unix:"}), "unix:");
    refuses(run_command({"cat"}), "address");
    refuses(run_command({"cat", "listen", "unix:" + folder() + "/nowhere/x"}), "nowhere",
            "No such file", "folder");
}

TEST_F(Command, CatSaysThatNothingListens) {
    refuses(run_command({"cat", "unix:" + folder() + "/x", "--timeout", "1"}), "nothing listens",
            "start the listening side");
    refuses(run_command({"cat", "127.0.0.1:1", "--timeout", "1"}), "nothing listens",
            "start the listening side");
}

TEST_F(Command, CatNamesAnAddressThatIsTaken) {
    const std::string address = "unix:" + folder() + "/taken";
    ChildProcess first = ChildProcess::start_program(
        {"/bin/sh", "-c", "exec \"$0\" cat listen \"$1\" --progress 2>&1", MILLRACE_COMMAND,
         address});
    ASSERT_TRUE(first.read_line().has_value()) << "it says that it listens";
    refuses(run_command({"cat", "listen", address}), "taken", "in use");
}

/// Of the whole demo, which takes seconds: one test runs it.
void expect_whole(const std::string& text) {
    EXPECT_THAT(text, HasSubstr("items/s"));
    EXPECT_THAT(text, HasSubstr("clients of one key-value store")) << "it ends with that";
}

TEST_F(Command, DemoNeedsNoSharedMemoryFolder) {
    if (geteuid() != 0) {
        expect_whole(run_command({"demo", files(), "--rounds", "1"}).text);
        GTEST_SKIP() << "needs root, for a mount namespace of its own";
    }
    // In a chroot "/" need not be a mount, and unshare's own change of its propagation fails; what
    // must not reach other namespaces is only what is mounted below /dev.
    const std::string isolate = "mount --make-rprivate / 2>/dev/null || mount --make-rprivate /dev";
    // All transports where it is full; the queue, which is what is asked about, where there is
    // none.
    struct Try {
        std::string prepare;
        std::string options;
    };
    for (const auto& [prepare, options] :
         {Try{"mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full",
              "--rounds 1"},
          Try{"mount -t tmpfs -o size=4k none /dev && mknod -m 666 /dev/null c 1 3 && "
              "mknod -m 666 /dev/urandom c 1 9",
              "--rounds 1 --only flow-1"}}) {
        ChildProcess process = ChildProcess::start_program(
            {"/bin/sh", "-c",
             "exec 2>&1; unshare --mount --propagation unchanged true || exit 77\n"
             "exec unshare --mount --propagation unchanged /bin/sh -c \"$0\" \"$@\"",
             "{ " + isolate + "; } && " + prepare + " || exit 77; exec \"$0\" demo \"$1\" " +
                 options,
             MILLRACE_COMMAND, files()});
        const std::string text = process.read_all(std::chrono::seconds{50});
        const Exit exit = process.wait();
        if (exit.exited_with(77)) GTEST_SKIP() << "no mounts may be made here: " << text;
        EXPECT_TRUE(exit.success()) << exit << '\n' << text;
        if (options == "--rounds 1") {
            expect_whole(text);
        } else {
            EXPECT_THAT(text, HasSubstr("items/s"));
        }
    }
}

TEST_F(Command, NamesTheLimitOfOpenFiles) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the undefined behaviour sanitizer needs descriptors itself: without one it "
                    "takes every object for a wrong one";
#endif
    // From too few for anything to enough for nearly everything: no hang, no crash, and words.
    const std::string address = "unix:" + folder() + "/x";
    for (int limit = 4; limit <= 11; ++limit) {
        ChildProcess process = ChildProcess::start_program(
            {"/bin/sh", "-c",
             "exec 2>&1 </dev/null; exec prlimit --nofile=" + std::to_string(limit) +
                 " \"$0\" cat \"$1\" --timeout 1",
             MILLRACE_COMMAND, address});
        const std::string text = process.read_all();
        const Exit exit = process.wait();
        EXPECT_EQ(exit.how, Exit::How::exited) << limit << ": " << exit << '\n' << text;
        EXPECT_NE(exit.value, 0) << limit;
        EXPECT_THAT(text, AnyOf(HasSubstr("ulimit -n"), HasSubstr("nothing listens"),
                                HasSubstr("error while loading shared libraries")))
            << "limit " << limit;
    }
}

}  // namespace
}  // namespace millrace::faults
