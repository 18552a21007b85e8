// Client: requests in a window, answers in any order, and a session that outlives its channel.
#include "millrace/message/client.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "client_access.hpp"
#include "line.hpp"
#include "millrace/base/peer_causality.hpp"
#include "millrace/base/yielding.hpp"
#include "setup.hpp"
#include "wires.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;

struct Client::State {
    enum class Call : std::uint8_t {
        none,
        wanted,    ///< its answer will be handed out
        unwanted,  ///< it was given up, and its answer is still to come
    };
    struct Place {
        Call call = Call::none;
        std::uint16_t procedure = 0;
        std::vector<std::byte> copy{};  ///< only if the session resumes
    };
    /// An answer that came while another one was waited for, or that never will.
    struct Kept {
        std::uint64_t id = 0;
        Outcome outcome = Outcome::ok;
        std::vector<std::byte> payload{};
    };

    State(const connect::Address& its_server, ClientOptions chosen)
        : server{its_server}, options{std::move(chosen)} {
        channel_options.ring_bytes = options.ring_bytes;
        channel_options.max_peer_ring_bytes = options.max_server_ring_bytes;
        channel_options.wait = options.wait;
        channel_options.endpoint = options.endpoint;
        channel_options.carrier = options.carrier;
        channel_options.posting = options.posting;
        channel_options.admission = options.admission;
    }

    [[nodiscard]] Channel::Core& core() noexcept { return line->core(); }
    [[nodiscard]] Place& place(std::uint64_t id) noexcept { return places[id & mask]; }

    // --- sending

    [[gnu::always_inline]] Status may_send(std::size_t size) {
        if (ended != Status::ok) [[unlikely]]
            return ended;
        if (size > max_request) [[unlikely]]
            return Status::too_large;
        if (next_id - lowest >= window || (!line->is_clear() && !flushes())) [[unlikely]] {
            ++counts.full;
            return Status::full;
        }
        return Status::ok;
    }
    [[gnu::noinline]] bool flushes() { return line->flush() == Status::ok; }

