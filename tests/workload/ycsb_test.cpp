// What clients of a store do in the Yahoo! Cloud Serving Benchmark: its distributions are those
// that were published, and its workloads, keys and records are as it has them.
#include "workload/ycsb/workload.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "workload/ycsb/generators.hpp"

namespace millrace::workload {
namespace {

// --- distributions

constexpr std::size_t draws = 1'000'000;

/// How often each number comes; those from `cells` on count as the last.
template <class Draw>
std::vector<double> counts_of(std::size_t cells, Draw&& draw) {
    std::vector<double> counts(cells);
    for (std::size_t i = 0; i != draws; ++i) {
        counts[std::min<std::size_t>(draw(), cells - 1)] += 1;
    }
    return counts;
}

/// How far from what is expected, by Pearson's statistic, in standard deviations (Wilson and
/// Hilferty): beyond 4 once in 30,000 seeds.
double deviations(const std::vector<double>& counts, const std::vector<double>& parts) {
    double statistic = 0;
    for (std::size_t i = 0; i != counts.size(); ++i) {
        const double expected = parts[i] * static_cast<double>(draws);
        EXPECT_GE(expected, 5) << "too few draws for cell " << i;
        statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    const auto freedom = static_cast<double>(counts.size() - 1);
    const double spread = 2 / (9 * freedom);
    return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
}
constexpr double seldom = 4;

double zeta(std::uint64_t items, double theta) {
    double sum = 0;
    for (std::uint64_t i = items; i != 0; --i) sum += std::pow(static_cast<double>(i), -theta);
    return sum;
}

/// Of ranks below `shown`, and of all others together, what Gray et al.'s formula gives: the part
/// of the uniform numbers that it makes a rank of.
std::vector<double> gray(std::uint64_t items, double theta, double zeta_of_items,
                         std::size_t shown) {
    const double of_two = 1 + std::pow(0.5, theta);
    const auto all = static_cast<double>(items);
    const double eta = (1 - std::pow(2 / all, 1 - theta)) / (1 - of_two / zeta_of_items);
    const auto below = [&](double rank) { return 1 - (1 - std::pow(rank / all, 1 - theta)) / eta; };
    std::vector<double> parts{1 / zeta_of_items, std::pow(0.5, theta) / zeta_of_items};
    for (std::size_t rank = 2; rank < shown; ++rank) {
        parts.push_back(below(static_cast<double>(rank + 1)) - below(static_cast<double>(rank)));
    }
    if (shown < items) parts.push_back(1 - below(static_cast<double>(shown)));
    return parts;
}

TEST(Zipfian, IsDrawnAsGrayAndOthersPublished) {
    for (const double theta : {0.5, 0.99}) {
        Random random{1};
        const ZipfianRanks ranks{1000, theta};
        const auto counts = counts_of(1000, [&] { return ranks.next(random); });
        EXPECT_LT(deviations(counts, gray(1000, theta, zeta(1000, theta), 1000)), seldom) << theta;
    }
}
TEST(Zipfian, IsToldApartFromOneWithAnotherExponent) {
    Random random{1};
    const ZipfianRanks ranks{1000, 0.98};
    const auto counts = counts_of(1000, [&] { return ranks.next(random); });
    EXPECT_GT(deviations(counts, gray(1000, 0.99, zeta(1000, 0.99), 1000)), 2 * seldom);
}
TEST(Zipfian, IsNearZipfsLaw) {
    const double sum = zeta(1000, 0.99);
    const auto parts = gray(1000, 0.99, sum, 1000);
    double apart = 0;
    for (std::size_t rank = 0; rank != parts.size(); ++rank) {
        apart += std::abs(parts[rank] - std::pow(static_cast<double>(rank + 1), -0.99) / sum) / 2;
    }
    EXPECT_LT(apart, 0.05);
}
TEST(Zipfian, OfFewItemsHasThemAlone) {
    Random random{1};
    for (const std::uint64_t items : {1U, 2U, 3U}) {
        const ZipfianRanks ranks{items};
        const auto counts = counts_of(items + 1, [&] { return ranks.next(random); });
        EXPECT_EQ(counts[items], 0) << items;
        for (std::uint64_t rank = 0; rank != items; ++rank) EXPECT_GT(counts[rank], 0) << items;
    }
}
TEST(Zipfian, IsAfterItHasGrownAsIfItHadBeenMadeSo) {
    ZipfianRanks grown{100};
    grown.grow(150);
    grown.grow(120);  // fewer are none too many
    grown.grow(1000);
    const ZipfianRanks made{1000};
    Random one{1};
    Random other{1};
    for (int i = 0; i != 10'000; ++i) ASSERT_EQ(grown.next(one), made.next(other));
}

TEST(ScrambledZipfianRecords, AddUpTheRanksThatFallOnThem) {
    // Those of ranks beyond are so many, and each so rare, that all records have as many.
    constexpr std::size_t records = 1000;
    constexpr std::size_t shown = 3'000'000;
    const auto ranks = gray(ScrambledZipfian::ranks, 0.99, ScrambledZipfian::zeta_of_ranks, shown);
    std::vector<double> parts(records, ranks.back() / records);
    for (std::size_t rank = 0; rank != shown; ++rank) {
        parts[scrambled(rank) % records] += ranks[rank];
    }
    Random random{1};
    const ScrambledZipfian chooser{records};
    EXPECT_LT(deviations(counts_of(records, [&] { return chooser.next(random); }), parts), seldom);
}
TEST(ScrambledZipfianRecords, HaveTheSumOfTheirRanks) {
    // Beyond the first million, the sum is an integral, and the ends of it.
    constexpr double theta = 0.99;
    constexpr double first = 1e6;
    const auto all = static_cast<double>(ScrambledZipfian::ranks);
    const double rest = (std::pow(all, 1 - theta) - std::pow(first, 1 - theta)) / (1 - theta) +
                        (std::pow(all, -theta) - std::pow(first, -theta)) / 2;
    EXPECT_NEAR(zeta(1'000'000, theta) + rest, ScrambledZipfian::zeta_of_ranks, 1e-6);
}

TEST(LatestRecords, AreTheLikelier) {
    Random random{1};
    RecordChooser chooser{Distribution::latest, 500, 0};
    for (const std::uint64_t records : {500U, 1000U}) {
        const auto counts =
            counts_of(records, [&] { return records - 1 - chooser.next(records - 1, random); });
        EXPECT_LT(deviations(counts, gray(records, 0.99, zeta(records, 0.99), records)), seldom)
            << records;
    }
}
TEST(UniformRecords, AreAllAsLikely) {
    Random random{1};
    RecordChooser chooser{Distribution::uniform, 1000, 0};
    const auto counts = counts_of(1000, [&] { return chooser.next(999, random); });
    EXPECT_LT(deviations(counts, std::vector<double>(1000, 1e-3)), seldom);
}
TEST(HotspotRecords, GetFourOfFiveOperationsForOneOfFiveRecords) {
    Random random{1};
    RecordChooser chooser{Distribution::hotspot, 1000, 0};
    const auto counts = counts_of(1000, [&] { return chooser.next(999, random); });
    std::vector<double> parts(1000, 0.2 / 800);
    std::fill_n(parts.begin(), 200, 0.8 / 200);
    EXPECT_LT(deviations(counts, parts), seldom);
}
TEST(ExponentialRecords, AreTheLikelierTheNewer) {
    Random random{1};
    // 95 % within 6/7 of 1,000 records; those that would lie before the first are drawn again.
    const double mean = 1000 * 0.8571428571 / -std::log(0.05);
    const double all = 1 - std::exp(-1000 / mean);
    std::vector<double> parts;
    for (int back = 0; back != 1000; ++back) {
        parts.push_back((std::exp(-back / mean) - std::exp(-(back + 1) / mean)) / all);
    }
    RecordChooser chooser{Distribution::exponential, 1000, 0};
    const auto counts = counts_of(1000, [&] { return 999 - chooser.next(999, random); });
    EXPECT_LT(deviations(counts, parts), seldom);
    const Exponential bare{1000};
    const auto two = counts_of(2, [&] { return bare.next(random) < 857 ? 0U : 1U; });
    EXPECT_NEAR(two[0] / static_cast<double>(draws), 0.95, 0.001);
}
TEST(Records, ThatMayComeAreChosenOnceTheyHave) {
    Random random{1};
    RecordChooser chooser{Distribution::zipfian, 100, 100};
    const auto before = counts_of(201, [&] { return chooser.next(99, random); });
    EXPECT_EQ(std::count(before.begin() + 100, before.end(), 0.0), 101);
    const auto after = counts_of(201, [&] { return chooser.next(199, random); });
    EXPECT_EQ(std::count(after.begin(), after.end(), 0.0), 1);
}

TEST(Distributions, AreFoundByTheirNames) {
    for (const auto one : {Distribution::zipfian, Distribution::latest, Distribution::uniform,
                           Distribution::exponential, Distribution::hotspot}) {
        EXPECT_EQ(parse_distribution(name_of(one)), one);
    }
    EXPECT_EQ(parse_distribution("normal"), std::nullopt);
}

// --- workloads

TEST(YcsbKeys, AreCalledAsYcsbCallsThem) {
    std::string key;
    write_key(0, key);
    EXPECT_EQ(key, "user6284781860667377211");
    write_key(1, key);
    EXPECT_EQ(key, "user8517097267634966620");
}

TEST(YcsbWorkloads, MixOperationsAsTheirPartsSay) {
    for (const YcsbWorkload& workload : ycsb_workloads) {
        Random random{1};
        const auto counts = counts_of(every_ycsb_operation.size(), [&] {
            return static_cast<std::size_t>(workload.next(random));
        });
        std::vector<double> some;
        std::vector<double> parts;
        unsigned sum = 0;
        for (std::size_t i = 0; i != counts.size(); ++i) {
            sum += workload.percent[i];
            if (workload.percent[i] == 0) {
                EXPECT_EQ(counts[i], 0) << workload.name << i;
                continue;
            }
            some.push_back(counts[i]);
            parts.push_back(workload.percent[i] / 100.0);
        }
        EXPECT_EQ(sum, 100U) << workload.name;
        if (some.size() == 1) continue;  // of one alone nothing can be off
        EXPECT_LT(deviations(some, parts), seldom) << workload.name;
    }
}

TEST(YcsbRecords, AreKnownByEachOfTheirFields) {
    Random random{1};
    const RecordFormat format{10, 100};
    std::vector<std::byte> value(format.size());
    format.fill(7, value, random);
    EXPECT_TRUE(format.is_of(7, value));
    EXPECT_FALSE(format.is_of(8, value));
    EXPECT_FALSE(format.is_of(7, std::span{value}.first(999)));
    auto other = value;
    format.fill_field(7, 3, other, random);
    EXPECT_TRUE(format.is_of(7, other));
    for (std::size_t field = 0; field != 10; ++field) {
        const auto begin = static_cast<std::ptrdiff_t>(100 * field);
        EXPECT_EQ(
            std::equal(value.begin() + begin, value.begin() + begin + 100, other.begin() + begin),
            field != 3)
            << field;
    }
    for (std::size_t field = 0; field != 10; ++field) {
        auto broken = value;
        broken[100 * field] ^= std::byte{1};
        EXPECT_FALSE(format.is_of(7, broken)) << field;
    }
    std::swap_ranges(value.begin(), value.begin() + 100, value.begin() + 100);
    EXPECT_FALSE(format.is_of(7, value)) << "fields have their places";
}

TEST(YcsbInserts, AreReadOnceAllBeforeThemAreThere) {
    InsertedRecords records{10};
    EXPECT_EQ(records.last(), 9U);
    const auto first = records.take();
    const auto second = records.take();
    EXPECT_EQ(second, 11U);
    records.acknowledge(second);
    EXPECT_EQ(records.last(), 9U);
    records.acknowledge(first);
    EXPECT_EQ(records.last(), 11U);
}

}  // namespace
}  // namespace millrace::workload
