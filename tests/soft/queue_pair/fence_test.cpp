// Who takes memory back waits for the executors that are in it, and for nobody else. Executors that
// stand still for as long as the test wants, because a page of theirs does not come.
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "fabric/node.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "soft/held_pages.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"
#include "soft/station.hpp"

namespace millrace::test {
namespace {

using soft::Hazard;
using soft::QueuePair;

constexpr std::size_t page_bytes = 4096;

EndpointOptions with_private_atomics() {
    EndpointOptions options;
    options.shared_memory = false;
    options.access |= IBV_ACCESS_REMOTE_ATOMIC;
    options.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
    return options;
}

/// Memory of its own, registered.
struct Region {
    explicit Region(ibv_pd* pd, std::size_t length = 16 * page_bytes) : bytes{length} {
        memory = static_cast<std::byte*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mr = soft::reg_mr(pd, memory, bytes, reinterpret_cast<std::uint64_t>(memory),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
        if (mr == nullptr) throw std::runtime_error("cannot register memory");
    }
    ~Region() {
        if (mr != nullptr) soft::dereg_mr(mr);
        munmap(memory, bytes);
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    [[nodiscard]] ibv_sge sge(std::size_t offset, std::uint32_t length) const {
        return {reinterpret_cast<std::uint64_t>(memory + offset), length, mr->lkey};
    }
    std::size_t bytes;
    std::byte* memory = nullptr;
    ibv_mr* mr = nullptr;
};

/// What a poster does that stands still in `used`: with the queue pair's own buffer at the other
/// end.
struct Operation {
    std::string name;
    std::function<int(Endpoint& poster, Endpoint& peer, const Region& used)> post;
};

Operation operation(std::string name,
                    std::function<int(Endpoint& poster, Endpoint& peer, const Region& used)> post) {
    return {std::move(name), std::move(post)};
}

class Fences : public testing::TestWithParam<Operation> {
  protected:
    void SetUp() override {
        if (!HeldPages::possible()) GTEST_SKIP() << "no userfaultfd for this user";
    }
};

INSTANTIATE_TEST_SUITE_P(
    SoftDevice, Fences,
    testing::Values(
        operation("write",
                  [](Endpoint& poster, Endpoint& peer, const Region& used) {
                      return poster.post(IBV_WR_RDMA_WRITE, 1, {used.sge(0, page_bytes)},
                                         IBV_SEND_SIGNALED, peer.address(), peer.mr->rkey);
                  }),
        operation("gathering_write",
                  [](Endpoint& poster, Endpoint& peer, const Region& used) {
                      return poster.post(IBV_WR_RDMA_WRITE, 1,
                                         {poster.sge(0, 64), used.sge(0, page_bytes)},
                                         IBV_SEND_SIGNALED, peer.address(), peer.mr->rkey);
                  }),
        operation("send",
                  [](Endpoint& poster, Endpoint& peer, const Region& used) {
                      if (const int error = peer.receive(2, 0, page_bytes)) return error;
                      return poster.post(IBV_WR_SEND, 1, {used.sge(0, page_bytes)});
                  }),
        operation("read",
                  [](Endpoint& poster, Endpoint& peer, const Region& used) {
                      return poster.post(IBV_WR_RDMA_READ, 1, {used.sge(0, page_bytes)},
                                         IBV_SEND_SIGNALED, peer.address(), peer.mr->rkey);
                  }),
        operation("atomic",
                  [](Endpoint& poster, Endpoint& peer, const Region& used) {
                      return poster.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {used.sge(0, 8)},
                                           peer.address(), peer.mr->rkey, 1, 0);
                  }),
        // The used memory is at the receiving end: both are in this process.
        operation("write_into",
                  [](Endpoint& poster, Endpoint&, const Region& used) {
                      return poster.post(
                          IBV_WR_RDMA_WRITE, 1, {poster.sge(0, page_bytes)}, IBV_SEND_SIGNALED,
                          reinterpret_cast<std::uint64_t>(used.memory), used.mr->rkey);
                  })),
    [](const auto& chosen) { return chosen.param.name; });

TEST_P(Fences, LeaveAloneWhoIsInOtherMemory) {
    Pair pair{with_private_atomics(), with_private_atomics()};
    Endpoint& owner = GetParam().name == "write_into" ? pair.right : pair.left;
    const Region used{owner.pd};
    Region other{owner.pd};
    HeldPages held{used.memory, page_bytes};
    int posted = -1;
    std::thread poster{[&] { posted = GetParam().post(pair.left, pair.right, used); }};
    const bool stands = held.await_somebody();
    EXPECT_TRUE(stands);
    EXPECT_EQ(soft::dereg_mr(other.mr), 0);
    other.mr = nullptr;
    held.release();
    poster.join();
    EXPECT_EQ(posted, 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS);
    EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_RTS);
}

TEST_P(Fences, KeepMemoryThatSomebodyIsIn) {
    Pair pair{with_private_atomics(), with_private_atomics()};
    Endpoint& owner = GetParam().name == "write_into" ? pair.right : pair.left;
    Region used{owner.pd};
    HeldPages held{used.memory, page_bytes};
    std::thread poster{[&] { static_cast<void>(GetParam().post(pair.left, pair.right, used)); }};
    EXPECT_TRUE(held.await_somebody());
    EXPECT_EQ(soft::dereg_mr(used.mr), EBUSY);
    EXPECT_EQ(soft::dereg_mr(used.mr), EBUSY) << "asked again, still in it";
    held.release();
    poster.join();
    EXPECT_EQ(soft::dereg_mr(used.mr), 0);
    used.mr = nullptr;
    // The connection is broken, and says so when it is next looked at.
    const base::Deadline patience = patience_for_a_coincidence();
    while (state_of(pair.left.qp) != IBV_QPS_ERR && !patience.expired()) {
        static_cast<void>(pair.left.poll_once());
        static_cast<void>(pair.right.poll_once());
    }
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
}

TEST(Fence, HoldsUpNothingElseWhileItWaits) {
    if (!HeldPages::possible()) GTEST_SKIP() << "no userfaultfd for this user";
    // The wait is a second long, in which two ends have to come up: where processors are rare, that
    // may take longer, and proves nothing.
    const base::Deadline patience = patience_for_a_coincidence();
    bool meanwhile = false;
    while (!meanwhile && !patience.expired()) {
        Pair pair{with_private_atomics(), with_private_atomics()};
        Region used{pair.left.pd};
        HeldPages held{used.memory, page_bytes};
        std::thread poster{[&] {
            static_cast<void>(pair.left.post(IBV_WR_RDMA_WRITE, 1, {used.sge(0, page_bytes)},
                                             IBV_SEND_SIGNALED, pair.right.address(),
                                             pair.right.mr->rkey));
        }};
        EXPECT_TRUE(held.await_somebody());
        std::atomic<bool> waits{false};
        std::atomic<bool> waited{false};
        std::thread fence{[&] {
            waits = true;
            EXPECT_EQ(soft::dereg_mr(used.mr), EBUSY);
            waited = true;
        }};
        while (!waits) std::this_thread::yield();
        // Some of them after the fence has begun to wait, or `waited` tells that none was.
        for (int i = 0; i < 20 && !waited; ++i) {
            Pair another;
            meanwhile = i == 19 && !waited;
        }
        fence.join();
        held.release();
        poster.join();
        EXPECT_EQ(soft::dereg_mr(used.mr), 0);
        used.mr = nullptr;
    }
    EXPECT_TRUE(meanwhile);
}

// Of a datagram, the sender's memory.
TEST(Fence, WaitsForDatagramsOutOfTheMemoryOnly) {
    if (!HeldPages::possible()) GTEST_SKIP() << "no userfaultfd for this user";
    StationOptions options;
    options.shared_memory = false;
    Station station{options};
    ibv_qp* const left = station.datagram();
    ibv_qp* const right = station.datagram();
    ibv_ah* const local = station.handle();
    Region other{station.pd};
    ASSERT_EQ(station.receive(right, 5, 16 * page_bytes, 140), 0);
    HeldPages held{station.memory, page_bytes};
    std::thread poster{
        [&] { EXPECT_EQ(station.send_to(left, local, right->qp_num, 9, 0, 100), 0); }};
    EXPECT_TRUE(held.await_somebody());
    EXPECT_EQ(soft::dereg_mr(other.mr), 0);
    other.mr = nullptr;
    EXPECT_EQ(soft::dereg_mr(station.mr), EBUSY);
    held.release();
    poster.join();
    EXPECT_EQ(soft::dereg_mr(station.mr), 0);
    station.mr = nullptr;
}

// On a link requests wait, and whoever runs them looks again and again: wherever that is stopped,
// it has said which memory it will look at.
TEST(Fence, LeavesAPeerAloneThatIsStoppedAnywhereWithRequestsInFlight) {
    for (const std::string mode : {"shaped:10g,latency=1us", "strict:seed=5"}) {
        SCOPED_TRACE(mode);
        const ModeScope scope{mode};
        RemotePair pair;
        const Region used{pair.left.pd};
        ASSERT_EQ(pair.right.ask("flood 64 " +
                                 std::to_string(reinterpret_cast<std::uint64_t>(used.memory)) +
                                 ' ' + std::to_string(used.mr->rkey)),
                  "flooding");
        for (int round = 0; round < 100; ++round) {
            Region other{pair.left.pd};
            std::this_thread::sleep_for(std::chrono::microseconds{round * 37 % 500});
            ASSERT_TRUE(pair.right.child.stop());
            const int ended = soft::dereg_mr(other.mr);
            pair.right.child.resume();
            ASSERT_EQ(ended, 0) << "in round " << round;
            other.mr = nullptr;
        }
        pair.right.child.kill_and_wait();
    }
}

TEST(Fence, LeavesAPeerAloneThatStandsStillInOtherMemory) {
    if (!HeldPages::possible()) GTEST_SKIP() << "no userfaultfd for this user";
    RemotePair pair{with_private_atomics(), {"private"}};
    Region used{pair.left.pd};
    Region other{pair.left.pd};
    HeldPages held{used.memory, page_bytes};
    ASSERT_TRUE(pair.right.child.write_line(
        "write 1 0 4096 " + std::to_string(reinterpret_cast<std::uint64_t>(used.memory)) + ' ' +
        std::to_string(used.mr->rkey)));
    ASSERT_TRUE(held.await_somebody());
    EXPECT_EQ(soft::dereg_mr(other.mr), 0);
    other.mr = nullptr;
    held.release();
    EXPECT_EQ(pair.right.child.read_line().value_or("gone"), "0");
    EXPECT_EQ(pair.right.ask("complete"), "1 0 4096");
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_RTS);
}

/// Has two connections, and begins to execute in both of them, for good.
MILLRACE_CHILD(soft_stands_still) {
    Endpoint first;
    Endpoint second;
    for (Endpoint* const end : {&first, &second}) {
        say(std::to_string(end->qp->qp_num));
        if (end->connect(static_cast<std::uint32_t>(std::stoul(*hear()))) != 0) return 1;
    }
    for (Endpoint* const end : {&first, &second}) {
        Hazard& hazard = static_cast<QueuePair*>(end->qp)->block.hazard->send;
        static_cast<void>(hazard.begin(false, soft::names_any));
    }
    say("stands still");
    while (hear()) {
    }
    return 0;
}

TEST(Fence, OutlivesTheSharedReceivesOfAQueuePairInWhichAProcessStandsStill) {
    ChildProcess child = ChildProcess::start("soft_stands_still", {});
    Endpoint first;
    Endpoint second;
    ibv_srq_init_attr sizes{};
    sizes.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    ibv_srq* const receives = soft::create_srq(first.pd, &sizes);
    ASSERT_NE(receives, nullptr);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = first.cq;
    wanted.srq = receives;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = 16, .max_recv_wr = 0, .max_send_sge = 1, .max_recv_sge = 0,
                  .max_inline_data = 0};
    ASSERT_EQ(soft::destroy_qp(std::exchange(first.qp, soft::create_qp(first.pd, &wanted))), 0);
    ASSERT_NE(first.qp, nullptr);
    for (Endpoint* const end : {&first, &second}) {
        const auto number = static_cast<std::uint32_t>(std::stoul(child.read_line().value()));
        ASSERT_EQ(end->connect(number), 0);
        ASSERT_TRUE(child.write_line(std::to_string(end->qp->qp_num)));
    }
    ASSERT_EQ(child.read_line(), "stands still");
    EXPECT_EQ(soft::destroy_qp(std::exchange(first.qp, nullptr)), 0);
    EXPECT_EQ(soft::destroy_srq(receives), 0);
    child.kill_and_wait();
    const auto process = soft::current_process();
    const auto kept = [&] { return process->listed().hold()->kept.size(); };
    const base::Deadline patience = patience_for_a_coincidence();
    while (kept() != 0 && !patience.expired()) const Endpoint another;
    EXPECT_EQ(kept(), 0U);
}

