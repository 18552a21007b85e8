// The state of a client: requests in a window, answers in any order, and how it waits for them.
// Used by client.cpp (the public calls) and client_session.cpp (a session that outlives its
// channel).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "lane/any_lane.hpp"
#include "millrace/base/forks.hpp"
#include "millrace/base/peer_causality.hpp"
#include "millrace/base/sole_use.hpp"
#include "millrace/base/yielding.hpp"
#include "millrace/message/client.hpp"

namespace millrace::message {

struct Client::State {
    using Call = detail::CallState;
    /// A request, to be sent again if the session is resumed.
    struct Place {
        std::uint16_t procedure = 0;
        std::vector<std::byte> copy{};
    };
    /// How long a request is waited for, and from when on its server counts that (RequestOptions).
    struct Limit {
        base::Clock::time_point point = base::Clock::time_point::max();
        base::Clock::time_point told_from = base::Clock::time_point::min();
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

    /// Null: the session goes by packets, or a socket.
    [[nodiscard]] RingLane* ring() const noexcept { return line.ring(); }
    [[nodiscard]] Call& call_of(std::uint64_t id) noexcept { return calls[id & mask]; }
    [[nodiscard]] Place& place(std::uint64_t id) noexcept { return places[id & mask]; }

    // --- sending

    [[gnu::always_inline]] base::Status may_send(std::size_t size) {
        if (ended != base::Status::ok) [[unlikely]]
            return ended;
        if (size > max_request) [[unlikely]]
            return base::Status::too_large;
        if (next_id - lowest >= window || (!line.is_clear() && !flushes())) [[unlikely]]
            return not_sent(base::Status::full, size);
        return base::Status::ok;
    }
    [[gnu::noinline]] bool flushes() { return line->flush() == base::Status::ok; }

    [[nodiscard, gnu::always_inline]] SessionHead head_of(const RequestOptions& said) noexcept {
        return pack(SessionHeader{.id = next_id,
                                  .procedure = said.procedure,
                                  .kind = SessionKind::request,
                                  .behind = static_cast<std::uint16_t>(next_id - lowest),
                                  .limit_us = limit_of(said)});
    }
    [[nodiscard]] static std::uint32_t limit_of(const RequestOptions& said) noexcept {
        return limit_of(Limit{said.deadline.point(), said.told_from});
    }
    [[nodiscard]] static std::uint32_t limit_of(const Limit& limit) noexcept {
        if (limit.point == base::Clock::time_point::max()) return 0;
        const base::Clock::time_point from = limit.told_from == base::Clock::time_point::min()
                                                 ? base::Clock::now()
                                                 : limit.told_from;
        if (limit.point <= from) return 1;
        constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
        const auto left = std::chrono::ceil<std::chrono::microseconds>(limit.point - from);
        return static_cast<std::uint32_t>(std::min<std::int64_t>(left.count(), most));
    }

    [[gnu::noinline]] base::Status submit(std::span<const std::byte> request, std::uint64_t& id,
                                          const RequestOptions& said) {
        if (ended != base::Status::ok || request.size() > max_request ||
            next_id - lowest >= window || ring() == nullptr ||
            ring()->try_send(head_of(said), request) != base::Status::ok) [[unlikely]]
            return submit_otherwise(request, id, said);
        note_submitted(request, id, said);
        return base::Status::ok;
    }
    /// The same of a short one in a batch that is open, which calls nobody.
    [[gnu::noinline]] base::Status submit_quickly(std::span<const std::byte> request,
                                                  std::uint64_t& id, const RequestOptions& said) {
        const std::uint64_t number = next_id;
        if (!requests.takes_quickly(request.size()) || ended != base::Status::ok ||
            number - lowest >= window || said.deadline.point() != base::Clock::time_point::max())
            [[unlikely]] {
            return lays_batches ? submit_in_batch(request, id, said)
                                : submit_otherwise(request, id, said);
        }
        next_id = number + 1;
        id = number;
        call_of(number) = Call::wanted;
        ++wanted;
        counts.bytes_sent += request.size();
        requests.lay({.length = static_cast<std::uint16_t>(request.size()), .what = said.procedure},
                     request.data());
        if (requests.count() == most_in_batch) [[unlikely]]
            return send_full_batch();
        return base::Status::ok;
    }
    [[gnu::noinline]] base::Status send_full_batch() noexcept {
        send_batch();
        return base::Status::ok;
    }
    [[gnu::noinline]] base::Status submit_in_batch(std::span<const std::byte> request,
                                                   std::uint64_t& id, const RequestOptions& said) {
        base::Status status = may_send(request.size());
        if (status != base::Status::ok) return status;
        std::byte* const place = place_in_batch(request.size(), status);
        if (place == nullptr) {
            return status == base::Status::too_large ? submit_otherwise(request, id, said)
                                                     : not_sent(status, request.size());
        }
        copy_any(place, request.data(), request.size());
        if (options.resumes) [[unlikely]]
            copy(request, said);
        id = add_to_batch(request.size(), said);
        return base::Status::ok;
    }
    [[gnu::noinline]] base::Status submit_otherwise(std::span<const std::byte> request,
                                                    std::uint64_t& id, const RequestOptions& said) {
        base::Status status = may_send(request.size());
        if (status != base::Status::ok) return status;
        if (gathers) begin_batch();
        const SessionHead head = head_of(said);
        status = line->try_send(head, request);
        if (status == base::Status::too_large) status = send_long(head, request);
        if (status != base::Status::ok) return not_sent(status, request.size());
        note_submitted(request, id, said);
        return base::Status::ok;
    }
    // --- several requests in one message

