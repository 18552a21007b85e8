// See wire_engine.hpp.
#include "wire/wire_engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "millrace/base/detail/own_threads.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/signals.hpp"
#include "system/cable_time.hpp"
#include "system/fences.hpp"
#include "system/spin_lock.hpp"

namespace millrace::soft {
namespace {

constexpr std::string_view engine_attempt = "start the wire's engine";
/// How often it looks whether the program is still there: less and less often while it idles.
constexpr std::int64_t first_look_at_program = 250'000'000;
constexpr std::int64_t last_look_at_program = 8'000'000'000;

enum class Woken : std::uint32_t { by_bell, by_clock, by_socket, by_door };

void watch_with(int epoll, int file, std::uint32_t events, Woken as) {
    epoll_event event{};
    event.events = events;
    event.data.u32 = static_cast<std::uint32_t>(as);
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event) != 0) {
        base::throw_errno(errno, std::string{engine_attempt}, "its descriptors");
    }
}

/// As the kernel's sched_setattr takes it (include/uapi/linux/sched/types.h), its first version.
struct SchedulingAttributes {
    std::uint32_t size = sizeof(SchedulingAttributes);
    std::uint32_t policy = 0;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime = 0;
    std::uint64_t deadline = 0;
    std::uint64_t period = 0;
};

/// Asks for short slices: a thread that asks for less runs sooner when it wakes beside threads that
/// spin. Kernels before 6.12 do not know it, and leave everything as it was.
void run_soon() noexcept {
    constexpr std::uint64_t shortest_slice = 100'000;  // ns, the kernel's least
    SchedulingAttributes attributes;
    if (::syscall(SYS_sched_getattr, 0, &attributes, attributes.size, 0) != 0) return;
    if (attributes.policy != SCHED_OTHER) return;
    attributes.runtime = shortest_slice;
    static_cast<void>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace

WireEngine::WireEngine(WireWatch& watch, int socket, int door)
    : watch_{watch},
      socket_{socket},
      epoll_{::epoll_create1(EPOLL_CLOEXEC)},
      bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)},
      clock_{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)} {
    if (!epoll_ || !bell_ || !clock_) {
        base::throw_errno(errno, std::string{engine_attempt}, "its descriptors");
    }
    watch_with(epoll_.get(), bell_.get(), EPOLLIN | EPOLLET, Woken::by_bell);
    watch_with(epoll_.get(), clock_.get(), EPOLLIN | EPOLLET, Woken::by_clock);
    watch_with(epoll_.get(), socket_, EPOLLIN | EPOLLONESHOT, Woken::by_socket);
    if (door >= 0) watch_with(epoll_.get(), door, EPOLLIN, Woken::by_door);
    const base::SignalsBlocked blocked;
    thread_ = std::make_unique<std::thread>([this] { run(); });
}

WireEngine::~WireEngine() {
    if (is_copy_) {
        static_cast<void>(thread_.release());  // the thread is the parent's
        return;
    }
    stop_.store(true, std::memory_order_release);
    wake();
    // Or it is the one that ends the process.
    thread_->get_id() == std::this_thread::get_id() ? thread_->detach() : thread_->join();
}

void WireEngine::become_copy() noexcept {
    is_copy_ = true;
    epoll_.close();
    bell_.close();
    clock_.close();
}

// The heap: each timer knows its place, so that it can move there.

void WireEngine::put(std::size_t at, WireTimer* timer) noexcept {
    heap_[at] = timer;
    timer->place_ = at;
}

void WireEngine::rise(std::size_t at) noexcept {
    WireTimer* const timer = heap_[at];
    for (; at > 0 && timer->entry() < heap_[(at - 1) / 2]->entry(); at = (at - 1) / 2) {
        put(at, heap_[(at - 1) / 2]);
    }
    put(at, timer);
}

void WireEngine::sink(std::size_t at) noexcept {
    WireTimer* const timer = heap_[at];
    for (std::size_t below = 2 * at + 1; below < heap_.size(); below = 2 * at + 1) {
        if (below + 1 < heap_.size() && heap_[below + 1]->entry() < heap_[below]->entry()) ++below;
        if (timer->entry() <= heap_[below]->entry()) break;
        put(at, heap_[below]);
        at = below;
    }
    put(at, timer);
}

void WireEngine::enter(WireTimer& timer, std::int64_t when) noexcept {
    timer.entry_.store(when, std::memory_order_relaxed);
    if (timer.place_ == WireTimer::nowhere) {
        heap_.push_back(&timer);  // there is room: `add`
        timer.place_ = heap_.size() - 1;
    }
    rise(timer.place_);
}

void WireEngine::take_out(WireTimer& timer) noexcept {
    const std::size_t at = std::exchange(timer.place_, WireTimer::nowhere);
    timer.entry_.store(wire_never, std::memory_order_relaxed);
    if (at == WireTimer::nowhere) return;
    WireTimer* const last = heap_.back();
    heap_.pop_back();
    if (last == &timer) return;
    put(at, last);
    sink(at);
    rise(last->place_);
}

void WireEngine::add(WireTimer& timer) {
    const std::lock_guard guard{mutex_};
    heap_.reserve(timers_ + 1 > heap_.capacity() ? 2 * (timers_ + 1) : 0);
    ++timers_;
    timer.is_known_ = true;
}

