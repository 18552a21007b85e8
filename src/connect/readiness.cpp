// Readiness: an epoll of what raises events, and a timer for what nothing announces.
#include "millrace/connect/readiness.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>

#include "descriptor.hpp"
#include "millrace/base/clock.hpp"
#include "nesting.hpp"
#include "timer.hpp"

namespace millrace::connect {

static_assert(Readiness::until_woken == no_alarm);

struct Readiness::State {
    Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
    Descriptor timer{timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};

    void watch(int descriptor) const {
        epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
        if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
            const int error = errno;
            if (error == EINVAL) {
                throw base::Error{
                    base::ErrorCode::resource_exhausted, "make a descriptor for the program's loop",
                    "an epoll of a connection's events", nested_too_often, remedy_for_nesting};
            }
            base::throw_errno(error, "make a descriptor for the program's loop",
                              "an epoll of a connection's events",
                              "raise fs.epoll.max_user_watches (sysctl)");
        }
    }
};

Readiness::Readiness(std::span<const int> sources, std::chrono::nanoseconds spin)
    : state_{std::make_unique<State>()}, spin_ticks_{base::ticks_in(spin)} {
    if (!state_->epoll.valid() || !state_->timer.valid()) {
        base::throw_errno(errno, "make a descriptor for the program's loop", "epoll and timer",
                          "raise the limit of open files (ulimit -n)");
    }
    for (const int source : sources) state_->watch(source);
    state_->watch(state_->timer.get());
    clock_ = until_woken;
    wake();
}

Readiness::~Readiness() = default;

int Readiness::descriptor() const noexcept { return state_->epoll.get(); }

bool Readiness::stays_awake(std::uint64_t progress) noexcept {
    const std::uint64_t now = base::ticks();
    if (progress != progress_) {
        progress_ = progress;
        awake_since_ = now;
    }
    if (now - awake_since_ >= spin_ticks_) return false;
    wake();
    return true;
}

void Readiness::wake_in(std::chrono::nanoseconds delay) noexcept {
    // A timer that is due stays due until it is set again.
    if (delay == clock_ && (delay.count() == 0 || delay == until_woken)) return;
    set_timer(state_->timer.get(), delay);
    clock_ = delay;
}

}  // namespace millrace::connect
