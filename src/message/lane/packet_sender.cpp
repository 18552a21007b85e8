// PacketSender, see the header.
#include "lane/packet_sender.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace::message {

using base::Status;

namespace {

[[nodiscard]] constexpr std::size_t rounded(std::size_t bytes) noexcept {
    return (bytes + packet_alignment - 1) / packet_alignment * packet_alignment;
}

}  // namespace

PacketSender::PacketSender(const PacketTerms& terms, PacketLog& log, std::span<std::byte> memory)
    : terms_{&terms},
      log_{&log},
      memory_{memory.first(memory.size() / packet_alignment * packet_alignment)},
      freed_{terms.peer_first},
      unacknowledged_{terms.peer_first},
      unsent_{terms.peer_first},
      laid_{terms.peer_first},
      limit_{terms.peer_first + terms.peer_room} {}

bool PacketSender::take_state(const PacketHead& head, PacketTime now) noexcept {
    // What an overtaken packet says of the past is known.
    if (distance(unacknowledged_, head.acknowledged) < 0) return false;
    const std::int32_t behind = distance(head.acknowledged, unsent_);
    if (behind < 0 || (behind == 0 && head.received != 0) ||
        (behind > 0 && behind <= 64 && (head.received >> (behind - 1)) != 0)) {
        log_->fail("it acknowledges packets that were not sent");
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
    // Otherwise nothing was acknowledged that was sent after what is not.
    if (has_moved && (head.received != 0 || is_of_repeated)) repeat_overtaken();
    return has_moved;
}

void PacketSender::note_acknowledged(Laid& packet, PacketTime now) noexcept {
    packet.is_acknowledged = true;
    if (packet.is_due) {
        packet.is_due = false;
        --due_packets_;
    }
    order_acknowledged_ = std::max(order_acknowledged_, packet.order);
    // Of a packet that was sent again nobody knows which transmission it is that has arrived.
    if (terms_->has_timer && !packet.is_repeated) round_trip_.measure(now - packet.sent);
}

void PacketSender::repeat_overtaken() noexcept {
    for (std::uint32_t number = unacknowledged_; number != unsent_; ++number) {
        Laid& packet = laid(number);
        if (packet.order + packet_tolerance <= order_acknowledged_) repeat(packet);
    }
}

void PacketSender::repeat_oldest() noexcept {
    std::uint32_t count = 0;
    for (std::uint32_t number = unacknowledged_; number != unsent_ && count < packet_repeats;
         ++number) {
        Laid& packet = laid(number);
        if (packet.is_acknowledged) continue;
        repeat(packet);
        ++count;
    }
}

void PacketSender::free_packets() noexcept {
    while (freed_ != unacknowledged_ && laid(freed_).ticket <= completed_) ++freed_;
    if (freed_ == laid_) front_ = 0;
}

std::optional<std::size_t> PacketSender::place_for(std::size_t bytes) noexcept {
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

void PacketSender::lay(std::size_t offset, std::size_t payload, std::uint16_t flags) noexcept {
    const std::size_t bytes = packet_head_bytes + payload;
    laid(laid_) = {.offset = offset, .bytes = bytes, .flags = flags};
    ++laid_;
    front_ = offset + rounded(bytes);
    claimed_bytes_ = 0;
}

Status PacketSender::claim(std::size_t size, std::span<std::byte>& place) noexcept {
    if (log_->is_broken()) return Status::peer_lost;
    if (size > longest_single()) return Status::too_large;
    if (!kept_.empty()) return Status::full;
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

void PacketSender::commit(std::size_t size) noexcept { lay(claimed_, size, packet_whole); }

Status PacketSender::send(std::span<const std::byte> head, std::span<const std::byte> payload) {
    const std::size_t size = head.size() + payload.size();
    std::span<std::byte> place;
    const Status status = claim(size, place);
    if (status == Status::peer_lost) return status;
    if (status != Status::ok) {
        kept_.keep(head, payload);
        return Status::ok;
    }
    if (!head.empty()) std::memcpy(place.data(), head.data(), head.size());
    if (!payload.empty()) std::memcpy(place.data() + head.size(), payload.data(), payload.size());
    commit(size);
    return Status::ok;
}

bool PacketSender::cut() noexcept {
    if (kept_.empty()) return false;
    const std::span<const std::byte> rest = kept_.front().subspan(kept_.begun());
    const std::size_t length = std::min(rest.size(), longest_single());
    const std::optional<std::size_t> offset = place_for(rounded(packet_head_bytes + length));
    if (!offset.has_value()) return false;
    if (length != 0) std::memcpy(memory_.data() + *offset + packet_head_bytes, rest.data(), length);
    std::uint16_t flags = packet_data;
    if (kept_.begun() == 0) flags |= packet_first;
    if (kept_.take(length)) flags |= packet_last;
    lay(*offset, length, flags);
    return true;
}

std::optional<std::uint32_t> PacketSender::next() noexcept {
    if (due_packets_ != 0) [[unlikely]] {
        for (std::uint32_t number = unacknowledged_; number != unsent_; ++number) {
            if (laid(number).is_due) return number;
        }
    }
    if (unsent_ == laid_ && !cut()) return std::nullopt;
    if (unsent_ == unacknowledged_) asked_ = 0, asked_bytes_ = 0;
    return unsent_;
}

void PacketSender::posted(std::uint32_t number, std::uint64_t ticket, PacketTime now,
                          bool has_asked) noexcept {
    Laid& packet = laid(number);
    packet.ticket = ticket;
    packet.order = ++orders_;
    packet.sent = now;
    ++log_->counts.sent;
    if (packet.is_due) {
        packet.is_due = false;
        packet.is_repeated = true;
        --due_packets_;
        ++log_->counts.repeated;
        return;
    }
    ++unsent_;
    ++asked_;
    asked_bytes_ += packet.bytes;
    if (has_asked) asked_ = 0, asked_bytes_ = 0;
}

}  // namespace millrace::message
