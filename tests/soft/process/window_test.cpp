// Memory windows of both types: binding, rights, invalidation by either side, and errors.
#include <cstdint>
#include <utility>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr unsigned remote_all =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

EndpointOptions bindable(ibv_qp_type type = IBV_QPT_RC) {
    EndpointOptions options;
    options.type = type;
    options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;  // peers reach it by windows only
    options.qp_access = remote_all;
    return options;
}

ibv_wc_status write_by(Endpoint& end, std::uint64_t address, std::uint32_t key,
                       std::size_t length = 8) {
    EXPECT_EQ(end.write(1, 0, length, address, key), 0);
    return status_of(end);
}

/// Binds a window of type 2 through `end`'s queue pair.
int post_bind(Endpoint& end, ibv_mw* window, std::uint32_t key, std::uint64_t address,
              std::uint64_t length, unsigned access, std::uint64_t id = 50,
              unsigned flags = IBV_SEND_SIGNALED) {
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = flags;
    wr.bind_mw.mw = window;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = {end.mr, address, length, access};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end.qp, &wr, &bad);
}

int post_invalidate(Endpoint& end, std::uint32_t key, ibv_wr_opcode opcode = IBV_WR_LOCAL_INV) {
    ibv_send_wr wr{};
    wr.wr_id = 60;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = key;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end.qp, &wr, &bad);
}

struct WindowPair : Pair {
    explicit WindowPair(ibv_qp_type type = IBV_QPT_RC) : Pair{bindable(type), bindable(type)} {
        window = ibv_alloc_mw(right.pd, IBV_MW_TYPE_2);
        EXPECT_NE(window, nullptr);
        std::memset(left.memory, 0x42, 4096);
    }
    ~WindowPair() {
        if (window != nullptr) {
            EXPECT_EQ(ibv_dealloc_mw(window), 0);
        }
    }
    /// Shows [offset, offset + length) of the right buffer; the key.
    std::uint32_t bind(std::size_t offset, std::size_t length,
                       unsigned access = IBV_ACCESS_REMOTE_WRITE) {
        const std::uint32_t key = ibv_inc_rkey(window->rkey);
        EXPECT_EQ(post_bind(right, window, key, right.address(offset), length, access), 0);
        EXPECT_EQ(status_of(right), IBV_WC_SUCCESS);
        return key;
    }
    ibv_mw* window = nullptr;
};

// --- type 2
// -----------------------------------------------------------------------------------------

TEST(MemoryWindow, ShowsAPartOfTheRegionAndNoMore) {
    WindowPair pair;
    EXPECT_EQ(write_by(pair.left, pair.right.address(), pair.window->rkey), IBV_WC_REM_ACCESS_ERR)
        << "it is not bound";
    WindowPair fresh;
    const std::uint32_t key = fresh.bind(4096, 64);
    EXPECT_EQ(fresh.window->rkey, key);
    EXPECT_EQ(write_by(fresh.left, fresh.right.address(4096), key), IBV_WC_SUCCESS);
    EXPECT_EQ(fresh.right.memory[4096], std::byte{0x42});
    EXPECT_EQ(write_by(fresh.left, fresh.right.address(4096 + 57), key), IBV_WC_REM_ACCESS_ERR);
}

TEST(MemoryWindow, TheCompletionOfItsBindingSaysSo) {
    WindowPair pair;
    ASSERT_EQ(post_bind(pair.right, pair.window, ibv_inc_rkey(pair.window->rkey),
                        pair.right.address(), 64, IBV_ACCESS_REMOTE_READ, 51),
              0);
    auto wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 51U);
    EXPECT_EQ(wc->opcode, IBV_WC_BIND_MW);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    ASSERT_EQ(post_invalidate(pair.right, pair.window->rkey), 0);
    wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 60U);
    EXPECT_EQ(wc->opcode, IBV_WC_LOCAL_INV);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
}

TEST(MemoryWindow, GrantsWhatItWasBoundWith) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 4096, IBV_ACCESS_REMOTE_READ);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(64, 8)}, IBV_SEND_SIGNALED,
                             pair.right.address(), key),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_REM_ACCESS_ERR);
}

TEST(MemoryWindow, GrantsAtomics) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 4096, IBV_ACCESS_REMOTE_ATOMIC);
    ASSERT_EQ(pair.left.fetch_add(1, 64, pair.right.address(8), key, 5), 0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.word(8), 5U);
}

