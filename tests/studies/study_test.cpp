// What all studies share: points are measured, findings judged, figures drawn, failures told; and
// no finding of a work's study asks for what no figure of it has.
#include "studies/framework/study.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/kv/measure_crowd.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/histogram.hpp"
#include "studies/kv/run_kv.hpp"
#include "studies/message/run_message.hpp"
#include "studies/rpc/run_rpc.hpp"
#include "studies/stream/run_stream.hpp"
#include "studies/verbs/run_verbs.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::bench {
namespace {

/// The same judgement, of a run that counted something.
Judge counts_one(Judge judge) {
    return [judge](const StudyView& view) {
        auto verdict = judge(view);
        if (verdict) verdict->counted = "one was counted";
        return verdict;
    };
}

/// A study whose values are known: twice as much by "two" as by "one".
Study known_study() {
    const auto value = [](double factor) {
        return [factor](const std::string&, std::size_t x) {
            if (x == 3) throw base::Error{base::ErrorCode::protocol, "measure", "3", "no", ""};
            return factor * static_cast<double>(x);
        };
    };
    return {.name = "known",
            .work = "nobody",
            .modes = {"fast"},
            .figures = {{.id = "1",
                         .title = "what is known",
                         .quantity = "numbers",
                         .unit = "numbers",
                         .over = "x",
                         .xs = {1, 2, 3},
                         .series = {{"one", value(1)}, {"two", value(2), {1, 2}}}}},
            .findings = {{"1.1", "1", "twice", "2", ratio_between("1", "two", "one", {2, 2})},
                         {"1.2", "1", "half", "0.5",
                          counts_one(ratio_between("1", "two", "one", {0.5, 0.5}))},
                         {"1.3", "1", "unknown", "", ratio_between("2", "two", "one", {0, 1})}}};
}

TEST(Study, JudgesWhatItMeasured) {
    StudyResults results;
    for (const std::size_t x : {std::size_t{1}, std::size_t{2}}) {
        results.values["fast"][{"1", "one", x}] = {static_cast<double>(x)};
        results.values["fast"][{"1", "two", x}] = {static_cast<double>(2 * x)};
    }
    results.failures = {"figure 1, one, 3"};
    const auto document = document_of(known_study(), {}, results);
    ASSERT_EQ(document["findings"].size(), 2U) << "what was not measured is not judged";
    EXPECT_EQ(document["findings"][0]["verdict"], "agrees");
    EXPECT_EQ(document["findings"][0]["measured"], "2 (2 to 2 in 1 run)");
    EXPECT_FALSE(document["findings"][0].contains("counted"));
    EXPECT_EQ(document["findings"][1]["verdict"], "differs");
    EXPECT_EQ(document["findings"][1]["counted"], "one was counted");
    ASSERT_EQ(document["figures"].size(), 1U);
    EXPECT_EQ(document["figures"][0]["series"][1]["points"][1]["median"], 4.0);
    EXPECT_EQ(document["failures"].size(), 1U);
}

Summary runs_of(const std::vector<double>& values) { return summarize(values); }

TEST(Factors, OfAWorkAreJudgedOnBothSides) {
    EXPECT_EQ(name_of(judge_factor(runs_of({9, 10, 11}), 10)), "agrees");
    EXPECT_EQ(name_of(judge_factor(runs_of({6, 6.5, 7}), 10)), "agrees") << "the interval reaches";
    EXPECT_EQ(name_of(judge_factor(runs_of({5, 6, 6.5}), 10)), "differs");
    EXPECT_EQ(name_of(judge_factor(runs_of({0.5, 0.5, 0.5}), 10)), "differs");
    EXPECT_EQ(name_of(judge_factor(runs_of({14, 15, 16}), 10)), "agrees");
    EXPECT_EQ(name_of(judge_factor(runs_of({430, 436, 440}), 30)), "stronger");
    EXPECT_EQ(judge_factor(runs_of({9, 10, 12}), 8).measured, "10 (9 to 12 in 3 runs), the work 8");
}

TEST(Ratios, AreJudgedOnBothSides) {
    const auto verdict = [](const std::vector<double>& values, Range allowed) {
        return name_of(judge_ratio(runs_of(values), allowed));
    };
    // About twice.
    EXPECT_EQ(verdict({1.9, 2, 2.1}, {1.6, 2.5}), "agrees");
    EXPECT_EQ(verdict({94, 94.5, 95}, {1.6, 2.5}), "stronger");
    EXPECT_EQ(verdict({1, 1.1, 1.2}, {1.6, 2.5}), "differs");
    EXPECT_EQ(verdict({2.4, 3, 4}, {1.6, 2.5}), "agrees") << "the interval reaches";
    // About half, and less than a half.
    EXPECT_EQ(verdict({0.1, 0.1, 0.1}, {0.4, 0.6}), "stronger");
    EXPECT_EQ(verdict({0.9, 0.9, 0.9}, {0.4, 0.6}), "differs");
    EXPECT_EQ(verdict({0.1, 0.1, 0.1}, {0, 0.6}), "agrees");
    // Alike: nothing is more so.
    EXPECT_EQ(verdict({0.5, 0.5, 0.5}, {0.9, 1.1}), "differs");
    EXPECT_EQ(verdict({2, 2, 2}, {0.9, 1.1}), "differs");
    // More.
    EXPECT_EQ(verdict({400, 400, 400}, {1.05}), "agrees");
    EXPECT_EQ(verdict({1, 1, 1}, {1.05}), "differs");
}

TEST(Verdicts, NameWhatWasCountedOrNoReason) {
    EXPECT_EQ(explanation_of({.agrees = true, .counted = "three"}), "");
    EXPECT_EQ(explanation_of({}), "not explained");
    EXPECT_EQ(explanation_of({.counted = "three"}), "not explained; three");
}

TEST(Runs, AreSummedUpOneByOne) {
    const Summary summary = summarize_by_run({{1, 2}, {3, 4}, {5}});
    EXPECT_EQ(summary.rounds, 2);
    EXPECT_EQ(summary.least, 3) << "of both points that have a second run, and of all three";
    EXPECT_EQ(summary.most, 3);
    EXPECT_EQ(summarize_by_run({}).rounds, 0);
    EXPECT_EQ(divided({6, 1, 8}, {3, 0}), (std::vector<double>{2}));
}

TEST(Factors, AreTakenRunByRun) {
    StudyView::Values values;
    values[{"f", "one", 1}] = {10, 30, 20};
    values[{"f", "other", 1}] = {5, 10, 5, 7};
    const StudyView view{values};
    const auto ratios = view.ratios({"f", "one", 1}, {"f", "other", 1});
    ASSERT_TRUE(ratios.has_value());
    EXPECT_EQ(ratios->median, 3);
    EXPECT_EQ(ratios->rounds, 3);
    EXPECT_EQ(view.ratios({"f", "one", 1}, {"f", "one", 2}), std::nullopt);
}

TEST(Study, KeepsClaimsThatGoOnFromOneAnotherTogether) {
    struct Claimed {
        std::string claim;
    };
    struct Judged {
        const Claimed* finding;
        StudyVerdict verdict;
    };
    const Claimed one{"one"};
    const Claimed more{"... and more"};
    const Claimed other{"other"};
    const StudyVerdict agrees{.agrees = true};
    std::vector<Judged> list{{&other, agrees}, {&one, agrees}, {&more, {}}, {&other, {}}};
    put_disagreements_first(list);
    std::string order;
    for (const Judged& each : list) order += each.finding->claim + "; ";
    EXPECT_EQ(order, "one; ... and more; other; other; ");
    EXPECT_FALSE(list[2].verdict.agrees);
}

TEST(Study, PrintsDisagreementsFirst) {
    testing::internal::CaptureStdout();
    (void)run_study(known_study(), {.repeats = 1});
    const std::string told = testing::internal::GetCapturedStdout();
    const auto differs = told.find("differs  1.2");
    const auto agrees = told.find("agrees   1.1");
    ASSERT_NE(differs, std::string::npos) << told;
    ASSERT_NE(agrees, std::string::npos) << told;
    EXPECT_LT(differs, agrees);
}

TEST(Study, TellsOfPointsThatFailed) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_study(known_study(), {.repeats = 2}), 1);
    const std::string told = testing::internal::GetCapturedStdout();
    EXPECT_NE(told.find("not measured: figure 1, one, 3"), std::string::npos) << told;
    EXPECT_NE(told.find("agrees"), std::string::npos) << told;
}

