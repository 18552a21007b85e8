// The connection manager's messages (MADs): plain structs, and the 256 bytes that travel. Called by
// Connection, by whoever carries the bytes, and by whoever finds the connection that a MAD is for.
//
//   byte   0  base version 1 | class 7 (CM) | class version 2 | method 3 (Send)
//          4  status 0, class specific 0
//          8  transaction: whoever begins an exchange chooses it, the answers repeat it
//         16  attribute (which message) | 0
//         20  attribute modifier 0
//         24  the message, and its private data up to byte 255
//
// Private data has no length: it is what the message leaves of the 256 bytes, and zero where its
// sender said nothing. All numbers are big-endian on the wire, and host order in the structs. What
// is reserved, or speaks of reliable datagrams, is sent as zero and not looked at.
//
// Not spoken: LAP and APR (alternate paths), which the kernel does not do over RoCE either, and
// XRC.
//
// Source: InfiniBand Architecture Specification, volume 1, chapter 12 (messages), chapter 13.4 (the
// header), annex A11 (the header that rdma_cm keeps in the private data of REQ and SIDR_REQ).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

namespace millrace::cm {

inline constexpr std::size_t mad_bytes = 256;
using MadBytes = std::array<std::uint8_t, mad_bytes>;
using Gid = std::array<std::uint8_t, 16>;

/// The attribute of each message.
enum class Attribute : std::uint16_t {
    req = 0x10,
    mra = 0x11,
    rej = 0x12,
    rep = 0x13,
    rtu = 0x14,
    dreq = 0x15,
    drep = 0x16,
    sidr_req = 0x17,
    sidr_rep = 0x18,
};

/// The private data of a message: all that it has room for.
template <std::size_t Bytes>
using PrivateData = std::array<std::uint8_t, Bytes>;
inline constexpr std::size_t req_private_bytes = 92;
inline constexpr std::size_t mra_private_bytes = 222;
inline constexpr std::size_t rej_private_bytes = 148;
inline constexpr std::size_t rep_private_bytes = 196;
inline constexpr std::size_t rtu_private_bytes = 224;
inline constexpr std::size_t dreq_private_bytes = 220;
inline constexpr std::size_t drep_private_bytes = 224;
inline constexpr std::size_t sidr_req_private_bytes = 216;
inline constexpr std::size_t sidr_rep_private_bytes = 136;
inline constexpr std::size_t most_private_bytes = 224;
inline constexpr std::size_t rejection_information_bytes = 72;

/// What the two queue pairs are. `extended` is XRC, which nobody here speaks.
enum class TransportType : std::uint8_t { rc = 0, uc = 1, rd = 2, extended = 3 };

/// A way from the sender of a REQ to its receiver.
struct Path {
    std::uint16_t local_lid = 0;
    std::uint16_t remote_lid = 0;
    Gid local_gid{};
    Gid remote_gid{};
    std::uint32_t flow_label = 0;  ///< 20 bits
    std::uint8_t packet_rate = 0;  ///< 6 bits; ibv_rate
    std::uint8_t traffic_class = 0;
    std::uint8_t hop_limit = 0;
    std::uint8_t service_level = 0;  ///< 4 bits
    bool subnet_local = false;
    std::uint8_t local_ack_timeout = 0;  ///< 5 bits; 4.096 µs * 2^n

    bool operator==(const Path&) const = default;
};

/// "Connect to this service."
struct Req {
    std::uint32_t local_comm_id = 0;
    std::uint64_t service_id = 0;
    std::uint64_t local_ca_guid = 0;
    std::uint32_t local_q_key = 0;
    std::uint32_t local_qpn = 0;           ///< 24 bits
    std::uint8_t responder_resources = 0;  ///< READs and atomics that the sender can serve at once
    std::uint8_t initiator_depth = 0;      ///< and that it wants to have under way
    std::uint8_t remote_response_timeout =
        0;  ///< 5 bits; 4.096 µs * 2^n until the receiver answers
    TransportType transport = TransportType::rc;
    bool end_to_end_flow_control = false;
    std::uint32_t starting_psn = 0;           ///< 24 bits; the receiver's first PSN
    std::uint8_t local_response_timeout = 0;  ///< 5 bits; until the sender answers a REP
    std::uint8_t retry_count = 0;             ///< 3 bits
    std::uint16_t partition_key = 0;
    std::uint8_t path_mtu = 0;         ///< 4 bits; ibv_mtu
    std::uint8_t rnr_retry_count = 0;  ///< 3 bits; 7: for ever
    std::uint8_t max_cm_retries = 0;   ///< 4 bits
    bool srq = false;
    Path primary;
    Path alternate;
    PrivateData<req_private_bytes> private_data{};

    bool operator==(const Req&) const = default;
};

/// Which message a REJ or an MRA speaks of.
enum class Answered : std::uint8_t { req = 0, rep = 1, other = 2 };

/// "I have it, the answer takes a while."
struct Mra {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    Answered answered = Answered::req;
    std::uint8_t service_timeout = 0;  ///< 5 bits; 4.096 µs * 2^n
    PrivateData<mra_private_bytes> private_data{};

    bool operator==(const Mra&) const = default;
};

/// Why a REJ. A peer may send any other number.
enum class RejectReason : std::uint16_t {
    no_queue_pair = 1,
    no_resources = 3,
    timeout = 4,
    unsupported = 5,
    invalid_comm_id = 6,
    invalid_service_id = 8,
    invalid_transport = 9,
    stale_connection = 10,
    consumer_defined = 28,
};

/// "No."
struct Rej {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    Answered answered = Answered::req;
    std::uint8_t information_size = 0;  ///< 7 bits; bytes of `information` that mean something
    RejectReason reason = RejectReason::consumer_defined;
    std::array<std::uint8_t, rejection_information_bytes> information{};
    PrivateData<rej_private_bytes> private_data{};

