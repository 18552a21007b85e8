// How a client's requests and answers travel, as a value that can be a template argument: what work
// 004 compares. Chosen by ClientOptions::design, by the program or, from what was measured
// (profile.hpp), by itself.
//
//     rpc::ClientOptions options;
//     options.design = rpc::Design{.request = Transfer::send};     // answers by WRITE
//     options.design = rpc::Automatic{.clients = 40};              // whatever is fastest for 40
//
// Topologies (1:1, N:1, N:M) are not a parameter: they are how many clients and servers there are.
// Source: work 004, section 4.1 (verbs, and designs 1 and 2 of connections).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::rpc {

using message::Transfer;

enum class Connection : std::uint8_t {
    own,         ///< of this client alone
    dispatcher,  ///< of all clients of a dispatcher (dispatcher.hpp), whose thread does the rest
};
/// "own", "dispatcher".
[[nodiscard]] std::string_view name_of(Connection connection) noexcept;

/// One of the eight combinations. Structural: `template <Design D>`.
struct Design {
    Transfer request = Transfer::write;
    Transfer response = Transfer::write;
    Connection connection = Connection::own;

    friend constexpr bool operator==(const Design&, const Design&) = default;
};

/// All of them, the one that is the default first.
inline constexpr std::array<Design, 8> every_design = [] {
    std::array<Design, 8> all{};
    std::size_t count = 0;
    for (const Connection connection : {Connection::own, Connection::dispatcher}) {
        for (const Transfer request : {Transfer::write, Transfer::send}) {
            for (const Transfer response : {Transfer::write, Transfer::send}) {
                all[count++] = {request, response, connection};
            }
        }
    }
    return all;
}();

/// Whether work 004 has it for so many clients of one process: a dispatcher for a single one is
/// left out there (section 5), as it has no connection to save.
[[nodiscard]] constexpr bool is_studied(Design design, std::size_t clients) noexcept {
    return design.connection == Connection::own || clients > 1;
}

/// "write/send/own": request, response, connection.
[[nodiscard]] std::string to_string(Design design);
/// Reads what to_string writes. Throws Error (invalid_argument) that says what could stand there.
[[nodiscard]] Design parse_design(std::string_view name);

/// What is posted for one call that finds the other side awake, where nothing is stored
/// (ring::Carrier::post), and without credit and ends of rings, which come once in a while. Of a
/// dispatcher: if it has one request at a time; those that it has together share a WRITE.
struct Posts {
    std::uint32_t client_writes = 0, client_sends = 0, client_receives = 0;
    std::uint32_t server_writes = 0, server_sends = 0, server_receives = 0;
    friend constexpr bool operator==(const Posts&, const Posts&) = default;
};
/// `in_order`: bytes of a WRITE land in order of their addresses; else its mark is a second one.
/// `dense`: the server polls one byte of each client (message::Polling), which is one more.
[[nodiscard]] constexpr Posts posts_of(Design design, bool in_order, bool dense) noexcept {
    const std::uint32_t writes = in_order ? 1 : 2;
    Posts posts;
    if (design.request == Transfer::write) {
        posts.client_writes = writes + (dense ? 1 : 0);
    } else {
        posts.client_sends = posts.server_receives = 1;
    }
    if (design.response == Transfer::write) {
        posts.server_writes = writes;
    } else {
        posts.server_sends = posts.client_receives = 1;
    }
    return posts;
}

/// What a client is going to do, for a design that chooses itself.
struct Automatic {
    /// Bytes of most answers; 0: of the largest plain Response of what connect() names.
    std::size_t response_bytes = 0;
    /// Clients of the server that call at the same time, this one included.
    std::uint32_t clients = 1;
    enum class Aim : std::uint8_t { throughput, latency } aim = Aim::throughput;
};

}  // namespace millrace::rpc
