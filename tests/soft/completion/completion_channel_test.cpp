// Completion channels: a descriptor for poll and epoll, and events neither lost nor made up.
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "millrace/base/detail/system_calls.hpp"
#include "soft/events.hpp"
#include "soft/remote_endpoint.hpp"
#include "support/resources.hpp"
#include "system/fences.hpp"

namespace millrace::test {
namespace {

TEST(CompletionChannel, IsReadableAfterACompletionIfArmed) {
    Pair pair{{}, with_events()};
    do_not_block(pair.right.channel->fd);
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    EXPECT_FALSE(is_readable(pair.right.channel->fd)) << "not armed";
    ASSERT_TRUE(pair.right.complete());

    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    EXPECT_FALSE(is_readable(pair.right.channel->fd));
    EXPECT_FALSE(take_event(pair.right));
    EXPECT_EQ(errno, EAGAIN);
    ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
    ASSERT_EQ(pair.left.send(2, 0, 8), 0);
    EXPECT_TRUE(is_readable(pair.right.channel->fd));
    EXPECT_TRUE(take_event(pair.right));
    EXPECT_FALSE(is_readable(pair.right.channel->fd)) << "one event for one arming";
    EXPECT_FALSE(take_event(pair.right));
}

TEST(CompletionChannel, GivesTheEventEvenIfTheCompletionWasPolledMeanwhile) {
    Pair pair{{}, with_events()};
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    ASSERT_TRUE(pair.right.complete());
    ASSERT_TRUE(is_readable(pair.right.channel->fd));
    EXPECT_TRUE(take_event(pair.right)) << "a readable channel must not block";
}

TEST(CompletionChannel, WaitsForASolicitedCompletionIfAskedTo) {
    Pair pair{{}, with_events()};
    do_not_block(pair.right.channel->fd);
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 1), 0);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    EXPECT_FALSE(is_readable(pair.right.channel->fd));
    EXPECT_FALSE(take_event(pair.right));
    ASSERT_EQ(pair.left.send(2, 0, 8, IBV_SEND_SOLICITED), 0);
    EXPECT_TRUE(is_readable(pair.right.channel->fd));
    EXPECT_TRUE(take_event(pair.right));
}

TEST(CompletionChannel, GivesAnEventForErrors) {
    Pair pair{{}, with_events()};
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 1), 0);
    ASSERT_EQ(pair.right.to_state(IBV_QPS_ERR), 0);
    ASSERT_TRUE(is_readable(pair.right.channel->fd));
    EXPECT_TRUE(take_event(pair.right));
    const auto flushed = pair.right.poll_once();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
}

// As perftest does with -b -e: it arms, takes a bounded number of completions, and waits.
TEST(CompletionChannel, DoesNotLetAProgramSleepBesideCompletionsThatItHasNotPolled) {
    Pair pair{{}, with_events()};
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.right.receive(id, 0, 64), 0);
        ASSERT_EQ(pair.left.send(id, 0, 8), 0);
    }
    alarm(40);  // ends a test that has failed
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
        EXPECT_TRUE(take_event(pair.right)) << "nothing new will come";
        const auto one = pair.right.poll_once();
        ASSERT_TRUE(one);
        EXPECT_EQ(one->wr_id, id);
    }
    // Flushed requests are made when they are polled, and are there likewise.
    ASSERT_EQ(pair.right.receive(7, 0, 64), 0);
    ASSERT_EQ(pair.right.receive(8, 0, 64), 0);
    ASSERT_EQ(pair.right.to_state(IBV_QPS_ERR), 0);
    for (std::uint64_t id = 7; id < 9; ++id) {
        ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
        EXPECT_TRUE(take_event(pair.right));
        const auto one = pair.right.poll_once();
        ASSERT_TRUE(one);
        EXPECT_EQ(one->wr_id, id);
    }
    alarm(0);
}

