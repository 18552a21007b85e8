// How a client joins a server, and goes on with its session where the channel broke.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "channel/setup.hpp"
#include "client/client_state.hpp"
#include "lane/lanes.hpp"
#include "millrace/base/log.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;

namespace {

/// Another transport may do what one could not, which failed with this. (If not even that, it
/// fails, too.)
[[nodiscard]] bool may_be_of_transport(base::ErrorCode code) noexcept {
    switch (code) {
        case base::ErrorCode::refused:
        case base::ErrorCode::not_found:
        case base::ErrorCode::unsupported:
        case base::ErrorCode::resource_exhausted:
        case base::ErrorCode::permission:
        case base::ErrorCode::verbs: return true;
        default: return false;
    }
}

/// The same for another transport, without what means nothing there.
[[nodiscard]] ClientOptions options_by(connect::Transport transport, ClientOptions options) {
    options.transport = transport;
    if (has_no_rings(transport)) {
        options.requests = options.answers = Transfer::write;
        options.tuning.carrier = ring::Carrier::automatic;
    }
    return options;
}

}  // namespace

Client Client::connect(const connect::Address& address, ClientOptions options,
                       const Deadline& deadline) {
    if (options.window == 0 || options.window > largest_window) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a message client",
                          fmt::format("a window of {} requests", options.window),
                          fmt::format("it is from 1 to {}", largest_window),
                          "use the default of 64"};
    }
    const auto join = [&](const ClientOptions& chosen) {
        auto state = std::make_unique<State>(address, chosen);
        state->connect(deadline);
        return Client{std::move(state)};
    };
    const std::optional<connect::Transport> fallback = std::exchange(options.fallback, {});
    if (!fallback.has_value() || *fallback == options.transport) return join(options);
    std::exception_ptr first;
    std::string why;
    try {
        return join(options);
    } catch (const base::Error& error) {
        if (!may_be_of_transport(error.code())) throw;
        first = std::current_exception();
        why = error.what();
    }
    try {
        Client client = join(options_by(*fallback, options));
        base::log(base::LogLevel::warn, "message", "{}: by {} in place of {}: {}",
                  address.to_string(), name_of(*fallback), name_of(options.transport), why);
        client.state_->instead_of = options.transport;
        client.state_->why_instead = std::move(why);
        return client;
    } catch (const base::Error&) {
        std::rethrow_exception(first);
    }
}

ChannelOptions Client::State::channel_options() const {
    ChannelOptions channel;
    channel.ring_bytes = options.ring_bytes;
    channel.max_peer_ring_bytes = largest_server_ring;
    channel.wait = options.wait;
    channel.endpoint = options.endpoint;
    channel.carrier = options.tuning.carrier;
    channel.posting = options.tuning.posting;
    channel.admission = options.admission;
    return channel;
}

void Client::State::connect(const Deadline& deadline) {
    check_transport(options);
    if (options.endpoint == nullptr && options.transport != connect::Transport::tcp) {
        options.endpoint = connect::Endpoint::shared();
    }
    const ChannelOptions channel = channel_options();
    message::check(channel);
    check_slots("make a message client", options.tuning.slot_bytes);
    connect::LinkOptions link =
        link_options(channel, {std::string{options.tuning.service}, server_service.version});
    link.protocol = options.protocol;
    link.transport = options.transport;
    // Nobody else knows the session.
    if (options.resumes && !session.is_none()) link.listener = welcomed.server;
    if (has_no_rings(options)) {
        line = AnyLane{connect_network_lane(server, link, options, deadline)};
    } else {
        if (options.answers == Transfer::send) {
            link.max_receive_requests = receives_for(options.ring_bytes, options.tuning.slot_bytes);
        }
        line = AnyLane{std::make_unique<RingLane>(
            set_up(connect::connect(server, link, deadline), channel, deadline,
                   {.sends = options.requests,
                    .receives = options.answers,
                    .slot_bytes = options.tuning.slot_bytes,
                    .begins_anywhere = true}),
            options.max_answer_bytes + session_head_bytes)};
    }
    take_welcome(join(deadline));
}

Welcome Client::State::join(const Deadline& deadline) {
    const Hello hello{.session = options.resumes ? session : SessionName{},
                      .window = options.window,
                      .resumes = options.resumes,
                      .next_id = calls.next(),
                      .max_answer = options.max_answer_bytes,
                      .reads_large = options.tuning.large.allowed && ring() != nullptr,
                      .batches = ring() != nullptr};
    (void)line->send(pack(SessionHeader{.kind = SessionKind::hello}), pack(hello));
    std::span<const std::byte> message;
    Status status = Status::empty;
    const auto has_heard = [&] {
        (void)line->flush();
        status = line->look(message);
        return status != Status::empty;
    };
    const Status waited = line->wait(has_heard, deadline, options.wait);
    const auto refuse = [&](base::ErrorCode code, std::string why, std::string remedy) {
        throw base::Error{code, "join a message server", server.to_string(), std::move(why),
                          std::move(remedy)};
    };
    if (waited == Status::timed_out) {
        refuse(base::ErrorCode::timed_out, "the server did not answer in time",
               "does its thread call turn() or serve()?");
    }
    if (waited != Status::ok) refuse(base::ErrorCode::cancelled, "the wait was cancelled", "");
    if (status != Status::ok) {
        refuse(base::ErrorCode::peer_lost,
               fmt::format("the connection ended before the server's answer ({})", name_of(status)),
               "what does the server's log say?");
    }
    SessionHeader header;
    std::span<const std::byte> payload;
    const bool is_word = parse(message, header, payload);
    if (is_word && header.kind == SessionKind::refused) {
        why_failed.assign(reinterpret_cast<const char*>(payload.data()),
                          std::min<std::size_t>(payload.size(), 200));
        refuse(base::ErrorCode::refused, why_failed, "try again later, or another server");
    }
    const std::optional<Welcome> welcome =
        is_word && header.kind == SessionKind::welcome ? parse_welcome(payload) : std::nullopt;
    // Nothing is kept for a session that was not to be resumed.
    if (!welcome.has_value() || (welcome->resumed && !options.resumes)) {
        refuse(base::ErrorCode::protocol, "its first word is none that a message server says",
               "use the same build of millrace on both sides");
    }
    line->pass();
    return *welcome;
}

