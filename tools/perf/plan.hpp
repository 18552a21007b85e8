// What is to be measured, and how the two ends of `millrace perf` agree on it.
//
//   client                                      server
//   Hello {control}                       ->
//   Plan, as JSON                         ->
//                                         <-    {"cookie", "lanes_at"} or {"error"}
//   a lane for each stream: Hello {lane, cookie, number}, then bytes the one way or the other
//                                         <-    {"started"}: all lanes are there
//   Counts of its ends, as JSON           <->   the same: behind the last byte
//
// Lanes of byte streams come where the control connection came. Others come to a listener of their
// own, `lanes_at`: a port of the same host, or a Unix socket whose path has `-lanes` behind that of
// the server.
//
// Text travels on the control connection, a byte stream, as its length (32 bits) and its bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "millrace/base/deadline.hpp"
#include "millrace/stream/mode.hpp"
#include "millrace/stream/socket.hpp"
#include "millrace/stream/type.hpp"

namespace millrace::tools::perf {

enum class Direction : std::uint8_t {
    forward,  ///< the client sends
    reverse,  ///< the server sends
    both,     ///< both do, each over streams of its own
};

struct Plan {
    bool tcp = false;  ///< the kernel's, instead of byte streams
    Direction direction = Direction::forward;
    std::uint32_t streams = 1;       ///< each way
    std::uint32_t seconds = 10;      ///< senders stop then ...
    std::uint64_t bytes = 0;         ///< ... or, unless this is 0, behind so many, of all streams
    std::uint64_t length = 1 << 20;  ///< bytes of one send, and of one receive
    std::uint32_t buffers = 4;       ///< of a stream's end, in use at a time
    stream::Mode mode = stream::Mode::dynamic;
    stream::Type type = stream::Type::stream;  ///< seqpacket: each send is a message

    static constexpr std::uint32_t most_streams = 64;
    static constexpr std::uint32_t most_seconds = 86'400;
    static constexpr std::uint64_t most_length = std::uint64_t{64} << 20;
    static constexpr std::uint32_t most_buffers = 64;
    /// Of all buffers of one end.
    static constexpr std::uint64_t most_memory = std::uint64_t{4} << 30;

    /// Streams of both ways.
    [[nodiscard]] std::uint32_t lanes() const noexcept {
        return direction == Direction::both ? 2 * streams : streams;
    }
    /// Lanes are numbered from 0 on, those that the client sends over first.
    [[nodiscard]] bool client_sends(std::uint32_t lane) const noexcept {
        return direction == Direction::forward || (direction == Direction::both && lane < streams);
    }
    /// Of `bytes`, those of one lane.
    [[nodiscard]] std::uint64_t bytes_of(std::uint32_t lane) const noexcept {
        return bytes / streams + (lane % streams < bytes % streams ? 1 : 0);
    }
    /// Lanes are connections of another kind than the control connection, to another listener.
    [[nodiscard]] bool lanes_come_elsewhere() const noexcept {
        return tcp || type != stream::Type::stream;
    }
    /// Why it cannot be done; empty: it can.
    [[nodiscard]] std::string wrong() const;

    [[nodiscard]] nlohmann::json to_json() const;
    /// Nothing: it is no plan. What it says may still be wrong().
    [[nodiscard]] static std::optional<Plan> parse(const nlohmann::json& document);
};

/// The first bytes of every connection.
struct Hello {
    static constexpr std::uint64_t magic_value = 0x31667265'7072'6c6dULL;
    static constexpr std::uint32_t control = 0xffff'ffff;

    std::uint64_t magic = magic_value;
    std::uint64_t cookie = 0;      ///< of the test that the lane belongs to
    std::uint32_t lane = control;  ///< its number
    std::uint32_t version = 2;

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return std::as_bytes(std::span{this, 1});
    }
    /// Nothing: it was not written by a `millrace perf`.
    [[nodiscard]] static std::optional<Hello> parse(std::span<const std::byte> bytes) noexcept {
        Hello hello;
        if (bytes.size() != sizeof hello) return std::nullopt;
        std::memcpy(&hello, bytes.data(), sizeof hello);
        if (hello.magic != magic_value) return std::nullopt;
        return hello;
    }
};
static_assert(sizeof(Hello) == 24, "the wire format has no gaps");

/// How long either end waits for what the other one should do at once.
inline constexpr std::chrono::seconds patience{10};
/// How often a waiting end looks for signals.
inline constexpr std::chrono::milliseconds look_interval{250};

/// Sends a document over the control connection. Throws Error.
void say(stream::Socket& control, const nlohmann::json& document, const base::Deadline& deadline);
/// Hears one. Throws Error: nothing came, or no JSON; or it is {"error": …}, which the peer says.
[[nodiscard]] nlohmann::json hear(stream::Socket& control, const base::Deadline& deadline);

}  // namespace millrace::tools::perf
