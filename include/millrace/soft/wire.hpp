// The soft device's wire to other hosts: whether it is on, and by which addresses hosts elsewhere
// reach this process. RoCE version 2 over ordinary UDP. Called by verbs/ and the command.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::soft {

/// How hosts elsewhere name this process's queue pairs.
struct WireAddress {
    ibv_gid gid{};           ///< ::ffff:a.b.c.d; where UDP port 4791 is taken, a private one
    int gid_index = 0;       ///< of the entry of RoCE version 2
    std::uint16_t port = 0;  ///< of UDP
};

/// Of the process that has opened `context`, at this host's address `local` (as ::ffff:a.b.c.d; all
/// zeros: at any). Nothing: its wire is off, or does not use that address. Any thread.
[[nodiscard]] std::optional<WireAddress> wire_at(ibv_context* context,
                                                 const ibv_gid& local) noexcept;

/// Turns the wire on as MILLRACE_WIRE=auto does, unless that says something itself. True: it is on
/// from the next opening of the device on, or was already. False: the device is open without it.
/// Throws base::Error: what MILLRACE_WIRE says cannot be. Any thread.
[[nodiscard]] bool turn_wire_on();

/// "" while the wire is off, "auto", or the address that MILLRACE_WIRE names ("127.0.0.2"): programs
/// that say the same of it share memory. Throws base::Error as above.
[[nodiscard]] std::string wire_in_words();

/// MILLRACE_WIRE ends in ",always": what could go by memory takes the wire as well, from a process
/// to itself, too. For trying on one host what goes between two. Any thread.
[[nodiscard]] bool wire_is_always() noexcept;

/// Throws base::Error (invalid_argument) unless MILLRACE_WIRE may say `text`.
void check_wire(std::string_view text);

}  // namespace millrace::soft