    [[nodiscard, gnu::always_inline]] SessionHead head_of(const RequestOptions& said) noexcept {
        return pack(SessionHeader{.id = next_id,
                                  .procedure = said.procedure,
                                  .kind = SessionKind::request,
                                  .behind = static_cast<std::uint16_t>(next_id - lowest),
                                  .limit_us = limit_of(said)});
    }
    [[nodiscard]] static std::uint32_t limit_of(const RequestOptions& said) noexcept {
        if (said.deadline.point() == base::Clock::time_point::max()) return 0;
        constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
        const auto left = std::chrono::ceil<std::chrono::microseconds>(
            said.told_from == base::Clock::time_point::min()
                ? said.deadline.remaining()
                : said.deadline.point() - said.told_from);
        return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 1, most));
    }

    Status submit(std::span<const std::byte> request, std::uint64_t& id,
                  const RequestOptions& said) {
        Status status = may_send(request.size());
        if (status != Status::ok) [[unlikely]]
            return status;
        if (gathers) [[unlikely]]
            begin_batch();
        const SessionHead head = head_of(said);
        status = line->try_send(head, request);
        if (status != Status::ok) [[unlikely]] {
            if (status == Status::too_large) status = line->send(head, request);
            if (status != Status::ok) return not_sent(status);
        }
        note_submitted(request, id, said);
        return Status::ok;
    }
    /// Of a request for which there was a place in the window. It is kept if the server's ring has
    /// no room for it: a claim promises that it can be sent.
    Status submit_claimed(std::span<const std::byte> request, std::uint64_t& id,
                          const RequestOptions& said) {
        const Status status = line->send(head_of(said), request);
        if (status == Status::ok) note_submitted(request, id, said);
        return status;
    }
    void note_submitted(std::span<const std::byte> request, std::uint64_t& id,
                        const RequestOptions& said) {
        if (options.resumes) copy(request, said.procedure);
        id = submitted(request.size());
    }
    [[gnu::noinline]] Status not_sent(Status status) noexcept {
        if (status == Status::full) ++counts.full;
        return status;
    }
    [[gnu::noinline]] void copy(std::span<const std::byte> request, std::uint16_t procedure) {
        Place& its = place(next_id);
        its.procedure = procedure;
        its.copy.assign(request.begin(), request.end());
    }
    [[gnu::always_inline]] std::uint64_t submitted(std::size_t size) noexcept {
        place(next_id).call = Call::wanted;
        ++wanted;
        ++counts.requests;
        counts.bytes_sent += size;
        if (is_dense) hint();
        return next_id++;
    }
    /// Sets our byte at the server, behind what was sent.
    void hint() noexcept {
        if (holds_hints) [[unlikely]] {
            owes_hint = true;
            return;
        }
        if (box != nullptr) [[likely]] {
            base::telling_peers();
            std::atomic_ref<std::uint8_t>{*reinterpret_cast<std::uint8_t*>(box.get())}.store(
                1, std::memory_order_release);
            return;
        }
        const ibv_sge one = hint_source.slice(0, 1);
        owes_hint = core().window.post(
                        verbs::Write{.from = {&one, 1},
                                     .to = mailbox,
                                     .flags = core().max_inline >= 1 ? verbs::SendFlags::inlined
                                                                     : verbs::SendFlags::none},
                        core().signal) == Status::full;
    }
    void send_control(const SessionHeader& header) {
        (void)line->send(pack(header), {});
        if (is_dense) hint();
    }

    // --- receiving

    /// The next answer that is wanted.
    Status look(Answer& answer) {
        if (!kept.empty()) [[unlikely]]
            return look_at_kept(0, answer);
        return look_at_line(answer);
    }
    Status look_at_kept(std::size_t index, Answer& answer) noexcept {
        handed_out = index;
        answer = {kept[index].id, kept[index].outcome, kept[index].payload};
        return Status::ok;
    }
    [[gnu::always_inline]] Status look_at_line(Answer& answer) {
        if (ended != Status::ok) [[unlikely]]
            return ended;
        while (true) {
            std::span<const std::byte> message;
            const Status status = line->look(message);
            if (status != Status::ok) [[unlikely]] {
                if (status == Status::empty) {
                    look_after_line();
                } else if (status == Status::too_large) {
                    fail("the server sent an answer that is too large");
                } else {
                    ended = status;
                }
                return ended != Status::ok ? ended : Status::empty;
            }
            SessionHeader header;
            if (!parse(message, header, answer.payload) || header.kind != SessionKind::answer ||
                header.id - lowest >= next_id - lowest) [[unlikely]] {
                if (is_answer_of_before(header)) {
                    line->pass();
                    continue;
                }
                fail("the server sent what is no answer to any request");
                return ended;
            }
            const Place& its = place(header.id);
            if (its.call == Call::wanted) [[likely]] {
                answer.id = header.id;
                answer.outcome = header.outcome;
                handed_out = in_line;
                return Status::ok;
            }
            if (its.call == Call::unwanted) {
                ++counts.unwanted;
                settle(header.id);
            }
            line->pass();
        }
    }
    /// A request that was sent again may be answered twice.
    [[nodiscard]] bool is_answer_of_before(const SessionHeader& header) const noexcept {
        return header.kind == SessionKind::answer && header.id != 0 && header.id < lowest &&
               counts.resumed != 0;
    }
    /// Requests are laid side by side from here on, and not posted, if that makes a difference.
    [[gnu::noinline]] void begin_batch() noexcept {
        if (is_batching) return;
        core().begin_batch();
        is_batching = holds_hints = core().gathers;
        // A program's loop is to come here once more, and to find nothing.
        if (is_batching && core().readiness != nullptr) core().readiness->wake();
    }
    [[gnu::noinline]] void end_batch() noexcept {
        core().end_batch();
        is_batching = holds_hints = false;
        if (std::exchange(owes_hint, false)) hint();
    }
    void look_after_line() {
        if (is_batching) [[unlikely]]
            end_batch();
        if (!line->is_clear()) [[unlikely]]
            (void)line->flush();
        if (owes_hint) [[unlikely]]
            hint();
    }
    void pass() noexcept {
        ++counts.answers;
        if (handed_out == in_line) [[likely]] {
            settle(last_looked_at());
            --wanted;
            line->pass();
        } else {
            kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(handed_out));
        }
    }
    /// The number of the answer that lies in the line.
    [[nodiscard]] std::uint64_t last_looked_at() const noexcept { return current; }
    void settle(std::uint64_t id) noexcept {
        place(id).call = Call::none;
        while (lowest != next_id && place(lowest).call == Call::none) ++lowest;
    }
    /// Takes what has come out of the ring, for later. False: there was nothing.
    bool keep_one() {
        Answer answer;
        if (look_at_line(answer) != Status::ok) return false;
        kept.push_back({answer.id, answer.outcome, {answer.payload.begin(), answer.payload.end()}});
        settle(answer.id);
        --wanted;
        line->pass();
        return true;
    }
    void fail(std::string why) noexcept {
        why_failed = std::move(why);
        ended = Status::peer_lost;
    }

    bool cancel(std::uint64_t id) {
        const auto found =
            std::find_if(kept.begin(), kept.end(), [&](const Kept& one) { return one.id == id; });
        if (found != kept.end()) {
            kept.erase(found);
            ++counts.unwanted;
            return true;
        }
        if (id - lowest >= next_id - lowest || place(id).call != Call::wanted) return false;
        place(id).call = Call::unwanted;
        --wanted;
        if (ended == Status::ok) send_control({.id = id, .kind = SessionKind::cancel});
        return true;
    }

    // --- waiting

    template <class Ready>
    Status wait(const Deadline& deadline, Ready&& ready) {
        return line->wait(ready, deadline, options.wait);
    }
    /// Waits for what `attempt()` answers, as long as that is `again`. A session that resumes is
    /// resumed meanwhile.
    template <class Attempt>
    Status wait_for(Status again, const Deadline& deadline, Attempt&& attempt) {
        const base::WaitsByPolicy here;
        while (true) {
            Status status = attempt();
            if (status == again) {
                if ((++waits & waits_between) == 0 && options.wait.yield.count() != 0) {
                    end_turn_if_due();
                }
                const Status waited = wait(deadline, [&] {
                    if (!line->is_wire()) {
                        core().waiting_for_room = again == Status::full || !line->is_clear();
                    }
                    status = attempt();
                    return status != again;
                });
                if (waited != Status::ok) return waited;
            }
            if (!may_resume(status) || !resumes(deadline, status)) return status;
        }
    }
    /// Whose answers come within some microseconds never waits for so long that it gives its
    /// processor away. Where many clients share one, the others would wait for the scheduler, each
    /// for all before it: so it is offered behind each `turn`, less often while nobody takes it, in
    /// a moment in which an answer is under way anyhow.
    [[gnu::noinline]] void end_turn_if_due() noexcept {
        static const std::uint64_t turn = base::ticks_in(std::chrono::microseconds{30});
        std::uint64_t now = base::ticks();
        // By ring, waits_between more waits lie between two looks at the clock, each of which may
        // have taken most of a turn.
        const bool was_away = now - turn_seen > 2 * turn * (waits_between + 1);
        if (!was_away && turns.due(now)) {
            turns.offer();
            turns.begin(now = base::ticks(), turn);
        } else if (was_away) {
            turns.begin(now, turn);
        }
        turn_seen = now;
    }
    [[nodiscard]] bool may_resume(Status status) const noexcept {
        return options.resumes && !is_closed &&
               (status == Status::peer_lost || status == Status::closed);
    }
    bool resumes(const Deadline& deadline, Status& status) {
        try {
            status = connect_again(deadline);
            return status == Status::ok;
        } catch (const base::Error& error) {
            why_failed = error.what();
            status = Status::peer_lost;
            return false;
        }
    }

    // --- the session

    void connect(const Deadline& deadline);
    Status connect_again(const Deadline& deadline);
    void take_welcome(const Welcome& welcome);

    connect::Address server;
    ClientOptions options;
    ChannelOptions channel_options;
    std::optional<Line> line;
    bool is_dense = false;
    bool owes_hint = false;
    bool holds_hints = false;             ///< within a batch
    bool gathers = false;                 ///< as options.gathers_requests says, by rings
    bool is_batching = false;             ///< … and some are gathered
    std::shared_ptr<std::byte> box;       ///< our byte at the server, where that is addressable
    verbs::RemoteAddress mailbox{};       ///< where it is not
    verbs::RegisteredBuffer hint_source;  ///< of a WRITE to there

    SessionName session{};
    Welcome welcomed{};
    std::uint64_t next_id = 1;
    std::uint64_t lowest = 1;  ///< everything below is answered
    std::uint32_t window = 0;
    std::uint64_t mask = 0;
    std::uint64_t max_request = 0;
    std::vector<Place> places;
    std::size_t wanted = 0;  ///< places of calls that are
    std::deque<Kept> kept;

    std::uint32_t waits = 0;
    std::uint32_t waits_between = 0;  ///< two looks at the clock: those by wire take longer
    base::Yielding turns{base::yields_of_process()};
    std::uint64_t turn_seen = 0;  ///< ticks

    static constexpr std::size_t in_line = ~std::size_t{0};
    std::size_t handed_out = in_line;  ///< which one of kept, otherwise
    std::uint64_t current = 0;         ///< the number of what was handed out
    std::vector<std::byte> scratch;    ///< a request that is not laid in place
    bool is_in_scratch = false;

    Status ended = Status::ok;
    bool is_closed = false;  ///< by us
    std::string why_failed;
    ClientStats counts;
};

