// This library's store in a process of its own, whose clients are in the calling one. Called by
// bench/ycsb and bench/doors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "millrace/connect/address.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/kv/doors.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::bench {

struct OwnServerCase {
    connect::Transport transport = connect::Transport::rc;
    bool by_unix_socket = false;             ///< clients meet the server there, and not over TCP
    kv::DoorOptions doors{};                 ///< for clients of other protocols
    std::size_t clients = 1;                 ///< at a time, at most
    std::function<void(kv::Store&)> fill{};  ///< in the server's process, before clients come
    int client_core = -1;                    ///< -1: the first of two_cores()
    int server_core = -1;                    ///< -1: the second of them
    std::chrono::milliseconds deadline = std::chrono::seconds{60};
};

/// Calls `clients(address)`, and ends the server. Context switches of its process meanwhile.
/// Throws Error; what `clients` throws.
std::uint64_t with_own_server(const OwnServerCase& chosen,
                              const std::function<void(const connect::Address&)>& clients);

/// Context switches of this process so far, voluntary or not.
[[nodiscard]] std::uint64_t context_switches();

}  // namespace millrace::bench
