// Typed atomics over any device that has them.
#include <cstdint>
#include <cstring>

#include "loopback.hpp"

namespace millrace::verbs::test {
namespace {

constexpr Access atomically = everything | Access::remote_atomic;

std::uint64_t word(const RegisteredBuffer& memory, std::size_t offset) {
    std::uint64_t value;
    std::memcpy(&value, memory.data() + offset, sizeof value);
    return value;
}

class Atomics : public testing::Test {
  protected:
    void SetUp() override {
        if (loopback.context.attributes().atomic_cap == IBV_ATOMIC_NONE) {
            GTEST_SKIP() << "this device has no atomics";
        }
    }
    Loopback loopback{true, atomically, atomically};
};

TEST_F(Atomics, CompareAndSwapChangesOnlyWhatIsAsExpected) {
    auto& [sends, receives, queue_pair, memory] = loopback.a;
    const ibv_sge into = memory.slice(64, 8);
    const RemoteAddress at = loopback.b.memory.remote() + 8;
    for (const std::uint64_t expected : {std::uint64_t{5}, std::uint64_t{0}}) {
        ASSERT_EQ(queue_pair.post(CompareAndSwap{.id = 7,
                                                 .into = {&into, 1},
                                                 .at = at,
                                                 .expected = expected,
                                                 .desired = 77,
                                                 .flags = SendFlags::signaled}),
                  0);
        const Completion completion = next(sends);
        EXPECT_EQ(completion.raw.status, IBV_WC_SUCCESS);
        EXPECT_EQ(completion.raw.opcode, IBV_WC_COMP_SWAP);
        EXPECT_EQ(word(memory, 64), 0U);
        EXPECT_EQ(word(loopback.b.memory, 8), expected == 0 ? 77U : 0U);
    }
}

TEST_F(Atomics, FetchAndAddAddsAndWraps) {
    auto& [sends, receives, queue_pair, memory] = loopback.a;
    const ibv_sge into = memory.slice(64, 8);
    const RemoteAddress at = loopback.b.memory.remote() + 16;
    for (const std::uint64_t add : {~std::uint64_t{0}, std::uint64_t{3}}) {
        ASSERT_EQ(
            queue_pair.post(FetchAndAdd{
                .id = 1, .into = {&into, 1}, .at = at, .add = add, .flags = SendFlags::signaled}),
            0);
        EXPECT_EQ(next(sends).raw.status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(word(memory, 64), ~std::uint64_t{0});
    EXPECT_EQ(word(loopback.b.memory, 16), 2U);
}

}  // namespace
}  // namespace millrace::verbs::test