TEST(Study, MeasuresAllButCurvesInFullThoughItIsQuickAndDrawsEachShape) {
    std::map<std::string, std::size_t> measured;
    Study study{.name = "shapes", .work = "none", .modes = {"fast"}, .figures = {}, .findings = {}};
    for (const StudyShape shape :
         {StudyShape::curves, StudyShape::distribution, StudyShape::boxes, StudyShape::table}) {
        const std::string id{name_of(shape)};
        StudyFigure figure{id, "a " + id, "us", "us", "x", {50, 250, 500, 750, 950}, {}};
        figure.shape = shape;
        figure.series.push_back({"one", [&measured, id](const std::string&, std::size_t x) {
                                     ++measured[id];
                                     return static_cast<double>(x);
                                 }});
        study.figures.push_back(figure);
    }
    const test::TemporaryFolder folder;
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_study(study, {.plots = folder.path("plots"), .quick = true}), 0);
    const std::string told = testing::internal::GetCapturedStdout();
    EXPECT_EQ(measured, (std::map<std::string, std::size_t>{
                            {"curves", 3}, {"distribution", 5}, {"boxes", 5}, {"table", 5}}));
    EXPECT_NE(told.find("a table, us"), std::string::npos) << told;
    EXPECT_EQ(told.find("a distribution, us"), std::string::npos) << "it is for plots: " << told;
    EXPECT_NE(folder.content("plots/shapes.json").find("\"shape\": \"boxes\""), std::string::npos);
    const std::string lines = folder.content("plots/shapes.csv");
    EXPECT_TRUE(
        lines.starts_with("figure,mode,series,over,x,unit,median,least,most\n"
                          "curves,fast,one,x,50,us,50,50,50\n"))
        << lines;
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1 + 3 + 5 + 5 + 5);
    // The interpreter of the system has it, if another one stands before that.
    if (std::system("python3 -c 'import matplotlib' 2> /dev/null") != 0 &&
        std::system("/usr/bin/python3 -c 'import matplotlib' 2> /dev/null") != 0) {
        GTEST_SKIP() << "no matplotlib to draw with";
    }
    for (const char* drawn : {"curves", "distribution", "boxes"}) {
        EXPECT_FALSE(folder.content(fmt::format("plots/shapes-{}-fast.svg", drawn)).empty())
            << drawn;
    }
    EXPECT_TRUE(folder.content("plots/shapes-table-fast.svg").empty());
}

