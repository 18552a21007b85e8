// The UD queue pairs that this process sends to: their blocks and pools mapped here, shared by its
// queue pairs. Called by datagram sends; owned by the process. docs/soft/receives.md.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "completion/completion_ring.hpp"
#include "completion/ringing.hpp"
#include "fabric/fabric.hpp"
#include "layout/receive_pool_layout.hpp"
#include "receives/datagram.hpp"
#include "system/counters.hpp"
#include "system/spin_lock.hpp"
#include "transport/connection_end.hpp"
#include "transport/key_cache.hpp"
#include "transport/pieces.hpp"

namespace millrace::soft {

/// What a datagram is made of, checked and reachable.
struct DatagramMessage {
    Pieces pieces;
    std::uint32_t count = 0;
    std::uint32_t bytes = 0;
    std::uint32_t source = 0;
    std::uint32_t qkey = 0;
    std::uint32_t immediate = 0;
    std::uint32_t flags = 0;       ///< completion_…
    const ibv_grh* grh = nullptr;  ///< null: none travels
};

/// A UD queue pair somewhere in the fabric, as all queue pairs of this process send to it.
/// Thread-safe.
class DatagramTarget {
  public:
    enum class Result { delivered, dropped, stale };

    /// Null: there is no such queue pair now. May throw.
    [[nodiscard]] static std::shared_ptr<DatagramTarget> make(Node& node, Counters& counters,
                                                              std::uint32_t qpn);
    ~DatagramTarget();
    DatagramTarget(const DatagramTarget&) = delete;
    DatagramTarget& operator=(const DatagramTarget&) = delete;

    /// Executes the send, up to the receiver's completion. `stale`: the queue pair that was mapped
    /// here is gone; there may be another one of its number.
    [[nodiscard]] Result deliver(const DatagramMessage& message) noexcept;

    [[nodiscard]] PeerNode& peer() const noexcept { return *peer_; }
    /// Nothing that is sent to it arrives any more: its process or the queue pair is gone.
    [[nodiscard]] bool gone() const noexcept;
    /// Forgets where the receiver's memory is mapped here. False: somebody is at work.
    [[nodiscard]] bool forget_regions() noexcept;

  private:
    DatagramTarget(Node& node, std::shared_ptr<PeerNode> peer) noexcept;
    [[nodiscard]] bool map(Counters& counters, std::uint32_t index);
    [[nodiscard]] CopyResult put(const DatagramMessage& message, Pieces& pieces,
                                 std::uint32_t count, std::uint32_t receive) noexcept;
    [[nodiscard]] CopyResult put_run(const Reach& to, const Reach& from, std::uint64_t bytes,
                                     std::uint32_t receive) noexcept;
    /// Where only the owner may copy.
    [[nodiscard]] CopyResult put_by_owner(const Reach& to, const Reach& from, std::uint64_t bytes,
                                          std::uint32_t receive) noexcept;
    /// True if the owner serves us copies; waits for that, if it never did.
    [[nodiscard]] bool has_box() noexcept;
    void arrive(const ClaimedReceive& receive, const DatagramMessage& message,
                std::uint32_t flags) noexcept;

    Node& node_;
    const std::shared_ptr<PeerNode> peer_;
    std::optional<Block> block_;
    std::optional<Block> pool_block_;
    End receiver_;
    PoolView pool_;
    SenderTable senders_;
    Hazard* hazard_ = nullptr;
    std::uint32_t index_ = 0;
    std::uint32_t who_ = 0;  ///< the upper half of its state word
    bool asymmetric_ = false;

    SpinLock lock_;  ///< guards what follows, and the hazard
    KeyCache keys_;
    CompletionRing arrivals_;  ///< which tells of them
    PeerBell bell_async_;
    bool asked_in_vain_ = false;  ///< for a copy box
    bool abandoned_ = false;      ///< a thread of ours may copy there for ever: nobody else does
};

/// The targets of a process, so that its queue pairs share them.
class DatagramTargets {
  public:
    /// `counters`: of what the targets do.
    explicit DatagramTargets(Counters& counters) noexcept : counters_{counters} {}

    /// Null: there is none. `instead_of`: that one was stale. May throw.
    [[nodiscard]] std::shared_ptr<DatagramTarget> find(Node& node, std::uint32_t qpn,
                                                       const DatagramTarget* instead_of);

    /// Those that some queue pair has. May throw.
    [[nodiscard]] std::vector<std::shared_ptr<DatagramTarget>> all();

  private:
    Counters& counters_;
    std::mutex mutex_;
    std::unordered_map<std::uint32_t, std::weak_ptr<DatagramTarget>> known_;
    std::size_t prune_at_ = 64;
};

}  // namespace millrace::soft
