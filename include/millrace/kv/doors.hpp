// The doors of a key-value server: what lets clients in that do not speak Millrace's own protocol.
// There is one for Redis' protocol (RESP2 and RESP3), and one for memcached's (text and meta
// commands), over TCP or a Unix socket. Both lead to the same store, and the same threads serve
// them. docs/kv-doors.md says which commands they know.
//
//     kv::ServerOptions options{.doors = {.resp = connect::Address::parse(":6379")}};
//     auto server = kv::Server::listen(address, options);
//
// Source: the Redis protocol's specification; memcached's doc/protocol.txt.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"

namespace millrace::kv {

enum class DoorKind : std::uint8_t { resp, memcached };
inline constexpr std::size_t door_kinds = 2;
inline constexpr DoorKind all_doors[door_kinds] = {DoorKind::resp, DoorKind::memcached};
/// As statistics name it.
[[nodiscard]] constexpr std::string_view name_of(DoorKind kind) noexcept {
    return kind == DoorKind::resp ? "resp" : "memcached";
}
/// As people say whose protocol it speaks.
[[nodiscard]] constexpr std::string_view protocol_of(DoorKind kind) noexcept {
    return kind == DoorKind::resp ? "Redis'" : "memcached's";
}

/// What a door proves by that it is itself, as files of PEM.
struct DoorTls {
    std::string certificate_file;  ///< the certificate, and those that vouch for it after it
    std::string key_file;          ///< its key, without a passphrase; its owner alone may read it
};

/// Of all doors alike; max_connections and max_held_bytes are for all of them together.
struct DoorOptions {
    /// Where clients of Redis come; none: nowhere.
    std::optional<connect::Address> resp{};
    /// Where clients of memcached come; none: nowhere.
    std::optional<connect::Address> memcached{};
    /// What a client has to say there before all else, by AUTH or HELLO, or by a `set` of "default"
    /// and it; none: nothing. Without `tls` it travels as it is, and so does all that follows:
    /// an eavesdropper knows it.
    connect::Secret password{};
    /// Both doors speak TLS (1.2 or 1.3), wherever they are, and nothing else; none: they do not. A
    /// handshake that has taken longer than `patience` is given up.
    std::optional<DoorTls> tls{};
    /// At a time; one more is told so, and closed. 1 to a million.
    std::uint32_t max_connections = 10'000;
    /// A client that has asked for nothing for so long is closed; what it has begun to say counts
    /// for nothing. 0: never. Looked at each second.
    std::chrono::nanoseconds idle_timeout{0};
    /// Bytes of answers that a client leaves unread before nothing more is taken from it. If it
    /// reads none of them for `patience` then, or asks for an answer that is twice as long, it is
    /// closed.
    std::size_t max_unread_bytes = std::size_t{32} << 20;
    std::chrono::nanoseconds patience = std::chrono::seconds{10};
    /// Bytes of all clients' requests of which a part has come, and of unread answers. Where there
    /// are more, one that is served and holds more than 64 KiB of them is closed.
    std::size_t max_held_bytes = std::size_t{512} << 20;
};

/// Counted since the server was made, of all its threads; readable by any.
struct DoorStats {
    std::uint64_t connections = 0;  ///< now
    std::uint64_t accepted = 0;
    std::uint64_t refused = 0;    ///< one more than max_connections, or without a descriptor
    std::uint64_t denied = 0;     ///< wrong passwords
    std::uint64_t commands = 0;   ///< answered
    std::uint64_t errors = 0;     ///< of these, with an error
    std::uint64_t malformed = 0;  ///< closed for bytes that were not a request
    std::uint64_t slow = 0;       ///< closed for what they did not read
    std::uint64_t idle = 0;       ///< closed because they asked for nothing
    std::uint64_t greedy = 0;     ///< closed for want of max_held_bytes
    std::uint64_t bytes_in = 0;   ///< of requests, not of TLS
    std::uint64_t bytes_out = 0;
    std::uint64_t tls_accepted = 0;  ///< connections whose handshake is done
    std::uint64_t tls_failed = 0;    ///< closed for a handshake that failed, or took too long
};

}  // namespace millrace::kv