TEST(Crowd, TellsHowItsLatenciesAreSpread) {
    const auto times = std::make_shared<base::Histogram>();
    for (std::uint64_t us = 1; us <= 1000; ++us) times->record(us * 1000);
    CrowdResult result;
    EXPECT_EQ(result.quantile_us(500), 0) << "nothing was measured";
    result.latencies = times;
    EXPECT_NEAR(result.quantile_us(500), 500, 10);
    EXPECT_NEAR(result.interquartile_us(), 500, 20);
    EXPECT_NEAR(result.deviation_us(), 288.7, 10);
}

/// A study of points 1 to 4, which counts what it measures; at `end` it is over, by `how`.
Study ending_study(std::map<std::size_t, int>& measured, std::size_t end, void (*how)()) {
    Study study{.name = "ending", .work = "none", .modes = {"fast"}, .figures = {}, .findings = {}};
    StudyFigure figure{"1", "it", "us", "us", "x", {1, 2, 3, 4}, {}};
    figure.series.push_back({"one", [&measured, end, how](const std::string&, std::size_t x) {
                                 if (x == end) how();
                                 ++measured[x];
                                 return 10.0 * static_cast<double>(x);
                             }});
    study.figures.push_back(figure);
    return study;
}
struct Interrupted {};
void interrupt() { throw Interrupted{}; }
constexpr std::size_t never = 0;

TEST(StudyPoints, AreKeptUntilAllAreMeasured) {
    const test::TemporaryFolder folder;
    const std::string points = folder.path("new/ending.points");
    std::map<std::size_t, int> measured;
    StudyOptions options{.json = {folder.path("it.json")}, .repeats = 2, .points = points};
    testing::internal::CaptureStdout();
    EXPECT_THROW((void)run_study(ending_study(measured, 3, interrupt), options), Interrupted);
    EXPECT_EQ(measured, (std::map<std::size_t, int>{{1, 2}, {2, 2}}));
    measured.clear();
    options.resume = true;
    EXPECT_THROW((void)run_study(ending_study(measured, 4, interrupt), options), Interrupted);
    EXPECT_EQ(measured, (std::map<std::size_t, int>{{3, 2}})) << "the others were there";
    measured.clear();
    EXPECT_EQ(run_study(ending_study(measured, never, interrupt), options), 0);
    (void)testing::internal::GetCapturedStdout();
    EXPECT_EQ(measured, (std::map<std::size_t, int>{{4, 2}}));
    const auto document = nlohmann::json::parse(folder.content("it.json"));
    const auto& all = document["figures"][0]["series"][0]["points"];
    ASSERT_EQ(all.size(), 4U);
    EXPECT_EQ(all[1]["median"], 20.0) << "as it was measured by the first";
    EXPECT_FALSE(std::filesystem::exists(points)) << "it is over";
    EXPECT_THROW((void)run_study(ending_study(measured, never, interrupt), options), base::Error)
        << "nothing to go on with";
}

