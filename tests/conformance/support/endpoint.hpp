// One queue pair with its completion queues, and what the tests do with it: walk its states, post,
// wait for completions. Every wait has a deadline.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "device.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::conformance {

inline constexpr unsigned all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr std::uint32_t queue_key = 0x11223344;  ///< the Q_Key of every UD queue pair here
inline constexpr std::uint32_t first_psn = 0x123;
inline constexpr std::chrono::milliseconds generous{20'000};  ///< only ends tests that have failed

/// Registered memory: pages of its own, zeroed.
class Buffer {
  public:
    Buffer(ibv_pd* domain, std::size_t size, unsigned access = all_access)
        : size_{size}, mapped_{(size + 4095) / 4096 * 4096} {
        void* const pages =
            mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
        data_ = static_cast<std::byte*>(pages);
        try {
            region_.reset(
                made(ibv_reg_mr(domain, data_, size, static_cast<int>(access)), "ibv_reg_mr"));
        } catch (...) {
            munmap(data_, mapped_);
            throw;
        }
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        region_.reset();
        munmap(data_, mapped_);
    }

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::uint64_t address(std::size_t offset = 0) const noexcept {
        return reinterpret_cast<std::uint64_t>(data_) + offset;
    }
    [[nodiscard]] ibv_mr* region() const noexcept { return region_.get(); }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return region_->rkey; }
    /// Deregisters; the pages stay.
    int deregister() noexcept { return ibv_dereg_mr(region_.release()); }
    [[nodiscard]] ibv_sge slice(std::size_t offset, std::size_t length) const noexcept {
        return {address(offset), static_cast<std::uint32_t>(length), region_->lkey};
    }
    [[nodiscard]] ibv_sge all() const noexcept { return slice(0, size_); }

    /// Bytes that depend on place and `seed`.
    void fill(unsigned seed) noexcept {
        for (std::size_t i = 0; i < size_; ++i) data_[i] = pattern(i, seed);
    }
    [[nodiscard]] static std::byte pattern(std::size_t place, unsigned seed) noexcept {
        return static_cast<std::byte>(place * 131 + (place >> 8) * 17 + seed * 29 + 1);
    }
    /// How many of the bytes [offset, offset + length) are `value`.
    [[nodiscard]] std::size_t count(std::byte value, std::size_t offset,
                                    std::size_t length) const noexcept {
        std::size_t found = 0;
        for (std::size_t i = 0; i < length; ++i) found += data_[offset + i] == value ? 1U : 0U;
        return found;
    }
    [[nodiscard]] bool untouched() const noexcept { return count(std::byte{0}, 0, size_) == size_; }
    [[nodiscard]] std::uint64_t word(std::size_t offset = 0) const noexcept {
        std::uint64_t value;
        std::memcpy(&value, data_ + offset, sizeof value);
        return value;
    }
    void set_word(std::uint64_t value, std::size_t offset = 0) noexcept {
        std::memcpy(data_ + offset, &value, sizeof value);
    }

  private:
    std::size_t size_;
    std::size_t mapped_;
    std::byte* data_ = nullptr;
    Region region_;
};

/// True when `count` bytes of the two are equal.
[[nodiscard]] inline bool same(const Buffer& a, std::size_t a_offset, const Buffer& b,
                               std::size_t b_offset, std::size_t count) noexcept {
    return std::memcmp(a.data() + a_offset, b.data() + b_offset, count) == 0;
}

struct Options {
    ibv_qp_type type = IBV_QPT_RC;
    std::uint32_t max_send = 16;
    std::uint32_t max_receive = 16;
    std::uint32_t send_sges = 4;
    std::uint32_t receive_sges = 4;
    std::uint32_t inline_bytes = 0;
    bool all_signaled = false;
    ibv_srq* shared = nullptr;
    int queue_entries = 64;
    unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    std::uint8_t min_rnr_timer = 1;  // 0.01 ms
    std::uint8_t timeout = 14;       // 67 ms
    std::uint8_t retries = 7;
    std::uint8_t rnr_retries = 7;  // without end
    std::uint8_t reads = 1;
    ibv_mtu mtu = IBV_MTU_4096;         // bounded by the port's
    std::uint32_t own_psn = first_psn;  // the peer expects first_psn
};

/// Where a write, read or atomic goes.
struct Target {
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
};
[[nodiscard]] inline Target at(const Buffer& buffer, std::size_t offset = 0) noexcept {
    return {buffer.address(offset), buffer.rkey()};
}

/// A queue pair's name for its peer.
struct Name {
    std::uint32_t number = 0;
    std::uint16_t lid = 0;
    ibv_gid gid{};
};