TEST(Fence, WaitsOnceForAProcessThatStandsStillAndGivesAllBackWhenThatIsDead) {
    std::optional<ChildProcess> child{ChildProcess::start("soft_stands_still", {})};
    Endpoint first;
    Endpoint second;
    std::uint32_t number = 0;
    for (Endpoint* const end : {&first, &second}) {
        number = static_cast<std::uint32_t>(std::stoul(child->read_line().value()));
        ASSERT_EQ(end->connect(number), 0);
        ASSERT_TRUE(child->write_line(std::to_string(end->qp->qp_num)));
    }
    ASSERT_EQ(child->read_line(), "stands still");
    const auto process = soft::current_process();
    const auto peer = process->node().peer(soft::node_of_qpn(number));
    ASSERT_NE(peer, nullptr);
    EXPECT_EQ(peer->patience(), soft::longest_execution);

    const auto begin = base::Clock::now();
    EXPECT_EQ(soft::destroy_qp(std::exchange(first.qp, nullptr)), 0);
    const bool short_then = peer->patience() < soft::longest_execution;
    EXPECT_TRUE(short_then || base::Clock::now() - begin > std::chrono::seconds{2})
        << "unless this thread was held up";
    EXPECT_EQ(soft::destroy_qp(std::exchange(second.qp, nullptr)), 0);
    const auto kept = [&] { return process->listed().hold()->kept.size(); };
    EXPECT_EQ(kept(), 2U);
    for (const Endpoint* const end : {&first, &second}) EXPECT_EQ(soft::dereg_mr(end->mr), EBUSY);

    child->kill_and_wait();
    const base::Deadline patience = patience_for_a_coincidence();
    while (kept() != 0 && !patience.expired()) const Endpoint another;
    EXPECT_EQ(kept(), 0U);
    for (Endpoint* const end : {&first, &second}) {
        EXPECT_EQ(soft::dereg_mr(std::exchange(end->mr, nullptr)), 0);
    }
}

}  // namespace
}  // namespace millrace::test