    /// Where the next request of `size` bytes goes; null: `status` says why, `too_large`: it is to
    /// go by itself, behind what was laid, which is sent.
    [[gnu::always_inline]] std::byte* place_in_batch(std::size_t size, base::Status& status) {
        std::byte* const place = requests.place_for(size);
        if (place != nullptr) [[likely]]
            return place;
        return place_in_next_batch(size, status);
    }
    [[gnu::noinline]] std::byte* place_in_next_batch(std::size_t size, base::Status& status) {
        if (requests.is_open()) send_batch();
        status = base::Status::too_large;
        if (size > longest_entry) return nullptr;
        std::span<std::byte> room;
        status = ring()->claim_batch(batch_bytes(size), room);
        if (status != base::Status::ok) return nullptr;
        requests.open(room, next_id,
                      options.resumes ? std::nullopt
                                      : std::optional<std::size_t>{
                                            std::min<std::uint64_t>(max_request, longest_short)});
        // What one call lays and sends is never left for a look to send.
        if (begins_batches) is_batching = true;
        // Room was found, and nothing else may look for some meanwhile.
        ring()->note_room();
        return requests.place_for(size);
    }
    /// The payload lies there.
    [[gnu::always_inline]] std::uint64_t add_to_batch(std::size_t size,
                                                      const RequestOptions& said) {
        requests.add({.length = static_cast<std::uint16_t>(size),
                      .what = said.procedure,
                      .number = limit_of(said)});
        call_of(next_id) = Call::wanted;
        ++wanted;
        counts.bytes_sent += size;
        if (requests.count() == most_in_batch) [[unlikely]]
            send_batch();
        return next_id++;
    }
    /// Room for the first of up to `count` requests, of up to `size` bytes each.
    base::Status claim_several(std::size_t count, std::size_t size, const RequestOptions& said,
                               detail::RequestRoom& room) {
        base::Status status = may_send(size);
        if (status != base::Status::ok) return status;
        room = {.first = next_id};
        if (!takes_batches || options.resumes) return base::Status::ok;
        std::byte* const place = place_in_batch(size, status);
        if (place == nullptr) {
            return status == base::Status::too_large ? base::Status::ok : not_sent(status, size);
        }
        const std::size_t open = window - (next_id - lowest);
        room.at = place - entry_head_bytes;
        room.count = requests.fits(
            size, std::min({count, open, std::size_t{most_in_batch} - requests.count()}));
        room.head = EntryHead{.what = said.procedure, .number = limit_of(said)}.word();
        return base::Status::ok;
    }
    /// So many of them lie there, up to `end`.
    [[gnu::noinline]] void commit_several(std::byte* end, std::size_t count,
                                          std::size_t bytes) noexcept {
        const std::size_t begin = next_id & mask;
        const std::size_t to_the_end = std::min(count, calls.size() - begin);
        std::fill_n(calls.data() + begin, to_the_end, Call::wanted);
        if (count != to_the_end) std::fill_n(calls.data(), count - to_the_end, Call::wanted);
        next_id += count;
        wanted += count;
        counts.bytes_sent += bytes;
        requests.add_several(end, count);
        if (requests.count() == most_in_batch) send_batch();
    }
    /// What one call has laid goes, or stays in the batch that was begun before.
    void send_several() noexcept {
        if (begins_batches) return;
        if (is_batching) [[unlikely]]
            return end_batch();
        send_batch();
    }
    /// What was laid so far goes.
    [[gnu::noinline]] void send_batch() noexcept {
        if (!requests.is_open()) return;
        if (requests.is_empty()) return requests.drop();
        const std::uint64_t first = requests.first();
        const std::size_t size =
            requests.close({.id = first,
                            .procedure = static_cast<std::uint16_t>(requests.count()),
                            .kind = SessionKind::request_batch,
                            .behind = static_cast<std::uint16_t>(first - lowest),
                            .limit_us = ring()->say_position()});
        ++counts.batches;
        // That the connection has ended is found by the next look.
        (void)ring()->commit_batch(size);
        if (is_dense) hint();
    }

