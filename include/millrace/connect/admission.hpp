// Who may connect, and how much of it there is: a secret that both ends must know, and a budget of
// what a listener gives away. Part of LinkOptions, flow::Options and message::ChannelOptions.
//
//     connect::Admission admission{.secret = connect::read_secret_file("/etc/events.secret"),
//                                  .budget = {.clients = 64}};
//
// The secret proves to each end, within the handshake, that the other one knows it, and that what
// the two told of themselves is what the other has read (docs/threat-model.md tells how, and what
// it does not do: nothing is encrypted).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"

namespace millrace::connect {

/// Bytes that the right peers know and nobody else; or none. A value type whose copies share the
/// bytes, which are overwritten when the last of them goes.
class Secret {
  public:
    static constexpr std::size_t min_bytes = 16;
    static constexpr std::size_t max_bytes = 1024;

    /// None: whoever reaches the address is let in, if it has none either.
    Secret() noexcept = default;
    /// Whoever listens in on a handshake can try out guesses at leisure: take random bytes, no
    /// password. Throws Error (invalid_argument): fewer than 16 or more than 1,024.
    explicit Secret(std::span<const std::byte> bytes);
    explicit Secret(std::string_view text) : Secret{std::as_bytes(std::span{text})} {}

    [[nodiscard]] explicit operator bool() const noexcept { return bytes_ != nullptr; }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept;

  private:
    class Bytes;
    std::shared_ptr<const Bytes> bytes_;
};

/// The secret in a file: all its bytes, but for line ends behind them. `head -c 32 /dev/urandom |
/// base64` makes one. Throws Error: permission, if others than its owner may read or write it, or
/// its owner is neither this user nor root; invalid_argument, if it is no regular file or what is
/// in it no secret; and as the system says.
[[nodiscard]] Secret read_secret_file(const std::string& path);

/// What all clients of one listener may take together. A peer that would exceed it is refused, and
/// its error says so. Whoever leaves gives its part back: when the end that was accepted for it is
/// destroyed. Nothing for a side that connects.
struct Budget {
    static constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

    /// Peers that have an end here, or are being admitted.
    std::uint64_t clients = unlimited;
    /// Queue pairs: one per client, two where notifications have one of their own.
    std::uint64_t queue_pairs = unlimited;
    /// Bytes that are registered here for clients: rings, the copies of theirs that posting needs,
    /// control pages; whole pages of memory. Not what the program registers itself, nor the
    /// device's own memory. Counted when the two ends have agreed on their sizes, behind the
    /// handshake.
    std::uint64_t registered_bytes = unlimited;
};

struct Admission {
    /// Both ends must have the same, or both none: otherwise each refuses the other.
    Secret secret{};
    Budget budget{};
    /// A listener gives each client a protection domain of its own: what is registered for one is
    /// out of reach for the others, whatever keys they know or guess. Nothing for a side that
    /// connects.
    bool own_domains = false;
};

/// What a listener has given away.
struct Given {
    std::uint64_t clients = 0;
    std::uint64_t queue_pairs = 0;
    std::uint64_t registered_bytes = 0;
};

}  // namespace millrace::connect
