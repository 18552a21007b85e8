// Which wire goes with which transport, and what each of them does not have.
#include "wires.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "socket_wire.hpp"

namespace millrace::message {

using connect::Transport;

namespace {

[[noreturn]] void refuse(const char* attempted, std::string what, std::string why,
                         std::string remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, attempted, std::move(what), std::move(why),
                      std::move(remedy)};
}

constexpr Transport by_wire[] = {Transport::tcp};

void check_known(const char* attempted, Transport transport) {
    if (!is_by_wire(transport)) return;
    for (const Transport one : by_wire) {
        if (one == transport) return;
    }
    refuse(attempted, fmt::format("transport {}", name_of(transport)),
           "messages do not go by it yet", "use rc or tcp");
}

/// Of a session whose transport is `link.transport()`.
[[nodiscard]] std::unique_ptr<WireHost> make_host(Transport transport, const ServerOptions& options,
                                                  connect::LinkOptions& /*link*/) {
    (void)transport;  // so far there is one
    return std::make_unique<SocketHost>(options.max_request_bytes + session_head_bytes);
}

}  // namespace

void check_transport(const ClientOptions& options) {
    constexpr const char* attempted = "make a message client";
    check_known(attempted, options.transport);
    if (!is_by_wire(options.transport)) return;
    const auto only_rc = [&](std::string what) {
        refuse(attempted, fmt::format("{} over {}", what, name_of(options.transport)),
               "only rc has rings and receives to choose between",
               "leave that option as it is by default, or use rc");
    };
    if (options.requests != Transfer::write) only_rc("requests by SEND");
    if (options.answers != Transfer::write) only_rc("answers by SEND");
    if (options.carrier != ring::Carrier::automatic) only_rc("a carrier of its own choice");
}

void check_transports(const ServerOptions& options) {
    constexpr const char* attempted = "make a message server";
    if (options.transports.empty()) {
        refuse(attempted, "a server without transports", "nobody could reach it",
               "use the default of rc");
    }
    for (const Transport one : {Transport::uc, Transport::ud, Transport::tcp}) {
        if (options.transports.has(one)) check_known(attempted, one);
    }
    if (options.transports.has(Transport::rc)) return;
    const auto only_rc = [&](std::string what) {
        refuse(attempted, fmt::format("{} of clients by {}", what, options.transports.to_string()),
               "only rc has rings and receives to choose between",
               "leave that option as it is by default, or take clients by rc, too");
    };
    if (options.receives != Receives::own) only_rc("shared receives");
    if (options.carrier != ring::Carrier::automatic) only_rc("a carrier of its own choice");
}

std::unique_ptr<Wire> connect_wire(const connect::Address& server, const connect::LinkOptions& link,
                                   const ClientOptions& options, const base::Deadline& deadline) {
    return connect_socket_wire(server, link,
                               {.max_message_bytes = options.max_answer_bytes + session_head_bytes,
                                .gathers = options.gathers_requests},
                               deadline);
}

WireHosts::WireHosts(const ServerOptions& options, connect::LinkOptions& link) {
    for (const Transport one : by_wire) {
        if (!options.transports.has(one)) continue;
        all.push_back(make_host(one, options, link));
        transports_.push_back(one);
    }
}

std::unique_ptr<Wire> WireHosts::meet(connect::Link link) {
    std::size_t index = 0;
    while (transports_[index] != link.transport()) ++index;  // the listener takes no others
    return all[index]->meet(std::move(link));
}

}  // namespace millrace::message
