#include <linux/membarrier.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "checks.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/contention.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::tools::doctor {
namespace {

std::atomic<int> looked_at{42};

/// 0, or why one child of ours cannot read another's memory: as two programs of one user.
int read_a_sibling() {
    const pid_t target = ::fork();
    if (target < 0) return errno;
    if (target == 0) {
        ::alarm(20);  // ends it if we are gone
        for (;;) ::pause();
    }
    const pid_t reader = ::fork();
    if (reader == 0) {
        int copy = 0;
        iovec local{&copy, sizeof copy};
        iovec remote{&looked_at, sizeof copy};
        const ssize_t n = ::process_vm_readv(target, &local, 1, &remote, 1, 0);
        ::_exit(n == sizeof copy && copy == 42 ? 0 : n < 0 ? errno : EFAULT);
    }
    int error = reader < 0 ? errno : 0;
    int status = 0;
    if (reader > 0 && ::waitpid(reader, &status, 0) == reader) {
        error = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
    }
    ::kill(target, SIGKILL);
    ::waitpid(target, nullptr, 0);
    return error;
}

Finding process_vm() {
    Finding finding{.name = "ptrace scope"};
    std::string scope = "none";
    std::ifstream file{"/proc/sys/kernel/yama/ptrace_scope"};
    if (std::string text; file >> text) scope = text;
    const int error = read_a_sibling();
    finding.found = fmt::format(
        "kernel.yama.ptrace_scope {}; programs of one user {} each other's "
        "memory",
        scope, error == 0 ? "can reach" : "cannot reach");
    if (error != 0) {
        finding.verdict = Verdict::warn;
        finding.means = fmt::format(
            "process_vm_readv: {}. Millrace's own rings are mapped and do not need it; unmodified "
            "programs on the soft device, whose buffers are private memory, get a thread that "
            "copies for their peers, which is slower",
            base::describe_errno(error));
        finding.remedy =
            "sysctl kernel.yama.ptrace_scope=0; under scope 1, or start the programs with "
            "MILLRACE_PTRACER=1 (docs/threat-model.md says what that opens); in a container, add "
            "CAP_SYS_PTRACE";
    } else if (scope != "none" && scope != "0" && ::geteuid() == 0) {
        finding.verdict = Verdict::warn;
        finding.means = "root may, other users may not";
        finding.remedy = "sysctl kernel.yama.ptrace_scope=0 for them";
    }
    return finding;
}

Finding pid_namespace() {
    constexpr ino_t first_namespace = 4026531836;  // PROC_PID_INIT_INO
    Finding finding{.name = "pid namespace", .found = "the machine's own"};
    struct stat status {};
    if (::stat("/proc/self/ns/pid", &status) != 0) {
        finding.verdict = Verdict::fail;
        finding.found = "/proc: " + base::describe_errno(errno);
        finding.means = "programs on the soft device cannot find each other's memory";
        finding.remedy = "mount /proc";
    } else if (status.st_ino != first_namespace) {
        finding.verdict = Verdict::warn;
        finding.found =
            fmt::format("one of its own ({})", static_cast<unsigned long>(status.st_ino));
        finding.means =
            "this looks like a container: programs outside it do not see its soft device";
        finding.remedy =
            "none is needed within one container; to join several, share one pid namespace, one "
            "network namespace and one user (docker run --pid=container:… --network=container:…)";
    }
    return finding;
}

Finding membarrier() {
    Finding finding{.name = "membarrier", .found = "works"};
    const long answer = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (answer < 0 || (answer & MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) {
        finding.verdict = Verdict::warn;
        finding.found =
            answer < 0 ? base::describe_errno(errno) : std::string{"no global expedited barrier"};
        finding.means = "the soft device uses a full fence per operation instead: slower";
        finding.remedy = "let the seccomp profile allow membarrier; a kernel from 4.16 on has it";
    }
    return finding;
}

Finding cores() {
    const auto available = base::available_cores().size();
    Finding finding{.name = "cores", .found = fmt::format("{} available", available)};
    if (available < 2) {
        finding.verdict = Verdict::warn;
        finding.means = "two ends that poll take turns on it: times mean little";
        finding.remedy = "give the container or the task two cores (taskset, --cpuset-cpus)";
    }
    return finding;
}

Finding busy_machine() {
    constexpr int looks = 20;
    int exceeding = 0;
    int answered = 0;
    for (int look = 0; look != looks; ++look) {
        const base::Demand demand = base::processor_demand();
        answered += demand != base::Demand::unknown ? 1 : 0;
        exceeding += demand == base::Demand::exceeds ? 1 : 0;
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    Finding finding{.name = "other programs", .found = "leave processors free"};
    if (answered == 0) {
        finding.found = "unknown: /proc/loadavg does not tell how many threads would run";
    } else if (exceeding > looks / 2) {
        finding.verdict = Verdict::warn;
        finding.found = fmt::format(
            "need processors: at {} of {} looks more threads would run than there are processors",
            exceeding, looks);
        finding.means =
            "waits sleep after a short look, and a message takes a wake-up, some 10 to 50 us; a "
            "program that polls loses its processor for some milliseconds at a time";
        finding.remedy = "give Millrace's programs processors of their own (taskset, cpusets)";
    }
    return finding;
}

Finding clock() {
    Finding finding{.name = "clock", .found = "the processor's counter"};
    if (!base::Clock::uses_processor_counter()) {
        finding.verdict = Verdict::warn;
        finding.found = "CLOCK_MONOTONIC: the processor's counter is not to be trusted here";
        finding.means = "reading the clock costs 15 to 50 ns, or more, in place of 8";
        finding.remedy = "none, on most virtual machines without an invariant counter";
    }
    return finding;
}

}  // namespace

std::vector<Finding> check_processes() {
    return {process_vm(), pid_namespace(), membarrier(), cores(), busy_machine(), clock()};
}

}  // namespace millrace::tools::doctor
