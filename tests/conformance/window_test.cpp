// Memory windows of both types, and sends that invalidate (InfiniBand specification 1.2.1 vol. 1,
// 10.6.7; ibv_alloc_mw(3), ibv_bind_mw(3)).
#include <gtest/gtest.h>

#include <cstdint>

#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

class Windows : public OnDevice, public testing::WithParamInterface<ibv_mw_type> {
  protected:
    void SetUp() override {
        const bool first = GetParam() == IBV_MW_TYPE_1;
        const bool can = first ? device.can(IBV_DEVICE_MEM_WINDOW)
                               : device.can(IBV_DEVICE_MEM_WINDOW_TYPE_2A) ||
                                     device.can(IBV_DEVICE_MEM_WINDOW_TYPE_2B);
        if (!can) {
            CONFORMANCE_LACKS(first ? "windows-1" : "windows-2", "device_cap_flags");
        }
        memory =
            std::make_unique<Buffer>(pair.b_domain.get(), 16384, all_access | IBV_ACCESS_MW_BIND);
        window.reset(made(ibv_alloc_mw(pair.b_domain.get(), GetParam()), "ibv_alloc_mw"));
        EXPECT_EQ(window->type, GetParam());
    }
    /// Binds the window to [offset, offset + length) of the memory and waits for the completion.
    int bind(std::size_t offset, std::size_t length, unsigned access,
             ibv_wc_status expected = IBV_WC_SUCCESS) {
        const ibv_mw_bind_info info{memory->region(), memory->address(offset), length, access};
        int error = 0;
        if (GetParam() == IBV_MW_TYPE_1) {
            ibv_mw_bind request{};
            request.wr_id = 77;
            request.send_flags = IBV_SEND_SIGNALED;
            request.bind_info = info;
            error = ibv_bind_mw(pair.b.qp.get(), window.get(), &request);
            key = window->rkey;
        } else {
            key = ibv_inc_rkey(key == 0 ? window->rkey : key);
            ibv_send_wr wr{};
            wr.wr_id = 77;
            wr.opcode = IBV_WR_BIND_MW;
            wr.send_flags = IBV_SEND_SIGNALED;
            wr.bind_mw.mw = window.get();
            wr.bind_mw.rkey = key;
            wr.bind_mw.bind_info = info;
            ibv_send_wr* bad = nullptr;
            error = ibv_post_send(pair.b.qp.get(), &wr, &bad);
        }
        if (error != 0) return error;
        const ibv_wc done = next(pair.b.sends);
        EXPECT_EQ(done.status, expected) << ibv_wc_status_str(done.status);
        if (done.status == IBV_WC_SUCCESS) {
            EXPECT_EQ(done.opcode, IBV_WC_BIND_MW);
        }
        return 0;
    }
    /// The same for a window that is bound; one of type 2 is invalidated first.
    void bind_anew(std::size_t offset, std::size_t length, unsigned access) {
        if (GetParam() == IBV_MW_TYPE_2) {
            ibv_send_wr wr{};
            wr.wr_id = 5;
            wr.opcode = IBV_WR_LOCAL_INV;
            wr.send_flags = IBV_SEND_SIGNALED;
            wr.invalidate_rkey = key;
            ibv_send_wr* bad = nullptr;
            ASSERT_EQ(ibv_post_send(pair.b.qp.get(), &wr, &bad), 0);
            EXPECT_COMPLETES(pair.b.sends, 5, IBV_WC_LOCAL_INV);
        }
        ASSERT_EQ(bind(offset, length, access), 0);
    }
    Target through(std::size_t offset) const { return {memory->address(offset), key}; }

    Loopback pair{device, impatient()};
    std::unique_ptr<Buffer> memory;
    Window window;
    std::uint32_t key = 0;
};

constexpr unsigned both_ways = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

TEST_P(Windows, GiveAccessToTheBoundPart) {
    ASSERT_EQ(bind(4096, 100, both_ways), 0);
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 100)}, through(4096)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 0, *memory, 4096, 100));
    ASSERT_EQ(pair.a.read(2, {pair.a_memory.slice(200, 50)}, through(4110)), 0);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_READ);
    EXPECT_TRUE(same(pair.a_memory, 14, pair.a_memory, 200, 50));
}

