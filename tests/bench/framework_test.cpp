// The framework that measures: pairs end in bounded time, rounds alternate, bars tell the truth.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/framework/bars.hpp"
#include "bench/framework/environment_scope.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/report.hpp"
#include "bench/framework/rounds.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"

namespace millrace::bench {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// Pairs need two cores.
class PairTest : public testing::Test {
  protected:
    void SetUp() override {
        if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    }
};
using Pairs = PairTest;
using RoundsOfPairs = PairTest;

/// Rounds that all count: a busy machine's are outliers, and would be run again.
RoundOptions rounds_that_all_count(int rounds) {
    return {.rounds = rounds, .patience = 1, .outlier = 1e9};
}

/// What run_pair says went wrong.
base::Error failure_of(const PairOptions& options, const FirstSide& first,
                       const SecondSide& second) {
    try {
        run_pair(options, first, second);
    } catch (const base::Error& error) {
        return error;
    }
    ADD_FAILURE() << "it succeeded";
    return {base::ErrorCode::system, "", "", "", ""};
}

void hang(Pair& /*pair*/) {
    for (;;) base::pause();
}

TEST(Quantile, InterpolatesBetweenTheSortedValues) {
    EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2);
    EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
    EXPECT_DOUBLE_EQ(quantile({10, 20}, 0.25), 12.5);
    EXPECT_DOUBLE_EQ(quantile({7}, 0.9), 7);
    EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0);
}

TEST(SummaryOfValues, GivesMedianQuartilesAndExtremes) {
    const auto summary = summarize({5, 1, 4, 2, 3}, 2);
    EXPECT_DOUBLE_EQ(summary.median, 3);
    EXPECT_DOUBLE_EQ(summary.low, 2);
    EXPECT_DOUBLE_EQ(summary.high, 4);
    EXPECT_DOUBLE_EQ(summary.least, 1);
    EXPECT_DOUBLE_EQ(summary.most, 5);
    EXPECT_EQ(summary.rounds, 5);
    EXPECT_EQ(summary.discarded, 2);
}

TEST(SummaryOfValues, SaysWhereTheMedianOfEndlessRoundsLies) {
    const auto few = summarize({3, 1, 2});
    EXPECT_DOUBLE_EQ(few.median_low, 1) << "less is not known";
    EXPECT_DOUBLE_EQ(few.median_high, 3);
    const auto more = summarize({9, 8, 7, 6, 5, 4, 3, 2, 1});
    EXPECT_DOUBLE_EQ(more.median_low, 3) << "two of nine or fewer are below it 46 times in 512";
    EXPECT_DOUBLE_EQ(more.median_high, 7);
    EXPECT_DOUBLE_EQ(summarize({}).median_low, 0);
    for (const std::size_t many : {499U, 501U, 2000U}) {
        std::vector<double> values(many);
        std::iota(values.begin(), values.end(), 1.0);
        const auto all = summarize(values);
        EXPECT_NEAR(all.median_low, all.median - 0.64 * std::sqrt(many), 2);
        EXPECT_NEAR(all.median_high, all.median + 0.64 * std::sqrt(many), 2);
        EXPECT_NEAR(all.median_least, all.median - 1.29 * std::sqrt(many), 2);
        EXPECT_NEAR(all.median_most, all.median + 1.29 * std::sqrt(many), 2);
    }
}

TEST(RoundsThatCount, LeaveOutCacheLineTimesFarFromTheMedianEitherWay) {
    EXPECT_EQ(rounds_that_count({230, 240, 235, 900, 60}, 1.5),
              (std::vector<bool>{true, true, true, false, false}));
}

TEST(WindowsOfSteps, CallEveryNumberOnce) {
    for (const std::uint64_t steps : {0U, 1U, 19U, 20U, 1000U}) {
        const Windows windows{steps};
        std::uint64_t next = 1;
        median_step(windows, [&](std::uint64_t number) { EXPECT_EQ(number, next++); });
        EXPECT_EQ(next, windows.total() + 1);
    }
}

