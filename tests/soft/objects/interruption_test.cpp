// Threads that are cancelled, or get a signal, in calls of the soft device: those that wait for
// events are as libibverbs' read() there, and no other call notices.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <ostream>
#include <string>
#include <thread>

#include "millrace/base/detail/uncancelled.hpp"
#include "process/asynchronous_events.hpp"
#include "process/context.hpp"
#include "soft/events.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"
#include "soft/station.hpp"

namespace millrace::test {
namespace {

/// A thread that pthread_cancel may end: std::thread's may not be unwound so.
template <class Body>
class Cancellable {
  public:
    explicit Cancellable(Body body) : body_{std::move(body)} {
        EXPECT_EQ(pthread_create(&thread_, nullptr, &run, this), 0);
    }
    Cancellable(const Cancellable&) = delete;
    Cancellable& operator=(const Cancellable&) = delete;
    void cancel() const { EXPECT_EQ(pthread_cancel(thread_), 0); }
    void signal(int number) const { EXPECT_EQ(pthread_kill(thread_, number), 0); }
    /// True if it was cancelled, and not at its end.
    bool join_cancelled() {
        void* result = nullptr;
        EXPECT_EQ(pthread_join(thread_, &result), 0);
        return result == PTHREAD_CANCELED;
    }

  private:
    static void* run(void* self) {
        static_cast<Cancellable*>(self)->body_();
        return nullptr;
    }
    Body body_;
    pthread_t thread_{};
};

int get_event(const Endpoint& end) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    const int result = soft::get_cq_event(end.channel, &cq, &context);
    if (result == 0) soft::ack_cq_events(cq, 1);
    return result;
}

int get_async(const Endpoint& end) {
    ibv_async_event event{};
    const int result = soft::get_async_event(end.context, &event);
    if (result == 0) soft::ack_async_event(&event);
    return result;
}

/// Of both calls that wait: how a test makes them return, and what it calls them.
struct Wait {
    const char* name;
    int (*get)(const Endpoint&);
    void (*end)(Pair&);
    friend std::ostream& operator<<(std::ostream& stream, const Wait& wait) {
        return stream << wait.name;
    }
};
constexpr Wait waits[] = {
    {"get_cq_event", get_event,
     [](Pair& pair) {
         ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
         ASSERT_EQ(pair.left.send(1, 0, 8), 0);
     }},
    {"get_async_event", get_async,
     [](Pair& pair) { soft::raise_async_event(*pair.right.qp, IBV_EVENT_PATH_MIG); }},
};

class Interruption : public testing::TestWithParam<Wait> {};

TEST_P(Interruption, ACancelledWaitLeavesNothingLockedAndNothingLost) {
    Pair pair{{}, with_events()};
    for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
        std::atomic<bool> waiting{false};
        Cancellable thread{[&] {
            waiting = true;
            GetParam().get(pair.right);
        }};
        while (!waiting) std::this_thread::yield();
        if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds{2});  // asleep
        thread.cancel();
        EXPECT_TRUE(thread.join_cancelled());
        // Destruction would wait for an event that was given to a thread which is no more.
        GetParam().end(pair);
        EXPECT_EQ(GetParam().get(pair.right), 0);
        while (pair.right.poll_once() || pair.left.poll_once()) {
        }
    }
}

TEST_P(Interruption, ACancellationThatIsPendingLeavesTheEventThatIsThereToOthers) {
    Pair pair{{}, with_events()};
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    GetParam().end(pair);
    Cancellable thread{[&] {
        pthread_cancel(pthread_self());
        GetParam().get(pair.right);
    }};
    EXPECT_TRUE(thread.join_cancelled());
    EXPECT_EQ(GetParam().get(pair.right), 0);
}

std::atomic<int> signals_handled{0};

/// Handles SIGUSR1 while it lives.
class Handler {
  public:
    explicit Handler(int flags) {
        struct sigaction action {};
        action.sa_handler = [](int) { ++signals_handled; };
        action.sa_flags = flags;
        EXPECT_EQ(sigaction(SIGUSR1, &action, &before_), 0);
        signals_handled = 0;
    }
    ~Handler() { sigaction(SIGUSR1, &before_, nullptr); }

  private:
    struct sigaction before_ {};
};

