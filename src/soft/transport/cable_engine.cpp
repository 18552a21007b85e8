#include "transport/cable_engine.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/own_threads.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/base/wait.hpp"
#include "system/cable_time.hpp"
#include "system/fences.hpp"
#include "transport/cable_member.hpp"

namespace millrace::soft {
namespace {

/// How far the engine stays behind others who move the link.
constexpr std::int64_t most_patience = 100'000;
/// What it allows for being woken late.
constexpr std::int64_t most_oversleep = 100'000;
/// It looks again so often, and for so long, after the last thing was in flight: a program that
/// posts, waits and posts again then needs no system call to wake it.
constexpr std::int64_t linger_slice = 200'000;
constexpr std::int64_t linger = 2'000'000;
/// When to look again at a queue pair that somebody else is busy with: twice as long from one look
/// to the next. Who holds its lock may wait for a processor, which looking often would take.
constexpr std::int64_t first_busy_pause = 10'000;
constexpr std::int64_t longest_busy_pause = 1'000'000;
/// After running for so long without a rest it rests, whatever is due: who posts and polls may have
/// no other processor than this one. What was due then goes together.
constexpr std::int64_t longest_run = 100'000;
constexpr std::int64_t rest = 50'000;
/// A sleep of this length lets others run.
constexpr std::int64_t shortest_rest = 20'000;
/// So often it looks whether the program is still there, also while nothing is in flight.
constexpr std::int64_t look_at_program = 250'000'000;

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* until) noexcept {
    static_assert(sizeof word == sizeof(std::uint32_t));
    base::count_system_call();
    return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word),
                   operation | FUTEX_PRIVATE_FLAG, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

CableEngine::~CableEngine() {
    if (thread_ == nullptr) return;
    if (process_ != getpid()) {
        static_cast<void>(thread_.release());  // made by fork: the thread is the parent's
        return;
    }
    stop_.store(true, std::memory_order_release);
    wake();
    // Or it is the one that ends the process.
    thread_->get_id() == std::this_thread::get_id() ? thread_->detach() : thread_->join();
}

void CableEngine::add(CableMember& member) {
    const std::lock_guard guard{mutex_};
    members_.push_back(&member);
    if (thread_ != nullptr) return;
    process_ = getpid();
    const base::SignalsBlocked blocked;
    try {
        thread_ = std::make_unique<std::thread>([this] { run(); });
    } catch (...) {
        members_.pop_back();
        throw;
    }
}

void CableEngine::remove(CableMember& member) noexcept {
    if (process_ != getpid()) return;  // made by fork: the engine may hold the mutex for ever
    const std::lock_guard guard{mutex_};
    std::erase(members_, &member);
}

void CableEngine::expect(std::int64_t due) noexcept {
    full_fence();  // `next_due` is stored; the engine stores `sleeps_past_` and looks again
    if (sleeps_past_.load(std::memory_order_relaxed) > due) wake();
}

void CableEngine::wake() noexcept {
    signal_.fetch_add(1, std::memory_order_release);
    futex(signal_, FUTEX_WAKE_BITSET, 1, nullptr);
}

bool CableEngine::sleep(std::uint32_t seen, std::int64_t until) noexcept {
    timespec time{};
    time.tv_sec = until / 1'000'000'000;
    time.tv_nsec = until % 1'000'000'000;
    const long result = futex(signal_, FUTEX_WAIT_BITSET, seen, &time);
    return result != 0 && errno == ETIMEDOUT;
}

std::int64_t CableEngine::earliest() noexcept {
    const std::lock_guard guard{mutex_};
    std::int64_t next = cable_never;
    for (const CableMember* member : members_) {
        next = std::min(next, member->next_due.load(std::memory_order_relaxed));
    }
    return next;
}

CableEngine::Round CableEngine::look(std::int64_t now, std::int64_t patience,
                                     std::int64_t busy_pause, std::uint64_t since) noexcept {
    Round round{cable_never};
    const std::lock_guard guard{mutex_};
    for (CableMember* member : members_) {
        std::int64_t due = member->next_due.load(std::memory_order_acquire);
        if (due <= now - patience) {
            round.served = true;
            if (member->waits_for(now)) {
                (member->polled_since(since) ? round.attended : round.needed) = true;
            }
            member->serve();
            due = member->next_due.load(std::memory_order_relaxed);
            if (due <= now - patience) {
                round.busy = true;
                due = now + busy_pause;
            }
        }
        round.next = std::min(round.next, due);
    }
    return round;
}

void CableEngine::run() noexcept {
    pthread_setname_np(pthread_self(), "millrace-link");
    const base::OwnThread own;
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    std::int64_t patience = 0;
    std::int64_t oversleep = 0;
    std::int64_t busy_pause = first_busy_pause;
    std::int64_t last_active = cable_now();
    std::int64_t rested = last_active;
    std::uint64_t looked_away = base::ticks();  // from when on polls tell of who is at hand
    std::int64_t program_at = last_active;
    bool slept_for_something = false;
    for (;;) {
        // In this order: whoever stops it stores that before the signal.
        const std::uint32_t seen = signal_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_acquire)) break;
        const std::int64_t now = cable_now();
        if (now >= program_at) {
            base::end_with_program();
            program_at = now + look_at_program;
        }
        const Round round = look(now, patience, busy_pause, looked_away);
        busy_pause = round.busy ? std::min(2 * busy_pause, longest_busy_pause) : first_busy_pause;
        if (round.needed) {
            patience = patience > 2'000 ? patience / 2 : 0;
        } else if (round.attended || (slept_for_something && !round.served && round.next > now)) {
            // What it woke for had been done by others, or would have been.
            patience = std::min(most_patience, std::max<std::int64_t>(1'000, 2 * patience));
        }
        slept_for_something = false;
        if (round.next != cable_never) last_active = now;

        const bool backstop_only = patience > most_patience / 4;
        std::int64_t target = cable_never;  // when it wants to be awake
        if (round.next != cable_never) {
            target = round.next + patience;
        } else if (now - last_active < linger) {
            target = now + linger_slice;
        }
        std::int64_t wakes_for = target == cable_never ? target : target - patience;
        if (round.busy || (round.next == cable_never && target != cable_never && backstop_only)) {
            wakes_for = 0;
        }
        bool exact = patience == 0 && !round.busy && round.next != cable_never;
        std::int64_t until = exact ? target - oversleep : target;
        if (now - rested > longest_run && until < now + rest) {
            until = now + rest;
            wakes_for = 0;
            exact = false;
        }
        if (until > program_at) {
            until = program_at;
            exact = false;
        }
        bool in_time = until <= now;  // not woken
        if (!in_time) {
            sleeps_past_.store(wakes_for, std::memory_order_relaxed);
            full_fence();
            if (earliest() >= wakes_for) {
                const std::uint64_t fell_asleep = base::ticks();
                in_time = sleep(seen, until);
                const std::int64_t awake = cable_now();
                if (awake - now > shortest_rest) {
                    rested = awake;
                    // With nothing in flight, who polled did not do so for it.
                    looked_away = round.next == cable_never ? base::ticks() : fell_asleep;
                }
                if (in_time && round.next != cable_never) {
                    slept_for_something = true;
                    const std::int64_t late = std::min(awake - until, most_oversleep);
                    oversleep += (late - oversleep) / 8;
                }
            }
            sleeps_past_.store(0, std::memory_order_relaxed);
        }
        if (!in_time || !exact) continue;
        // What is left of the time was taken off for waking late.
        while (cable_now() < target && signal_.load(std::memory_order_relaxed) == seen) {
            base::pause();
        }
    }
}

}  // namespace millrace::soft