TEST(MemoryWindow, MayCountFromZero) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(512, 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);
    EXPECT_EQ(write_by(pair.left, 8, key), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[520], std::byte{0x42});
    EXPECT_EQ(pair.right.memory[519], std::byte{0});
}

TEST(MemoryWindow, TakesTheFlagsOfARegionAndGrantsNoMoreForThem) {
    WindowPair pair;
    const std::uint32_t key =
        pair.bind(0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(64, 8)}, IBV_SEND_SIGNALED,
                             pair.right.address(), key),
              0);
    EXPECT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_REM_ACCESS_ERR);
}

TEST(MemoryWindow, TakesTheLowBitsOfItsKeyOnlyFromTheProgram) {
    WindowPair pair;
    const std::uint32_t own = pair.window->rkey;
    const std::uint32_t asked = 0xabcdef00U | ((own + 5) & 0xffU);
    ASSERT_EQ(post_bind(pair.right, pair.window, asked, pair.right.address(), 64,
                        IBV_ACCESS_REMOTE_WRITE),
              0);
    ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.window->rkey, (own & ~0xffU) | (asked & 0xffU));
    EXPECT_EQ(write_by(pair.left, pair.right.address(), pair.window->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), asked), IBV_WC_REM_ACCESS_ERR);
}

TEST(MemoryWindow, ShowsDeviceMemory) {
    for (const unsigned rights :
         {unsigned{IBV_ACCESS_LOCAL_WRITE}, remote_all | IBV_ACCESS_LOCAL_WRITE}) {
        WindowPair pair;
        ibv_alloc_dm_attr attributes{};
        attributes.length = 4096;
        ibv_dm* const memory = ibv_alloc_dm(pair.right.context, &attributes);
        ASSERT_NE(memory, nullptr);
        ibv_mr* const region = ibv_reg_dm_mr(pair.right.pd, memory, 1024, 1024,
                                             rights | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_MW_BIND);
        ASSERT_NE(region, nullptr);
        ibv_mr* const plain = std::exchange(pair.right.mr, region);
        const std::uint32_t key = ibv_inc_rkey(pair.window->rkey);
        EXPECT_EQ(post_bind(pair.right, pair.window, key, 64, 64,
                            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED),
                  0);
        EXPECT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
        EXPECT_EQ(write_by(pair.left, 8, key), IBV_WC_SUCCESS);
        std::byte written{};
        EXPECT_EQ(ibv_memcpy_from_dm(&written, memory, 1024 + 64 + 8, 1), 0);
        EXPECT_EQ(written, std::byte{0x42});
        pair.right.mr = plain;
        EXPECT_EQ(ibv_dealloc_mw(std::exchange(pair.window, nullptr)), 0);
        EXPECT_EQ(soft::dereg_mr(region), 0);
        EXPECT_EQ(ibv_free_dm(memory), 0);
    }
}

TEST(MemoryWindow, IsOfOneQueuePairOnly) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 4096);
    // Another connection into the same protection domain.
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = pair.right.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 4, 1, 1, 0};
    Endpoint other{bindable()};
    ibv_qp* const second = soft::create_qp(pair.right.pd, &init);
    ASSERT_NE(second, nullptr);
    ibv_qp* const first = std::exchange(pair.right.qp, second);
    EXPECT_EQ(other.connect(second->qp_num), 0);
    EXPECT_EQ(pair.right.connect(other.qp->qp_num), 0);
    EXPECT_EQ(write_by(other, pair.right.address(), key), IBV_WC_REM_ACCESS_ERR);
    pair.right.qp = first;
    soft::destroy_qp(second);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_SUCCESS);
}

TEST(MemoryWindow, IsInvalidatedByItsOwner) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 4096);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_SUCCESS);
    ASSERT_EQ(post_invalidate(pair.right, key), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_REM_ACCESS_ERR);
}

