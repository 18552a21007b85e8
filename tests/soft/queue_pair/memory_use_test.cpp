// Many processes with many queue pairs of the deepest queues: memory is used in proportion to what
// is done, not to what may be.
#include <cstdint>
#include <cstdlib>

#include "queue_pair/queue_pair.hpp"
#include "soft/held_memory.hpp"
#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

// Makes queue pairs of 32,768 requests on one completion queue, uses each a little, and says what
// that took: shared and private bytes per queue pair.
MILLRACE_CHILD(soft_deep_queues) {
    const int queue_pairs = std::stoi(arguments.at(0));
    EndpointOptions options;
    options.shared_memory = false;
    Endpoint end{options};
    ibv_cq* const cq = soft::create_cq(end.context, 1 << 20, nullptr, nullptr, 0);
    ibv_cq* const own_cq = std::exchange(end.cq, cq);
    ibv_qp* const own = end.qp;
    const std::uint64_t shared_before = node_bytes();
    const std::uint64_t private_before = private_bytes();
    std::vector<ibv_qp*> qps;
    for (int i = 0; i < queue_pairs; ++i) {
        ibv_qp_init_attr init{};
        init.send_cq = cq;
        init.recv_cq = cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {32768, 32768, 4, 4, 64};
        end.qp = soft::create_qp(end.pd, &init);
        if (end.qp == nullptr || end.connect(end.qp->qp_num) != 0) return 2;
        qps.push_back(end.qp);
        for (std::uint64_t n = 0; n < 3; ++n) {
            if (end.receive(n, 128, 8) != 0 || end.send(n, 0, 8) != 0) return 3;
            for (int completions = 0; completions < 2; ++completions) {
                const auto wc = end.complete();
                if (!wc || wc->status != IBV_WC_SUCCESS) return 4;
            }
        }
    }
    const auto each = static_cast<std::uint64_t>(queue_pairs);
    say(std::to_string((node_bytes() - shared_before) / each) + ' ' +
        std::to_string((private_bytes() - private_before) / each));
    static_cast<void>(hear());  // until all are there
    for (ibv_qp* qp : qps) soft::destroy_qp(qp);
    end.qp = own;
    soft::destroy_cq(std::exchange(end.cq, own_cq));
    return 0;
}

/// Of an idle queue pair: nobody else holds them.
const soft::SendSide& sends_of(const soft::QueuePair& qp) {
    return qp.sends(qp.sends.held_by_hand());
}
bool runs_for_its_peer(const soft::QueuePair& qp) {
    return qp.theirs(qp.theirs.held_by_hand()) != nullptr;
}

// Servers hold them by the thousand.
TEST(MemoryUse, OfAnIdleQueuePairIsThatOfAPage) {
    EXPECT_LE(sizeof(soft::QueuePair), 4096U);
    Pair pair;
    const auto& left = *static_cast<soft::QueuePair*>(pair.left.qp);
    const auto& right = *static_cast<soft::QueuePair*>(pair.right.qp);
    // It was connected first, as the end of who accepts is.
    EXPECT_FALSE(left.slots.made());
    EXPECT_TRUE(right.slots.made()) << "what connects last may be the first to ask";
    ASSERT_EQ(pair.left.write(1, 0, 8, pair.right.address(0), pair.right.mr->rkey), 0);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_TRUE(left.slots.made());
    EXPECT_FALSE(sends_of(left).pending.made()) << "nothing has waited";
    EXPECT_FALSE(right.slots.used()) << "it has sent nothing";
    EXPECT_FALSE(runs_for_its_peer(right)) << "and run nothing for its peer";
    ASSERT_EQ(pair.left.send(2, 0, 8), 0) << "waits for a receive";
    EXPECT_TRUE(sends_of(left).pending.made());
    ASSERT_EQ(pair.right.receive(3, 64, 8), 0);
    const auto received = pair.right.complete();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->status, IBV_WC_SUCCESS);
    EXPECT_TRUE(runs_for_its_peer(right));
    ASSERT_TRUE(pair.left.complete());
}

TEST(MemoryUse, OfDeepQueuesGrowsWithWhatIsDoneAndNotWithWhatMayBe) {
    const bool whole = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    const int processes = whole ? 64 : 8;
    const std::string queue_pairs = whole ? "1000" : "100";
    std::vector<ChildProcess> children;
    for (int i = 0; i < processes; ++i) {
        children.push_back(ChildProcess::start("soft_deep_queues", {queue_pairs}));
    }
    for (ChildProcess& child : children) {
        std::istringstream line{child.read_line(std::chrono::minutes{5}).value_or("")};
        std::uint64_t shared = 0;
        std::uint64_t own = 0;
        ASSERT_TRUE(line >> shared >> own) << "it did not get there";
        // Both queues with their rings are more than 6 MiB.
        EXPECT_LE(shared, 64U << 10);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they double it and more
        EXPECT_LE(own, 64U << 10);
#endif
        EXPECT_GT(shared, 0U) << "of what is used, something";
    }
    for (ChildProcess& child : children) child.close_input();
    for (ChildProcess& child : children) {
        EXPECT_TRUE(child.wait(std::chrono::minutes{2}).success());
    }
}

}  // namespace
}  // namespace millrace::test
