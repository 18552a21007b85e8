// The control messages of a byte stream: how each lies in memory, and how it is read. Made and read
// by Connection; the only file that knows the layout.
//
// Each message travels in a slot of its own (slot.hpp). The receiver of a stream sends ADVERT, ACK
// and CANCEL, its sender DIRECT, INDIRECT, CANCELLED and FIN; either end sends CREDIT. All integers
// are little-endian.
//
//            0     1      2..3  4..7     8..15     16..23        24..31   32..39  40..43  44..47
//   ADVERT   kind  flags  0     credits  sequence  phase         address  length  key     number
//   DIRECT   kind  flags  0     credits  sequence  length|number
//   INDIRECT kind  flags  0     credits  sequence  length|0
//   ACK      kind  0      0     credits  taken
//   CANCEL   kind  0      0     credits
//   CANCELLED kind 0      0     credits  sequence
//   FIN      kind  0      0     credits  sequence
//   CREDIT   kind  0      0     credits
//
//   credits   how many messages of the peer this end has taken, modulo 2^32
//   sequence  ADVERT: where in the stream its receive begins, as the receiver estimates;
//             otherwise how many bytes of the stream lie before this message's, exactly; marks of
//             messages count as DirectionTerms::mark_bytes each
//   number    of an ADVERT: counted from 0, modulo 2^32; DIRECT: of the one that it goes to
//   taken     bytes that have left the ring since the beginning
//
// Sequence numbers, phases and `taken` travel whole, in 64 bits: they cannot wrap while a
// connection lives (2^64 bytes at 400 Gb/s take eleven years), and a place beyond 2^63 is a
// violation. Credits are widened by Credits: what is new is the difference modulo 2^32, and it must
// not exceed the messages whose credit is out, of which there are at most 2^16. Numbers are
// compared for equality.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <variant>

#include "phase.hpp"
#include "violation.hpp"

namespace millrace::stream {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

enum class MessageKind : std::uint8_t {
    advert = 1,
    direct,
    indirect,
    acknowledgement,
    cancel,
    cancelled,
    fin,
    credit,
};

struct MessageHeader {
    MessageKind kind;
    std::uint8_t flags = 0;
    std::uint16_t zero = 0;
    std::uint32_t credits = 0;
};
static_assert(sizeof(MessageHeader) == 8);

/// Of an ADVERT: its receive is to be filled whole (MSG_WAITALL).
inline constexpr std::uint8_t advert_wait_all = 1;

/// Of a transfer: a message ends behind its bytes, of which there may be none; and it was cut off
/// there, as there was no more room in what was advertised. Only where messages are kept.
inline constexpr std::uint8_t transfer_ends_message = 1;
inline constexpr std::uint8_t transfer_cut_off = 2;
/// Of INDIRECT, where no messages are kept: its sender waits for no ACK of it as long as there is
/// room in the ring (it coalesces nothing), so that one of a few bytes may be left.
inline constexpr std::uint8_t transfer_unhurried = 4;

struct AdvertMessage {
    MessageHeader header{MessageKind::advert};
    std::uint64_t sequence = 0;
    Phase phase = 0;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t key = 0;
    std::uint32_t number = 0;

    [[nodiscard]] bool wait_all() const noexcept { return (header.flags & advert_wait_all) != 0; }
};
static_assert(sizeof(AdvertMessage) == 48 && offsetof(AdvertMessage, sequence) == 8 &&
              offsetof(AdvertMessage, phase) == 16 && offsetof(AdvertMessage, address) == 24 &&
              offsetof(AdvertMessage, length) == 32 && offsetof(AdvertMessage, key) == 40 &&
              offsetof(AdvertMessage, number) == 44);

/// DIRECT and INDIRECT: the WRITE posted before this message has put bytes in place.
struct TransferMessage {
    MessageHeader header{MessageKind::indirect};
    std::uint64_t sequence = 0;
    std::uint32_t length = 0;
    std::uint32_t number = 0;

    [[nodiscard]] bool ends_message() const noexcept {
        return (header.flags & transfer_ends_message) != 0;
    }
    [[nodiscard]] bool is_cut_off() const noexcept {
        return (header.flags & transfer_cut_off) != 0;
    }
    [[nodiscard]] bool is_unhurried() const noexcept {
        return (header.flags & transfer_unhurried) != 0;
    }
};
static_assert(sizeof(TransferMessage) == 24 && offsetof(TransferMessage, sequence) == 8 &&
              offsetof(TransferMessage, length) == 16 && offsetof(TransferMessage, number) == 20);

struct AcknowledgementMessage {
    MessageHeader header{MessageKind::acknowledgement};
    std::uint64_t taken = 0;
};
static_assert(sizeof(AcknowledgementMessage) == 16 && offsetof(AcknowledgementMessage, taken) == 8);

/// Takes back every advertisement that has not been filled.
struct CancelMessage {
    MessageHeader header{MessageKind::cancel};
};
static_assert(sizeof(CancelMessage) == 8);

/// No transfer behind this message goes to an advertisement from before its CANCEL.
struct CancelledMessage {
    MessageHeader header{MessageKind::cancelled};
    std::uint64_t sequence = 0;
};
static_assert(sizeof(CancelledMessage) == 16 && offsetof(CancelledMessage, sequence) == 8);

/// The stream ends here.
struct FinMessage {
    MessageHeader header{MessageKind::fin};
    std::uint64_t sequence = 0;
};
static_assert(sizeof(FinMessage) == 16 && offsetof(FinMessage, sequence) == 8);

/// Nothing but the credits of its header.
struct CreditMessage {
    MessageHeader header{MessageKind::credit};
};
static_assert(sizeof(CreditMessage) == 8);

using Message = std::variant<AdvertMessage, TransferMessage, AcknowledgementMessage, CancelMessage,
                             CancelledMessage, FinMessage, CreditMessage>;

inline constexpr std::size_t largest_message = 48;

/// A message as it is sent.
struct EncodedMessage {
    std::array<std::byte, largest_message> bytes;
    std::uint32_t size = 0;

    [[nodiscard]] std::span<const std::byte> span() const noexcept { return {bytes.data(), size}; }
};

template <class Body>
[[nodiscard]] EncodedMessage encode(const Body& body) noexcept {
    static_assert(std::has_unique_object_representations_v<Body> &&
                  sizeof(Body) <= largest_message);
    EncodedMessage message;
    std::memcpy(message.bytes.data(), &body, sizeof body);
    message.size = sizeof body;
    return message;
}

/// Reads what a peer sent. Anything but the exact size of a known kind, with no unknown bit set, is
/// malformed; then `message` stays as it is. What the numbers mean is judged by who uses them.
[[nodiscard]] Violation decode(std::span<const std::byte> bytes, Message& message) noexcept;

}  // namespace millrace::stream
