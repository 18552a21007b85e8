// What a stream's state machine wants done: answered by Connection::next, done by whoever owns
// queue pair and memory, in this order and each before the next is asked for.
#pragma once

#include <array>
#include <cstdint>
#include <variant>

#include "millrace/base/status.hpp"
#include "wire.hpp"

namespace millrace::stream {

/// Nothing, until the program or the peer does something.
struct Idle {};

/// Part of one send's buffer.
struct Piece {
    std::uint64_t send = 0;    ///< the program's name of the send
    std::uint64_t offset = 0;  ///< of its first byte in the send's buffer
    std::uint32_t length = 0;
};
inline constexpr std::uint32_t most_pieces = 4;

/// One WRITE of the pieces, one behind the other.
struct Transfer {
    bool direct = false;
    std::uint64_t address = 0;  ///< direct: in the peer's memory; indirect: offset in its ring
    std::uint32_t key = 0;      ///< direct: of that memory
    std::uint32_t length = 0;   ///< 0: a message's mark alone, and nothing to write
    std::uint32_t places = 0;   ///< of the stream: its bytes, and the mark behind them
    std::uint32_t piece_count = 0;
    std::array<Piece, most_pieces> pieces{};
};

/// Write the pieces, and the notification behind them. When the WRITE completes:
/// Connection::written, with its places.
struct Write {
    Transfer transfer;
    EncodedMessage notification;
};

/// Send a message alone.
struct SendMessage {
    EncodedMessage message;
};

/// Copy from this end's ring into a receive's buffer.
struct CopyOut {
    std::uint64_t receive = 0;  ///< the program's name of the receive
    std::uint64_t offset = 0;   ///< in its buffer
    std::uint64_t ring_offset = 0;
    std::uint64_t length = 0;
};

/// A send's buffer is the program's again. `status`: ok; peer_lost after break_off.
struct SendDone {
    std::uint64_t send = 0;
    base::Status status = base::Status::ok;
};

/// A receive's buffer is the program's again, with `length` bytes in it. `status`: ok; too_large:
/// the rest of the message is gone; closed at the end of the stream; cancelled; peer_lost after
/// break_off.
struct ReceiveDone {
    std::uint64_t receive = 0;
    std::uint64_t length = 0;
    base::Status status = base::Status::ok;
};

using Action = std::variant<Idle, Write, SendMessage, CopyOut, SendDone, ReceiveDone>;

}  // namespace millrace::stream