bool ClientAnswers::take_other(std::span<const std::byte> message) {
    SessionHeader header;
    std::span<const std::byte> payload;
    if (!parse(message, header, payload)) return false;
    if (header.kind == SessionKind::answer) return is_of_before(header);
    return header.kind == SessionKind::answer_by_read && take_announcement(header, payload);
}

bool ClientAnswers::take_announcement(const SessionHeader& header,
                                      std::span<const std::byte> payload) {
    const std::optional<Announcement> from = line->announced(payload);
    if (!from.has_value() || from->length > options.max_answer_bytes) return false;
    const bool was_answered = is_of_before(header);
    if (!was_answered && !calls.is_open(header.id)) return false;
    const Call its = calls.of(header.id);
    if (was_answered || its != Call::wanted || line->is_fetching(header.id)) {
        if (!was_answered && its == Call::unwanted) {
            ++counts.unwanted;
            calls.settle(header.id);
        }
        return ring()->decline();
    }
    ++counts.large;
    return ring()->fetch(header, *from);
}

void Client::State::take_welcome(const Welcome& welcome) {
    welcomed = welcome;
    const bool has_rings = ring() != nullptr;
    ended = Status::ok;
    why_failed.clear();
    max_request = welcome.max_request;
    if (!has_rings) {
        max_request =
            std::min<std::uint64_t>(max_request, NetworkLane::largest_message - session_head_bytes);
    }
    if (welcome.reads_large && options.tuning.large.allowed && has_rings) {
        ring()->agree(options.tuning.large, RingLane::Excess::in_pieces);
    }
    awaits_in_ring = has_rings && options.answers == Transfer::write;
    turns.begin(has_rings);
    note_batches(welcome.batches && has_rings);
    // Requests by SEND are found by their completions.
    byte.reset(welcome.polling == Polling::dense && options.requests == Transfer::write &&
               has_rings);
    if (byte.exists()) byte.find(*ring(), welcomed);
    const bool is_first = session.is_none();
    session = welcome.session;
    calls.limit(std::min(welcome.window, options.window));
    if (is_first) {
        make_window();
    } else if (!welcome.resumed) {
        lose_session();
    } else {
        ++counts.resumed;
        send_again();
    }
}

bool Client::State::resumes(const Deadline& deadline, Status& status) {
    try {
        status = connect_again(deadline);
        return status == Status::ok;
    } catch (const base::Error& error) {
        why_failed = error.what();
        status = Status::peer_lost;
        return false;
    }
}

Status Client::State::connect_again(const Deadline& deadline) {
    if (is_closed) return Status::closed;
    if (is_copy) return ended;
    if (ended == Status::ok) return Status::ok;
    const base::SoleCall call{use, "reconnect a message client", server.to_string()};
    try {
        drop_batch();
        end_reading();
        line.reset();
        connect(deadline);
        return Status::ok;
    } catch (const base::Error& error) {
        ended = Status::peer_lost;
        if (error.code() == base::ErrorCode::timed_out) return Status::timed_out;
        if (error.code() == base::ErrorCode::cancelled) return Status::cancelled;
        throw;
    }
}

std::string Client::explain() const {
    const State& client = *state_;
    const bool is_by_rc = !has_no_rings(client.options.transport);
    std::string text = fmt::format(
        "{}\n", client.line.has_value() ? client.line->explain() : std::string{"not connected"});
    const bool is_shared = client.options.requests == Transfer::shared;
    if (is_by_rc) {
        text += fmt::format("requests by {}, answers by {}, as the program chose\n",
                            name_of(client.options.requests),
                            name_of(is_shared ? Transfer::send : client.options.answers));
    } else {
        text += fmt::format("requests and answers by {}, as the program chose\n",
                            name_of(client.options.transport));
    }
    if (client.instead_of.has_value()) {
        text += fmt::format("{} in place of {}, as the program allows: {}\n",
                            name_of(client.options.transport), name_of(*client.instead_of),
                            client.why_instead);
    }
    text += fmt::format(
        "message client: place {} (generation {}), {} requests at a time of up to {} bytes, {}",
        client.welcomed.client, client.welcomed.generation, client.calls.most(), client.max_request,
        client.options.resumes ? "in a session that outlives its channel"
                               : "in a session that ends with its channel");
    if (!is_by_rc || is_shared) return text;
    if (client.ring() != nullptr) text += '\n' + client.ring()->explain_large();
    text += fmt::format("\nbatches: {}",
                        client.takes_batches
                            ? "several requests, or answers, go in one message"
                            : "each request in a message of its own, as the server knows no other");
    text +=
        fmt::format("\nserver's polling: {}{}", name_of(client.welcomed.polling),
                    client.options.requests == Transfer::send ? ", which completions stand in for"
                    : !client.byte.exists()                   ? ""
                    : client.byte.is_stored()                 ? ", whose byte is stored to"
                                              : ", whose byte is one more WRITE for each request");
    return text;
}

}  // namespace millrace::message