TEST(MemoryWindow, IsInvalidatedByASendOfThePeer) {
    for (const auto type : {IBV_QPT_RC, IBV_QPT_UC}) {
        WindowPair pair{type};
        const std::uint32_t key = pair.bind(0, 4096);
        EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_SUCCESS);
        ASSERT_EQ(pair.right.receive(9, 8192, 64), 0);
        ibv_sge piece = pair.left.sge(0, 16);
        ibv_send_wr wr{};
        wr.wr_id = 3;
        wr.opcode = IBV_WR_SEND_WITH_INV;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.invalidate_rkey = key;
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(pair.left.qp, &wr, &bad), 0);
        auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->opcode, IBV_WC_SEND);
        // At once, and not only when the owner hears of it.
        std::memset(pair.right.memory, 0, 8);
        EXPECT_EQ(write_by(pair.left, pair.right.address(), key),
                  type == IBV_QPT_RC ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
        EXPECT_EQ(pair.right.memory[0], std::byte{0});
        wc = pair.right.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, 9U);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc->wc_flags, unsigned{IBV_WC_WITH_INV});
        EXPECT_EQ(wc->invalidated_rkey, key);
        EXPECT_EQ(pair.right.memory[8192], std::byte{0x42});
    }
}

TEST(MemoryWindow, IsBoundAnewAfterEachInvalidation) {
    WindowPair pair;
    for (int round = 0; round < 600; ++round) {  // the keys come round
        const auto offset = static_cast<std::size_t>(round) * 8;
        const std::uint32_t key = pair.bind(offset, 8);
        ASSERT_EQ(write_by(pair.left, pair.right.address(offset), key), IBV_WC_SUCCESS) << round;
        ASSERT_EQ(pair.right.memory[offset], std::byte{0x42});
        if (round % 2 == 0) {
            ASSERT_EQ(post_invalidate(pair.right, key), 0);
            ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
        } else {
            ASSERT_EQ(pair.right.receive(9, 8192, 0), 0);
            ASSERT_EQ(post_invalidate(pair.left, key, IBV_WR_SEND_WITH_INV), 0);
            ASSERT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
            ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
        }
    }
}

TEST(MemoryWindow, TheSameKeyAgainShowsTheNewPlace) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 8);
    EXPECT_EQ(write_by(pair.left, pair.right.address(0), key), IBV_WC_SUCCESS);
    ASSERT_EQ(post_invalidate(pair.right, key), 0);
    ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    ASSERT_EQ(
        post_bind(pair.right, pair.window, key, pair.right.address(64), 8, IBV_ACCESS_REMOTE_WRITE),
        0);
    ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_EQ(write_by(pair.left, pair.right.address(64), key), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[64], std::byte{0x42});
    EXPECT_EQ(write_by(pair.left, pair.right.address(0), key), IBV_WC_REM_ACCESS_ERR);
}

TEST(MemoryWindow, WaitsItsTurnBehindWhatIsPending) {
    WindowPair pair;
    const std::uint32_t key = ibv_inc_rkey(pair.window->rkey);
    ASSERT_EQ(pair.right.send(1, 0, 8), 0);  // no receive: it and what follows wait
    ASSERT_EQ(
        post_bind(pair.right, pair.window, key, pair.right.address(), 64, IBV_ACCESS_REMOTE_WRITE),
        0);
    ASSERT_EQ(pair.right.send(3, 0, 8), 0);
    EXPECT_FALSE(pair.right.poll_once());
    EXPECT_EQ(ibv_dealloc_mw(pair.window), EBUSY) << "a request names it";
    ASSERT_EQ(pair.left.receive(1, 512, 8), 0);  // runs the SEND, and must leave the rest
    ASSERT_EQ(pair.left.receive(2, 512, 8), 0);
    for (const std::uint64_t id : {1, 50, 3}) {
        const auto wc = pair.right.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, id);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
    ASSERT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    ASSERT_EQ(status_of(pair.left), IBV_WC_SUCCESS);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_SUCCESS);
}

TEST(MemoryWindow, PendingBindingsAreForgottenInError) {
    WindowPair pair;
    ASSERT_EQ(pair.right.send(1, 0, 8), 0);
    ASSERT_EQ(post_bind(pair.right, pair.window, ibv_inc_rkey(pair.window->rkey),
                        pair.right.address(), 64, IBV_ACCESS_REMOTE_WRITE),
              0);
    ASSERT_EQ(pair.right.to_state(IBV_QPS_ERR), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_WR_FLUSH_ERR);
    const auto wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 50U);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(ibv_dealloc_mw(std::exchange(pair.window, nullptr)), 0);
}

TEST(MemoryWindow, KeepsItsRegionRegistered) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 64);
    EXPECT_EQ(soft::dereg_mr(pair.right.mr), EBUSY);
    EXPECT_EQ(soft::rereg_mr(pair.right.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 1),
              IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(write_by(pair.left, pair.right.address(), key), IBV_WC_SUCCESS);
    ASSERT_EQ(post_invalidate(pair.right, key), 0);
    ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_EQ(soft::dereg_mr(std::exchange(pair.right.mr, nullptr)), 0);
}

