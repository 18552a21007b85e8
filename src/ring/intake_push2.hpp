// The Intake of push2 data: what the completions of receives tell, and which slots of a chunk were
// sent. Included by the files that make Receivers.
#pragma once

#include "intake_parts.hpp"

#include <algorithm>
#include <cstdint>

namespace millrace::ring::detail {

template <Design D>
Push2Intake<D>::Push2Intake(connect::Link& link, const Terms& terms,
                            const verbs::RegisteredBuffer& ring)
    : IntakeBase<D>{link, terms},
      terms_{&terms},
      chunks_{link, ring, terms.ring_bytes, terms.chunk_bytes, terms.window_bytes, terms.initial},
      told_{terms.initial},
      in_batches_{!terms.framed() && terms.chunk_bytes != terms.slot_bytes} {}

template <Design D>
std::uint64_t Push2Intake<D>::step(std::uint64_t wanted, const Terms& terms) noexcept {
    const bool in_batches = !terms.framed() && terms.chunk_bytes != terms.slot_bytes;
    return in_batches ? std::max(wanted, terms.chunk_bytes) : wanted;
}

template <Design D>
bool Push2Intake<D>::advance(Front& front, SpaceGiver<D.space>&, bool asleep) noexcept {
    if constexpr (has_marks(D)) {
        return true;
    } else {
        bool believable = true;
        if (this->asks && asleep) {
            chunks_.take();
            if (chunks_.arrived() == front.consumed) return true;
        }
        if constexpr (D.transfer == TransferNotification::event) {
            chunks_.take();
            told_ = chunks_.arrived();
        } else {
            believable =
                this->transfer_.look(front.consumed + terms_->window_bytes) != News::impossible;
            const std::uint64_t position = this->transfer_.position();
            if (static_cast<std::int64_t>(position - told_) > 0) told_ = position;
        }
        if (in_batches_) return enter_chunk(front) && believable;
        front.arrive(told_);
        return believable;
    }
}

template <Design D>
bool Push2Intake<D>::end_at(std::uint64_t total, Front& front) noexcept {
    if (has_marks(D) || total - front.consumed > front.ring_bytes) return true;
    if (!in_batches_) {
        front.arrive(total);
        return true;
    }
    told_ = total;
    return enter_chunk(front);
}

template <Design D>
bool Push2Intake<D>::pass_rest(Front& front) noexcept {
    chunks_.take();
    const std::uint64_t done = (front.consumed - front.initial) % chunks_.chunk();
    if (done == 0) return false;
    const bool known = static_cast<std::int64_t>(chunks_.arrived() - (front.consumed - done)) > 0;
    if (!known || chunks_.filled(front.offset) != done) return false;
    front.pass(chunks_.chunk() - done);
    front.arrived = front.consumed;
    return true;
}

template <Design D>
bool Push2Intake<D>::enter_chunk(Front& front) noexcept {
    if (front.consumed != front.arrived) return true;
    (void)pass_rest(front);
    chunks_.take();
    if ((front.consumed - front.initial) % chunks_.chunk() != 0) return true;
    if (static_cast<std::int64_t>(told_ - front.consumed) <= 0 ||
        chunks_.arrived() == front.consumed) {
        return true;
    }
    const std::uint64_t bytes = chunks_.filled(front.offset);
    if (bytes == 0 || bytes % terms_->slot_bytes != 0) return false;
    front.arrived = front.consumed + bytes;
    return true;
}

}  // namespace millrace::ring::detail
