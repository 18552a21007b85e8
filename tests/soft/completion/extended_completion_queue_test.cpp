// The extended completion queue, resizing, and the clock that its time stamps show.
#include <cstdint>
#include <thread>

#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

ibv_cq_init_attr_ex attributes_for(std::uint64_t fields, std::uint32_t entries = 64) {
    ibv_cq_init_attr_ex attributes{};
    attributes.cqe = entries;
    attributes.wc_flags = fields;
    return attributes;
}

constexpr std::uint64_t all_fields = std::uint64_t{IBV_WC_STANDARD_FLAGS} |
                                     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Two connected ends; the right one's completions go to an extended completion queue.
struct ExtendedPair {
    explicit ExtendedPair(ibv_cq_init_attr_ex attributes = attributes_for(all_fields)) {
        cq = ibv_create_cq_ex(right.context, &attributes);
        if (cq == nullptr) throw std::runtime_error("cannot create an extended completion queue");
        EXPECT_EQ(soft::destroy_qp(right.qp), 0);
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
        init.qp_type = IBV_QPT_RC;
        init.cap = {16, 16, 1, 1, 0};
        right.qp = soft::create_qp(right.pd, &init);
        EXPECT_EQ(left.connect(right.qp->qp_num), 0);
        EXPECT_EQ(right.connect(left.qp->qp_num), 0);
    }
    ~ExtendedPair() {
        EXPECT_EQ(soft::destroy_qp(right.qp), 0);
        right.qp = nullptr;
        EXPECT_EQ(soft::destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    }
    Endpoint left;
    Endpoint right;
    ibv_cq_ex* cq = nullptr;
};

std::uint64_t device_clock(ibv_context* context) {
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(ibv_query_rt_values_ex(context, &values), 0);
    return static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
}

TEST(ExtendedCompletionQueue, ReadsEveryFieldOfEachCompletion) {
    ExtendedPair pair;
    ibv_poll_cq_attr none{};
    EXPECT_EQ(ibv_start_poll(pair.cq, &none), ENOENT);
    for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(pair.right.receive(100 + i, 64 * i, 64), 0);
    const std::uint64_t before = device_clock(pair.right.context);
    ASSERT_EQ(pair.left.send(1, 0, 5), 0);
    ASSERT_EQ(pair.left.post(IBV_WR_RDMA_WRITE_WITH_IMM, 2, {pair.left.sge(0, 7)},
                             IBV_SEND_SIGNALED, pair.right.address(512), pair.right.mr->rkey, 4711),
              0);
    ASSERT_EQ(ibv_start_poll(pair.cq, &none), 0);
    EXPECT_EQ(pair.cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pair.cq->wr_id, 100U);
    EXPECT_EQ(ibv_wc_read_opcode(pair.cq), IBV_WC_RECV);
    EXPECT_EQ(ibv_wc_read_byte_len(pair.cq), 5U);
    EXPECT_EQ(ibv_wc_read_wc_flags(pair.cq), 0U);
    EXPECT_EQ(ibv_wc_read_qp_num(pair.cq), pair.right.qp->qp_num);
    EXPECT_EQ(ibv_wc_read_src_qp(pair.cq), pair.left.qp->qp_num);
    EXPECT_EQ(ibv_wc_read_vendor_err(pair.cq), 0U);
    EXPECT_EQ(ibv_wc_read_slid(pair.cq), 1U);
    EXPECT_EQ(ibv_wc_read_sl(pair.cq), 0U);
    EXPECT_EQ(ibv_wc_read_dlid_path_bits(pair.cq), 0U);
    const std::uint64_t first = ibv_wc_read_completion_ts(pair.cq);
    const std::uint64_t wallclock = ibv_wc_read_completion_wallclock_ns(pair.cq);
    ASSERT_EQ(ibv_next_poll(pair.cq), 0);
    EXPECT_EQ(pair.cq->wr_id, 101U);
    EXPECT_EQ(ibv_wc_read_opcode(pair.cq), IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(ibv_wc_read_byte_len(pair.cq), 7U);
    EXPECT_EQ(ibv_wc_read_imm_data(pair.cq), 4711U);
    EXPECT_EQ(ibv_wc_read_wc_flags(pair.cq), unsigned{IBV_WC_WITH_IMM});
    const std::uint64_t second = ibv_wc_read_completion_ts(pair.cq);
    EXPECT_EQ(ibv_next_poll(pair.cq), ENOENT);
    ibv_end_poll(pair.cq);
    EXPECT_LE(before, first);
    EXPECT_LE(first, second);
    EXPECT_LE(second, device_clock(pair.right.context));
    const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    EXPECT_LE(wallclock, static_cast<std::uint64_t>(now));
    EXPECT_GT(wallclock, 1'600'000'000'000'000'000U) << "nanoseconds since 1970";
}

TEST(ExtendedCompletionQueue, TellsErrors) {
    ExtendedPair pair;
    ASSERT_EQ(pair.right.receive(5, 0, 64), 0);
    ASSERT_EQ(pair.right.to_state(IBV_QPS_ERR), 0);
    ibv_poll_cq_attr none{};
    ASSERT_EQ(ibv_start_poll(pair.cq, &none), 0);
    EXPECT_EQ(pair.cq->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(pair.cq->wr_id, 5U);
    EXPECT_EQ(ibv_next_poll(pair.cq), ENOENT);
    ibv_end_poll(pair.cq);
}

TEST(ExtendedCompletionQueue, IsStillAPlainOne) {
    ExtendedPair pair;
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 5), 0);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(ibv_cq_ex_to_cq(pair.cq), 1, &wc), 1);
    EXPECT_EQ(wc.wr_id, 1U);
    EXPECT_EQ(ibv_req_notify_cq(ibv_cq_ex_to_cq(pair.cq), 0), 0);
}

