// Readiness: an epoll of what raises events. Awake, it watches a socket among them for room to
// write, too, which an idle link's always has: that makes it readable without a descriptor more. A
// timer serves where there is no such socket, and for what nothing announces.
#include "millrace/connect/readiness.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <exception>
#include <string>
#include <utility>

#include "descriptor.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "nesting.hpp"
#include "timer.hpp"

namespace millrace::connect {

static_assert(Readiness::until_woken == no_alarm);

namespace {

[[nodiscard]] bool is_socket(int descriptor) noexcept {
    struct stat status {};
    return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

[[nodiscard]] bool has_room(int socket) noexcept {
    pollfd entry{.fd = socket, .events = POLLOUT, .revents = 0};
    base::count_system_call();
    return poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT) != 0;
}

[[noreturn]] void refuse_copy() {
    base::refuse_copy("make a descriptor for the program's loop",
                      "an epoll of a connection's events");
}

}  // namespace

struct Readiness::State {
    Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
    Descriptor timer{};
    int socket = -1;            ///< a quiet one of the sources, if there is any
    bool watches_room = false;  ///< of it
    bool is_timer_set = false;

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
    /// Makes it, where there is none yet.
    [[nodiscard]] bool has_timer() noexcept {
        if (timer.valid()) return true;
        try {
            timer = Descriptor{timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
            if (timer.valid()) watch(timer.get());
            return timer.valid();
        } catch (const std::exception&) {
            timer = Descriptor{};
            return false;
        }
    }
    /// With `wanted`, the descriptor is readable from now on. False: that cannot be had by a
    /// socket.
    bool watch_room(bool wanted) noexcept {
        if (!wanted && !watches_room) return true;
        if (wanted && (socket < 0 || !has_room(socket))) return false;
        if (wanted && watches_room) return true;
        epoll_event event{.events = EPOLLIN, .data = {.fd = socket}};
        if (wanted) event.events |= EPOLLOUT;
        base::count_system_call();
        if (epoll_ctl(epoll.get(), EPOLL_CTL_MOD, socket, &event) != 0) return false;
        watches_room = wanted;
        return true;
    }
};

namespace {
[[noreturn]] void no_descriptor_left() {
    base::throw_errno(errno, "make a descriptor for the program's loop", "epoll and timer",
                      "raise the limit of open files (ulimit -n)");
}
}  // namespace

Readiness::Readiness(std::span<const int> sources, std::chrono::nanoseconds spin, Alarm alarm)
    : state_{std::make_unique<State>()}, spin_ticks_{base::ticks_in(spin)} {
    if (!state_->epoll.valid()) no_descriptor_left();
    for (const int source : sources) {
        if (source < 0) refuse_copy();  // a Descriptor of the parent's
        state_->watch(source);
        if (alarm == Alarm::quiet_socket && is_socket(source)) state_->socket = source;
    }
    if (state_->socket < 0 && !state_->has_timer()) no_descriptor_left();
    clock_ = until_woken;
    wake();
}

Readiness::~Readiness() = default;

void Readiness::turn_to(std::span<const int> sources, std::span<const int> others) {
    for (const int source : sources) {
        (void)epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, source, nullptr);
    }
    state_->socket = -1;
    state_->watches_room = false;
    for (const int other : others) state_->watch(other);
    if (!state_->has_timer()) no_descriptor_left();
    announced_ = false;
    clock_ = until_woken;
    wake();
}

int Readiness::descriptor() const {
    if (!state_->epoll.valid()) refuse_copy();
    return state_->epoll.get();
}

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
    clock_ = delay;
    const bool awake = delay.count() == 0 || (delay != until_woken && !state_->has_timer());
    if (awake && state_->watch_room(true)) return;
    (void)state_->watch_room(false);
    if (delay != until_woken) {
        if (!state_->has_timer()) return;
        state_->is_timer_set = true;
    } else if (!std::exchange(state_->is_timer_set, false)) {
        return;
    }
    set_timer(state_->timer.get(), delay);
}

}  // namespace millrace::connect
