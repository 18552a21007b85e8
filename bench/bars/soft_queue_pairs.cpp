// Bar of the soft device: what idle queue pairs on a completion queue cost the active one. SENDs of
// 8 bytes to and fro, polled, with nothing else on the completion queues and with 1,000 queue
// pairs.
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "framework/bars.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "millrace/soft/device.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::bench {
namespace {

/// One side: a queue pair that sends and receives, and idle ones on the same completion queue.
class Side {
  public:
    explicit Side(std::size_t idle) {
        context_ = soft::open_device(soft::device_list(nullptr)[0]);
        require(context_ != nullptr, "the soft device");
        pd_ = soft::alloc_pd(context_);
        cq_ = soft::create_cq(context_, static_cast<int>(128 + 8 * idle), nullptr, nullptr, 0);
        mr_ = soft::reg_mr(pd_, memory_.data(), memory_.size(),
                           reinterpret_cast<std::uint64_t>(memory_.data()), IBV_ACCESS_LOCAL_WRITE);
        require(pd_ != nullptr && cq_ != nullptr && mr_ != nullptr, "a registered word");
        // The active one in the middle of the others.
        for (std::size_t i = 0; i <= idle; ++i) {
            qps_.push_back(make_queue_pair(i == idle / 2 ? 64 : 4));
            if (i != idle / 2) connect(qps_.back(), qps_.back()->qp_num);
        }
        active_ = qps_[idle / 2];
    }
    ~Side() {
        for (ibv_qp* qp : qps_) soft::destroy_qp(qp);
        soft::destroy_cq(cq_);
        soft::dereg_mr(mr_);
        soft::dealloc_pd(pd_);
        soft::close_device(context_);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    void meet(Pair& pair) {
        pair.set_value(0, active_->qp_num);
        pair.meet();
        connect(active_, static_cast<std::uint32_t>(pair.value(0)));
        for (std::uint64_t i = 0; i < 32; ++i) receive();
        pair.meet();
    }
    void send(std::uint64_t number) {
        ibv_sge piece{reinterpret_cast<std::uint64_t>(&number), sizeof number, 0};
        ibv_send_wr wr{};
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags =
            unsigned{IBV_SEND_INLINE} | (number % 32 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0U);
        ibv_send_wr* bad = nullptr;
        require(ibv_post_send(active_, &wr, &bad) == 0, "a posted SEND");
    }
    void take(Pair& pair) {
        bool received = false;
        pair.spin_until([&] {
            ibv_wc wc;
            const int count = ibv_poll_cq(cq_, 1, &wc);
            require(count >= 0 && (count == 0 || wc.status == IBV_WC_SUCCESS), "a completion");
            received |= count == 1 && wc.opcode == IBV_WC_RECV;
            return received;
        });
        receive();
    }

  private:
    ibv_qp* make_queue_pair(std::uint32_t slots) {
        ibv_qp_init_attr init{};
        init.send_cq = cq_;
        init.recv_cq = cq_;
        init.qp_type = IBV_QPT_RC;
        init.cap = {slots, slots, 1, 1, 8};
        ibv_qp* const qp = soft::create_qp(pd_, &init);
        require(qp != nullptr, "a queue pair");
        return qp;
    }
    static void connect(ibv_qp* qp, std::uint32_t peer) {
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = 1;
        int error = soft::modify_qp(
            qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        attributes.qp_state = IBV_QPS_RTR;
        attributes.path_mtu = IBV_MTU_4096;
        attributes.dest_qp_num = peer;
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = 12;
        attributes.ah_attr.dlid = 1;
        attributes.ah_attr.port_num = 1;
        error |=
            soft::modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        attributes.qp_state = IBV_QPS_RTS;
        attributes.timeout = 14;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 7;
        attributes.max_rd_atomic = 1;
        error |= soft::modify_qp(qp, &attributes,
                                 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
        require(error == 0, "a connected queue pair");
    }
    void receive() {
        ibv_sge piece{reinterpret_cast<std::uint64_t>(memory_.data()), 8, mr_->lkey};
        ibv_recv_wr wr{};
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        require(ibv_post_recv(active_, &wr, &bad) == 0, "a posted receive");
    }

    verbs::Buffer memory_{4096};
    ibv_context* context_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_mr* mr_ = nullptr;
    std::vector<ibv_qp*> qps_;
    ibv_qp* active_ = nullptr;
};

double send_round_trip(std::size_t idle, std::uint64_t round_trips) {
    const Windows windows{round_trips};
    return run_pair(
        {},
        [&](Pair& pair) {
            Side side{idle};
            side.meet(pair);
            const double ns = median_step(windows, [&](std::uint64_t number) {
                side.send(number);
                side.take(pair);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            Side side{idle};
            side.meet(pair);
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                side.take(pair);
                side.send(number);
            }
            pair.meet();
        });
}

const BarRegistration idle_queue_pairs{
    {.group = "soft",
     .name = "SEND ping-pong of 8 B among 1,000 idle queue pairs to one alone",
     .limit = 1.1,
     .sense = Sense::at_most,
     .unit = "x",
     .measure = [](const RoundOptions& options) {
         Rounds rounds{options};
         rounds.add({"among 1,000", [] { return send_round_trip(1000, 40'000); }, "ns"});
         rounds.add({"alone", [] { return send_round_trip(0, 40'000); }, "ns"});
         return rounds.run().ratio("among 1,000", "alone");
     }}};

}  // namespace
}  // namespace millrace::bench
