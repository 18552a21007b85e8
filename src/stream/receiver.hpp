// The receiving half of one direction of a byte stream: which receive gets which bytes, and when to
// advertise. Pure state, no I/O; used by Connection.
//
//   sequence   S_r of the work: bytes that have reached receives
//   estimate   S'_r: where the next receive to be advertised will begin, at least; in even phases
//   buffered   b_r: bytes in the ring
//   phase      P_r: even while transfers come to advertisements, odd since one came to the ring
//   receives   in order; the first `advertised` of them have been advertised
//
//     receives    | R1   R2   R3 | R4   R5 |     phase even: R1 … R3 wait for direct transfers
//                  `advertised'  `waiting'       phase odd:  their ADVERTs are void: the sender
//                                                            turned to the ring without them
//
// Invariants: in even phases estimate = sequence + the sum, over the advertised receives, of 1, or
// with MSG_WAITALL of the bytes that were missing when it was advertised, less those that came
// since. buffered > 0 only in odd phases. Void and live advertisements do not stand side by side,
// because of the hold-off: in an odd phase nothing is advertised before the ring is empty. Then
// sequence is exact, and the next phase begins, with advertisements of all receives that are left:
// those whose advertisements are void, too, are advertised anew.
//
// Work 003 holds off until the void ones have been filled from the ring, also behind an empty one.
// That is not needed for what it proves (docs/design/stream.md, "Advertising again"), and keeps
// the sender at the ring for as many bytes as were advertised. So that an advertisement that is
// always late costs one message each time, and not one for every receive: where a phase ends
// without a direct transfer, the next one begins with half as many advertisements, one at least;
// behind a direct transfer there are as many as ever.
//
// Who offers few bytes at a time, as one short receive behind the other, is not waited for: a
// sender whose advertisements are used up waits until the program has read the last receive and
// offers the next one, while through the ring both are busy. So short receives are advertised only
// where all that are offered take some bytes together (Terms::offered_bytes).
//
// Cancelling a receive that was advertised: CANCEL takes back all advertisements (not one:
// estimates behind it depend on it), nothing is advertised until CANCELLED is there, and what was
// not filled meanwhile is advertised anew. Only then is the cancelled receive's buffer the
// program's again.
//
// Where messages are kept (SOCK_SEQPACKET, sender.hpp), each receive takes one message: 1 above is
// then the places of a mark, which is what an empty message takes. A receive ends with its
// message's mark; what does not fit is dropped, and said. The places of marks in the ring are kept
// here, in `marks`. A receive that has a part of a message is not cancelled any more, as the rest
// would be taken for a message.
//
// Lending: where no receive is outstanding, the program may look at the first bytes of the ring
// where they lie, and take as many of them as it likes when it gives them back. Until then they
// count as buffered: nothing is copied, acknowledged or advertised, so a view that is kept stalls
// the peer, and harms nobody else.
//
// Source: work 003, "Pre-Advertisement Sending Algorithm", "Receive Transfer Processing Algorithm",
// "Intermediate Buffer Copy Algorithm"; cancelling and the end of the stream are not in it.
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

/// What the program offers to receive into.
struct ReceiveRequest {
    std::uint64_t id = 0;       ///< the program's name of it; no two at a time are equal
    std::uint64_t address = 0;  ///< as the peer's WRITE has to name it
    std::uint64_t length = 0;
    std::uint32_t key = 0;
    bool wait_all = false;  ///< MSG_WAITALL
    /// May be advertised. One that may not is filled from the ring, and those behind it are not
    /// advertised before; in mode direct it would wait for ever.
    bool advertised = true;
};

/// Bytes of the ring that the program looks at where they lie.
struct Lent {
    std::uint64_t ring_offset = 0;
    std::uint64_t length = 0;
    bool ends_message = false;  ///< the mark of their message lies behind them
};

class Receiver {
  public:
    /// `own`: of this end; `terms`: of the direction.
    Receiver(const DirectionTerms& terms, const Terms& own);

    // ---- the program

