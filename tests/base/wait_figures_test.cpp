// What a page shows of waits that adapt.
#include "millrace/base/wait_figures.hpp"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::base {
namespace {

using namespace std::chrono_literals;
using testing::Contains;
using testing::ElementsAre;
using testing::Pair;

StatisticsPage::Snapshot only_page() {
    auto pages = StatisticsPage::of_process(getpid());
    EXPECT_EQ(pages.size(), 1U);
    return pages.empty() ? StatisticsPage::Snapshot{} : std::move(pages.front());
}

TEST(WaitFigures, StandBehindThoseOfTheEndAndBeforeItsHistograms) {
    const Figure own[] = {{"items"}, {"size", FigureKind::histogram}};
    StatisticsPage page{"an end", with_waits(own, true)};
    page.counter(0).set(5);
    page.histogram(0).record(7);
    show_waits(page, 1,
               {.expected_gap = 5us,
                .looked = 3us,
                .found = 0.5,
                .wake_up_cost = 20us,
                .reason = WaitReason::long_gaps,
                .spun = 4,
                .offered = 3,
                .slept = 2,
                .moved = 1});
    const auto shown = only_page();
    EXPECT_THAT(shown.counters,
                ElementsAre(Pair("items", 5), Pair("waits that looked", 4),
                            Pair("waits that offered their processor", 3),
                            Pair("waits that slept", 2), Pair("moves to another processor", 1)));
    EXPECT_THAT(shown.gauges,
                ElementsAre(Pair("ns between events", 5'000), Pair("ns of looks", 3'000),
                            Pair("looks in time, in %", 50), Pair("ns of a wake-up", 20'000)));
    EXPECT_THAT(shown.histograms.at(0).most, 7);
}

TEST(WaitFigures, SayEveryReasonInWords) {
    StatisticsPage page{"an end", with_waits({}, true)};
    for (const WaitReason reason :
         {WaitReason::none_yet, WaitReason::short_gaps, WaitReason::crowded, WaitReason::long_gaps,
          WaitReason::trial}) {
        show_waits(page, 0, {.reason = reason});
        EXPECT_THAT(only_page().states, ElementsAre(Pair("wait", std::string{describe(reason)})));
    }
}

TEST(WaitFigures, AreNotThereWhereWaitsDoNotAdapt) {
    const Figure own[] = {{"items"}};
    EXPECT_EQ(with_waits(own, false).size(), 1U);
}

TEST(WaitFigures, AreShownBehindASleepAndNowAndThen) {
    WaitsToShow waits;
    EXPECT_TRUE(waits.is_due(0)) << "the first";
    for (int i = 0; i != 15; ++i) EXPECT_FALSE(waits.is_due(0));
    EXPECT_TRUE(waits.is_due(0));
    EXPECT_FALSE(waits.is_due(0));
    EXPECT_TRUE(waits.is_due(1)) << "it has slept";
    EXPECT_FALSE(waits.is_due(1));
}

}  // namespace
}  // namespace millrace::base
