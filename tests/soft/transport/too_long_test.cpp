// A request for more bytes than a message has, in flight: it fails in its turn, and neither its
// memory is looked at nor the port taken for it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <vector>

#include "queue_pair/queue_pair.hpp"
#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "system/cable_time.hpp"
#include "system/descriptor.hpp"

namespace millrace::test {
namespace {

constexpr std::uint32_t pieces = 16;

EndpointOptions of_many_pieces() {
    EndpointOptions options;
    options.sges = pieces;
    return options;
}

/// Memory that nobody has touched, of which `pieces` times all of it make no message any more.
class Untouched {
  public:
    explicit Untouched(const Endpoint& end) {
        EXPECT_EQ(ftruncate(file_.get(), static_cast<off_t>(bytes)), 0);
        memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
        mr_ = soft::reg_mr(end.pd, memory_, bytes, reinterpret_cast<std::uint64_t>(memory_),
                           IBV_ACCESS_LOCAL_WRITE);
        EXPECT_NE(mr_, nullptr);
    }
    ~Untouched() {
        EXPECT_EQ(soft::dereg_mr(mr_), 0);
        munmap(memory_, bytes);
    }
    Untouched(const Untouched&) = delete;
    Untouched& operator=(const Untouched&) = delete;

    [[nodiscard]] std::vector<ibv_sge> too_much() const {
        return {pieces, ibv_sge{reinterpret_cast<std::uint64_t>(memory_),
                                static_cast<std::uint32_t>(bytes), mr_->lkey}};
    }
    [[nodiscard]] bool is_still_so() const {
        struct stat status {};
        return fstat(file_.get(), &status) == 0 && status.st_blocks == 0;
    }

  private:
    static constexpr std::size_t bytes = std::size_t{160} << 20;
    static_assert(bytes * pieces > soft::max_message_bytes);

    const soft::Descriptor file_{memfd_create("test-untouched", MFD_CLOEXEC)};
    void* memory_ = nullptr;
    ibv_mr* mr_ = nullptr;
};

TEST(TooLongARequest, TakesNoTimeOnThePort) {
    const ModeScope mode{"shaped:10g,latency=1us"};
    Pair pair{of_many_pieces(), of_many_pieces()};
    Pair other;
    const Untouched memory{pair.left};
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 1, memory.too_much(), IBV_SEND_SIGNALED,
                             pair.right.address(), pair.right.mr->rkey),
              0);
    ASSERT_EQ(other.left.write(2, 0, 8, other.right.address(), other.right.mr->rkey), 0);
    const std::int64_t posted = soft::cable_now();
    // When it is due was said when it was posted: a microsecond later, not two seconds.
    const auto& block = static_cast<soft::QueuePair*>(other.left.qp)->block;
    EXPECT_LT(block.pending_due(soft::first_position), posted + 1'000'000);
    EXPECT_EQ(status_of(other.left), IBV_WC_SUCCESS);
    EXPECT_EQ(status_of(pair.left), IBV_WC_LOC_LEN_ERR);
    EXPECT_TRUE(memory.is_still_so());
}

TEST(TooLongARequest, IsNotSummedUpInModeStrict) {
    const ModeScope mode{"strict:seed=1"};
    Pair pair{of_many_pieces(), of_many_pieces()};
    const Untouched memory{pair.left};
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 1, memory.too_much(), IBV_SEND_SIGNALED,
                             pair.right.address(), pair.right.mr->rkey),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_LOC_LEN_ERR);
    EXPECT_TRUE(memory.is_still_so());
}

}  // namespace
}  // namespace millrace::test