// As UCX sleeps: it arms, asks for an event once, and waits for the descriptor, without a poll in
// between.
TEST(CompletionChannel, IsReadableForWhatWasNotPolledWhenItWasArmed) {
    for (const bool bare : {false, true}) {
        EndpointOptions options = with_events();
        options.events_only = bare;
        Pair pair{{}, options};
        if (!bare) do_not_block(pair.right.channel->fd);
        for (std::uint64_t id = 0; id < 2; ++id) {
            ASSERT_EQ(pair.right.receive(id, 0, 64), 0);
            ASSERT_EQ(pair.left.send(id, 0, 8), 0);
        }
        for (int polled = 0; polled < 2; ++polled) {
            ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
            EXPECT_TRUE(is_readable(pair.right.channel->fd)) << polled;
            EXPECT_TRUE(take_event(pair.right)) << polled;
            EXPECT_FALSE(is_readable(pair.right.channel->fd)) << "one event for one arming";
            ASSERT_TRUE(pair.right.poll_once());
        }
        ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
        EXPECT_FALSE(is_readable(pair.right.channel->fd)) << "all has been polled";
        EXPECT_FALSE(take_event(pair.right));
    }
}

TEST(CompletionChannel, ArmedForSolicitedOnesOwesNothingForOthersThatWereNotPolled) {
    Pair pair{{}, with_events()};
    do_not_block(pair.right.channel->fd);
    for (std::uint64_t id = 0; id < 2; ++id) ASSERT_EQ(pair.right.receive(id, 0, 64), 0);
    ASSERT_EQ(pair.left.send(0, 0, 8), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 1), 0);
    EXPECT_FALSE(is_readable(pair.right.channel->fd));
    EXPECT_FALSE(take_event(pair.right));
    ASSERT_EQ(pair.left.send(1, 0, 8, IBV_SEND_SOLICITED), 0);
    EXPECT_TRUE(take_event(pair.right));
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 1), 0);
    EXPECT_TRUE(is_readable(pair.right.channel->fd));
    EXPECT_TRUE(take_event(pair.right)) << "the second one is there still";
}

// Flushed requests are made when they are polled. Of UD, their receives are a pool's.
TEST(CompletionChannel, IsReadableForWhatIsStillToBeFlushedWhenItIsArmed) {
    for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UD}) {
        EndpointOptions options = with_events();
        options.type = type;
        Endpoint end{options};
        do_not_block(end.channel->fd);
        ASSERT_EQ(end.to_init(), 0);
        for (std::uint64_t id = 0; id < 2; ++id) ASSERT_EQ(end.receive(id, 0, 64), 0);
        ASSERT_EQ(end.to_state(IBV_QPS_ERR), 0);
        for (std::uint64_t id = 0; id < 2; ++id) {
            ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
            EXPECT_TRUE(is_readable(end.channel->fd)) << type << ' ' << id;
            EXPECT_TRUE(take_event(end)) << type << ' ' << id;
            ASSERT_TRUE(end.poll_once());
        }
        ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
        EXPECT_FALSE(is_readable(end.channel->fd)) << type;
    }
}

/// How many descriptors the first event takes that an end here raises at one of another process,
/// which is connected `first`, or behind the one here.
std::size_t descriptors_of_first_ring(bool first) {
    RemoteEndpoint right{{"events"}};
    Endpoint left;
    const auto connect_right = [&] {
        EXPECT_EQ(right.ask("connect " + std::to_string(left.qp->qp_num)), "0");
    };
    if (first) connect_right();
    EXPECT_EQ(left.connect(right.qpn), 0);
    if (!first) connect_right();
    EXPECT_EQ(right.ask("receive 1 0 64"), "0");
    EXPECT_EQ(right.ask("notify 0"), "0");
    const std::size_t before = open_descriptors();
    EXPECT_EQ(left.send(1, 0, 8), 0);
    EXPECT_EQ(right.ask("event"), "waiting");
    EXPECT_EQ(right.child.read_line(), "event");
    return open_descriptors() - before;
}