    /// Of a request for which there was a place in the window. It is kept if the server's ring has
    /// no room for it: a claim promises that it can be sent.
    base::Status submit_claimed(std::span<const std::byte> request, std::uint64_t& id,
                                const RequestOptions& said) {
        const base::Status status = send_long(head_of(said), request);
        if (status == base::Status::ok) note_submitted(request, id, said);
        return status;
    }
    base::Status send_long(const SessionHead& head, std::span<const std::byte> request) {
        const base::Status status = line->send(head, request);
        counts.large += line->count_announced();
        return status;
    }
    void note_submitted(std::span<const std::byte> request, std::uint64_t& id,
                        const RequestOptions& said) {
        if (options.resumes) copy(request, said);
        id = submitted(request.size());
    }
    /// Of a request of so many bytes.
    [[gnu::noinline]] base::Status not_sent(base::Status status, std::size_t size) noexcept {
        if (status != base::Status::full) return status;
        ++counts.full;
        refused_id = next_id;
        refused_bytes = size;
        return status;
    }
    /// The last request found no room.
    [[nodiscard]] bool wants_room() const noexcept { return refused_id == next_id; }
    /// `full`: it would not yet.
    base::Status look_for_room() {
        if (ended != base::Status::ok) return ended;
        if (next_id - lowest >= window || (!line.is_clear() && !flushes())) {
            return base::Status::full;
        }
        std::span<std::byte> place;
        base::Status status = base::Status::too_large;
        if (takes_batches && refused_bytes <= longest_entry) {
            status = ring()->claim_batch(batch_bytes(refused_bytes), place);
        }
        if (status == base::Status::too_large) {
            status = line.claim(session_head_bytes + refused_bytes, place);
        }
        // What fits nowhere waits here, and is taken.
        return status == base::Status::too_large ? base::Status::ok : status;
    }
    [[gnu::noinline]] void copy(std::span<const std::byte> request, const RequestOptions& said) {
        Place& its = place(next_id);
        its.procedure = said.procedure;
        its.copy.assign(request.begin(), request.end());
        limits[next_id & mask] = {said.deadline.point(), said.told_from};
    }
    [[gnu::always_inline]] std::uint64_t submitted(std::size_t size) noexcept {
        call_of(next_id) = Call::wanted;
        ++wanted;
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
        owes_hint = ring()->write_byte(one, mailbox) == base::Status::full;
    }
    void send_control(const SessionHeader& header) {
        send_batch();
        (void)line->send(pack(header), {});
        if (is_dense) hint();
    }

    // --- receiving

