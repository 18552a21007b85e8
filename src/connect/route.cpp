// By what two devices reach each other: this machine's memory, the soft device's wire, or a network
// of adapters. Called by the handshake once the peer has said which device it has.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "handshake.hpp"
#include "identity.hpp"
#include "millrace/verbs/wire.hpp"
#include "outward.hpp"
#include "sockets.hpp"

namespace millrace::connect {
namespace {

/// 268 ms, and seven times again: who is stopped for two seconds goes on. What is merely lost is
/// sent again long before.
constexpr std::uint8_t timeout_over_wire = 16;

std::string_view link_layer(bool ethernet) noexcept { return ethernet ? "Ethernet" : "InfiniBand"; }

/// Everything goes by the wire there, by what identity.hpp says of a device.
bool goes_always(std::string_view fabric) noexcept { return fabric.ends_with(",always"); }

/// Why an end has none, or empty.
std::string no_wire(std::string_view whose, bool has, bool is_this_end) {
    if (has) return {};
    const std::string how = is_this_end ? why_no_wire() : std::string{};
    return fmt::format("; {} has no wire{}{}", whose, how.empty() ? "" : ": ", how);
}

}  // namespace

std::uint16_t port_of_wire(const Hello& end) noexcept {
    return end.soft ? end.wire_port : port_of_adapters;
}

std::string end_of_wire(const Hello& end) {
    return fmt::format("{} port {}", text_of(end.soft ? end.wire_gid : end.queue_pair.gid),
                       port_of_wire(end));
}

void Handshake::look_for_wire() {
    Link::State& link = *state_;
    if (link.endpoint == nullptr || !link.endpoint->context().is_soft()) return;
    link.wire = link.endpoint->context().wire();
    if (!link.wire && turn_on_for_peer(socket(), peer_address(socket(), link.local))) {
        link.wire = link.endpoint->context().wire();
    }
}

void Handshake::go_by_wire(std::string why) {
    Link::State& link = *state_;
    link.route = Route::wire;
    // What is between two processes of one machine is memory, or cables that check what they carry.
    link.leaves_out_icrc = link.other.soft && (link.other.capabilities & capability_no_icrc) != 0 &&
                           verbs::may_leave_out_icrc() &&
                           is_one_machine(link.own.fabric, link.other.fabric);
    link.why_wire = std::move(why);
    link.path.timeout = timeout_over_wire;
    if (link.other.soft) {
        link.other.queue_pair.has_gid = true;
        link.other.queue_pair.gid = link.other.wire_gid;
    }
    Endpoint& endpoint = *link.endpoint;
    const ibv_gid here =
        link.wire ? link.wire->gid : endpoint.context().gid(endpoint.port(), endpoint.gid_index());
    const ibv_gid& there = link.other.queue_pair.gid;
    if (is_ipv4(here) == is_ipv4(there)) return;
    const auto says = [](const ibv_gid& own, const ibv_gid& others) {
        return fmt::format(
            "this end is at {}, the peer at {}, and packets go from IPv4 to IPv4 or "
            "from IPv6 to IPv6",
            text_of(own), text_of(others));
    };
    throw Failure{base::ErrorCode::refused, says(here, there),
                  "let MILLRACE_WIRE name addresses of one family at both ends", says(there, here)};
}

void Handshake::refuse_other_fabric() const {
    const std::string& fabric = state_->own.fabric;
    const Hello& other = state_->other;
    const std::vector<Parting> partings = what_parts(fabric, other.fabric);
    std::string cause = "the two soft devices share no memory:";
    std::string told = cause;
    std::string remedy;
    for (const auto& [what, own, others, helps] : partings) {
        const char* const comma = remedy.empty() ? "" : ";";
        cause += fmt::format("{} {} {} here, {} there", comma, what, own, others);
        told += fmt::format("{} {} {} here, {} there", comma, what, others, own);
        remedy += fmt::format("{}{}", remedy.empty() ? "" : "; ", helps);
    }
    if (partings.empty()) {
        cause += fmt::format(" {} here, {} there", fabric, other.fabric);
        told += fmt::format(" {} here, {} there", other.fabric, fabric);
        remedy = "run the same release at both ends";
    }
    const bool here = state_->wire.has_value();
    const bool there = other.wire_port != 0;
    cause += no_wire("this end", here, true) + no_wire("the peer", there, false);
    told += no_wire("this end", there, false) + no_wire("the peer", here, false);
    remedy +=
        "; or go over UDP, with the wire on at both ends (MILLRACE_WIRE=auto); or over sockets "
        "(Transport::tcp, which "
        "message, rpc and kv have)";
    throw Failure{base::ErrorCode::refused, cause, remedy, told};
}

void Handshake::refuse_other_kind() const {
    const Hello& other = state_->other;
    const verbs::Context& context = state_->endpoint->context();
    const auto says = [](std::string_view own, bool own_soft, std::string_view others,
                         bool others_soft) {
        return fmt::format("this end's device {} is {} and the peer's {} is {}", own,
                           own_soft ? "a soft device" : "hardware", others,
                           others_soft ? "a soft device" : "hardware");
    };
    const bool soft = context.is_soft();
    const std::uint16_t port =
        soft && state_->wire ? state_->wire->port : (soft ? std::uint16_t{0} : other.wire_port);
    const std::string wire =
        port == 0 ? std::string{}
        : port != port_of_adapters
            ? fmt::format(", whose wire has UDP port {} where adapters know {} alone", port,
                          port_of_adapters)
            : std::string{", and hardware speaks to its wire on Ethernet alone, by a GID"};
    throw Failure{base::ErrorCode::refused,
                  says(context.name(), soft, other.device, other.soft) + wire,
                  "choose devices of one kind at both ends (MILLRACE_DEVICE), or turn on the soft "
                  "device's wire (MILLRACE_WIRE=auto), which speaks to RoCE adapters by UDP port "
                  "4791",
                  says(other.device, other.soft, context.name(), soft) + wire};
}

void Handshake::choose_route() {
    Link::State& link = *state_;
    const Hello& other = link.other;
    const verbs::Context& context = link.endpoint->context();
    const bool soft = context.is_soft();
    if (soft && other.soft) {
        std::string& fabric = link.own.fabric;  // asked once: it takes system calls
        if (fabric.empty()) fabric = printable(soft_fabric(), 512);
        const bool always = goes_always(fabric);
        if (other.fabric == fabric) {
            if (always && link.wire) return go_by_wire("MILLRACE_WIRE says that everything does");
            link.route = Route::memory;
            return;
        }
        // The one would store into memory, and the other wait for packets.
        if (!link.wire || other.wire_port == 0 || always != goes_always(other.fabric)) {
            refuse_other_fabric();
        }
        std::string parts;
        for (const Parting& parting : what_parts(fabric, other.fabric)) {
            parts += fmt::format("{}{} {} here, {} there", parts.empty() ? "" : "; ", parting.what,
                                 parting.own, parting.others);
        }
        return go_by_wire(fmt::format("the two share no memory: {}",
                                      parts.empty() ? "their releases differ" : parts));
    }
    const bool ethernet = context.port(link.endpoint->port()).link_layer == IBV_LINK_LAYER_ETHERNET;
    if (soft != other.soft) {
        const bool reaches = soft ? link.wire && link.wire->port == port_of_adapters &&
                                        other.ethernet && other.queue_pair.has_gid
                                  : other.wire_port == port_of_adapters && ethernet &&
                                        link.endpoint->gid_index() >= 0;
        if (!reaches) refuse_other_kind();
        return go_by_wire(
            fmt::format("{} is an adapter", soft ? fmt::format("the peer's {}", other.device)
                                                 : fmt::format("this end's {}", context.name())));
    }
    if (other.ethernet != ethernet) {
        throw Failure{
            base::ErrorCode::refused,
            fmt::format("this end's {} is on {} and the peer's {} on {}", context.name(),
                        link_layer(ethernet), other.device, link_layer(other.ethernet)),
            "choose devices on one network at both ends (MILLRACE_DEVICE)",
            fmt::format("this end's {} is on {} and the peer's {} on {}", other.device,
                        link_layer(other.ethernet), context.name(), link_layer(ethernet))};
    }
}

void Handshake::confirm() {
    Link::State& link = *state_;
    if (link.route != Route::wire || link.transport != Transport::rc) return say_ready();
    probes_ = true;
    const verbs::Write nothing{.from = {}, .to = {}, .flags = verbs::SendFlags::signaled};
    if (const int error = link.queue_pair.post(nothing); error != 0) {
        base::throw_errno(error, "probe the way to a peer", link.peer_name);
    }
    look_at_probe();
}

void Handshake::look_at_probe() {
    Link::State& link = *state_;
    verbs::Completion answer;
    (void)link.channel.drain();
    int answers = link.send_queue.poll({&answer, 1});
    if (answers == 0 && link.send_queue.arm()) answers = link.send_queue.poll({&answer, 1});
    if (answers == 0) return;
    probes_ = false;
    if (answers < 0 || !answer.ok()) refuse_path(answer);
    say_ready();
}

void Handshake::refuse_path(const verbs::Completion& answer) const {
    const Link::State& link = *state_;
    const std::string own = end_of_wire(link.own);
    const std::string other = end_of_wire(link.other);
    const double seconds = 4.096e-6 * static_cast<double>(std::uint64_t{1} << link.path.timeout) *
                           (link.path.retry_count + 1);
    const auto says = [&](const std::string& from, const std::string& to) {
        return answer.status() == IBV_WC_RETRY_EXC_ERR
                   ? fmt::format(
                         "UDP does not pass: nothing sent from {} to {} was answered within "
                         "{:.1f} s",
                         from, to, seconds)
                   : fmt::format("the first request from {} to {} failed: {}", from, to,
                                 answer.explain());
    };
    throw Failure{base::ErrorCode::refused, says(own, other),
                  fmt::format("let UDP port {} pass in both directions (the firewalls of both "
                              "hosts and of what lies between, address translation there must be "
                              "off), or name another address (MILLRACE_WIRE); or go over sockets "
                              "(Transport::tcp, which message, rpc and kv have)",
                              port_of_wire(link.other)),
                  says(own, other)};
}

}  // namespace millrace::connect
