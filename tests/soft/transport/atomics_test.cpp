// Compare-and-swap and fetch-and-add: what they do, what they refuse, and that nobody's is lost.
#include <dirent.h>
#include <fcntl.h>

#include <cstdint>
#include <memory>
#include <thread>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

EndpointOptions with_atomics(bool shared = true) {
    EndpointOptions options;
    options.shared_memory = shared;
    options.access |= IBV_ACCESS_REMOTE_ATOMIC;
    options.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
    return options;
}

/// The memory is mapped by peers, or it is not.
class Atomics : public testing::TestWithParam<bool> {
  protected:
    EndpointOptions options() const { return with_atomics(GetParam()); }
    std::vector<std::string> flags() const {
        return GetParam() ? std::vector<std::string>{"atomic"}
                          : std::vector<std::string>{"atomic", "private"};
    }
};
INSTANTIATE_TEST_SUITE_P(OnMemory, Atomics, testing::Bool(),
                         [](const auto& which) { return which.param ? "Shared" : "Private"; });

TEST_P(Atomics, FetchAddAddsAndBringsTheOriginalBack) {
    Pair pair{options(), options()};
    pair.right.word(64) = ~std::uint64_t{0};
    ASSERT_EQ(pair.left.fetch_add(7, 8, pair.right.address(64), pair.right.mr->rkey, 3), 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->opcode, IBV_WC_FETCH_ADD);
    EXPECT_EQ(wc->wr_id, 7U);
    EXPECT_EQ(wc->byte_len, 8U);
    EXPECT_EQ(pair.left.word(8), ~std::uint64_t{0});
    EXPECT_EQ(pair.right.word(64), 2U) << "it wraps";
}

TEST_P(Atomics, CompareSwapSwapsOnlyWhatIsEqual) {
    Pair pair{options(), options()};
    pair.right.word(64) = 5;
    ASSERT_EQ(pair.left.compare_swap(1, 8, pair.right.address(64), pair.right.mr->rkey, 4, 9), 0);
    auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->opcode, IBV_WC_COMP_SWAP);
    EXPECT_EQ(pair.left.word(8), 5U);
    EXPECT_EQ(pair.right.word(64), 5U);
    ASSERT_EQ(pair.left.compare_swap(2, 8, pair.right.address(64), pair.right.mr->rkey, 5, 9), 0);
    wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(pair.left.word(8), 5U);
    EXPECT_EQ(pair.right.word(64), 9U);
}

TEST_P(Atomics, ReachAnotherProcess) {
    RemotePair pair{options(), flags()};
    ASSERT_EQ(pair.right.ask("fill 0 64 0"), "ok");
    for (std::uint64_t i = 0; i < 300; ++i) {
        ASSERT_EQ(pair.left.fetch_add(i, 8, pair.right.address + 16, pair.right.rkey, 1), 0);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        ASSERT_EQ(pair.left.word(8), i);
    }
    const std::uint64_t bytes = 0x4141414141414141;
    ASSERT_EQ(pair.left.compare_swap(1, 8, pair.right.address + 16, pair.right.rkey, 300, bytes),
              0);
    ASSERT_TRUE(pair.left.complete());
    EXPECT_EQ(pair.right.ask("check 16 8 65"), "same");
    EXPECT_EQ(pair.right.ask("check 24 8 0"), "same");
}

