#include "millrace/kv/server.hpp"

#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "desk.hpp"
#include "doors/open_doors.hpp"
#include "gate.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/histogram.hpp"
#include "saves.hpp"
#include "service.hpp"
#include "snapshot.hpp"

namespace millrace::kv {

namespace {

void check(const DoorOptions& options) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "open a key-value store's door",
                          std::move(what), std::move(why), std::move(remedy)};
    };
    constexpr std::uint32_t most = 1'000'000;
    if (options.max_connections == 0 || options.max_connections > most) {
        refuse(fmt::format("for {} connections", options.max_connections),
               fmt::format("there are from 1 to {}", most), "choose a number between");
    }
    if (options.idle_timeout.count() < 0 || options.patience.count() <= 0) {
        refuse("with a negative time", "time does not go back", "use 0 for never");
    }
    if (options.max_unread_bytes < longest_value || options.max_held_bytes < longest_value) {
        refuse(fmt::format("with {} bytes for answers, {} in all", options.max_unread_bytes,
                           options.max_held_bytes),
               "one value would not fit", fmt::format("allow {} at least", longest_value));
    }
}

void check_period(const ServerOptions& options) {
    const auto refuse = [](std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument,
                          "listen for clients of a key-value store",
                          "that writes snapshots by itself", std::move(why), std::move(remedy)};
    };
    if (options.snapshot_period.count() < 0) {
        refuse("its period is negative", "use 0 for never");
    }
    if (options.snapshot_period.count() != 0 && options.snapshot_file.empty()) {
        refuse("there is no file for them", "name it in ServerOptions::snapshot_file");
    }
}

ServiceTimes times_in(const base::Histogram& all) {
    return {.timed = all.count(),
            .mean_ns = all.mean(),
            .p50_ns = all.quantile(0.5),
            .p90_ns = all.quantile(0.9),
            .p99_ns = all.quantile(0.99),
            .p999_ns = all.quantile(0.999),
            .longest_ns = all.most()};
}

void print_times(std::string& text, std::string_view name, const ServiceTimes& times) {
    fmt::format_to(std::back_inserter(text),
                   "{0}_timed {1}\n{0}_mean_ns {2:.0f}\n{0}_p50_ns {3}\n{0}_p90_ns {4}\n"
                   "{0}_p99_ns {5}\n{0}_p999_ns {6}\n{0}_longest_ns {7}\n",
                   name, times.timed, times.mean_ns, times.p50_ns, times.p90_ns, times.p99_ns,
                   times.p999_ns, times.longest_ns);
}

}  // namespace

struct Server::State {
    State(std::unique_ptr<Store> its_store, std::unique_ptr<Gate> its_gate,
          std::unique_ptr<OpenDoors> its_doors, message::ServerGroup listening,
          const ServerOptions& chosen, const SnapshotRead& read)
        : options{chosen},
          loaded{read},
          store_kept{std::move(its_store)},
          store{*store_kept},
          saves{store, chosen.snapshot_file, chosen.snapshot_period,
                [this] { messages.server(0).stop(); }},
          gate{std::move(its_gate)},
          doors{std::move(its_doors)},
          messages{std::move(listening)},
          service{store,
                  chosen.permitted,
                  {.exit = [this] { messages.stop(); },
                   // It has to sweep from now on.
                   .first_expiring = [this] { messages.server(0).stop(); },
                   .stats = [this] { return lines(); }}} {
        doors->call([this] { service.note_expiring(); }, saves);
        if (loaded.expires != 0) service.note_expiring();
        for (std::size_t thread = 0; thread < messages.size(); ++thread) {
            desks.push_back(std::make_unique<Desk>(service));
            doors->each_of(thread, [&](Door& part) {
                messages.server(thread).serve_beside(part.descriptor(),
                                                     [&part] { return part.look(); });
            });
        }
    }

    State(const State&) = delete;
    State& operator=(const State&) = delete;
    /// A writer wakes the first thread's server, which goes before it.
    ~State() { saves.abandon(); }

