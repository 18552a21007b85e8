// What the study of work 002 measures: a server thread for each client, on the work's table too,
// and every operation in a file. How fast is not asked here.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "bench/kv/measure_crowd.hpp"
#include "millrace/base/placement.hpp"
#include "studies/kv/run_kv.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::bench {
namespace {

class KvCrowds : public testing::TestWithParam<connect::Transport> {
  protected:
    void SetUp() override {
        if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    }
};

TEST_P(KvCrowds, AreServedByAThreadForEachClient) {
    for (const auto wait : {base::WaitPolicy::polling(), base::WaitPolicy::blocking()}) {
        const test::TemporaryFolder folder;
        const CrowdResult result = measure_crowd({.clients = 4,
                                                  .wait = wait,
                                                  .transport = GetParam(),
                                                  .table = kv::TableKind::thesis,
                                                  .server_threads = 4,
                                                  .keys = 100,
                                                  .operations = 400,
                                                  .save = folder.path("operations.csv")});
        EXPECT_GT(result.operations_per_second, 0);
        EXPECT_GT(result.server_switches + result.client_switches, 0) << "those of connecting";
        EXPECT_EQ(result.least_to_mean, 1) << "each had its hundred";
        const std::string lines = folder.content("operations.csv");
        EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 401) << lines.substr(0, 200);
    }
}
INSTANTIATE_TEST_SUITE_P(Transports, KvCrowds,
                         testing::Values(connect::Transport::rc, connect::Transport::uc,
                                         connect::Transport::ud, connect::Transport::tcp),
                         [](const auto& of) { return std::string{name_of(of.param)}; });

const StudyFigure* find(const Study& study, const std::string& id) {
    const auto found = std::find_if(study.figures.begin(), study.figures.end(),
                                    [&](const StudyFigure& one) { return one.id == id; });
    return found == study.figures.end() ? nullptr : &*found;
}

TEST(KvStudyOfThreads, HasThisLibrarysServerBesideIt) {
    const Study study = kv_study({.threads = true});
    const StudyFigure* const throughput = find(study, "4.1");
    ASSERT_NE(throughput, nullptr);
    const auto has = [&](const std::string& label) {
        return std::any_of(throughput->series.begin(), throughput->series.end(),
                           [&](const StudySeries& one) { return one.label == label; });
    };
    EXPECT_TRUE(has("UC"));
    EXPECT_TRUE(has("UC, one thread"));
    EXPECT_NE(study.setting.find("oversubscribed from"), std::string::npos) << study.setting;
}

TEST(KvStudyOfCrowds, HasAnyNumberOfClients) {
    const Study study = kv_study({.crowds = {3, 5}, .shown = {7}});
    ASSERT_NE(find(study, "4.1"), nullptr);
    EXPECT_EQ(find(study, "4.1")->xs, (std::vector<std::size_t>{3, 5}));
    ASSERT_NE(find(study, "4.4a"), nullptr);
    EXPECT_NE(find(study, "4.4a")->title.find("7 clients"), std::string::npos);
    EXPECT_EQ(find(study, "4.4b"), nullptr);
    EXPECT_EQ(study.name, "kv");
    EXPECT_EQ(kv_study({.table = kv::TableKind::thesis}).name, "kv-thesis");
}

}  // namespace
}  // namespace millrace::bench