    /// The next answer that is wanted.
    base::Status look(Answer& answer) {
        if (!kept.empty()) [[unlikely]]
            return look_at_kept(0, answer);
        return look_at_ring(answer);
    }
    base::Status look_at_kept(std::size_t index, Answer& answer) noexcept {
        if (is_copy) [[unlikely]]
            return ended;
        handed_out = index;
        answer = {kept[index].id, kept[index].outcome, kept[index].payload};
        return base::Status::ok;
    }
    [[gnu::noinline, gnu::cold]] bool finds_kept(std::uint64_t id, Answer& answer) noexcept {
        for (std::size_t i = 0; i != kept.size(); ++i) {
            if (kept[i].id == id) return look_at_kept(i, answer) == base::Status::ok;
        }
        return false;
    }
    [[gnu::always_inline]] base::Status look_at_line(Answer& answer) {
        if (answers.is_open()) [[unlikely]] {
            const base::Status status = look_in_batch(answer);
            if (status != base::Status::empty) return status;
        }
        return look_at_ring(answer);
    }
    /// The same where no message of several answers is being handed out.
    [[gnu::always_inline]] base::Status look_at_ring(Answer& answer) {
        if (ended != base::Status::ok) [[unlikely]]
            return ended;
        while (true) {
            std::span<const std::byte> message;
            const base::Status status = line.look(message);
            if (status != base::Status::ok) [[unlikely]] {
                if (status == base::Status::empty) {
                    look_after_line();
                } else if (status == base::Status::too_large) {
                    fail(
                        "the server sent an answer that is too large, or more than there is memory "
                        "for");
                } else {
                    ended = status;
                }
                return ended != base::Status::ok ? ended : base::Status::empty;
            }
            SessionHeader header;
            if (!parse_here(message, header, answer.payload) ||
                header.kind != SessionKind::answer || header.id - lowest >= next_id - lowest)
                [[unlikely]] {
                if (begin_answers(message)) {
                    const base::Status found = look_in_batch(answer);
                    if (found != base::Status::empty) return found;
                    continue;
                }
                if (take_otherwise(message)) {
                    line.pass();
                    continue;
                }
                if (ended == base::Status::ok) {
                    fail("the server sent what is no answer to any request");
                }
                return ended;
            }
            const Call its = call_of(header.id);
            if (its == Call::wanted) [[likely]] {
                answer.id = header.id;
                answer.outcome = header.outcome;
                handed_out = in_line;
                return base::Status::ok;
            }
            if (its == Call::unwanted) {
                ++counts.unwanted;
                settle(header.id);
            }
            line.pass();
        }
    }
    /// Head and entries, if it is a message of several answers.
    [[nodiscard, gnu::always_inline]] bool parse_answers(
        std::span<const std::byte> message, SessionHeader& header,
        std::span<const std::byte>& entries) const noexcept {
        return takes_batches && parse_here(message, header, entries) &&
               header.kind == SessionKind::answer_batch && !entries.empty() &&
               entries.size() % entry_head_bytes == 0;
    }
    /// The message in front is several answers: they are handed out one by one from here on.
    [[gnu::noinline]] bool begin_answers(std::span<const std::byte> message) noexcept {
        SessionHeader header;
        std::span<const std::byte> entries;
        if (!parse_answers(message, header, entries)) return false;
        if (!ring()->hear_position(header.limit_us)) {
            fail("the server says that it has read more than was sent to it");
            return false;
        }
        ring()->ask_for_frame(message.size());
        answers = BatchReader{entries};
        answers_from = header.id;
        ++counts.batches_received;
        return true;
    }
    /// The next answer of that message, if it is wanted.
    [[gnu::always_inline]] bool finds_in_batch(Answer& answer, std::uint64_t word) noexcept {
        const EntryHead head = EntryHead::of(word);
        const std::uint64_t id = number_of(head);
        if (!answers.step_over(head.length) ||
            head.what > static_cast<std::uint16_t>(last_outcome_sent) ||
            id - lowest >= next_id - lowest || call_of(id) != Call::wanted) [[unlikely]]
            return false;
        answer = {id, static_cast<Outcome>(head.what), {answers.front_payload(), head.length}};
        handed_out = in_batch;
        return true;
    }
    /// The next one that is wanted. `empty`: that message has no more, and is passed.
    [[gnu::noinline]] base::Status look_in_batch(Answer& answer) {
        while (true) {
            const std::uint64_t word = answers.front_word();
            if (finds_in_batch(answer, word)) [[likely]]
                return base::Status::ok;
            if (!passes_in_batch(EntryHead::of(word))) {
                fail("the server sent what is no answer to any request");
                return ended;
            }
            if (answers.is_empty()) {
                end_answers();
                return base::Status::empty;
            }
        }
    }
    /// Goes on behind an answer that is not wanted. False: it is none to any request.
    bool passes_in_batch(const EntryHead& head) noexcept {
        const std::uint64_t id = number_of(head);
        const bool is_open = id - lowest < next_id - lowest;
        if (!answers.step_over(head.length) ||
            head.what > static_cast<std::uint16_t>(last_outcome_sent) ||
            (!is_open && !is_of_before({.id = id}))) {
            return false;
        }
        if (is_open && call_of(id) == Call::unwanted) {
            ++counts.unwanted;
            settle(id);
        }
        answers.pass();
        return true;
    }
    /// Client::look().
    [[gnu::noinline]] base::Status look_and_count(Answer& answer) {
        const base::Status status = look(answer);
        current = answer.id;
        if (status == base::Status::ok) counts.bytes_received += answer.payload.size();
        return status;
    }
    /// The same while that message is handed out: it calls nobody in the most frequent case.
    [[gnu::noinline]] base::Status look_quickly(Answer& answer) {
        if (!kept.empty() || !finds_in_batch(answer, answers.front_word())) [[unlikely]]
            return look_aside(answer);
        current = answer.id;
        counts.bytes_received += answer.payload.size();
        return base::Status::ok;
    }
    /// The same where several may have come in one message: then `run` is of all that lie there
    /// side by side, and what they are is for its front() to say.
    [[gnu::noinline]] base::Status look_for_several(Answer& answer, detail::AnswerRun& run) {
        run.at = nullptr;
        if (awaits_in_ring && ended == base::Status::ok && !answers.is_open() && kept.empty())
            [[likely]] {
            std::span<const std::byte> message;
            const RingLane::Front front = ring()->look_at_front(message);
            if (front == RingLane::Front::message) [[likely]] {
                if (is_of_answers(message, run)) return base::Status::ok;
            } else if (front == RingLane::Front::nothing && has_nothing_to_do()) {
                return base::Status::empty;
            }
        }
        return look_for_several_well(answer, run);
    }
    /// The message in front is several answers, which begin there.
    [[nodiscard, gnu::always_inline]] bool is_of_answers(std::span<const std::byte> message,
                                                         detail::AnswerRun& run) noexcept {
        SessionHeader header;
        std::span<const std::byte> entries;
        if (!parse_answers(message, header, entries) || !ring()->hear_position(header.limit_us))
            [[unlikely]]
            return false;
        run = run_of(entries.data(), entries.data() + entries.size(), header.id);
        return true;
    }
    [[nodiscard, gnu::always_inline]] detail::AnswerRun run_of(const std::byte* at,
                                                               const std::byte* end,
                                                               std::uint64_t from) noexcept {
        return {.at = at,
                .end = end,
                .from = from,
                .lowest = lowest,
                .open = next_id - lowest,
                .mask = mask,
                .calls = calls.data()};
    }
    /// A look that has found nothing in the ring would see to nothing else.
    [[nodiscard, gnu::always_inline]] bool has_nothing_to_do() noexcept {
        return !is_batching && !owes_hint && ring()->is_clear() && !ring()->keeps_memory() &&
               ring()->counts_vain_look();
    }
    [[gnu::noinline]] base::Status look_for_several_well(Answer& answer, detail::AnswerRun& run) {
        const base::Status status = kept.empty() ? look_at_line(answer) : look_at_kept(0, answer);
        current = answer.id;
        if (status != base::Status::ok) return status;
        if (handed_out == in_batch) {
            run = run_of(answers.front_entry(), answers.end(), answers_from);
        } else {
            counts.bytes_received += answer.payload.size();
        }
        return status;
    }
    /// Client::prefetch().
    void prefetch() noexcept {
        if (awaits_in_ring && ended == base::Status::ok && !answers.is_open()) {
            ring()->ask_ahead();
        }
    }
    /// Those were handed out of which the run says so.
    [[gnu::noinline]] void pass_several(const detail::AnswerRun& run) noexcept {
        counts.answers += run.count;
        counts.bytes_received += run.bytes;
        wanted -= run.count;
        find_lowest();
        if (!answers.is_open()) ++counts.batches_received;
        if (run.at == run.end) [[likely]] {
            end_answers();
        } else {
            // One of them is not wanted, or the program has thrown.
            answers = BatchReader{{run.at, run.end}};
            answers_from = run.from;
        }
    }
    /// Behind several that were settled. Eight at a time, as far as there are so many.
    void find_lowest() noexcept {
        while (lowest != next_id) {
            const std::size_t here = lowest & mask;
            std::uint64_t eight = 1;
            if (next_id - lowest >= sizeof eight && calls.size() - here >= sizeof eight) {
                std::memcpy(&eight, calls.data() + here, sizeof eight);
            }
            if (eight == 0) {
                lowest += sizeof eight;
            } else if (calls[here] == Call::none) {
                ++lowest;
            } else {
                return;
            }
        }
    }
    [[gnu::noinline]] base::Status look_aside(Answer& answer) {
        const base::Status status = kept.empty() ? look_at_line(answer) : look_at_kept(0, answer);
        current = answer.id;
        if (status == base::Status::ok) counts.bytes_received += answer.payload.size();
        return status;
    }
    [[nodiscard]] std::uint64_t number_of(const EntryHead& head) const noexcept {
        return answers_from + static_cast<std::uint64_t>(static_cast<std::int32_t>(head.number));
    }
    [[gnu::noinline]] void end_answers() noexcept {
        answers.close();
        ring()->ask_for_place();
        ring()->pass_batch();
    }
    /// What is no answer that lies in the ring and is awaited. False: it is none to any request. It
    /// parses the message by itself, so that the most frequent case keeps the head in registers.
    [[gnu::noinline, gnu::cold]] bool take_otherwise(std::span<const std::byte> message) {
        SessionHeader header;
        std::span<const std::byte> payload;
        if (!parse_here(message, header, payload)) return false;
        if (header.kind == SessionKind::answer) return is_of_before(header);
        return header.kind == SessionKind::answer_by_read && take_announcement(header, payload);
    }
    /// A request that was sent again may be answered twice.
    [[nodiscard]] bool is_of_before(const SessionHeader& header) const noexcept {
        return header.id != 0 && header.id < lowest && counts.resumed != 0;
    }
    /// An answer that is to be READ.
    bool take_announcement(const SessionHeader& header, std::span<const std::byte> payload) {
        const std::optional<Announcement> from = line->announced(payload);
        if (!from.has_value() || from->length > options.max_answer_bytes) return false;
        const bool was_answered = is_of_before(header);
        if (!was_answered && header.id - lowest >= next_id - lowest) return false;
        const Call its = call_of(header.id);
        if (was_answered || its != Call::wanted || line->is_fetching(header.id)) {
            if (!was_answered && its == Call::unwanted) {
                ++counts.unwanted;
                settle(header.id);
            }
            return ring()->decline();
        }
        ++counts.large;
        return ring()->fetch(header, *from);
    }
    /// Requests are laid side by side from here on, and not posted, if that makes a difference.
    [[gnu::noinline]] void begin_batch() noexcept {
        if (is_batching) return;
        ring()->gather();
        is_batching = holds_hints = ring()->gathers();
        // A program's loop is to come here once more, and to find nothing.
        if (is_batching) ring()->wake_loop();
    }
    [[gnu::noinline]] void end_batch() noexcept {
        send_batch();
        ring()->post_gathered();
        is_batching = holds_hints = false;
        if (std::exchange(owes_hint, false)) hint();
    }
    void look_after_line() {
        if (is_batching) [[unlikely]]
            end_batch();
        if (!line.is_clear()) [[unlikely]]
            (void)line->flush();
        if (owes_hint) [[unlikely]]
            hint();
        if (line->keeps_memory()) [[unlikely]]
            line->tidy_now_and_then();
    }
    /// What was handed out last was not passed yet.
    [[nodiscard]] bool is_handed_out() const noexcept { return handed_out != nothing; }
    [[noreturn, gnu::noinline, gnu::cold]] void refuse_to_pass() const;
    void pass() noexcept {
        ++counts.answers;
        if (handed_out == in_line) [[likely]] {
            settle(last_looked_at());
            --wanted;
            wanted != 0 ? line.pass_at_leisure() : line.pass();
        } else {
            pass_otherwise();
        }
        handed_out = nothing;
    }
    [[gnu::noinline]] void pass_otherwise() noexcept {
        if (handed_out == in_batch) [[likely]]
            return pass_in_batch(last_looked_at());
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(handed_out));
    }
    void pass_in_batch(std::uint64_t id) noexcept {
        settle(id);
        --wanted;
        answers.pass();
        if (answers.is_empty()) [[unlikely]]
            end_answers();
    }
    /// The number of the answer that lies in the line.
    [[nodiscard]] std::uint64_t last_looked_at() const noexcept { return current; }
    void settle(std::uint64_t id) noexcept {
        call_of(id) = Call::none;
        if (id != lowest) return;
        do {
            ++lowest;
        } while (lowest != next_id && call_of(lowest) == Call::none);
    }
    /// Takes what has come out of the ring, for later. False: there was nothing.
    bool keep_one() {
        Answer answer;
        if (look_at_line(answer) != base::Status::ok) return false;
        kept.push_back({answer.id, answer.outcome, {answer.payload.begin(), answer.payload.end()}});
        if (handed_out == in_batch) {
            pass_in_batch(answer.id);
        } else {
            settle(answer.id);
            --wanted;
            line.pass();
        }
        return true;
    }
    /// In a child made by fork. Its session is the parent's, too.
    void become_copy() noexcept {
        is_copy = true;
        ended = base::Status::peer_lost;
        answers.close();
    }
    void fail(std::string why) noexcept {
        answers.close();
        why_failed = std::move(why);
        ended = base::Status::peer_lost;
    }

