// A process's side of tests with many queue pairs: one context, protection domain, completion
// queue and buffer, any number of queue pairs (RC or UD) and a shared receive queue. Calls the
// public entries of soft/ and the header's inline data path only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "soft/endpoint.hpp"
#include "soft/polling.hpp"
#include "support/settings.hpp"

namespace millrace::test {

struct StationOptions {
    bool events = false;
    bool shared_memory = true;
    std::size_t bytes = 1 << 20;
    std::uint32_t shared_receives = 0;  ///< not 0: a shared receive queue of that size
    std::uint32_t send_wr = 16;
    std::uint32_t receive_wr = 16;
    std::uint32_t inline_bytes = 128;
    std::uint32_t qkey = family_qkey();
    std::uint8_t rnr_retry = 7;
    int completions = 4096;
};

class Station {
  public:
    explicit Station(const StationOptions& chosen = {}) : options{chosen} {
        context = soft::open_device(soft::device_list(nullptr)[0]);
        if (context == nullptr) throw std::runtime_error("cannot open soft0");
        pd = soft::alloc_pd(context);
        if (options.events) channel = soft::create_comp_channel(context);
        cq = soft::create_cq(context, options.completions, this, channel, 0);
        memory = static_cast<std::byte*>(options.shared_memory
                                             ? map_shareable(options.bytes)
                                             : mmap(nullptr, options.bytes, PROT_READ | PROT_WRITE,
                                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mr = soft::reg_mr(pd, memory, options.bytes, reinterpret_cast<std::uint64_t>(memory),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (mr == nullptr) throw std::runtime_error("cannot register memory");
        if (options.shared_receives == 0) return;
        ibv_srq_init_attr init{};
        init.attr.max_wr = options.shared_receives;
        init.attr.max_sge = 2;
        srq = soft::create_srq(pd, &init);
        if (srq == nullptr) throw std::runtime_error("cannot create a shared receive queue");
    }
    ~Station() {
        for (ibv_qp* qp : queue_pairs) soft::destroy_qp(qp);
        for (ibv_ah* ah : handles) soft::destroy_ah(ah);
        if (srq != nullptr) {
            EXPECT_EQ(soft::destroy_srq(srq), 0);
        }
        if (mr != nullptr) soft::dereg_mr(mr);
        soft::destroy_cq(cq);
        if (channel != nullptr) soft::destroy_comp_channel(channel);
        EXPECT_EQ(soft::dealloc_pd(pd), 0);
        soft::close_device(context);
        munmap(memory, options.bytes);
    }
    Station(const Station&) = delete;
    Station& operator=(const Station&) = delete;

    /// In RESET; with the shared receive queue if there is one.
    ibv_qp* make(ibv_qp_type type) {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.srq = srq;
        init.qp_type = type;
        init.cap = {options.send_wr, options.receive_wr, 2, 2, options.inline_bytes};
        ibv_qp* const qp = soft::create_qp(pd, &init);
        if (qp == nullptr) throw std::runtime_error("cannot create a queue pair");
        queue_pairs.push_back(qp);
        return qp;
    }
    void destroy(ibv_qp* qp) {
        EXPECT_EQ(soft::destroy_qp(qp), 0);
        std::erase(queue_pairs, qp);
    }

    /// A UD queue pair, ready to send.
    ibv_qp* datagram() {
        ibv_qp* const qp = make(IBV_QPT_UD);
        EXPECT_EQ(bring_up(qp), 0);
        return qp;
    }
    int bring_up(ibv_qp* qp) const { return test::bring_up(qp, 0, way()); }

    /// An RC queue pair to `peer`.
    int connect(ibv_qp* qp, std::uint32_t peer) const { return test::bring_up(qp, peer, way()); }

    /// To this host's port: by LID, or with a GRH.
    ibv_ah* handle(bool global = false) {
        ibv_ah_attr attributes{};
        attributes.port_num = 1;
        attributes.dlid = 1;
        attributes.sl = 3;
        if (global) {
            attributes.is_global = 1;
            attributes.grh.hop_limit = 7;
            attributes.grh.flow_label = 0xabcde;
            attributes.grh.traffic_class = 0x5a;
            static_cast<void>(soft::query_gid(context, 1, 0, &attributes.grh.dgid));
        }
        return handle(attributes);
    }
    ibv_ah* handle(ibv_ah_attr attributes) {
        ibv_ah* const ah = soft::create_ah(pd, &attributes);
        if (ah == nullptr) throw std::runtime_error("cannot create an address handle");
        handles.push_back(ah);
        return ah;
    }

    [[nodiscard]] ibv_sge sge(std::size_t offset, std::size_t length) const {
        return {reinterpret_cast<std::uint64_t>(memory + offset),
                static_cast<std::uint32_t>(length), mr->lkey};
    }
    /// Into the shared receive queue if there is one and `qp` is null.
    int receive(ibv_qp* qp, std::uint64_t id, std::size_t offset, std::size_t length) {
        ibv_sge piece = sge(offset, length);
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        return qp == nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
    }
    int send(ibv_qp* qp, std::uint64_t id, std::size_t offset, std::size_t length,
             unsigned flags = IBV_SEND_SIGNALED) {
        ibv_sge piece = sge(offset, length);
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = flags;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, &wr, &bad);
    }
    int send_to(ibv_qp* qp, ibv_ah* ah, std::uint32_t peer, std::uint64_t id, std::size_t offset,
                std::size_t length, unsigned flags = IBV_SEND_SIGNALED,
                std::optional<std::uint32_t> qkey = std::nullopt,
                std::optional<std::uint32_t> immediate = std::nullopt) {
        ibv_sge piece = sge(offset, length);
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
        wr.imm_data = immediate.value_or(0);
        wr.send_flags = flags;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = peer;
        wr.wr.ud.remote_qkey = qkey.value_or(options.qkey);
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, &wr, &bad);
    }

    std::optional<ibv_wc> complete(std::chrono::milliseconds limit = std::chrono::seconds{10}) {
        return poll_for(limit, [this] { return poll_once(); });
    }
    std::optional<ibv_wc> poll_once() {
        ibv_wc wc;
        return ibv_poll_cq(cq, 1, &wc) == 1 ? std::optional{wc} : std::nullopt;
    }
    /// Nothing comes: also what an idle poller finds only after a while.
    bool quiet() { return !complete(std::chrono::milliseconds{20}); }

    StationOptions options;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_mr* mr = nullptr;
    ibv_srq* srq = nullptr;
    std::byte* memory = nullptr;
    std::vector<ibv_qp*> queue_pairs;
    std::vector<ibv_ah*> handles;

  private:
    [[nodiscard]] QueuePairWay way() const {
        return {.access = IBV_ACCESS_REMOTE_WRITE,
                .qkey = options.qkey,
                .rnr_retry = options.rnr_retry};
    }
};

}  // namespace millrace::test
