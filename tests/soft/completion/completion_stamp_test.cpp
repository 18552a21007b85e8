// Time stamps say when a completion was written, by whoever wrote it, and not when it was polled.
// Checked by the order of clocks alone: written before the poll that finds it, and after the
// request.
#include "soft/station.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "layout/completion_stamp.hpp"
#include "queue_pair/queue_pair.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

std::uint64_t clock_of(ibv_context* context) {
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(ibv_query_rt_values_ex(context, &values), 0);
    return static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
}

ibv_cq* create_stamped_cq(ibv_context* context) {
    ibv_cq_init_attr_ex attributes{};
    attributes.cqe = 1024;
    attributes.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} |
                          IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                          IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    ibv_cq_ex* const cq = ibv_create_cq_ex(context, &attributes);
    if (cq == nullptr) throw std::runtime_error("cannot create an extended completion queue");
    return ibv_cq_ex_to_cq(cq);
}

/// An endpoint whose completion queue tells times.
struct StampedEndpoint : Endpoint {
    explicit StampedEndpoint(ibv_qp_type type = IBV_QPT_RC) : Endpoint{of_type(type)} {
        EXPECT_EQ(soft::destroy_qp(qp), 0);
        EXPECT_EQ(soft::destroy_cq(cq), 0);
        cq = create_stamped_cq(context);
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.qp_type = type;
        init.cap = {16, 16, 1, 1, 0};
        qp = soft::create_qp(pd, &init);
        if (qp == nullptr) throw std::runtime_error("cannot create a queue pair");
    }
    static EndpointOptions of_type(ibv_qp_type type) {
        EndpointOptions options;
        options.type = type;
        return options;
    }
};

struct StampedPair {
    explicit StampedPair(ibv_qp_type type = IBV_QPT_RC) : left{type}, right{type} {
        EXPECT_EQ(left.connect(right.qp->qp_num), 0);
        EXPECT_EQ(right.connect(left.qp->qp_num), 0);
    }
    StampedEndpoint left;
    StampedEndpoint right;
};

struct StampedStation : Station {
    explicit StampedStation(const StationOptions& chosen = {}) : Station{chosen} {
        EXPECT_EQ(soft::destroy_cq(cq), 0);
        cq = create_stamped_cq(context);
    }
};

/// A completion and its time; `poll_began`: just before the poll that found it or did not yet.
struct Stamped {
    ibv_wc_status status = IBV_WC_GENERAL_ERR;
    ibv_wc_opcode opcode = IBV_WC_SEND;
    std::uint64_t at = 0;
    std::uint64_t wallclock = 0;
    std::uint64_t poll_began = 0;
    std::uint64_t poll_ended = 0;
};

std::optional<Stamped> take(ibv_cq* queue) {
    ibv_cq_ex* const cq = reinterpret_cast<ibv_cq_ex*>(queue);
    ibv_poll_cq_attr none{};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    Stamped one;
    one.poll_began = clock_of(queue->context);
    while (ibv_start_poll(cq, &none) != 0) {
        if (std::chrono::steady_clock::now() > until) return std::nullopt;
    }
    one.status = cq->status;
    one.opcode = ibv_wc_read_opcode(cq);
    one.at = ibv_wc_read_completion_ts(cq);
    one.wallclock = ibv_wc_read_completion_wallclock_ns(cq);
    ibv_end_poll(cq);
    one.poll_ended = clock_of(queue->context);
    return one;
}

/// `post` makes one completion on each of `queues`. On a link, somebody has to have found the time
/// to write it before it is polled: not each time on a busy machine, but one day.
void expect_time_of_writing(std::initializer_list<ibv_cq*> queues, bool at_once,
                            const std::function<void()>& post) {
    std::vector<ibv_cq*> left{queues};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (!left.empty()) {
        ASSERT_LT(std::chrono::steady_clock::now(), until) << "every time is the poll's";
        const std::uint64_t before = clock_of((*queues.begin())->context);
        ASSERT_NO_FATAL_FAILURE(post());
        std::this_thread::sleep_for(std::chrono::milliseconds{at_once ? 1 : 20});
        for (ibv_cq* queue : queues) {
            const auto one = take(queue);
            ASSERT_TRUE(one);
            ASSERT_EQ(one->status, IBV_WC_SUCCESS);
            EXPECT_LE(before, one->at);
            EXPECT_LE(one->at, one->poll_ended);
            EXPECT_GT(one->wallclock, 1'600'000'000'000'000'000U) << "nanoseconds since 1970";
            if (one->at < one->poll_began) {
                std::erase(left, queue);
            } else {
                ASSERT_FALSE(at_once) << "it had been there, and its time is the poll's";
            }
        }
    }
}

class CompletionStamp : public testing::TestWithParam<const char*> {
  protected:
    ModeScope mode_{GetParam()};
    const bool at_once_ = std::string_view{GetParam()} == "fast";
};

