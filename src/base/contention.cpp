#include "millrace/base/detail/contention.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <string_view>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::base {
namespace {

std::chrono::nanoseconds time_of(clockid_t clock) noexcept {
    timespec time{};
    (void)::clock_gettime(clock, &time);
    return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

/// 0: more than a plain mask holds.
unsigned processors_of(pid_t thread) noexcept {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    count_system_call();
    if (::sched_getaffinity(thread, sizeof mask, &mask) != 0) return 0;
    return static_cast<unsigned>(CPU_COUNT(&mask));
}

/// Threads that run or could: the number in front of the slash. Negative: it is not known.
int runnable_in(std::string_view load_averages) noexcept {
    const std::size_t slash = load_averages.find('/');
    if (slash == std::string_view::npos) return -1;
    const std::size_t before = load_averages.rfind(' ', slash);
    if (before == std::string_view::npos) return -1;
    int number = -1;
    (void)std::from_chars(load_averages.data() + before + 1, load_averages.data() + slash, number);
    return number;
}

}  // namespace

ProcessorUse processor_use() noexcept {
    // A thread that is pinned says nothing of the others.
    const unsigned processors = std::max(processors_of(0), processors_of(::getpid()));
    count_system_call();
    return {.time = time_of(CLOCK_MONOTONIC),
            .used = time_of(CLOCK_PROCESS_CPUTIME_ID),
            .processors = processors};
}

Demand processor_demand() noexcept {
    static const long processors = ::sysconf(_SC_NPROCESSORS_ONLN);
    const Uncancelled held;
    // Opened each time: a descriptor that stays open is one that somebody closes, or inherits.
    const int file = above_standard_streams(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
    count_system_call();
    if (file < 0) return Demand::unknown;
    std::array<char, 128> text;
    const ssize_t got = ::read(file, text.data(), text.size());
    ::close(file);
    count_system_call(2);
    const int runnable =
        runnable_in({text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
    // Where there is no such number, some containers say 0, though we run.
    if (runnable <= 0 || processors <= 0) return Demand::unknown;
    return runnable > processors ? Demand::exceeds : Demand::is_met;
}

Taken Contention::came_back(std::uint64_t now, std::uint64_t away, const void* thread,
                            int processor) noexcept {
    look_for_crowd(now, thread);
    const bool came = was_late(now, away, processor);
    if (is_crowd(now)) return Taken::by_crowd;
    if (came) came_late(now);
    return Taken::by_others;
}

/// Whether somebody kept the processor for long. Turns of our own threads, which are short, do not
/// add up to that.
bool Contention::was_late(std::uint64_t now, std::uint64_t away, int processor) noexcept {
    static const std::uint64_t late_ticks = ticks_in(late);
    if (processor < 0) processor = std::max(::sched_getcpu(), 0);
    auto& seen = seen_[static_cast<std::size_t>(processor) % seen_.size()];
    return std::min(now - seen.exchange(now, relaxed), away) >= late_ticks;
}

void Contention::note_thread(std::uint64_t now, const void* thread) noexcept {
    static thread_local const char this_thread = 0;
    if (thread == nullptr) thread = &this_thread;
    if (const void* const last = last_.load(relaxed); last != thread) {
        last_.store(thread, relaxed);
        if (last != nullptr) several_until_.store(now + ticks_in(holds), relaxed);
    }
}

void Contention::look_for_crowd(std::uint64_t now, const void* thread) noexcept {
    note_thread(now, thread);
    std::uint64_t due = due_.load(relaxed);
    if (!is_before(now, due) &&
        due_.compare_exchange_strong(due, now + ticks_in(window), relaxed)) {
        compare(now);
    }
}

void Contention::compare(std::uint64_t now) noexcept {
    const ProcessorUse use = use_();
    const std::int64_t time_before = time_.exchange(use.time.count(), relaxed);
    const std::int64_t used_before = used_.exchange(use.used.count(), relaxed);
    // Since then, however long ago that was: a product of processors and days is no 63 bits.
    const auto time = static_cast<double>(use.time.count() - time_before);
    const auto used = static_cast<double>(use.used.count() - used_before);
    // The kernel adds what a thread uses when it is switched or by its clock, so some is missing.
    const double ours = std::max(use.processors, 2U) - 1;
    // More than a tenth above all of them: there are others, of threads that are pinned elsewhere.
    const bool has_more = used > time * use.processors * 1.1;
    // The first time there is nothing to compare with.
    const bool is_crowd = time_before != 0 && use.processors != 0 &&
                          is_before(now, several_until_.load(relaxed)) &&
                          used >= time * ours * 0.75 && !has_more;
    crowd_until_.store(is_crowd ? now + ticks_in(holds) : now, relaxed);
    compared_.store(now, relaxed);
}

void Contention::begin_comparison(std::uint64_t now) noexcept {
    const ProcessorUse use = use_();
    time_.store(use.time.count(), relaxed);
    used_.store(use.used.count(), relaxed);
    due_.store(now + ticks_in(window), relaxed);
}

void Contention::came_late(std::uint64_t now) noexcept {
    const std::uint64_t since = offers_since_.load(relaxed);
    const bool was_in_vain = since != 0 && now - since < ticks_in(soon);
    // Of one thread alone a trial says as much as a window.
    if (!was_in_vain || is_before(now, several_until_.load(relaxed))) {
        const std::uint64_t suspected = suspected_.load(relaxed);
        if (suspected == 0 || now - suspected >= ticks_in(soon)) {
            suspected_.store(now, relaxed);
            begin_comparison(now);
            return;
        }
        if (!is_before(suspected, compared_.load(relaxed))) return;
        suspected_.store(0, relaxed);
    }
    const std::uint64_t shortest = ticks_in(shortest_rest);
    const std::uint64_t rest =
        was_in_vain ? std::clamp(2 * rest_.load(relaxed), shortest, ticks_in(longest_rest))
                    : shortest;
    rest_.store(rest, relaxed);
    trial_at_.store(now + std::min(rests_to_trial * rest, ticks_in(longest_to_trial)), relaxed);
    busy_until_.store(now + rest, relaxed);
}

bool Contention::is_still_busy(std::uint64_t now, std::uint64_t until,
                               const void* thread) noexcept {
    // One looks, and the others take it that nothing has changed.
    if (!busy_until_.compare_exchange_strong(until, now + ticks_in(shortest_rest), relaxed)) {
        return until != 0;
    }
    // If several threads wait, an offer that is late will be a suspicion.
    note_thread(now, thread);
    const bool exceeds = demand_() == Demand::exceeds;
    if (exceeds && is_before(now, trial_at_.load(relaxed))) return true;
    offers_since_.store(now, relaxed);
    busy_until_.store(0, relaxed);
    return false;
}

bool ServedBehindOffers::note(std::uint64_t start, std::uint64_t end) noexcept {
    static const std::uint64_t pause_ticks = ticks_in(between_moves);
    // Who is answered while it has the processor has a turn between two such waits.
    static const std::uint64_t at_once = ticks_in(std::chrono::microseconds{10});
    const bool is_next = start - last_end_ < at_once;
    last_end_ = end;
    in_a_row_ = is_next ? in_a_row_ + 1 : 1;
    if (in_a_row_ < 2 || end - moved_ < pause_ticks) return false;
    moved_ = end;
    in_a_row_ = 0;
    return true;
}

void detail::came_behind_offer(std::uint64_t start, std::uint64_t end) noexcept {
    static thread_local ServedBehindOffers served;
    if (served.note(start, end)) (void)leave_this_core();
}

}  // namespace millrace::base
