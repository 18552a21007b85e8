// What sends of push2 data: a SEND for each chunk of the ring. Included by the files that make
// Senders.
#pragma once

#include "millrace/ring/detail/transmitter.hpp"

#include <algorithm>
#include <cstdint>

namespace millrace::ring::detail {

using base::Status;

template <Design D>
Push2Transmitter<D>::Push2Transmitter(connect::Link link, const Terms& terms,
                                      const verbs::RegisteredBuffer& memory, Design design,
                                      const RingOptions& options)
    : TransmitterBase<D>{std::move(link), terms, memory, design, options} {}

template <Design D>
void Push2Transmitter<D>::meet(const Places& theirs, PeerMemory& peer,
                               const verbs::RegisteredBuffer& memory, const RingOptions& options,
                               const verbs::RegisteredBuffer* ring,
                               std::shared_ptr<std::byte> /*peer_ring*/) {
    TransmitterBase<D>::meet(theirs, peer, memory, options);
    this->ring_ = ring->data();
    data_ = Push2{this->end_.window(), *ring, this->terms_->chunk_bytes};
}

template <Design D>
Status Push2Transmitter<D>::push(bool only_whole) noexcept {
    if (this->ended() != Status::ok) return this->ended();
    const Terms& terms = *this->terms_;
    bool refreshed = false;
    while (this->laid_ != this->intransit_) {
        if (this->sent_offset_ == terms.ring_bytes) this->sent_offset_ = 0;
        const std::uint64_t offset = this->sent_offset_;
        // A batch that is not full takes a whole chunk.
        const std::uint64_t unit =
            terms.framed() ? this->unit_at(offset, this->intransit_) : terms.chunk_bytes;
        if (this->intransit_ - this->consumed() + unit > terms.window_bytes) {
            if (this->look_for_space() != Status::ok) return this->ended();
            if (this->intransit_ - this->consumed() + unit > terms.window_bytes) {
                if (refreshed) break;
                refreshed = true;
                if (const Status status = this->refresh(); status != Status::ok) return status;
                ++this->lazy_refreshes_;
                continue;
            }
        }
        if (!data_.has_slots(unit / terms.chunk_bytes)) {
            if (this->end_.window().broken()) return this->lost();
            break;
        }
        const Signal signal = this->signal_for(this->intransit_ + unit);
        Status status;
        if (!terms.framed()) {
            const std::uint64_t bytes = std::min(this->laid_ - this->intransit_, unit);
            if (bytes != unit && only_whole) break;
            status = data_.run(offset, bytes, signal);
            this->laid_ += unit - bytes;
        } else if (this->is_skip(offset, this->intransit_)) {
            status = data_.skip(offset, terms.ring_bytes, mark_bytes);
        } else {
            const std::uint32_t length = frame_length(load_word(this->ring_ + offset));
            status = data_.run(offset, Frames<D>::sent_bytes(length), signal);
        }
        if (status != Status::ok) return this->lost();  // there were slots
        this->intransit_ += unit;
        this->sent_offset_ += unit;
        if (this->end_.window().last_is_signaled()) this->cover();
    }
    return this->tell();
}

template <Design D>
Status Push2Transmitter<D>::settle() noexcept {
    return this->settle_in_flight();
}

}  // namespace millrace::ring::detail
