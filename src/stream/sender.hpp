// The sending half of one direction of a byte stream: which bytes go where. Pure state, no I/O;
// used by Connection, which lets the messages out and in.
//
//   sequence   S_s of the work: bytes that have been given to transfers
//   phase      P_s: even while transfers go to advertisements, odd while they go to the ring
//   adverts    q_A: what the receiver advertised, in order, not filled yet
//   b_s        room in the receiver's ring: ring_bytes - (ring_written - ring_taken)
//
// An ADVERT that comes while transfers are indirect is stale if its phase is lower than the
// sender's or its place in the stream lies before `sequence`: those bytes have gone to the ring. It
// is thrown away, and the phase raised past its own, so that those behind it in the same phase are
// stale too: their places are estimates made before the receiver knew.
//
// The work looks through q_A when the program sends; this looks at each ADVERT once, when it comes.
// That is the same: phase and sequence change only by transfers, and while there is an
// advertisement in q_A, transfers go to it. So nothing in q_A ever becomes stale, and q_A needs no
// more room than the number of advertisements agreed on.
//
// Where the program sends faster than the receiver copies, the ring never gets empty, and so
// nothing is ever advertised in time: one late ADVERT, and everything is copied from then on, which
// takes twice as long. So a long send that finds the ring too full for it is held back until the
// ring is empty. The receiver advertises then, before it acknowledges the last byte, if it has a
// receive; the send goes there.
//
// Often it has none at that moment: its program has as many completions to look at as there were
// receives, and offers the next receive when it is through with one of them. So a send that was
// held back waits behind the empty ring, too, until an advertisement comes or stop_awaiting() says
// that it took long enough: when, is decided by who has a clock (hold.hpp). Then it goes to the
// ring; and as that cost some time, the next one is held back only behind a number of whole rings,
// which doubles each time (to 64) until an advertisement does come.
//
// Where the receiver copies about as fast as the program sends, the ring is never full, and yet
// each advertisement comes behind the next send. So a long send that would fit is put off, too, if
// some bytes have gone to the ring since the last direct transfer: until an advertisement comes or
// stop_awaiting() says so, and no longer, as the receiver may itself be sending, or come later.
// What was in vain is repeated behind ever more rings, as above.
//
// And where transfers are direct, and the next advertisement is a little late, one transfer to the
// ring costs the receiver a copy, and all the advertisements behind it: until it has caught up, and
// new ones have travelled. So a long send waits then, in the same way. If it was in vain, that is
// not tried again at the next one or three turns to the ring.
//
// Short sends, one behind the other, would each take an advertisement, which may be of a long
// receive, and a request of the device. So from the eighth in a row on that found one they leave
// advertisements that have not been used (forgoes), and go to the ring, of which the receiver takes
// many at a time. To everybody that is as if those advertisements had come behind that transfer: in
// a direct phase it turns, and they are old; in an indirect one they are stale, and raise the
// phase.
//
// Where messages are kept (SOCK_SEQPACKET), a mark lies behind the bytes of each send:
//
//   | bytes of a message | mark | … | mark |         the second one is empty
//
// A mark takes `mark_bytes` places of the stream, and of the ring, though nothing is written there:
// it travels as a flag of the transfer that ends its message. So there is a place for each message,
// however short, everything above goes for places instead of bytes, and the ring bounds the number
// of messages in it. A transfer takes from one message only. An advertisement stays at the head
// until its message ends. Where a message does not fit, what is left of it is given up before it
// has got a place, and the transfer says so.
//
// What goes to the ring goes in pieces (Terms::ring_piece_bytes), so that the receiver copies the
// first while the next one is written. All of a run, which is what one transfer could have, go one
// behind the other: nothing is held back or awaited between them, unless an advertisement comes.
//
// Invariants: every phase in q_A is the same, even, and the sender's or (while it is still
// indirect) greater; the first one's sequence is <= S_s; phase >= that of the last ADVERT that was
// thrown away or used.
//
// Source: work 003, "exs_send() Matching Algorithms", "Sender Phase Increment on Discarding
// Advertisement"; holding back and awaiting are not of the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "actions.hpp"
#include "bounded_queue.hpp"
#include "counts.hpp"
#include "millrace/base/status.hpp"
#include "phase.hpp"
#include "terms.hpp"
#include "wire.hpp"

