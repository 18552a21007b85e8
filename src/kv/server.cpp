#include "millrace/kv/server.hpp"

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "desk.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/histogram.hpp"
#include "service.hpp"

namespace millrace::kv {

struct Server::State {
    State(message::ServerGroup listening, const ServerOptions& chosen)
        : options{chosen},
          store{chosen.store},
          messages{std::move(listening)},
          service{store,
                  chosen.permitted,
                  {.exit = [this] { messages.stop(); },
                   // It has to sweep from now on.
                   .first_expiring = [this] { messages.server(0).stop(); },
                   .stats = [this] { return lines(); }}} {
        for (std::size_t thread = 0; thread < messages.size(); ++thread) {
            desks.push_back(std::make_unique<Desk>(service));
        }
    }

    /// What one of the threads does.
    base::Status serve_and_sweep(message::Server& server, const base::Deadline& deadline);

    [[nodiscard]] std::string lines() const {
        const message::ServerStats now = messages.stats();
        std::string text = fmt::format(
            "clients {}\njoined {}\nleft {}\nrefused_clients {}\nmisbehaved {}\nrequests {}\n"
            "answers {}\noverloaded {}\nsleeps {}\n",
            now.clients, now.joined, now.left, now.refused, now.misbehaved, now.requests,
            now.answers, now.overloaded, now.sleeps);
        for (const Command command : timed_commands) {
            const ServiceTimes times = times_of(command);
            fmt::format_to(std::back_inserter(text),
                           "{0}_timed {1}\n{0}_mean_ns {2:.0f}\n{0}_p50_ns {3}\n{0}_p90_ns {4}\n"
                           "{0}_p99_ns {5}\n{0}_p999_ns {6}\n{0}_longest_ns {7}\n",
                           name_of(command), times.timed, times.mean_ns, times.p50_ns, times.p90_ns,
                           times.p99_ns, times.p999_ns, times.longest_ns);
        }
        return text;
    }
    [[nodiscard]] ServiceTimes times_of(Command command) const {
        const auto all = std::make_unique<base::Histogram>();
        for (const auto& desk : desks) {
            if (const base::Histogram* const times = desk->times_of(command)) all->add(*times);
        }
        return {.timed = all->count(),
                .mean_ns = all->mean(),
                .p50_ns = all->quantile(0.5),
                .p90_ns = all->quantile(0.9),
                .p99_ns = all->quantile(0.99),
                .p999_ns = all->quantile(0.999),
                .longest_ns = all->most()};
    }

    ServerOptions options;
    Store store;
    message::ServerGroup messages;
    Service service;
    std::vector<std::unique_ptr<Desk>> desks;  ///< by thread
};

Server::Server(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

Server Server::listen(const connect::Address& address, ServerOptions options) {
    options.messages.max_request_bytes = longest_request;
    options.messages.service = server_service;
    message::ServerGroup messages =
        message::ServerGroup::listen(address, options.messages, options.threads);
    return Server{std::make_unique<State>(std::move(messages), options)};
}

const connect::Address& Server::address() const noexcept { return state_->messages.address(); }
Store& Server::store() noexcept { return state_->store; }
const Store& Server::store() const noexcept { return state_->store; }
void Server::stop() noexcept { state_->messages.stop(); }
void Server::adopt() noexcept { state_->messages.adopt(); }
message::ServerStats Server::stats() const noexcept { return state_->messages.stats(); }

std::array<std::uint64_t, commands> Server::requests() const noexcept {
    std::array<std::uint64_t, commands> all{};
    for (const auto& desk : state_->desks) {
        for (std::size_t command = 0; command < commands; ++command) {
            all[command] += desk->taken(command);
        }
    }
    return all;
}

ServiceTimes Server::service_times(Command command) const { return state_->times_of(command); }

base::Status Server::serve(const base::Deadline& deadline) {
    State& state = *state_;
    return state.messages.run([&](message::Server& server, std::size_t thread) {
        return thread == 0 ? state.serve_and_sweep(server, deadline)
                           : state.messages.serve_one(server, *state.desks[thread], deadline);
    });
}

base::Status Server::State::serve_and_sweep(message::Server& server,
                                            const base::Deadline& deadline) {
    for (;;) {
        // Without items that expire there is nothing to wake up for.
        const bool sweeps = service.has_expiring();
        const base::Status status = server.serve(
            *desks.front(),
            sweeps ? deadline.no_later_than(base::Clock::now() + options.sweep_period) : deadline);
        if (status == base::Status::closed) {
            if (messages.is_ending()) return status;
        } else if (!sweeps || status != base::Status::timed_out || deadline.expired()) {
            return status;
        }
        if (sweeps) (void)store.sweep(service.sweep_budget());
    }
}

base::Status Server::close(const base::Deadline& deadline) {
    return state_->messages.close(deadline);
}

std::string Server::explain() const {
    const State& state = *state_;
    return fmt::format("{}\nkey-value store: at most {} bytes of memory, table {}, when full {}",
                       state.messages.explain(), state.options.store.memory_bytes,
                       state.options.store.table == TableKind::cuckoo ? "libcuckoo" : "of work 002",
                       state.options.store.when_full == WhenFull::evict
                           ? "the least recently used items go"
                           : "new items are refused");
}

}  // namespace millrace::kv