    /// Makes the memory that receives take. False: there is none now.
    [[nodiscard]] bool prepare() noexcept { return receives_.prepare() && done_.prepare(); }
    /// The buffer is the peer's until ReceiveDone. `full`: as many receives as there may be, or no
    /// memory for the first; `empty`, `too_large`: a length that no receive has.
    [[nodiscard]] base::Status receive(const ReceiveRequest& request) noexcept;
    /// `ok`: a ReceiveDone follows, with `cancelled` unless bytes come first (of a message, the
    /// first of them); `empty`: there is no such receive any more.
    [[nodiscard]] base::Status cancel(std::uint64_t id) noexcept;
    /// What is first in the ring, in one piece and of one message, until it is given back: asked
    /// again before that, with what has come behind it. False: there is nothing, or there are
    /// receives before it, whose end the program may not know yet.
    [[nodiscard]] bool lend(Lent& lent) noexcept;
    /// The first `length` bytes of what was lent last leave the ring, and with all of them the mark
    /// behind them; the others stay there. Requires is_lent(), and no more than there were.
    /// `copied`: they were lent for that alone, and count as a copy.
    void give_back(std::uint64_t length, bool copied = false) noexcept;
    [[nodiscard]] bool is_lent() const noexcept { return is_lent_; }

    // ---- the peer

    [[nodiscard]] Violation on_direct(const TransferMessage& message) noexcept;
    [[nodiscard]] Violation on_indirect(const TransferMessage& message) noexcept;
    [[nodiscard]] Violation on_cancelled(const CancelledMessage& message) noexcept;
    [[nodiscard]] Violation on_fin(const FinMessage& message) noexcept;

    // ---- the device

    /// The peer can write no more: every receive ends with peer_lost.
    void break_off() noexcept;

    // ---- what is to be done

    [[nodiscard]] bool has_done() const noexcept { return !done_.empty(); }
    bool next_done(ReceiveDone& done) noexcept {
        if (done_.empty()) return false;
        done = done_.front();
        done_.pop();
        return true;
    }
    /// A copy that is to be done before anything else is asked.
    bool next_copy(CopyOut& copy) noexcept;
    [[nodiscard]] bool owes_acknowledgement() const noexcept {
        return taken_ != acknowledged_ && !leaves_acknowledgement();
    }
    /// ... before the other copies that there are to do: the peer may be waiting for that room.
    [[nodiscard]] bool owes_acknowledgement_early() const noexcept {
        return taken_ - acknowledged_ >= ring_piece_ && buffered_ != 0;
    }
    [[nodiscard]] AcknowledgementMessage take_acknowledgement() noexcept;
    [[nodiscard]] bool owes_cancel() const noexcept { return cancel_due_; }
    [[nodiscard]] CancelMessage take_cancel() noexcept;
    [[nodiscard]] bool may_advertise() const noexcept;
    /// Bytes that the receive `id` has got; 0: there is no such receive any more.
    [[nodiscard]] std::uint64_t filled(std::uint64_t id) const noexcept;
    /// The first ADVERT behind the hold-off is due.
    [[nodiscard]] bool may_resume() const noexcept {
        return is_indirect(phase_) && may_advertise();
    }
    /// Requires may_advertise().
    [[nodiscard]] AdvertMessage take_advert() noexcept;

    // ---- state, for reports and tests

