// The public calls of Server.
#include "millrace/message/server.hpp"

#include <chrono>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "protection.hpp"
#include "server/state.hpp"

namespace millrace::message {

using base::Status;

Server::Server(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

const connect::Address& Server::address() const noexcept { return state_->clients.address(); }

void Server::threw(Request& request, std::string_view why) noexcept {
    ++detail::RequestAccess::server_of(request).counts.failed;
    try {
        (void)request.fail(why);
    } catch (const std::exception&) {
        // No memory for the text: serve() finds the request unanswered.
    }
}

void Server::decline(Request& request) {
    State& server = detail::RequestAccess::server_of(request);
    server.answering.decline(detail::RequestAccess::peer_of(request), request.id());
}

void Server::drop(Request& request) {
    State& server = detail::RequestAccess::server_of(request);
    (void)server.answering.answer(detail::RequestAccess::peer_of(request), request.id(),
                                  Outcome::dropped, {});
}

std::size_t Server::turn_by(detail::HandlerRef handler, std::size_t budget) {
    state_->check_process("turn a message server");
    return state_->turn(handler, budget);
}

Status Server::serve_by(detail::HandlerRef handler, const base::Deadline& deadline) {
    state_->check_process("serve");
    constexpr unsigned turns_between = 63;
    state_->check_thread("serve the clients of a message server");
    for (unsigned turns = 0;; ++turns) {
        if (state_->take_stop()) return Status::closed;
        const bool was_busy = state_->turn(handler, std::size_t{1024}) != 0;
        // A rest looks at the deadline itself.
        if ((turns & turns_between) == 0) {
            if (deadline.cancelled()) return Status::cancelled;
            if (deadline.expired()) return Status::timed_out;
        }
        if (was_busy) continue;
        const Status status = state_->rest.rest(deadline);
        if (status != Status::ok) return status;
    }
}

Status Server::rest(const base::Deadline& deadline) {
    state_->check_process("rest in a message server");
    state_->check_thread("rest in a message server");
    return state_->rest.rest(deadline);
}

void Server::stop() noexcept {
    state_->stopping.store(true, std::memory_order_seq_cst);
    state_->hub.stop();
}

void Server::on_unwanted(std::function<void(ClientId, std::uint64_t)> call) {
    state_->answering.on_unwanted(std::move(call));
}

void Server::serve_beside(int descriptor, std::function<bool()> look) {
    state_->check_thread("serve something beside a message server's clients");
    state_->arrivals.serve_beside(descriptor, std::move(look));
}

void Server::adopt() noexcept { state_->hub.adopt(); }

Status Server::drain(const base::Deadline& deadline) {
    begin_to_drain();
    base::NapParker nap;
    return base::wait_until([this] { return turn_to_drain(); }, deadline, state_->options.wait,
                            nap);
}

void Server::check_thread(const char* attempted) const { state_->check_thread(attempted); }

void Server::begin_to_drain() {
    State& server = *state_;
    server.check_thread("drain a message server");
    server.is_draining = true;
    server.laps_of_drain = 0;
}

bool Server::turn_to_drain() {
    State& server = *state_;
    server.check_process("drain a message server");
    const auto nobody = [](Request&) {};
    const detail::HandlerRef handler = erase(nobody);
    // Whoever calls this may sleep before the next time, and shall where others have to do more.
    for (int laps = 64; laps != 0; --laps) {
        const std::uint64_t before = server.laps_of_drain;
        if (server.drain_by_a_lap(handler)) return true;
        if (server.laps_of_drain == before) break;
    }
    return false;
}

Status Server::close(const base::Deadline& deadline) {
    const Status status = drain(deadline);
    if (status != Status::ok) return status;
    base::NapParker nap;  // nobody tells when a client has all
    return base::wait_until([this] { return state_->clients.try_close_all(); }, deadline,
                            state_->options.wait, nap);
}

int Server::descriptor() {
    State& server = *state_;
    const int descriptor = server.hub.descriptor();
    server.rest.nest();
    return descriptor;
}

void Server::State::check_thread(const char* attempted) const {
    if (hub.is_current()) return;
    throw base::Error{base::ErrorCode::invalid_argument, attempted, clients.address().to_string(),
                      "it belongs to another thread", "call adopt() in the thread that serves"};
}

bool Server::State::take_stop() noexcept {
    if (!stopping.load(std::memory_order_acquire)) return false;
    stopping.store(false, std::memory_order_relaxed);
    return true;
}

ServerStats Server::stats() const noexcept {
    if (!state_->hub.is_current()) return state_->shown();
    state_->show();
    return state_->counts;
}

namespace {

[[nodiscard]] std::string requests_by_send(const ServerOptions& options) {
    if (!options.tuning.requests_by_send)
        return "requests by SEND are refused, as the program chose";
    const std::size_t slot = std::min(options.tuning.slot_bytes, options.ring_bytes);
    if (options.tuning.receives == Receives::own) {
        return fmt::format(
            "requests by SEND, of clients that choose it: into receives of each client's own, {} "
            "of {} bytes",
            receives_for(options.ring_bytes, slot), slot);
    }
    return fmt::format(
        "requests by SEND, of clients that choose it: into {} receives of {} bytes that all share, "
        "as the program trusts its clients: one that sends more than its credits leaves the others "
        "without; completions say who has written",
        options.tuning.shared_receives, slot);
}

}  // namespace

std::string Server::explain() const {
    const State& server = *state_;
    const bool is_shared = server.options.polling == Polling::shared;
    const bool by_rings = server.options.transports.has(connect::Transport::rc) && !is_shared;
    const bool dense = server.turns.mailboxes().polling() == Polling::dense;
    std::string text = fmt::format(
        "message server at {}: {} of {} clients, by {}\npolling: {}, because {}; {}\n",
        server.clients.address().to_string(), server.counts.clients, server.options.max_clients,
        server.options.transports.to_string(),
        name_of(is_shared ? Polling::shared : server.turns.mailboxes().polling()),
        server.why_polling,
        dense ? fmt::format("one byte of each client, scanned by {}",
                            name_of(server.options.tuning.scan.value_or(best_scan_kernel())))
              : std::string{"the place of each client's next message"});
    text += server.arrivals.explain();
    if (server.options.transports.has_rdma()) {
        text += explain_protection(server.options, server.turns.mailboxes().polling()) + '\n';
    }
    text += fmt::format(
        "answers of one client wait in up to {} bytes before its requests wait, and for {} ms "
        "before it is dropped; {} requests may be deferred",
        server.options.tuning.max_waiting_bytes,
        std::chrono::duration_cast<std::chrono::milliseconds>(server.options.patience).count(),
        server.options.max_pending);
    if (by_rings) {
        text += fmt::format(
            "\n{}; answers by SEND are {}", requests_by_send(server.options),
            server.options.tuning.answers_by_send ? "allowed" : "refused, as the program chose");
    }
    return text;
}

// --- statistics

namespace {
struct ShownCount {
    base::Figure figure;
    std::uint64_t ServerStats::*count;
};
constexpr auto counter = base::FigureKind::counter;
constexpr auto gauge = base::FigureKind::gauge;
/// On the page in this order.
constexpr ShownCount shown_counts[] = {{{"clients", gauge}, &ServerStats::clients},
                                       {{"away", gauge}, &ServerStats::away},
                                       {{"joined", counter}, &ServerStats::joined},
                                       {{"left", counter}, &ServerStats::left},
                                       {{"resumed", counter}, &ServerStats::resumed},
                                       {{"refused", counter}, &ServerStats::refused},
                                       {{"misbehaved", counter}, &ServerStats::misbehaved},
                                       {{"requests", counter}, &ServerStats::requests},
                                       {{"answers", counter}, &ServerStats::answers},
                                       {{"deferred", counter}, &ServerStats::deferred},
                                       {{"pending", gauge}, &ServerStats::pending},
                                       {{"failed", counter}, &ServerStats::failed},
                                       {{"overloaded", counter}, &ServerStats::overloaded},
                                       {{"repeated", counter}, &ServerStats::repeated},
                                       {{"large", counter}, &ServerStats::large},
                                       {{"kept back", counter}, &ServerStats::kept_back},
                                       {{"vain looks", counter}, &ServerStats::vain_looks},
                                       {{"sleeps", counter}, &ServerStats::sleeps},
                                       {{"put off", counter}, &ServerStats::put_off},
                                       {{"over budget", counter}, &ServerStats::over_budget}};
static_assert(std::size(shown_counts) * sizeof(std::uint64_t) == sizeof(ServerStats));
}  // namespace

std::vector<base::Figure> figures_of_servers() {
    std::vector<base::Figure> all;
    for (const ShownCount& shown : shown_counts) all.push_back(shown.figure);
    return all;
}

ServerStats& ServerStats::operator+=(const ServerStats& other) noexcept {
    for (const auto& [_, count] : shown_counts) this->*count += other.*count;
    return *this;
}

void Server::State::show() noexcept {
    std::size_t index = 0;
    for (const auto& [_, count] : shown_counts) statistics.counter(index++).set(counts.*count);
}

ServerStats Server::State::shown() const noexcept {
    ServerStats stats;
    std::size_t index = 0;
    for (const auto& [_, count] : shown_counts) stats.*count = statistics.counter(index++).value();
    return stats;
}

}  // namespace millrace::message
