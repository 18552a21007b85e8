// GETs of one client: by this library's server, by memcached and by redis, each in a process of its
// own. Used by the bars of kv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/message/session.hpp"

namespace millrace::bench {

struct KvCase {
    std::size_t value_bytes = 100;  ///< keys have 16
    std::uint64_t keys = 100'000;
    std::uint32_t outstanding = 1;  ///< requests on their way at a time
    std::uint64_t operations = 50'000;
    message::Polling polling = message::Polling::automatic;
};

/// Nanoseconds per GET: of 20 windows the median. Keys in random order; every value is compared.
/// Throws Error; not_found, if the program is not installed.
[[nodiscard]] double measure_kv(const KvCase& chosen);
/// The same over a Unix stream socket, with one request after the other where several are
/// outstanding. One thread serves.
[[nodiscard]] double measure_memcached(const KvCase& chosen);
[[nodiscard]] double measure_redis(const KvCase& chosen);
/// The same of the table alone, within this process.
[[nodiscard]] double measure_store(const KvCase& chosen);

/// Bytes of memory for each of the keys, set in turn, beyond those of key and value.
[[nodiscard]] double memory_per_item(const KvCase& chosen);
[[nodiscard]] double memory_per_item_of_memcached(const KvCase& chosen);

}  // namespace millrace::bench
