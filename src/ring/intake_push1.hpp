// The Intake of push1 data: what its transfer notification tells. Included by the files that make
// Receivers.
#pragma once

#include "intake_parts.hpp"

#include <algorithm>
#include <cstdint>

namespace millrace::ring::detail {

template <Design D>
Push1Intake<D>::Push1Intake(connect::Link& link, const Terms& terms, const verbs::RegisteredBuffer&)
    : IntakeBase<D>{link, terms} {}

template <Design D>
std::uint64_t Push1Intake<D>::step(std::uint64_t wanted, const Terms& terms) noexcept {
    if (D.transfer != TransferNotification::immediate) return wanted;
    // The receives come back with the space: half of them must not be worth less than a step.
    const std::uint64_t smallest = terms.framed() ? Frames<D>::overhead : terms.slot_bytes;
    return std::max<std::uint64_t>(std::min(wanted, terms.receive_pool / 2 * smallest), 1);
}

template <Design D>
bool Push1Intake<D>::advance(Front& front, SpaceGiver<D.space>&, bool asleep) noexcept {
    if constexpr (has_marks(D)) {
        return true;
    } else {
        // Within a wait, the sleeper knows when there is no news; asking again would wake it up.
        if (this->asks && asleep) return true;
        const News news = this->transfer_.look(front.consumed + front.ring_bytes);
        front.arrive(this->transfer_.position());
        return news != News::impossible;
    }
}

}  // namespace millrace::ring::detail
