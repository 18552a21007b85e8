// What sends of push1 data: runs of the ring, as WRITEs or as copies. Included by the files that
// make Senders. The fast path, where nothing waits, is in the header.
#pragma once

#include "millrace/ring/detail/transmitter.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace millrace::ring::detail {

using base::Status;

template <Design D>
Push1Transmitter<D>::Push1Transmitter(connect::Link link, const Terms& terms,
                                      const verbs::RegisteredBuffer& memory, Design design,
                                      const RingOptions& options)
    : TransmitterBase<D>{std::move(link), terms, memory, design, options} {}

template <Design D>
void Push1Transmitter<D>::meet(const Places& theirs, PeerMemory& peer,
                               const verbs::RegisteredBuffer& memory, const RingOptions& options,
                               const verbs::RegisteredBuffer* ring,
                               std::shared_ptr<std::byte> peer_ring) {
    TransmitterBase<D>::meet(theirs, peer, memory, options);
    if (ring == nullptr) return;  // in place: there is nothing to move
    this->ring_ = ring->data();
    data_.set(ring->region(), theirs.ring,
              this->end_.link().queue_pair().capacity().max_inline_data);
    data_.set_zeros(this->terms_->ring_bytes);
    data_.store_to(std::move(peer_ring));
}

template <Design D>
Status Push1Transmitter<D>::failed(Status status, std::uint64_t bytes) noexcept {
    this->laid_ = this->intransit_;
    this->intransit_ -= bytes;
    this->sent_offset_ -= bytes;
    return status == Status::full ? status : this->lost();
}

template <Design D>
Status Push1Transmitter<D>::push_and_ring(std::uint64_t offset, std::uint64_t bytes,
                                          std::uint64_t laid) noexcept {
    const std::uint64_t before = this->intransit_;
    const Status status = push_published(offset, bytes, laid);
    // Not for what was not sent.
    if (this->intransit_ != before) (void)this->bell_.ring();
    return status;
}

template <Design D>
Status Push1Transmitter<D>::push_gathered(verbs::Slices slices, std::uint64_t offset,
                                          std::uint64_t bytes, std::uint64_t laid) noexcept {
    Status status;
    const bool wake = this->bell_.publish(laid);
    if constexpr (D.transfer == TransferNotification::immediate) {
        status = data_.run_gathered_with_immediate(this->end_.window(), slices, offset,
                                                   immediate_of(laid));
        if (status == Status::ok) this->notice_.sent(laid);
    } else {
        status = data_.run_gathered(this->end_.window(), slices, offset);
    }
    if (status == Status::full) return status;
    if (status != Status::ok) return this->lost();
    this->laid_ = this->intransit_ = laid;
    this->sent_offset_ = offset + bytes;
    this->cover();
    const Status told = this->tell();
    if (wake) (void)this->bell_.ring();
    return told;
}

template <Design D>
Status Push1Transmitter<D>::push(bool /*only_whole*/) noexcept {
    if (this->ended() != Status::ok) return this->ended();
    const Terms& terms = *this->terms_;
    if (terms.in_place) {
        shown(this->laid_);
        return show(this->laid_);
    }
    const std::uint64_t size = terms.ring_bytes;
    bool refreshed = false;
    while (this->laid_ != this->intransit_) {
        if (this->sent_offset_ == size) this->sent_offset_ = 0;
        if (this->look_for_space() != Status::ok) return this->ended();
        const std::uint64_t used = this->intransit_ - this->consumed();
        const std::uint64_t limit = std::min(
            {terms.window_bytes - used, this->laid_ - this->intransit_, size - this->sent_offset_});
        // Whole units only: what the consumer is told of must be able to arrive.
        std::uint64_t last = 0;
        std::uint64_t run = units_within(limit, last);
        if (!has_receive()) run = 0;
        if (run == 0) {
            if (refreshed) break;
            refreshed = true;
            const Status status = this->refresh();
            if (status != Status::ok) return status;
            ++this->lazy_refreshes_;
            continue;
        }
        const bool wake = this->bell_.publish(this->intransit_ + run);
        const Status status = send_run(run, last);
        if (status == Status::full) break;
        if (status != Status::ok) return this->lost();
        this->intransit_ += run;
        this->sent_offset_ += run;
        if (data_.stores()) {
            this->transferred_ = this->covered_ = this->intransit_;
        } else if (this->end_.window().last_is_signaled()) {
            this->cover();
        }
        if (wake) (void)this->bell_.ring();
    }
    return this->tell();
}

/// The `run` bytes from intransit_ on, of which the last unit has `last`.
template <Design D>
Status Push1Transmitter<D>::send_run(std::uint64_t run, std::uint64_t last) noexcept {
    const Terms& terms = *this->terms_;
    const std::uint64_t offset = this->sent_offset_;
    const std::uint64_t position = this->intransit_ + run;
    // A skip is its first word; the rest of the ring's end need not travel.
    const bool skips = terms.framed() && this->is_skip(offset + run - last, position - last);
    const std::uint64_t bytes = skips ? run - last + mark_bytes : run;
    const Signal signal = this->signal_for(position);
    if constexpr (!has_marks(D)) {
        if (!data_.stores()) return this->run(offset, bytes, position, signal);
        data_.copy(offset, bytes);
        return Status::ok;
    } else {
        if (terms.in_order && !data_.stores()) {
            return data_.run(this->end_.window(), offset, bytes, signal);
        }
        const std::uint64_t first = this->unit_at(offset, this->intransit_);
        const std::uint64_t mark = skips && first == run ? offset : offset + first - mark_bytes;
        if (!data_.stores())
            return data_.run_then_mark(this->end_.window(), offset, bytes, mark, signal);
        data_.copy_then_mark(offset, bytes, mark);
        return Status::ok;
    }
}

template <Design D>
Status Push1Transmitter<D>::settle() noexcept {
    return this->settle_in_flight();
}

template <Design D>
std::uint64_t Push1Transmitter<D>::next_run(std::uint64_t waiting,
                                            std::uint64_t piece) const noexcept {
    const Terms& terms = *this->terms_;
    const std::uint64_t offset = this->sent_offset_ == terms.ring_bytes ? 0 : this->sent_offset_;
    const std::uint64_t limit = std::min({waiting, piece, terms.ring_bytes - offset});
    if (!terms.framed()) {
        return std::max(limit / terms.slot_bytes * terms.slot_bytes, terms.slot_bytes);
    }
    std::uint64_t run = 0;
    do {
        const std::uint64_t unit = this->unit_at(offset + run, this->intransit_ + run);
        if (run != 0 && run + unit > limit) break;
        run += unit;
    } while (run < limit);
    return run;
}

template <Design D>
std::uint64_t Push1Transmitter<D>::units_within(std::uint64_t limit,
                                                std::uint64_t& last) const noexcept {
    if (!this->terms_->framed()) {
        last = this->terms_->slot_bytes;
        return limit / last * last;
    }
    std::uint64_t run = 0;
    while (run != limit) {
        const std::uint64_t unit = this->unit_at(this->sent_offset_ + run, this->intransit_ + run);
        if (run + unit > limit) break;
        run += unit;
        last = unit;
    }
    return run;
}

}  // namespace millrace::ring::detail
