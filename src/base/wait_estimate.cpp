#include "millrace/base/wait_estimate.hpp"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/standard_streams.hpp"
#include "millrace/base/uncancelled.hpp"

namespace millrace::base {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds least_cost = microseconds{2};
constexpr nanoseconds most_cost = milliseconds{1};
/// Where it cannot be measured.
constexpr nanoseconds usual_cost = microseconds{30};

constexpr nanoseconds spin_alone = microseconds{20};
/// An answer of a peer that runs takes some cache lines, of 60 to 300 ns each, and what it does.
constexpr nanoseconds spin_in_crowd = microseconds{3};
constexpr nanoseconds offers_for = microseconds{200};
/// Two switches and the cache lines that they cost.
constexpr nanoseconds an_offer_costs = microseconds{4};
/// No offer was taken for so long: there is a processor for each thread again.
constexpr nanoseconds a_crowd_stays = milliseconds{2};

constexpr std::uint64_t weight = 8;
constexpr std::uint64_t always_found = std::uint64_t{1} << 16;
constexpr std::uint64_t long_gap = 16;  ///< wake-ups
constexpr std::uint32_t first_trial = 16;
constexpr std::uint32_t last_trial = 256;
constexpr std::uint32_t first_move = 32;
constexpr std::uint32_t last_move = 4096;

/// How late a thread runs that sleeps for a timer: the median of some.
nanoseconds measured_cost() {
    const Uncancelled held;
    const int timer =
        above_standard_streams(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (timer < 0) return usual_cost;
    std::array<nanoseconds, 7> late{};
    for (nanoseconds& one : late) {
        const auto now = [] {
            timespec time{};
            (void)::clock_gettime(CLOCK_MONOTONIC, &time);
            return std::chrono::seconds{time.tv_sec} + nanoseconds{time.tv_nsec};
        };
        const nanoseconds due = now() + microseconds{100};
        const itimerspec alarm{.it_interval = {},
                               .it_value = {.tv_sec = due / std::chrono::seconds{1},
                                            .tv_nsec = (due % std::chrono::seconds{1}).count()}};
        (void)::timerfd_settime(timer, TFD_TIMER_ABSTIME, &alarm, nullptr);
        pollfd entry{.fd = timer, .events = POLLIN, .revents = 0};
        (void)::poll(&entry, 1, 10);
        one = now() - due;
    }
    ::close(timer);
    std::nth_element(late.begin(), late.begin() + late.size() / 2, late.end());
    return std::clamp(late[late.size() / 2], least_cost, most_cost);
}

nanoseconds duration_of(std::uint64_t ticks) {
    constexpr nanoseconds unit = milliseconds{1};
    return nanoseconds{static_cast<nanoseconds::rep>(static_cast<double>(ticks) /
                                                     static_cast<double>(ticks_in(unit)) *
                                                     static_cast<double>(unit.count()))};
}

}  // namespace

nanoseconds wake_up_cost() {
    static const nanoseconds cost = measured_cost();
    return cost;
}

std::string_view describe(WaitReason reason) noexcept {
    switch (reason) {
        case WaitReason::none_yet: return "looks, as nothing has been waited for";
        case WaitReason::short_gaps: return "looks, as gaps are short beside a wake-up";
        case WaitReason::crowded: return "offers the processor between looks, as others need it";
        case WaitReason::long_gaps: return "sleeps at once, as gaps are long beside a wake-up";
        case WaitReason::trial: return "looks, to see whether gaps have become short";
    }
    return "unknown";
}

WaitEstimate::WaitEstimate(nanoseconds cost) { learn_costs(cost); }

void WaitEstimate::learn_costs(nanoseconds cost) {
    cost_ = ticks_in(cost);
    spin_ = ticks_in(spin_alone);
    crowded_spin_ = ticks_in(spin_in_crowd);
    offer_ = ticks_in(offers_for);
    taken_costs_ = ticks_in(an_offer_costs);
    crowded_for_ = ticks_in(a_crowd_stays);
    trial_at_ = first_trial;
    move_at_ = first_move;
}

WaitEstimate::Plan WaitEstimate::begin(std::uint64_t now) {
    if (cost_ == 0) learn_costs(wake_up_cost());
    const bool is_crowded = static_cast<std::int64_t>(crowded_until_ - now) > 0;
    if (sleeps_at_once_) {
        if (++since_trial_ < trial_at_) {
            reason_ = WaitReason::long_gaps;
            return {};
        }
        since_trial_ = 0;
        reason_ = WaitReason::trial;
    } else {
        reason_ = is_crowded                       ? WaitReason::crowded
                  : spun_ + offered_ + slept_ == 0 ? WaitReason::none_yet
                                                   : WaitReason::short_gaps;
    }
    return {.spin = is_crowded ? crowded_spin_ : spin_, .offer = offer_};
}

/// A look of `ticks` that saw what it was for, or was in vain. Whether the next waits look.
void WaitEstimate::note_look(std::uint64_t ticks, bool found) noexcept {
    ticks = std::min(ticks, spin_ + offer_);  // others may have had the processor meanwhile
    const std::uint64_t gain = found ? always_found : 0;
    const bool is_trial = reason_ == WaitReason::trial;
    // A trial that was not in vain is all that is known of how it is now.
    if (!has_looked_ || (is_trial && found)) {
        looked_ = ticks * weight;
        found_ = gain;
    } else {
        looked_ = looked_ - looked_ / weight + ticks;
        found_ = found_ - found_ / weight + gain / weight;
    }
    has_looked_ = true;
    const bool is_worth_it = looked_ / weight * always_found <= long_gap * cost_ * found_;
    if (is_trial) {
        sleeps_at_once_ = !found || !is_worth_it;
        if (sleeps_at_once_) trial_at_ = std::min(2 * trial_at_, last_trial);
    } else if (!sleeps_at_once_ && !is_worth_it) {
        sleeps_at_once_ = true;
        since_trial_ = 0;
    } else if (spun_in_a_row_ >= first_trial) {
        trial_at_ = first_trial;
    }
}

bool WaitEstimate::ended(std::uint64_t looked, std::uint64_t slept, End how) noexcept {
    ++(how == End::spun ? spun_ : how == End::offered ? offered_ : slept_);
    // One very long wait says nothing of the next hundred.
    const std::uint64_t counted =
        std::min(looked + slept - std::min(slept, cost_), 4 * long_gap * cost_);
    gap_ = spun_ + offered_ + slept_ == 1 ? counted * weight : gap_ - gap_ / weight + counted;
    if (how == End::spun) {
        offered_in_a_row_ = 0;
        if (++spun_in_a_row_ >= first_move) move_at_ = first_move;
    } else {
        spun_in_a_row_ = 0;
    }
    const bool has_slept_at_once = how == End::slept && looked == 0;
    if (!has_slept_at_once) note_look(looked + std::exchange(carried_, 0), how != End::slept);
    if (how != End::offered || ++offered_in_a_row_ < move_at_) return false;
    offered_in_a_row_ = 0;
    // Where moving does not help, it is tried less and less often.
    move_at_ = std::min(2 * move_at_, last_move);
    return true;
}

void WaitEstimate::gave_up(std::uint64_t looked) noexcept {
    if (looked == 0) return;
    // Who asks once, with a deadline that is over, has not waited.
    const bool has_waited = looked >= crowded_spin_;
    if (has_waited) carried_ += looked;
    if (has_waited && carried_ >= offer_) {
        note_look(std::exchange(carried_, 0), false);
    } else if (reason_ == WaitReason::trial) {
        since_trial_ = trial_at_ - 1;  // the next one goes on with it
    }
}

WaitFacts WaitEstimate::facts() const {
    return {.expected_gap = duration_of(gap_ / weight),
            .looked = duration_of(looked_ / weight),
            .found = static_cast<double>(found_) / static_cast<double>(always_found),
            .wake_up_cost = duration_of(cost_),
            .reason = reason_,
            .spun = spun_,
            .offered = offered_,
            .slept = slept_,
            .moved = moved_};
}

}  // namespace millrace::base
