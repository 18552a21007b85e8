#include "own_server.hpp"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"

namespace millrace::bench {
namespace {

constexpr int port_value = 0;
constexpr int switches_value = 1;

kv::Server server_for(const OwnServerCase& chosen, const connect::Address& address) {
    kv::ServerOptions options;
    options.messages.transports = chosen.transport;
    if (chosen.transport == connect::Transport::ud) {
        options.messages.protection = message::Protection::trusted;
    }
    options.messages.max_clients = chosen.clients + 1;  // one ends it
    options.permitted.exit = true;
    options.doors = chosen.doors;
    return kv::Server::listen(address, options);
}

void end_server(const OwnServerCase& chosen, const connect::Address& address) {
    message::ClientOptions options;
    options.transport = chosen.transport;
    auto client = kv::Client::connect(address, options, patience());
    require(client.exit(patience()).ok(), "the end of a server");
    (void)client.close(patience());
}

/// Until a client ends it. False: what calls it has failed, or is not done by its deadline.
bool serve(kv::Server& server, Pair& pair) {
    for (std::uint32_t turn = 1;; ++turn) {
        if (server.serve(base::Deadline::after(std::chrono::milliseconds{200})) ==
            base::Status::closed) {
            return true;
        }
        try {
            pair.check(turn);
        } catch (const base::Error&) {
            return false;  // the other side tells of it
        }
    }
}

}  // namespace

std::uint64_t with_own_server(const OwnServerCase& chosen,
                              const std::function<void(const connect::Address&)>& clients) {
    const connect::Address met =
        chosen.by_unix_socket
            ? connect::Address::unix_socket(fmt::format("@millrace-bench-{}", ::getpid()))
            : connect::Address::tcp("127.0.0.1", 0);
    std::uint64_t switches = 0;
    run_pair(
        {.deadline = chosen.deadline},
        [&](Pair& pair) {
            if (chosen.client_core >= 0) base::pin_this_thread(chosen.client_core);
            const connect::Address of_port = address_of_first(pair);
            const connect::Address& address = chosen.by_unix_socket ? met : of_port;
            clients(address);
            end_server(chosen, address);
            pair.meet();
            switches = pair.value(switches_value);
            return 0.0;
        },
        [&](Pair& pair) {
            if (chosen.server_core >= 0) base::pin_this_thread(chosen.server_core);
            // What this process had before it was two is not there to be used again unseen.
            (void)malloc_trim(0);
            auto server = server_for(chosen, met);
            if (chosen.fill) chosen.fill(server.store());
            if (!chosen.by_unix_socket) pair.set_value(port_value, server.address().port());
            pair.meet();
            const std::uint64_t before = context_switches();
            const bool was_ended = serve(server, pair);
            (void)server.close(patience());
            if (!was_ended) return;
            pair.set_value(switches_value, context_switches() - before);
            pair.meet();
        });
    return switches;
}

std::uint64_t context_switches() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::uint64_t>(usage.ru_nvcsw + usage.ru_nivcsw);
}

}  // namespace millrace::bench
