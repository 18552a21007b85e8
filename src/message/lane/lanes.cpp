// Which lane goes with which transport, and what each of them does not have.
#include "lane/lanes.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "lane/packet_host.hpp"
#include "lane/socket_lane.hpp"
#include "millrace/base/error.hpp"

namespace millrace::message {

using connect::Transport;

namespace {

[[noreturn]] void refuse(const char* attempted, std::string what, std::string why,
                         std::string remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, attempted, std::move(what), std::move(why),
                      std::move(remedy)};
}

constexpr Transport every_transport[] = {Transport::rc, Transport::tcp, Transport::uc,
                                         Transport::ud};

/// Of sessions by that transport.
[[nodiscard]] std::unique_ptr<LaneHost> make_host(Transport transport, const ServerOptions& options,
                                                  connect::LinkOptions& link,
                                                  const std::shared_ptr<HeldBytes>& held) {
    const std::size_t longest = options.max_request_bytes + session_head_bytes;
    if (transport == Transport::tcp) return std::make_unique<SocketHost>(longest, held);
    return std::make_unique<PacketHost>(
        PacketHost::Setting{.transport = transport,
                            .memory = {.ring_bytes = options.ring_bytes,
                                       .max_peer_ring_bytes = options.tuning.max_client_ring_bytes,
                                       .max_message_bytes = longest,
                                       .held = held},
                            .posting = {.habits = options.tuning.posting},
                            .receives = options.tuning.shared_receives,
                            .max_clients = options.max_clients,
                            .shared_slots = options.tuning.shared_packets,
                            .shared_bytes = options.tuning.shared_bytes,
                            .scan = options.tuning.scan.value_or(best_scan_kernel())},
        link);
}

}  // namespace

void check_transport(const ClientOptions& options) {
    constexpr const char* attempted = "make a message client";
    if (options.answers == Transfer::shared) {
        refuse(attempted, "answers through a shared buffer",
               "a client is written to by one server alone", "let them come by SEND, or by WRITE");
    }
    if (!has_no_rings(options.transport)) return;
    const auto only_rc = [&](std::string what) {
        refuse(attempted, fmt::format("{} over {}", what, name_of(options.transport)),
               "only rc has rings and receives to choose between",
               "leave that option as it is by default, or use rc");
    };
    if (options.requests == Transfer::send) only_rc("requests by SEND");
    if (options.requests == Transfer::shared) only_rc("requests through a shared buffer");
    if (options.answers != Transfer::write) only_rc("answers by SEND");
    if (options.tuning.carrier != ring::Carrier::automatic) only_rc("a carrier of its own choice");
}

void check_transports(const ServerOptions& options) {
    constexpr const char* attempted = "make a message server";
    if (options.transports.empty()) {
        refuse(attempted, "a server without transports", "nobody could reach it",
               "use the default of rc");
    }
    if (options.transports.has(Transport::rc)) return;
    const auto only_rc = [&](std::string what) {
        refuse(attempted, fmt::format("{} of clients by {}", what, options.transports.to_string()),
               "only rc has rings and receives to choose between",
               "leave that option as it is by default, or take clients by rc, too");
    };
    if (options.tuning.receives != Receives::own) only_rc("shared receives");
    if (options.polling == Polling::shared) only_rc("a shared buffer");
    if (options.tuning.carrier != ring::Carrier::automatic) only_rc("a carrier of its own choice");
}

std::unique_ptr<NetworkLane> connect_network_lane(const connect::Address& server,
                                                  const connect::LinkOptions& link,
                                                  const ClientOptions& options,
                                                  const base::Deadline& deadline) {
    // The first word of a server is no answer: a welcome, or why it refuses.
    constexpr std::size_t longest_word = 512;
    const std::size_t longest =
        std::max(options.max_answer_bytes, longest_word) + session_head_bytes;
    if (options.transport == Transport::tcp) {
        return connect_socket_lane(
            server, link, {.max_message_bytes = longest, .gathers = options.gathers_requests},
            deadline);
    }
    connect::LinkOptions packets = link;
    packets.max_receive_requests = most_packets + spare_receives;
    const bool is_shared = options.requests == Transfer::shared;
    auto lane = std::make_unique<PacketLane>(
        connect::connect(server, packets, deadline),
        PacketMemory{.ring_bytes = options.ring_bytes,
                     .max_peer_ring_bytes = largest_server_ring,
                     .max_message_bytes = longest,
                     .is_shared = is_shared,
                     .carrier = options.tuning.carrier},
        PacketPosting{.habits = options.tuning.posting, .gathers = options.gathers_requests},
        nullptr);
    const auto theirs = lane->link().exchange(connect::bytes_of(lane->facts()), deadline);
    const std::string& peer = lane->link().peer_name();
    if (is_shared) {
        lane->meet(connect::facts_in<SharedPacketFacts>(theirs, setting_up_packets, peer));
    } else {
        lane->meet(packet_facts_in(theirs, peer));
    }
    return lane;
}

LaneHosts::LaneHosts(const ServerOptions& options, connect::LinkOptions& link,
                     const std::shared_ptr<HeldBytes>& held) {
    for (const Transport one : every_transport) {
        if (!options.transports.has(one) || !has_no_rings(options, one)) continue;
        all.push_back(make_host(one, options, link, held));
        transports_.push_back(one);
    }
}

std::unique_ptr<NetworkLane> LaneHosts::meet(connect::Link link) {
    std::size_t index = 0;
    while (transports_[index] != link.transport()) ++index;  // the listener takes no others
    return all[index]->meet(std::move(link));
}

}  // namespace millrace::message
