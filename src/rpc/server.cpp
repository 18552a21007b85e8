#include "millrace/rpc/server.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "millrace/message/detail/put_off.hpp"
#include "server_state.hpp"
#include "stream_state.hpp"

namespace millrace::rpc {

using base::Status;
using detail::CallCore;
using detail::ClientState;
using detail::ProcedureState;

namespace {

const Head no_head;
static_assert(first_number + most_procedures <= head_bit);

void fail(message::Request& request, Code code, std::string_view text) {
    ErrorRoom room;
    const auto bytes = write(Error{.code = code, .text = std::string{text}}, room);
    (void)request.fail({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// Nobody reads its streams any more.
void give_up_streams(ClientState& client) {
    for (auto& [number, stream] : client.streams) stream->give_up();
    client.streams.clear();
}

}  // namespace

void Desk::attach(message::Server& messages) {
    messages.on_unwanted([this](message::ClientId id, std::uint64_t request) {
        if (id.place >= clients_.size()) return;
        ClientState& client = clients_[id.place];
        if (client.generation != id.generation) return;
        if (request != 0 && client.calls != nullptr) client.calls->give_up(request);
        std::erase_if(client.streams, [&](const auto& one) {
            if (request != 0) return one.second->give_up(request);
            one.second->give_up();
            return true;
        });
    });
}

[[gnu::always_inline]] inline void Desk::call(message::Request& request, ProcedureState& procedure,
                                              ClientState& client, const Head& head,
                                              std::span<const std::byte> payload,
                                              std::uint64_t began) {
    detail::count(procedure.calls);
    base::Deadline deadline = base::Deadline::never();
    if (head.sent_at.has_value()) {
        // What the client waits counts from when it stamped the request, also while that was put
        // off here.
        if (head.clocks_parted) client.lateness.forget();
        const auto now = base::Clock::now();
        const std::uint64_t age = client.lateness.age(
            *head.sent_at, static_cast<std::uint64_t>(now.time_since_epoch().count()));
        const std::chrono::nanoseconds limit = request.limit();
        if (limit.count() != 0) {
            if (age >= static_cast<std::uint64_t>(limit.count())) [[unlikely]] {
                detail::count(procedure.late);
                detail::count(counts.late);
                return fail(request, Code::late, "the deadline had passed when it was taken");
            }
            deadline = base::Deadline::at(now + limit -
                                          std::chrono::nanoseconds{static_cast<std::int64_t>(age)});
        }
    } else {
        deadline = request.deadline();
    }
    if (procedure.has_limits && is_too_much(procedure, client, head.priority)) [[unlikely]] {
        detail::count(procedure.overloaded);
        detail::count(counts.overloaded);
        return fail(request, Code::overloaded, "too many calls are under way");
    }
    CallCore core{request, procedure, client, head, deadline, began};
    try {
        if (!procedure.handler->call(core, payload)) [[unlikely]] {
            detail::count(counts.malformed);
            (void)core.fail({.code = Code::malformed, .text = "the request cannot be read"});
        }
    } catch (...) {
        fail_by_exception(core);
    }
    if (core.end() == CallCore::End::deferred) return;
    detail::count(core.end() == CallCore::End::answered ? procedure.answered : procedure.failed);
    if (began != 0) procedure.latency.record(detail::ticks_since(began));
}

void Desk::operator()(message::Request& request) {
    // One that has a head lies beyond all procedures.
    const std::size_t index = std::size_t{request.procedure()} - first_number;
    const std::size_t place = request.client().place;
    if (index >= procedures.size() || place >= clients_.size()) [[unlikely]]
        return take_any(request);
    ClientState& client = clients_[place];
    if (client.generation != request.client().generation || !client.knows_table) [[unlikely]]
        return take_any(request);
    ProcedureState& procedure = *procedures[index];
    call(request, procedure, client, no_head, request.payload(), detail::begin_of(procedure.calls));
}

void Desk::take_any(message::Request& request) {
    const std::uint16_t number = request.procedure();
    if ((number & head_bit) == 0) return take(request, number, no_head, request.payload());
    std::span<const std::byte> payload = request.payload();
    Head head;
    if (!parse_head(payload, head, payload)) [[unlikely]] {
        detail::count(counts.malformed);
        return fail(request, Code::malformed, "the head of the request cannot be read");
    }
    take(request, number & static_cast<std::uint16_t>(~head_bit), head, payload);
}

void Desk::take(message::Request& request, std::uint16_t number, const Head& head,
                std::span<const std::byte> payload) {
    ClientState& client = client_of(request.client());
    if (number < first_number) [[unlikely]]
        return answer_own(request, client, head, payload);
    // Its numbers are those of another server, if it did not ask this one.
    if (!client.knows_table) [[unlikely]] {
        detail::count(counts.stale);
        return fail(request, Code::stale_table, "the client did not ask for this server's table");
    }
    const std::size_t index = number - first_number;
    if (index >= procedures.size()) [[unlikely]] {
        detail::count(counts.unknown);
        return fail(request, Code::unknown_procedure, "there is no procedure of this number");
    }
    std::uint64_t began = message::detail::PuttingOff::put_off_at(request);
    if (began == 0) {
        if (head.priority == Priority::low &&
            message::detail::PuttingOff::put_off(request) == Status::ok) {
            return;
        }
        began = detail::begin_of(procedures[index]->calls);
    }
    call(request, *procedures[index], client, head, payload, began);
}

/// Within a handler of it.
void Desk::fail_by_exception(CallCore& core) {
    try {
        throw;
    } catch (const Failure& failure) {
        (void)core.fail(failure.error());
    } catch (const std::exception& error) {
        (void)core.fail({.text = error.what()});
    } catch (...) {
        (void)core.fail({.text = "the handler threw what is no exception"});
    }
}

bool Desk::is_too_much(const ProcedureState& procedure, const ClientState& client,
                       Priority priority) const {
    const auto exceeds = [priority](std::size_t pending, std::size_t limit) {
        return limit != 0 && pending >= (priority == Priority::low ? (limit + 1) / 2 : limit);
    };
    if (procedure.options.max_pending != 0 &&
        exceeds(procedure.deferred->pending.load(std::memory_order_relaxed),
                procedure.options.max_pending)) {
        return true;
    }
    if (procedure.signature.is_stream && procedure.held->is_full()) return true;
    const std::uint32_t most = server_->options.max_pending_of_client;
    return most != 0 && client.calls != nullptr && exceeds(client.calls->count(), most);
}

/// A reader of a stream asks for a part, or wants no more.
void Desk::pull(message::Request& request, ClientState& client,
                std::span<const std::byte> payload) {
    std::array<std::uint64_t, 2> asked{};
    if (payload.size() != sizeof asked) {
        detail::count(counts.malformed);
        return fail(request, Code::malformed, "the request for a part cannot be read");
    }
    std::memcpy(asked.data(), payload.data(), sizeof asked);
    const auto found = client.streams.find(asked[0]);
    if (found == client.streams.end()) {
        // It was over before this was asked, which the reader has heard already; or it is another
        // server's, or of a session that was lost, and then the reader must not take it for its
        // end.
        const std::array<std::uint64_t, 1> none{word_of(detail::PartKind::no_stream, 0)};
        (void)request.answer(std::as_bytes(std::span{none}));
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
void Desk::answer_own(message::Request& request, ClientState& client, const Head& head,
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
        (void)request.answer(write_table(server_->reports(), number == report_number));
        return;
    }
    detail::count(counts.unknown);
    fail(request, Code::unknown_procedure, "there is no procedure of this number");
}

ClientState& Desk::greet(message::ClientId id) {
    if (id.place >= clients_.size()) clients_.resize(id.place + 1);
    ClientState& client = clients_[id.place];
    if (client.generation == id.generation) return client;
    give_up_streams(client);
    client = ClientState{};
    client.generation = id.generation;
    return client;
}

std::vector<ProcedureReport> Server::State::reports() const {
    constexpr std::chrono::milliseconds unit{1};
    const double nanoseconds = 1e6 / static_cast<double>(base::ticks_in(unit));
    const auto time = [nanoseconds](std::uint64_t ticks) {
        return static_cast<std::uint64_t>(static_cast<double>(ticks) * nanoseconds);
    };
    std::vector<ProcedureReport> reports;
    const auto latency = std::make_unique<base::Histogram>();
    for (std::size_t index = 0; index < desks.front()->procedures.size(); ++index) {
        const ProcedureState& first = *desks.front()->procedures[index];
        const detail::Deferred& deferred = *first.deferred;
        ProcedureReport report{
            .number = static_cast<std::uint16_t>(first_number + index),
            .signature = first.signature,
            .answered = deferred.answered.load(std::memory_order_relaxed),
            .failed = deferred.failed.load(std::memory_order_relaxed),
            .unwanted = deferred.unwanted.load(std::memory_order_relaxed),
            .pending = deferred.pending.load(std::memory_order_relaxed),
        };
        *latency = {};
        deferred.add_to(*latency);
        for (const auto& desk : desks) {
            ProcedureState& one = *desk->procedures[index];
            report.calls += detail::counted(one.calls);
            report.answered += detail::counted(one.answered);
            report.failed += detail::counted(one.failed);
            report.late += detail::counted(one.late);
            report.overloaded += detail::counted(one.overloaded);
            latency->add(one.latency);
        }
        report.latency_p50 = time(latency->quantile(0.5));
        report.latency_p90 = time(latency->quantile(0.9));
        report.latency_p99 = time(latency->quantile(0.99));
        report.latency_p999 = time(latency->quantile(0.999));
        report.latency_most = time(latency->most());
        reports.push_back(std::move(report));
    }
    return reports;
}

Server::State::State(message::ServerGroup listening, const ServerOptions& chosen)
    : options{chosen}, messages{std::move(listening)} {
    for (std::size_t thread = 0; thread < messages.size(); ++thread) {
        desks.push_back(std::make_unique<Desk>(*this));
        desks.back()->attach(messages.server(thread));
    }
}

message::Server& Server::State::only(const char* attempted) {
    if (desks.size() == 1) return messages.server(0);
    throw base::Error{base::ErrorCode::invalid_argument, attempted,
                      fmt::format("rpc server at {}", messages.address().to_string()),
                      fmt::format("it has {} threads, and no one of them serves all of its clients",
                                  desks.size()),
                      "call serve(), or make a server of one thread (ServerOptions::threads)"};
}

// --- Server

Server::Server(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

Server Server::listen(const connect::Address& address, ServerOptions options) {
    options.messages.tuning.service = server_service;
    message::ServerGroup messages =
        message::ServerGroup::listen(address, options.messages, options.threads);
    return Server{std::make_unique<State>(std::move(messages), options)};
}

void Server::add(Signature signature, std::vector<std::shared_ptr<detail::Handler>> handlers,
                 const ProcedureOptions& options) {
    const auto refuse = [&](std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "add a procedure",
                          fmt::format("'{}' at {}", signature.name, address().to_string()),
                          std::move(why), std::move(remedy)};
    };
    const auto& procedures = state_->desks.front()->procedures;
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
    const auto deferred = std::make_shared<detail::Deferred>();
    for (std::size_t thread = 0; thread < state_->desks.size(); ++thread) {
        auto state = std::make_unique<ProcedureState>();
        state->signature = signature;
        state->options = options;
        state->handler = handlers[thread % handlers.size()];
        state->deferred = deferred;
        state->held = state_->messages.held();
        state->has_limits = options.max_pending != 0 ||
                            state_->options.max_pending_of_client != 0 || signature.is_stream;
        state_->desks[thread]->procedures.push_back(std::move(state));
    }
}

const connect::Address& Server::address() const noexcept { return state_->messages.address(); }
std::size_t Server::threads() const noexcept { return state_->desks.size(); }
std::size_t Server::turn(std::size_t budget) {
    return state_->only("take a turn").turn(*state_->desks.front(), budget);
}
Status Server::rest(const base::Deadline& deadline) { return state_->only("rest").rest(deadline); }
Status Server::serve(const base::Deadline& deadline) {
    State& state = *state_;
    return state.messages.run([&](message::Server& server, std::size_t thread) {
        return state.messages.serve_one(server, *state.desks[thread], deadline);
    });
}
void Server::stop() noexcept { state_->messages.stop(); }
Status Server::drain(const base::Deadline& deadline) { return state_->messages.drain(deadline); }
Status Server::close(const base::Deadline& deadline) { return state_->messages.close(deadline); }
void Server::adopt() noexcept { state_->messages.adopt(); }
int Server::descriptor() { return state_->only("give a descriptor").descriptor(); }

ServerStats Server::stats() const noexcept {
    ServerStats stats;
    stats.messages = state_->messages.stats();
    for (const auto& desk : state_->desks) {
        stats.late += detail::counted(desk->counts.late);
        stats.overloaded += detail::counted(desk->counts.overloaded);
        stats.unknown += detail::counted(desk->counts.unknown);
        stats.malformed += detail::counted(desk->counts.malformed);
        stats.stale += detail::counted(desk->counts.stale);
    }
    return stats;
}

std::vector<ProcedureReport> Server::procedures() const { return state_->reports(); }

std::string Server::explain() const {
    const State& state = *state_;
    std::string text =
        fmt::format("{}\nrpc server: {} procedures; deferred calls of a client at a time: {}",
                    state.messages.explain(), state.desks.front()->procedures.size(),
                    state.options.max_pending_of_client == 0
                        ? std::string{"as its window"}
                        : std::to_string(state.options.max_pending_of_client));
    for (const auto& one : state.desks.front()->procedures) {
        text += fmt::format("\n  {}{}{}", one->signature.name,
                            one->signature.is_stream ? ", a stream" : "",
                            one->options.max_pending == 0
                                ? std::string{}
                                : fmt::format(", {} deferred at a time", one->options.max_pending));
    }
    return text;
}

}  // namespace millrace::rpc
