// A client's answers: found in the lane one by one, or several in one message, handed out in any
// order, and kept where they came while another one was awaited. Used by client.cpp and
// client_session.cpp; beneath it: requests.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "client/kept_answers.hpp"
#include "client/requests.hpp"

namespace millrace::message {

class ClientAnswers : public ClientRequests {
  public:
    using ClientRequests::ClientRequests;

    // --- finding the next one

    /// Client::look().
    [[gnu::noinline]] base::Status look_and_count(Answer& answer) {
        const base::Status status = look(answer);
        current_ = answer.id;
        if (status == base::Status::ok) counts.bytes_received += answer.payload.size();
        return status;
    }
    /// The same while a message of several answers is handed out: it calls nobody in the most
    /// frequent case.
    [[gnu::noinline]] base::Status look_quickly(Answer& answer) {
        if (!kept_.empty() || !finds_in_batch(answer, next_of_batch())) [[unlikely]]
            return look_slowly(answer);
        current_ = answer.id;
        counts.bytes_received += answer.payload.size();
        return base::Status::ok;
    }
    /// Several answers of one message are handed out: look_quickly() is the one to call.
    [[nodiscard]] bool is_in_batch() const noexcept { return several_.at != nullptr; }
    /// The same where several may have come in one message: then `run` is of all that lie there
    /// side by side, and what they are is for its front() to say.
    [[gnu::noinline]] base::Status look_for_several(Answer& answer, detail::AnswerRun& run) {
        run.at = nullptr;
        if (awaits_in_ring && ended == base::Status::ok && !is_in_batch() && kept_.empty())
            [[likely]] {
            std::span<const std::byte> message;
            const RingLane::Front front = ring()->look_at_front(message);
            if (front == RingLane::Front::message) [[likely]] {
                if (is_of_answers(message, run)) return base::Status::ok;
            } else if (front == RingLane::Front::nothing && has_nothing_to_do()) {
                return base::Status::empty;
            }
        }
        return look_for_several_slowly(answer, run);
    }
    /// The answer to `id`; others that come before it are kept.
    base::Status look_for(std::uint64_t id, Answer& answer) {
        while (true) {
            const base::Status found = look_at_line(answer);
            if (found != base::Status::ok) [[unlikely]] {
                // A new session may have something to say of it.
                return finds_kept(id, answer) ? base::Status::ok : found;
            }
            if (answer.id == id) [[likely]]
                return found;
            (void)keep_one();
        }
    }
    /// … which may have been kept before.
    [[nodiscard]] bool has_kept(std::uint64_t id, Answer& answer) noexcept {
        return !kept_.empty() && finds_kept(id, answer);
    }
    /// What came of that. One that did not come is not wanted any more.
    void note_found(std::uint64_t id, base::Status status, const Answer& answer) {
        current_ = id;
        if (status == base::Status::ok) [[likely]] {
            counts.bytes_received += answer.payload.size();
        } else {
            (void)cancel(id);
        }
    }
    /// Takes what has come out of the ring, for later. False: there was nothing.
    bool keep_one() {
        Answer answer;
        if (look_at_line(answer) != base::Status::ok) return false;
        kept_.keep(answer.id, answer.outcome, {answer.payload.begin(), answer.payload.end()});
        if (handed_out_ == in_batch) {
            pass_in_batch(answer.id);
        } else {
            calls.settle_wanted(answer.id);
            line.pass();
        }
        return true;
    }
    /// Client::prefetch().
    void prefetch() noexcept {
        if (awaits_in_ring && ended == base::Status::ok && !is_in_batch()) {
            ring()->ask_ahead();
        }
    }
    /// True: a look for an answer would find nothing, and have nothing else to do.
    [[nodiscard, gnu::always_inline]] bool is_quiet() noexcept {
        return awaits_in_ring && ended == base::Status::ok && ring()->is_clear() &&
               ring()->receives_here() && !byte.is_owed() && !is_batching() &&
               ring()->stays_quiet();
    }

