#include "sizing.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::stream {
namespace {

using namespace std::chrono_literals;

/// A program would rather have its connection than know the way.
constexpr auto longest_measurement = 2s;
constexpr int most_probes = 4;
constexpr int fewest_probes = 2;
/// Behind so much time the fewest are enough.
constexpr auto enough_time = 1ms;

std::uint64_t lanes_of(std::uint8_t width) noexcept {
    switch (width) {
        case 2: return 4;
        case 4: return 8;
        case 8: return 12;
        case 16: return 2;
        default: return 1;
    }
}

/// Of one lane, in units of 100 Mb/s; 0: not known.
std::uint64_t speed_of(std::uint8_t speed) noexcept {
    switch (speed) {
        case 1: return 25;
        case 2: return 50;
        case 4:
        case 8: return 100;
        case 16: return 140;
        case 32: return 250;
        case 64: return 500;
        case 128: return 1000;
        default: return 0;
    }
}

/// In bytes; no more than can be chosen.
std::uint64_t bandwidth_times_delay(const Way& way) noexcept {
    const auto delay = static_cast<double>((way.round_trip + assumed_reaction).count());
    const double bytes = static_cast<double>(way.bits_per_second) / 8e6 * delay;
    return static_cast<std::uint64_t>(std::min(bytes, static_cast<double>(largest_chosen_ring)));
}

}  // namespace

std::uint64_t bits_per_second(const ibv_port_attr& port) noexcept {
    const std::uint64_t speed = speed_of(port.active_speed);
    if (speed == 0) return 25'000'000'000;
    return speed * 100'000'000 * lanes_of(port.active_width);
}

bool RoundTrip::step(connect::Link& link) noexcept {
    for (;;) {
        const auto now = base::Clock::now();
        if (is_under_way_) {
            std::array<verbs::Completion, 1> completion;
            const int count = link.send_queue().poll(completion);
            if (count == 0) {
                return now - begin_ > longest_measurement ||
                       link.peer() != connect::PeerState::alive;
            }
            if (count < 0 || !completion[0].ok()) return true;
            is_under_way_ = false;
            least_ = std::min<std::chrono::nanoseconds>(least_, now - posted_);
            ++done_;
        }
        if (done_ == 0) begin_ = now;
        if (done_ == most_probes || (done_ >= fewest_probes && now - begin_ > enough_time)) {
            result_ = std::max(std::chrono::ceil<std::chrono::microseconds>(least_),
                               std::chrono::microseconds{1});
            return true;
        }
        posted_ = base::Clock::now();
        if (link.queue_pair().post(
                verbs::Write{.from = {}, .to = {}, .flags = verbs::SendFlags::signaled}) != 0) {
            return true;
        }
        is_under_way_ = true;
    }
}

void measure_round_trip(connect::Link& link, RoundTrip& measured, const base::Deadline& deadline) {
    connect::LinkParker parker{link};
    (void)base::wait_until([&] { return measured.step(link); },
                           deadline.no_later_than(base::Clock::now() + longest_measurement), {},
                           parker);
}

std::uint64_t chosen_ring(const Way& way) noexcept {
    return std::bit_ceil(std::max(bandwidth_times_delay(way), least_chosen_ring));
}

std::uint32_t chosen_adverts(const Way& way, std::uint64_t least) noexcept {
    const std::uint64_t count = chosen_ring(way) / std::max<std::uint64_t>(least, 1);
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(count, fewest_chosen_adverts, most_chosen_adverts));
}

std::string reason(const Way& way) {
    return fmt::format(
        "{:.3g} Gb/s times {} us: {}, and {} until the peer's program has looked; {} to {} bytes",
        static_cast<double>(way.bits_per_second) / 1e9, (way.round_trip + assumed_reaction).count(),
        way.round_trip.count() == 0
            ? std::string{"to and fro was not measured"}
            : fmt::format("{} to and fro, measured", way.round_trip.count()),
        assumed_reaction.count(), least_chosen_ring, largest_chosen_ring);
}

}  // namespace millrace::stream
