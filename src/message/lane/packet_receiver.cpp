// PacketReceiver, see the header.
#include "lane/packet_receiver.hpp"

#include <algorithm>
#include <bit>

namespace millrace::message {

using base::Status;

PacketReceiver::PacketReceiver(const PacketTerms& terms, PacketLog& log)
    : terms_{&terms},
      log_{&log},
      consumed_{terms.own_first},
      expected_{terms.own_first},
      told_limit_{terms.own_first + terms.own_room},
      spare_(terms.spare_bytes),
      assembled_{terms.max_message_bytes, HeldPart{terms.held}} {}

PacketArrival PacketReceiver::take(const PacketHead& head, std::span<const std::byte> payload,
                                   std::uint32_t slot, bool may_keep) noexcept {
    const std::int32_t ahead = distance(expected_, head.sequence);
    if (ahead < 0 || (ahead > 0 && ahead <= 64 && ((beyond_ >> (ahead - 1)) & 1) != 0)) {
        ++log_->counts.duplicates;
        return PacketArrival::passed;
    }
    if (distance(head.sequence, limit()) <= 0) {
        log_->fail("it sends more than there is room for");
        return PacketArrival::passed;
    }
    if (end_.has_value() && distance(head.sequence, *end_) <= 0) {
        log_->fail("it sends more after its end");
        return PacketArrival::passed;
    }
    PacketArrival arrival = PacketArrival::kept;
    if (!may_keep) {
        if (ahead != 0 || spare_is_taken_ || payload.size() > spare_.size()) {
            ++log_->counts.dropped;
            return PacketArrival::passed;
        }
        std::ranges::copy(payload, spare_.begin());
        payload = std::span{spare_}.first(payload.size());
        slot = spare_slot;
        spare_is_taken_ = true;
        arrival = PacketArrival::passed;
    }
    held_[head.sequence & index_mask] = {payload.data(), slot, head.length, head.flags};
    ++log_->counts.received;
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
    if (static_cast<std::uint64_t>(ahead) >= packet_tolerance && gap_told_ != expected_) {
        gap_told_ = expected_;
        owes_state_ = true;
    }
    return PacketArrival::kept;
}

bool PacketReceiver::take_free(std::uint32_t& slot) noexcept {
    if (free_slots_.empty()) return false;
    slot = free_slots_.front();
    free_slots_.pop();
    return true;
}

void PacketReceiver::drop_held() noexcept {
    for (std::uint32_t number = consumed_; number != expected_; ++number) {
        free(held_[number & index_mask]);
    }
    for (std::uint64_t bits = beyond_; bits != 0; bits &= bits - 1) {
        const auto ahead = static_cast<std::uint32_t>(std::countr_zero(bits));
        free(held_[(expected_ + 1 + ahead) & index_mask]);
    }
    consumed_ = expected_;
    beyond_ = 0;
    log_->fail("this end reads no more");
}

void PacketReceiver::free(const Held& held) noexcept {
    if (held.slot == spare_slot) {
        spare_is_taken_ = false;
    } else {
        (void)free_slots_.push(held.slot);
    }
}

void PacketReceiver::release_front() noexcept {
    free(held_[consumed_ & index_mask]);
    ++consumed_;
    const std::uint32_t due = std::max(terms_->own_room > 1 ? 2U : 1U, terms_->own_room / 2);
    if (limit() - told_limit_ >= due) owes_state_ = true;
}

Status PacketReceiver::look(std::span<const std::byte>& message) {
    if (log_->is_broken()) return Status::peer_lost;
    if (whole_) {
        message = assembled_.bytes();
        return is_too_large_ ? Status::too_large : Status::ok;
    }
    while (consumed_ != expected_) {
        const Held& front = held_[consumed_ & index_mask];
        const std::span<const std::byte> payload{front.payload, front.length};
        const bool is_first = (front.flags & packet_first) != 0;
        const bool is_last = (front.flags & packet_last) != 0;
        if (is_first == is_within_) {
            log_->fail("it sends pieces of no message");
            return Status::peer_lost;
        }
        if (is_first && is_last && payload.size() <= terms_->max_message_bytes) {
            message = payload;
            return Status::ok;
        }
        const Assembly::Took took = assembled_.take(payload, is_first, is_last);
        is_within_ = !is_last;
        release_front();
        if (took == Assembly::Took::part) continue;
        whole_ = true;
        is_too_large_ = took == Assembly::Took::too_large;
        message = assembled_.bytes();
        return is_too_large_ ? Status::too_large : Status::ok;
    }
    if (!has_ended()) return Status::empty;
    if (assembled_.is_assembling()) {
        log_->fail("it ends within a message");
        return Status::peer_lost;
    }
    return Status::closed;
}

void PacketReceiver::pass() noexcept {
    if (!whole_) {
        release_front();
        return;
    }
    whole_ = is_too_large_ = false;
    assembled_.clear();
}

bool PacketReceiver::end_at(std::uint32_t number) noexcept {
    const std::uint32_t highest =
        beyond_ == 0 ? expected_
                     : expected_ + 1 + (64 - static_cast<std::uint32_t>(std::countl_zero(beyond_)));
    if (distance(highest, number) < 0 || distance(number, limit()) < 0) return false;
    end_ = number;
    return true;
}

}  // namespace millrace::message
