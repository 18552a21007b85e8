// The rare side of fences.hpp: membarrier(2).
#include "system/fences.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/log.hpp"

namespace millrace::soft {
namespace {

long membarrier(int command) noexcept { return ::syscall(SYS_membarrier, command, 0, 0); }

/// Far longer than a processor keeps a store to itself: that is as long as it takes to empty its
/// store buffer, some microseconds where every line of it is fetched from elsewhere.
constexpr long until_stores_are_seen_ns = 100'000;

/// A program may forbid itself system calls when it has begun (seccomp), and others already rely on
/// membarrier. What has been stored before a load that we have to know of will be seen in time.
[[gnu::noinline]] void wait_for_stores() noexcept {
    static std::atomic<bool> said{false};
    if (!said.exchange(true, std::memory_order_relaxed)) {
        base::log_line(
            base::LogLevel::warn, "soft",
            "membarrier(2) was allowed when the device was opened, and is refused now: "
            "whatever needs it waits 0.1 ms instead (deregistration, arming a completion "
            "queue, requests that cannot run at once); allow it in the filter, or "
            "forbid it before the device is opened");
    }
    timespec left{0, until_stores_are_seen_ns};
    base::count_system_call();
    // The bare call: libc's would be where a thread can be cancelled.
    while (::syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) base::count_system_call();
}

}  // namespace

void heavy_fence() noexcept {
    const int error = errno;
    full_fence();
    base::count_system_call();
    if (membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0 && register_for_membarrier()) [[unlikely]]
        wait_for_stores();
    full_fence();
    errno = error;
}

bool register_for_membarrier() noexcept {
    static const bool registered = [] {
        const long commands = membarrier(MEMBARRIER_CMD_QUERY);
        constexpr long wanted =
            MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        return commands > 0 && (commands & wanted) == wanted &&
               membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    }();
    return registered;
}

}  // namespace millrace::soft
