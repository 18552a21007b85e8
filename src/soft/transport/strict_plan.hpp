// What mode `strict` decides about one request: in which pieces its bytes land, in which order, and
// how long after one another. Follows from a seed of 32 bits in the pending entry alone, so that
// whoever executes goes on where another one has stopped. Called by executors and by CableQueue.
// docs/soft/links.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "transport/cable_random.hpp"
#include "transport/mode.hpp"

namespace millrace::soft {

/// How long something is put off: half of the time not at all, seldom up to `longest`.
[[nodiscard]] constexpr std::int64_t draw_delay(std::uint64_t random,
                                                std::int64_t longest) noexcept {
    const std::uint64_t kind = random & 15;
    const std::int64_t most = kind == 0 ? longest : kind < 4 ? longest / 4 : longest / 16;
    if (kind >= 8 || most <= 0) return 0;
    return static_cast<std::int64_t>((random >> 4) % (static_cast<std::uint64_t>(most) + 1));
}

/// Bits of a plan's seed: it is a plan; the receiver is told later than the sender may be.
enum : std::uint32_t { plan_is_one = 1, plan_tells_late = 2 };

class StrictPlan {
  public:
    static constexpr std::uint32_t most_steps = 5;

    struct Range {
        std::uint64_t offset;
        std::uint64_t bytes;
    };

    /// `address`: where the first byte lies at the responder. Naturally aligned words stay whole.
    constexpr StrictPlan(std::uint32_t seed, std::uint64_t bytes, std::uint64_t address,
                         const StrictSettings& settings) noexcept
        : seed_{seed}, longest_{settings.delay_ns} {
        const std::uint64_t before = address % word == 0 ? 0 : word - address % word;
        const std::uint64_t words = bytes > before ? (bytes - before) / word : 0;
        // A quarter lands as a whole.
        const std::uint64_t choice = draw(0);
        const std::uint64_t wanted = choice % 4 == 0 ? 1 : 2 + (choice >> 2) % (most_steps - 1);
        steps_ = static_cast<std::uint32_t>(std::min(wanted, std::max<std::uint64_t>(words, 1)));
        std::uint64_t begin = 0;
        for (std::uint32_t i = 0; i < steps_; ++i) {
            const std::uint64_t end =
                i + 1 == steps_ ? bytes : before + words * (i + 1) / steps_ * word;
            ranges_[i] = Range{begin, end - begin};
            begin = end;
        }
        if (settings.in_order) return;
        for (std::uint32_t i = steps_; i > 1; --i) {
            std::swap(ranges_[i - 1], ranges_[draw(i) % i]);
        }
    }

    [[nodiscard]] constexpr std::uint32_t steps() const noexcept { return steps_; }
    /// The bytes that land in one of the steps.
    [[nodiscard]] constexpr Range range(std::uint32_t step) const noexcept {
        return ranges_[std::min(step, steps_ - 1)];
    }
    /// The time between a step and the next one, in ns.
    [[nodiscard]] constexpr std::int64_t pause_after(std::uint32_t step) const noexcept {
        return draw_delay(draw(16 + step), longest_);
    }

  private:
    static constexpr std::uint64_t word = 8;
    [[nodiscard]] constexpr std::uint64_t draw(std::uint32_t what) const noexcept {
        return scatter_bits((std::uint64_t{seed_} << 32 | what) + 0x9e3779b97f4a7c15U);
    }

    std::uint32_t seed_;
    std::int64_t longest_;
    std::uint32_t steps_ = 1;
    std::array<Range, most_steps> ranges_{};
};

}  // namespace millrace::soft
