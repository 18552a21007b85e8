// Asynchronous events: told through async_fd to a program that waits and does not poll, whoever has
// caused them, and acknowledged before what they name is destroyed.
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

#include <atomic>
#include <thread>

#include "process/asynchronous_events.hpp"
#include "process/context.hpp"
#include "soft/events.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

/// Nothing polls in these tests; what hangs is ended by the test runner's limit.
ibv_async_event wait_for_event(ibv_context* context) {
    ibv_async_event event{};
    EXPECT_EQ(soft::get_async_event(context, &event), 0);
    return event;
}

void expect_none(ibv_context* context) {
    do_not_block(context->async_fd);
    ibv_async_event event{};
    EXPECT_EQ(soft::get_async_event(context, &event), -1) << event.event_type;
    EXPECT_EQ(errno, EAGAIN);
}

TEST(AsynchronousEvents, TellOfTheMistakeOfAPeerInAnotherProcessWithoutAnyPoll) {
    RemotePair pair;
    const std::string wrong_key = std::to_string(pair.left.mr->rkey ^ 0xff);
    EXPECT_FALSE(is_readable(pair.left.context->async_fd));
    ASSERT_EQ(
        pair.right.ask("write 1 0 8 " + std::to_string(pair.left.address()) + ' ' + wrong_key),
        "0");
    ASSERT_TRUE(is_readable(pair.left.context->async_fd, 10'000));
    ibv_async_event event = wait_for_event(pair.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event.element.qp, pair.left.qp);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
    soft::ack_async_event(&event);
    EXPECT_FALSE(is_readable(pair.left.context->async_fd));
    expect_none(pair.left.context);
}

TEST(AsynchronousEvents, TellOfThePeersDeathWithoutAnyPoll) {
    RemotePair pair;
    pair.right.child.kill_and_wait();
    ibv_async_event event = wait_for_event(pair.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(event.element.qp, pair.left.qp);
    soft::ack_async_event(&event);
    expect_none(pair.left.context);
}

TEST(AsynchronousEvents, TellAContextOfADeathThatAnotherOnesPollerHasNoticed) {
    RemotePair polled;
    RemotePair waited;
    ASSERT_EQ(polled.left.receive(1, 0, 8), 0);
    polled.right.child.kill_and_wait();
    waited.right.child.kill_and_wait();
    const auto flushed = polled.left.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    ibv_async_event event = wait_for_event(waited.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(event.element.qp, waited.left.qp);
    soft::ack_async_event(&event);
}

TEST(AsynchronousEvents, WakeEpoll) {
    RemotePair pair;
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event interest{};
    interest.events = EPOLLIN;
    ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.left.context->async_fd, &interest), 0);
    epoll_event found{};
    EXPECT_EQ(epoll_wait(epoll, &found, 1, 0), 0);
    pair.right.child.kill_and_wait();
    EXPECT_EQ(epoll_wait(epoll, &found, 1, 10'000), 1);
    close(epoll);
    ibv_async_event event = wait_for_event(pair.left.context);
    soft::ack_async_event(&event);
}

TEST(AsynchronousEvents, StayReadableUntilTheLastIsTaken) {
    Endpoint end;
    soft::raise_async_event(*end.qp, IBV_EVENT_PATH_MIG);
    soft::raise_async_event(*end.cq, IBV_EVENT_CQ_ERR);
    soft::raise_async_event(*end.context, IBV_EVENT_PORT_ERR, 1);
    soft::raise_async_event(*end.context, IBV_EVENT_DEVICE_FATAL, 0);
    const ibv_event_type expected[] = {IBV_EVENT_PATH_MIG, IBV_EVENT_CQ_ERR, IBV_EVENT_PORT_ERR,
                                       IBV_EVENT_DEVICE_FATAL};
    for (const ibv_event_type type : expected) {
        ASSERT_TRUE(is_readable(end.context->async_fd));
        ibv_async_event event = wait_for_event(end.context);
        EXPECT_EQ(event.event_type, type);
        if (type == IBV_EVENT_PATH_MIG) {
            EXPECT_EQ(event.element.qp, end.qp);
        } else if (type == IBV_EVENT_CQ_ERR) {
            EXPECT_EQ(event.element.cq, end.cq);
        } else {
            EXPECT_EQ(event.element.port_num, type == IBV_EVENT_PORT_ERR ? 1 : 0);
        }
        soft::ack_async_event(&event);
    }
    EXPECT_FALSE(is_readable(end.context->async_fd));
    expect_none(end.context);
}

TEST(AsynchronousEvents, OfWhatIsDestroyedAreDroppedUnlessTaken) {
    Endpoint end;
    soft::raise_async_event(*end.qp, IBV_EVENT_QP_FATAL);
    soft::raise_async_event(*end.qp, IBV_EVENT_QP_FATAL);
    ASSERT_EQ(soft::destroy_qp(end.qp), 0);
    end.qp = nullptr;
    EXPECT_FALSE(is_readable(end.context->async_fd));
    expect_none(end.context);
}

TEST(AsynchronousEvents, HoldBackTheDestructionOfWhatTheyNameUntilAcknowledged) {
    Endpoint end;
    soft::raise_async_event(*end.qp, IBV_EVENT_QP_FATAL);
    ibv_async_event event = wait_for_event(end.context);
    std::atomic<bool> destroyed{false};
    std::thread destroyer{[&] {
        EXPECT_EQ(soft::destroy_qp(end.qp), 0);
        destroyed = true;
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{20});  // time for it to go wrong
    EXPECT_FALSE(destroyed);
    soft::ack_async_event(&event);
    destroyer.join();
    end.qp = nullptr;

    soft::raise_async_event(*end.cq, IBV_EVENT_CQ_ERR);
    event = wait_for_event(end.context);
    destroyed = false;
    destroyer = std::thread{[&] {
        EXPECT_EQ(soft::destroy_cq(end.cq), 0);
        destroyed = true;
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    EXPECT_FALSE(destroyed);
    soft::ack_async_event(&event);
    destroyer.join();
    end.cq = nullptr;
}

TEST(AsynchronousEvents, AreWaitedForByAThreadThatCanBeCancelled) {
    Endpoint end;
    std::atomic<bool> waiting{false};
    pthread_t thread;
    struct Argument {
        ibv_context* context;
        std::atomic<bool>* waiting;
    } argument{end.context, &waiting};
    ASSERT_EQ(pthread_create(
                  &thread, nullptr,
                  [](void* given) -> void* {
                      auto* const to = static_cast<Argument*>(given);
                      ibv_async_event event{};
                      *to->waiting = true;
                      soft::get_async_event(to->context, &event);
                      return nullptr;
                  },
                  &argument),
              0);
    while (!waiting) std::this_thread::yield();
    ASSERT_EQ(pthread_cancel(thread), 0);
    void* result = nullptr;
    ASSERT_EQ(pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
    soft::raise_async_event(*end.qp, IBV_EVENT_QP_FATAL);  // nothing is locked
    ibv_async_event event = wait_for_event(end.context);
    soft::ack_async_event(&event);
}

TEST(AsynchronousEvents, TellOfTheFirstRequestToAQueuePairInReadyToReceive) {
    RemoteEndpoint remote;
    Endpoint end;
    ASSERT_EQ(end.to_init(), 0);
    ASSERT_EQ(end.receive(1, 0, 64), 0);
    ASSERT_EQ(end.to_rtr(remote.qpn), 0);
    ASSERT_EQ(remote.ask("connect " + std::to_string(end.qp->qp_num)), "0");
    EXPECT_FALSE(is_readable(end.context->async_fd));
    ASSERT_EQ(remote.ask("send 1 0 8"), "0");
    ibv_async_event event = wait_for_event(end.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_COMM_EST);
    EXPECT_EQ(event.element.qp, end.qp);
    soft::ack_async_event(&event);
    ASSERT_EQ(end.to_rts(), 0);
    ASSERT_EQ(remote.ask("send 1 0 8"), "0");
    expect_none(end.context);
}

TEST(AsynchronousEvents, SayNothingOfRequestsToAQueuePairThatIsReadyToSend) {
    RemotePair pair;
    ASSERT_EQ(pair.left.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.right.ask("send 1 0 8"), "0");
    ASSERT_TRUE(pair.left.complete());
    expect_none(pair.left.context);
}

TEST(AsynchronousEvents, TellOfADrainedSendQueueIfAskedTo) {
    Pair pair;
    ASSERT_EQ(pair.left.to_state(IBV_QPS_SQD), 0);
    expect_none(pair.left.context);
    ASSERT_EQ(pair.left.to_state(IBV_QPS_RTS), 0);

    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_SQD;
    attributes.en_sqd_async_notify = 1;
    ASSERT_EQ(soft::modify_qp(pair.left.qp, &attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY),
              0);
    ibv_async_event event = wait_for_event(pair.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    EXPECT_EQ(event.element.qp, pair.left.qp);
    soft::ack_async_event(&event);
    ibv_qp_init_attr init{};
    ASSERT_EQ(soft::query_qp(pair.left.qp, &attributes, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attributes.qp_state, IBV_QPS_SQD);
    EXPECT_EQ(attributes.sq_draining, 0);
}

int drain(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_SQD;
    attributes.en_sqd_async_notify = 1;
    return soft::modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

int draining(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(soft::query_qp(qp, &attributes, IBV_QP_STATE, &init), 0);
    return attributes.sq_draining;
}

TEST(AsynchronousEvents, TellOfADrainedSendQueueWhenItsRequestsAreComplete) {
    Pair pair;
    ASSERT_EQ(pair.left.send(1, 0, 64), 0);  // waits for a receive
    ASSERT_EQ(drain(pair.left.qp), 0);
    expect_none(pair.left.context);
    EXPECT_EQ(draining(pair.left.qp), 1);
    ASSERT_EQ(pair.left.send(2, 0, 64), 0);  // posted too late to be waited for, or to be sent
    ASSERT_EQ(pair.right.receive(3, 0, 64), 0);
    ASSERT_EQ(pair.right.receive(4, 64, 64), 0);
    ibv_async_event event = wait_for_event(pair.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    EXPECT_EQ(event.element.qp, pair.left.qp);
    soft::ack_async_event(&event);
    EXPECT_EQ(draining(pair.left.qp), 0);
    const auto sent = pair.left.poll_once();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->wr_id, 1U);
    EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->wr_id, 3U);
    EXPECT_FALSE(pair.left.poll_once());
    EXPECT_FALSE(pair.right.poll_once());

    ASSERT_EQ(pair.left.to_state(IBV_QPS_RTS), 0);
    const auto later = pair.left.complete();
    ASSERT_TRUE(later);
    EXPECT_EQ(later->wr_id, 2U);
    EXPECT_EQ(later->status, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.left.write(5, 0, 8, pair.right.address(), pair.right.mr->rkey), 0);
    EXPECT_TRUE(pair.left.poll_once()) << "executed at once again";
}

TEST(AsynchronousEvents, TellOfASendQueueThatAPeerInAnotherProcessHasDrainedWithoutAnyPoll) {
    RemotePair pair;
    ASSERT_EQ(pair.left.send(1, 0, 64), 0);
    ASSERT_EQ(drain(pair.left.qp), 0);
    expect_none(pair.left.context);
    ASSERT_EQ(pair.right.ask("receive 3 0 64"), "0");
    ASSERT_TRUE(is_readable(pair.left.context->async_fd, 40'000));
    ibv_async_event event = wait_for_event(pair.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    soft::ack_async_event(&event);
    const auto sent = pair.left.poll_once();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->wr_id, 1U);
}

TEST(AsynchronousEvents, TellOfADrainedSendQueueWhenWhatIsInFlightHasArrived) {
    const ModeScope mode{"shaped:10g,latency=50ms"};
    Pair pair;
    pair.left.memory[0] = std::byte{7};
    ASSERT_EQ(pair.left.write(1, 0, 1, pair.right.address(), pair.right.mr->rkey), 0);
    ASSERT_EQ(drain(pair.left.qp), 0);
    ibv_async_event event = wait_for_event(pair.left.context);
    EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    soft::ack_async_event(&event);
    EXPECT_EQ(pair.right.memory[0], std::byte{7});
    const auto sent = pair.left.poll_once();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->wr_id, 1U);
}

TEST(AsynchronousEvents, OfAClosedContextGoNowhere) {
    Endpoint end;
    ibv_context* const second = soft::open_device(soft::device_list(nullptr)[0]);
    ASSERT_NE(second, nullptr);
    ibv_pd* const pd = soft::alloc_pd(second);
    ibv_cq* const cq = soft::create_cq(second, 4, nullptr, nullptr, 0);
    ASSERT_EQ(soft::close_device(second), 0);
    soft::raise_async_event(*cq, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(soft::destroy_cq(cq), 0);
    EXPECT_EQ(soft::dealloc_pd(pd), 0);
}

}  // namespace
}  // namespace millrace::test
