#include "system/event_wait.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "millrace/base/detail/system_calls.hpp"

namespace millrace::soft {
namespace {

/// Is there a signal of the program's that would end a read() which waits? The kernel begins a
/// read() again after handlers with SA_RESTART; a wait for several descriptors it never does.
[[nodiscard]] bool a_handler_interrupts() noexcept {
    constexpr std::array faults{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (int number = 1; number <= SIGRTMAX; ++number) {
        if (sigismember(&blocked, number) == 1) continue;
        if (std::find(faults.begin(), faults.end(), number) != faults.end()) continue;
        struct sigaction action {};
        if (sigaction(number, nullptr, &action) != 0) continue;  // the C library's own
        const bool handled = (action.sa_flags & SA_SIGINFO) != 0 ||
                             (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
        if (handled && (action.sa_flags & SA_RESTART) == 0) return true;
    }
    return false;
}

}  // namespace

int wait_for_news(std::span<pollfd> files, const base::Uncancelled& held) {
    for (;;) {
        const int count =
            held.except_in([files] { return ::poll(files.data(), files.size(), -1); });
        base::count_system_call();
        if (count >= 0 || errno != EINTR) return count;
        if (a_handler_interrupts()) {
            errno = EINTR;
            return -1;
        }
    }
}

int look_for_news(std::span<pollfd> files) noexcept {
    const base::Uncancelled held;
    int count = 0;
    do {
        count = ::poll(files.data(), files.size(), 0);
        base::count_system_call();
    } while (count < 0 && errno == EINTR);
    return count;
}

}  // namespace millrace::soft
