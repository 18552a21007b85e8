// Moderation of a completion queue's events (ibv_modify_cq), and completion vectors.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <limits>

#include "soft/events.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr std::uint16_t longest = std::numeric_limits<std::uint16_t>::max();  // 66 ms

int moderate(Endpoint& end, std::uint16_t count, std::uint16_t period) {
    ibv_modify_cq_attr attributes{};
    attributes.attr_mask = IBV_CQ_ATTR_MODERATE;
    attributes.moderate = {count, period};
    return ibv_modify_cq(end.cq, &attributes);
}

/// Somebody who is told of the receives that another process completes, and is armed.
struct Told : RemotePair {
    explicit Told(bool blocking = false) : RemotePair{with_events()} {
        if (!blocking) {
            const int flags = fcntl(left.channel->fd, F_GETFL);
            EXPECT_EQ(fcntl(left.channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
        }
        for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(left.receive(i, 64 * i, 64), 0);
        EXPECT_EQ(ibv_req_notify_cq(left.cq, 0), 0);
    }
    void arrives() { EXPECT_EQ(right.ask("send 1 0 8"), "0"); }
};

TEST(Moderation, PutsAnEventOffUntilThereAreEnoughCompletions) {
    Told told;
    ASSERT_EQ(moderate(told.left, 3, longest), 0);
    told.arrives();
    ASSERT_TRUE(is_readable(told.left.channel->fd));
    // Its period begins here.
    EXPECT_FALSE(take_event(told.left));
    EXPECT_EQ(errno, EAGAIN);
    told.arrives();
    EXPECT_TRUE(is_readable(told.left.channel->fd)) << "it is looked at with each completion";
    told.arrives();
    EXPECT_TRUE(is_readable(told.left.channel->fd));
    EXPECT_TRUE(take_event(told.left));
    EXPECT_FALSE(take_event(told.left)) << "one for one arming";
}

TEST(Moderation, GivesTheEventWhenThePeriodIsOverThoughMoreAreMissing) {
    Told told;
    ASSERT_EQ(moderate(told.left, 100, 1000), 0);
    told.arrives();
    static_cast<void>(take_event(told.left));
    bool given = false;
    const base::Deadline patience = base::Deadline::after(std::chrono::seconds{10});
    ASSERT_EQ(ibv_req_notify_cq(told.left.cq, 0), 0);
    told.arrives();
    while (!given && !patience.expired() && is_readable(told.left.channel->fd, 10'000)) {
        given = take_event(told.left);
    }
    EXPECT_TRUE(given);
}

TEST(Moderation, WakesAThreadThatWaits) {
    Told told{true};
    ASSERT_EQ(moderate(told.left, 100, 500), 0);
    told.arrives();
    EXPECT_TRUE(take_event(told.left));
    ASSERT_TRUE(told.left.complete());
    ASSERT_EQ(ibv_req_notify_cq(told.left.cq, 0), 0);
    ASSERT_EQ(moderate(told.left, 2, longest), 0);
    told.arrives();
    told.arrives();
    EXPECT_TRUE(take_event(told.left));
}

TEST(Moderation, IsOffWithoutACountOrAPeriod) {
    for (const auto& [count, period] : {std::pair{0, 1000}, {1, 1000}, {100, 0}}) {
        Told told;
        ASSERT_EQ(moderate(told.left, static_cast<std::uint16_t>(count),
                           static_cast<std::uint16_t>(period)),
                  0);
        told.arrives();
        EXPECT_TRUE(take_event(told.left)) << count << ' ' << period;
    }
}

TEST(Moderation, EndsWhileAnEventIsPutOff) {
    Told told;
    ASSERT_EQ(moderate(told.left, 100, longest), 0);
    told.arrives();
    EXPECT_FALSE(take_event(told.left));
    ASSERT_EQ(moderate(told.left, 0, 0), 0);
    EXPECT_TRUE(is_readable(told.left.channel->fd));
    EXPECT_TRUE(take_event(told.left));
}

TEST(Moderation, PutsNoErrorOff) {
    Told told;
    ASSERT_EQ(moderate(told.left, 100, longest), 0);
    ASSERT_EQ(told.left.to_state(IBV_QPS_ERR), 0);
    EXPECT_TRUE(take_event(told.left));
    EXPECT_EQ(told.left.complete()->status, IBV_WC_WR_FLUSH_ERR);
}

TEST(Moderation, IsAllThatCanBeModified) {
    Endpoint end{with_events()};
    ibv_modify_cq_attr attributes{};
    EXPECT_EQ(ibv_modify_cq(end.cq, &attributes), EINVAL);
    attributes.attr_mask = IBV_CQ_ATTR_MODERATE | 1U << 5;
    errno = 0;
    EXPECT_EQ(ibv_modify_cq(end.cq, &attributes), EINVAL);
    EXPECT_EQ(errno, EINVAL);
    ibv_device_attr_ex device{};
    verbs_context* const extended = verbs_get_ctx(end.context);
    ASSERT_NE(extended, nullptr);
    ASSERT_EQ(extended->query_device_ex(end.context, nullptr, &device, sizeof device), 0);
    EXPECT_EQ(device.cq_mod_caps.max_cq_count, longest);
    EXPECT_EQ(device.cq_mod_caps.max_cq_period, longest);
}

TEST(CompletionVectors, AreAsManyAsProcessors) {
    Endpoint end;
    const int vectors = end.context->num_comp_vectors;
    EXPECT_EQ(vectors, std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
    for (int vector = 0; vector < vectors; ++vector) {
        ibv_cq* const cq = soft::create_cq(end.context, 4, nullptr, nullptr, vector);
        ASSERT_NE(cq, nullptr) << vector;
        EXPECT_EQ(soft::destroy_cq(cq), 0);
    }
    EXPECT_EQ(soft::create_cq(end.context, 4, nullptr, nullptr, vectors), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace millrace::test
