// PacketStream, see the header.
#include "lane/packet_stream.hpp"

#include <algorithm>
#include <cstring>

namespace millrace::message {

PacketStream::PacketStream(const PacketTerms& terms, std::span<std::byte> memory)
    : terms_{terms},
      receiver_{terms_, log_},
      sender_{terms_, log_, memory.first(memory.size() - bare_places * packet_head_bytes)},
      bare_memory_{memory.data() + (memory.size() - bare_places * packet_head_bytes) /
                                       packet_alignment * packet_alignment} {}

// --- what comes

PacketArrival PacketStream::receive(std::span<const std::byte> packet, std::uint32_t slot, Time now,
                                    bool may_keep) {
    PacketHead head;
    std::span<const std::byte> payload;
    if (!parse(packet, head, payload) || head.token != terms_.own_token) {
        ++log_.counts.foreign;
        return Arrival::foreign;
    }
    if (log_.is_broken()) return Arrival::passed;
    const std::uint32_t expected = receiver_.expected();
    const std::uint64_t beyond = receiver_.beyond();
    const bool has_moved = sender_.take_state(head, now);
    Arrival arrival = Arrival::passed;
    if (!log_.is_broken() && (head.flags & packet_data) != 0) {
        arrival = receiver_.take(head, payload, slot, may_keep);
    }
    if ((head.flags & (packet_asks | packet_probes)) != 0) receiver_.owe_state();
    if ((head.flags & packet_probes) != 0) sender_.repeat_oldest();
    if (has_moved || receiver_.expected() != expected || receiver_.beyond() != beyond) restart(now);
    return arrival;
}

// --- what goes

std::span<const std::byte> PacketStream::offer(std::byte* place, std::uint32_t sequence,
                                               std::size_t payload, std::uint16_t flags) noexcept {
    if (owes_probe_) flags |= packet_probes;
    offered_flags_ = flags;
    const std::uint32_t expected = receiver_.expected();
    const PacketHead head{.token = terms_.peer_token,
                          .received = receiver_.beyond(),
                          .sequence = sequence,
                          .acknowledged = expected,
                          .room = static_cast<std::uint16_t>(receiver_.limit() - expected),
                          .length = static_cast<std::uint16_t>(payload),
                          .flags = flags};
    std::memcpy(place, &head, sizeof head);
    return {place, packet_head_bytes + payload};
}

bool PacketStream::next(std::span<const std::byte>& packet, Time now, bool with_bare) noexcept {
    if (log_.is_broken()) return false;
    sender_.lack_completions(false);
    if (terms_.has_timer && !is_timed_ && is_waiting()) restart(now);
    offered_bare_ = bare_places;
    is_offered_as_it_was_ = false;
    if (const auto number = sender_.next(); number.has_value()) {
        const PacketSender::Laid& laid = sender_.at(*number);
        const std::span<std::byte> bytes = sender_.bytes_of(laid);
        offered_ = *number;
        // While it is under way its memory must not be touched: what it says of the other direction
        // is of the past then, and known to be.
        is_offered_as_it_was_ = laid.is_due && !sender_.has_left(laid.ticket);
        const auto flags =
            static_cast<std::uint16_t>(laid.flags | (sender_.asks(laid) ? packet_asks : 0));
        packet = is_offered_as_it_was_
                     ? std::span<const std::byte>{bytes}
                     : offer(bytes.data(), *number, bytes.size() - packet_head_bytes, flags);
        return true;
    }
    if (!owes_probe_ && !(receiver_.owes_state() && with_bare)) return false;
    for (std::size_t place = 0; place < bare_places; ++place) {
        if (!sender_.has_left(bare_tickets_[place])) continue;
        offered_bare_ = place;
        packet = offer(bare_memory_ + place * packet_head_bytes, sender_.unsent(), 0, 0);
        return true;
    }
    sender_.lack_completions(true);
    return false;
}

void PacketStream::posted(std::uint64_t ticket, Time now) noexcept {
    if (!is_offered_as_it_was_) {
        receiver_.told_state();
        owes_probe_ = false;
    }
    if (offered_bare_ != bare_places) {
        bare_tickets_[offered_bare_] = ticket;
        ++log_.counts.bare;
        return;
    }
    sender_.posted(offered_, ticket, now, (offered_flags_ & packet_asks) != 0);
}

// --- time

std::chrono::nanoseconds PacketStream::patience() const noexcept {
    constexpr unsigned most_doublings = 10;
    const std::chrono::nanoseconds once = sender_.round_trip().patience(terms_);
    return std::min(once * (1U << std::min(attempts_, most_doublings)), terms_.most_patience);
}

void PacketStream::restart(Time now) noexcept {
    attempts_ = 0;
    is_timed_ = terms_.has_timer && is_waiting();
    if (is_timed_) due_ = now + patience();
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
    ++log_.counts.probes;
    owes_probe_ = true;
    ++attempts_;
    due_ = now + patience();
    sender_.repeat_first();
}

// --- the end

bool PacketStream::end_at(std::uint32_t number, Time now) noexcept {
    if (!receiver_.end_at(number)) return false;
    restart(now);
    return true;
}

}  // namespace millrace::message
