// ThreadBell over the kernel's futexes, see the header.
#include "millrace/base/detail/thread_bell.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::base {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

void ThreadBell::sleep(std::chrono::nanoseconds limit, const Cancellation* cancellation) noexcept {
    constexpr std::chrono::nanoseconds second{std::chrono::seconds{1}};
    limit = std::clamp(limit, std::chrono::nanoseconds{0}, 3600 * second);
    const timespec time{.tv_sec = static_cast<time_t>(limit / second),
                        .tv_nsec = static_cast<long>((limit % second).count())};
    if (cancellation != nullptr) return sleep_beside(*cancellation, time);
    count_system_call();
    (void)syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, &time, nullptr, 0);
}

void ThreadBell::sleep_beside(const Cancellation& cancellation, const timespec& time) noexcept {
    pollfd entries[2] = {{.fd = cancellation.descriptor(), .events = POLLIN, .revents = 0},
                         {.fd = make_descriptor(), .events = POLLIN, .revents = 0}};
    // Whoever rang before the descriptor was there has written nowhere, and has said so here.
    if (asleep_.load(std::memory_order_seq_cst) == 0) return;
    timespec limit = time;
    if (entries[0].fd < 0 || entries[1].fd < 0) {  // then both are looked at by the clock
        limit =
            std::min(limit, timespec{.tv_sec = 0, .tv_nsec = 1'000'000},
                     [](const timespec& a, const timespec& b) {
                         return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
                     });
    }
    count_system_call();
    (void)ppoll(entries, 2, &limit, nullptr);
}

void ThreadBell::retract() noexcept {
    asleep_.store(0, std::memory_order_seq_cst);
    const int descriptor = descriptor_.load(std::memory_order_relaxed);
    if (descriptor < 0) return;
    // Whether it was rung this time or not: who rang last time may have written since.
    std::uint64_t count = 0;
    (void)!read(descriptor, &count, sizeof count);
    count_system_call();
}

int ThreadBell::descriptor() {
    const int made = make_descriptor();
    if (made < 0) {
        throw_errno(errno, "make a descriptor for the program's loop", "an eventfd",
                    "raise the limit of open files (ulimit -n)");
    }
    return made;
}

int ThreadBell::make_descriptor() noexcept {
    if (const int known = descriptor_.load(std::memory_order_relaxed); known >= 0) return known;
    const int made = above_standard_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    // In one order with the announcement, see wake() and sleep_beside().
    if (made >= 0) descriptor_.store(made, std::memory_order_seq_cst);
    return made;
}

ThreadBell::~ThreadBell() {
    if (const int descriptor = descriptor_.load(std::memory_order_relaxed); descriptor >= 0) {
        close(descriptor);
    }
}

void ThreadBell::wake() noexcept {
    // Whoever comes first does it; the sleeper is awake then, and says so itself later.
    if (asleep_.exchange(0, std::memory_order_seq_cst) == 0) return;
    count_system_call();
    if (const int descriptor = descriptor_.load(std::memory_order_seq_cst); descriptor >= 0) {
        const std::uint64_t one = 1;
        (void)!write(descriptor, &one, sizeof one);
        count_system_call();
    }
    (void)syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace millrace::base
