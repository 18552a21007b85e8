// Queue pairs: creation, the state machine, posting.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/error.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/control_path.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::verbs {

class SharedReceiveQueue;

/// What to create. The queues must outlive the queue pair.
struct QueuePairOptions {
    ibv_qp_type type = IBV_QPT_RC;
    CompletionQueue* send_queue = nullptr;     ///< completions of sends; required
    CompletionQueue* receive_queue = nullptr;  ///< completions of receives; required
    std::uint32_t max_send_requests = 128;     ///< slots; signaled or not, each holds one
    std::uint32_t max_receive_requests = 16;
    std::uint32_t max_send_slices = 2;
    std::uint32_t max_receive_slices = 1;
    std::uint32_t max_inline = 64;  ///< bytes
    bool signal_all = false;
    /// Takes its receives from here, and has none of its own; not for UC.
    SharedReceiveQueue* shared_receives = nullptr;
};

/// How a peer's queue pair is addressed: exchanged out of band. All in host byte order.
struct QueuePairAddress {
    std::uint32_t number = 0;
    std::uint32_t packet_sequence = 0;
    std::uint16_t lid = 0;
    bool has_gid = false;
    ibv_gid gid{};
};

/// How to reach the peer and how patient to be.
struct PathOptions {
    std::uint8_t port = 1;
    int gid_index = -1;  ///< -1: address by LID alone
    ibv_mtu mtu = IBV_MTU_1024;
    std::uint8_t timeout = 14;  ///< 4.096 µs * 2^timeout per transport retry; 14 is 67 ms
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry = 7;      ///< 7: for ever
    std::uint8_t min_rnr_timer = 1;  ///< IB encoding; 1 is 10 µs
    std::uint8_t max_reads = 16;     ///< outstanding READs and atomics, both directions
    std::uint8_t hop_limit = 64;
};

/// A queue pair. Move-only. Posting is thread-safe, as verbs demands of devices.
class QueuePair {
  public:
    QueuePair() noexcept = default;
    QueuePair(QueuePair&& other) noexcept;
    QueuePair& operator=(QueuePair&& other) noexcept;
    QueuePair(const QueuePair&) = delete;
    QueuePair& operator=(const QueuePair&) = delete;
    ~QueuePair();

    /// RESET -> INIT. From here receives can be posted. `remote`: what the peer may do.
    /// A failed transition throws Error with the attributes that were asked for.
    void initialise(std::uint8_t port, Access remote);
    /// INIT -> RTR -> RTS towards `peer`.
    void connect(const QueuePairAddress& peer, std::uint32_t own_packet_sequence,
                 const PathOptions& path);
    /// -> ERROR: everything posted completes as flushed. Never throws.
    void fail() noexcept;
    [[nodiscard]] ibv_qp_state state() const;
    /// The capacities the device granted (at least what was asked for).
    [[nodiscard]] const ibv_qp_cap& capacity() const noexcept { return capacity_; }
    /// True if the bytes of one WRITE become visible in increasing address order at the peer.
    [[nodiscard]] bool writes_in_order() const noexcept;
    /// Where a WRITE to `at` stores, `length` bytes, mapped into this process to be written
    /// directly, for as long as the pointer lives. A WRITE from there to `at` then has nothing to
    /// copy. The peer sees the bytes at once, may change them, and gives them back when it likes:
    /// then they are 0, and what is stored there is seen by nobody. Null where the device cannot:
    /// all but the soft device in mode `fast`, to memory that it shares (a `Buffer`), once the
    /// queue pair is connected. For set-up: it makes system calls.
    [[nodiscard]] std::shared_ptr<std::byte> map_remote(RemoteAddress at,
                                                        std::size_t length) const noexcept;

    /// True: the peer is a process of this machine, and both ends' memory its own, as with all
    /// peers of the soft device but those that it reaches over its wire. False until it is
    /// connected.
    [[nodiscard]] bool shares_memory() const noexcept;

    /// Posts one work request: 0, ENOMEM (no slot: poll completions first), EINVAL (illegal for
    /// this queue pair or its state). Never blocks, never throws.
    template <class Request>
    [[nodiscard]] int post(const Request& request) noexcept {
        auto&& wr = to_raw(request);
        ibv_send_wr* bad;
        return ibv_post_send(raw_, &wr, &bad);
    }
    /// Posts a batch with one doorbell. On failure `posted` tells how many went out before it.
    template <std::size_t Capacity>
    [[nodiscard]] int post(Batch<Capacity>& batch, std::size_t* posted = nullptr) noexcept {
        ibv_send_wr* bad = nullptr;
        const int error = batch.empty() ? 0 : ibv_post_send(raw_, batch.first(), &bad);
        if (posted != nullptr) {
            *posted = error == 0 ? batch.size() : static_cast<std::size_t>(bad - batch.first());
        }
        return error;
    }
    [[nodiscard]] int post(const Receive& receive) noexcept {
        ibv_recv_wr wr = to_raw(receive);
        ibv_recv_wr* bad;
        return ibv_post_recv(raw_, &wr, &bad);
    }

    [[nodiscard]] std::uint32_t number() const noexcept { return raw_->qp_num; }
    [[nodiscard]] ibv_qp* raw() const noexcept { return raw_; }

  private:
    friend class ProtectionDomain;
    QueuePair(ibv_qp* raw, const ControlPath& path, const ibv_qp_cap& capacity) noexcept
        : raw_{raw}, path_{&path}, capacity_{capacity} {}
    ibv_qp* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
    ibv_qp_cap capacity_{};
};

}  // namespace millrace::verbs
