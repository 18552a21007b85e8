#include "millrace/kv/server.hpp"

#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "service.hpp"

namespace millrace::kv {

struct Server::State {
    State(message::Server listening, const ServerOptions& chosen)
        : options{chosen},
          store{chosen.store},
          messages{std::move(listening)},
          service{store,
                  chosen.permitted,
                  {.exit = [this] { stop(); },
                   .first_expiring = [this] { messages.stop(); },
                   .stats = [this] { return lines(); }}} {}

    void stop() noexcept {
        stopped.store(true, std::memory_order_release);
        messages.stop();
    }

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
    message::Server messages;
    Service service;
    std::atomic<bool> stopped{false};  ///< by stop(), and not for another reason
};

Server::Server(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

Server Server::listen(const connect::Address& address, ServerOptions options) {
    options.messages.max_request_bytes = longest_request;
    message::Server messages = message::Server::listen(address, options.messages);
    return Server{std::make_unique<State>(std::move(messages), options)};
}

const connect::Address& Server::address() const noexcept { return state_->messages.address(); }
Store& Server::store() noexcept { return state_->store; }
void Server::stop() noexcept { state_->stop(); }
void Server::adopt() noexcept { state_->messages.adopt(); }
message::ServerStats Server::stats() const noexcept { return state_->messages.stats(); }

base::Status Server::serve(const base::Deadline& deadline) {
    State& state = *state_;
    for (;;) {
        // Without items that expire there is nothing to wake up for.
        const bool sweeps = state.service.has_expiring();
        const base::Status status = state.messages.serve(
            state.service,
            sweeps ? deadline.no_later_than(base::Clock::now() + state.options.sweep_period)
                   : deadline);
        if (status == base::Status::closed) {
            if (state.stopped.exchange(false, std::memory_order_acq_rel)) return status;
        } else if (!sweeps || status != base::Status::timed_out || deadline.expired()) {
            return status;
        }
        if (sweeps) (void)state.store.sweep(state.service.sweep_budget());
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
