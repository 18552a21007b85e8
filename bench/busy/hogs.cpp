#include "hogs.hpp"

#include <cerrno>
#include <csignal>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/framework/pair.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::bench {
namespace {

using std::chrono::nanoseconds;

[[noreturn]] void compute(int core, nanoseconds on_and_off, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    base::pin_this_thread(core);
    const auto period = 2 * on_and_off;
    for (;;) {
        base::pause();
        if (period.count() == 0) continue;
        // All of them by one clock, so that the machine is as busy as can be, and then quiet.
        const nanoseconds now = base::Clock::now().time_since_epoch();
        const nanoseconds within = now % period;
        if (within < on_and_off) continue;
        const nanoseconds rest = period - within;
        const timespec pause{.tv_sec = 0, .tv_nsec = static_cast<long>(rest.count())};
        ::nanosleep(&pause, nullptr);
    }
}

}  // namespace

Hogs::Hogs(nanoseconds on_and_off) {
    const Cores cores = two_cores();
    const pid_t parent = ::getpid();
    for (const int core : {cores.first, cores.second}) {
        const pid_t made = ::fork();
        if (made == 0) compute(core, on_and_off, parent);
        if (made < 0) {
            const int error = errno;
            for (const pid_t one : processes_) ::kill(one, SIGKILL);
            base::throw_errno(error, "start a program that computes", "a forked child",
                              "allow more processes (ulimit -u)");
        }
        processes_.push_back(made);
    }
}

Hogs::~Hogs() {
    for (const pid_t one : processes_) ::kill(one, SIGKILL);
    for (const pid_t one : processes_) ::waitpid(one, nullptr, 0);
}

}  // namespace millrace::bench