TEST_P(CompletionStamp, OfAConnectionSaysWhenItWasWritten) {
    for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
        StampedPair pair{type};
        expect_time_of_writing({pair.left.cq, pair.right.cq}, at_once_, [&] {
            ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
            ASSERT_EQ(pair.left.send(2, 0, 5), 0);
        });
        expect_time_of_writing({pair.left.cq}, at_once_, [&] {
            ASSERT_EQ(pair.left.write(3, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
        });
    }
}

TEST_P(CompletionStamp, OfARequestThatWaitedIsThatOfItsEnd) {
    StampedPair pair;
    expect_time_of_writing({pair.left.cq, pair.right.cq}, at_once_, [&] {
        ASSERT_EQ(pair.left.send(2, 0, 5), 0);
        ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    });
}

TEST_P(CompletionStamp, OfASharedReceiveQueueSaysWhenItWasWritten) {
    StationOptions options;
    options.shared_receives = 8;
    StampedStation left{options};
    StampedStation right{options};
    ibv_qp* const from = left.make(IBV_QPT_RC);
    ibv_qp* const to = right.make(IBV_QPT_RC);
    ASSERT_EQ(left.connect(from, to->qp_num), 0);
    ASSERT_EQ(right.connect(to, from->qp_num), 0);
    expect_time_of_writing({left.cq, right.cq}, at_once_, [&] {
        ASSERT_EQ(right.receive(nullptr, 1, 0, 64), 0);
        ASSERT_EQ(left.send(from, 2, 0, 5), 0);
    });
}

TEST_P(CompletionStamp, OfADatagramSaysWhenItWasWritten) {
    StampedStation left;
    StampedStation right;
    ibv_qp* const from = left.datagram();
    ibv_qp* const to = right.datagram();
    ibv_ah* const ah = left.handle();
    expect_time_of_writing({left.cq, right.cq}, at_once_, [&] {
        ASSERT_EQ(right.receive(to, 1, 0, 128), 0);
        ASSERT_EQ(left.send_to(from, ah, to->qp_num, 2, 0, 5), 0);
    });
}

TEST_P(CompletionStamp, IsWrittenByAPeerInAnotherProcess) {
    StampedEndpoint left;
    RemoteEndpoint right;
    ASSERT_EQ(left.connect(right.qpn), 0);
    ASSERT_EQ(right.ask("connect " + std::to_string(left.qp->qp_num)), "0");
    const auto sent = [&] {  // with a completion there that nobody needs here
        ASSERT_EQ(right.ask("send 1 0 8"), "0");
        ASSERT_EQ(right.ask("complete").substr(0, 4), "1 0 ");
    };
    expect_time_of_writing({left.cq}, at_once_, [&] {
        ASSERT_EQ(left.receive(1, 0, 64), 0);
        sent();
    });
    // A send of ours that waits for a receive, which the peer then executes.
    expect_time_of_writing({left.cq}, at_once_, [&] {
        ASSERT_EQ(left.send(2, 0, 5), 0);
        ASSERT_EQ(right.ask("receive 3 0 64"), "0");
        ASSERT_EQ(right.ask("complete").substr(0, 4), "3 0 ");
    });
}

TEST_P(CompletionStamp, IsThatOfTheSameCompletionForManyInARow) {
    StampedPair pair;
    std::uint64_t last = 0;
    for (int lap = 0; lap < 40; ++lap) {  // of a ring of 16
        const std::uint64_t before = clock_of(pair.right.context);
        for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(pair.right.receive(i, 0, 64), 0);
        for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(pair.left.send(i, 0, 8), 0);
        for (int i = 0; i < 8; ++i) {
            const auto one = take(pair.right.cq);
            ASSERT_TRUE(one);
            EXPECT_LE(last, one->at) << "receives complete in order";
            EXPECT_LE(before, one->at) << "one of an earlier lap";
            last = one->at;
        }
        for (int i = 0; i < 8; ++i) ASSERT_TRUE(take(pair.left.cq));
    }
}

INSTANTIATE_TEST_SUITE_P(InModes, CompletionStamp,
                         testing::Values("fast", "shaped:10g,latency=1us", "strict:seed=7"),
                         [](const auto& param) {
                             const std::string mode{param.param};
                             return mode.substr(0, mode.find(':'));
                         });

TEST(CompletionStampWords, AreNotBelievedOfAnotherEntry) {
    soft::CompletionStamp stamp{};
    EXPECT_FALSE(soft::read_stamp(stamp, soft::first_position)) << "fresh memory";
    EXPECT_FALSE(soft::read_stamp(stamp, 0)) << "fresh memory";
    soft::put_stamp(stamp, 7);
    const auto first = soft::read_stamp(stamp, 7);
    ASSERT_TRUE(first);
    EXPECT_FALSE(soft::read_stamp(stamp, 8));
    EXPECT_FALSE(soft::read_stamp(stamp, 7 + 16)) << "the next lap's";
    // A writer that was interrupted between the two words.
    stamp.time.store(*first + 5);
    EXPECT_FALSE(soft::read_stamp(stamp, 7));
}

TEST(CompletionStampWords, FromTheFutureAreTheClocksOfThePoll) {
    StampedPair pair;
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(2, 0, 5), 0);
    // What a lying peer would write there.
    auto& qp = *static_cast<soft::QueuePair*>(pair.right.qp);
    soft::CompletionStamp& stamp =
        qp.block.receive_stamps[soft::first_position & qp.block.receive_mask];
    const std::uint64_t lie = ~std::uint64_t{0} - 1;
    stamp.time.store(lie);
    stamp.check.store(soft::check_of_stamp(lie, soft::first_position));
    const auto one = take(pair.right.cq);
    ASSERT_TRUE(one);
    EXPECT_LE(one->poll_began, one->at);
    EXPECT_LE(one->at, one->poll_ended);
}

}  // namespace
}  // namespace millrace::test