TEST(StudyPoints, OfOtherSettingsAreNotGoneOnWith) {
    const test::TemporaryFolder folder;
    std::map<std::size_t, int> measured;
    StudyOptions options{.repeats = 2, .points = folder.path("ending.points")};
    EXPECT_THROW((void)run_study(ending_study(measured, 2, interrupt), options), Interrupted);
    options.resume = true;
    options.repeats = 3;
    try {
        (void)run_study(ending_study(measured, never, interrupt), options);
        FAIL() << "it went on";
    } catch (const base::Error& error) {
        EXPECT_NE(std::string{error.what()}.find("repeats 2, here 3"), std::string::npos)
            << error.what();
    }
}

TEST(StudyPoints, OfATornLineAreMeasuredAgain) {
    const test::TemporaryFolder folder;
    std::map<std::size_t, int> measured;
    StudyOptions options{.repeats = 1, .points = folder.path("ending.points")};
    EXPECT_THROW((void)run_study(ending_study(measured, 4, interrupt), options), Interrupted);
    const std::string whole = folder.content("ending.points");
    std::filesystem::resize_file(options.points, whole.size() - 5);
    measured.clear();
    options.resume = true;
    testing::internal::CaptureStdout();
    EXPECT_THROW((void)run_study(ending_study(measured, 4, interrupt), options), Interrupted);
    EXPECT_EQ(measured, (std::map<std::size_t, int>{{3, 1}}));
    measured.clear();
    EXPECT_EQ(run_study(ending_study(measured, never, interrupt), options), 0);
    (void)testing::internal::GetCapturedStdout();
    EXPECT_EQ(measured, (std::map<std::size_t, int>{{4, 1}})) << "the torn line hides no other one";
}

TEST(StudyPointsDeathTest, AreSpokenOfBySignals) {
    const test::TemporaryFolder folder;
    std::map<std::size_t, int> measured;
    const StudyOptions options{.repeats = 1, .points = folder.path("ending.points")};
    EXPECT_EXIT(
        (void)run_study(ending_study(measured, 3, [] { (void)std::raise(SIGINT); }), options),
        testing::KilledBySignal(SIGINT), "--resume goes on with it");
    EXPECT_NE(folder.content("ending.points").find("figure 1, one, 2, fast"), std::string::npos);
}

TEST(Study, RefusesWhatItHasNot) {
    EXPECT_THROW((void)run_study(known_study(), {.figures = {"7"}}), base::Error);
    EXPECT_THROW((void)run_study(known_study(), {.modes = {"slow"}}), base::Error);
    EXPECT_THROW((void)run_study(known_study(), {.repeats = 0}), base::Error);
}

void expect_that_every_finding_is_judged(const Study& study) {
    StudyResults results;
    for (const StudyFigure& figure : study.figures) {
        for (const StudySeries& series : figure.series) {
            for (const std::size_t x : series.xs.empty() ? figure.xs : series.xs) {
                results.values["fast"][{figure.id, series.label, x}] = {1.0};
            }
        }
    }
    EXPECT_EQ(document_of(study, {.modes = {"fast"}}, results)["findings"].size(),
              study.findings.size())
        << "a finding asks for a curve that no figure has";
}
TEST(VerbsStudy, JudgesEveryFigureByCurvesThatItHas) {
    expect_that_every_finding_is_judged(verbs_study());
}
TEST(MessageStudy, JudgesEveryFigureByCurvesThatItHas) {
    expect_that_every_finding_is_judged(message_study());
}
TEST(KvStudy, JudgesEveryFigureByCurvesThatItHas) {
    for (const bool threads : {false, true}) {
        expect_that_every_finding_is_judged(kv_study({.threads = threads}));
    }
}
TEST(StreamStudy, JudgesEveryFigureByCurvesThatItHas) {
    expect_that_every_finding_is_judged(stream_study());
}
TEST(StreamStudy, ShowsOneProtocolAloneWhereItIsAskedTo) {
    const auto curves = [](const Study& study) {
        std::set<std::string> labels;
        for (const StudyFigure& figure : study.figures) {
            for (const StudySeries& one : figure.series) labels.insert(one.label);
        }
        return labels;
    };
    const auto published = curves(stream_study(stream::Protocol::published));
    EXPECT_TRUE(published.contains("published") && published.contains("16 KiB, published"));
    EXPECT_FALSE(published.contains("dynamic") || published.contains("16 KiB"));
    const auto both = curves(stream_study());
    EXPECT_TRUE(both.contains("published") && both.contains("dynamic"));
}
TEST(RpcStudy, JudgesEveryFigureByCurvesThatItHas) {
    expect_that_every_finding_is_judged(rpc_study());
}

}  // namespace
}  // namespace millrace::bench
