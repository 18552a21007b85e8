// MILLRACE_PTRACER: whether, and how, the kernel is asked to let other processes of the user copy.
// What the kernel makes of it can be seen only where Yama is and its scope is 1.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/node.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"
#include "system/copy_rights.hpp"

namespace millrace::soft {
namespace {

using test::ChildProcess;
using test::hear;
using test::say;

/// From here on, telling Yama that anybody may trace this process fails with EDOM.
bool watch_for_the_question() {
    constexpr std::uint32_t low = offsetof(seccomp_data, args);  // of the first argument
    constexpr std::uint32_t number = PR_SET_PTRACER;
    sock_filter program[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_prctl},
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, low},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, number},
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, low + 8},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0xffffffff},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EDOM},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    const sock_fprog filter{sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Joins a fabric; says what comes of it.
MILLRACE_CHILD(ptracer_member) {
    if (!watch_for_the_question()) return 77;
    testing::internal::CaptureStderr();
    std::string error;
    try {
        const auto node = Node::join(arguments.at(0));
    } catch (const base::Error& refused) {
        error = refused.what();
    }
    const std::string lines = testing::internal::GetCapturedStderr();
    const bool asked = lines.find("MILLRACE_PTRACER=1: the system refuses it") != lines.npos;
    say(error.empty() ? asked ? "asked" : "not asked" : error);
    return 0;
}

std::string join_with(const std::vector<std::string>& environment) {
    const std::string fabric = "test-" + std::to_string(getpid()) + "-ptracer";
    ChildProcess child = ChildProcess::start("ptracer_member", {fabric}, environment);
    return child.read_line().value_or("gone");
}

TEST(Ptracer, IsAskedOfTheKernelOnlyWhereItIsSet) {
    EXPECT_EQ(join_with({}), "not asked");
    EXPECT_EQ(join_with({"MILLRACE_PTRACER=0"}), "not asked");
    EXPECT_EQ(join_with({"MILLRACE_PTRACER="}), "not asked");
    EXPECT_EQ(join_with({"MILLRACE_PTRACER=1"}), "asked");
}

TEST(Ptracer, RefusesAValueThatMeansNothing) {
    const std::string answer = join_with({"MILLRACE_PTRACER=yes"});
    EXPECT_NE(answer.find("MILLRACE_PTRACER='yes'"), answer.npos) << answer;
    EXPECT_NE(answer.find("it is 0 or 1"), answer.npos) << answer;
}

/// An ordinary user's process; with "look PID", says whether it may copy from that one.
MILLRACE_CHILD(ptracer_user) {
    if (setgid(65534) != 0 || setuid(65534) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0) return 77;
    const auto node = Node::join(arguments.at(0));
    say(std::to_string(getpid()));
    while (const auto line = hear()) {
        say(may_copy(static_cast<pid_t>(std::stol(*line))) ? "may" : "may not");
    }
    return 0;
}

TEST(Ptracer, LetsProcessesOfTheUserCopyUnderYama) {
    int scope = -1;
    std::ifstream{"/proc/sys/kernel/yama/ptrace_scope"} >> scope;
    if (scope != 1 || geteuid() != 0) GTEST_SKIP() << "needs Yama's scope 1, and root";
    const std::string fabric = "test-" + std::to_string(getpid()) + "-yama";
    ChildProcess open = ChildProcess::start("ptracer_user", {fabric}, {"MILLRACE_PTRACER=1"});
    ChildProcess shut = ChildProcess::start("ptracer_user", {fabric}, {});
    const auto open_pid = open.read_line();
    const auto shut_pid = shut.read_line();
    ASSERT_TRUE(open_pid && shut_pid);
    ASSERT_TRUE(shut.write_line(*open_pid));
    EXPECT_EQ(shut.read_line(), "may");
    ASSERT_TRUE(open.write_line(*shut_pid));
    EXPECT_EQ(open.read_line(), "may not");
}

}  // namespace
}  // namespace millrace::soft
