// What the kernel's sockets do on the same machine: the baseline that everyone has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace::bench {

enum class SocketKind { unix_stream, tcp_loopback };
enum class SocketWait { blocking, spinning };  ///< spinning: MSG_DONTWAIT until there is something

[[nodiscard]] std::string_view name_of(SocketKind kind) noexcept;

/// Nanoseconds for one round trip of messages of `size` bytes.
[[nodiscard]] double socket_round_trip(SocketKind kind, SocketWait wait, std::size_t size,
                                       std::uint64_t round_trips);

struct SocketFlow {
    double items_per_second = 0;
    double cpu_seconds_per_gigabyte = 0;  ///< of both processes
};

/// One send call per item of `size` bytes (at least 4). The receiver takes up to 64 KiB with each
/// blocking recv and reads every item.
[[nodiscard]] SocketFlow socket_flow(SocketKind kind, std::size_t size, std::uint64_t items);
/// Its items per second.
[[nodiscard]] double socket_item_rate(SocketKind kind, std::size_t size, std::uint64_t items);

}  // namespace millrace::bench
