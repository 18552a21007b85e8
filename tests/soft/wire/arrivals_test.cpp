// What arrives in pieces, without a peer: where it is placed.
#include "wire/arrivals.hpp"

#include <array>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include "fabric/node.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

using roce::Outcome;

EndpointOptions unreliable() {
    EndpointOptions options;
    options.type = IBV_QPT_UC;
    return options;
}

/// Of a queue pair that nobody sends to.
struct Arriving {
    Endpoint end;
    soft::QueuePair& qp = static_cast<soft::QueuePair&>(*end.qp);
    soft::Counters counters;
    soft::Arrivals arrivals{{qp.block, qp.end, counters, qp.owner->process->node(), false}};

    explicit Arriving(const EndpointOptions& options = unreliable()) : end{options} {
        EXPECT_EQ(end.connect(end.qp->qp_num), 0);
    }
    Outcome place(std::uint32_t offset, std::uint8_t value) {
        std::array<std::uint8_t, 8> bytes;
        bytes.fill(value);
        return arrivals.place(offset, bytes);
    }
    Outcome finish(bool is_write, std::uint32_t bytes) {
        roce::Arrival arrival{};
        arrival.is_write = is_write;
        arrival.length = bytes;
        return arrivals.finish(arrival);
    }
    [[nodiscard]] std::uint8_t at(std::size_t offset) const {
        return static_cast<std::uint8_t>(end.memory[offset]);
    }
};

TEST(Arrivals, OfASendGoToItsReceiveAlsoAfterAWriteThatWasNotFinished) {
    Arriving to;
    ASSERT_EQ(to.end.receive(1, 1'000, 16), 0);
    ASSERT_EQ(to.arrivals.begin_write(to.end.mr->rkey, to.end.address(0), 16), Outcome::done);
    ASSERT_EQ(to.place(0, 1), Outcome::done);
    to.arrivals.abandon();
    ASSERT_EQ(to.arrivals.claim(), Outcome::done);
    ASSERT_EQ(to.place(0, 2), Outcome::done);
    ASSERT_EQ(to.place(8, 3), Outcome::done);
    ASSERT_EQ(to.finish(false, 16), Outcome::done);
    EXPECT_EQ(to.at(0), 1);
    EXPECT_EQ(to.at(8), 0);
    EXPECT_EQ(to.at(1'000), 2);
    EXPECT_EQ(to.at(1'008), 3);
    const auto received = to.end.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->wr_id, 1U);
    EXPECT_EQ(received->byte_len, 16U);
}

TEST(Arrivals, OfAWriteLeaveTheReceiveThatALostSendHadClaimed) {
    Arriving to;
    ASSERT_EQ(to.end.receive(1, 1'000, 8), 0);
    ASSERT_EQ(to.arrivals.claim(), Outcome::done);
    to.arrivals.abandon();
    ASSERT_EQ(to.arrivals.begin_write(to.end.mr->rkey, to.end.address(0), 8), Outcome::done);
    ASSERT_EQ(to.place(0, 1), Outcome::done);
    ASSERT_EQ(to.finish(true, 8), Outcome::done);
    EXPECT_FALSE(to.end.poll_once());
    ASSERT_EQ(to.arrivals.claim(), Outcome::done);
    ASSERT_EQ(to.place(0, 2), Outcome::done);
    ASSERT_EQ(to.finish(false, 8), Outcome::done);
    EXPECT_EQ(to.at(0), 1);
    EXPECT_EQ(to.at(1'000), 2);
    EXPECT_TRUE(to.end.complete());
}

TEST(Arrivals, OfAnAtomicAreForLaterWhileAnotherHasTheWord) {
    EndpointOptions options;
    options.shared_memory = false;
    options.access |= IBV_ACCESS_REMOTE_ATOMIC;
    options.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
    Arriving to{options};
    const std::uint32_t key = to.end.mr->rkey;
    soft::AtomicLocks& locks = to.qp.owner->process->node().atomic_locks();
    ASSERT_TRUE(locks.lock(to.end.address(8)));
    EXPECT_FALSE(to.arrivals.lock_word(key, to.end.address(8)));
    locks.unlock(to.end.address(8));
    ASSERT_TRUE(to.arrivals.lock_word(key, to.end.address(8)));
    EXPECT_FALSE(locks.lock(to.end.address(8)));
    to.end.word(8) = 5;
    std::uint64_t original = 0;
    const auto add = roce::Operation::fetch_add;
    EXPECT_EQ(to.arrivals.atomic(add, key, to.end.address(8), 2, 0, original), Outcome::done);
    to.arrivals.unlock_word();
    EXPECT_EQ(original, 5U);
    EXPECT_EQ(to.end.word(8), 7U);
    EXPECT_TRUE(locks.lock(to.end.address(8)));
    locks.unlock(to.end.address(8));
}

TEST(Arrivals, AreCheckedAtEachPiece) {
    Arriving to;
    ASSERT_EQ(to.end.receive(1, 1'000, 8), 0);
    ASSERT_EQ(to.arrivals.claim(), Outcome::done);
    ASSERT_EQ(to.place(0, 1), Outcome::done);
    EXPECT_EQ(to.place(8, 2), Outcome::invalid_request) << "longer than the receive";
    EXPECT_EQ(to.at(1'008), 0);
    ASSERT_EQ(to.arrivals.begin_write(to.end.mr->rkey, to.end.address(0), 16), Outcome::done);
    ASSERT_EQ(to.place(0, 3), Outcome::done);
    ASSERT_EQ(soft::dereg_mr(std::exchange(to.end.mr, nullptr)), 0);
    EXPECT_EQ(to.place(8, 4), Outcome::remote_access) << "the region has gone meanwhile";
    EXPECT_EQ(to.at(8), 0);
}

}  // namespace
}  // namespace millrace::test