void WireEngine::remove(WireTimer& timer) noexcept {
    if (is_copy_) return;  // the engine may hold the mutex for ever
    {
        const std::lock_guard guard{mutex_};
        if (!std::exchange(timer.is_known_, false)) return;
        --timers_;
        take_out(timer);
    }
    if (thread_->get_id() == std::this_thread::get_id()) return;
    for (unsigned tries = 0; running_.load(std::memory_order_acquire) == &timer; ++tries) {
        wait_for_lock(tries);
    }
}

void WireEngine::expect(WireTimer& timer, std::int64_t deadline) noexcept {
    timer.deadline_.store(deadline, std::memory_order_relaxed);
    if (deadline == wire_never) return;
    full_fence();
    if (timer.entry_.load(std::memory_order_relaxed) <= deadline) return;
    if (is_copy_) return;
    bool sleeps = false;
    {
        const std::lock_guard guard{mutex_};
        if (!timer.is_known_ || timer.entry() <= deadline) return;
        enter(timer, deadline);
        sleeps = deadline < sleeps_until_;
        if (sleeps) sleeps_until_ = deadline;  // it is woken once
    }
    if (sleeps) wake();
}

void WireEngine::wake() noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(::write(bell_.get(), &one, sizeof one));
}

void WireEngine::look_again() noexcept {
    if (is_copy_) return;
    looks_again_.store(true, std::memory_order_release);
    wake();
}

bool WireEngine::run_due(std::int64_t now) noexcept {
    bool any = false;
    std::unique_lock lock{mutex_};
    // Each once: one that expects to be called at once again waits for the next round.
    for (std::size_t left = heap_.size(); left > 0 && !heap_.empty(); --left) {
        WireTimer& timer = *heap_.front();
        if (timer.entry() > now) break;
        take_out(timer);
        full_fence();  // as `expect` stores the deadline and looks at the entry
        std::int64_t deadline = timer.deadline_.load(std::memory_order_relaxed);
        if (deadline > now) {
            if (deadline != wire_never) enter(timer, deadline);
            continue;
        }
        if (!timer.deadline_.compare_exchange_strong(deadline, wire_never,
                                                     std::memory_order_acq_rel)) {
            if (deadline != wire_never) enter(timer, deadline);
            continue;
        }
        any = true;
        running_.store(&timer, std::memory_order_relaxed);
        lock.unlock();
        timer.due(now);
        running_.store(nullptr, std::memory_order_release);
        lock.lock();
    }
    return any;
}

bool WireEngine::prepare_to_sleep(std::int64_t until) noexcept {
    const std::lock_guard guard{mutex_};
    if (!heap_.empty()) until = std::min(until, heap_.front()->entry());
    if (until <= cable_now()) return false;
    sleeps_until_ = until;
    return true;
}

void WireEngine::set_clock(std::int64_t when) noexcept {
    if (when == clock_at_) return;
    clock_at_ = when;
    itimerspec time{};
    time.it_value.tv_sec = when / 1'000'000'000;
    time.it_value.tv_nsec = when % 1'000'000'000;
    static_cast<void>(::timerfd_settime(clock_.get(), TFD_TIMER_ABSTIME, &time, nullptr));
}

void WireEngine::arm_socket() noexcept {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT;
    event.data.u32 = static_cast<std::uint32_t>(Woken::by_socket);
    static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_, &event));
}

void WireEngine::run() noexcept {
    pthread_setname_np(pthread_self(), "millrace-wire");
    const base::OwnThread own;
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    run_soon();
    std::int64_t look_at = wire_never;  // when the socket is looked at; it is not watched till then
    std::int64_t pause = first_look_at_program;
    std::int64_t program_at = cable_now() + pause;
    while (!stop_.load(std::memory_order_acquire)) {
        bool has_news = false;
        // Where timers are due all the time, it looks at the descriptors all the same.
        const bool sleeps = prepare_to_sleep(std::min(look_at, program_at));
        if (sleeps) set_clock(sleeps_until());
        std::array<epoll_event, 4> events;
        const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), sleeps ? -1 : 0);
        awake();
        for (int i = 0; i < count; ++i) {
            switch (static_cast<Woken>(events[static_cast<std::size_t>(i)].data.u32)) {
                case Woken::by_socket: has_news = true; break;
                case Woken::by_door: watch_.answer(); break;
                case Woken::by_clock: clock_at_ = 0; break;
                case Woken::by_bell: break;
            }
        }
        const std::int64_t now = cable_now();
        bool is_busy = false;
        if (looks_again_.exchange(false, std::memory_order_acquire) && look_at != wire_never) {
            look_at = now;
        }
        if (has_news || now >= look_at) {
            look_at = watch_.look(now);
            if (look_at == wire_never) arm_socket();
            is_busy = true;
        }
        if (run_due(now)) is_busy = true;
        if (is_busy) {
            watch_.round_ended(now);
            pause = first_look_at_program;
            program_at = std::min(program_at, now + pause);
        }
        if (now >= program_at) {
            watch_.rest();
            base::end_with_program();
            pause = std::min(2 * pause, last_look_at_program);
            program_at = now + pause;
        }
    }
}

}  // namespace millrace::soft