namespace millrace::stream {

class Sender {
  public:
    /// `own`: of this end; `terms`: of the direction.
    Sender(const DirectionTerms& terms, const Terms& own);

    // ---- the program

    /// Makes the memory that sends take. False: there is none now.
    [[nodiscard]] bool prepare() noexcept { return sends_.prepare(); }
    /// `length` bytes of a buffer that stays as it is until SendDone. `full`: as many sends as
    /// there may be, or no memory for the first; `closed`: after shut_down; `empty`, `too_large`: a
    /// length that no send has (a message may be empty). `patient`: nobody waits for its SendDone
    /// (its bytes are a copy), so it may wait for others; messages never do. `at_once`: it awaits
    /// no advertisement.
    [[nodiscard]] base::Status send(std::uint64_t id, std::uint64_t length, bool patient = false,
                                    bool at_once = false) noexcept;
    /// The stream ends behind the sends so far.
    void shut_down() noexcept {
        shut_down_ = true;
        if (is_put_off_) was_held_enough_ = true;  // the program may not wait for its end
    }

    // ---- the peer

    [[nodiscard]] Violation on_advert(const AdvertMessage& message) noexcept;
    [[nodiscard]] Violation on_acknowledgement(const AcknowledgementMessage& message) noexcept;
    [[nodiscard]] Violation on_cancel() noexcept;

    // ---- the device

    /// The oldest transfers' WRITEs have completed, of so many places in all.
    void written(std::uint64_t places) noexcept { written_ += places; }
    /// Nothing is in flight any more and nothing will be: every send that has not completed ends
    /// with peer_lost.
    void break_off() noexcept { broken_ = true; }

    // ---- time

    /// A send waits for an advertisement, since the last next_transfer().
    [[nodiscard]] bool is_awaiting() const noexcept { return is_awaiting_; }
    /// It has waited long enough, and goes to the ring if there is none. Never wrong.
    void stop_awaiting() noexcept {
        if (!is_awaiting_) return;
        is_awaiting_ = false;
        if (is_direct(phase_)) {
            awaits_ = false;
        } else {
            was_held_enough_ = true;
        }
    }

    // ---- what is to be done

    [[nodiscard]] bool has_done() const noexcept {
        return !sends_.empty() && (broken_ || sends_.front().end <= written_);
    }
    bool next_done(SendDone& done) noexcept;
    [[nodiscard]] bool owes_cancelled() const noexcept { return cancelled_due_; }
    [[nodiscard]] CancelledMessage take_cancelled() noexcept;
    /// Every byte before the end has gone to a transfer, and FIN has not been sent.
    [[nodiscard]] bool owes_fin() const noexcept {
        return shut_down_ && !ended_ && sequence_ == queued_;
    }
    [[nodiscard]] FinMessage take_fin() noexcept;
    /// The next transfer, and what the peer is told of it.
    [[nodiscard]] bool next_transfer(Transfer& transfer, TransferMessage& message) noexcept;

    // ---- state, for reports and tests

