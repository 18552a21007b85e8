// Descriptors above the standard streams.
#include "millrace/base/standard_streams.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "support/child_process.hpp"

namespace millrace::base {
namespace {

using test::ChildProcess;

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

TEST(StandardStreams, AreNeverWhatADescriptorBecomes) {
    EXPECT_TRUE(ChildProcess::start("lift_descriptors").wait().success());
}

MILLRACE_CHILD(lift_descriptors) {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    for (int n = 0; n < 2; ++n) {
        const int number = above_standard_streams(::open("/dev/null", O_RDONLY));
        if (number <= STDERR_FILENO || is_open(STDIN_FILENO) || is_open(STDOUT_FILENO)) return 1;
        if ((::fcntl(number, F_GETFD) & FD_CLOEXEC) == 0) return 2;
        if (above_standard_streams(number) != number || !is_open(number)) return 3;
    }
    return 0;
}

TEST(StandardStreams, LeaveAFailureAsItIs) {
    errno = EMFILE;
    EXPECT_EQ(above_standard_streams(-1), -1);
    EXPECT_EQ(errno, EMFILE);
}

TEST(StandardStreams, ThatAreClosedAreOpenedAndTheOthersLeftAlone) {
    ChildProcess child = ChildProcess::start("open_closed_streams");
    EXPECT_EQ(child.read_line(), "still mine");
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(open_closed_streams) {
    ::close(STDIN_FILENO);
    ::close(STDERR_FILENO);
    open_standard_streams();
    struct stat null {
    }, one{};
    if (::stat("/dev/null", &null) != 0) return 1;
    for (const int number : {STDIN_FILENO, STDERR_FILENO}) {
        if (::fstat(number, &one) != 0 || one.st_rdev != null.st_rdev) return 2;
    }
    test::say("still mine");
    return 0;
}

}  // namespace
}  // namespace millrace::base
