// Shared receive queues over any device, and the event of their limit.
#include "millrace/verbs/shared_receive_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <set>

#include "loopback.hpp"
#include "millrace/base/error.hpp"
#include "millrace/verbs/asynchronous_event.hpp"

namespace millrace::verbs::test {
namespace {

using namespace std::chrono_literals;

/// Two connections; what is sent over either is received from one shared receive queue.
class SharedReceives : public testing::Test {
  protected:
    SharedReceives() {
        sends_ = hub_.context.create_completion_queue(32);
        receives_ = hub_.context.create_completion_queue(32);
        for (std::size_t i = 0; i < from_.size(); ++i) {
            from_[i] =
                hub_.domain.create_queue_pair({.send_queue = &sends_, .receive_queue = &sends_});
            to_[i] = hub_.domain.create_queue_pair({.send_queue = &receives_,
                                                    .receive_queue = &receives_,
                                                    .shared_receives = &shared_});
            from_[i].initialise(hub_.port, Access::none);
            to_[i].initialise(hub_.port, Access::none);
            from_[i].connect(address(to_[i]), 77, hub_.path());
            to_[i].connect(address(from_[i]), 77, hub_.path());
        }
    }
    [[nodiscard]] QueuePairAddress address(const QueuePair& queue_pair) const {
        QueuePairAddress result = hub_.address(hub_.a);  // but for the number
        result.number = queue_pair.number();
        return result;
    }
    int receive(std::uint64_t id) {
        const ibv_sge into = memory_.slice(id % 64 * 64, 64);
        return shared_.post(Receive{.id = id, .into = {&into, 1}});
    }
    void send(std::size_t connection) {
        const ibv_sge slice = memory_.slice(4096, 8);
        ASSERT_EQ(from_[connection].post(Send{.from = {&slice, 1}, .flags = SendFlags::signaled}),
                  0);
        const Completion sent = next(sends_);
        ASSERT_TRUE(sent.ok()) << sent.explain();
    }

    Loopback hub_{false};
    SharedReceiveQueue shared_ =
        hub_.domain.create_shared_receive_queue({.max_requests = 16, .max_slices = 1});
    RegisteredBuffer memory_ = hub_.domain.allocate(8192, Access::local_write);
    CompletionQueue sends_;
    CompletionQueue receives_;
    std::array<QueuePair, 2> from_;
    std::array<QueuePair, 2> to_;
};

TEST_F(SharedReceives, ServeEveryQueuePair) {
    for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(receive(id), 0);
    std::set<std::uint64_t> ids;
    for (const std::size_t connection : {0U, 1U, 1U, 0U}) {
        ASSERT_NO_FATAL_FAILURE(send(connection));
        const Completion done = next(receives_);
        ASSERT_TRUE(done.ok()) << done.explain();
        EXPECT_EQ(done.raw.qp_num, to_[connection].number());
        EXPECT_EQ(done.bytes(), 8U);
        ids.insert(done.id());
    }
    EXPECT_EQ(ids, (std::set<std::uint64_t>{1, 2, 3, 4}));
}

TEST_F(SharedReceives, TellOnceThatTheyRunLow) {
    for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(receive(id), 0);
    EXPECT_EQ(shared_.armed_limit(), 0U);
    shared_.arm_limit(3);
    EXPECT_EQ(shared_.armed_limit(), 3U);
    const auto low = [&](std::chrono::nanoseconds limit) {
        // A device may have other things to tell.
        while (const auto event = wait_for_event(hub_.context, limit)) {
            if (event->type != IBV_EVENT_SRQ_LIMIT_REACHED) continue;
            EXPECT_EQ(event->shared_receives, shared_.raw());
            EXPECT_EQ(event->queue_pair, nullptr);
            return true;
        }
        return false;
    };
    const auto one = [&] {
        ASSERT_NO_FATAL_FAILURE(send(0));
        ASSERT_TRUE(next(receives_).ok());
    };
    one();
    EXPECT_FALSE(low(0ns)) << "three are left";
    one();
    EXPECT_TRUE(low(20s)) << "two are left";
    EXPECT_EQ(shared_.armed_limit(), 0U);
    one();
    EXPECT_FALSE(low(0ns)) << "it has been told";
}

TEST_F(SharedReceives, SayWhenTheyAreFull) {
    EXPECT_GE(shared_.capacity(), 16U);
    std::uint64_t posted = 0;  // a device may take some more
    int error = 0;
    while (posted < 65536 && (error = receive(posted)) == 0) ++posted;
    EXPECT_EQ(error, ENOMEM);
    EXPECT_GE(posted, shared_.capacity());
    ASSERT_NO_FATAL_FAILURE(send(1));
    ASSERT_TRUE(next(receives_).ok());
    EXPECT_EQ(receive(99), 0);
}

TEST_F(SharedReceives, BeyondTheDevicesLimitsAreRefusedByName) {
    try {
        static_cast<void>(hub_.domain.create_shared_receive_queue({.max_requests = 1U << 30}));
        FAIL() << "no device has so many";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("create a shared receive queue"));
        EXPECT_THAT(error.what(), testing::HasSubstr("the device allows"));
    }
    try {
        shared_.arm_limit(1U << 20);
        FAIL() << "there is no room for so many";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("limit 1048576"));
    }
}

TEST(AsynchronousEvents, AreNotWaitedForLongerThanAsked) {
    const Context context = find_device().open();
    while (wait_for_event(context, 0ns)) {
    }
    EXPECT_FALSE(wait_for_event(context, 1ms));
}

}  // namespace
}  // namespace millrace::verbs::test