    [[nodiscard]] const SenderCounts& counts() const noexcept { return counts_; }
    [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
    [[nodiscard]] Phase phase() const noexcept { return phase_; }
    [[nodiscard]] std::uint64_t unsent() const noexcept { return queued_ - sequence_; }
    [[nodiscard]] std::size_t adverts() const noexcept { return adverts_.size(); }
    /// In the receiver's ring, as far as is known.
    [[nodiscard]] std::uint64_t room() const noexcept {
        return terms_.mode == Mode::direct ? 0 : terms_.ring_bytes - (ring_written_ - ring_taken_);
    }
    /// Places of the ring that transfers have taken since the beginning.
    [[nodiscard]] std::uint64_t ring_written() const noexcept { return ring_written_; }
    /// How many bytes the next transfer can have.
    [[nodiscard]] std::uint64_t next_room() const noexcept;
    /// Of the sends that have not completed, how many have gone to transfers whole.
    [[nodiscard]] std::size_t given() const noexcept { return current_; }
    /// What is unsent waits for more, until the receiver has taken what lies in its ring: it would
    /// only lie there behind it. A few patient bytes do so, and not with an advertisement there for
    /// them.
    [[nodiscard]] bool coalesces() const noexcept {
        return ring_written_ > std::max(ring_taken_, unhurried_) && adverts_.empty() &&
               !shut_down_ && sequence_ >= impatient_ && unsent() < coalesced_bytes_;
    }
    /// What is unsent waits until the receiver has taken all that lies in its ring.
    [[nodiscard]] bool holds_back() const noexcept {
        return may_be_held() && !is_put_off_ && ring_written_ != ring_taken_ &&
               (is_held_ || unsent() > room());
    }
    /// What is unsent fits into the ring, or finds it empty, and waits for an advertisement for a
    /// limited time. The end of a stream does not.
    [[nodiscard]] bool puts_off() const noexcept {
        if (is_put_off_) return !was_held_enough_ && adverts_.empty();
        return !shut_down_ && may_be_held() && !is_held_ && is_indirect(phase_) &&
               put_off_bytes_ != 0 && ring_written_ >= put_off_from_ && !sends_[current_].at_once;
    }
    /// What is unsent waits for an advertisement that is late: behind direct transfers, or behind
    /// the ring, which it was held back from until it was empty.
    [[nodiscard]] bool awaits_advert() const noexcept {
        const bool is_late = is_direct(phase_)
                                 ? awaits_
                                 : is_held_ && !was_held_enough_ && ring_written_ == ring_taken_;
        return is_late && awaited_bytes_ != 0 && adverts_.empty() && adverts_seen_ != 0 &&
               !sends_[current_].at_once &&
               sends_[current_].end - sends_[current_].begin >= awaited_bytes_;
    }
    /// A send of `length` bytes, if it is next, leaves the advertisements that there are, and goes
    /// to the ring whole.
    [[nodiscard]] bool forgoes(std::uint64_t length) const noexcept {
        return length < short_bytes_ && shorts_in_a_row_ >= short_sends_ && !adverts_.empty() &&
               !adverts_.front().used && length + terms_.mark_bytes <= room_in_one_piece();
    }
    /// Of what is_awaiting(), so many bytes would have to be copied if it went to the ring now:
    /// all of them, until the receiver has caught up with the turn to the ring; otherwise as many
    /// as the ring takes, and what lies there, as it is known when the next advertisement can come.
    [[nodiscard]] std::uint64_t bytes_to_copy() const noexcept {
        return is_direct(phase_)
                   ? unsent()
                   : std::min(unsent(), terms_.ring_bytes) + (ring_written_ - ring_taken_);
    }
    /// Requires unsent() != 0. Of a message all bytes are away, and there is no room in the ring
    /// for its mark.
    [[nodiscard]] bool lacks_room_for_mark() const noexcept {
        return room() < terms_.mark_bytes && sends_[current_].end - sequence_ == terms_.mark_bytes;
    }
    /// The program sends no more.
    [[nodiscard]] bool is_shut_down() const noexcept { return shut_down_; }
    /// FIN has been sent.
    [[nodiscard]] bool ended() const noexcept { return ended_; }
    /// ... and every send has completed.
    [[nodiscard]] bool finished() const noexcept { return ended_ && sends_.empty(); }

  private:
    struct Send {
        std::uint64_t id = 0;
        std::uint64_t begin = 0;  ///< in the stream
        std::uint64_t end = 0;    ///< ... behind its mark, if it has one
        bool at_once = false;
    };
    struct Advert {
        std::uint64_t address = 0;
        std::uint64_t remaining = 0;
        std::uint32_t key = 0;
        std::uint32_t number = 0;
        bool wait_all = false;
        bool used = false;
    };

    /// What it takes of the stream at least, as the receiver's estimate has it.
    [[nodiscard]] std::uint64_t minimum(const Advert& advert) const noexcept {
        return advert.wait_all ? advert.remaining : least_;
    }
    /// A long send that has no advertisement, where there was one, and where the last wait for
    /// another one behind the ring was not in vain lately.
    [[nodiscard]] bool may_be_held() const noexcept {
        return awaited_bytes_ != 0 && adverts_.empty() && adverts_seen_ != 0 &&
               ring_written_ >= held_from_ &&
               sends_[current_].end - sends_[current_].begin >= awaited_bytes_;
    }
    void end_hold() noexcept { is_held_ = is_put_off_ = was_held_enough_ = false; }
    [[nodiscard]] bool phase_possible(Phase phase) const noexcept;
    void change_phase(Phase phase) noexcept;
    [[nodiscard]] bool leaves_adverts() noexcept;
    void forgo_adverts() noexcept;
    void fill_direct(Transfer& transfer, TransferMessage& message) noexcept;
    void fill_indirect(Transfer& transfer, TransferMessage& message) noexcept;
    [[nodiscard]] std::uint64_t room_in_one_piece() const noexcept {
        return std::min(room(), terms_.ring_bytes - (ring_written_ & (terms_.ring_bytes - 1)));
    }
    void note_piece(std::uint64_t places, bool ends_message) noexcept;
    void gather(std::uint64_t most, Transfer& transfer) noexcept;
    void gather_message(std::uint64_t most, Transfer& transfer, TransferMessage& message) noexcept;
    void give_up(std::uint64_t length) noexcept;

    DirectionTerms terms_;
    std::uint64_t least_;  ///< that a receive takes: a byte, or a mark
    std::uint32_t transfer_bytes_;
    std::uint64_t ring_piece_;  ///< of a transfer to the ring
    std::uint32_t coalesced_bytes_;
    std::uint64_t awaited_bytes_;
    std::uint64_t put_off_bytes_;
    std::uint64_t short_bytes_;
    std::uint32_t short_sends_;
    BoundedQueue<Send> sends_;
    BoundedQueue<Advert> adverts_;
    std::size_t current_ = 0;      ///< the first of sends_ with bytes that have not been given away
    std::uint64_t queued_ = 0;     ///< bytes that the program has sent
    std::uint64_t impatient_ = 0;  ///< ... up to the last one that does not wait for others
    std::uint64_t sequence_ = 0;   ///< ... of which these have been given to transfers
    std::uint64_t written_ = 0;    ///< ... and these have completed
    Phase phase_ = 0;
    Phase last_phase_ = 0;              ///< of the last ADVERT
    std::uint64_t least_sequence_ = 0;  ///< that the next ADVERT can have
    std::uint64_t least_anew_ = 0;      ///< ... if it begins a phase
    std::uint64_t promised_ = 0;        ///< sum of the minimums in adverts_
    std::uint32_t adverts_seen_ = 0;
    std::uint64_t ring_written_ = 0;
    std::uint64_t ring_taken_ = 0;
    std::uint64_t unhurried_ = 0;  ///< of ring_written_: whose ACK may be left
    bool has_patient_ = false;     ///< there was a patient send
    std::uint64_t run_left_ = 0;   ///< of what goes to the ring piece by piece: not gone yet
    std::uint64_t held_from_ = 0;  ///< of ring_written_: nothing is held back before
    std::uint32_t held_in_vain_ = 0;
    bool is_held_ = false;
    bool is_put_off_ = false;         ///< ... for a limited time, though there is room
    bool was_held_enough_ = false;    ///< ... and has waited long enough
    std::uint64_t put_off_from_ = 0;  ///< of ring_written_: nothing is put off before
    bool awaits_ = true;              ///< while transfers are direct
    bool is_awaiting_ = false;
    bool has_awaited_ = false;           ///< since the last transfer
    std::uint32_t awaited_in_vain_ = 0;  ///< times, one behind the other
    std::uint32_t turns_left_ = 0;       ///< to the ring, until an advertisement is awaited again
    /// Of the transfers that found an advertisement, the last ones, that began with a short send.
    std::uint32_t shorts_in_a_row_ = 0;
    bool cancelled_due_ = false;
    bool shut_down_ = false;
    bool ended_ = false;  ///< FIN has been sent
    bool broken_ = false;
    SenderCounts counts_;
};

}  // namespace millrace::stream