TEST_P(Windows, GiveNoAccessBeyondTheBoundPart) {
    ASSERT_EQ(bind(4096, 100, both_ways), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, through(4096 + 93)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(memory->untouched());
}

TEST_P(Windows, GiveOnlyTheAccessTheyWereBoundWith) {
    ASSERT_EQ(bind(0, 4096, IBV_ACCESS_REMOTE_READ), 0);
    ASSERT_EQ(pair.a.read(1, {pair.a_memory.slice(0, 8)}, through(0)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_READ);
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 8)}, through(0)), 0);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Windows, AnEarlierBindingsKeyIsWorthNothing) {
    ASSERT_EQ(bind(0, 4096, both_ways), 0);
    const std::uint32_t before = key;
    bind_anew(4096, 4096, both_ways);
    EXPECT_NE(key, before);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, through(4096)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(0, 8)}, {memory->address(4096), before}), 0);
    EXPECT_FAILS(pair.a.sends, 2, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Windows, AKeyThatComesAgainGivesAccessToWhatItIsBoundToNow) {
    ASSERT_EQ(bind(0, 4096, both_ways), 0);
    const std::uint32_t first = key;
    pair.a_memory.fill(1);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, through(0)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    for (int count = 0; count < 256 && (count == 0 || key != first); ++count) {
        bind_anew(4096, 4096, both_ways);
    }
    ASSERT_EQ(key, first) << "the low 8 bits count on";
    ASSERT_EQ(pair.a.write(2, {pair.a_memory.slice(100, 8)}, through(4096)), 0);
    EXPECT_COMPLETES(pair.a.sends, 2, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(same(pair.a_memory, 100, *memory, 4096, 8));
    ASSERT_EQ(pair.a.write(3, {pair.a_memory.slice(100, 8)}, through(0)), 0);
    EXPECT_FAILS(pair.a.sends, 3, IBV_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(same(pair.a_memory, 0, *memory, 0, 8)) << "as the first binding left it";
}

TEST_P(Windows, ARegionWithABoundWindowIsBusy) {
    ASSERT_EQ(bind(0, 4096, both_ways), 0);
    EXPECT_NE(ibv_dereg_mr(memory->region()), 0);
    EXPECT_EQ(ibv_dealloc_mw(window.release()), 0);
    EXPECT_EQ(memory->deregister(), 0);
}

TEST_P(Windows, ADomainWithAWindowIsBusy) {
    const Domain own{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    Window another{made(ibv_alloc_mw(own.get(), GetParam()), "ibv_alloc_mw")};
    EXPECT_EQ(ibv_dealloc_pd(own.get()), EBUSY);
    EXPECT_EQ(ibv_dealloc_mw(another.release()), 0);
}

TEST_P(Windows, AKeyIsWorthNothingAfterDeallocation) {
    ASSERT_EQ(bind(0, 4096, both_ways), 0);
    ASSERT_EQ(ibv_dealloc_mw(window.release()), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, through(0)), 0);
    EXPECT_FAILS(pair.a.sends, 1, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Windows, ARegionThatDoesNotAllowBindingIsNotBound) {
    memory = std::make_unique<Buffer>(pair.b_domain.get(), 4096, all_access);
    const ibv_mw_bind_info info{memory->region(), memory->address(), 4096, both_ways};
    int error = 0;
    if (GetParam() == IBV_MW_TYPE_1) {
        ibv_mw_bind request{};
        request.wr_id = 77;
        request.send_flags = IBV_SEND_SIGNALED;
        request.bind_info = info;
        error = ibv_bind_mw(pair.b.qp.get(), window.get(), &request);
    } else {
        ibv_send_wr wr{};
        wr.wr_id = 77;
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw.mw = window.get();
        wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
        wr.bind_mw.bind_info = info;
        ibv_send_wr* bad = nullptr;
        error = ibv_post_send(pair.b.qp.get(), &wr, &bad);
    }
    if (error != 0) return;  // refused while posting
    const ibv_wc done = next(pair.b.sends);
    EXPECT_NE(done.status, IBV_WC_SUCCESS);
    EXPECT_NE(done.status, IBV_WC_GENERAL_ERR);
}

TEST_P(Windows, ASendThatInvalidatesTakesAccessAndTellsTheReceiver) {
    if (GetParam() != IBV_MW_TYPE_2)
        GTEST_SKIP() << "only windows of type 2 are invalidated remotely";
    ASSERT_EQ(bind(0, 4096, both_ways), 0);
    ASSERT_EQ(pair.a.write(1, {pair.a_memory.slice(0, 8)}, through(0)), 0);
    EXPECT_COMPLETES(pair.a.sends, 1, IBV_WC_RDMA_WRITE);
    ASSERT_EQ(pair.b.receive(2, {pair.b_memory.slice(0, 64)}), 0);
    ASSERT_EQ(pair.a.post(IBV_WR_SEND_WITH_INV, 3, {pair.a_memory.slice(0, 8)}, {},
                          IBV_SEND_SIGNALED, key),
              0);
    EXPECT_COMPLETES(pair.a.sends, 3, IBV_WC_SEND);
    const ibv_wc received = next(pair.b.receives);
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.opcode, IBV_WC_RECV);
    EXPECT_NE(received.wc_flags & IBV_WC_WITH_INV, 0U);
    EXPECT_EQ(received.invalidated_rkey, key);
    ASSERT_EQ(pair.a.write(4, {pair.a_memory.slice(0, 8)}, through(0)), 0);
    EXPECT_FAILS(pair.a.sends, 4, IBV_WC_REM_ACCESS_ERR);
}

INSTANTIATE_TEST_SUITE_P(OfType, Windows, testing::Values(IBV_MW_TYPE_1, IBV_MW_TYPE_2),
                         [](const testing::TestParamInfo<ibv_mw_type>& type) {
                             return type.param == IBV_MW_TYPE_1 ? "1" : "2";
                         });

}  // namespace
}  // namespace millrace::conformance