    // --- going on

    /// What was handed out last was not passed yet.
    [[nodiscard]] bool is_handed_out() const noexcept { return handed_out_ != nothing; }
    void pass() noexcept {
        ++counts.answers;
        if (handed_out_ == in_line) [[likely]] {
            calls.settle_wanted(current_);
            // A client without another request under way would wait for the stores with its next.
            calls.wanted() != 0 ? line.pass_at_leisure() : line.pass();
        } else {
            pass_other();
        }
        handed_out_ = nothing;
    }
    /// Those were handed out of which the run says so.
    [[gnu::noinline]] void pass_several(const detail::AnswerRun& run) noexcept {
        counts.answers += run.count;
        counts.bytes_received += run.bytes;
        calls.settle_run(run.count);
        if (!is_in_batch()) ++counts.batches_received;
        if (run.at == run.end) [[likely]] {
            end_several();
        } else {
            // One of them is not wanted, or the program has thrown.
            several_ = {.at = run.at, .end = run.end, .from = run.from};
        }
    }
    bool cancel(std::uint64_t id) {
        const std::size_t index = kept_.find(id);
        if (index != kept_.size()) {
            kept_.erase(index);
            ++counts.unwanted;
            return true;
        }
        if (!calls.is_open(id) || calls.of(id) != Call::wanted) return false;
        calls.give_up(id);
        if (ended == base::Status::ok) {
            (void)line->give_up(id);
            send_control({.id = id, .kind = SessionKind::cancel});
        }
        return true;
    }
    [[nodiscard]] std::size_t outstanding() const noexcept { return calls.wanted() + kept_.size(); }

    // --- the end of a channel, or of the session

    /// What was handed out in place is none any more.
    void end_reading() noexcept { several_ = {}; }
    void fail(std::string why) noexcept {
        end_reading();
        why_failed = std::move(why);
        ended = base::Status::peer_lost;
    }
    /// Nobody knows whether the former server executed what has no answer.
    void lose_session() {
        while (calls.open() != 0) {
            const std::uint64_t id = calls.lowest();
            if (calls.drop_lowest()) kept_.keep(id, Outcome::session_lost, {});
        }
    }
    /// In a child made by fork. Its session is the parent's, too.
    void become_copy() noexcept {
        is_copy = true;
        ended = base::Status::peer_lost;
        end_reading();
    }

  private:
    static constexpr std::size_t in_line = ~std::size_t{0};
    static constexpr std::size_t in_batch = in_line - 1;
    static constexpr std::size_t nothing = in_line - 2;  ///< what was handed out was passed

