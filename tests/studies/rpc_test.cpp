// The study of requests and responses: every deployment of it answers each request right, and the
// study is complete. How fast is not asked here.
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "bench/rpc/measure_rpc.hpp"
#include "bench/rpc/response_memory.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/rpc/profile.hpp"
#include "studies/framework/study.hpp"
#include "studies/rpc/measure_posting.hpp"
#include "studies/rpc/run_rpc.hpp"
#include "studies/rpc/write_profile.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::bench {
namespace {

class Rpc : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    }
    /// A wrong response throws.
    static void expect_measured(RpcCase chosen) {
        chosen.mode = GetParam();
        chosen.duration = std::chrono::milliseconds{10};
        RpcResult result;
        ASSERT_NO_THROW(result = measure_rpc(chosen));
        EXPECT_GT(result.median_us, 0);
        EXPECT_GE(result.p99_us, result.median_us);
        EXPECT_GT(result.per_second, 0);
        EXPECT_GE(result.empty_percent, 0);
        EXPECT_LE(result.empty_percent, 100);
    }
};

TEST_P(Rpc, IsMeasuredOneToOneInEverySize) {
    // The largest goes in pieces; over a link, which takes its time for them, a smaller one does.
    const std::size_t most = std::string_view{GetParam()} == "fast" ? 4'194'304 : 262'144;
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, most}) {
        expect_measured({.response_bytes = bytes});
    }
}

TEST_P(Rpc, IsMeasuredByEveryCombination) {
    for (const auto requests : {message::Transfer::write, message::Transfer::send}) {
        for (const auto answers : {message::Transfer::write, message::Transfer::send}) {
            for (const std::size_t per_dispatcher : {0U, 3U}) {
                expect_measured({.requests = requests,
                                 .answers = answers,
                                 .response_bytes = 4096,
                                 .requesters = 3,
                                 .per_dispatcher = per_dispatcher});
            }
        }
    }
}

TEST_P(Rpc, IsMeasuredFromManyToOneAndToMany) {
    for (const bool threads : {false, true}) {
        for (const std::size_t per_dispatcher : {0U, 2U}) {
            for (const std::size_t responders : {1U, 3U}) {
                expect_measured({.response_bytes = 1024,
                                 .requesters = 5,
                                 .responders = responders,
                                 .threads = threads,
                                 .per_dispatcher = per_dispatcher});
            }
        }
    }
}

TEST_P(Rpc, IsMeasuredWithThreadsOfRespondersAndOfDispatchers) {
    for (const bool threads : {false, true}) {
        for (const std::size_t per_dispatcher : {0U, 2U}) {
            expect_measured({.response_bytes = 1024,
                             .requesters = 4,
                             .responders = 2,
                             .threads = threads,
                             .dispatcher_threads = per_dispatcher != 0,
                             .responder_threads = true,
                             .per_dispatcher = per_dispatcher});
        }
    }
}

TEST_P(Rpc, CountsPollingInVainToo) {
    const RpcResult result = measure_rpc({.mode = GetParam(), .response_bytes = 4096});
    EXPECT_GT(result.responder_cycles_per_message, 0);
    EXPECT_GT(result.responder_all_cycles_per_message, result.responder_cycles_per_message);
    EXPECT_GT(result.requester_all_cycles_per_byte, result.requester_cycles_per_byte);
    EXPECT_GT(result.responder_cycles_per_vain_look, 0);
}

TEST_P(Rpc, IsMeasuredWithEmptyMailboxes) {
    for (const auto polling : {message::Polling::flag, message::Polling::dense}) {
        expect_measured({.requesters = 10, .idle_percent = 80, .polling = polling});
    }
}

INSTANTIATE_TEST_SUITE_P(Modes, Rpc, testing::Values("fast", "shaped:100g,latency=1us"),
                         [](const auto& each) {
                             const std::string mode = each.param;
                             return mode.substr(0, mode.find(':'));
                         });

TEST(RpcProfile, IsWrittenAsClientsReadIt) {
    if (base::available_cores().size() < 2) GTEST_SKIP() << "pairs need two cores";
    const test::TemporaryFolder folder;
    const std::string file = folder.path("profile");
    EXPECT_EQ(write_profile({.file = file,
                             .modes = {"fast"},
                             .response_bytes = {64},
                             .clients = {1, 2},
                             .repeats = 1}),
              0);
    const rpc::Profile profile = rpc::Profile::load(file);
    EXPECT_EQ(profile.lines().size(), 12U) << "a dispatcher is not for one client";
    for (const rpc::ProfileLine& line : profile.lines()) {
        EXPECT_EQ(line.device, "soft-fast");
        EXPECT_GE(line.p99_ns, line.median_ns);
    }
    EXPECT_THROW((void)write_profile({.file = folder.path("none") + "/profile"}), base::Error);
}

TEST_P(Rpc, IsMeasuredFromMemoryOfEveryKind) {
    for (const Pages pages : {Pages::as_they_come, Pages::small, Pages::huge}) {
        const RpcCase chosen{.response_bytes = 4096,
                             .requesters = 2,
                             .memory_bytes = std::size_t{8} << 20,
                             .pages = pages};
        try {
            const ResponseMemory memory{chosen.memory_bytes, pages};
            EXPECT_EQ(memory.bytes().size(), chosen.memory_bytes);
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::unsupported) << error.what();
            EXPECT_EQ(pages, Pages::huge);
            EXPECT_THROW((void)measure_rpc(chosen), base::Error);
            continue;
        }
        expect_measured(chosen);
    }
}

TEST_P(Rpc, PostsInAThreadDomainAndOutsideOfAny) {
    for (const bool thread_domain : {false, true}) {
        for (const std::size_t at_a_time : {1U, 64U}) {
            EXPECT_GT(measure_posting({.mode = GetParam(),
                                       .thread_domain = thread_domain,
                                       .at_a_time = at_a_time,
                                       .calls = 50}),
                      0);
        }
    }
    EXPECT_THROW((void)measure_posting({.at_a_time = 65}), base::Error);
}

TEST(RpcStudy, TakesNoMoreMemoryThanThereIs) {
    EXPECT_EQ(response_bytes_here(1), std::size_t{64} << 20);
    EXPECT_LT(response_bytes_here(~std::size_t{0}), ~std::size_t{0} / 2);
    bool is_there = false;
    for (const StudyFigure& each : rpc_study(std::size_t{96} << 20).figures) {
        if (each.id == "section 4.2") is_there = each.series.size() <= 2;
    }
    EXPECT_TRUE(is_there);
}

TEST(RpcCase, IsRefusedWhereItMeansNothing) {
    EXPECT_THROW((void)measure_rpc({.response_bytes = 8}), base::Error);
    EXPECT_THROW((void)measure_rpc({.requesters = 0}), base::Error);
    EXPECT_THROW((void)measure_rpc({.responders = 0}), base::Error);
    EXPECT_THROW((void)measure_rpc({.idle_percent = 100}), base::Error);
    EXPECT_THROW((void)measure_rpc({.threads = true, .idle_percent = 50}), base::Error);
}

}  // namespace
}  // namespace millrace::bench
