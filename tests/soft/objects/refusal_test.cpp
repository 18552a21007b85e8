// What the device does not have is refused by every entry that a program can reach, with EOPNOTSUPP
// and without a missing function.
#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

template <class Call>
int refusal_of(const Call& call) {
    errno = 0;
    return call() == nullptr ? errno : 0;
}

TEST(Refusal, OfExtendedConnectionsAndFlowObjectsIsClean) {
    Endpoint end;
    ibv_xrcd_init_attr domain{};
    EXPECT_EQ(refusal_of([&] { return ibv_open_xrcd(end.context, &domain); }), EOPNOTSUPP);
    ibv_qp_open_attr opened{};
    EXPECT_EQ(refusal_of([&] { return ibv_open_qp(end.context, &opened); }), EOPNOTSUPP);
    ibv_wq_init_attr queue{};
    EXPECT_EQ(refusal_of([&] { return ibv_create_wq(end.context, &queue); }), EOPNOTSUPP);
    ibv_rwq_ind_table_init_attr table{};
    EXPECT_EQ(refusal_of([&] { return ibv_create_rwq_ind_table(end.context, &table); }),
              EOPNOTSUPP);
    ibv_flow_attr flow{};
    EXPECT_EQ(refusal_of([&] { return ibv_create_flow(end.qp, &flow); }), EOPNOTSUPP);
    ibv_counters_init_attr counters{};
    EXPECT_EQ(refusal_of([&] { return ibv_create_counters(end.context, &counters); }), EOPNOTSUPP);
    ibv_flow_action_esp_attr action{};
    EXPECT_EQ(refusal_of([&] { return ibv_create_flow_action_esp(end.context, &action); }),
              EOPNOTSUPP);
}

TEST(Refusal, OfAdviceAndRateLimitsIsClean) {
    Endpoint end;
    ibv_sge piece = end.sge(0, 64);
    EXPECT_EQ(ibv_advise_mr(end.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &piece, 1), EOPNOTSUPP);
    ibv_qp_rate_limit_attr limit{};
    EXPECT_EQ(ibv_modify_qp_rate_limit(end.qp, &limit), EOPNOTSUPP);
}

TEST(Refusal, OfForeignQueuePairTypesIsClean) {
    Endpoint end;
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = end.cq;
    init.cap = {1, 1, 1, 1, 0};
    for (const auto type :
         {IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_DRIVER}) {
        init.qp_type = type;
        EXPECT_EQ(refusal_of([&] { return soft::create_qp(end.pd, &init); }), EOPNOTSUPP);
    }
}

TEST(Refusal, NoFunctionThatTheHeaderCallsUncheckedIsMissing) {
    Endpoint end;
    const ibv_context_ops& operations = end.context->ops;
    EXPECT_NE(operations.alloc_mw, nullptr);
    EXPECT_NE(operations.bind_mw, nullptr);
    EXPECT_NE(operations.dealloc_mw, nullptr);
    EXPECT_NE(operations.poll_cq, nullptr);
    EXPECT_NE(operations.req_notify_cq, nullptr);
    EXPECT_NE(operations.post_srq_recv, nullptr);
    EXPECT_NE(operations.post_send, nullptr);
    EXPECT_NE(operations.post_recv, nullptr);
}

}  // namespace
}  // namespace millrace::test