TEST(MemoryWindow, EndsWithItsQueuePair) {
    WindowPair pair;
    pair.bind(0, 64);
    ASSERT_EQ(soft::destroy_qp(std::exchange(pair.right.qp, nullptr)), 0);
    EXPECT_EQ(soft::dereg_mr(std::exchange(pair.right.mr, nullptr)), 0);
    EXPECT_EQ(ibv_dealloc_mw(std::exchange(pair.window, nullptr)), 0);
}

TEST(MemoryWindow, IsNotALocalKey) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 4096, remote_all);
    ASSERT_EQ(pair.right.post(IBV_WR_SEND, 1, {ibv_sge{pair.right.address(), 8, key}}), 0);
    ASSERT_EQ(pair.left.receive(1, 0, 8), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_LOC_PROT_ERR);
}

TEST(MemoryWindow, ReachesAnotherProcess) {
    Endpoint ours{bindable()};
    RemoteEndpoint peer;
    ASSERT_EQ(ours.connect(peer.qpn), 0);
    ASSERT_EQ(peer.ask("connect " + std::to_string(ours.qp->qp_num)), "0");
    ibv_mw* const window = ibv_alloc_mw(ours.pd, IBV_MW_TYPE_2);
    ASSERT_NE(window, nullptr);
    ASSERT_EQ(peer.ask("fill 0 64 51"), "ok");
    for (int round = 0; round < 3; ++round) {
        const std::uint32_t key = ibv_inc_rkey(window->rkey);
        const auto offset = static_cast<std::size_t>(4096 * (round + 1));
        ASSERT_EQ(post_bind(ours, window, key, ours.address(offset), 64, IBV_ACCESS_REMOTE_WRITE),
                  0);
        ASSERT_EQ(status_of(ours), IBV_WC_SUCCESS);
        ASSERT_EQ(peer.ask("write 1 0 64 " + std::to_string(ours.address(offset)) + ' ' +
                           std::to_string(key)),
                  "0");
        ASSERT_EQ(peer.ask("complete"), "1 0 64");
        EXPECT_EQ(ours.memory[offset + 63], std::byte{51});
        ASSERT_EQ(post_invalidate(ours, key), 0);
        ASSERT_EQ(status_of(ours), IBV_WC_SUCCESS);
    }
    EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

// --- refusals
// ---------------------------------------------------------------------------------------

TEST(BindingIsRefused, ForWhatTheSpecificationForbids) {
    struct Case {
        const char* why;
        unsigned region_access;
        std::uint64_t offset;
        std::uint64_t length;
        unsigned access;
    };
    const unsigned bind = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    const Case cases[] = {
        {"the region allows no windows", IBV_ACCESS_LOCAL_WRITE, 0, 64, IBV_ACCESS_REMOTE_READ},
        {"writing where the owner may not", IBV_ACCESS_MW_BIND, 0, 64, IBV_ACCESS_REMOTE_WRITE},
        {"atomics where the owner may not write", IBV_ACCESS_MW_BIND, 0, 64,
         IBV_ACCESS_REMOTE_ATOMIC},
        {"beyond the region", bind, (1 << 16) - 8, 64, IBV_ACCESS_REMOTE_READ},
        {"of no length", bind, 0, 0, IBV_ACCESS_REMOTE_READ},
        {"a right that nobody knows", bind, 0, 64, 1U << 18},
    };
    for (const Case& one : cases) {
        EndpointOptions options = bindable();
        options.access = one.region_access;
        Pair pair{bindable(), options};
        ibv_mw* const window = ibv_alloc_mw(pair.right.pd, IBV_MW_TYPE_2);
        ASSERT_NE(window, nullptr);
        ASSERT_EQ(post_bind(pair.right, window, ibv_inc_rkey(window->rkey),
                            pair.right.address(one.offset), one.length, one.access),
                  0);
        EXPECT_EQ(status_of(pair.right), IBV_WC_MW_BIND_ERR) << one.why;
        EXPECT_EQ(state_of(pair.right.qp), IBV_QPS_ERR) << one.why;
        EXPECT_EQ(ibv_dealloc_mw(window), 0);
    }
}

TEST(BindingIsRefused, WhileItIsBound) {
    WindowPair pair;
    const std::uint32_t key = pair.bind(0, 64);
    ASSERT_EQ(post_bind(pair.right, pair.window, ibv_inc_rkey(key), pair.right.address(), 64,
                        IBV_ACCESS_REMOTE_READ),
              0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_MW_BIND_ERR);
}

TEST(BindingIsRefused, BeyondWhatAQueuePairHolds) {
    WindowPair pair;
    std::vector<ibv_mw*> windows;
    ibv_wc_status status = IBV_WC_SUCCESS;
    while (status == IBV_WC_SUCCESS && windows.size() < 300) {
        windows.push_back(ibv_alloc_mw(pair.right.pd, IBV_MW_TYPE_2));
        ASSERT_NE(windows.back(), nullptr);
        ASSERT_EQ(post_bind(pair.right, windows.back(), ibv_inc_rkey(windows.back()->rkey),
                            pair.right.address(), 64, IBV_ACCESS_REMOTE_READ),
                  0);
        status = status_of(pair.right);
    }
    EXPECT_EQ(status, IBV_WC_MW_BIND_ERR);
    EXPECT_EQ(windows.size(), 257U);
    for (ibv_mw* window : windows) EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

TEST(InvalidationIsRefused, OfAKeyThatIsNoWindow) {
    WindowPair pair;
    ASSERT_EQ(post_invalidate(pair.right, pair.right.mr->rkey), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_LOC_QP_OP_ERR);
    WindowPair remote;
    ASSERT_EQ(remote.right.receive(9, 0, 64), 0);
    ASSERT_EQ(post_invalidate(remote.left, remote.right.mr->rkey, IBV_WR_SEND_WITH_INV), 0);
    EXPECT_EQ(status_of(remote.left), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(status_of(remote.right), IBV_WC_WR_FLUSH_ERR);
}

// --- type 1
// -----------------------------------------------------------------------------------------

TEST(MemoryWindowOfType1, IsBoundMovedAndUnbound) {
    Pair pair{bindable(), bindable()};
    std::memset(pair.left.memory, 0x42, 64);
    ibv_mw* const window = ibv_alloc_mw(pair.right.pd, IBV_MW_TYPE_1);
    ASSERT_NE(window, nullptr);
    ibv_mw_bind bind{};
    bind.wr_id = 70;
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {pair.right.mr, pair.right.address(128), 64, IBV_ACCESS_REMOTE_WRITE};
    ASSERT_EQ(ibv_bind_mw(pair.right.qp, window, &bind), 0);
    auto wc = pair.right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 70U);
    EXPECT_EQ(wc->opcode, IBV_WC_BIND_MW);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    const std::uint32_t first = window->rkey;
    EXPECT_EQ(write_by(pair.left, pair.right.address(128), first), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[128], std::byte{0x42});
    EXPECT_EQ(soft::dereg_mr(pair.right.mr), EBUSY);

    bind.bind_info.addr = pair.right.address(1024);
    ASSERT_EQ(ibv_bind_mw(pair.right.qp, window, &bind), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_NE(window->rkey, first);
    EXPECT_EQ(write_by(pair.left, pair.right.address(1024), window->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(pair.right.memory[1024], std::byte{0x42});

    bind.bind_info = {};
    ASSERT_EQ(ibv_bind_mw(pair.right.qp, window, &bind), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    EXPECT_EQ(soft::dereg_mr(std::exchange(pair.right.mr, nullptr)), 0);
    EXPECT_EQ(write_by(pair.left, pair.right.address(1024), window->rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

TEST(MemoryWindowOfType1, IsNotBoundByAWorkRequestNorInvalidated) {
    Pair pair{bindable(), bindable()};
    ibv_mw* const window = ibv_alloc_mw(pair.right.pd, IBV_MW_TYPE_1);
    ASSERT_NE(window, nullptr);
    EXPECT_EQ(post_bind(pair.right, window, ibv_inc_rkey(window->rkey), pair.right.address(), 64,
                        IBV_ACCESS_REMOTE_READ),
              EINVAL);
    ibv_mw_bind bind{};
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {pair.right.mr, pair.right.address(), 64, IBV_ACCESS_REMOTE_READ};
    ASSERT_EQ(ibv_bind_mw(pair.right.qp, window, &bind), 0);
    ASSERT_EQ(status_of(pair.right), IBV_WC_SUCCESS);
    ASSERT_EQ(post_invalidate(pair.right, window->rkey), 0);
    EXPECT_EQ(status_of(pair.right), IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

}  // namespace
}  // namespace millrace::test