TEST(ExtendedCompletionQueue, RefusesFieldsThatItCannotTell) {
    Endpoint end;
    for (const std::uint64_t field :
         {std::uint64_t{IBV_WC_EX_WITH_CVLAN}, std::uint64_t{IBV_WC_EX_WITH_FLOW_TAG},
          std::uint64_t{IBV_WC_EX_WITH_TM_INFO}, std::uint64_t{1} << 40}) {
        auto attributes = attributes_for(IBV_WC_STANDARD_FLAGS | field);
        errno = 0;
        EXPECT_EQ(ibv_create_cq_ex(end.context, &attributes), nullptr) << field;
        EXPECT_EQ(errno, EOPNOTSUPP);
    }
    auto attributes = attributes_for(0);
    attributes.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attributes.flags = 1U << 20;
    EXPECT_EQ(ibv_create_cq_ex(end.context, &attributes), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    attributes = attributes_for(0, 0);
    EXPECT_EQ(ibv_create_cq_ex(end.context, &attributes), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST(ExtendedCompletionQueue, OfASingleThreadWorksWithoutALock) {
    auto attributes = attributes_for(all_fields);
    attributes.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attributes.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    ExtendedPair pair{attributes};
    ASSERT_EQ(pair.right.receive(1, 0, 64), 0);
    ASSERT_EQ(pair.left.send(1, 0, 5), 0);
    ibv_poll_cq_attr none{};
    ASSERT_EQ(ibv_start_poll(pair.cq, &none), 0);
    EXPECT_EQ(pair.cq->wr_id, 1U);
    ibv_end_poll(pair.cq);
}

TEST(ExtendedCompletionQueue, GivesEachCompletionToOneOfTwoThreads) {
    ExtendedPair pair;
    constexpr std::uint64_t total = 4000;
    std::atomic<std::uint64_t> taken{0};
    std::atomic<std::uint64_t> sum{0};
    const auto poll = [&] {
        ibv_poll_cq_attr none{};
        while (taken < total) {
            if (ibv_start_poll(pair.cq, &none) != 0) {
                std::this_thread::yield();
                continue;
            }
            do {
                sum += pair.cq->wr_id;
                ++taken;
            } while (ibv_next_poll(pair.cq) == 0);
            ibv_end_poll(pair.cq);
        }
    };
    std::thread first{poll};
    std::thread second{poll};
    for (std::uint64_t i = 0; i < total; ++i) {
        while (pair.right.receive(i, 0, 64) != 0) std::this_thread::yield();
        ASSERT_EQ(pair.left.send(i, 0, 8), 0);
        ASSERT_TRUE(pair.left.complete());
    }
    first.join();
    second.join();
    EXPECT_EQ(taken, total);
    EXPECT_EQ(sum, total * (total - 1) / 2);
}

TEST(CompletionQueue, ResizesToWhatItHoldsAndNotLess) {
    Pair pair;
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(pair.right.receive(i, 0, 64), 0);
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(pair.left.send(i, 0, 8), 0);
    EXPECT_EQ(soft::resize_cq(pair.right.cq, 3), EINVAL);
    EXPECT_EQ(soft::resize_cq(pair.right.cq, 0), EINVAL);
    EXPECT_EQ(pair.right.cq->cqe, 1024);
    EXPECT_EQ(soft::resize_cq(pair.right.cq, 4), 0);
    EXPECT_EQ(pair.right.cq->cqe, 4);
    for (std::uint64_t i = 0; i < 4; ++i) {
        const auto wc = pair.right.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, i);
    }
    EXPECT_EQ(soft::resize_cq(pair.right.cq, 2048), 0);
}

TEST(DeviceClock, IsDescribedByTheDevice) {
    Endpoint end;
    ibv_device_attr_ex attributes{};
    ASSERT_EQ(verbs_get_ctx(end.context)
                  ->query_device_ex(end.context, nullptr, &attributes, sizeof attributes),
              0);
    EXPECT_NE(attributes.completion_timestamp_mask, 0U);
    ASSERT_NE(attributes.hca_core_clock, 0U);
    // In kHz: what the clock does in a pause is at least what the pause lasts.
    const std::uint64_t before = device_clock(end.context);
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    const std::uint64_t ticks = device_clock(end.context) - before;
    EXPECT_GE(ticks, 5 * attributes.hca_core_clock);
    ibv_values_ex unknown{};
    unknown.comp_mask = 1U << 20;
    EXPECT_EQ(ibv_query_rt_values_ex(end.context, &unknown), EINVAL);
}

}  // namespace
}  // namespace millrace::test
