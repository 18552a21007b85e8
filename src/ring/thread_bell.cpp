// ThreadBell over the kernel's futexes, see the header.
#include "millrace/ring/detail/thread_bell.hpp"

#include <algorithm>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "millrace/base/system_calls.hpp"

namespace millrace::ring::detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

void ThreadBell::sleep(std::chrono::nanoseconds limit) noexcept {
    constexpr std::chrono::nanoseconds second{std::chrono::seconds{1}};
    limit = std::clamp(limit, std::chrono::nanoseconds{0}, 3600 * second);
    const timespec time{.tv_sec = static_cast<time_t>(limit / second),
                        .tv_nsec = static_cast<long>((limit % second).count())};
    base::count_system_call();
    (void)syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, &time, nullptr, 0);
}

void ThreadBell::wake() noexcept {
    // Whoever comes first does it; the sleeper is awake then, and says so itself later.
    if (asleep_.exchange(0, std::memory_order_seq_cst) == 0) return;
    base::count_system_call();
    (void)syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace millrace::ring::detail
