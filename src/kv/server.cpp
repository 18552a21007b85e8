#include "millrace/kv/server.hpp"

#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/statistics.hpp"
#include "service.hpp"

namespace millrace::kv {

namespace {

/// A thread's part: the service of all, and what this thread takes.
class Desk {
  public:
    explicit Desk(Service& service) noexcept : service_{&service} {}
    void operator()(message::Request& request) {
        const std::size_t command = request.procedure();
        base::Counter{&taken_[command < commands ? command : 0]}.add();
        (*service_)(request);
    }
    /// Any thread.
    [[nodiscard]] std::uint64_t taken(std::size_t command) noexcept {
        return base::Counter{&taken_[command]}.value();
    }

  private:
    Service* service_;
    std::array<std::uint64_t, commands> taken_{};
};

}  // namespace

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
        return fmt::format(
            "clients {}\njoined {}\nleft {}\nrefused_clients {}\nmisbehaved {}\nrequests {}\n"
            "answers {}\noverloaded {}\nsleeps {}\n",
            now.clients, now.joined, now.left, now.refused, now.misbehaved, now.requests,
            now.answers, now.overloaded, now.sleeps);
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