    /// The next answer that is wanted.
    base::Status look(Answer& answer) {
        if (!kept_.empty()) [[unlikely]]
            return look_at_kept(0, answer);
        return look_at_ring(answer);
    }
    base::Status look_at_kept(std::size_t index, Answer& answer) noexcept {
        if (is_copy) [[unlikely]]
            return ended;
        handed_out_ = index;
        answer = kept_.at(index);
        return base::Status::ok;
    }
    [[gnu::noinline, gnu::cold]] bool finds_kept(std::uint64_t id, Answer& answer) noexcept {
        const std::size_t index = kept_.find(id);
        return index != kept_.size() && look_at_kept(index, answer) == base::Status::ok;
    }
    [[gnu::always_inline]] base::Status look_at_line(Answer& answer) {
        if (is_in_batch()) [[unlikely]] {
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
            if (status != base::Status::ok) [[unlikely]]
                return found_none(status);
            SessionHeader header;
            if (!parse(message, header, answer.payload) || header.kind != SessionKind::answer ||
                !calls.is_open(header.id)) [[unlikely]] {
                if (begin_several(message)) {
                    const base::Status found = look_in_batch(answer);
                    if (found != base::Status::empty) return found;
                    continue;
                }
                if (take_other(message)) {
                    line.pass();
                    continue;
                }
                if (ended == base::Status::ok) {
                    fail("the server sent what is no answer to any request");
                }
                return ended;
            }
            const Call its = calls.of(header.id);
            if (its == Call::wanted) [[likely]] {
                answer.id = header.id;
                answer.outcome = header.outcome;
                handed_out_ = in_line;
                return base::Status::ok;
            }
            if (its == Call::unwanted) {
                ++counts.unwanted;
                calls.settle(header.id);
            }
            line.pass();
        }
    }
    /// A look at the lane has found no message, and says why.
    [[gnu::always_inline]] base::Status found_none(base::Status status) {
        if (status == base::Status::empty) {
            look_after_line();
        } else if (status == base::Status::too_large) {
            fail("the server sent an answer that is too large, or more than there is memory for");
        } else {
            ended = status;
        }
        return ended != base::Status::ok ? ended : base::Status::empty;
    }
    /// What else is due when there is no answer.
    void look_after_line() {
        if (is_batching()) [[unlikely]]
            send_batch();
        if (!line.is_clear()) [[unlikely]]
            (void)line->flush();
        if (byte.is_owed()) [[unlikely]]
            tell_server();
        if (line->keeps_memory()) [[unlikely]]
            line->tidy_now_and_then();
    }
    /// A look that has found nothing in the ring would see to nothing else.
    [[nodiscard, gnu::always_inline]] bool has_nothing_to_do() noexcept {
        return !is_batching() && !byte.is_owed() && ring()->is_clear() && !ring()->keeps_memory() &&
               ring()->counts_vain_look();
    }

    // --- several in one message