    bool operator==(const Rej&) const = default;
};

/// "Yes, with this queue pair."
struct Rep {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    std::uint32_t local_q_key = 0;
    std::uint32_t local_qpn = 0;     ///< 24 bits
    std::uint32_t starting_psn = 0;  ///< 24 bits; the receiver's first PSN
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t target_ack_delay = 0;   ///< 5 bits; 4.096 µs * 2^n
    std::uint8_t failover_accepted = 0;  ///< 2 bits
    bool end_to_end_flow_control = false;
    std::uint8_t rnr_retry_count = 0;  ///< 3 bits
    bool srq = false;
    std::uint64_t local_ca_guid = 0;
    PrivateData<rep_private_bytes> private_data{};

    bool operator==(const Rep&) const = default;
};

/// "I can send and receive."
struct Rtu {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    PrivateData<rtu_private_bytes> private_data{};

    bool operator==(const Rtu&) const = default;
};

/// "Let us end."
struct Dreq {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    std::uint32_t remote_qpn = 0;  ///< 24 bits; the receiver's
    PrivateData<dreq_private_bytes> private_data{};

    bool operator==(const Dreq&) const = default;
};

/// "We have."
struct Drep {
    std::uint32_t local_comm_id = 0;
    std::uint32_t remote_comm_id = 0;
    PrivateData<drep_private_bytes> private_data{};

    bool operator==(const Drep&) const = default;
};

/// "Which queue pair answers datagrams of this service?"
struct SidrReq {
    std::uint32_t request_id = 0;
    std::uint16_t partition_key = 0;
    std::uint64_t service_id = 0;
    PrivateData<sidr_req_private_bytes> private_data{};

    bool operator==(const SidrReq&) const = default;
};

/// What became of a SIDR_REQ. A peer may send any other number.
enum class SidrStatus : std::uint8_t {
    success = 0,
    unsupported = 1,
    rejected = 2,
    no_queue_pair = 3,
    redirected = 4,
    unsupported_version = 5,
};

/// "This one", or why not.
struct SidrRep {
    std::uint32_t request_id = 0;
    SidrStatus status = SidrStatus::success;
    std::uint8_t information_size = 0;
    std::uint32_t qpn = 0;  ///< 24 bits
    std::uint64_t service_id = 0;
    std::uint32_t q_key = 0;
    std::array<std::uint8_t, rejection_information_bytes> information{};
    PrivateData<sidr_rep_private_bytes> private_data{};

    bool operator==(const SidrRep&) const = default;
};

struct Mad {
    std::uint64_t transaction = 0;
    std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep> body;

    bool operator==(const Mad&) const = default;
};

/// Which message it is.
[[nodiscard]] Attribute attribute_of(const Mad& mad) noexcept;

/// The bytes of a MAD. Bits that a field does not have are left off.
[[nodiscard]] MadBytes encode(const Mad& mad) noexcept;

/// The MAD in these bytes. Nothing, where they are no MAD of the CM: not 256 of them, another
/// class, version or method, or an attribute that is not spoken here. Every other field is the
/// peer's to choose, and the caller's to check.
[[nodiscard]] std::optional<Mad> decode(std::span<const std::uint8_t> bytes) noexcept;

/// rdma_cm's port spaces (RDMA_PS_…).
enum class PortSpace : std::uint16_t { ipoib = 0x0002, tcp = 0x0106, udp = 0x0111, ib = 0x013f };

/// The service that listens on a port: what rdma_cm asks for in REQ and SIDR_REQ. `port`: host
/// order.
[[nodiscard]] constexpr std::uint64_t service_id(PortSpace space, std::uint16_t port) noexcept {
    return (std::uint64_t{static_cast<std::uint16_t>(space)} << 16) | port;
}
[[nodiscard]] constexpr std::uint16_t port_of(std::uint64_t service) noexcept {
    return static_cast<std::uint16_t>(service);
}
/// Nothing, where the service is none of rdma_cm's.
[[nodiscard]] std::optional<PortSpace> port_space_of(std::uint64_t service) noexcept;

/// What rdma_cm keeps in front of the program's private data in REQ and SIDR_REQ (struct cma_hdr):
/// the addresses of the sender and of the listener that it means. The listener's port is the
/// service's.
struct AddressHeader {
    std::uint8_t ip_version = 4;    ///< 4 or 6
    std::uint16_t source_port = 0;  ///< host order
    Gid source{};                   ///< network order; IPv4: the last four bytes, and zeros
    Gid destination{};

    bool operator==(const AddressHeader&) const = default;
};
inline constexpr std::size_t address_header_bytes = 36;
/// What is left for the program.
inline constexpr std::size_t connect_private_bytes = req_private_bytes - address_header_bytes;
inline constexpr std::size_t resolve_private_bytes = sidr_req_private_bytes - address_header_bytes;

/// `private_data` has room for it (address_header_bytes).
void put_address_header(const AddressHeader& header, std::span<std::uint8_t> private_data) noexcept;

/// Nothing, where it is of another version, or of neither IPv4 nor IPv6.
[[nodiscard]] std::optional<AddressHeader> address_header_of(
    std::span<const std::uint8_t> private_data) noexcept;

}  // namespace millrace::cm
