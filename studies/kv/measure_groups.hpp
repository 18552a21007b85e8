// What it could be worth that clients of one server are active in groups, each for a slice of time:
// the idea of ScaleRPC, which work 002 names in its section 6.2.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/connect/transport.hpp"

namespace millrace::bench {

/// One thread has a server of messages over a store, and all its clients, each with one GET on its
/// way: nobody waits for another one, and no scheduler has a say. What is left is what groups are
/// for, that less of what the server needs for its clients is in use at a time.
struct GroupCase {
    std::size_t clients = 16;
    std::uint32_t group = 0;  ///< message::ServerOptions::group_clients, and group_slice
    std::chrono::nanoseconds slice = std::chrono::microseconds{100};
    connect::Transport transport = connect::Transport::rc;
    std::string carrier = "automatic";  ///< as MILLRACE_CARRIER has it
    std::size_t value_bytes = 100;
    std::uint64_t keys = 10'000;
    std::chrono::nanoseconds duration = std::chrono::milliseconds{100};
};

/// Nanoseconds of the server's processor time for a GET, in mode `fast`; every value is compared.
/// Throws Error.
[[nodiscard]] double measure_groups(const GroupCase& chosen);

}  // namespace millrace::bench