void Client::State::connect(const Deadline& deadline) {
    check_transport(options);
    message::check(channel_options);
    check_slots("make a message client", options.slot_bytes);
    if (channel_options.endpoint == nullptr && options.transport != connect::Transport::tcp) {
        channel_options.endpoint = connect::Endpoint::shared();
    }
    connect::LinkOptions link = link_options(channel_options, server_service);
    link.transport = options.transport;
    // Nobody else knows the session.
    if (options.resumes && !session.is_none()) link.listener = welcomed.server;
    if (is_by_wire(options.transport)) {
        line.emplace(connect_wire(server, link, options, deadline));
    } else {
        if (options.answers == Transfer::send) {
            link.max_receive_requests = receives_for(options.ring_bytes, options.slot_bytes);
        }
        line.emplace(set_up(connect::connect(server, link, deadline), channel_options, deadline,
                            {.sends = options.requests,
                             .receives = options.answers,
                             .slot_bytes = options.slot_bytes}),
                     options.max_answer_bytes + session_head_bytes);
    }
    const Hello hello{.session = options.resumes ? session : SessionName{},
                      .window = options.window,
                      .resumes = options.resumes,
                      .next_id = next_id,
                      .max_answer = options.max_answer_bytes};
    (void)line->send(pack(SessionHeader{.kind = SessionKind::hello}), pack(hello));
    std::span<const std::byte> message;
    Status status = Status::empty;
    const Status waited = wait(deadline, [&] {
        (void)line->flush();
        status = line->look(message);
        return status != Status::empty;
    });
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
    if (!welcome.has_value()) {
        refuse(base::ErrorCode::protocol, "its first word is none that a message server says",
               "use the same build of millrace on both sides");
    }
    line->pass();
    take_welcome(*welcome);
}