TEST_P(Interruption, ASignalEndsTheWait) {
    const Handler handler{0};
    Pair pair{{}, with_events()};
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    std::atomic<bool> ended{false};
    int result = 0;
    int error = 0;
    Cancellable thread{[&] {
        result = GetParam().get(pair.right);
        error = errno;
        ended = true;
    }};
    // The first ones may come before it waits.
    const base::Deadline deadline = patience_for_a_coincidence();
    while (!ended && !deadline.expired()) {
        thread.signal(SIGUSR1);
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    EXPECT_TRUE(ended);
    if (!ended) GetParam().end(pair);
    EXPECT_FALSE(thread.join_cancelled());
    EXPECT_EQ(result, -1);
    EXPECT_EQ(error, EINTR);
}

TEST_P(Interruption, ASignalWhoseHandlerAsksForItLetsTheWaitGoOn) {
    const Handler handler{SA_RESTART};
    Pair pair{{}, with_events()};
    ASSERT_EQ(ibv_req_notify_cq(pair.right.cq, 0), 0);
    std::atomic<bool> ended{false};
    int result = 1;
    Cancellable thread{[&] {
        result = GetParam().get(pair.right);
        ended = true;
    }};
    const base::Deadline deadline = patience_for_a_coincidence();
    for (int sent = 0; sent < 20 && !deadline.expired(); ++sent) {
        thread.signal(SIGUSR1);
        while (signals_handled <= sent && !deadline.expired()) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    EXPECT_GE(signals_handled, 20);
    EXPECT_FALSE(ended);
    GetParam().end(pair);
    EXPECT_FALSE(thread.join_cancelled());
    EXPECT_EQ(result, 0);
}

INSTANTIATE_TEST_SUITE_P(Of, Interruption, testing::ValuesIn(waits),
                         [](const auto& of) { return std::string{of.param.name}; });

/// Everything that a program does but wait, with a peer in another process.
void live_and_die(RemoteEndpoint& peer, bool shared_memory) {
    EndpointOptions options = with_events();
    options.shared_memory = shared_memory;
    Endpoint end{options};
    ASSERT_EQ(end.connect(peer.qpn), 0);
    {
        const base::Uncancelled harness;
        ASSERT_EQ(peer.ask("connect " + std::to_string(end.qp->qp_num)), "0");
        ASSERT_EQ(peer.ask("receive 1 0 64"), "0");
        ASSERT_EQ(peer.ask("notify 0"), "0");
    }
    ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
    ASSERT_EQ(end.send(1, 0, 8), 0) << "rings the peer's bell";
    ASSERT_TRUE(end.complete());
    ASSERT_EQ(end.write(2, 0, 64, peer.address, peer.rkey), 0);
    ASSERT_TRUE(end.complete());
    ASSERT_EQ(
        end.post(IBV_WR_RDMA_READ, 3, {end.sge(0, 64)}, IBV_SEND_SIGNALED, peer.address, peer.rkey),
        0);
    ASSERT_TRUE(end.complete());
    ASSERT_EQ(end.receive(4, 0, 64), 0);
    EXPECT_FALSE(end.complete(std::chrono::milliseconds{2})) << "polls in vain";
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(soft::query_qp(end.qp, &attributes, IBV_QP_STATE, &init), 0);
    ASSERT_EQ(end.to_state(IBV_QPS_ERR), 0);
    ASSERT_TRUE(end.complete());
    ASSERT_EQ(end.to_state(IBV_QPS_RESET), 0);
}

void send_datagrams() {
    StationOptions options;
    options.shared_receives = 8;
    Station station{options};
    ibv_qp* const left = station.datagram();
    ibv_qp* const right = station.datagram();
    for (int i = 0; i < 4; ++i) ASSERT_EQ(station.receive(nullptr, 1, 4096, 128), 0);
    ibv_ah* const ah = station.handle();
    ASSERT_EQ(station.send_to(left, ah, right->qp_num, 2, 0, 8), 0);
    ASSERT_TRUE(station.complete());
    ASSERT_TRUE(station.complete());
    ibv_gid group{};
    group.raw[0] = 0xff;
    ASSERT_EQ(soft::attach_mcast(right, &group, 0xc001), 0);
    ASSERT_EQ(soft::detach_mcast(right, &group, 0xc001), 0);
}

class PendingCancellation : public testing::TestWithParam<const char*> {};

TEST_P(PendingCancellation, StrikesInNoCallThatDoesNotWaitForEvents) {
    const ModeScope mode{GetParam()};
    for (const bool shared_memory : {true, false}) {
        RemoteEndpoint peer{{"events"}};
        std::atomic<bool> lived{false};
        Cancellable thread{[&] {
            pthread_cancel(pthread_self());
            live_and_die(peer, shared_memory);
            send_datagrams();
            lived = true;
            pthread_testcancel();
        }};
        EXPECT_TRUE(thread.join_cancelled());
        EXPECT_TRUE(lived);
    }
}

INSTANTIATE_TEST_SUITE_P(InMode, PendingCancellation,
                         testing::Values("fast", "shaped:10g,latency=1us", "strict:seed=3"),
                         [](const auto& mode) {
                             const std::string name{mode.param};
                             return name.substr(0, name.find(':'));
                         });

}  // namespace
}  // namespace millrace::test
