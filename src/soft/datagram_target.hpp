// The UD queue pairs that this process sends to: their blocks and pools mapped here, shared by its
// queue pairs. Called by datagram sends; owned by the process. docs/soft-device.md, "Receive
// pools".
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "block_layout.hpp"
#include "datagram.hpp"
#include "fabric.hpp"
#include "receive_pool_layout.hpp"
#include "ringing.hpp"
#include "spin_lock.hpp"

namespace millrace::soft {

struct DatagramPiece {
    Reach at;
    std::uint64_t length;
    std::uint32_t key;  ///< 0: of no region
};
/// Memory for as many as there may be, of which mostly one is used: nothing is set before.
class DatagramPieces {
  public:
    [[nodiscard]] DatagramPiece& operator[](std::size_t index) noexcept { return data()[index]; }
    [[nodiscard]] const DatagramPiece& operator[](std::size_t index) const noexcept {
        return data()[index];
    }
    [[nodiscard]] DatagramPiece* data() noexcept {
        return reinterpret_cast<DatagramPiece*>(memory_);
    }
    [[nodiscard]] const DatagramPiece* data() const noexcept {
        return reinterpret_cast<const DatagramPiece*>(memory_);
    }

  private:
    static_assert(std::is_trivially_copyable_v<DatagramPiece> &&
                  std::is_trivially_destructible_v<DatagramPiece>);
    alignas(DatagramPiece) std::byte memory_[max_sges * sizeof(DatagramPiece)];
};

/// What a datagram is made of, checked and reachable.
struct DatagramMessage {
    using Piece = DatagramPiece;
    DatagramPieces pieces;
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
    [[nodiscard]] static std::shared_ptr<DatagramTarget> make(Node& node, std::uint32_t qpn);
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
    struct Region {
        std::uint32_t key = 0;
        const RegionEntry* entry = nullptr;
        std::uint64_t iova = 0;
        std::uint64_t length = 0;
        Reach base;
    };

    DatagramTarget(Node& node, std::shared_ptr<PeerNode> peer) noexcept;
    [[nodiscard]] bool map(std::uint32_t index);
    [[nodiscard]] bool scatter(const PoolSlot& slot, DatagramMessage::Piece* pieces,
                               std::uint32_t& count, std::uint64_t& room) noexcept;
    [[nodiscard]] bool find(std::uint32_t key, std::uint64_t address, std::uint64_t length,
                            Reach& reach) noexcept;
    [[nodiscard]] CopyResult put(const DatagramMessage& message,
                                 const DatagramMessage::Piece* pieces, std::uint32_t count,
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
    BlockView view_;
    PoolView pool_;
    SenderTable senders_;
    Hazard* hazard_ = nullptr;
    std::uint32_t index_ = 0;
    std::uint32_t who_ = 0;  ///< the upper half of its state word
    bool asymmetric_ = false;

    SpinLock lock_;  ///< guards what follows, and the hazard
    std::array<Region, 8> regions_{};
    PeerBell bell_receive_;
    PeerBell bell_async_;
    RungEpoch rung_;
    bool asked_in_vain_ = false;  ///< for a copy box
    bool abandoned_ = false;      ///< a thread of ours may copy there for ever: nobody else does
};

/// The targets of a process, so that its queue pairs share them.
class DatagramTargets {
  public:
    /// Null: there is none. `instead_of`: that one was stale. May throw.
    [[nodiscard]] std::shared_ptr<DatagramTarget> find(Node& node, std::uint32_t qpn,
                                                       const DatagramTarget* instead_of);

    /// Those that some queue pair has. May throw.
    [[nodiscard]] std::vector<std::shared_ptr<DatagramTarget>> all();

  private:
    std::mutex mutex_;
    std::unordered_map<std::uint32_t, std::weak_ptr<DatagramTarget>> known_;
    std::size_t prune_at_ = 64;
};

}  // namespace millrace::soft