void Client::State::take_welcome(const Welcome& welcome) {
    welcomed = welcome;
    ended = Status::ok;
    why_failed.clear();
    max_request = welcome.max_request;
    if (line->is_wire()) {
        max_request =
            std::min<std::uint64_t>(max_request, Wire::largest_message - session_head_bytes);
    }
    // Requests by SEND are found otherwise.
    is_dense = welcome.polling == Polling::dense && options.requests == Transfer::write &&
               !line->is_wire();
    owes_hint = holds_hints = is_batching = false;
    waits_between = line->is_wire() ? 0 : 7;
    gathers = options.gathers_requests && !line->is_wire() && options.requests == Transfer::write;
    box = nullptr;
    if (is_dense) {
        mailbox = {welcome.mailbox, welcome.mailbox_rkey};
        // Words are what can be addressed.
        const std::uint64_t within = mailbox.address % sizeof(std::uint64_t);
        const std::shared_ptr<std::byte> word =
            core().carrier.map({mailbox.address - within, mailbox.rkey}, sizeof(std::uint64_t));
        if (word != nullptr) {
            box = {word, word.get() + within};
        } else {
            hint_source = core().link.protection_domain().allocate(sizeof(std::uint64_t),
                                                                   verbs::Access::none);
            *hint_source.data() = std::byte{1};
        }
    }
    const bool is_first = session.is_none();
    session = welcome.session;
    window = std::min(welcome.window, options.window);
    if (is_first) {
        places.resize(std::bit_ceil(std::size_t{options.window}));
        mask = places.size() - 1;
    } else if (!welcome.resumed) {
        // Whether the former server executed them, nobody knows any more.
        for (; lowest != next_id; ++lowest) {
            Place& its = place(lowest);
            if (its.call == Call::wanted) kept.push_back({lowest, Outcome::session_lost, {}});
            its.call = Call::none;
        }
        wanted = 0;
    } else {
        ++counts.resumed;
        for (std::uint64_t id = lowest; id != next_id; ++id) {
            const Place& its = place(id);
            if (its.call == Call::none) continue;
            ++counts.repeated;
            const SessionHeader header{.id = id,
                                       .procedure = its.procedure,
                                       .kind = SessionKind::request,
                                       .behind = static_cast<std::uint16_t>(id - lowest)};
            (void)line->send(pack(header), its.copy);
        }
        if (is_dense) hint();
    }
}

