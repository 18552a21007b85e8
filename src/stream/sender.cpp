#include "sender.hpp"

#include <algorithm>
#include <limits>

namespace millrace::stream {
namespace {

using base::Status;

bool in_range(const AdvertMessage& message) noexcept {
    return message.length != 0 && message.length <= longest_operation &&
           message.address <= std::numeric_limits<std::uint64_t>::max() - message.length;
}

/// As a power of two: of rings, until a send is held back again.
constexpr std::uint32_t most_rings_held_from = 6;
/// The same of turns to the ring, until an advertisement is awaited again.
constexpr std::uint32_t most_turns_until_awaiting = 2;

/// Beyond every stream: sums with such a number do not wrap.
constexpr std::uint64_t beyond = std::uint64_t{1} << 63;

}  // namespace

Sender::Sender(const DirectionTerms& terms, const Terms& own)
    : terms_{terms},
      least_{std::max(terms.mark_bytes, 1U)},
      transfer_bytes_{own.transfer_bytes},
      ring_piece_{ring_piece(terms, own.ring_piece_bytes)},
      coalesced_bytes_{own.coalesced_bytes},
      awaited_bytes_{terms.mode == Mode::dynamic ? own.awaited_bytes : 0},
      put_off_bytes_{own.put_off_bytes},
      short_bytes_{terms.mode == Mode::dynamic ? own.short_bytes : 0},
      short_sends_{own.short_sends},
      sends_{own.sends},
      adverts_{terms.mode == Mode::indirect ? 1 : terms.adverts} {}

Status Sender::send(std::uint64_t id, std::uint64_t length, bool patient, bool at_once) noexcept {
    if (length == 0 && !terms_.keeps_messages()) return Status::empty;
    if (length > longest_operation) return Status::too_large;
    if (broken_) return Status::peer_lost;
    if (shut_down_) return Status::closed;
    if (sends_.full() || !sends_.prepare()) return Status::full;
    const std::uint64_t begin = queued_;
    queued_ += length + terms_.mark_bytes;
    sends_.push({id, begin, queued_, at_once});
    has_patient_ = has_patient_ || patient;
    if (!patient || terms_.keeps_messages()) impatient_ = queued_;
    return Status::ok;
}

// While transfers are direct, or there are advertisements to send to, the receiver has seen no
// switch since the last ADVERT. Otherwise it may have seen one, to indirect, and made one itself.
// It cannot have made more: it switches to direct only where it advertises, and this is the next
// ADVERT.
bool Sender::phase_possible(Phase phase) const noexcept {
    if (is_direct(phase_)) return phase == phase_;
    if (!adverts_.empty()) return phase == last_phase_;
    return phase == last_phase_ || phase == last_phase_ + 2;
}

void Sender::change_phase(Phase phase) noexcept {
    phase_ = phase;
    ++counts_.phase_changes;
}

Violation Sender::on_advert(const AdvertMessage& message) noexcept {
    if (terms_.mode == Mode::indirect || cancelled_due_) return Violation::advert_unexpected;
    if (message.number != adverts_seen_) return Violation::advert_number;
    if (!in_range(message)) return Violation::advert_range;
    if (message.wait_all() && terms_.keeps_messages()) return Violation::malformed;
    ++adverts_seen_;
    // It crossed FIN. Its receive ends there.
    if (ended_) return Violation::none;
    if (!phase_possible(message.phase)) return Violation::advert_phase;
    // A phase begins with an exact place, behind the bytes that ended the one before. The estimates
    // of that one, for receives that are advertised again, may have said more.
    const bool begins_phase = message.phase != last_phase_;
    if (message.sequence < (begins_phase ? least_anew_ : least_sequence_) ||
        message.sequence > beyond) {
        return Violation::advert_sequence;
    }
    const Advert advert{message.address, message.length,     message.key,
                        message.number,  message.wait_all(), false};
    if (begins_phase) least_anew_ = std::max(least_anew_, message.sequence + 1);
    last_phase_ = message.phase;
    least_sequence_ = message.sequence + minimum(advert);
    const bool old_phase = message.phase < phase_;
    // Every advertisement before it that has been filled or is still there stands for its minimum;
    // none says more than that.
    if (!old_phase && message.sequence > sequence_ + promised_) return Violation::advert_sequence;
    if (is_indirect(phase_) && (old_phase || message.sequence < sequence_)) {
        if (phase_ < message.phase) change_phase(next_phase(message.phase));
        ++counts_.adverts_stale;
        return Violation::none;
    }
    if (adverts_.full()) return Violation::advert_overflow;
    if (!adverts_.prepare()) return Violation::no_memory;
    adverts_.push(advert);
    promised_ += minimum(advert);
    return Violation::none;
}

Violation Sender::on_acknowledgement(const AcknowledgementMessage& message) noexcept {
    if (message.taken <= ring_taken_ || message.taken > ring_written_) {
        return Violation::acknowledged_unsent;
    }
    ring_taken_ = message.taken;
    return Violation::none;
}

Violation Sender::on_cancel() noexcept {
    if (terms_.mode == Mode::indirect || cancelled_due_) return Violation::cancel_unexpected;
    // It crossed FIN, which answers it.
    if (ended_) return Violation::none;
    counts_.adverts_withdrawn += adverts_.size();
    adverts_.clear();
    promised_ = 0;
    cancelled_due_ = true;
    return Violation::none;
}

CancelledMessage Sender::take_cancelled() noexcept {
    cancelled_due_ = false;
    // The receiver advertises again when it has taken all that lies before this.
    least_sequence_ = least_anew_ = sequence_;
    CancelledMessage message;
    message.sequence = sequence_;
    return message;
}

FinMessage Sender::take_fin() noexcept {
    ended_ = true;
    adverts_.clear();
    promised_ = 0;
    FinMessage message;
    message.sequence = sequence_;
    return message;
}

bool Sender::next_done(SendDone& done) noexcept {
    if (!has_done()) return false;
    const bool is_written = sends_.front().end <= written_;
    done = {sends_.front().id, is_written ? Status::ok : Status::peer_lost};
    sends_.pop();
    if (current_ != 0) --current_;
    return true;
}

std::uint64_t Sender::next_room() const noexcept {
    if (!adverts_.empty()) return adverts_.front().remaining;
    if (terms_.mode == Mode::direct) return 0;
    return std::min(room_in_one_piece(), ring_piece_);
}

bool Sender::next_transfer(Transfer& transfer, TransferMessage& message) noexcept {
    is_awaiting_ = false;
    if (sequence_ == queued_) return false;
    message.sequence = sequence_;
    bool leaves = false;
    if (!adverts_.empty()) {
        leaves = leaves_adverts();
        if (!leaves) {
            fill_direct(transfer, message);
            return true;
        }
        forgo_adverts();
    }
    if (terms_.mode == Mode::direct) return false;
    // What leaves them goes at once: they count as having come behind that transfer.
    if (!leaves && run_left_ == 0) {
        if (coalesces()) return false;
        if (awaits_advert()) {
            is_awaiting_ = true;
            has_awaited_ = has_awaited_ || is_direct(phase_);
            return false;
        }
        if (holds_back()) {
            is_held_ = true;
            was_held_enough_ = false;
            return false;
        }
        if (puts_off()) {
            is_held_ = is_put_off_ = is_awaiting_ = true;
            return false;
        }
    }
    if (room() == 0 || (terms_.keeps_messages() && lacks_room_for_mark())) return false;
    fill_indirect(transfer, message);
    return true;
}

/// Of the next transfer, for which there is an advertisement.
bool Sender::leaves_adverts() noexcept {
    const Send& next = sends_[current_];
    const std::uint64_t length = next.end - next.begin - terms_.mark_bytes;
    if (next.begin == sequence_) {
        shorts_in_a_row_ = length < short_bytes_ ? std::min(shorts_in_a_row_ + 1, short_sends_) : 0;
    }
    return forgoes(length);
}

/// As if they had come behind the transfer to the ring that follows at once. Requires forgoes().
void Sender::forgo_adverts() noexcept {
    if (is_indirect(phase_)) change_phase(next_phase(last_phase_));
    counts_.adverts_forgone += adverts_.size();
    adverts_.clear();
    promised_ = 0;
}

void Sender::fill_direct(Transfer& transfer, TransferMessage& message) noexcept {
    Advert& advert = adverts_.front();
    if (is_indirect(phase_)) change_phase(last_phase_);
    run_left_ = 0;
    if (is_held_) {
        end_hold();
        held_in_vain_ = 0;
    }
    awaits_ = turns_left_ == 0;
    if (has_awaited_) {
        has_awaited_ = false;
        awaited_in_vain_ = 0;
    }
    if (!advert.used) ++counts_.adverts_used;
    advert.used = true;
    promised_ -= minimum(advert);
    transfer.direct = true;
    transfer.address = advert.address;
    transfer.key = advert.key;
    message.header.kind = MessageKind::direct;
    if (terms_.keeps_messages()) {
        gather_message(advert.remaining, transfer, message);
    } else {
        gather(advert.remaining, transfer);
    }
    message.length = transfer.length;
    message.number = advert.number;
    advert.address += transfer.length;
    advert.remaining -= transfer.length;
    // It stays at the head until it is filled (MSG_WAITALL), or until its message ends.
    const bool stays = terms_.keeps_messages() ? !message.ends_message()
                                               : advert.wait_all && advert.remaining != 0;
    if (stays) {
        promised_ += minimum(advert);
    } else {
        adverts_.pop();
    }
    counts_.direct_bytes += transfer.length;
    ++counts_.direct_transfers;
}

void Sender::fill_indirect(Transfer& transfer, TransferMessage& message) noexcept {
    const bool turns = is_direct(phase_);
    if (turns) {
        change_phase(next_phase(phase_));
        if (turns_left_ != 0) --turns_left_;
        put_off_from_ = ring_written_ + put_off_bytes_;
    }
    if (has_awaited_) {
        has_awaited_ = false;
        awaited_in_vain_ = std::min(awaited_in_vain_ + 1, most_turns_until_awaiting);
        turns_left_ = (1U << awaited_in_vain_) - 1;
    }
    if (is_held_) {
        end_hold();
        held_in_vain_ = std::min(held_in_vain_ + 1, most_rings_held_from);
        held_from_ = ring_written_ + (terms_.ring_bytes << held_in_vain_);
    }
    const std::uint64_t offset = ring_written_ & (terms_.ring_bytes - 1);
    transfer.direct = false;
    transfer.address = offset;
    transfer.key = 0;
    message.header.kind = MessageKind::indirect;
    // A transfer does not go on over the end of the ring.
    if (terms_.keeps_messages()) {
        gather_message(next_room(), transfer, message);
    } else {
        gather(next_room(), transfer);
    }
    if (turns) least_anew_ = sequence_;
    message.length = transfer.length;
    message.number = 0;
    if (transfer.places >= ring_piece_) [[unlikely]] {
        note_piece(transfer.places, message.ends_message());
    } else {
        run_left_ = 0;
    }
    ring_written_ += transfer.places;
    if (!has_patient_ && !terms_.keeps_messages()) {
        message.header.flags = transfer_unhurried;
        unhurried_ = ring_written_;
    }
    counts_.indirect_bytes += transfer.length;
    ++counts_.indirect_transfers;
}

/// A transfer of as many bytes as a piece has been made, and is not in ring_written_ yet.
void Sender::note_piece(std::uint64_t places, bool ends_message) noexcept {
    if (run_left_ != 0) {
        run_left_ -= std::min(run_left_, places);
        return;
    }
    std::uint64_t room = room_in_one_piece();
    if (put_off_bytes_ != 0 && awaited_bytes_ != 0 && adverts_seen_ != 0) {
        // A run goes as far as the first place that something is put off at.
        const std::uint64_t put_off_at = std::max(held_from_, put_off_from_);
        room = std::min(room, put_off_at - std::min(put_off_at, ring_written_));
    }
    std::uint64_t end = queued_;
    if (terms_.keeps_messages()) end = ends_message ? sequence_ : sends_[current_].end;
    run_left_ = std::min(room - std::min(room, places), end - sequence_);
}

void Sender::gather(std::uint64_t most, Transfer& transfer) noexcept {
    most = std::min<std::uint64_t>({most, transfer_bytes_, queued_ - sequence_});
    std::uint32_t count = 0;
    std::uint64_t taken = 0;
    while (taken < most && count < most_pieces) {
        const Send& send = sends_[current_];
        const std::uint64_t from = sequence_ + taken;
        const std::uint64_t length = std::min(send.end - from, most - taken);
        transfer.pieces[count++] = {send.id, from - send.begin, static_cast<std::uint32_t>(length)};
        taken += length;
        if (from + length == send.end) ++current_;
    }
    transfer.piece_count = count;
    transfer.length = transfer.places = static_cast<std::uint32_t>(taken);
    sequence_ += taken;
}

/// Of the current message as much as may go, and its mark if that is all, or all that the
/// advertisement has room for.
void Sender::gather_message(std::uint64_t most, Transfer& transfer,
                            TransferMessage& message) noexcept {
    const Send& send = sends_[current_];
    const std::uint64_t rest = send.end - terms_.mark_bytes - sequence_;
    const std::uint64_t length = std::min<std::uint64_t>({most, transfer_bytes_, rest});
    transfer.piece_count = 0;
    if (length != 0) {
        transfer.pieces[0] = {send.id, sequence_ - send.begin, static_cast<std::uint32_t>(length)};
        transfer.piece_count = 1;
    }
    const bool is_cut_off = transfer.direct && length == most && length < rest;
    const bool is_whole =
        length == rest && (transfer.direct || room() >= length + terms_.mark_bytes);
    transfer.length = transfer.places = static_cast<std::uint32_t>(length);
    if (is_cut_off) give_up(rest - length);
    if (is_cut_off || is_whole) {
        message.header.flags = transfer_ends_message;
        if (is_cut_off) message.header.flags |= transfer_cut_off;
        transfer.places += terms_.mark_bytes;
        ++current_;
    }
    sequence_ += transfer.places;
}

/// The last `length` bytes of the current message get no place in the stream.
void Sender::give_up(std::uint64_t length) noexcept {
    for (std::size_t index = current_; index < sends_.size(); ++index) {
        if (index != current_) sends_[index].begin -= length;
        sends_[index].end -= length;
    }
    queued_ -= length;
    impatient_ -= length;
}

}  // namespace millrace::stream