TEST(CompletionChannel, IsKnownToTheEndThatConnectsLastBeforeThatRings) {
    EXPECT_EQ(descriptors_of_first_ring(true), 0U);
}

// Whoever accepts thousands need not have the bells of those that never sleep.
TEST(CompletionChannel, IsNotOpenedByTheEndThatConnectsFirstBeforeThatRings) {
    EXPECT_GT(descriptors_of_first_ring(false), 0U);
}

TEST(CompletionChannel, LetsAProgramSleepThatHasNotPolledWhatItDoesNotWaitFor) {
    Pair pair{{}, with_events()};
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 1), 0);
    std::atomic<bool> sent{false};
    std::jthread sender{[&] {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});  // time for it to go wrong
        sent = true;
        EXPECT_EQ(pair.left.send(2, 0, 8, IBV_SEND_SOLICITED), 0);
    }};
    EXPECT_TRUE(take_event(pair.right));
    EXPECT_TRUE(sent);
}

TEST(CompletionChannel, TakesAnEventThatIsThereWithTwoSystemCalls) {
    Pair pair{{}, with_events()};
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    const std::uint64_t before = base::system_calls_of_this_thread();
    ASSERT_TRUE(take_event(pair.right));
    EXPECT_LE(base::system_calls_of_this_thread() - before, 2U) << "look, and empty the bell";
}

TEST(CompletionChannel, CountsTheSystemCallsOfWaitingArmingAndRinging) {
    Pair pair{{}, with_events()};
    do_not_block(pair.right.channel->fd);
    const auto spent = [](auto&& action) {
        const std::uint64_t before = base::system_calls_of_this_thread();
        action();
        return base::system_calls_of_this_thread() - before;
    };
    EXPECT_GE(spent([&] { EXPECT_FALSE(take_event(pair.right)); }), 1U);
    EXPECT_GE(spent([&] { ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0); }), 1U);
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    EXPECT_EQ(spent([&] { ASSERT_EQ(pair.left.send(1, 0, 8), 0); }), 1U) << "the bell";
    ASSERT_EQ(pair.right.receive(2, 0, 64), 0);
    EXPECT_EQ(spent([&] { ASSERT_EQ(pair.left.send(2, 0, 8), 0); }), 0U) << "rings already";
}

/// An event of a message of 8 B, from arming to the poll behind it. How many system calls the
/// arming was.
std::uint64_t system_calls_of_arming_for_an_event(Pair& pair) {
    const std::uint64_t before = base::system_calls_of_this_thread();
    EXPECT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    const std::uint64_t calls = base::system_calls_of_this_thread() - before;
    EXPECT_EQ(pair.right.receive(1, 0, 64), 0);
    EXPECT_EQ(pair.left.send(1, 0, 8), 0);
    EXPECT_TRUE(take_event(pair.right));
    EXPECT_TRUE(pair.right.complete());
    EXPECT_TRUE(pair.left.complete());
    return calls;
}

TEST(CompletionChannel, LeavesTheFenceToWhoCompletesWhereItIsArmedAgainAndAgain) {
    if (!soft::register_for_membarrier()) GTEST_SKIP() << "no membarrier: everybody fences anyway";
    Pair pair{{}, with_events()};
    EXPECT_EQ(system_calls_of_arming_for_an_event(pair), 1U);
    EXPECT_EQ(system_calls_of_arming_for_an_event(pair), 1U) << "from here on";
    for (int i = 0; i < 100; ++i) EXPECT_EQ(system_calls_of_arming_for_an_event(pair), 0U) << i;

    // Whoever only polls takes it back.
    for (int i = 0; i < 400; ++i) {
        ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
        ASSERT_EQ(pair.left.send(1, 0, 8), 0);
        ASSERT_TRUE(pair.right.complete());
        ASSERT_TRUE(pair.left.complete());
    }
    EXPECT_EQ(system_calls_of_arming_for_an_event(pair), 1U) << "seldom, with 400 between them";
    EXPECT_EQ(system_calls_of_arming_for_an_event(pair), 1U) << "from here on again";
    EXPECT_EQ(system_calls_of_arming_for_an_event(pair), 0U);
}

