// What mode strict decides about a request: every byte once, words whole, the same for the same
// seed, and everything that it may decide comes at some seed.
#include "transport/strict_plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace millrace::soft {
namespace {

constexpr StrictSettings any_order{};
constexpr StrictSettings increasing{.in_order = true};

TEST(StrictPlan, LandsEveryByteOnce) {
    for (std::uint32_t seed = 1; seed < 300; ++seed) {
        for (const std::uint64_t bytes : {0, 1, 7, 8, 9, 16, 17, 64, 100, 4096, 70'001}) {
            for (const std::uint64_t address : {0, 1, 4, 7}) {
                const StrictPlan plan{seed, bytes, address, any_order};
                std::vector<int> landed(bytes, 0);
                for (std::uint32_t step = 0; step < plan.steps(); ++step) {
                    const auto range = plan.range(step);
                    for (std::uint64_t i = 0; i < range.bytes; ++i) ++landed[range.offset + i];
                }
                ASSERT_EQ(landed, std::vector<int>(bytes, 1)) << seed << ' ' << bytes;
            }
        }
    }
}

TEST(StrictPlan, NeverDividesAnAlignedWord) {
    for (std::uint32_t seed = 1; seed < 300; ++seed) {
        for (std::uint64_t address = 0; address < 8; ++address) {
            const StrictPlan plan{seed, 100, address, any_order};
            for (std::uint32_t step = 0; step < plan.steps(); ++step) {
                const auto range = plan.range(step);
                if (range.offset != 0) {
                    EXPECT_EQ((address + range.offset) % 8, 0U);
                }
            }
        }
    }
}

TEST(StrictPlan, LandsBytesInEveryOrderUnlessItMustNot) {
    int tail_before_head = 0;
    std::set<std::uint32_t> numbers;
    for (std::uint32_t seed = 1; seed <= 100; ++seed) {
        const StrictPlan any{seed, 4096, 0, any_order};
        const StrictPlan ordered{seed, 4096, 0, increasing};
        numbers.insert(any.steps());
        EXPECT_EQ(any.steps(), ordered.steps());
        for (std::uint32_t step = 1; step < ordered.steps(); ++step) {
            EXPECT_GT(ordered.range(step).offset, ordered.range(step - 1).offset);
        }
        for (std::uint32_t step = 0; step < any.steps(); ++step) {
            if (any.range(step).offset == 0) break;
            if (any.range(step).offset + any.range(step).bytes == 4096) {
                ++tail_before_head;
                break;
            }
        }
    }
    EXPECT_GT(tail_before_head, 20);
    EXPECT_EQ(numbers.size(), StrictPlan::most_steps);
}

TEST(StrictPlan, IsTheSameForTheSameSeed) {
    for (std::uint32_t seed = 1; seed < 100; ++seed) {
        const StrictPlan one{seed, 5000, 3, any_order};
        const StrictPlan two{seed, 5000, 3, any_order};
        ASSERT_EQ(one.steps(), two.steps());
        for (std::uint32_t step = 0; step < one.steps(); ++step) {
            EXPECT_EQ(one.range(step).offset, two.range(step).offset);
            EXPECT_EQ(one.pause_after(step), two.pause_after(step));
        }
    }
}

TEST(StrictPlan, PutsThingsOffOftenNotAtAllAndNeverTooLong) {
    constexpr std::int64_t longest = 1000;
    int none = 0;
    int long_ones = 0;
    std::uint64_t state = 5;
    for (int i = 0; i < 1000; ++i) {
        const std::int64_t delay = draw_delay(next_random(state), longest);
        ASSERT_GE(delay, 0);
        ASSERT_LE(delay, longest);
        none += delay == 0 ? 1 : 0;
        long_ones += delay > longest / 2 ? 1 : 0;
    }
    EXPECT_GT(none, 400);
    EXPECT_GT(long_ones, 5);
    EXPECT_EQ(draw_delay(next_random(state), 0), 0);
}

}  // namespace
}  // namespace millrace::soft