class Endpoint {
  public:
    Endpoint(const Device& device, ibv_pd* domain, const Options& options = {})
        : device_{&device}, options_{options} {
        ibv_context* const context = device.context();
        channel.reset(made(ibv_create_comp_channel(context), "ibv_create_comp_channel"));
        sends.reset(made(ibv_create_cq(context, options.queue_entries, this, channel.get(), 0),
                         "ibv_create_cq"));
        receives.reset(made(ibv_create_cq(context, options.queue_entries, this, channel.get(), 0),
                            "ibv_create_cq"));
        ibv_qp_init_attr init{};
        init.send_cq = sends.get();
        init.recv_cq = receives.get();
        init.srq = options.shared;
        init.qp_type = options.type;
        init.sq_sig_all = options.all_signaled ? 1 : 0;
        init.cap = {options.max_send, options.shared != nullptr ? 0 : options.max_receive,
                    options.send_sges, options.shared != nullptr ? 0 : options.receive_sges,
                    options.inline_bytes};
        qp.reset(made(ibv_create_qp(domain, &init), "ibv_create_qp"));
        capacity = init.cap;
        if (options_.mtu > device.mtu()) options_.mtu = device.mtu();
    }

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    [[nodiscard]] Name name() const noexcept {
        return {qp->qp_num, device_->port_attributes().lid, device_->gid()};
    }

    /// The attributes and mask with which this queue pair goes to INIT, RTR (to `peer`) and RTS:
    /// the minimum that the manual page of ibv_modify_qp demands of its type.
    int attributes_for(ibv_qp_state state, const Name& peer, ibv_qp_attr& given) const noexcept {
        given = {};
        given.qp_state = state;
        const bool datagram = options_.type == IBV_QPT_UD;
        const bool reliable = options_.type == IBV_QPT_RC;
        int mask = IBV_QP_STATE;
        if (state == IBV_QPS_INIT) {
            given.port_num = device_->port();
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            given.qp_access_flags = options_.access;
            given.qkey = queue_key;
            mask |= datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
        } else if (state == IBV_QPS_RTR && !datagram) {
            given.ah_attr = device_->path(peer.lid, peer.gid);
            given.path_mtu = options_.mtu;
            given.dest_qp_num = peer.number;
            given.rq_psn = first_psn;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if (reliable) {
                given.max_dest_rd_atomic = options_.reads;
                given.min_rnr_timer = options_.min_rnr_timer;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        } else if (state == IBV_QPS_RTS) {
            given.sq_psn = options_.own_psn;
            mask |= IBV_QP_SQ_PSN;
            if (reliable) {
                given.timeout = options_.timeout;
                given.retry_cnt = options_.retries;
                given.rnr_retry = options_.rnr_retries;
                given.max_rd_atomic = options_.reads;
                mask |=
                    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        return mask;
    }
    /// ibv_modify_qp's answer to the move.
    int to(ibv_qp_state state, const Name& peer = {}) noexcept {
        ibv_qp_attr given{};
        const int mask = attributes_for(state, peer, given);
        return ibv_modify_qp(qp.get(), &given, mask);
    }
    void connect(const Name& peer) {
        done(to(IBV_QPS_INIT), "ibv_modify_qp to INIT");
        done(to(IBV_QPS_RTR, peer), "ibv_modify_qp to RTR");
        done(to(IBV_QPS_RTS), "ibv_modify_qp to RTS");
    }
    [[nodiscard]] ibv_qp_attr query(int mask = IBV_QP_STATE) const {
        ibv_qp_attr attributes{};
        ibv_qp_init_attr init{};
        done(ibv_query_qp(qp.get(), &attributes, mask, &init), "ibv_query_qp");
        return attributes;
    }
    [[nodiscard]] ibv_qp_state state() const { return query().qp_state; }

    // Posting: ibv_post_send's and ibv_post_recv's answers.
    int post(ibv_wr_opcode opcode, std::uint64_t id, std::vector<ibv_sge> sges, Target target = {},
             unsigned flags = IBV_SEND_SIGNALED, std::uint32_t immediate = 0) noexcept {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.imm_data = immediate;
        wr.wr.rdma.remote_addr = target.address;
        wr.wr.rdma.rkey = target.rkey;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp.get(), &wr, &bad);
    }
    int send(std::uint64_t id, std::vector<ibv_sge> sges,
             unsigned flags = IBV_SEND_SIGNALED) noexcept {
        return post(IBV_WR_SEND, id, std::move(sges), {}, flags);
    }
    int write(std::uint64_t id, std::vector<ibv_sge> sges, Target target,
              unsigned flags = IBV_SEND_SIGNALED) noexcept {
        return post(IBV_WR_RDMA_WRITE, id, std::move(sges), target, flags);
    }
    int read(std::uint64_t id, std::vector<ibv_sge> sges, Target target,
             unsigned flags = IBV_SEND_SIGNALED) noexcept {
        return post(IBV_WR_RDMA_READ, id, std::move(sges), target, flags);
    }
    int receive(std::uint64_t id, std::vector<ibv_sge> sges) noexcept {
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        ibv_recv_wr* bad = nullptr;
        return ibv_post_recv(qp.get(), &wr, &bad);
    }

    Channel channel;
    Queue sends;
    Queue receives;
    Pair qp;
    ibv_qp_cap capacity{};  ///< what the device gave, at least what was asked

  private:
    const Device* device_;
    Options options_;
};

/// One poll.
[[nodiscard]] inline std::optional<ibv_wc> poll_once(ibv_cq* queue) {
    ibv_wc completion{};
    const int got = ibv_poll_cq(queue, 1, &completion);
    EXPECT_GE(got, 0) << "ibv_poll_cq failed";
    return got == 1 ? std::optional{completion} : std::nullopt;
}

/// How long a test waits: less once it has failed, so that what follows does not take for ever.
[[nodiscard]] inline std::chrono::milliseconds patience() {
    return testing::Test::HasFailure() ? std::chrono::milliseconds{500} : generous;
}

/// The next completion; a failure and IBV_WC_GENERAL_ERR if none comes.
[[nodiscard]] inline ibv_wc next(const Queue& queue) {
    ibv_wc completion{};
    int got = 0;
    base::NapParker naps;
    const auto status =
        base::wait_until([&] { return (got = ibv_poll_cq(queue.get(), 1, &completion)) != 0; },
                         base::Deadline::after(patience()), {}, naps);
    if (status != base::Status::ok || got != 1) {
        ADD_FAILURE() << "no completion came";
        completion.status = IBV_WC_GENERAL_ERR;
        completion.wr_id = ~std::uint64_t{0};
    }
    return completion;
}

/// Waits until `condition` holds; false after a generous while.
template <class Condition>
[[nodiscard]] bool eventually(Condition condition) {
    base::NapParker naps;
    return base::wait_until(condition, base::Deadline::after(patience()), {}, naps) ==
           base::Status::ok;
}

/// A request that the queue pair's kind does not have is refused while it is posted, or fails
/// later.
[[nodiscard]] inline bool refused_or_fails(Endpoint& end, int posted) {
    return posted != 0 || next(end.sends).status != IBV_WC_SUCCESS;
}

/// The state that `end` has come to, which is `wanted` unless it did not come there.
[[nodiscard]] inline ibv_qp_state state_once(const Endpoint& end, ibv_qp_state wanted) {
    static_cast<void>(eventually([&] { return end.state() == wanted; }));
    return end.state();
}

/// The next asynchronous event of `context`, acknowledged; nullopt if none comes within `wait`.
[[nodiscard]] inline std::optional<ibv_async_event> next_event(
    ibv_context* context, std::chrono::milliseconds wait = patience()) {
    pollfd readable{context->async_fd, POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(wait.count())) != 1) return std::nullopt;
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0) return std::nullopt;
    ibv_ack_async_event(&event);
    return event;
}

