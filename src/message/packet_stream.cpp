// PacketStream, see the header.
#include "packet_stream.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "millrace/message/session.hpp"

namespace millrace::message {

using base::Status;

namespace {

/// Packets lie at multiples of it, so that what is read in place is aligned.
constexpr std::size_t alignment = 16;
constexpr unsigned most_doublings = 10;

[[nodiscard]] constexpr std::size_t rounded(std::size_t bytes) noexcept {
    return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

PacketStream::PacketStream(const PacketTerms& terms, std::span<std::byte> memory)
    : terms_{terms},
      memory_{
          memory.first((memory.size() - bare_places * packet_head_bytes) / alignment * alignment)},
      bare_memory_{memory_.data() + memory_.size()},
      consumed_{terms.own_first},
      expected_{terms.own_first},
      told_limit_{terms.own_first + terms.own_room},
      gap_told_{terms.own_first},
      spare_(terms.spare_bytes),
      assembled_{terms.max_message_bytes, HeldPart{terms.held}},
      freed_{terms.peer_first},
      unacknowledged_{terms.peer_first},
      unsent_{terms.peer_first},
      laid_{terms.peer_first},
      limit_{terms.peer_first + terms.peer_room} {}

// --- what comes

PacketStream::Arrival PacketStream::receive(std::span<const std::byte> packet, std::uint32_t slot,
                                            Time now, bool may_keep) {
    PacketHead head;
    std::span<const std::byte> payload;
    if (!parse(packet, head, payload) || head.token != terms_.own_token) {
        ++counts_.foreign;
        return Arrival::foreign;
    }
    if (is_broken()) return Arrival::passed;
    const std::uint32_t expected = expected_;
    const std::uint64_t beyond = beyond_;
    const bool has_moved = take_state(head, now);
    Arrival arrival = Arrival::passed;
    if (!is_broken() && (head.flags & packet_data) != 0) {
        arrival = take_data(head, payload, slot, may_keep);
    }
    if ((head.flags & (packet_asks | packet_probes)) != 0) owes_state_ = true;
    if ((head.flags & packet_probes) != 0) repeat_oldest();
    if (has_moved || expected_ != expected || beyond_ != beyond) {
        restart(now);
    }
    return arrival;
}

bool PacketStream::take_state(const PacketHead& head, Time now) noexcept {
    // What an overtaken packet says of the past is known.
    if (distance(unacknowledged_, head.acknowledged) < 0) return false;
    const std::int32_t behind = distance(head.acknowledged, unsent_);
    if (behind < 0 || (behind == 0 && head.received != 0) ||
        (behind > 0 && behind <= 64 && (head.received >> (behind - 1)) != 0)) {
        fail("it acknowledges packets that were not sent");
        return false;
    }
    bool has_moved = false;
    bool is_of_repeated = false;
    const auto acknowledge = [&](Laid& packet) {
        if (packet.is_acknowledged) return;
        is_of_repeated = is_of_repeated || packet.is_repeated;
        note_acknowledged(packet, now);
        has_moved = true;
    };
    for (; unacknowledged_ != head.acknowledged; ++unacknowledged_) {
        acknowledge(laid(unacknowledged_));
    }
    for (std::uint64_t bits = head.received; bits != 0; bits &= bits - 1) {
        acknowledge(
            laid(head.acknowledged + 1 + static_cast<std::uint32_t>(std::countr_zero(bits))));
    }
    const std::uint32_t limit = head.acknowledged + head.room;
    if (distance(limit_, limit) > 0) {
        limit_ = limit;
        is_blocked_ = false;
        has_moved = true;
    }
    // Otherwise nothing was acknowledged that was sent behind what is not.
    if (has_moved && (head.received != 0 || is_of_repeated)) repeat_overtaken();
    return has_moved;
}

void PacketStream::note_acknowledged(Laid& packet, Time now) noexcept {
    packet.is_acknowledged = true;
    if (packet.is_due) {
        packet.is_due = false;
        --due_packets_;
    }
    order_acknowledged_ = std::max(order_acknowledged_, packet.order);
    // Of a packet that was sent again nobody knows which transmission it is that has arrived.
    if (terms_.has_timer && !packet.is_repeated) measure(now - packet.sent);
}

void PacketStream::repeat_overtaken() noexcept {
    for (std::uint32_t number = unacknowledged_; number != unsent_; ++number) {
        Laid& packet = laid(number);
        if (packet.order + tolerance <= order_acknowledged_) repeat(packet);
    }
}

void PacketStream::repeat_oldest() noexcept {
    std::uint32_t count = 0;
    for (std::uint32_t number = unacknowledged_; number != unsent_ && count < repeats; ++number) {
        Laid& packet = laid(number);
        if (packet.is_acknowledged) continue;
        repeat(packet);
        ++count;
    }
}

PacketStream::Arrival PacketStream::take_data(const PacketHead& head,
                                              std::span<const std::byte> payload,
                                              std::uint32_t slot, bool may_keep) noexcept {
    const std::int32_t ahead = distance(expected_, head.sequence);
    if (ahead < 0 || (ahead > 0 && ahead <= 64 && ((beyond_ >> (ahead - 1)) & 1) != 0)) {
        ++counts_.duplicates;
        return Arrival::passed;
    }
    if (distance(head.sequence, own_limit()) <= 0) {
        fail("it sends more than there is room for");
        return Arrival::passed;
    }
    if (end_.has_value() && distance(head.sequence, *end_) <= 0) {
        fail("it sends behind its end");
        return Arrival::passed;
    }
    Arrival arrival = Arrival::kept;
    if (!may_keep) {
        if (ahead != 0 || spare_is_taken_ || payload.size() > spare_.size()) {
            ++counts_.dropped;
            return Arrival::passed;
        }
        std::ranges::copy(payload, spare_.begin());
        payload = std::span{spare_}.first(payload.size());
        slot = spare_slot;
        spare_is_taken_ = true;
        arrival = Arrival::passed;
    }
    held_[head.sequence & index_mask] = {payload.data(), slot, head.length, head.flags};
    ++counts_.received;
    if (ahead == 0) {
        bool more = true;
        while (more) {
            ++expected_;
            more = (beyond_ & 1) != 0;
            beyond_ >>= 1;
        }
        return arrival;
    }
    beyond_ |= std::uint64_t{1} << (ahead - 1);
    if (static_cast<std::uint64_t>(ahead) >= tolerance &&
        (!has_told_gap_ || gap_told_ != expected_)) {
        has_told_gap_ = true;
        gap_told_ = expected_;
        owes_state_ = true;
    }
    return Arrival::kept;
}

bool PacketStream::take_free(std::uint32_t& slot) noexcept {
    if (free_slots_.empty()) return false;
    slot = free_slots_.front();
    free_slots_.pop();
    return true;
}

void PacketStream::drop_held() noexcept {
    for (std::uint32_t number = consumed_; number != expected_; ++number) {
        free(held_[number & index_mask]);
    }
    for (std::uint64_t bits = beyond_; bits != 0; bits &= bits - 1) {
        const auto ahead = static_cast<std::uint32_t>(std::countr_zero(bits));
        free(held_[(expected_ + 1 + ahead) & index_mask]);
    }
    consumed_ = expected_;
    beyond_ = 0;
    fail("this end reads no more");
}

void PacketStream::free(const Held& held) noexcept {
    if (held.slot == spare_slot) {
        spare_is_taken_ = false;
    } else {
        (void)free_slots_.push(held.slot);
    }
}

void PacketStream::release_front() noexcept {
    free(held_[consumed_ & index_mask]);
    ++consumed_;
    const std::uint32_t due = std::max(terms_.own_room > 1 ? 2U : 1U, terms_.own_room / 2);
    if (own_limit() - told_limit_ >= due) owes_state_ = true;
}

Status PacketStream::look(std::span<const std::byte>& message) {
    if (is_broken()) return Status::peer_lost;
    if (whole_) {
        message = assembled_.bytes();
        return is_too_large_ ? Status::too_large : Status::ok;
    }
    while (consumed_ != expected_) {
        const Held& front = held_[consumed_ & index_mask];
        const std::span<const std::byte> payload{front.payload, front.length};
        const bool is_first = (front.flags & packet_first) != 0;
        const bool is_last = (front.flags & packet_last) != 0;
        if (is_first == (is_assembling_ || is_skipping_)) {
            fail("it sends pieces of no message");
            return Status::peer_lost;
        }
        if (is_skipping_) {
            is_skipping_ = !is_last;
            release_front();
            continue;
        }
        if (is_first && is_last && payload.size() <= terms_.max_message_bytes) {
            message = payload;
            return Status::ok;
        }
        if (is_first) assembled_.begin();
        if (!assembled_.append(payload)) {
            assembled_.keep_head(payload);
            is_assembling_ = false;
            is_skipping_ = !is_last;
            release_front();
            whole_ = is_too_large_ = true;
            message = assembled_.bytes();
            return Status::too_large;
        }
        is_assembling_ = !is_last;
        release_front();
        if (!is_last) continue;
        whole_ = true;
        message = assembled_.bytes();
        return Status::ok;
    }
    if (!has_ended()) return Status::empty;
    if (is_assembling_) {
        fail("it ends within a message");
        return Status::peer_lost;
    }
    return Status::closed;
}

void PacketStream::pass() noexcept {
    if (!whole_) {
        release_front();
        return;
    }
    whole_ = is_too_large_ = false;
    assembled_.clear();
}

// --- what goes

void PacketStream::free_packets() noexcept {
    while (freed_ != unacknowledged_ && laid(freed_).ticket <= completed_) ++freed_;
    if (freed_ == laid_) front_ = 0;
}

std::optional<std::size_t> PacketStream::place_for(std::size_t bytes) noexcept {
    free_packets();
    lacks_completions_ = freed_ != unacknowledged_;
    if (laid_ - freed_ >= most_packets) return std::nullopt;
    if (laid_ == limit_) {
        is_blocked_ = true;
        return std::nullopt;
    }
    if (freed_ == laid_) return bytes <= memory_.size() ? std::optional{front_} : std::nullopt;
    const std::size_t back = laid(freed_).offset;
    // Were front and back the same, full would be empty.
    if (front_ <= back) return front_ + bytes < back ? std::optional{front_} : std::nullopt;
    if (front_ + bytes <= memory_.size()) return front_;
    return bytes < back ? std::optional{std::size_t{0}} : std::nullopt;
}

void PacketStream::lay(std::size_t offset, std::size_t payload, std::uint16_t flags) noexcept {
    const std::size_t bytes = packet_head_bytes + payload;
    laid(laid_) = {.offset = offset, .bytes = bytes, .flags = flags};
    ++laid_;
    front_ = offset + rounded(bytes);
    claimed_bytes_ = 0;
}

Status PacketStream::claim(std::size_t size, std::span<std::byte>& place) noexcept {
    if (is_broken()) return Status::peer_lost;
    if (size > longest_single()) return Status::too_large;
    if (!waiting_.empty()) return Status::full;
    const std::size_t bytes = rounded(packet_head_bytes + size);
    if (bytes > claimed_bytes_) {
        const std::optional<std::size_t> offset = place_for(bytes);
        if (!offset.has_value()) return Status::full;
        claimed_ = *offset;
        claimed_bytes_ = bytes;
    }
    place = memory_.subspan(claimed_ + packet_head_bytes, size);
    return Status::ok;
}

void PacketStream::commit(std::size_t size) noexcept { lay(claimed_, size, packet_whole); }

Status PacketStream::send(std::span<const std::byte> head, std::span<const std::byte> payload) {
    const std::size_t size = head.size() + payload.size();
    std::span<std::byte> place;
    const Status status = claim(size, place);
    if (status == Status::peer_lost) return status;
    std::vector<std::byte> kept;
    if (status != Status::ok) {
        kept.resize(size);
        place = kept;
    }
    if (!head.empty()) std::memcpy(place.data(), head.data(), head.size());
    if (!payload.empty()) std::memcpy(place.data() + head.size(), payload.data(), payload.size());
    if (status == Status::ok) {
        commit(size);
    } else {
        waiting_bytes_ += size;
        waiting_.push_back(std::move(kept));
    }
    return Status::ok;
}

bool PacketStream::cut() noexcept {
    if (waiting_.empty()) return false;
    const std::span<const std::byte> whole = waiting_.front();
    const std::size_t length = std::min(whole.size() - begun_, longest_single());
    const std::optional<std::size_t> offset = place_for(rounded(packet_head_bytes + length));
    if (!offset.has_value()) return false;
    if (length != 0) {
        std::memcpy(memory_.data() + *offset + packet_head_bytes, whole.data() + begun_, length);
    }
    std::uint16_t flags = packet_data;
    if (begun_ == 0) flags |= packet_first;
    begun_ += length;
    flushed_bytes_ += length;
    const bool is_last = begun_ == whole.size();
    if (is_last) flags |= packet_last;
    lay(*offset, length, flags);
    if (is_last) {
        waiting_bytes_ -= whole.size();
        waiting_.pop_front();
        begun_ = 0;
    }
    return true;
}

bool PacketStream::asks(std::size_t bytes) const noexcept {
    return asked_ >= terms_.peer_room / 2 || asked_bytes_ + bytes >= memory_.size() / 2;
}

std::span<const std::byte> PacketStream::offer(std::byte* place, std::uint32_t sequence,
                                               std::size_t payload, std::uint16_t flags) noexcept {
    if (owes_probe_) flags |= packet_probes;
    offered_flags_ = flags;
    const PacketHead head{.token = terms_.peer_token,
                          .received = beyond_,
                          .sequence = sequence,
                          .acknowledged = expected_,
                          .room = static_cast<std::uint16_t>(own_limit() - expected_),
                          .length = static_cast<std::uint16_t>(payload),
                          .flags = flags};
    std::memcpy(place, &head, sizeof head);
    return {place, packet_head_bytes + payload};
}

bool PacketStream::next(std::span<const std::byte>& packet, Time now, bool with_bare) noexcept {
    if (is_broken()) return false;
    lacks_completions_ = false;
    if (terms_.has_timer && !is_timed_ && is_waiting()) restart(now);
    offered_bare_ = bare_places;
    is_offered_as_it_was_ = false;
    if (due_packets_ != 0) [[unlikely]] {
        for (std::uint32_t number = unacknowledged_; number != unsent_; ++number) {
            const Laid& again = laid(number);
            if (!again.is_due) continue;
            offered_ = number;
            // While it is under way its memory must not be touched: what it says of the other
            // direction is of the past then, and known to be.
            is_offered_as_it_was_ = again.ticket > completed_;
            packet = is_offered_as_it_was_
                         ? std::span<const std::byte>{memory_.data() + again.offset, again.bytes}
                         : offer(memory_.data() + again.offset, number,
                                 again.bytes - packet_head_bytes, again.flags);
            return true;
        }
    }
    if (unsent_ != laid_ || cut()) {
        if (unsent_ == unacknowledged_) asked_ = 0, asked_bytes_ = 0;
        const Laid& fresh = laid(unsent_);
        offered_ = unsent_;
        packet =
            offer(memory_.data() + fresh.offset, unsent_, fresh.bytes - packet_head_bytes,
                  static_cast<std::uint16_t>(fresh.flags | (asks(fresh.bytes) ? packet_asks : 0)));
        return true;
    }
    if (!owes_probe_ && !(owes_state_ && with_bare)) return false;
    for (std::size_t place = 0; place < bare_places; ++place) {
        if (bare_tickets_[place] > completed_) continue;
        offered_bare_ = place;
        packet = offer(bare_memory_ + place * packet_head_bytes, unsent_, 0, 0);
        return true;
    }
    lacks_completions_ = true;
    return false;
}

void PacketStream::posted(std::uint64_t ticket, Time now) noexcept {
    if (!is_offered_as_it_was_) {
        owes_state_ = false;
        owes_probe_ = false;
        told_limit_ = own_limit();
    }
    if (offered_bare_ != bare_places) {
        bare_tickets_[offered_bare_] = ticket;
        ++counts_.bare;
        return;
    }
    Laid& packet = laid(offered_);
    packet.ticket = ticket;
    packet.order = ++orders_;
    packet.sent = now;
    ++counts_.sent;
    if (packet.is_due) {
        packet.is_due = false;
        packet.is_repeated = true;
        --due_packets_;
        ++counts_.repeated;
        return;
    }
    ++unsent_;
    ++asked_;
    asked_bytes_ += packet.bytes;
    if ((offered_flags_ & packet_asks) != 0) asked_ = 0, asked_bytes_ = 0;
}

// --- time

std::chrono::nanoseconds PacketStream::patience() const noexcept {
    const auto once =
        round_trip_.count() == 0
            ? terms_.first_patience
            : std::clamp(round_trip_ + 4 * variation_, terms_.least_patience, terms_.most_patience);
    return std::min(once * (1U << std::min(attempts_, most_doublings)), terms_.most_patience);
}

void PacketStream::restart(Time now) noexcept {
    attempts_ = 0;
    is_timed_ = terms_.has_timer && is_waiting();
    if (is_timed_) due_ = now + patience();
}

void PacketStream::measure(std::chrono::nanoseconds round_trip) noexcept {
    round_trip = std::max(round_trip, std::chrono::nanoseconds{1});
    if (round_trip_.count() == 0) {
        round_trip_ = round_trip;
        variation_ = round_trip / 2;
        return;
    }
    const auto off = round_trip > round_trip_ ? round_trip - round_trip_ : round_trip_ - round_trip;
    variation_ += (off - variation_) / 4;
    round_trip_ += (round_trip - round_trip_) / 8;
}

void PacketStream::expect(bool answers, Time now) noexcept {
    if (expects_ == answers) return;
    expects_ = answers;
    if (!is_timed_ || !is_waiting()) restart(now);
}

void PacketStream::wake(Time now) noexcept {
    if (!is_timed_ || now < due_) return;
    if (!is_waiting()) {
        is_timed_ = false;
        return;
    }
    ++counts_.probes;
    owes_probe_ = true;
    ++attempts_;
    due_ = now + patience();
    if (unacknowledged_ != unsent_) repeat(laid(unacknowledged_));
}

// --- the end

bool PacketStream::end_at(std::uint32_t number, Time now) noexcept {
    const std::uint32_t highest =
        beyond_ == 0 ? expected_
                     : expected_ + 1 + (64 - static_cast<std::uint32_t>(std::countl_zero(beyond_)));
    if (distance(highest, number) < 0 || distance(number, own_limit()) < 0) return false;
    end_ = number;
    restart(now);
    return true;
}

}  // namespace millrace::message