    /// By one of the threads, until its server is stopped.
    base::Status serve(message::Server& server, std::size_t thread,
                       const base::Deadline& deadline) {
        const bool is_gated = !doors->empty() || saves.has_period();
        if (!is_gated || gate->threads() == 1) return server.serve(*desks[thread], deadline);
        GatedDesk desk{*desks[thread], *gate, thread};
        return server.serve(desk, deadline);
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
            print_times(text, name_of(command), times_of(command));
        }
        for (const DoorKind kind : all_doors) {
            if (doors->address(kind) != nullptr) print_door(text, kind);
        }
        if (saves.has_file()) print_saves(text);
        return text;
    }
    void print_door(std::string& text, DoorKind kind) const {
        const DoorStats door = doors->stats(kind);
        const std::string_view name = name_of(kind);
        const std::pair<std::string_view, std::uint64_t> counts[] = {
            {"connections", door.connections},
            {"accepted", door.accepted},
            {"refused", door.refused},
            {"denied", door.denied},
            {"commands", door.commands},
            {"errors", door.errors},
            {"malformed", door.malformed},
            {"slow", door.slow},
            {"idle", door.idle},
            {"greedy", door.greedy},
            {"bytes_in", door.bytes_in},
            {"bytes_out", door.bytes_out},
            {"tls_accepted", door.tls_accepted},
            {"tls_failed", door.tls_failed}};
        for (const auto& [count, number] : counts) {
            fmt::format_to(std::back_inserter(text), "{}_{} {}\n", name, count, number);
        }
        print_times(text, name, door_times(kind));
    }
    [[nodiscard]] ServiceTimes door_times(DoorKind kind) const {
        const auto all = std::make_unique<base::Histogram>();
        doors->add_times(kind, *all);
        return times_in(*all);
    }
    void print_saves(std::string& text) const {
        const SaveStats now = saves.stats();
        fmt::format_to(std::back_inserter(text),
                       "snapshots {}\nsnapshots_failed {}\nsnapshot_at {}\nsnapshot_took_ns {}\n",
                       now.written, now.failed, now.last_at, now.took_ns);
    }
    [[nodiscard]] ServiceTimes times_of(Command command) const {
        const auto all = std::make_unique<base::Histogram>();
        for (const auto& desk : desks) {
            if (const base::Histogram* const times = desk->times_of(command)) all->add(*times);
        }
        return times_in(*all);
    }

    ServerOptions options;
    SnapshotRead loaded;
    std::unique_ptr<Store> store_kept;
    Store& store;
    Saves saves;
    std::unique_ptr<Gate> gate;
    std::unique_ptr<OpenDoors> doors;
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
    options.messages.tuning.service = server_service;
    check(options.doors);
    check_period(options);
    message::ServerGroup messages =
        message::ServerGroup::listen(address, options.messages, options.threads);
    auto store = std::make_unique<Store>(options.store);
    SnapshotRead read;
    if (!options.snapshot_file.empty()) read = read_snapshot(*store, options.snapshot_file);
    auto gate = std::make_unique<Gate>(messages.size());
    auto doors = std::make_unique<OpenDoors>(*store, *gate, options.doors);
    return Server{std::make_unique<State>(std::move(store), std::move(gate), std::move(doors),
                                          std::move(messages), options, read)};
}

const connect::Address& Server::address() const noexcept { return state_->messages.address(); }
Store& Server::store() noexcept { return state_->store; }
const Store& Server::store() const noexcept { return state_->store; }
std::uint64_t Server::save() const {
    if (state_->options.snapshot_file.empty()) {
        throw base::Error{base::ErrorCode::invalid_argument, "write a snapshot",
                          "of a key-value store", "the server has no file for it",
                          "name it in ServerOptions::snapshot_file"};
    }
    return state_->saves.save();
}
SaveStats Server::save_stats() const noexcept { return state_->saves.stats(); }
SnapshotRead Server::loaded() const noexcept { return state_->loaded; }
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

const connect::Address* Server::door_address(DoorKind kind) const noexcept {
    return state_->doors->address(kind);
}
DoorStats Server::door_stats(DoorKind kind) const noexcept { return state_->doors->stats(kind); }
ServiceTimes Server::door_times(DoorKind kind) const { return state_->door_times(kind); }
ServiceTimes Server::service_times(Command command) const { return state_->times_of(command); }

base::Status Server::serve(const base::Deadline& deadline) {
    State& state = *state_;
    return state.messages.run([&](message::Server& server, std::size_t thread) {
        if (thread == 0) return state.serve_and_sweep(server, deadline);
        for (;;) {
            const base::Status status = state.serve(server, thread, deadline);
            if (status != base::Status::closed || state.messages.is_ending()) return status;
        }
    });
}

base::Status Server::State::serve_and_sweep(message::Server& server,
                                            const base::Deadline& deadline) {
    for (;;) {
        // Without items that expire, or snapshots, there is nothing to wake up for.
        const bool sweeps = service.has_expiring();
        base::Deadline next = deadline;
        if (sweeps) next = next.no_later_than(base::Clock::now() + options.sweep_period);
        if (saves.has_period()) next = next.no_later_than(saves.due());
        const base::Status status = serve(server, 0, next);
        if (status == base::Status::closed) {
            if (messages.is_ending()) return status;
        } else if (status != base::Status::timed_out || deadline.expired()) {
            return status;
        }
        if (sweeps) (void)store.sweep(service.sweep_budget());
        saves.begin_if_due();
        if (saves.is_wanted()) {
            const Gate::Inside inside{*gate, 0};
            const Gate::Alone alone{*gate, 0};
            saves.serve_alone();
        }
    }
}

base::Status Server::close(const base::Deadline& deadline) {
    state_->saves.abandon();
    state_->doors->close();
    return state_->messages.close(deadline);
}

std::string Server::explain() const {
    const State& state = *state_;
    std::string text = fmt::format(
        "{}\nkey-value store: at most {} bytes of memory, table {}, when full {}",
        state.messages.explain(), state.options.store.memory_bytes,
        state.options.store.table == TableKind::cuckoo ? "libcuckoo" : "of work 002",
        state.options.store.when_full == WhenFull::evict ? "the least recently used items go"
                                                         : "new items are refused");
    for (const DoorKind kind : all_doors) {
        const connect::Address* const where = state.doors->address(kind);
        if (where == nullptr) continue;
        const DoorOptions& doors = state.options.doors;
        text += fmt::format("\n{} protocol at {}: at most {} connections, {}, {}",
                            protocol_of(kind), where->to_string(), doors.max_connections,
                            doors.password ? "with a password" : "without a password",
                            doors.tls ? "by TLS" : "not encrypted");
    }
    return text;
}

}  // namespace millrace::kv