    bool cancel(std::uint64_t id) {
        const auto found =
            std::find_if(kept.begin(), kept.end(), [&](const Kept& one) { return one.id == id; });
        if (found != kept.end()) {
            kept.erase(found);
            ++counts.unwanted;
            return true;
        }
        if (id - lowest >= next_id - lowest || call_of(id) != Call::wanted) return false;
        call_of(id) = Call::unwanted;
        --wanted;
        if (ended == base::Status::ok) {
            (void)line->give_up(id);
            send_control({.id = id, .kind = SessionKind::cancel});
        }
        return true;
    }

    // --- waiting

    /// Waits for what `attempt()` answers, as long as that is `again`. A session that resumes is
    /// resumed meanwhile.
    template <class Attempt>
    base::Status wait_for(base::Status again, const base::Deadline& deadline, Attempt&& attempt) {
        const base::WaitsByPolicy here;
        while (true) {
            if ((++waits & waits_between) == 0 && options.wait.yield.count() != 0) {
                end_turn_if_due();
            }
            base::Status status = again;
            // An answer that was just asked for is hardly there.
            if (again != base::Status::empty || !is_quiet()) status = attempt();
            if (status == again) {
                // Each piece of a long message ends a wait: who receives one is not idle.
                std::uint64_t before = line->progress();
                const auto has_come = [&] {
                    if (again == base::Status::empty && is_quiet()) return false;
                    if (ring() != nullptr) {
                        ring()->wait_for_room(again == base::Status::full || !ring()->is_clear());
                    }
                    status = attempt();
                    return status != again || line->progress() != before;
                };
                if (!has_come() || status == again) {
                    const base::SoleCall call{use, "wait with a message client",
                                              line->link().peer_name()};
                    do {
                        before = line->progress();
                        const base::Status waited = line->wait(has_come, deadline, options.wait);
                        if (waited != base::Status::ok) return waited;
                        if (status == again && deadline.cancelled()) return base::Status::cancelled;
                        if (status == again && deadline.expired()) return base::Status::timed_out;
                    } while (status == again);
                }
            }
            if (!may_resume(status) || !resumes(deadline, status)) return status;
        }
    }
    /// True: a look for an answer would find nothing, and have nothing else to do.
    [[nodiscard, gnu::always_inline]] bool is_quiet() noexcept {
        return awaits_in_ring && ended == base::Status::ok && ring()->is_clear() &&
               ring()->receives_here() && !owes_hint && !is_batching && ring()->stays_quiet();
    }
    /// Whose answers come within some microseconds never waits for so long that it gives its
    /// processor away. Where many clients share one, the others would wait for the scheduler, each
    /// for all before it: so it is offered behind each `turn`, less often while nobody takes it, in
    /// a moment in which an answer is under way anyhow.
    [[gnu::noinline]] void end_turn_if_due() noexcept {
        static const std::uint64_t turn = base::ticks_in(std::chrono::microseconds{40});
        std::uint64_t now = base::ticks();
        // By ring, waits_between more waits lie between two looks at the clock, each of which may
        // have taken most of a turn.
        const bool was_away = now - turn_seen > 2 * turn * (waits_between + 1);
        if (was_away || turns.due(now)) {
            if (!was_away) {
                (void)turns.offer();
                now = base::ticks();
            }
            turns.begin(now, turn);
        }
        turn_seen = now;
    }
    [[nodiscard]] bool may_resume(base::Status status) const noexcept {
        return options.resumes && !is_closed && !is_copy &&
               (status == base::Status::peer_lost || status == base::Status::closed);
    }
    bool resumes(const base::Deadline& deadline, base::Status& status) {
        try {
            status = connect_again(deadline);
            return status == base::Status::ok;
        } catch (const base::Error& error) {
            why_failed = error.what();
            status = base::Status::peer_lost;
            return false;
        }
    }

