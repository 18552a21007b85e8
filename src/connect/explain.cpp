// What was chosen for a link and why, in words. For `millrace` commands and bug reports.
#include <fmt/format.h>

#include <cstdint>

#include "identity.hpp"
#include "link_state.hpp"
#include "millrace/connect/link.hpp"
#include "outward.hpp"
#include "printable.hpp"

namespace millrace::connect {
namespace {

int bytes_of(ibv_mtu mtu) noexcept { return 128 << mtu; }

std::string names_of(std::uint64_t capabilities) {
    std::string text;
    const auto add = [&](std::uint64_t bit, const char* name) {
        if ((capabilities & bit) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    };
    add(capability_write_with_immediate, "WRITE with immediate");
    add(capability_atomics, "atomics");
    add(capability_memory_windows, "memory windows");
    return text.empty() ? "none" : text;
}

/// A line, or several, of the soft device.
std::string route_of(const Link::State& link) {
    if (link.route == Route::network) return {};
    const std::string soft =
        link.own.soft ? fmt::format("  soft device  {}\n", printable(soft_fabric(), 512)) : "";
    if (link.route == Route::memory) return soft;
    const std::string on = link.own.soft ? why_wire_is_on() : std::string{};
    return soft +
           fmt::format(
               "  wire         RoCEv2, from UDP {} to {}, as {}{}{}{}\n", end_of_wire(link.own),
               end_of_wire(link.other), link.why_wire, on.empty() ? "" : "; it is on ", on,
               link.leaves_out_icrc ? "; without ICRC, as both ends are on one machine" : "");
}

std::string addressing(const Hello& hello, int gid_index) {
    if (gid_index < 0) {
        return fmt::format("by LID {}, as the port has one and needs no GID", hello.queue_pair.lid);
    }
    return fmt::format("by GID index {}, as Ethernet needs", gid_index);
}

}  // namespace

std::string Link::carrier() const {
    const State& link = *state_;
    if (link.transport == Transport::tcp) return {};
    const std::string device = link.endpoint->describe();
    if (link.route != Route::wire) return device;
    return fmt::format("{}; this connection over the wire: RoCEv2, from UDP {} to {}", device,
                       end_of_wire(link.own), end_of_wire(link.other));
}

std::string Link::explain() const {
    const State& link = *state_;
    const char* const liveness = link.local.kind() == Address::Kind::tcp
                                     ? "the handshake's TCP connection, kept alive"
                                     : "the handshake's Unix socket";
    const char* const admission =
        link.own.has_secret ? "  admission    by a secret that both ends have proved to know\n"
                            : "";
    if (link.transport == Transport::tcp) {
        return fmt::format("link to {}, service '{}' version {}, over {}\n{}", link.peer_name,
                           link.own.service, link.own.service_version, liveness, admission);
    }
    if (link.transport == Transport::ud) {
        return fmt::format(
                   "link to {}, service '{}' version {}, over verbs (UD)\n"
                   "  device       {}, port {}, addressed {}\n"
                   "  peer         {}, queue pair {:#x}; ours {:#x}, {}\n"
                   "  MTU          {} bytes: the smaller of {} here and {} there\n"
                   "  liveness     {}\n{}",
                   link.peer_name, link.own.service, link.own.service_version,
                   link.endpoint->describe(), link.endpoint->port(),
                   addressing(link.own, link.path.gid_index), link.other.device,
                   link.other.queue_pair.number, link.own.queue_pair.number,
                   link.given_datagrams != nullptr ? "which all its links share"
                                                   : "of this link alone",
                   bytes_of(link.path.mtu), bytes_of(link.own.mtu), bytes_of(link.other.mtu),
                   liveness, admission) +
               (link.route == Route::wire ? route_of(link) : std::string{});
    }
    const char* order =
        writes_in_order()
            ? "yes: the last byte of a WRITE may be polled"
            : "no: one end's device does not promise it, so marks travel in a WRITE of their own";
    std::string text = fmt::format(
        "link to {}, service '{}' version {}, over verbs ({})\n"
        "  device       {}, port {}, addressed {}\n"
        "  peer         {}, queue pair {:#x}; ours {:#x}\n"
        "  MTU          {} bytes: the smaller of {} here and {} there\n"
        "  requests     {} sends ({} there), {} receives ({} there), {} bytes inline ({} there)\n"
        "  READs        {} outstanding: the smaller of {} here and {} there\n"
        "  retries      {} times after {:.0f} ms, receiver not ready {}\n"
        "  in order     {} (here {}, there {})\n"
        "  capabilities {}; the peer: {}\n"
        "  liveness     {}; wakes who sleeps, and who polls and finds nothing looks every 50 ms\n",
        link.peer_name, link.own.service, link.own.service_version,
        link.transport == Transport::rc ? "RC" : "UC", link.endpoint->describe(),
        link.endpoint->port(), addressing(link.own, link.path.gid_index), link.other.device,
        link.other.queue_pair.number, link.own.queue_pair.number, bytes_of(link.path.mtu),
        bytes_of(link.own.mtu), bytes_of(link.other.mtu), link.own.max_send_requests,
        link.other.max_send_requests, link.own.max_receive_requests,
        link.other.max_receive_requests, link.own.max_inline, link.other.max_inline,
        link.path.max_reads, link.own.max_reads, link.other.max_reads, link.path.retry_count,
        4.096e-3 * static_cast<double>(std::uint64_t{1} << link.path.timeout),
        link.path.rnr_retry == 7 ? std::string{"for ever"}
                                 : fmt::format("{} times", link.path.rnr_retry),
        order, link.own_writes_in_order ? "yes" : "no", link.other_writes_in_order ? "yes" : "no",
        names_of(link.own.capabilities), names_of(link.other.capabilities), liveness);
    return text + admission + route_of(link);
}

}  // namespace millrace::connect