TEST(CompletionChannel, NamesWhichOfItsQueuesHasSomething) {
    Endpoint end{with_events()};
    do_not_block(end.channel->fd);
    int first_context = 1;
    int second_context = 2;
    ibv_cq* first = soft::create_cq(end.context, 8, &first_context, end.channel, 0);
    ibv_cq* second = soft::create_cq(end.context, 8, &second_context, end.channel, 0);
    EXPECT_EQ(soft::destroy_comp_channel(end.channel), EBUSY);
    ibv_qp_init_attr init{};
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 4, 1, 1, 0};
    init.send_cq = first;
    init.recv_cq = second;
    ASSERT_EQ(soft::destroy_qp(end.qp), 0);
    end.qp = soft::create_qp(end.pd, &init);
    ASSERT_NE(end.qp, nullptr);
    ASSERT_EQ(end.connect(end.qp->qp_num), 0);
    ASSERT_EQ(ibv_req_notify_cq(first, 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(second, 0), 0);
    ASSERT_EQ(end.receive(1, 0, 8), 0);
    ASSERT_EQ(end.send(2, 8, 8), 0);
    std::vector<void*> seen;
    for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(is_readable(end.channel->fd)) << i;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(soft::get_cq_event(end.channel, &cq, &context), 0);
        EXPECT_EQ(context, cq == first ? &first_context : &second_context);
        seen.push_back(context);
        soft::ack_cq_events(cq, 1);
    }
    EXPECT_NE(seen[0], seen[1]);
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    EXPECT_EQ(soft::get_cq_event(end.channel, &cq, &context), -1);
    EXPECT_EQ(soft::destroy_cq(first), EBUSY);
    ASSERT_EQ(soft::destroy_qp(end.qp), 0);
    end.qp = nullptr;
    EXPECT_EQ(soft::destroy_cq(first), 0);
    EXPECT_EQ(soft::destroy_cq(second), 0);
}

TEST(CompletionChannel, DestroyingAQueueWaitsForItsAcknowledgements) {
    Pair pair{{}, with_events()};
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 8), 0);
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(soft::get_cq_event(pair.right.channel, &cq, &context), 0);
    ASSERT_EQ(soft::destroy_qp(pair.right.qp), 0);
    pair.right.qp = nullptr;
    std::atomic<bool> acknowledged{false};
    std::thread late{[&] {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
        acknowledged = true;
        soft::ack_cq_events(cq, 1);
    }};
    EXPECT_EQ(soft::destroy_cq(cq), 0);
    EXPECT_TRUE(acknowledged);
    pair.right.cq = nullptr;
    late.join();
}

TEST(CompletionChannel, WakesAcrossProcesses) {
    RemotePair pair{{}, {"events"}};
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(pair.right.ask("receive 1 0 64"), "0");
        ASSERT_EQ(pair.right.ask("notify 0"), "0");
        ASSERT_EQ(pair.right.ask("event"), "waiting");
        ASSERT_EQ(pair.left.send(1, 0, 8), 0);
        ASSERT_TRUE(pair.left.complete());
        ASSERT_EQ(pair.right.child.read_line(), "event");
        ASSERT_EQ(pair.right.ask("poll"), "1 0 8");
    }
}

TEST(CompletionChannel, WakesTheSenderWhenTheReceiverRunsItsSend) {
    RemotePair pair{with_events()};
    ASSERT_EQ(pair.left.send(1, 0, 8), 0) << "no receive yet";
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    EXPECT_FALSE(is_readable(pair.left.channel->fd));
    ASSERT_EQ(pair.right.ask("receive 1 0 64"), "0");
    EXPECT_TRUE(is_readable(pair.left.channel->fd));
    EXPECT_TRUE(take_event(pair.left));
    ASSERT_TRUE(pair.left.poll_once());
}