    // --- the session

    void connect(const base::Deadline& deadline);
    base::Status connect_again(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    void take_welcome(const Welcome& welcome);
    /// Behind what decides that.
    void note_batches() noexcept {
        lays_batches = takes_batches && begins_batches;
        submits_otherwise = gathers || lays_batches;
    }
    /// Where our byte is.
    void find_mailbox();

    connect::Address server;
    ClientOptions options;
    ChannelOptions channel_options;
    AnyLane line;
    base::SoleUse use;  ///< by a wait, reconnect() or close() that is under way

    // What each request and answer asks for lies together, in few cache lines.
    std::uint64_t next_id = 1;
    std::uint64_t lowest = 1;  ///< everything below is answered
    std::uint64_t mask = 0;
    std::uint64_t max_request = 0;
    std::uint32_t window = 0;
    base::Status ended = base::Status::ok;
    bool is_dense = false;
    bool awaits_in_ring = false;  ///< answers: nor by SEND
    bool owes_hint = false;
    bool holds_hints = false;        ///< within a batch
    bool gathers = false;            ///< as options.gathers_requests says, by rings
    bool is_batching = false;        ///< … and some are gathered, or lie in `requests`
    bool begins_batches = false;     ///< between begin_batch() and end_batch() of the client
    bool takes_batches = false;      ///< both ends send them
    bool lays_batches = false;       ///< both of these
    bool submits_otherwise = false;  ///< gathers, or lays_batches
    std::size_t wanted = 0;          ///< calls that are
    std::uint64_t refused_id = 0;    ///< the number that the last one would have had which …
    std::size_t refused_bytes = 0;   ///< … found no room
    std::vector<Call> calls;  ///< by number; side by side, as several are asked for at a time
    ClientStats counts;
    BatchWriter requests;                 ///< that are laid, and not sent
    BatchReader answers;                  ///< that are handed out one by one
    std::uint64_t answers_from = 0;       ///< the number from which they count
    std::shared_ptr<std::byte> box;       ///< our byte at the server, where that is addressable
    verbs::RemoteAddress mailbox{};       ///< where it is not
    verbs::RegisteredBuffer hint_source;  ///< of a WRITE to there

    SessionName session{};
    Welcome welcomed{};
    std::vector<Place> places;  ///< of the requests of `calls`; only if the session resumes
    std::vector<Limit> limits;  ///< … and this, too
    std::deque<Kept> kept;

    std::uint32_t waits = 0;
    std::uint32_t waits_between = 0;  ///< two looks at the clock: those by wire take longer
    base::Yielding turns{base::yields_of_process()};
    std::uint64_t turn_seen = 0;  ///< ticks

    static constexpr std::size_t in_line = ~std::size_t{0};
    static constexpr std::size_t in_batch = in_line - 1;
    static constexpr std::size_t nothing = in_line - 2;  ///< what was handed out was passed
    std::size_t handed_out = in_line;                    ///< which one of kept, otherwise
    std::uint64_t current = 0;                           ///< the number of what was handed out
    std::vector<std::byte> scratch;                      ///< a request that is not laid in place
    enum class Claimed : std::uint8_t { in_line, in_scratch, to_be_read, in_batch };
    Claimed claimed = Claimed::in_line;  ///< where the place of the next request is
    std::uint64_t claimed_as = 0;        ///< … and its number

    bool is_closed = false;  ///< by us
    bool is_copy = false;    ///< the client is of the parent of this process
    std::string why_failed;
    std::optional<connect::Transport> instead_of;  ///< that was asked for first
    std::string why_instead;
    base::ForkWatch fork_watch{*this};
};

}  // namespace millrace::message