Status Client::State::connect_again(const Deadline& deadline) {
    if (is_closed) return Status::closed;
    if (ended == Status::ok) return Status::ok;
    try {
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

// --- Client

Client::Client(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Client Client::connect(const connect::Address& address, ClientOptions options,
                       const Deadline& deadline) {
    if (options.window == 0 || options.window > largest_window) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a message client",
                          fmt::format("a window of {} requests", options.window),
                          fmt::format("it is from 1 to {}", largest_window),
                          "use the default of 64"};
    }
    auto state = std::make_unique<State>(address, std::move(options));
    state->connect(deadline);
    return Client{std::move(state)};
}

Status Client::submit(std::span<const std::byte> request, std::uint64_t& id,
                      const RequestOptions& options) {
    return state_->submit(request, id, options);
}

Status Client::claim(std::size_t size, std::span<std::byte>& room) {
    State& client = *state_;
    Status status = client.may_send(size);
    if (status != Status::ok) return status;
    if (client.gathers) [[unlikely]]
        client.begin_batch();
    client.is_in_scratch = client.options.resumes;
    if (!client.is_in_scratch) {
        status = client.line->claim(session_head_bytes + size, room);
        if (status == Status::ok) [[likely]] {
            room = room.subspan(session_head_bytes);
            return status;
        }
        if (status != Status::too_large) return client.not_sent(status);
        client.is_in_scratch = true;
    }
    client.scratch.resize(size);
    room = client.scratch;
    return Status::ok;
}

Status Client::claim(std::size_t size, std::span<std::byte>& room, const Deadline& deadline) {
    return state_->wait_for(Status::full, deadline, [&] {
        const Status status = claim(size, room);
        // Answers are what makes room in a window; and what came before the end is behind none.
        if (status == Status::full || status == Status::closed || status == Status::peer_lost) {
            while (state_->keep_one()) {
            }
            if (state_->ended != Status::ok) return state_->ended;
        }
        return status;
    });
}

Status Client::commit(std::size_t size, std::uint64_t& id, const RequestOptions& options) {
    State& client = *state_;
    if (client.is_in_scratch) {
        return client.submit_claimed(std::span{client.scratch}.first(size), id, options);
    }
    std::span<std::byte> room;
    (void)client.line->claim(session_head_bytes + size, room);
    const SessionHead head = client.head_of(options);
    std::memcpy(room.data(), &head, sizeof head);
    const Status status = client.line->commit(session_head_bytes + size);
    if (status == Status::ok) [[likely]]
        id = client.submitted(size);
    return status;
}

Status Client::look(Answer& answer) {
    const Status status = state_->look(answer);
    state_->current = answer.id;
    if (status == Status::ok) state_->counts.bytes_received += answer.payload.size();
    return status;
}

Status Client::look(Answer& answer, const Deadline& deadline) {
    Status status = look(answer);
    if (status != Status::empty && !state_->may_resume(status)) return status;
    if (outstanding() == 0) {
        // There is no answer to wait for, but the session goes on.
        if (status == Status::empty || !state_->resumes(deadline, status)) return status;
        return Status::empty;
    }
    return state_->wait_for(Status::empty, deadline, [&] { return look(answer); });
}

Status Client::look_for(std::uint64_t id, Answer& answer, const Deadline& deadline) {
    State& client = *state_;
    const Status status = client.wait_for(Status::empty, deadline, [&] {
        while (true) {
            const Status found = client.look_at_line(answer);
            if (found != Status::ok) [[unlikely]] {
                // What a new session has to say of it.
                for (std::size_t i = 0; i < client.kept.size(); ++i) {
                    if (client.kept[i].id == id) return client.look_at_kept(i, answer);
                }
                return found;
            }
            if (answer.id == id) [[likely]]
                return found;
            (void)client.keep_one();
        }
    });
    client.current = id;
    if (status == Status::ok) [[likely]] {
        client.counts.bytes_received += answer.payload.size();
    } else {
        (void)client.cancel(id);
    }
    return status;
}

void Client::pass() noexcept { state_->pass(); }

bool Client::cancel(std::uint64_t id) { return state_->cancel(id); }

std::size_t Client::outstanding() const noexcept { return state_->wanted + state_->kept.size(); }

std::uint32_t Client::window() const noexcept { return state_->window; }

Status Client::reconnect(const Deadline& deadline) { return state_->connect_again(deadline); }

Status Client::close(const Deadline& deadline) {
    State& client = *state_;
    client.is_closed = true;
    if (client.ended != Status::ok) return client.ended;
    if (client.is_batching) client.end_batch();
    client.ended = Status::closed;
    const Status status = client.line->close(deadline, client.why_failed);
    client.line.reset();
    return status;
}

connect::Link& Client::link() {
    if (!state_->line.has_value()) {
        throw base::Error{base::ErrorCode::closed, "look at the connection of a message client",
                          state_->server.to_string(), "it is not connected", "reconnect() first"};
    }
    return state_->line->link();
}

int Client::descriptor() {
    (void)link();
    return state_->line->descriptor(state_->options.wait);
}

ClientStats Client::stats() const noexcept { return state_->counts; }

std::string Client::failure() const {
    const State& client = *state_;
    if (!client.why_failed.empty() || !client.line.has_value()) return client.why_failed;
    return client.line->failure();
}

std::string Client::explain() const {
    const State& client = *state_;
    const bool is_by_rc = !is_by_wire(client.options.transport);
    std::string text = fmt::format(
        "{}\n", client.line.has_value() ? client.line->explain() : std::string{"not connected"});
    if (is_by_rc) {
        text += fmt::format("requests by {}, answers by {}, as the program chose\n",
                            name_of(client.options.requests), name_of(client.options.answers));
    } else {
        text += fmt::format("requests and answers by {}, as the program chose\n",
                            name_of(client.options.transport));
    }
    text += fmt::format(
        "message client: place {} (generation {}), {} requests at a time of up to {} bytes, {}",
        client.welcomed.client, client.welcomed.generation, client.window, client.max_request,
        client.options.resumes ? "in a session that outlives its channel"
                               : "in a session that ends with its channel");
    if (!is_by_rc) return text;
    text +=
        fmt::format("\nserver's polling: {}{}", name_of(client.welcomed.polling),
                    client.options.requests == Transfer::send ? ", which completions stand in for"
                    : !client.is_dense                        ? ""
                    : client.box != nullptr                   ? ", whose byte is stored to"
                                            : ", whose byte is one more WRITE for each request");
    return text;
}

// --- for the rest of this folder

Channel::Core& detail::ClientAccess::core(Client& client) noexcept { return client.state_->core(); }

bool detail::ClientAccess::window_is_full(const Client& client) noexcept {
    return client.state_->next_id - client.state_->lowest >= client.state_->window;
}

bool detail::ClientAccess::holds_messages(const Client& client) noexcept {
    return !client.state_->line->is_clear();
}

void detail::ClientAccess::begin_batch(Client& client) noexcept {
    Client::State& state = *client.state_;
    state.core().begin_batch();
    state.holds_hints = true;
}

void detail::ClientAccess::end_batch(Client& client) noexcept { client.state_->end_batch(); }

}  // namespace millrace::message
