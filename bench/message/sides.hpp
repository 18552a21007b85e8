// The two sides of a measurement of one server and many clients: how the server listens and serves,
// how clients come and go. Used by measure_*.cpp of this folder.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "measure_message.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"

namespace millrace::bench {

using base::Status;
using message::Client;
using message::Server;

/// The soft device's, of a run; empty: as the environment says.
class ModeOfRun {
  public:
    explicit ModeOfRun(const std::string& mode) {
        if (mode.empty()) return;
        device_.emplace("MILLRACE_DEVICE", "soft0");
        mode_.emplace("MILLRACE_SOFT_MODE", mode);
    }

  private:
    std::optional<EnvironmentScope> device_;
    std::optional<EnvironmentScope> mode_;
};

inline constexpr std::size_t message_bytes = 64;
inline constexpr std::chrono::milliseconds longest{90'000};

inline connect::Address unix_address(std::uint64_t process) {
    return connect::Address::parse("unix:@millrace-bench-server-" + std::to_string(process));
}

inline Server listen(Pair& pair, message::Polling polling, const Ways& ways, std::size_t clients,
                     std::optional<message::ScanKernel> scan = {}) {
    message::ServerOptions options;
    options.tuning.scan = scan;
    options.polling = polling;
    options.tuning.receives = ways.receives;
    options.transports = ways.transport;
    if (ways.receives == message::Receives::shared || ways.transport == connect::Transport::ud ||
        polling == message::Polling::shared) {
        options.protection = message::Protection::trusted;
    }
    options.max_clients = static_cast<std::uint32_t>(clients);
    const auto process = static_cast<std::uint64_t>(getpid());
    Server server = Server::listen(
        ways.unix_domain ? unix_address(process) : connect::Address::tcp("127.0.0.1", 0), options);
    pair.set_value(0, ways.unix_domain ? process : server.address().port());
    pair.meet();
    return server;
}
inline std::vector<Client> connect_all(Pair& pair, const Ways& ways, std::size_t count,
                                       std::uint32_t window) {
    const connect::Address address = [&] {
        if (!ways.unix_domain) return address_of_first(pair);
        pair.meet();
        return unix_address(pair.value(0));
    }();
    message::ClientOptions options;
    options.transport = ways.transport;
    options.requests = ways.requests;
    options.answers = ways.answers;
    options.window = window;
    options.gathers_requests = window > 1;
    std::vector<Client> clients;
    for (std::size_t i = 0; i < count; ++i) {
        clients.push_back(
            Client::connect(address, options, base::Deadline::after(std::chrono::seconds{20})));
    }
    return clients;
}
/// A call whose request, and answer, says which one it is.
inline void call_once(Client& client, std::uint64_t number) {
    std::array<std::byte, message_bytes> request;
    stamp(request.data(), request.size(), number);
    const message::Outcome outcome = client.call(
        request.size(),
        [&](std::span<std::byte> room) { std::copy(request.begin(), request.end(), room.begin()); },
        [&](std::span<const std::byte> answer) {
            keep(read_all(answer.data(), answer.size()));
            require_intact(stamped(answer.data(), answer.size(), number), "a call");
        },
        base::Deadline::after(std::chrono::seconds{20}));
    require(outcome == message::Outcome::ok, "a call");
}
/// Until all clients have left.
template <class Handler>
void serve_all(Server& server, Handler&& handler) {
    const auto deadline = base::Deadline::after(longest);
    while (server.stats().joined == 0 || server.stats().clients != 0) {
        require(server.serve(handler, base::Deadline::after(std::chrono::milliseconds{20})) ==
                        Status::timed_out &&
                    !deadline.expired(),
                "serving");
    }
}
/// Leaves without goodbye: closing hundreds one by one would be what is measured.
inline void leave(std::vector<Client>& clients) { clients.clear(); }

}  // namespace millrace::bench
