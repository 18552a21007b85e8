// The handshake's wire format: frames, and the bodies they carry. Used by the handshake and by
// links. All integers are little-endian and written byte by byte.
//
//   frame   0  magic "MLRC"   4  u16 protocol version   6  u16 type   8  u32 body bytes   12  body
//   text    u16 bytes, bytes
//
// The first eight bytes keep their meaning in every version, so that any two builds can tell each
// other's version. Bodies may grow at their end; a reader ignores what it does not know.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "printable.hpp"

namespace millrace::connect {

inline constexpr std::uint16_t protocol_version = 3;
inline constexpr std::size_t header_bytes = 12;
inline constexpr std::size_t max_handshake_body = 4096;
inline constexpr std::size_t max_link_body = 64 * 1024;
inline constexpr std::size_t max_exchange = 60'000;
inline constexpr std::size_t max_last_words = 256;
inline constexpr std::size_t max_name = 64;  ///< service, device and host names

enum class FrameType : std::uint16_t {
    hello = 1,
    ready,
    refused,
    exchange,
    goodbye,
    challenge,
    proof,
};

/// Random bytes, never used twice.
using Nonce = std::array<std::byte, 32>;
/// HMAC-SHA-256, see proof.hpp.
using Digest = std::array<std::byte, 32>;

/// What went wrong, before it is known to whom and during what. Thrown inside this folder and
/// turned into a base::Error there.
struct Failure {
    base::ErrorCode code;
    std::string cause{};
    std::string remedy{};
    /// The cause as the peer is to read it, behind "the peer refused: ". Empty: a cause that begins
    /// with the peer is told as this end's, any other as it is.
    std::string told{};
};

enum Capability : std::uint64_t {
    capability_write_with_immediate = 1,
    capability_atomics = 2,
    capability_memory_windows = 4,
    capability_no_icrc = 8,  ///< over the wire, to a peer of the same machine that can, too
};

/// Who an end is and how its queue pair is reached.
struct Hello {
    std::uint64_t capabilities = 0;
    std::string service{};
    std::uint32_t service_version = 0;
    verbs::QueuePairAddress queue_pair{};
    ibv_mtu mtu = IBV_MTU_1024;
    bool ethernet = false;
    bool soft = false;
    std::uint8_t max_reads = 0;
    std::uint32_t max_send_requests = 0;
    std::uint32_t max_receive_requests = 0;
    std::uint32_t max_inline = 0;
    std::uint32_t process = 0;
    std::string device{};
    std::string host{};
    /// Soft device: which memory it can reach, in words. Equal words can talk to each other.
    std::string fabric{};
    /// Has a secret, and so talks to peers with it only.
    bool has_secret = false;
    Nonce nonce{};  ///< with a secret; else zeros
    /// As whoever connects has chosen; whoever accepts says the same. By `tcp` nothing that is said
    /// of the device means anything.
    Transport transport = Transport::rc;
    std::uint32_t datagram_key = 0;  ///< by `ud`: the Q_Key that datagrams to this end need
    /// Of those that share the address, as LinkOptions::listener; of whoever connects.
    std::uint32_t listener = LinkOptions::any_listener;
    Protocol protocol{};  ///< of the program
    /// How hosts elsewhere reach the queue pair of a soft device: the UDP port of its wire, and its
    /// GID there. 0: it has no wire.
    std::uint16_t wire_port = 0;
    ibv_gid wire_gid{};
};

/// The queue pair is connected, or will be as soon as the proof has been looked at.
struct Ready {
    bool writes_in_order = false;
    std::optional<Digest> proof{};  ///< where there is a secret
};

/// To who has said hello and has a secret: prove that you know it.
struct Challenge {
    Nonce nonce{};
};

/// The answer.
struct Proof {
    Digest digest{};
};

/// Why an end gives up, as the end reads it that is refused.
struct Refused {
    base::ErrorCode code = base::ErrorCode::protocol;
    std::string reason{};
    std::string remedy{};  ///< what to do about it, at either end; may be empty
};

[[nodiscard]] std::vector<std::byte> encode_frame(FrameType type, std::span<const std::byte> body);
[[nodiscard]] std::vector<std::byte> encode(const Hello& hello);
[[nodiscard]] std::vector<std::byte> encode(const Ready& ready);
[[nodiscard]] std::vector<std::byte> encode(const Refused& refused);
[[nodiscard]] std::vector<std::byte> encode(const Challenge& challenge);
[[nodiscard]] std::vector<std::byte> encode(const Proof& proof);
/// Throw Failure when the body is too short or a value is out of range.
[[nodiscard]] Hello decode_hello(std::span<const std::byte> body);
[[nodiscard]] Ready decode_ready(std::span<const std::byte> body);
[[nodiscard]] Refused decode_refused(std::span<const std::byte> body);
[[nodiscard]] Challenge decode_challenge(std::span<const std::byte> body);
[[nodiscard]] Proof decode_proof(std::span<const std::byte> body);

struct Frame {
    FrameType type;
    std::vector<std::byte> body;
};

/// Bytes as they came, cut into frames. Holds at most one frame of the largest size and a bit.
class FrameBuffer {
  public:
    enum class Received { some, nothing, ended };

    /// Takes what the socket has (one recv, never blocks). `ended`: end of file or an error.
    Received receive(int socket);
    /// The next whole frame. Throws Failure: not this protocol, another version, a body longer
    /// than `max_body`.
    [[nodiscard]] std::optional<Frame> next(std::size_t max_body);
    /// What has come and was not taken by next(), and no more by it.
    [[nodiscard]] std::vector<std::byte> take_rest() noexcept { return std::move(bytes_); }
    /// How many bytes came in all.
    [[nodiscard]] std::uint64_t received() const noexcept { return received_; }
    /// The errno value that ended it; 0 for a plain end of file.
    [[nodiscard]] int error() const noexcept { return error_; }

  private:
    std::vector<std::byte> bytes_;
    std::uint64_t received_ = 0;
    int error_ = 0;
};

}  // namespace millrace::connect
