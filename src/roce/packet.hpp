// A RoCEv2 packet: what is in its headers, and the bytes that travel in a UDP datagram. Called by
// the state machines of roce/ to compose, and by whoever takes datagrams to find the queue pair.
//
//   BTH   0  opcode | 1 solicited 0x80, migration 0x40, pad 0x30, version 0x0f | 2 partition key
//         4  congestion marks | 5 destination queue pair (3) | 8 acknowledge 0x80 | 9 PSN (3)
//   DETH  0  Q_Key | 4 reserved | 5 source queue pair (3)                 all of UD
//   RETH  0  address (8) | 8 rkey | 12 length                             first of WRITE, READ
//   AtomicETH  0 address (8) | 8 rkey | 12 swap or add (8) | 20 compare (8)
//   AETH  0  syndrome | 1 MSN (3)                  acknowledgements, first and last of responses
//   AtomicAckETH  0 what was there (8)
//   ImmDt 0  immediate          IETH 0 rkey to invalidate
//   payload, padded with zeroes to a multiple of 4, and the ICRC (4; icrc.hpp), which is not part
//   of what is composed and parsed here
//
// All numbers are big-endian on the wire and host order in the struct, but the immediate: the
// program's four bytes as they are.
//
// Source: InfiniBand Architecture Specification, volume 1, chapter 9 (headers, opcodes), annexes
// A16 and A17 (RoCE, RoCEv2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::roce {

inline constexpr std::uint16_t udp_port = 4791;
inline constexpr std::size_t bth_bytes = 12;
inline constexpr std::size_t icrc_bytes = 4;
/// The longest headers: BTH and AtomicETH.
inline constexpr std::size_t most_header_bytes = 40;
inline constexpr std::uint32_t largest_mtu = 4096;
inline constexpr std::uint32_t smallest_mtu = 256;
/// A message has at most so many bytes.
inline constexpr std::uint32_t most_message_bytes = 1U << 31;
inline constexpr std::uint16_t default_partition_key = 0xffff;

/// The upper three bits of the opcode.
enum class Service : std::uint8_t { rc = 0x00, uc = 0x20, ud = 0x60, congestion = 0x80 };

/// The lower five bits.
enum class Kind : std::uint8_t {
    send_first = 0x00,
    send_middle = 0x01,
    send_last = 0x02,
    send_last_immediate = 0x03,
    send_only = 0x04,
    send_only_immediate = 0x05,
    write_first = 0x06,
    write_middle = 0x07,
    write_last = 0x08,
    write_last_immediate = 0x09,
    write_only = 0x0a,
    write_only_immediate = 0x0b,
    read_request = 0x0c,
    read_response_first = 0x0d,
    read_response_middle = 0x0e,
    read_response_last = 0x0f,
    read_response_only = 0x10,
    acknowledge = 0x11,
    atomic_acknowledge = 0x12,
    compare_swap = 0x13,
    fetch_add = 0x14,
    send_last_invalidate = 0x16,
    send_only_invalidate = 0x17,
};

/// The whole byte of a congestion notification packet.
inline constexpr std::uint8_t congestion_opcode = 0x81;

/// Of an AETH: the upper three bits say what, the lower five how much, when or why.
inline constexpr std::uint8_t syndrome_kind = 0xe0;
inline constexpr std::uint8_t syndrome_value = 0x1f;
inline constexpr std::uint8_t syndrome_acknowledge = 0x00;
inline constexpr std::uint8_t syndrome_receiver_not_ready = 0x20;
inline constexpr std::uint8_t syndrome_negative = 0x60;
/// "I say nothing of credits."
inline constexpr std::uint8_t credits_invalid = 0x1f;
/// The value of a negative acknowledgement.
enum class Refusal : std::uint8_t {
    sequence = 0,
    invalid_request = 1,
    remote_access = 2,
    remote_operation = 3,
};

/// Only what the opcode has is set by `parse`, and looked at by `compose`.
struct Packet {
    Service service;
    Kind kind;
    bool solicited;
    bool asks_acknowledge;
    std::uint16_t partition_key;
    std::uint32_t destination;  ///< queue pair, 24 bits
    std::uint32_t psn;          ///< 24 bits

    std::uint64_t address;     ///< RETH, AtomicETH
    std::uint32_t remote_key;  ///< RETH, AtomicETH
    std::uint32_t length;      ///< RETH
    union {
        std::uint64_t swap_or_add;  ///< AtomicETH
        std::uint64_t original;     ///< AtomicAckETH
    };
    std::uint64_t compare;  ///< AtomicETH
    union {
        std::uint32_t immediate;       ///< as the program's bytes lie
        std::uint32_t invalidate_key;  ///< host order
    };
    std::uint8_t syndrome;           ///< AETH
    std::uint32_t message_sequence;  ///< AETH: MSN, 24 bits
    std::uint32_t q_key;             ///< DETH
    std::uint32_t source;            ///< DETH: queue pair, 24 bits

    /// Without the padding. `parse` lets it point into what was parsed; `compose` takes its size
    /// alone.
    std::span<const std::uint8_t> payload;
};

/// It answers a requester; a responder gets all others.
[[nodiscard]] constexpr bool is_answer(Kind kind) noexcept {
    return kind >= Kind::read_response_first && kind <= Kind::atomic_acknowledge;
}

/// Bytes of a packet's headers; 0: there is no such opcode.
[[nodiscard]] std::size_t header_bytes(Service service, Kind kind) noexcept;

/// Bytes from the BTH to the end of the padding.
[[nodiscard]] inline std::size_t packet_bytes(std::size_t headers, std::size_t payload) noexcept {
    return headers + ((payload + 3) & ~std::size_t{3});
}

/// What is wrong with bytes that came.
enum class Defect : std::uint8_t {
    none,
    short_of_headers,  ///< or of the padding that the BTH says
    unknown_opcode,    ///< or a version that is not 0
    payload,           ///< where the opcode has none
};

/// `bytes`: from the BTH to the end of the padding, without the ICRC.
[[nodiscard]] Defect parse(std::span<const std::uint8_t> bytes, Packet& packet) noexcept;

/// Of bytes that `parse` may refuse: which queue pair they are for. `bytes` has at least a BTH.
[[nodiscard]] inline std::uint32_t destination_of(std::span<const std::uint8_t> bytes) noexcept {
    return static_cast<std::uint32_t>(bytes[5] << 16 | bytes[6] << 8 | bytes[7]);
}

/// Writes headers and padding; the payload's place, `header_bytes` from the start, is the caller's
/// to fill, before or after. `room` has `packet_bytes`. Answers where the payload begins.
std::uint8_t* compose(const Packet& packet, std::uint8_t* room) noexcept;

}  // namespace millrace::roce
