// Keys of regions whose index comes again: what either end remembers of the earlier region is not
// taken for the one that there is now.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "fabric/node.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

/// Takes all indices that there are while it lives, so that what is given back is given again.
class FullTable {
  public:
    FullTable() {
        while (const std::uint32_t key = table_.add_window()) keys_.push_back(key);
    }
    ~FullTable() {
        for (const std::uint32_t key : keys_) table_.release_window(key);
    }
    FullTable(const FullTable&) = delete;
    FullTable& operator=(const FullTable&) = delete;
    [[nodiscard]] const std::vector<std::uint32_t>& keys() const noexcept { return keys_; }

  private:
    const std::shared_ptr<soft::Process> process_ = soft::current_process();
    soft::RegionTable& table_ = process_->node().regions();
    std::vector<std::uint32_t> keys_;
};

/// The region of that end is now that memory, at the same index.
void register_anew(Endpoint& end, std::byte* memory) {
    ASSERT_EQ(soft::dereg_mr(end.mr), 0);
    end.mr = soft::reg_mr(end.pd, memory, 4096, reinterpret_cast<std::uint64_t>(memory),
                          end.options.access);
    ASSERT_NE(end.mr, nullptr);
}

/// So often the lower half of a salt differs.
constexpr int lower_halves = 256;

class ComesAgain : public testing::TestWithParam<bool> {};

TEST_P(ComesAgain, AndIsGoodForTheRegionThatThereIsNow) {
    const bool senders = GetParam();
    Pair pair;
    Endpoint& changed = senders ? pair.left : pair.right;
    register_anew(changed, changed.memory);
    const std::uint32_t index = soft::index_of_key(changed.mr->rkey);
    const auto write = [&](std::size_t offset) {
        const std::uint64_t to = pair.right.address(senders ? 0 : offset);
        const ibv_sge from = pair.left.sge(senders ? offset : 0, 8);
        EXPECT_EQ(pair.left.post(IBV_WR_RDMA_WRITE, 1, {from}, IBV_SEND_SIGNALED, to,
                                 pair.right.mr->rkey),
                  0);
        const auto done = pair.left.complete();
        return done ? done->status : IBV_WC_GENERAL_ERR;
    };
    pair.left.word(0) = 1;
    ASSERT_EQ(write(0), IBV_WC_SUCCESS);
    const std::uint32_t first = changed.mr->rkey;
    const std::size_t place = 8192;
    const FullTable others;
    for (int count = 0; count < lower_halves && (count == 0 || changed.mr->rkey != first);
         ++count) {
        register_anew(changed, changed.memory + place);
        ASSERT_EQ(soft::index_of_key(changed.mr->rkey), index);
    }
    pair.left.word(senders ? place : 0) = 2;
    ASSERT_EQ(write(place), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.word(senders ? 0 : place), 2U);
}

INSTANTIATE_TEST_SUITE_P(RegionKey, ComesAgain, testing::Bool(), [](const auto& name) {
    return name.param ? "ByWhichIsSent" : "ByWhichIsReceived";
});

TEST(RegionKeys, CannotBeToldFromThoseThatThereAre) {
    const FullTable all;
    std::set<std::uint16_t> salts;
    for (const std::uint32_t key : all.keys()) {
        ASSERT_NE(key >> 24, 0U);
        ASSERT_EQ(key >> 31, 0U);
        salts.insert(soft::salt_of_key(key));
    }
    // Of 32,512; at random, some 28,000.
    EXPECT_GT(salts.size(), 20'000U);
}

}  // namespace
}  // namespace millrace::test