TEST(Payload, IsRecognizedByItsNumberAtBothEnds) {
    std::vector<std::byte> message(64);
    stamp(message.data(), message.size(), 7);
    EXPECT_TRUE(stamped(message.data(), message.size(), 7));
    EXPECT_FALSE(stamped(message.data(), message.size(), 8));
    message.back() = std::byte{1};
    EXPECT_FALSE(stamped(message.data(), message.size(), 7));
}

TEST(Payload, OfAnySizeFromEightBytesCarriesItsNumber) {
    for (std::size_t size = 8; size <= 40; ++size) {
        std::vector<std::byte> message(size);
        stamp(message.data(), size, 0x0102'0304'0506'0708);
        EXPECT_TRUE(stamped(message.data(), size, 0x0102'0304'0506'0708)) << size;
    }
}

TEST(Payload, IsReadInFull) {
    std::vector<std::byte> message(72);
    for (std::size_t word = 0; word < 9; ++word) {
        message[word * 8] = std::byte{1};
        EXPECT_EQ(read_all(message.data(), message.size()), word + 1);
    }
}

TEST_F(Pairs, RunTwoProcessesOnTwoCoresWithZeroedSharedMemory) {
    const double result = run_pair(
        {.shared_bytes = 8192},
        [](Pair& pair) {
            const auto* bytes = pair.shared();
            EXPECT_TRUE(std::all_of(bytes, bytes + 8192, [](auto b) { return b == std::byte{}; }));
            pair.meet();
            pair.shared()[8191] = std::byte{42};
            pair.meet();
            pair.meet();
            EXPECT_NE(pair.value(0), static_cast<std::uint64_t>(getpid()));
            EXPECT_EQ(pair.value(0), static_cast<std::uint64_t>(pair.other_pid()));
            EXPECT_NE(pair.value(1), static_cast<std::uint64_t>(base::current_core()));
            return static_cast<double>(pair.value(2));
        },
        [](Pair& pair) {
            pair.meet();
            pair.meet();
            pair.set_value(0, static_cast<std::uint64_t>(getpid()));
            pair.set_value(1, static_cast<std::uint64_t>(base::current_core()));
            pair.set_value(2, static_cast<std::uint64_t>(pair.shared()[8191]));
            pair.meet();
        });
    EXPECT_EQ(result, 42);
}

TEST_F(Pairs, GiveTheCallingThreadItsCoresBack) {
    const auto before = base::describe_placement();
    run_pair(
        {}, [](Pair&) { return 0.0; }, [](Pair&) {});
    EXPECT_EQ(base::describe_placement(), before);
}

TEST_F(Pairs, KillAndReportASecondSideThatHangs) {
    const auto error = failure_of(
        {.deadline = 300ms}, [](Pair&) { return 1.0; }, hang);
    EXPECT_EQ(error.code(), base::ErrorCode::timed_out);
    EXPECT_THAT(error.what(), HasSubstr("hung and was killed"));
}

TEST_F(Pairs, EndAWaitForASideThatNeverComes) {
    const auto meet = [](Pair& pair) {
        pair.meet();
        return 1.0;
    };
    EXPECT_EQ(failure_of({.deadline = 300ms}, meet, hang).code(), base::ErrorCode::timed_out);
}

TEST_F(Pairs, ReportASecondSideThatIsKilled) {
    const auto error = failure_of(
        {},
        [](Pair& pair) {
            pair.meet();
            pair.meet();
            return 1.0;
        },
        [](Pair& pair) {
            pair.meet();
            raise(SIGKILL);
        });
    EXPECT_EQ(error.code(), base::ErrorCode::peer_lost);
    EXPECT_THAT(error.what(), HasSubstr("signal 9"));
}

TEST_F(Pairs, PassOnWhatTheSecondSideThrows) {
    const auto error = failure_of(
        {},
        [](Pair& pair) {
            pair.meet();
            pair.meet();
            return 1.0;
        },
        [](Pair& pair) {
            pair.meet();
            throw std::runtime_error{"no device"};
        });
    EXPECT_THAT(error.what(), HasSubstr("no device"));
}

TEST_F(Pairs, EndTheSecondSideWhenTheFirstThrows) {
    const auto error = failure_of(
        {},
        [](Pair& pair) -> double {
            pair.meet();
            base::throw_errno(ENOMEM, "register", "memory");
        },
        [](Pair& pair) {
            pair.meet();
            pair.meet();
        });
    // The second side only says that the first failed, and why.
    EXPECT_THAT(error.what(), HasSubstr("ENOMEM"));
}

TEST_F(RoundsOfPairs, AlternateTheContendersAndCompareWithinARound) {
    std::string order;
    double level = 1;
    Rounds rounds{rounds_that_all_count(3)};
    rounds.add({"a", [&] {
                    order += 'a';
                    level *= 10;  // the machine changes from round to round; the ratio does not
                    return 3 * level;
                }});
    rounds.add({"b", [&] {
                    order += 'b';
                    return level;
                }});
    const auto results = rounds.run();
    EXPECT_EQ(order, "ababab");
    EXPECT_EQ(results.values("b"), (std::vector<double>{10, 100, 1000}));
    EXPECT_DOUBLE_EQ(results.ratio("a", "b").least, 3);
    EXPECT_DOUBLE_EQ(results.ratio("a", "b").most, 3);
    EXPECT_EQ(results.discarded(), 0);
    EXPECT_EQ(results.cache_line().rounds, 3);
    EXPECT_THROW(static_cast<void>(results.summary("c")), base::Error);
}

TEST_F(RoundsOfPairs, PassOnWhatAContenderThrows) {
    Rounds rounds{{.rounds = 1}};
    rounds.add({"broken", []() -> double { throw std::runtime_error{"broken"}; }});
    EXPECT_THROW(static_cast<void>(rounds.run()), std::runtime_error);
}

Contender taking(std::string name, double value) {
    return {std::move(name), [=] { return value; }};
}

TEST_F(RoundsOfPairs, OfManyPointsGiveTheWorstRatio) {
    const std::vector<BarPoint> points{
        {.ours = {taking("a", 8), taking("b", 6)}, .others = {taking("c", 4), taking("d", 2)}},
        {.ours = {taking("e", 9)}, .others = {taking("f", 3)}}};
    int told = 0;
    RoundOptions options = rounds_that_all_count(2);
    options.finished = [&](const Results&) { ++told; };
    const auto least = worst_ratio_bar("test", "least", 1, Sense::at_least, points);
    EXPECT_DOUBLE_EQ(least.measure(options).median, 1.5) << "b to c";
    const auto most = worst_ratio_bar("test", "most", 1, Sense::at_most, points);
    EXPECT_DOUBLE_EQ(most.measure(options).median, 4) << "a to d";
    EXPECT_EQ(told, 6) << "both points are short of the second bar, and measured on once";
    EXPECT_EQ(worst_ratio_bar("test", "none", 1, Sense::at_least, {}).measure(options).rounds, 0)
        << "does not hold";
}

/// Gives the figures in turn, and the last one from then on.
Contender giving(std::string name, std::vector<double> figures, std::size_t& run) {
    return {std::move(name), [figures = std::move(figures), &run] {
                return figures[std::min(run++, figures.size() - 1)];
            }};
}

TEST_F(RoundsOfPairs, OfAPointThatIsShortAreMoreAndAllOfThemCount) {
    std::size_t run = 0;
    const std::vector<BarPoint> points{
        {.ours = {taking("steady", 5)}, .others = {taking("one", 1)}},
        {.ours = {giving("unlucky", {0.5, 0.5, 3}, run)}, .others = {taking("another", 1)}}};
    const Summary worst = worst_ratio_bar("test", "least", 1, Sense::at_least, points)
                              .measure(rounds_that_all_count(2));
    EXPECT_EQ(run, 10) << "two of six may be what half of all are like";
    EXPECT_EQ(worst.rounds, 10);
    EXPECT_DOUBLE_EQ(worst.median, 3);
    EXPECT_DOUBLE_EQ(worst.least, 0.5) << "those of the beginning are among them";
}

TEST_F(RoundsOfPairs, OfAPointThatWasInLuckAreMore) {
    std::size_t run = 0;
    const std::vector<BarPoint> points{
        {.ours = {giving("lucky", {3, 3, 0.5}, run)}, .others = {taking("one", 1)}}};
    const auto bar = worst_ratio_bar("test", "least", 1, Sense::at_least, points);
    EXPECT_GE(bar.measure(rounds_that_all_count(2)).median, 1) << "both rounds keep the promise";
    EXPECT_EQ(run, 2);
    run = 0;
    EXPECT_DOUBLE_EQ(bar.measure(rounds_that_all_count(3)).median, 0.5) << "one of three does not";
    EXPECT_EQ(run, 15) << "two of nine may be what half of all are like, of one point of many";
}

TEST_F(RoundsOfPairs, OfAPointAtItsLimitEnd) {
    std::size_t run = 0;
    const std::vector<BarPoint> points{
        {.ours = {{"changing", [&] { return ++run % 2 == 0 ? 0.9 : 1.1; }}},
         .others = {taking("one", 1)}}};
    const Summary worst = worst_ratio_bar("test", "least", 1, Sense::at_least, points)
                              .measure(rounds_that_all_count(2));
    EXPECT_EQ(worst.rounds, 30);
}

Bar bar_measuring(double value, double limit, Sense sense, std::string group = "test") {
    return {.group = std::move(group),
            .name = "a bar",
            .limit = limit,
            .sense = sense,
            .unit = "x",
            .measure = [value](const RoundOptions&) { return summarize({value}); }};
}

TEST(Bar, HoldsUpToItsLimitAndNotBeyond) {
    EXPECT_TRUE(holds(bar_measuring(0, 2, Sense::at_most), summarize({2.0})));
    EXPECT_FALSE(holds(bar_measuring(0, 2, Sense::at_most), summarize({2.1})));
    EXPECT_TRUE(holds(bar_measuring(0, 2, Sense::at_least), summarize({2.0})));
    EXPECT_FALSE(holds(bar_measuring(0, 2, Sense::at_least), summarize({1.9})));
}

TEST(Bar, ThatWasNotMeasuredDoesNotHold) {
    EXPECT_FALSE(holds(bar_measuring(0, 2, Sense::at_most), summarize({})));
}

TEST(RunBars, SucceedsOnlyIfAllHold) {
    const auto good = bar_measuring(1, 2, Sense::at_most);
    const auto bad = bar_measuring(3, 2, Sense::at_most);
    EXPECT_EQ(run_bars({}, {good, good}), 0);
    EXPECT_EQ(run_bars({}, {good, bad}), 1);
}

TEST(RunBars, PrintsOneLineForEachBarWithItsVerdict) {
    testing::internal::CaptureStdout();
    run_bars({}, {bar_measuring(1.5, 2, Sense::at_most), bar_measuring(3, 4, Sense::at_least)});
    const auto text = testing::internal::GetCapturedStdout();
    EXPECT_THAT(text, HasSubstr("1.5"));
    EXPECT_THAT(text, HasSubstr("at most 2  ok\n"));
    EXPECT_THAT(text, HasSubstr("at least 4  short\n"));
    EXPECT_THAT(text, HasSubstr("1 of 2 bars hold\n"));
}

TEST(RunBars, BreaksALineThatIsWiderThanTheTerminal) {
    const EnvironmentScope terminal{"COLUMNS", "80"};
    testing::internal::CaptureStdout();
    run_bars({}, {bar_measuring(1.5, 2, Sense::at_most)});
    const auto text = testing::internal::GetCapturedStdout();
    EXPECT_THAT(text, testing::StartsWith("test        a bar\n            1.5 x "));
    EXPECT_THAT(text, HasSubstr("at most 2  ok\n"));
}

TEST(RunBars, TellsAFigureOfWhichNothingWasPromisedAsReported) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_bars({}, {bar_measuring(0.1, 0, Sense::reported)}), 0);
    EXPECT_EQ(
        run_bars({}, {bar_measuring(0.1, 0, Sense::reported), bar_measuring(3, 2, Sense::at_most)}),
        1);
    const auto text = testing::internal::GetCapturedStdout();
    EXPECT_THAT(text, HasSubstr("discarded)  reported\n"));
    EXPECT_THAT(text, HasSubstr("0 of 0 bars hold\n"));
    EXPECT_THAT(text, HasSubstr("0 of 1 bars hold\n"));
}

TEST(RunBars, MeasuresOnlyTheGroupThatIsAskedFor) {
    const auto good = bar_measuring(1, 2, Sense::at_most, "flow");
    const auto bad = bar_measuring(3, 2, Sense::at_most, "soft");
    EXPECT_EQ(run_bars({.only = "flow"}, {good, bad}), 0);
    EXPECT_EQ(run_bars({.only = "soft"}, {good, bad}), 1);
}

TEST(RunBars, FailsForAGroupWithoutBars) {
    EXPECT_EQ(run_bars({.only = "flwo"}, {bar_measuring(1, 2, Sense::at_most)}), 2);
    EXPECT_EQ(run_bars({}, {}), 2);
}

TEST(RunBars, CallsABarThatCannotBeMeasuredShortAndSaysWhy) {
    auto broken = bar_measuring(1, 2, Sense::at_most);
    broken.measure = [](const RoundOptions&) -> Summary { throw std::runtime_error{"no device"}; };
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_bars({}, {broken}), 1);
    const auto text = testing::internal::GetCapturedStdout();
    EXPECT_THAT(text, HasSubstr("no device"));
    EXPECT_THAT(text, HasSubstr("short\n"));
}

