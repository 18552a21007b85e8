// The key-value store of work 001, chapter 5: fields of records that are looked up one by one, by
// requests of 8 bytes, within a process and from another one. Called by work_001_figures.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/histogram.hpp"

namespace millrace::bench {

/// Records of workload C. Keys are 4 bytes of a record's number and 4 of a field's.
inline constexpr std::uint32_t lookup_records = 10'000;
inline constexpr std::uint32_t lookup_fields = 10;

/// How a client reaches the store.
enum class LookupWay : std::uint8_t {
    tcp,          ///< a socket of this host's loopback
    unix_socket,  ///< a Unix stream socket
    posted,       ///< mailboxes over RC, whose requests and answers are posted, as to a NIC
    stored,       ///< mailboxes in memory that both have, where they are stored
    table,        ///< none: the store alone, in a loop
};

struct LookupCase {
    LookupWay way = LookupWay::posted;
    std::string mode = "fast";      ///< of the soft device
    std::size_t value_bytes = 100;  ///< of a field, 8 at least
    std::uint64_t lookups = 50'000;
    int client_core = -1;  ///< -1: the first of two_cores()
    int server_core = -1;  ///< -1: the second
};
struct LookupResult {
    double us = 0;        ///< of a lookup, the median of 20 windows
    double switches = 0;  ///< context switches of both processes, per lookup
};
/// One client, one lookup after the other, of records by the scrambled Zipfian distribution and of
/// fields of which each is as likely. They are drawn before. Throws Error.
[[nodiscard]] LookupResult measure_lookups(const LookupCase& chosen);

struct LookupLoadCase {
    std::string mode = "fast";
    std::size_t clients = 10;  ///< driven by one thread, each with one lookup at a time
    /// Those that find out what the server can do, in a closed loop.
    std::size_t clients_at_most = 60;
    double share = 1;  ///< of that, which is offered, at random times
    std::chrono::nanoseconds duration = std::chrono::seconds{1};
};
struct LookupLoadResult {
    double capacity = 0;  ///< lookups a second
    double per_second = 0;
    /// Nanoseconds from when a lookup was due to its answer.
    std::shared_ptr<const base::Histogram> times;
};
/// Over mailboxes. Throws Error.
[[nodiscard]] LookupLoadResult measure_lookup_load(const LookupLoadCase& chosen);

}  // namespace millrace::bench
