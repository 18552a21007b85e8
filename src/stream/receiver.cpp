#include "receiver.hpp"

#include <algorithm>

namespace millrace::stream {

using base::Status;

namespace {
/// Bytes of which the ACK may be left, if they are no more than an eighth of the ring either.
constexpr std::uint64_t most_left = 4096;
}  // namespace

Receiver::Receiver(const DirectionTerms& terms, const Terms& own)
    : terms_{terms},
      least_{std::max(terms.mark_bytes, 1U)},
      ring_piece_{ring_piece(terms, own.ring_piece_bytes)},
      few_{std::min<std::uint64_t>(terms.ring_bytes / 8, most_left)},
      advertises_again_{own.advertises_again},
      offered_bytes_{terms.mode == Mode::direct ? 0 : own.offered_bytes},
      most_adverts_{terms.adverts},
      marks_{terms.keeps_messages() && terms.mode != Mode::direct
                 ? terms.ring_bytes / terms.mark_bytes
                 : 0},
      receives_{own.receives},
      done_{own.receives} {}

Status Receiver::receive(const ReceiveRequest& request) noexcept {
    if (request.length == 0) return Status::empty;
    if (request.length > longest_operation) return Status::too_large;
    if (broken_) return Status::peer_lost;
    // Each has its place in done_.
    if (receives_.size() + done_.size() >= receives_.capacity()) return Status::full;
    if (!prepare()) return Status::full;
    receives_.push({request, 0, false, false});
    note_offer(request.length);
    if (terms_.keeps_messages()) {
        receives_.back().request.wait_all = false;  // a receive takes a message, and no more
        pass_marks();
    }
    settle_end();
    return Status::ok;
}

Status Receiver::cancel(std::uint64_t id) noexcept {
    std::size_t index = 0;
    while (index < receives_.size() && receives_[index].request.id != id) ++index;
    if (index == receives_.size()) return Status::empty;
    if (index < advertised_) {
        // The sender may be writing there: the buffer comes back with CANCELLED.
        receives_[index].cancelled = true;
        if (!cancelling_) cancel_due_ = cancelling_ = true;
        return Status::ok;
    }
    if (is_begun(receives_[index])) return Status::ok;
    done_.push({id, receives_[index].filled, Status::cancelled});
    offered_ -= receives_[index].request.length;
    receives_.erase(index);
    return Status::ok;
}

bool Receiver::lend(Lent& lent) noexcept {
    if (buffered_ == 0 || !receives_.empty() || !done_.empty()) {
        if (!is_lent_) return false;
        // Receives have come behind it, or were cancelled.
        lent = lent_;
        return true;
    }
    const std::uint64_t offset = taken_ & (terms_.ring_bytes - 1);
    const std::uint64_t left = terms_.keeps_messages() ? left_of_message() : buffered_;
    lent_.ring_offset = offset;
    lent_.length = std::min(left, terms_.ring_bytes - offset);
    lent_.ends_message = lent_.length == left && !marks_.empty();
    is_lent_ = true;
    lent = lent_;
    return true;
}

void Receiver::give_back(std::uint64_t length, bool copied) noexcept {
    is_lent_ = false;
    if (length != 0) leave_ring(length);
    if (lent_.ends_message && length == lent_.length) {
        leave_ring(terms_.mark_bytes);
        marks_.pop();
    }
    if (copied) {
        ++counts_.copies;
    } else {
        counts_.lent_bytes += length;
    }
    if (terms_.keeps_messages()) pass_marks();
    settle_end();
}

/// The program has taken what is first in the ring, or nobody wants it.
void Receiver::leave_ring(std::uint64_t places) noexcept {
    buffered_ -= places;
    taken_ += places;
    sequence_ += places;
}

Violation Receiver::on_direct(const TransferMessage& message) noexcept {
    if (ended_) return Violation::after_end;
    // The advertised receives have the last numbers, and the first of them is next. It waits for a
    // direct transfer unless its advertisement is void.
    if (advertised_ == 0 || is_indirect(phase_) ||
        message.number != adverts_ - static_cast<std::uint32_t>(advertised_)) {
        return Violation::direct_unexpected;
    }
    if (message.sequence != sequence_) return Violation::sequence_gap;
    is_phase_fruitless_ = false;
    most_adverts_ = terms_.adverts;
    if (terms_.keeps_messages()) return on_direct_part(message);
    if (message.length == 0 || message.length > receives_.front().missing()) {
        return Violation::direct_overrun;
    }
    if (message.header.flags != 0) return Violation::message_mark;
    take_direct(message.length);
    const Receive& receive = receives_.front();
    if (!receive.request.wait_all || receive.missing() == 0) complete_front(Status::ok);
    return Violation::none;
}

/// Of a message, for the front receive.
Violation Receiver::on_direct_part(const TransferMessage& message) noexcept {
    const std::uint64_t missing = receives_.front().missing();
    const bool ends = message.ends_message();
    if ((message.length == 0 && !ends) || message.length > missing) {
        return Violation::direct_overrun;
    }
    // It goes on where there is room, and is cut off where there is none.
    if (message.is_cut_off() ? !ends || message.length != missing
                             : !ends && message.length == missing) {
        return Violation::message_mark;
    }
    take_direct(message.length);
    is_message_open_ = !ends;
    if (ends) end_message(message.is_cut_off());
    return Violation::none;
}

Violation Receiver::on_indirect(const TransferMessage& message) noexcept {
    if (ended_) return Violation::after_end;
    if (terms_.mode == Mode::direct) return Violation::indirect_unexpected;
    if (message.sequence != sequence_ + buffered_) return Violation::sequence_gap;
    const std::uint64_t offset = (taken_ + buffered_) & (terms_.ring_bytes - 1);
    std::uint64_t places = message.length;
    is_unhurried_ = message.is_unhurried();
    if (terms_.keeps_messages()) {
        if (is_unhurried_ || message.is_cut_off()) return Violation::message_mark;
        if (message.ends_message()) places += terms_.mark_bytes;
    } else if ((message.header.flags & ~transfer_unhurried) != 0) {
        return Violation::message_mark;
    }
    if (places == 0 || places > terms_.ring_bytes - buffered_ ||
        message.length > terms_.ring_bytes - offset) {
        return Violation::indirect_overrun;
    }
    if (!marks_.prepare()) return Violation::no_memory;
    if (is_direct(phase_)) {
        phase_ = next_phase(phase_);
        ++counts_.phase_changes;
        if (is_phase_fruitless_) most_adverts_ = std::max(most_adverts_ / 2, 1U);
    }
    buffered_ += places;
    counts_.indirect_bytes += message.length;
    ++counts_.indirect_transfers;
    if (terms_.keeps_messages()) {
        is_message_open_ = !message.ends_message();
        if (!is_message_open_) marks_.push(taken_ + buffered_ - terms_.mark_bytes);
        pass_marks();
    }
    return Violation::none;
}

Violation Receiver::on_cancelled(const CancelledMessage& message) noexcept {
    if (ended_) return Violation::after_end;
    if (!cancelling_ || cancel_due_) return Violation::cancelled_unexpected;
    if (message.sequence != sequence_ + buffered_) return Violation::sequence_gap;
    cancelling_ = false;
    advertised_ = 0;
    estimate_ = sequence_;
    for (std::size_t index = 0; index < receives_.size();) {
        Receive& receive = receives_[index];
        if (is_begun(receive)) receive.cancelled = false;
        if (receive.cancelled) {
            done_.push({receive.request.id, receive.filled, Status::cancelled});
            offered_ -= receive.request.length;
            receives_.erase(index);
        } else {
            ++index;
        }
    }
    return Violation::none;
}

Violation Receiver::on_fin(const FinMessage& message) noexcept {
    if (ended_) return Violation::after_end;
    if (message.sequence != sequence_ + buffered_) return Violation::sequence_gap;
    if (is_message_open_) return Violation::message_mark;
    ended_ = true;
    // The sender answers no CANCEL behind its FIN: nothing is written any more.
    cancelling_ = cancel_due_ = false;
    settle_end();
    return Violation::none;
}

void Receiver::break_off() noexcept {
    broken_ = true;
    cancelling_ = cancel_due_ = false;
    while (!receives_.empty()) complete_front(Status::peer_lost);
}

bool Receiver::next_copy(CopyOut& copy) noexcept {
    if (buffered_ == 0 || is_lent_ || receives_.empty()) return false;
    const Receive& receive = receives_.front();
    const std::uint64_t offset = taken_ & (terms_.ring_bytes - 1);
    copy.receive = receive.request.id;
    copy.offset = receive.filled;
    copy.ring_offset = offset;
    const std::uint64_t there = terms_.keeps_messages() ? left_of_message() : buffered_;
    copy.length = std::min({there, receive.missing(), terms_.ring_bytes - offset, ring_piece_});
    buffered_ -= copy.length;
    taken_ += copy.length;
    ++counts_.copies;
    take(copy.length);
    // What is there goes into one receive as far as it fits, also over the end of the ring.
    if (terms_.keeps_messages()) {
        pass_marks();
    } else if (receive.missing() == 0 || (!receive.request.wait_all && buffered_ == 0)) {
        complete_front(Status::ok);
    }
    settle_end();
    return true;
}

/// In the ring, of the message that is next.
std::uint64_t Receiver::left_of_message() const noexcept {
    return marks_.empty() ? buffered_ : marks_.front() - taken_;
}

/// What lies in the ring and needs no copy leaves it: marks, and what does not fit into the front
/// receive. Then next_copy has something to copy, or nothing to do.
void Receiver::pass_marks() noexcept {
    while (buffered_ != 0 && !is_lent_ && !receives_.empty()) {
        Receive& receive = receives_.front();
        const std::uint64_t left = left_of_message();
        if (left != 0) {
            if (receive.missing() != 0) return;
            receive.cut_off = true;
            leave_ring(left);
        } else {
            buffered_ -= terms_.mark_bytes;
            taken_ += terms_.mark_bytes;
            marks_.pop();
            end_message(receive.cut_off);
        }
    }
}

/// The front receive has its message.
void Receiver::end_message(bool cut_off) noexcept {
    sequence_ += terms_.mark_bytes;
    estimate_ += terms_.mark_bytes;
    complete_front(cut_off ? Status::too_large : Status::ok);
}

bool Receiver::is_last_lent_twice() const noexcept {
    constexpr std::size_t most_looked_at = 64;
    if (receives_.empty()) return false;
    const std::size_t others = receives_.size() - 1;
    if (others > most_looked_at) return true;
    const ReceiveRequest& last = receives_[others].request;
    for (std::size_t index = 0; index < others; ++index) {
        const ReceiveRequest& other = receives_[index].request;
        if (last.address < other.address + other.length &&
            other.address < last.address + last.length) {
            return true;
        }
    }
    return false;
}

std::uint64_t Receiver::filled(std::uint64_t id) const noexcept {
    for (std::size_t index = 0; index < receives_.size(); ++index) {
        if (receives_[index].request.id == id) return receives_[index].filled;
    }
    return 0;
}

/// The front receive got `length` bytes of the stream.
void Receiver::take(std::uint64_t length) noexcept {
    receives_.front().filled += length;
    sequence_ += length;
}

/// ... to its advertisement. What it was sure to get is in the estimate already: all of it with
/// MSG_WAITALL, else one byte or a mark (see complete_front).
void Receiver::take_direct(std::uint64_t length) noexcept {
    counts_.direct_bytes += length;
    ++counts_.direct_transfers;
    take(length);
    if (!receives_.front().request.wait_all) estimate_ += length;
}

void Receiver::complete_front(Status status) noexcept {
    const Receive& receive = receives_.front();
    if (advertised_ > 0) {
        if (!receive.request.wait_all) estimate_ -= least_;
        --advertised_;
    }
    done_.push({receive.request.id, receive.filled, status});
    offered_ -= receive.request.length;
    receives_.pop();
}

/// Behind the last byte of the stream every receive ends.
void Receiver::settle_end() noexcept {
    if (!finished()) return;
    while (!receives_.empty()) {
        const Receive& receive = receives_.front();
        complete_front(receive.filled > 0  ? Status::ok
                       : receive.cancelled ? Status::cancelled
                                           : Status::closed);
    }
}

AcknowledgementMessage Receiver::take_acknowledgement() noexcept {
    acknowledged_ = taken_;
    AcknowledgementMessage message;
    message.taken = taken_;
    return message;
}

CancelMessage Receiver::take_cancel() noexcept {
    cancel_due_ = false;
    ++counts_.cancels;
    return {};
}

bool Receiver::may_advertise() const noexcept {
    if (terms_.mode == Mode::indirect || ended_ || broken_ || cancelling_) return false;
    // The hold-off: not while there are bytes in the ring. (That none before it waits to be
    // advertised, k_b of the work, is so by taking them in order.)
    if (buffered_ != 0) return false;
    const bool is_void = is_indirect(phase_) && advertised_ != 0;
    if (is_void && !advertises_again_) return false;
    const std::size_t next = is_void ? 0 : advertised_;
    if (next == receives_.size() || next >= most_adverts_) return false;
    const ReceiveRequest& request = receives_[next].request;
    if (!request.advertised || !is_offered_enough(request.length)) return false;
    // Its message does not fit, and has not ended.
    return !terms_.keeps_messages() || receives_[next].missing() != 0;
}

AdvertMessage Receiver::take_advert() noexcept {
    if (is_indirect(phase_)) {
        phase_ = next_phase(phase_);
        ++counts_.phase_changes;
        // What was advertised before is void. The sender throws it away before it sees this.
        advertised_ = 0;
        estimate_ = sequence_;
        is_phase_fruitless_ = true;
    }
    const Receive& receive = receives_[advertised_];
    AdvertMessage message;
    message.header.flags = receive.request.wait_all ? advert_wait_all : 0;
    message.sequence = estimate_;
    message.phase = phase_;
    message.address = receive.request.address + receive.filled;
    message.length = receive.missing();
    message.key = receive.request.key;
    message.number = adverts_;
    estimate_ += receive.request.wait_all ? receive.missing() : least_;
    ++adverts_;
    ++advertised_;
    ++counts_.adverts;
    return message;
}

}  // namespace millrace::stream
