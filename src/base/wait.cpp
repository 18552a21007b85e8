// Parkers: how long they sleep, how long naps are, and the parker for conditions that nobody
// announces; and what the processor time of a process says of its threads' offers.
#include "millrace/base/wait.hpp"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "millrace/base/crowd.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/system_calls.hpp"
#include "millrace/base/uncancelled.hpp"

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

}  // namespace

std::chrono::nanoseconds StandingParker::next_nap() noexcept {
    nap_ = std::clamp<std::chrono::nanoseconds>(nap_ * 2, std::chrono::microseconds{20},
                                                std::chrono::milliseconds{1});
    return nap_;
}

void Parker::sleep(const Deadline& deadline) {
    const Cancellation* const cancellation = deadline.cancellation();
    auto limit = std::min(patience(), deadline.remaining());
    // Without a descriptor it is looked at by the clock.
    if (cancellation != nullptr && cancellation->descriptor() < 0) limit = std::min(limit, slice);
    park(limit, cancellation);
    if (cancellation != nullptr) cancellation->settle();
}

void NapParker::park(std::chrono::nanoseconds limit, const Cancellation* cancellation) {
    const Uncancelled held;
    constexpr std::chrono::nanoseconds longest = std::chrono::milliseconds{1};
    const auto nap = std::min(nap_, limit);
    if (nap.count() <= 0) return;
    const timespec duration{static_cast<time_t>(nap.count() / 1'000'000'000),
                            static_cast<long>(nap.count() % 1'000'000'000)};
    // A signal ends the nap early; the waiter looks again, as after any spurious return.
    pollfd entry{.fd = descriptor_of(cancellation), .events = POLLIN, .revents = 0};
    (void)ppoll(&entry, 1, &duration, nullptr);
    count_system_call();
    nap_ = std::min(nap_ * 2, longest);
}

ProcessorUse processor_use() noexcept {
    // A thread that is pinned says nothing of the others.
    const unsigned processors = std::max(processors_of(0), processors_of(::getpid()));
    count_system_call();
    return {.time = time_of(CLOCK_MONOTONIC),
            .used = time_of(CLOCK_PROCESS_CPUTIME_ID),
            .processors = processors};
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

void Crowd::compare(std::uint64_t now) noexcept {
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
    until_.store(is_crowd ? now + ticks_in(holds) : now, relaxed);
}

}  // namespace millrace::base
