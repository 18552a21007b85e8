// The store's doors compared with the servers whose protocols they speak: requests a second by
// redis-benchmark and by a load of our own, the time that answers take at a rate, memory of items,
// and idle connections. Called by the bars.
#pragma once

#include <cstddef>
#include <string>

#include "bench/peers/memcached.hpp"
#include "millrace/kv/doors.hpp"

namespace millrace::bench {

/// Who serves: the door of this library's server, or the program whose protocol it speaks.
enum class DoorOf { ours, theirs };

struct DoorCase {
    kv::DoorKind protocol = kv::DoorKind::resp;
    bool sets = false;  ///< or gets
    WordsOver over = WordsOver::unix_socket;
    unsigned connections = 1;
    unsigned pipeline = 1;
};
[[nodiscard]] std::string name_of(const DoorCase& chosen);

/// Requests a second by the load of words_load.hpp. Throws Error; not_found, where a program is not
/// installed: so do the others here.
[[nodiscard]] double measure_door(const DoorCase& chosen, DoorOf whose);
/// By redis-benchmark as it is packaged.
[[nodiscard]] double measure_door_by_redis_benchmark(const DoorCase& chosen, DoorOf whose);

/// Microseconds that 99.9 % of GETs of 1,000 bytes take at most from when they are due, of 16
/// clients of Redis' protocol over a Unix socket, at a rate of all of them together.
[[nodiscard]] double p999_of_redis_protocol(DoorOf whose, double per_second);
/// GETs a second of these clients if each asks as soon as it has its answer.
[[nodiscard]] double capacity_of_redis_protocol(DoorOf whose);

/// Resident bytes for an item of a key of 16 B and a value of 100 B, beyond these, of 100,000 that
/// came by memcached's protocol. Ours has both doors open.
[[nodiscard]] double resident_bytes_per_item(DoorOf whose);

struct IdleConnections {
    double kibibytes_each = 0;  ///< resident, of the server's process; the kernel's are not in it
    double processor_percent = 0;  ///< of a core, of all of them together
};
/// Of this library's server with both doors open, half of the connections at each, all of which
/// have been answered once. As many as the limit on open files allows.
[[nodiscard]] IdleConnections measure_idle_connections(std::size_t count);

}  // namespace millrace::bench
