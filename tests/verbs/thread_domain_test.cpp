// Thread domains, over any device that has them.
#include "millrace/verbs/thread_domain.hpp"

#include <cstdint>
#include <optional>
#include <utility>

#include "loopback.hpp"

namespace millrace::verbs::test {
namespace {

class ThreadDomains : public testing::Test {
  protected:
    void SetUp() override {
        try {
            thread = ThreadDomain::allocate(loopback.context);
        } catch (const base::Error& error) {
            if (error.code() != base::ErrorCode::unsupported) throw;
            ASSERT_FALSE(loopback.context.is_soft()) << error.what();
            GTEST_SKIP() << error.what();
        }
    }
    Loopback loopback{false};
    ThreadDomain thread;
};

TEST_F(ThreadDomains, HaveQueuePairsThatUseTheRegionsOfTheirProtectionDomain) {
    ProtectionDomain domain = thread.domain_for(loopback.domain);
    auto& a = loopback.a;
    auto& b = loopback.b;
    a.queue_pair = domain.create_queue_pair({.send_queue = &a.sends,
                                             .receive_queue = &a.receives,
                                             .max_send_requests = 16,
                                             .max_receive_requests = 16});
    a.queue_pair.initialise(loopback.port, everything);
    // A region of each kind, on either side.
    a.memory = domain.allocate(4096, everything);
    a.queue_pair.connect(loopback.address(b), 77, loopback.path());
    b.queue_pair.connect(loopback.address(a), 77, loopback.path());
    a.memory.data()[0] = std::byte{42};
    const ibv_sge from = a.memory.slice(0, 8);
    ASSERT_EQ(a.queue_pair.post(Write{
                  .from = {&from, 1}, .to = b.memory.remote(64), .flags = SendFlags::signaled}),
              0);
    EXPECT_EQ(next(a.sends).raw.status, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory.data()[64], std::byte{42});
    const RegisteredBuffer shared = loopback.domain.allocate(4096, everything);
    shared.data()[0] = std::byte{43};
    const ibv_sge of_the_other = shared.slice(0, 8);
    ASSERT_EQ(
        a.queue_pair.post(Write{
            .from = {&of_the_other, 1}, .to = b.memory.remote(128), .flags = SendFlags::signaled}),
        0);
    EXPECT_EQ(next(a.sends).raw.status, IBV_WC_SUCCESS);
    EXPECT_EQ(b.memory.data()[128], std::byte{43});
    // What the peer writes is checked against the same domain.
    const ibv_sge back = b.memory.slice(0, 8);
    ASSERT_EQ(b.queue_pair.post(Write{
                  .from = {&back, 1}, .to = a.memory.remote(8), .flags = SendFlags::signaled}),
              0);
    EXPECT_EQ(next(b.sends).raw.status, IBV_WC_SUCCESS);
    a.queue_pair = {};
    a.memory = {};
}

TEST_F(ThreadDomains, AreOfNoOtherThreadDomain) {
    const ProtectionDomain domain = thread.domain_for(loopback.domain);
    try {
        (void)thread.domain_for(domain);
        FAIL() << "a domain within a domain";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << error.what();
    }
}

TEST_F(ThreadDomains, Move) {
    ThreadDomain moved{std::move(thread)};
    EXPECT_EQ(thread.raw(), nullptr);
    std::optional<ProtectionDomain> domain{moved.domain_for(loopback.domain)};
    EXPECT_NE(domain->raw(), nullptr);
    domain.reset();
    moved = ThreadDomain{};
    EXPECT_EQ(moved.raw(), nullptr);
}

}  // namespace
}  // namespace millrace::verbs::test
