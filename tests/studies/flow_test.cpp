// The plan, the numbers and the findings of `millrace bench flow`, and that a measurement is
// complete. Never how fast.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/flow/measure_flow.hpp"
#include "bench/flow/queue_ends.hpp"
#include "millrace/base/error.hpp"
#include "studies/flow/figures.hpp"
#include "studies/flow/flow_report.hpp"
#include "studies/flow/measure_uncredited.hpp"
#include "studies/flow/run_flow.hpp"
#include "studies/flow/thesis.hpp"

namespace millrace::bench {
namespace {

StreamResult stream(double items_per_second, double transfer_ratio = 0) {
    StreamResult result;
    result.items = 1000;
    result.seconds = 1000 / items_per_second;
    result.transfer_ratio = transfer_ratio;
    return result;
}

const Finding& finding_that(std::string_view begins) {
    for (const Finding& finding : all_findings()) {
        if (finding.claim.starts_with(begins)) return finding;
    }
    throw base::Error{base::ErrorCode::not_found, "look up a finding", std::string{begins}, "", ""};
}

TEST(FlowFigures, AreAllThatTheWorkHas) {
    std::set<std::string_view> ids;
    for (const Figure& figure : all_figures()) ids.insert(figure.id);
    EXPECT_EQ(ids.size(), all_figures().size()) << "an id comes twice";
    for (int number = 1; number <= 12; ++number) {
        EXPECT_TRUE(ids.contains("6." + std::to_string(number))) << number;
    }
    EXPECT_TRUE(ids.contains("table 6.1"));
    EXPECT_TRUE(ids.contains("table 6.2"));
}

TEST(FlowFigures, CompareOnlyWhatIsBuiltForEverySizeTheyShow) {
    for (const Figure& figure : all_figures()) {
        for (const Series& series : figure.series) {
            const Contestant contestant = contestant_of(series.contestant);
            if (contestant.kind != ContestantKind::queue) continue;
            for (const std::size_t size : sizes_of(figure)) {
                EXPECT_NE(ends_of(contestant.design, size), nullptr)
                    << series.contestant << ' ' << size;
            }
        }
    }
    EXPECT_EQ(every_point().size(), 33U);
    for (const ring::Design design : every_point()) {
        EXPECT_EQ(contestant_of("point/" + point_name(design)).design, design);
        for (const std::size_t size : map_sizes) EXPECT_NE(ends_of(design, size), nullptr);
    }
}

TEST(FlowFigures, TablesHoldWhatTheWorkPrints) {
    EXPECT_EQ(printed("table 6.1", "Socket", 1024), 5153);
    EXPECT_EQ(printed("table 6.1", "Basic", 4), 5);
    EXPECT_EQ(printed("table 6.1", "Data Mover", 64), 7185);
    EXPECT_EQ(printed("table 6.2", "Batching", 8192), 25088);
    EXPECT_EQ(printed_ratio("Batching", "Basic", 8), 2.975) << "3.2 and 2.75";
    EXPECT_EQ(printed("table 6.2", "Socket", 4), std::nullopt) << "the work prints no such line";
    EXPECT_EQ(printed("6.9", "Socket", 4), std::nullopt) << "a figure's numbers stand in no text";
    for (const Figure& figure : all_figures()) {
        if (!figure.id.starts_with("table")) continue;
        for (const Series& series : figure.series) {
            for (const std::size_t size : sizes_of(figure)) {
                EXPECT_TRUE(printed(figure.id, series.label, size)) << series.label << ' ' << size;
            }
        }
    }
}

TEST(FlowFindings, ANumberAgreesWithinAQuarterEitherWay) {
    EXPECT_TRUE(agrees_with_printed(100, 100));
    EXPECT_TRUE(agrees_with_printed(125, 100));
    EXPECT_TRUE(agrees_with_printed(80, 100));
    EXPECT_FALSE(agrees_with_printed(126, 100));
    EXPECT_FALSE(agrees_with_printed(79, 100));
}

TEST(FlowFindings, AreJudgedByWhatWasMeasuredAndNothingElse) {
    Measurements measurements;
    const View view{measurements, "fast", 0};
    const Finding& alike = finding_that("How transfers are told");
    EXPECT_FALSE(alike.judge(view)) << "nothing is measured";
    measurements.at("fast", "basic", 64).streams = {stream(1000)};
    measurements.at("fast", "transfer push", 64).streams = {stream(950)};
    EXPECT_FALSE(alike.judge(view)) << "one of three is missing";
    measurements.at("fast", "transfer pull", 64).streams = {stream(1050)};
    ASSERT_TRUE(alike.judge(view));
    EXPECT_TRUE(alike.judge(view)->agrees);
    measurements.at("fast", "transfer push", 64).streams = {stream(850)};
    EXPECT_FALSE(alike.judge(view)->agrees);

    const Finding& half = finding_that("TN-Push sends about one");
    measurements.at("fast", "transfer push", 64).streams = {stream(1, 0.4), stream(1, 0.5),
                                                            stream(1, 9)};
    EXPECT_TRUE(half.judge(view)->agrees) << "the median of the runs counts";
    measurements.at("fast", "transfer push", 64).streams = {stream(1, 1)};
    EXPECT_FALSE(half.judge(view)->agrees);
}

TEST(FlowFindings, OfTheLinkSayNothingWhereThereIsNone) {
    Measurements measurements;
    for (const std::size_t size : {64, 16384, 65536}) {
        measurements.at("fast", "basic", size).streams = {stream(1e6)};
    }
    const Finding& filled = finding_that("Large items saturate");
    EXPECT_FALSE(filled.judge(View{measurements, "fast", 0}));
    ASSERT_TRUE(filled.judge(View{measurements, "fast", 10'000}));
    EXPECT_TRUE(filled.judge(View{measurements, "fast", 10'000})->agrees);
    EXPECT_FALSE(filled.judge(View{measurements, "fast", 100})->agrees)
        << "small items must not fill it";
}

TEST(FlowRuns, AreTheSameAfterTheyWereKept) {
    StreamResult run = stream(2e6, 0.25);
    run.enqueue_ns = 31.5;
    run.full_ns = 12;
    run.consumer_events = 0.125;
    const StreamResult read = stream_of(nlohmann::json::parse(json_of(run).dump()));
    EXPECT_EQ(read.items, run.items);
    EXPECT_EQ(read.seconds, run.seconds);
    EXPECT_EQ(read.transfer_ratio, 0.25);
    EXPECT_EQ(read.full_ns, 12);
    EXPECT_EQ(json_of(read), json_of(run));
}

TEST(FlowPlan, MeasuresEachPointOnce) {
    FlowOptions options;
    options.modes = {"fast"};
    options.figures = {"6.1", "6.2", "6.3"};
    const auto jobs = plan(options);
    EXPECT_EQ(jobs.size(), 3U * 15U) << "three figures of the same three contestants";
    options.figures = {"6.12"};
    for (const FlowJob& job : plan(options)) EXPECT_TRUE(job.transfer);
    options.figures = {"map"};
    options.quick = true;
    EXPECT_EQ(plan(options).size(), 33U * 2U);
}

TEST(FlowPlan, TakesTheFasterNetworkForTheFiguresThatTheWorkMadeThere) {
    FlowOptions options;
    options.figures = {"6.11"};
    std::set<std::string> modes;
    for (const FlowJob& job : plan(options)) modes.insert(job.mode);
    EXPECT_EQ(modes, (std::set<std::string>{forty_gigabits, "fast"}));
}

TEST(FlowPlan, RefusesWhatItDoesNotKnow) {
    EXPECT_THROW(static_cast<void>(plan({.figures = {"6.13"}})), base::Error);
    EXPECT_THROW(static_cast<void>(plan({.modes = {"wireless"}})), base::Error);
    EXPECT_THROW(static_cast<void>(plan({.repeats = 0})), base::Error);
    EXPECT_THROW(static_cast<void>(plan({.limit = 0})), base::Error);
    EXPECT_THROW(static_cast<void>(plan({.items = 1})), base::Error);
}

class FlowMeasurement : public testing::TestWithParam<const char*> {};

TEST_P(FlowMeasurement, CountsWhatTheDesignPromises) {
    FlowCase chosen;
    chosen.item_bytes = 64;
    chosen.mode = GetParam();
    chosen.items = 10'000;
    chosen.limit = std::chrono::seconds{100};  // the items end it, however slow the machine is
    const StreamResult basic = measure_stream(chosen);
    EXPECT_EQ(basic.items, 10'000U);
    EXPECT_GT(basic.seconds, 0);
    EXPECT_GE(basic.producer_requests, 0.01);
    EXPECT_LT(basic.consumer_requests - basic.consumer_events, 0.1)
        << "a consumer of design 1 posts nothing, but to wake a producer that sleeps in its flush";
    EXPECT_EQ(basic.transfer_ratio, 0) << "marks travel with the items";
    EXPECT_GT(basic.enqueue_ns, 0);
    EXPECT_GT(basic.dequeue_ns, 0);

    chosen.design = contestant_of("push2, pool 64").design;
    const StreamResult push2 = measure_stream(chosen);
    EXPECT_GE(push2.consumer_requests, 0.98) << "a receive for each item";

    for (const char* batched : {"batching", "data mover"}) {
        chosen.design = contestant_of(batched).design;
        const StreamResult result = measure_stream(chosen);
        EXPECT_EQ(result.items, 10'000U) << batched;
        EXPECT_GT(result.producer_requests, 0) << batched;
    }
    chosen.design = ring::design_2;
    EXPECT_GT(measure_transfer(chosen, 128), 0);
    EXPECT_GT(measure_raw_write(chosen, 128), 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, FlowMeasurement, testing::Values("fast", ten_gigabits),
                         [](const auto& each) {
                             return std::string{each.param}.substr(0, 6) == "shaped" ? "Shaped"
                                                                                     : "Fast";
                         });

TEST(FlowUncredited, LosesNoItemOverRcAndTellsOfThoseThatItLosesOverUd) {
    FlowCase chosen;
    chosen.items = 5000;
    chosen.limit = std::chrono::seconds{100};
    chosen.receive_pool = 16;
    const StreamResult reliable = measure_uncredited(chosen, Uncredited::reliable);
    EXPECT_EQ(reliable.items, 5000U);
    EXPECT_EQ(reliable.dropped, 0);
    const StreamResult datagrams = measure_uncredited(chosen, Uncredited::datagrams);
    EXPECT_NEAR(static_cast<double>(datagrams.items), 5000 * (1 - datagrams.dropped), 1e-6);
    EXPECT_EQ(datagrams.retried, 0);
    chosen.item_bytes = 4096;
    EXPECT_THROW((void)measure_uncredited(chosen, Uncredited::datagrams), base::Error);
}

TEST(FlowSocket, StreamsItemsOfEverySize) {
    FlowCase chosen;
    chosen.items = 500;
    for (const std::size_t size : {std::size_t{4}, std::size_t{65536}}) {
        chosen.item_bytes = size;
        EXPECT_EQ(measure_socket_stream(chosen).items, 500U);
    }
    chosen.item_bytes = 4;
    chosen.limit = std::chrono::milliseconds{5};
    EXPECT_GT(measure_socket_transfer(chosen), 0);
}

TEST(FlowReportDocument, HoldsEveryPointOfItsFigures) {
    Measurements measurements;
    FlowReport report;
    report.modes = {"fast"};
    report.figures = {&figure_of("table 6.1")};
    for (const Series& series : report.figures.front()->series) {
        for (const std::size_t size : sizes_of(*report.figures.front())) {
            measurements.at("fast", series.contestant, size).streams = {stream(1e6)};
        }
    }
    const auto document = document_of(report, measurements);
    ASSERT_EQ(document["figures"].size(), 1U);
    const auto& series = document["figures"][0]["series"];
    ASSERT_EQ(series.size(), report.figures.front()->series.size());
    for (const auto& line : series) {
        EXPECT_EQ(line["points"].size(), 15U);
        for (const auto& point : line["points"]) {
            EXPECT_TRUE(point.contains("median"));
            EXPECT_TRUE(point.contains("printed"));
            EXPECT_TRUE(point.contains("agrees"));
        }
    }
    EXPECT_EQ(document["points"].size(), 15U * series.size());
}

}  // namespace
}  // namespace millrace::bench
