#include "millrace/rpc/server.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "server_state.hpp"
#include "stream_state.hpp"

namespace millrace::rpc {

using base::Status;
using detail::CallCore;
using detail::ClientState;
using detail::ProcedureState;

namespace {

void fail(message::Request& request, Code code, std::string_view text) {
    ErrorRoom room;
    const auto bytes = write(Error{.code = code, .text = std::string{text}}, room);
    (void)request.fail({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

Server::State::State(message::Server listening, const ServerOptions& chosen)
    : options{chosen}, messages{std::move(listening)} {
    messages.on_unwanted([this](message::ClientId id, std::uint64_t request) {
        if (id.place >= clients.size()) return;
        ClientState& client = clients[id.place];
        if (client.generation != id.generation) return;
        if (request != 0 && client.calls != nullptr) client.calls->give_up(request);
        std::erase_if(client.streams, [&](const auto& one) {
            if (request != 0) return one.second->give_up(request);
            one.second->give_up();
            return true;
        });
    });
}

void Server::State::operator()(message::Request& request) {
    const std::uint16_t number = request.procedure() & static_cast<std::uint16_t>(~head_bit);
    std::span<const std::byte> payload = request.payload();
    Head head;
    if ((request.procedure() & head_bit) != 0 && !parse_head(payload, head, payload)) [[unlikely]] {
        ++counts.malformed;
        return fail(request, Code::malformed, "the head of the request cannot be read");
    }
    ClientState& client = client_of(request.client());
    if (number < first_number) [[unlikely]]
        return answer_own(request, client, head, payload);
    // Its numbers are those of another server, if it did not ask this one.
    if (!client.knows_table) [[unlikely]] {
        ++counts.stale;
        return fail(request, Code::stale_table, "the client did not ask for this server's table");
    }
    const std::size_t index = number - first_number;
    if (index >= procedures.size()) [[unlikely]] {
        ++counts.unknown;
        return fail(request, Code::unknown_procedure, "there is no procedure of this number");
    }
    call(request, *procedures[index], client, head, payload);
}

void Server::State::call(message::Request& request, ProcedureState& procedure, ClientState& client,
                         const Head& head, std::span<const std::byte> payload) {
    const std::uint64_t began = base::ticks();
    ++procedure.calls;
    base::Deadline deadline = request.deadline();
    if (head.sent_at.has_value()) {
        if (head.clocks_parted) client.lateness.forget();
        const std::uint64_t age = client.lateness.age(*head.sent_at, detail::nanoseconds_now());
        if (deadline.point() != base::Clock::time_point::max()) {
            const auto left = static_cast<std::uint64_t>(deadline.remaining().count());
            if (age >= left) [[unlikely]] {
                ++procedure.late;
                ++counts.late;
                return fail(request, Code::late, "the deadline had passed when it was taken");
            }
            deadline = deadline.moved_to(deadline.point() -
                                         std::chrono::nanoseconds{static_cast<std::int64_t>(age)});
        }
    }
    if (is_too_much(procedure, client, head.priority)) [[unlikely]] {
        ++procedure.overloaded;
        ++counts.overloaded;
        return fail(request, Code::overloaded, "too many calls are under way");
    }
    CallCore core{request, procedure, client, head, deadline, began};
    try {
        if (!procedure.handler->call(core, payload)) {
            ++counts.malformed;
            (void)core.fail({.code = Code::malformed, .text = "the request cannot be read"});
        }
    } catch (const Failure& failure) {
        (void)core.fail(failure.error());
    } catch (const std::exception& error) {
        (void)core.fail({.text = error.what()});
    } catch (...) {
        (void)core.fail({.text = "the handler threw what is no exception"});
    }
    if (core.end() == CallCore::End::deferred) return;
    ++(core.end() == CallCore::End::answered ? procedure.answered : procedure.failed);
    procedure.latency.record(detail::ticks_since(began));
}

bool Server::State::is_too_much(const ProcedureState& procedure, const ClientState& client,
                                Priority priority) const {
    const auto exceeds = [priority](std::size_t pending, std::size_t limit) {
        return limit != 0 && pending >= (priority == Priority::low ? (limit + 1) / 2 : limit);
    };
    if (procedure.options.max_pending != 0 &&
        exceeds(procedure.deferred->pending.load(std::memory_order_relaxed),
                procedure.options.max_pending)) {
        return true;
    }
    return options.max_pending_of_client != 0 && client.calls != nullptr &&
           exceeds(client.calls->count(), options.max_pending_of_client);
}

/// A reader of a stream asks for a part, or wants no more.
void Server::State::pull(message::Request& request, ClientState& client,
                         std::span<const std::byte> payload) {
    std::array<std::uint64_t, 2> asked{};
    if (payload.size() != sizeof asked) {
        ++counts.malformed;
        return fail(request, Code::malformed, "the request for a part cannot be read");
    }
    std::memcpy(asked.data(), payload.data(), sizeof asked);
    const auto found = client.streams.find(asked[0]);
    if (found == client.streams.end()) {  // it was over before this was asked
        const std::array<std::uint64_t, 1> end{detail::word_of_end};
        (void)request.answer(std::as_bytes(std::span{end}));
        return;
    }
    const std::shared_ptr<detail::StreamState> stream = found->second;
    if (asked[1] != 0) {
        stream->give_up();
        client.streams.erase(found);
        (void)request.answer({});
    } else if (stream->pull(request)) {
        client.streams.erase(found);
    }
}

/// The procedures that every server has.
void Server::State::answer_own(message::Request& request, ClientState& client, const Head& head,
                               std::span<const std::byte> payload) {
    const auto number = request.procedure() & ~head_bit;
    if (number == pull_number) return pull(request, client, payload);
    if (number == table_number || number == report_number) {
        if (number == table_number) {
            client.knows_table = true;
            client.lateness.forget();
        }
        if (head.sent_at.has_value()) {
            (void)client.lateness.age(*head.sent_at, detail::nanoseconds_now());
        }
        (void)request.answer(write_table(reports(), number == report_number));
        return;
    }
    ++counts.unknown;
    fail(request, Code::unknown_procedure, "there is no procedure of this number");
}

ClientState& Server::State::client_of(message::ClientId id) {
    if (id.place >= clients.size()) [[unlikely]]
        clients.resize(id.place + 1);
    ClientState& client = clients[id.place];
    if (client.generation != id.generation) [[unlikely]] {
        for (auto& [opened, stream] : client.streams) stream->give_up();
        client = ClientState{};
        client.generation = id.generation;
    }
    return client;
}

std::vector<ProcedureReport> Server::State::reports() const {
    constexpr std::chrono::milliseconds unit{1};
    const double nanoseconds = 1e6 / static_cast<double>(base::ticks_in(unit));
    const auto time = [nanoseconds](std::uint64_t ticks) {
        return static_cast<std::uint64_t>(static_cast<double>(ticks) * nanoseconds);
    };
    std::vector<ProcedureReport> reports;
    for (const auto& one : procedures) {
        const detail::Deferred& deferred = *one->deferred;
        auto latency = std::make_unique<base::Histogram>(one->latency);
        deferred.add_to(*latency);
        reports.push_back({
            .number = static_cast<std::uint16_t>(first_number + reports.size()),
            .signature = one->signature,
            .calls = one->calls,
            .answered = one->answered + deferred.answered.load(std::memory_order_relaxed),
            .failed = one->failed + deferred.failed.load(std::memory_order_relaxed),
            .late = one->late,
            .overloaded = one->overloaded,
            .unwanted = deferred.unwanted.load(std::memory_order_relaxed),
            .pending = deferred.pending.load(std::memory_order_relaxed),
            .latency_p50 = time(latency->quantile(0.5)),
            .latency_p90 = time(latency->quantile(0.9)),
            .latency_p99 = time(latency->quantile(0.99)),
            .latency_p999 = time(latency->quantile(0.999)),
            .latency_most = time(latency->most()),
        });
    }
    return reports;
}

// --- Server

Server::Server(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

Server Server::listen(const connect::Address& address, ServerOptions options) {
    message::Server messages = message::Server::listen(address, options.messages);
    return Server{std::make_unique<State>(std::move(messages), options)};
}

void Server::add(Signature signature, std::unique_ptr<detail::Handler> handler,
                 const ProcedureOptions& options) {
    const auto refuse = [&](std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "add a procedure",
                          fmt::format("'{}' at {}", signature.name, address().to_string()),
                          std::move(why), std::move(remedy)};
    };
    auto& procedures = state_->procedures;
    if (signature.name.empty()) refuse("it has no name", "give it one");
    if (signature.name.size() > longest_name) {
        refuse(fmt::format("a name has at most {} bytes", longest_name), "give it a shorter one");
    }
    if (std::any_of(procedures.begin(), procedures.end(),
                    [&](const auto& one) { return one->signature.name == signature.name; })) {
        refuse("there is one of this name already", "give one of the two another name");
    }
    if (procedures.size() == most_procedures) {
        refuse(fmt::format("a server has at most {}", most_procedures), "use another server");
    }
    auto state = std::make_unique<ProcedureState>();
    state->signature = std::move(signature);
    state->options = options;
    state->handler = std::move(handler);
    procedures.push_back(std::move(state));
}

const connect::Address& Server::address() const noexcept { return state_->messages.address(); }
std::size_t Server::turn(std::size_t budget) { return state_->messages.turn(*state_, budget); }
Status Server::rest(const base::Deadline& deadline) { return state_->messages.rest(deadline); }
Status Server::serve(const base::Deadline& deadline) {
    return state_->messages.serve(*state_, deadline);
}
void Server::stop() noexcept { state_->messages.stop(); }
Status Server::drain(const base::Deadline& deadline) { return state_->messages.drain(deadline); }
Status Server::close(const base::Deadline& deadline) { return state_->messages.close(deadline); }
void Server::adopt() noexcept { state_->messages.adopt(); }
int Server::descriptor() { return state_->messages.descriptor(); }

ServerStats Server::stats() const noexcept {
    ServerStats stats = state_->counts;
    stats.messages = state_->messages.stats();
    return stats;
}

std::vector<ProcedureReport> Server::procedures() const { return state_->reports(); }

std::string Server::explain() const {
    const State& state = *state_;
    std::string text =
        fmt::format("{}\nrpc server: {} procedures; deferred calls of a client at a time: {}",
                    state.messages.explain(), state.procedures.size(),
                    state.options.max_pending_of_client == 0
                        ? std::string{"as its window"}
                        : std::to_string(state.options.max_pending_of_client));
    for (const auto& one : state.procedures) {
        text += fmt::format("\n  {}{}{}", one->signature.name,
                            one->signature.is_stream ? ", a stream" : "",
                            one->options.max_pending == 0
                                ? std::string{}
                                : fmt::format(", {} deferred at a time", one->options.max_pending));
    }
    return text;
}

}  // namespace millrace::rpc