TEST(RunBars, CallsABarThatLacksAProgramNotMeasuredAndSaysWhatToInstall) {
    auto lacking = bar_measuring(1, 2, Sense::at_most);
    lacking.measure = [](const RoundOptions&) -> Summary {
        throw base::Error{base::ErrorCode::not_found, "measure", "x", "there is no such program",
                          "install: perftest"};
    };
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_bars({}, {lacking, bar_measuring(1, 2, Sense::at_most)}), 0);
    const auto text = testing::internal::GetCapturedStdout();
    EXPECT_THAT(text, HasSubstr("install: perftest"));
    EXPECT_THAT(text, HasSubstr("not measured\n"));
    EXPECT_THAT(text, HasSubstr("1 of 2 bars hold, 1 not measured\n"));
}

TEST(RunBars, WritesWhatItMeasuredAsJson) {
    const auto path = std::filesystem::temp_directory_path() /
                      ("millrace-bars-" + std::to_string(getpid()) + ".json");
    EXPECT_EQ(run_bars({.json = {path.string()}}, {bar_measuring(3, 2, Sense::at_most)}), 1);
    std::ifstream file{path};
    const auto document = nlohmann::json::parse(file);
    std::filesystem::remove(path);
    ASSERT_EQ(document["bars"].size(), 1U);
    EXPECT_EQ(document["bars"][0]["median"], 3.0);
    EXPECT_EQ(document["bars"][0]["limit"], 2.0);
    EXPECT_EQ(document["bars"][0]["verdict"], "short");
    EXPECT_TRUE(document["machine"].contains("kernel"));
}

TEST(RunBars, RefusesAPathThatCannotBeWrittenBeforeItMeasures) {
    bool measured = false;
    Bar bar = bar_measuring(1, 2, Sense::at_most);
    bar.measure = [&measured](const RoundOptions&) {
        measured = true;
        return summarize({1.0});
    };
    EXPECT_THROW(run_bars({.json = {"/nonexistent/bars.json"}}, {bar}), base::Error);
    EXPECT_FALSE(measured);
}

TEST(Humane, KeepsThreeFiguresThatCount) {
    EXPECT_EQ(humane(231.4), "231");
    EXPECT_EQ(humane(1.234), "1.23");
    EXPECT_EQ(humane(85'234'000), "85.2 M");
}

}  // namespace
}  // namespace millrace::bench