TEST_P(Atomics, WaitTheirTurnBehindWhatIsPending) {
    Pair pair{options(), options()};
    pair.right.word(64) = 1;
    ASSERT_EQ(pair.left.send(1, 256, 8), 0);  // no receive yet: everything behind it waits, too
    ASSERT_EQ(pair.left.compare_swap(2, 8, pair.right.address(64), pair.right.mr->rkey, 1, 6), 0);
    ASSERT_EQ(pair.left.fetch_add(3, 16, pair.right.address(64), pair.right.mr->rkey, 10), 0);
    EXPECT_EQ(pair.right.word(64), 1U);
    ASSERT_EQ(pair.right.receive(5, 0, 8), 0);  // its poster runs them
    EXPECT_EQ(pair.right.word(64), 16U);
    for (const std::uint64_t id : {1, 2, 3}) {
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(pair.left.word(8), 1U);
    EXPECT_EQ(pair.left.word(16), 6U);
}

TEST_P(Atomics, NoneIsLostBetweenThreeProcesses) {
    // Both peers and our own queue pair to ourselves count in one word.
    Endpoint to_first{options()};
    Endpoint to_second{options()};
    Endpoint self{options()};
    RemoteEndpoint first{flags()};
    RemoteEndpoint second{flags()};
    ASSERT_EQ(to_first.connect(first.qpn), 0);
    ASSERT_EQ(first.ask("connect " + std::to_string(to_first.qp->qp_num)), "0");
    ASSERT_EQ(to_second.connect(second.qpn), 0);
    ASSERT_EQ(second.ask("connect " + std::to_string(to_second.qp->qp_num)), "0");
    ASSERT_EQ(self.connect(self.qp->qp_num), 0);
    // One region for all would need one protection domain: three registrations of the same memory.
    std::vector<ibv_mr*> regions;
    for (Endpoint* end : {&to_first, &to_second}) {
        regions.push_back(
            soft::reg_mr(end->pd, self.memory, 4096, self.address(), end->options.access));
        ASSERT_NE(regions.back(), nullptr);
    }
    constexpr std::uint64_t times = 3000;
    const auto command = [&](std::size_t which) {
        return "add " + std::to_string(times) + ' ' + std::to_string(self.address(64)) + ' ' +
               std::to_string(regions[which]->rkey);
    };
    ASSERT_TRUE(first.child.write_line(command(0)));
    ASSERT_TRUE(second.child.write_line(command(1)));
    for (std::uint64_t i = 0; i < times; ++i) {
        ASSERT_EQ(self.fetch_add(i, 0, self.address(64), self.mr->rkey, 1), 0);
        const auto wc = self.complete();
        ASSERT_TRUE(wc);
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(first.child.read_line().value_or("gone"), std::to_string(times));
    EXPECT_EQ(second.child.read_line().value_or("gone"), std::to_string(times));
    EXPECT_EQ(self.word(64), 3 * times);
    for (ibv_mr* region : regions) EXPECT_EQ(soft::dereg_mr(region), 0);
}

TEST_P(Atomics, ADeadPeerHoldsNoLock) {
    Endpoint self{options()};
    ASSERT_EQ(self.connect(self.qp->qp_num), 0);
    for (int round = 0; round < 10; ++round) {
        Endpoint ours{options()};
        RemoteEndpoint peer{flags()};
        ASSERT_EQ(ours.connect(peer.qpn), 0);
        ASSERT_EQ(peer.ask("connect " + std::to_string(ours.qp->qp_num)), "0");
        ASSERT_EQ(peer.ask("add_forever " + std::to_string(ours.address(64)) + ' ' +
                           std::to_string(ours.mr->rkey)),
                  "adding");
        std::this_thread::sleep_for(std::chrono::microseconds{500 + 137 * round});
        (void)peer.child.kill_and_wait();
        ASSERT_EQ(self.fetch_add(1, 0, self.address(64), self.mr->rkey, 1), 0);
        const auto wc = self.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
}

/// Another view of our own node's memory file, as a peer opens it.
int open_node_memory() {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory{opendir("/proc/self/fd"), &closedir};
    while (const dirent* entry = readdir(directory.get())) {
        const std::string path = std::string{"/proc/self/fd/"} + entry->d_name;
        char target[256];
        const ssize_t length = readlink(path.c_str(), target, sizeof target);
        if (length > 0 &&
            std::string(target, static_cast<std::size_t>(length)).find("/memfd:millrace-blocks:") ==
                0) {
            return open(path.c_str(), O_RDWR | O_CLOEXEC);
        }
    }
    return -1;
}

/// Everybody's lock of everybody's atomics on such memory.
class AtomicLock {
  public:
    AtomicLock() : file_{open_node_memory()} {}
    ~AtomicLock() { close(file_); }
    AtomicLock(const AtomicLock&) = delete;
    AtomicLock& operator=(const AtomicLock&) = delete;
    [[nodiscard]] int set(short type) const {
        struct flock record {};
        record.l_type = type;
        record.l_len = 64;
        return fcntl(file_, F_OFD_SETLK, &record);
    }

  private:
    int file_;
};

TEST(AtomicsOnPrivateMemory, WaitForTheLock) {
    EndpointOptions options = with_atomics(false);
    options.timeout = 20;  // 4 s, tried 8 times
    Pair pair{options, options};
    const AtomicLock lock;
    ASSERT_EQ(lock.set(F_WRLCK), 0);
    pair.right.word(64) = 1;
    ASSERT_EQ(pair.left.fetch_add(1, 8, pair.right.address(64), pair.right.mr->rkey, 1), 0);
    EXPECT_FALSE(pair.left.poll_once()) << "somebody has the lock";
    EXPECT_EQ(pair.right.word(64), 1U);
    ASSERT_EQ(lock.set(F_UNLCK), 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.word(64), 2U);
}

TEST(AtomicsOnPrivateMemory, GiveUpWaitingForTheLockInTime) {
    EndpointOptions options = with_atomics(false);
    options.timeout = 10;  // 4 ms, tried 8 times
    Pair pair{options, options};
    const AtomicLock lock;
    ASSERT_EQ(lock.set(F_WRLCK), 0);
    pair.right.word(64) = 1;
    ASSERT_EQ(pair.left.fetch_add(2, 8, pair.right.address(64), pair.right.mr->rkey, 1), 0);
    const auto wc = pair.left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(pair.right.word(64), 1U);
}

// --- refusals
// ---------------------------------------------------------------------------------------

TEST(AtomicsAreRefused, OnAnAddressThatIsNotAligned) {
    Pair pair{with_atomics(), with_atomics()};
    ASSERT_EQ(pair.left.fetch_add(1, 0, pair.right.address(4), pair.right.mr->rkey, 1), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(pair.right.word(0), 0U);
}

TEST(AtomicsAreRefused, WhereTheQueuePairGrantsNone) {
    EndpointOptions none = with_atomics();
    none.qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    Pair pair{with_atomics(), none};
    ASSERT_EQ(pair.left.fetch_add(1, 0, pair.right.address(), pair.right.mr->rkey, 1), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_REM_INV_REQ_ERR);
}

TEST(AtomicsAreRefused, WhereTheRegionGrantsNone) {
    EndpointOptions none = with_atomics();
    none.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    Pair pair{with_atomics(), none};
    ASSERT_EQ(pair.left.fetch_add(1, 0, pair.right.address(), pair.right.mr->rkey, 1), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_REM_ACCESS_ERR);
}

TEST(AtomicsAreRefused, BeyondTheRegion) {
    Pair pair{with_atomics(), with_atomics()};
    ASSERT_EQ(pair.left.fetch_add(1, 0, pair.right.address(1 << 16), pair.right.mr->rkey, 1), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_REM_ACCESS_ERR);
}

TEST(AtomicsAreRefused, WithAResultOfAnotherSize) {
    Pair pair{with_atomics(), with_atomics()};
    ASSERT_EQ(pair.left.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {pair.left.sge(0, 4)},
                               pair.right.address(), pair.right.mr->rkey, 1, 0),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(pair.right.word(0), 0U);
}

TEST(AtomicsAreRefused, WhereTheResultMayNotBeWritten) {
    EndpointOptions read_only = with_atomics();
    read_only.access = 0;
    Pair pair{read_only, with_atomics()};
    ASSERT_EQ(pair.left.fetch_add(1, 0, pair.right.address(), pair.right.mr->rkey, 1), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(pair.right.word(0), 1U) << "it was executed before its result came";
}

TEST(AtomicsAreRefused, Inline) {
    Pair pair{with_atomics(), with_atomics()};
    EXPECT_EQ(pair.left.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, {pair.left.sge(0, 8)}, IBV_SEND_INLINE,
                             pair.right.address(), pair.right.mr->rkey),
              EINVAL);
}

TEST(AtomicsAreReported, AsAtomicAmongThemselves) {
    Endpoint end;
    ibv_device_attr attributes{};
    ASSERT_EQ(soft::query_device(end.context, &attributes), 0);
    EXPECT_EQ(attributes.atomic_cap, IBV_ATOMIC_HCA);
}

}  // namespace
}  // namespace millrace::test
