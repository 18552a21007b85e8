// One end of a connection for tests of the soft device: context, completion queue, queue pair and
// a registered buffer. Calls the public entries of soft/ and the header's inline data path only.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/soft/device.hpp"
#include "soft/polling.hpp"
#include "support/queue_pair_steps.hpp"

namespace millrace::test {

/// How long a test tries again that needs a coincidence, such as a peer that is stopped in the
/// middle of a copy. Where processors are rare, sixty rounds may pass without one.
inline base::Deadline patience_for_a_coincidence() {
    return base::Deadline::after(std::chrono::seconds{40});
}

struct EndpointOptions {
    ibv_qp_type type = IBV_QPT_RC;
    std::uint32_t send_wr = 16;
    std::uint32_t receive_wr = 16;
    std::uint32_t sges = 4;
    std::uint32_t inline_bytes = 256;
    bool signal_all = false;
    bool events = false;
    bool events_only = false;   ///< the channel is its bell alone
    bool shared_memory = true;  ///< the buffer is a sealed memfd; else private memory
    std::size_t bytes = 1 << 16;
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    unsigned qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    std::uint8_t rnr_retry = 7;
    std::uint8_t min_rnr_timer = 1;
    std::uint8_t timeout = 14;
    std::uint8_t retry_cnt = 7;
    std::uint8_t reads = 1;                 ///< max_rd_atomic and max_dest_rd_atomic
    void (*alter)(ibv_qp_attr&) = nullptr;  ///< of the way to RTR and to RTS, where it is not null
};

/// The device's threads change it, too.
[[nodiscard]] inline ibv_qp_state state_of(ibv_qp* qp) {
    return std::atomic_ref{qp->state}.load(std::memory_order_relaxed);
}

/// Memory that peers can map: a memfd sealed against shrinking.
inline void* map_shareable(std::size_t bytes) {
    const int descriptor = memfd_create("test-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return nullptr;
    fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return memory == MAP_FAILED ? nullptr : memory;  // the descriptor stays open for peers
}

class Endpoint {
  public:
    explicit Endpoint(const EndpointOptions& chosen = {}) : options{chosen} {
        context = soft::open_device(soft::device_list(nullptr)[0]);
        if (context == nullptr) throw std::runtime_error("cannot open soft0");
        pd = soft::alloc_pd(context);
        if (options.events) channel = soft::create_comp_channel(context);
        if (options.events_only) soft::tell_events_only(channel);
        cq = soft::create_cq(context, 1024, this, channel, 0);
        ibv_qp_init_attr init{};
        init.send_cq = cq;
        init.recv_cq = cq;
        init.qp_type = options.type;
        init.sq_sig_all = options.signal_all ? 1 : 0;
        init.cap = {options.send_wr, options.receive_wr, options.sges, options.sges,
                    options.inline_bytes};
        qp = soft::create_qp(pd, &init);
        if (qp == nullptr) throw std::runtime_error("cannot create a queue pair");
        capacity = init.cap;
        memory = static_cast<std::byte*>(options.shared_memory
                                             ? map_shareable(options.bytes)
                                             : mmap(nullptr, options.bytes, PROT_READ | PROT_WRITE,
                                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mr = soft::reg_mr(pd, memory, options.bytes, reinterpret_cast<std::uint64_t>(memory),
                          options.access);
        if (mr == nullptr) throw std::runtime_error("cannot register memory");
    }
    ~Endpoint() {
        if (qp != nullptr) soft::destroy_qp(qp);
        if (mr != nullptr) soft::dereg_mr(mr);
        if (cq != nullptr) soft::destroy_cq(cq);
        if (channel != nullptr) soft::destroy_comp_channel(channel);
        soft::dealloc_pd(pd);
        soft::close_device(context);
        munmap(memory, options.bytes);
    }
    Endpoint(const Endpoint&) = delete;
    Endpoint& operator=(const Endpoint&) = delete;

    int to_init() { return step_to_init(options.type, way()).take(qp); }
    int to_rtr(std::uint32_t peer) { return step_to_rtr(options.type, peer, way()).take(qp); }
    int to_rts() { return step_to_rts(options.type, way()).take(qp); }
    int to_state(ibv_qp_state state) { return test::to_state(qp, state); }
    int connect(std::uint32_t peer) { return bring_up(qp, peer, way()); }

    [[nodiscard]] ibv_sge sge(std::size_t offset, std::size_t length) const {
        return {reinterpret_cast<std::uint64_t>(memory + offset),
                static_cast<std::uint32_t>(length), mr->lkey};
    }
    [[nodiscard]] std::uint64_t address(std::size_t offset = 0) const {
        return reinterpret_cast<std::uint64_t>(memory + offset);
    }

    int receive(std::uint64_t id, std::size_t offset, std::size_t length) {
        ibv_sge piece = sge(offset, length);
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        return ibv_post_recv(qp, &wr, &bad);
    }
    int post(ibv_wr_opcode opcode, std::uint64_t id, std::vector<ibv_sge> pieces,
             unsigned flags = IBV_SEND_SIGNALED, std::uint64_t remote = 0, std::uint32_t rkey = 0,
             std::uint32_t immediate = 0) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = pieces.data();
        wr.num_sge = static_cast<int>(pieces.size());
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.imm_data = immediate;
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = rkey;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, &wr, &bad);
    }
    int send(std::uint64_t id, std::size_t offset, std::size_t length,
             unsigned flags = IBV_SEND_SIGNALED) {
        return post(IBV_WR_SEND, id, {sge(offset, length)}, flags);
    }
    int write(std::uint64_t id, std::size_t offset, std::size_t length, std::uint64_t remote,
              std::uint32_t rkey, unsigned flags = IBV_SEND_SIGNALED) {
        return post(IBV_WR_RDMA_WRITE, id, {sge(offset, length)}, flags, remote, rkey);
    }

    int compare_swap(std::uint64_t id, std::size_t result, std::uint64_t remote, std::uint32_t rkey,
                     std::uint64_t compare, std::uint64_t swap) {
        return atomic(IBV_WR_ATOMIC_CMP_AND_SWP, id, {sge(result, 8)}, remote, rkey, compare, swap);
    }
    int fetch_add(std::uint64_t id, std::size_t result, std::uint64_t remote, std::uint32_t rkey,
                  std::uint64_t add) {
        return atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, id, {sge(result, 8)}, remote, rkey, add, 0);
    }
    int atomic(ibv_wr_opcode opcode, std::uint64_t id, std::vector<ibv_sge> pieces,
               std::uint64_t remote, std::uint32_t rkey, std::uint64_t compare_add,
               std::uint64_t swap) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = pieces.data();
        wr.num_sge = static_cast<int>(pieces.size());
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = compare_add;
        wr.wr.atomic.swap = swap;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, &wr, &bad);
    }
    /// The 8 bytes at `offset` of the buffer.
    [[nodiscard]] std::uint64_t& word(std::size_t offset) const {
        return *reinterpret_cast<std::uint64_t*>(memory + offset);
    }

    /// The next completion; nullopt if none came within `patience`.
    std::optional<ibv_wc> complete(std::chrono::milliseconds patience = std::chrono::seconds{10}) {
        return poll_for(patience, [this] { return poll_once(); });
    }
    /// What a poll finds at once.
    std::optional<ibv_wc> poll_once() {
        ibv_wc wc;
        return ibv_poll_cq(cq, 1, &wc) == 1 ? std::optional{wc} : std::nullopt;
    }

    EndpointOptions options;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
    ibv_mr* mr = nullptr;
    ibv_qp_cap capacity{};
    std::byte* memory = nullptr;

  private:
    [[nodiscard]] QueuePairWay way() const {
        return {.access = options.qp_access,
                .reads = options.reads,
                .min_rnr_timer = options.min_rnr_timer,
                .timeout = options.timeout,
                .retry_cnt = options.retry_cnt,
                .rnr_retry = options.rnr_retry,
                .alter = options.alter};
    }
};

/// Two connected ends in this process.
struct Pair {
    explicit Pair(const EndpointOptions& left_options = {},
                  const EndpointOptions& right_options = {})
        : left{left_options}, right{right_options} {
        EXPECT_EQ(left.connect(right.qp->qp_num), 0);
        EXPECT_EQ(right.connect(left.qp->qp_num), 0);
    }
    Endpoint left;
    Endpoint right;
};

/// The status of the next completion; IBV_WC_GENERAL_ERR: none came.
inline ibv_wc_status status_of(Endpoint& end) {
    const auto completion = end.complete();
    return completion ? completion->status : IBV_WC_GENERAL_ERR;
}

}  // namespace millrace::test
