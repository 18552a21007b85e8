// base::Histogram beside a sorted list of the same values.
#include "millrace/base/histogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace millrace::base {
namespace {

TEST(Histogram, KnowsNothingWhenEmpty) {
    const auto histogram = std::make_unique<Histogram>();
    EXPECT_EQ(histogram->count(), 0U);
    EXPECT_EQ(histogram->quantile(0.5), 0U);
    EXPECT_EQ(histogram->mean(), 0);
    EXPECT_EQ(histogram->least(), 0U);
    EXPECT_EQ(histogram->most(), 0U);
}

TEST(Histogram, TellsSmallValuesExactly) {
    const auto histogram = std::make_unique<Histogram>();
    for (std::uint64_t value = 1; value <= 64; ++value) histogram->record(value - 1);
    for (std::uint64_t value = 1; value <= 64; ++value) {
        EXPECT_EQ(histogram->quantile(static_cast<double>(value) / 64), value - 1);
    }
    EXPECT_EQ(histogram->mean(), 31.5);
}

TEST(Histogram, HoldsTheGreatestNumbers) {
    const auto histogram = std::make_unique<Histogram>();
    histogram->record(~std::uint64_t{0});
    histogram->record(0);
    EXPECT_EQ(histogram->quantile(1), ~std::uint64_t{0});
    EXPECT_EQ(histogram->quantile(0), 0U);
    EXPECT_EQ(histogram->most(), ~std::uint64_t{0});
}

TEST(Histogram, IsAsPreciseAsItSays) {
    std::mt19937_64 random{7};
    std::vector<std::uint64_t> values;
    const auto first = std::make_unique<Histogram>();
    const auto second = std::make_unique<Histogram>();
    for (int i = 0; i < 50'000; ++i) {
        const std::uint64_t value = random() >> (random() % 60);
        values.push_back(value);
        (i % 2 == 0 ? first : second)->record(value);
    }
    first->add(*second);
    std::sort(values.begin(), values.end());
    ASSERT_EQ(first->count(), values.size());
    EXPECT_EQ(first->least(), values.front());
    EXPECT_EQ(first->most(), values.back());
    for (const double fraction : {0.001, 0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0}) {
        const auto rank = static_cast<std::size_t>(
            std::max(1.0, fraction * static_cast<double>(values.size()) + 0.5));
        const auto exact = static_cast<double>(values[std::min(rank, values.size()) - 1]);
        const auto told = static_cast<double>(first->quantile(fraction));
        EXPECT_GE(told, exact) << fraction;
        EXPECT_LE(told, exact * (1 + Histogram::precision) + 1) << fraction;
    }
}

}  // namespace
}  // namespace millrace::base