    /// Head and entries, if it is a message of several answers.
    [[nodiscard, gnu::always_inline]] bool parse_answers(
        std::span<const std::byte> message, SessionHeader& header,
        std::span<const std::byte>& entries) const noexcept {
        return takes_batches && parse(message, header, entries) &&
               header.kind == SessionKind::answer_batch && !entries.empty() &&
               entries.size() % entry_head_bytes == 0;
    }
    /// The message in front is several answers, which begin there.
    [[nodiscard, gnu::always_inline]] bool is_of_answers(std::span<const std::byte> message,
                                                         detail::AnswerRun& run) noexcept {
        SessionHeader header;
        std::span<const std::byte> entries;
        if (!parse_answers(message, header, entries) || !ring()->hear_position(header.limit_us))
            [[unlikely]]
            return false;
        run = calls.run(entries.data(), entries.data() + entries.size(), header.id);
        return true;
    }
    /// The message in front is several answers: they are handed out one by one from here on.
    [[gnu::noinline]] bool begin_several(std::span<const std::byte> message) noexcept {
        SessionHeader header;
        std::span<const std::byte> entries;
        if (!parse_answers(message, header, entries)) return false;
        if (!ring()->hear_position(header.limit_us)) {
            fail("the server says that it has read more than was sent to it");
            return false;
        }
        ring()->ask_for_frame(message.size());
        several_ = {
            .at = entries.data(), .end = entries.data() + entries.size(), .from = header.id};
        ++counts.batches_received;
        return true;
    }
    [[gnu::noinline]] void end_several() noexcept {
        several_ = {};
        ring()->ask_for_place();
        ring()->pass_batch();
    }
    /// Of the next answer of that message, whose writer may write it still: loaded once for each
    /// look at it.
    [[nodiscard, gnu::always_inline]] EntryHead next_of_batch() const noexcept {
        return EntryHead::of(load_frame_word(several_.at));
    }
    /// That answer, if it is wanted.
    [[gnu::always_inline]] bool finds_in_batch(Answer& answer, const EntryHead& head) noexcept {
        const std::uint64_t id = head.counted_from(several_.from);
        several_.step = entry_bytes(head.length);
        if (!several_.has_step() || head.what > static_cast<std::uint16_t>(last_outcome_sent) ||
            !calls.is_open(id) || calls.of(id) != Call::wanted) [[unlikely]]
            return false;
        answer = {
            id, static_cast<Outcome>(head.what), {several_.at + entry_head_bytes, head.length}};
        handed_out_ = in_batch;
        return true;
    }
    /// The next one that is wanted. `empty`: that message has no more, and is passed.
    [[gnu::noinline]] base::Status look_in_batch(Answer& answer) {
        while (true) {
            const EntryHead head = next_of_batch();
            if (finds_in_batch(answer, head)) [[likely]]
                return base::Status::ok;
            if (!passes_in_batch(head)) {
                fail("the server sent what is no answer to any request");
                return ended;
            }
            if (several_.at == several_.end) {
                end_several();
                return base::Status::empty;
            }
        }
    }
    /// Passes over an answer that is not wanted. False: it answers no request.
    bool passes_in_batch(const EntryHead& head) noexcept {
        const std::uint64_t id = head.counted_from(several_.from);
        const bool is_open = calls.is_open(id);
        if (!several_.has_step() || head.what > static_cast<std::uint16_t>(last_outcome_sent) ||
            (!is_open && !is_of_before({.id = id}))) {
            return false;
        }
        if (is_open && calls.of(id) == Call::unwanted) {
            ++counts.unwanted;
            calls.settle(id);
        }
        several_.at += several_.step;
        return true;
    }
    void pass_in_batch(std::uint64_t id) noexcept {
        calls.settle_wanted(id);
        several_.at += several_.step;
        if (several_.at == several_.end) [[unlikely]]
            end_several();
    }
    [[gnu::noinline]] void pass_other() noexcept {
        if (handed_out_ == in_batch) [[likely]]
            return pass_in_batch(current_);
        kept_.erase(handed_out_);
    }
    /// Wherever it is.
    [[gnu::noinline]] base::Status look_slowly(Answer& answer) {
        const base::Status status = kept_.empty() ? look_at_line(answer) : look_at_kept(0, answer);
        current_ = answer.id;
        if (status == base::Status::ok) counts.bytes_received += answer.payload.size();
        return status;
    }
    [[gnu::noinline]] base::Status look_for_several_slowly(Answer& answer, detail::AnswerRun& run) {
        const base::Status status = look_slowly(answer);
        if (status == base::Status::ok && handed_out_ == in_batch) {
            // Which counts what it hands out.
            run = calls.run(several_.at, several_.end, several_.from);
            counts.bytes_received -= answer.payload.size();
        }
        return status;
    }

    // --- what is no answer in place (client_session.cpp)

    /// False: it is none to any request. It parses the message by itself, so that the most frequent
    /// case keeps the head in registers.
    [[gnu::noinline, gnu::cold]] bool take_other(std::span<const std::byte> message);
    /// An answer that is to be READ.
    [[nodiscard]] bool take_announcement(const SessionHeader& header,
                                         std::span<const std::byte> payload);
    /// A request that was sent again may be answered twice.
    [[nodiscard]] bool is_of_before(const SessionHeader& header) const noexcept {
        return header.id != 0 && header.id < calls.lowest() && counts.resumed != 0;
    }

    /// That came in one message, and are handed out one by one.
    struct Several {
        const std::byte* at = nullptr;  ///< the next one; null: there are none
        const std::byte* end = nullptr;
        std::uint64_t from = 0;  ///< the number from which they count
        std::size_t step = 0;    ///< bytes of the one that is handed out or passed over

        [[nodiscard]] bool has_step() const noexcept {
            return step <= static_cast<std::size_t>(end - at);
        }
    };
    Several several_;
    std::size_t handed_out_ = in_line;  ///< which one of kept_, otherwise
    std::uint64_t current_ = 0;         ///< the number of what was handed out
    KeptAnswers kept_;
};

}  // namespace millrace::message
