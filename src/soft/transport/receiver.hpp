// The receiving end of a connection, as whoever executes for its sender has it: where bytes may go
// or come from, which receive they take, what its owner is told. Used by executors of either
// process, which have a request as a whole, and by the wire, where it arrives in pieces.
//
// One thread at a time, under a hazard. What its owner wrote, if that is a peer, is checked here.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "completion/completion_ring.hpp"
#include "completion/ringing.hpp"
#include "fabric/fabric.hpp"
#include "layout/block_layout.hpp"
#include "layout/receive_pool_layout.hpp"
#include "system/counters.hpp"
#include "transport/connection_end.hpp"
#include "transport/key_cache.hpp"
#include "transport/pieces.hpp"
#include "transport/reasons.hpp"
#include "transport/request.hpp"

namespace millrace::soft {

/// One end of a connection.
struct Side {
    End end;
    KeyCache keys;
    CompletionRing completions;  ///< of the sender's sends, of the receiver's receives
    PeerBell bell_async;

    /// Wakes whoever waits for its asynchronous events.
    void ring_async(PeerNode* peer, Counters& counters) noexcept;
};

/// The receive that a request consumes, if it does.
struct Consumed {
    std::uint32_t position = 0;  ///< in the ring of completions
    const PoolSlot* slot = nullptr;
    bool pooled = false;
};

/// Why a request is not executed: what either end's completion says, and more. `receiver` may be
/// success: then it hears nothing.
struct Refusal {
    ibv_wc_status sender = IBV_WC_SUCCESS;
    ibv_wc_status receiver = IBV_WC_SUCCESS;
    Reason why{};
};

class Receiver : public Side {
  public:
    /// Of `end`, which is set. `peer`: whose it is, or null.
    void open(Node* node, PeerNode* peer, bool asymmetric, Counters& counters) noexcept;
    void close() noexcept;

    [[nodiscard]] Node* node() const noexcept { return node_; }
    [[nodiscard]] PeerNode* peer() const noexcept { return peer_; }  ///< of this process, or null
    [[nodiscard]] Counters& counters() const noexcept { return *counters_; }
    void ring_async() noexcept { Side::ring_async(peer_, *counters_); }

    /// What the queue pair grants its peer.
    [[nodiscard]] bool grants(std::uint32_t access) const noexcept {
        return (access_->load(std::memory_order_relaxed) & access) != 0;
    }

    /// Is there a receive, at `position`? Of a shared receive queue: room for its completion.
    [[nodiscard]] bool receive_available(std::uint32_t& position) noexcept;
    /// The same, without a look at what was posted since: if it is there, it is.
    [[nodiscard]] bool receive_seen(std::uint32_t position) const noexcept {
        return receive_tail_ - position - 1 <= end.block.receive_mask;
    }
    /// Looks at the owner's receives anew.
    void look_at_receives() noexcept {
        receive_tail_ = end.block.consumed->position.load(std::memory_order_relaxed);
    }
    /// Takes one from a shared receive queue, as late as possible, because nothing but a
    /// completion or a fault gives it back. False: there is none.
    [[nodiscard]] bool claim(std::uint32_t& position, const PoolSlot*& slot) noexcept;
    /// 1 + the receive of a pool that the current request has.
    [[nodiscard]] std::uint32_t claimed() const noexcept { return claimed_; }
    /// Offers it again, of a pool of this process.
    void give_claimed_back() noexcept;

    // False, of the following: `refusal` says why.

    /// Where a READ or WRITE of `bytes` comes from or goes to.
    [[nodiscard]] bool find_target(ibv_wr_opcode opcode, std::uint32_t key, std::uint64_t address,
                                   std::uint64_t bytes, Piece& target) noexcept;
    /// Where the `bytes` of a SEND go to: where its receive says.
    [[nodiscard]] bool find_receive(const Consumed& receive, std::uint64_t bytes, Piece* pieces,
                                    std::uint32_t& count) noexcept;
    /// The word of an atomic. Null: it is refused.
    [[nodiscard]] const KeyCache::Region* find_word(std::uint32_t key, std::uint64_t address,
                                                    Piece& target) noexcept;
    [[nodiscard]] const Refusal& refusal() const noexcept { return refusal_; }
    /// False, always.
    [[gnu::cold]] bool refuse(ibv_wc_status sender, ibv_wc_status receiver,
                              const Reason& why) noexcept {
        refusal_ = {sender, receiver, why};
        return false;
    }

    /// Changes a word that is mapped here. What was there.
    [[nodiscard]] static std::uint64_t change_word(std::byte* at, ibv_wr_opcode opcode,
                                                   std::uint64_t compare_or_add,
                                                   std::uint64_t swap) noexcept;

    /// Of the window of the queue pair's own that `key` names; null: it names none.
    [[nodiscard]] std::atomic<std::uint64_t>* window_word(std::uint32_t key) noexcept;
    /// Completes the receive of a message whose bytes are there; `flags`: completion_... With a
    /// window, ends it.
    void complete(const Consumed& receive, std::uint32_t bytes, std::uint32_t immediate,
                  std::uint32_t flags, std::atomic<std::uint64_t>* window) noexcept {
        if (window != nullptr) [[unlikely]] {
            // Nobody else executes for this connection now; before the receiver can know of it.
            window->store(0, std::memory_order_release);
            flags = (flags & ~completion_immediate) | completion_invalidated;
        }
        if (receive.pooled) {
            flags |= claimed_ - 1;
            claimed_ = 0;
        }
        completions.write(receive.position, bytes, immediate, flags);
    }
    /// Tells the owner that its queue pair has failed.
    void fail(ibv_wc_status status, const Reason& why) noexcept;

  private:
    const std::atomic<std::uint32_t>* access_ = nullptr;  ///< the queue pair's
    std::uint32_t receive_tail_ = 0;
    std::uint32_t claimed_ = 0;
    Refusal refusal_;
    Node* node_ = nullptr;
    PeerNode* peer_ = nullptr;
    Counters* counters_ = nullptr;
};

}  // namespace millrace::soft