    [[nodiscard]] const ReceiverCounts& counts() const noexcept { return counts_; }
    [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
    /// Where the next receive to be advertised begins, at least.
    [[nodiscard]] std::uint64_t estimate() const noexcept {
        return is_direct(phase_) ? estimate_ : sequence_;
    }
    [[nodiscard]] std::uint64_t buffered() const noexcept { return buffered_; }
    [[nodiscard]] Phase phase() const noexcept { return phase_; }
    [[nodiscard]] std::size_t advertised() const noexcept { return advertised_; }
    [[nodiscard]] std::size_t outstanding() const noexcept { return receives_.size(); }
    /// Some of the last receive's memory is that of another one, too; or there are so many that
    /// this is not looked for.
    [[nodiscard]] bool is_last_lent_twice() const noexcept;
    /// The peer's FIN has come.
    [[nodiscard]] bool ended() const noexcept { return ended_; }
    /// The peer's FIN has come and everything before it has been received.
    [[nodiscard]] bool finished() const noexcept { return ended_ && buffered_ == 0; }

  private:
    struct Receive {
        ReceiveRequest request;
        std::uint64_t filled = 0;
        bool cancelled = false;  ///< ends with the next CANCELLED
        bool cut_off = false;    ///< bytes of its message were dropped

        [[nodiscard]] std::uint64_t missing() const noexcept { return request.length - filled; }
    };

    /// A part of its message lies in it.
    [[nodiscard]] bool is_begun(const Receive& receive) const noexcept {
        return terms_.keeps_messages() && receive.filled != 0;
    }
    /// Of a few bytes, while most of the ring is free: nobody waits for their room. Who advertises
    /// is waited for: a sender that holds back goes on when the ring is empty.
    [[nodiscard]] bool leaves_acknowledgement() const noexcept {
        return is_unhurried_ && counts_.adverts == 0 && taken_ - acknowledged_ < few_ &&
               buffered_ <= terms_.ring_bytes / 4;
    }
    /// The program offers enough at a time for a receive of `length` bytes to be advertised. What
    /// it offered at most is forgotten by a 64th with each receive: who takes several completions
    /// before it offers anew has offered as much as before.
    [[nodiscard]] bool is_offered_enough(std::uint64_t length) const noexcept {
        return length >= offered_bytes_ || most_offered_ >= offered_bytes_ - offered_bytes_ / 8;
    }
    void note_offer(std::uint64_t length) noexcept {
        offered_ += length;
        most_offered_ = std::max(offered_, most_offered_ - most_offered_ / 64);
    }
    Violation on_direct_part(const TransferMessage& message) noexcept;
    void take(std::uint64_t length) noexcept;
    void take_direct(std::uint64_t length) noexcept;
    [[nodiscard]] std::uint64_t left_of_message() const noexcept;
    void leave_ring(std::uint64_t places) noexcept;
    [[gnu::noinline]] void pass_marks() noexcept;
    void end_message(bool cut_off) noexcept;
    void complete_front(base::Status status) noexcept;
    void settle_end() noexcept;

    DirectionTerms terms_;
    std::uint64_t least_;       ///< that a receive takes: a byte, or a mark
    std::uint64_t ring_piece_;  ///< that is copied at a time
    std::uint64_t few_;         ///< bytes whose ACK may be left
    bool advertises_again_;
    std::uint64_t offered_bytes_;        ///< Terms::offered_bytes; mode direct: 0
    std::uint64_t offered_ = 0;          ///< bytes of all receives
    std::uint64_t most_offered_ = 0;     ///< ... at most, lately
    std::uint32_t most_adverts_;         ///< that are not void, at a time
    bool is_phase_fruitless_ = false;    ///< ADVERTs are out, and no direct transfer has come
    BoundedQueue<std::uint64_t> marks_;  ///< in the ring: their places, counted as taken_ is
    bool is_message_open_ = false;       ///< its mark has not come
    bool is_unhurried_ = false;          ///< the last transfer to the ring
    BoundedQueue<Receive> receives_;
    BoundedQueue<ReceiveDone> done_;
    std::size_t advertised_ = 0;
    std::uint32_t adverts_ = 0;  ///< ADVERTs so far: the next one's number
    std::uint64_t sequence_ = 0;
    std::uint64_t estimate_ = 0;
    Phase phase_ = 0;
    std::uint64_t buffered_ = 0;
    std::uint64_t taken_ = 0;  ///< bytes that have left the ring
    std::uint64_t acknowledged_ = 0;
    bool cancelling_ = false;  ///< from cancel() to CANCELLED
    bool cancel_due_ = false;  ///< ... and CANCEL has not been sent
    Lent lent_;
    bool is_lent_ = false;
    bool ended_ = false;  ///< FIN has come
    bool broken_ = false;
    ReceiverCounts counts_;
};

}  // namespace millrace::stream
