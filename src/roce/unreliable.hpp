// Unreliable connections (UC) and datagrams (UD): packets are numbered and never answered. Pure
// state, as Requester and Responder, and called by the same.
//
// UC: a request is complete when its last packet has left. A receiver that misses a packet drops
// the rest of the message, and goes on with the next one's first packet; a receive that the lost
// message had claimed is the next message's.
#pragma once

#include <cstdint>
#include <memory>

#include "assembly.hpp"
#include "outlet.hpp"
#include "packet.hpp"
#include "psn.hpp"
#include "sides.hpp"

namespace millrace::roce {

/// Of a UC queue pair at RTS (`first_psn`: sq_psn) or RTR (rq_psn).
struct UnreliableAttributes {
    std::uint32_t destination = 0;  ///< the peer's queue pair
    std::uint32_t first_psn = 0;
    std::uint32_t mtu = 1024;  ///< bytes: a power of two, 256 to 4096
    std::uint16_t partition_key = default_partition_key;
};

class UnreliableSender {
  public:
    UnreliableSender(SendSide& side, std::uint32_t most_requests);

    void start(const UnreliableAttributes& attributes) noexcept;
    /// SENDs and WRITEs, with and without immediate, and Operation::local. There is room.
    void post(const Request& request) noexcept;
    /// False: the outlet was full.
    bool send(Outlet& outlet) noexcept;
    void hold(bool held) noexcept { is_held_ = held; }
    [[nodiscard]] bool is_drained() const noexcept { return offset_ == 0 && !is_begun_; }
    [[nodiscard]] bool is_idle() const noexcept { return done_ == posted_; }
    /// As Requester's.
    std::uint32_t abort() noexcept;

  private:
    SendSide& side_;
    std::uint32_t mask_;
    std::unique_ptr<Request[]> requests_;
    UnreliableAttributes attributes_;
    std::uint32_t done_ = 0;
    std::uint32_t posted_ = 0;
    std::uint32_t psn_ = 0;
    std::uint32_t offset_ = 0;  ///< bytes of the first request that have left
    bool is_begun_ = false;     ///< and it has begun
    bool is_running_ = false;
    bool is_held_ = false;
};

class UnreliableReceiver {
  public:
    explicit UnreliableReceiver(ReceiveSide& side) noexcept : side_{side}, assembly_{side} {}

    void start(const UnreliableAttributes& attributes) noexcept;
    void stop() noexcept { is_running_ = false; }
    void arrived(const Packet& packet) noexcept;
    [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }  ///< packets

  private:
    ReceiveSide& side_;
    Assembly assembly_;
    std::uint32_t expected_ = 0;
    bool is_running_ = false;
    bool skips_ = false;  ///< until a message begins
    std::uint64_t dropped_ = 0;
};

/// A datagram (UD), of one packet.
struct Datagram {
    std::uint32_t destination;  ///< queue pair
    std::uint32_t source;       ///< queue pair
    std::uint32_t q_key;
    std::uint32_t psn;
    std::uint16_t partition_key;
    bool solicited;
    bool has_immediate;
    std::uint32_t immediate;  ///< as the program's bytes lie
    std::uint32_t length;     ///< at most the MTU
};

/// Begins a datagram: where its payload goes, which the caller fills before it commits the outlet's
/// packet. Null: the outlet was full.
[[nodiscard]] std::uint8_t* begin_datagram(const Datagram& datagram, Outlet& outlet) noexcept;

}  // namespace millrace::roce
