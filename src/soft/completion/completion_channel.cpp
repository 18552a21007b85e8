#include "completion/completion_channel.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "completion/ringing.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] std::int64_t clock_now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               base::Clock::now().time_since_epoch())
        .count();
}

}  // namespace

void CompletionChannel::ring() noexcept { ring_bell(bell); }

bool CompletionChannel::watch(int descriptor) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    return epoll_ctl(fd, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

int CompletionChannel::alarm() noexcept {
    int made = timer.load(std::memory_order_acquire);
    if (made >= 0) return made;
    const int mine =
        base::above_standard_streams(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (mine < 0) return -1;
    if (!watch(mine) || !timer.compare_exchange_strong(made, mine)) {
        close(mine);
        return made;  // another thread's, or none
    }
    return mine;
}

bool CompletionChannel::take_alarm() noexcept {
    std::int64_t at = due.load(std::memory_order_acquire);
    if (at == no_alarm || at > clock_now()) return false;
    // An earlier one that another thread sets meanwhile has rung the bell: that look is to come.
    if (!due.compare_exchange_strong(at, no_alarm, std::memory_order_acq_rel)) return false;
    alarms.fetch_add(1, std::memory_order_relaxed);
    return true;
}

std::chrono::nanoseconds CompletionChannel::next_alarm() const noexcept {
    const std::int64_t at = due.load(std::memory_order_acquire);
    if (at == no_alarm) return std::chrono::nanoseconds::max();
    return std::chrono::nanoseconds{std::max<std::int64_t>(at - clock_now(), 0)};
}

// Whoever sleeps by then asked for the time before: the bell tells it that there is another. The
// same alarm that is set again comes at nearly the same time, and must not ring each time.
void CompletionChannel::note_alarm(std::chrono::nanoseconds delay) noexcept {
    constexpr std::int64_t same = 20'000;
    const std::int64_t at = clock_now() + std::max<std::int64_t>(delay.count(), 1);
    std::int64_t noted = due.load(std::memory_order_acquire);
    do {
        if (noted != no_alarm && noted <= at + same) return;
    } while (!due.compare_exchange_weak(noted, at, std::memory_order_acq_rel));
    ring();
}

void CompletionChannel::wake_in(std::chrono::nanoseconds delay) noexcept {
    if (is_bare()) return note_alarm(delay);
    const int timer = alarm();
    if (timer < 0) {
        alarms.fetch_add(1, std::memory_order_relaxed);  // whoever looks sets it again
        return ring();
    }
    if (delay.count() <= 0) delay = std::chrono::nanoseconds{1};
    // An earlier alarm is never put off: whoever set it sets it again when it fires.
    itimerspec current{};
    timerfd_gettime(timer, &current);
    base::count_system_call();
    const std::chrono::nanoseconds left = std::chrono::seconds{current.it_value.tv_sec} +
                                          std::chrono::nanoseconds{current.it_value.tv_nsec};
    if (left.count() > 0 && left <= delay) return;
    itimerspec next{};
    next.it_value.tv_sec = delay.count() / 1'000'000'000;
    next.it_value.tv_nsec = delay.count() % 1'000'000'000;
    timerfd_settime(timer, 0, &next, nullptr);
    base::count_system_call();
}

}  // namespace millrace::soft