TEST(CompletionChannel, ATimerWakesTheSenderWhoseRetriesAreExhausted) {
    EndpointOptions options = with_events();
    options.rnr_retry = 3;
    EndpointOptions slow;
    slow.min_rnr_timer = 22;  // 20.48 ms
    for (int tries = 0; tries < 20; ++tries) {
        Pair pair{options, slow};
        ASSERT_EQ(pair.left.send(1, 0, 8), 0);
        ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
        if (pair.left.poll_once()) continue;  // this thread came late: there was time for all
        ASSERT_TRUE(take_event(pair.left)) << "blocks until the timer";
        const auto done = pair.left.poll_once();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->status, IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    FAIL() << "its retries were over before it slept";
}

TEST(CompletionChannel, WakesWhenThePeerDies) {
    RemotePair pair{with_events()};
    ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.left.cq, 0), 0);
    pair.right.child.kill_and_wait();
    ASSERT_TRUE(take_event(pair.left)) << "blocks until the death is noticed";
    const auto flushed = pair.left.poll_once();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
}

// An event loop on one side, a burst sender on the other: an event that is lost leaves it asleep.
MILLRACE_CHILD(soft_event_loop) {
    Endpoint end{with_events()};
    say(std::to_string(end.qp->qp_num));
    const auto peer = static_cast<std::uint32_t>(std::stoul(hear().value()));
    const int messages = std::stoi(arguments.at(0));
    if (end.to_init() != 0) return 2;
    for (int i = 0; i < 16; ++i) {
        if (end.receive(0, 0, 64) != 0) return 3;
    }
    if (end.to_rtr(peer) != 0 || end.to_rts() != 0) return 4;
    if (ibv_req_notify_cq(end.cq, 0) != 0) return 5;
    say("connected");
    int received = 0;
    while (received < messages) {
        if (!is_readable(end.channel->fd, 15000)) return 6;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        if (soft::get_cq_event(end.channel, &cq, &context) != 0) return 7;
        soft::ack_cq_events(cq, 1);
        if (ibv_req_notify_cq(end.cq, 0) != 0) return 8;
        ibv_wc wc;
        while (ibv_poll_cq(end.cq, 1, &wc) == 1) {
            if (wc.status != IBV_WC_SUCCESS) return 9;
            ++received;
            if (end.receive(0, 0, 64) != 0) return 10;
        }
    }
    say("done");
    static_cast<void>(hear());
    return 0;
}

TEST(CompletionChannel, LosesNoEventInAnEventLoop) {
    constexpr int messages = 20000;
    ChildProcess child = ChildProcess::start("soft_event_loop", {std::to_string(messages)});
    Endpoint end;
    const auto peer = child.read_line();
    ASSERT_TRUE(peer);
    child.write_line(std::to_string(end.qp->qp_num));
    ASSERT_EQ(child.read_line(), "connected");
    ASSERT_EQ(end.connect(static_cast<std::uint32_t>(std::stoul(*peer))), 0);
    unsigned seed = 1;
    for (int i = 0; i < messages; ++i) {
        ASSERT_EQ(end.send(1, 0, 8), 0) << i;
        ASSERT_TRUE(end.complete()) << i;
        seed = seed * 1103515245 + 12345;
        if ((seed >> 16) % 16 == 0) {
            std::atomic<unsigned> pause{(seed >> 20) % 4096};
            while (pause.load() > 0) pause.fetch_sub(1);
        }
    }
    EXPECT_EQ(child.read_line(), "done");
    child.write_line("end");
    EXPECT_TRUE(child.wait().success()) << child.wait();
}

}  // namespace
}  // namespace millrace::test