/// True when the completion channel is readable within `wait`.
[[nodiscard]] inline bool event_waits(const Channel& channel,
                                      std::chrono::milliseconds wait = patience()) {
    pollfd readable{channel->fd, POLLIN, 0};
    return poll(&readable, 1, static_cast<int>(wait.count())) == 1;
}

}  // namespace millrace::conformance

/// Expects a successful completion of `id` with `opcode`.
#define EXPECT_COMPLETES(queue, id, code)                                                       \
    do {                                                                                        \
        const ibv_wc completion_ = ::millrace::conformance::next(queue);                        \
        EXPECT_EQ(completion_.status, IBV_WC_SUCCESS) << ibv_wc_status_str(completion_.status); \
        EXPECT_EQ(completion_.wr_id, static_cast<std::uint64_t>(id));                           \
        EXPECT_EQ(completion_.opcode, code);                                                    \
    } while (false)

/// Expects a completion of `id` that failed with `expected`.
#define EXPECT_FAILS(queue, id, expected)                                                 \
    do {                                                                                  \
        const ibv_wc completion_ = ::millrace::conformance::next(queue);                  \
        EXPECT_EQ(completion_.status, expected) << ibv_wc_status_str(completion_.status); \
        EXPECT_EQ(completion_.wr_id, static_cast<std::uint64_t>(id));                     \
    } while (false)
