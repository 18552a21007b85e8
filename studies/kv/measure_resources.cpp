#include "measure_resources.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/soft/survey.hpp"

namespace millrace::bench {
namespace {

/// Of a process of this user, as it is now.
Resources resources_of(pid_t pid) {
    Resources all;
    for (const soft::Participant& one : soft::survey().participants) {
        if (one.pid != pid) continue;
        all.queue_pairs += static_cast<double>(one.queue_pairs.size());
        for (const soft::SeenRegion& region : one.regions) {
            all.registered_bytes += static_cast<double>(region.bytes);
        }
    }
    const std::filesystem::directory_iterator open{fmt::format("/proc/{}/fd", pid)};
    all.descriptors =
        static_cast<double>(std::distance(open, std::filesystem::directory_iterator{}));
    return all;
}

Resources less(const Resources& all, const Resources& before) {
    return {all.queue_pairs - before.queue_pairs, all.registered_bytes - before.registered_bytes,
            all.descriptors - before.descriptors};
}

/// As many as this process may have.
void allow_descriptors() {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

ResourcesOfBoth measure_resources(const ResourceCase& chosen) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", "fast"};
    const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
    allow_descriptors();
    ResourcesOfBoth result;
    run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            const pid_t server = pair.other_pid();
            const Resources server_before = resources_of(server);
            pair.meet();
            const connect::Address address = address_of_first(pair);
            message::ClientOptions options;
            options.transport = chosen.transport;
            options.requests = chosen.requests;
            options.answers = chosen.answers;
            // What a process has once, whatever its clients are.
            options.endpoint = connect::Endpoint::open();
            const Resources before = resources_of(::getpid());
            std::vector<kv::Client> clients;
            for (std::size_t i = 0; i < chosen.clients; ++i) {
                clients.push_back(kv::Client::connect(address, options, patience()));
                require(clients.back().ping(patience()).ok(), "a PING");
            }
            result.server = less(resources_of(server), server_before);
            result.clients = less(resources_of(::getpid()), before);
            require(clients.front().exit(patience()).ok(), "the end");
            pair.meet();
            return 0.0;
        },
        [&](Pair& pair) {
            // Before anything of it is there.
            pair.meet();
            kv::ServerOptions options;
            options.messages.transports = chosen.transport;
            if (chosen.transport == connect::Transport::ud) {
                options.messages.protection = message::Protection::trusted;
            }
            options.permitted.exit = true;
            auto server = kv::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
            pair.set_value(0, server.address().port());
            pair.meet();
            (void)server.serve(base::Deadline::after(std::chrono::seconds{50}));
            pair.meet();
        });
    return result;
}

}  // namespace millrace::bench
