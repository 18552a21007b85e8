// The soft device's wire to other hosts: whether it is on, and by which addresses hosts elsewhere
// reach this process. RoCE version 2 over ordinary UDP. Called by verbs/ and the command.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"

namespace millrace::soft {

/// How hosts elsewhere name this process's queue pairs.
struct WireAddress {
    ibv_gid gid{};           ///< the address; where UDP port 4791 is taken, a private one
    int gid_index = 0;       ///< of the entry of RoCE version 2
    std::uint16_t port = 0;  ///< of UDP
};

/// Of the process that has opened `context`, at this host's address `local` (all zeros: at any).
/// Nothing: its wire is off, or does not use that address. Any thread.
[[nodiscard]] std::optional<WireAddress> wire_at(ibv_context* context,
                                                 const ibv_gid& local) noexcept;

/// Turns the wire on as MILLRACE_WIRE=auto does, at this host's address `at` (IPv4 as
/// ::ffff:a.b.c.d) if it has that, unless MILLRACE_WIRE says something itself. True: it is on, or
/// will be when the device is opened. Where that is open already, its GIDs and MTU change, and
/// datagrams of queue pairs that there are stay on this host. False: MILLRACE_WIRE is "off". Throws
/// base::Error: what MILLRACE_WIRE says cannot be, or the system refuses. Any thread.
[[nodiscard]] bool turn_wire_on(const ibv_gid& at);

/// "" while the wire is off, else what MILLRACE_WIRE says ("127.0.0.2", "auto"): programs that say
/// the same of it share memory, unless it ends in ",always". Throws base::Error as above.
[[nodiscard]] std::string wire_in_words();
/// It does: peers of this host, too, are reached by packets. Throws base::Error as above.
[[nodiscard]] bool wire_is_always();

/// MILLRACE_WIRE does not say ",checked". Throws base::Error as above.
[[nodiscard]] bool may_leave_out_icrc();
/// See verbs::leave_out_icrc.
void leave_out_icrc(ibv_qp* qp) noexcept;

/// What this host has for the wire that MILLRACE_WIRE names, or `auto`.
struct WireOutlook {
    enum class Port : std::uint8_t {
        free,
        shared,  ///< by processes of this user
        taken,   ///< by others: the wire then uses a private one
    };
    std::string address;               ///< "10.0.0.1"
    Port port = Port::free;            ///< UDP port 4791 of it
    std::uint32_t interface_mtu = 0;   ///< bytes
    std::uint32_t packet_bytes = 0;    ///< that a packet carries; 0: no packet fits
    std::uint32_t receive_buffer = 0;  ///< bytes that the system grants a socket
    bool cuts = false;                 ///< the kernel cuts what is sent at once into packets
};
/// Takes no part. Throws base::Error: there is no such address, or the system refuses.
[[nodiscard]] WireOutlook look_at_wire();

/// Takes in what has come over the wire of the process that has opened `context`, as polling one of
/// its completion queues does: for who polls memory, or has heard of the peer by another way. With
/// `all`, what had come before the call is done when it returns, though another thread does it;
/// without, nothing is waited for. Nothing where there is no wire. Any thread.
void take_arrivals(ibv_context* context, bool all) noexcept;

/// Throws base::Error (invalid_argument) unless MILLRACE_WIRE may say `text`.
void check_wire(std::string_view text);

}  // namespace millrace::soft
