// The way of a queue pair of the soft device from RESET to RTS, step by step: the attributes and
// the mask that ibv_modify_qp's manual page demands of its type. Called by tests of soft/ and by
// fuzzers.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "millrace/soft/device.hpp"

namespace millrace::test {

/// What the attributes of the three steps say, where a test wants them to differ.
struct QueuePairWay {
    unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    std::uint32_t qkey = 0;  ///< of UD
    std::uint8_t reads = 1;  ///< max_rd_atomic and max_dest_rd_atomic
    std::uint8_t min_rnr_timer = 1;
    std::uint8_t timeout = 14;
    std::uint8_t retry_cnt = 7;
    std::uint8_t rnr_retry = 7;
    void (*alter)(ibv_qp_attr&) =
        nullptr;  ///< of the steps to RTR and to RTS, where it is not null
};

/// The arguments of one ibv_modify_qp.
struct QueuePairStep {
    ibv_qp_attr attributes{};
    int mask = IBV_QP_STATE;

    [[nodiscard]] int take(ibv_qp* qp) { return soft::modify_qp(qp, &attributes, mask); }
};

[[nodiscard]] inline QueuePairStep step_to_init(ibv_qp_type type, const QueuePairWay& way = {}) {
    QueuePairStep step;
    step.attributes.qp_state = IBV_QPS_INIT;
    step.attributes.port_num = 1;
    step.attributes.qp_access_flags = way.access;
    step.attributes.qkey = way.qkey;
    step.mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    step.mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return step;
}

/// To queue pair `peer` of this host; UD has none.
[[nodiscard]] inline QueuePairStep step_to_rtr(ibv_qp_type type, std::uint32_t peer,
                                               const QueuePairWay& way = {}) {
    QueuePairStep step;
    step.attributes.qp_state = IBV_QPS_RTR;
    step.attributes.path_mtu = IBV_MTU_4096;
    step.attributes.dest_qp_num = peer;
    step.attributes.max_dest_rd_atomic = way.reads;
    step.attributes.min_rnr_timer = way.min_rnr_timer;
    step.attributes.ah_attr.dlid = 1;
    step.attributes.ah_attr.port_num = 1;
    if (type != IBV_QPT_UD) {
        step.mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    }
    if (type == IBV_QPT_RC) step.mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (way.alter != nullptr) way.alter(step.attributes);
    return step;
}

[[nodiscard]] inline QueuePairStep step_to_rts(ibv_qp_type type, const QueuePairWay& way = {}) {
    QueuePairStep step;
    step.attributes.qp_state = IBV_QPS_RTS;
    step.attributes.timeout = way.timeout;
    step.attributes.retry_cnt = way.retry_cnt;
    step.attributes.rnr_retry = way.rnr_retry;
    step.attributes.max_rd_atomic = way.reads;
    step.mask |= IBV_QP_SQ_PSN;
    if (type == IBV_QPT_RC) {
        step.mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    if (way.alter != nullptr) way.alter(step.attributes);
    return step;
}

/// Where a state is all that is said.
[[nodiscard]] inline int to_state(ibv_qp* qp, ibv_qp_state state) {
    QueuePairStep step;
    step.attributes.qp_state = state;
    return step.take(qp);
}

/// All three steps; the first error that comes.
[[nodiscard]] inline int bring_up(ibv_qp* qp, std::uint32_t peer, const QueuePairWay& way = {}) {
    int error = step_to_init(qp->qp_type, way).take(qp);
    if (error == 0) error = step_to_rtr(qp->qp_type, peer, way).take(qp);
    if (error == 0) error = step_to_rts(qp->qp_type, way).take(qp);
    return error;
}

}  // namespace millrace::test
