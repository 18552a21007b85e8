// Messages as their packets arrive, in order and without a gap: which packet may follow which, how
// long each must be, and what the receive side is asked for each. Called by Responder (RC) and
// UnreliableReceiver (UC).
#pragma once

#include <cstdint>

#include "packet.hpp"
#include "sides.hpp"

namespace millrace::roce {

class Assembly {
  public:
    explicit Assembly(ReceiveSide& side) noexcept : side_{side} {}

    void start(std::uint32_t mtu) noexcept {
        mtu_ = mtu;
        in_ = In::none;
    }
    /// A packet of a SEND or WRITE. `no_receive` changes nothing: the packet may come again. After
    /// any other refusal the message is over.
    [[nodiscard]] Outcome take(const Packet& packet) noexcept;
    [[nodiscard]] bool is_within() const noexcept { return in_ != In::none; }
    /// The message was lost; UC's.
    void abandon() noexcept;

  private:
    enum class In : std::uint8_t { none, send, write };

    [[nodiscard]] Outcome step(const Packet& packet) noexcept;

    ReceiveSide& side_;
    std::uint32_t mtu_ = 1024;
    In in_ = In::none;
    std::uint32_t placed_ = 0;  ///< bytes
    std::uint32_t length_ = 0;  ///< that a WRITE said
};

/// What a SEND's or WRITE's kind of packet is.
struct MessagePart {
    bool is_message;  ///< else it is no packet of these
    bool is_write;
    bool is_first;
    bool is_last;
    bool has_immediate;
    bool invalidates;
};
[[nodiscard]] MessagePart part_of(Kind kind) noexcept;

/// The kind of a packet of a SEND or WRITE.
[[nodiscard]] Kind kind_of(Operation operation, bool is_first, bool is_last) noexcept;

}  // namespace millrace::roce
