// How a Sender sends what waits in its ring: in runs of WRITEs, in SENDs of chunks, or by telling
// what is there to be pulled. Part of Sender, included by the files that make Senders. The fast
// path, where nothing waits, is in the header.
#pragma once

#include "millrace/ring/sender.hpp"

#include <algorithm>
#include <cstdint>

namespace millrace::ring {

using base::Status;

template <Design D>
    requires(check_design<D>())
std::uint64_t Sender<D>::unit_at(std::uint64_t offset, std::uint64_t position) const noexcept {
    if (!terms_.framed()) return terms_.slot_bytes;
    const std::uint64_t word = load_word(ring_ + offset);
    if (word == Frames<D>::skip(position, terms_.secret)) return terms_.ring_bytes - offset;
    return Frames<D>::bytes(frame_length(word), terms_.chunk_bytes);
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_failed(Status status) noexcept {
    if (status != Status::full) return end();
    fall_behind();  // no slot: the items wait for the next call
    // No receive as far as is known: to look for space may tell of more.
    if constexpr (D.transfer == TransferNotification::immediate) return push_behind();
    return Status::ok;
}

template <Design D>
    requires(check_design<D>())
bool Sender<D>::may_gather(Status& status) noexcept {
    if (terms_.in_place || (way_ != Way::straight && way_ != Way::weighed)) return false;
    // What waits for its batch goes first.
    if (produced_ != intransit_) {
        status = push();
        if (status != Status::ok || produced_ != intransit_) return false;
    }
    if constexpr (D.transfer == TransferNotification::immediate) {
        if (!notice_.has_receive(space_.consumed())) return false;
    }
    return true;
}

/// The slots behind produced_, which lie at `slices`. `full`: no slot of the queue was free, and
/// nothing happened.
template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_gathered(verbs::Slices slices, std::uint64_t bytes) noexcept {
    const std::uint64_t end = produced_ + bytes;
    Status status = Status::full;
    const bool wake = bell_.publish(end);
    if constexpr (D.transfer == TransferNotification::immediate) {
        status = mover_.run_gathered_with_immediate(slices, offset_, immediate_of(end));
        if (status == Status::ok) notice_.sent(end);
    } else if constexpr (D.data == DataFlow::push1) {
        status = mover_.run_gathered(slices, offset_);
    }
    if (status == Status::full) return status;
    if (status != Status::ok) return this->end();
    append(bytes);
    intransit_ = produced_;
    cover();
    const Status told = tell();
    if (wake) (void)bell_.ring();
    return told;
}

template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_behind() noexcept {
    if (ended_ != Status::ok) return ended_;
    if constexpr (D.data != DataFlow::push1) return push_unit_runs();
    const std::uint64_t size = terms_.ring_bytes;
    show_held_mark();
    bool refreshed = false;
    while (laid() != intransit_) {
        if (behind_offset_ == size) behind_offset_ = 0;
        if (look_for_space() != Status::ok) return ended_;
        const std::uint64_t used = intransit_ - space_.consumed();
        const std::uint64_t limit =
            std::min({terms_.window_bytes - used, laid() - intransit_, size - behind_offset_});
        // Whole units only: what the consumer is told of must be able to arrive.
        std::uint64_t last = 0;
        std::uint64_t run = units_within(limit, last);
        if constexpr (D.transfer == TransferNotification::immediate) {
            if (!notice_.has_receive(space_.consumed())) run = 0;
        }
        if (run == 0) {
            if (refreshed) break;
            refreshed = true;
            const Status status = refresh();
            if (status != Status::ok) return status;
            ++lazy_refreshes_;
            continue;
        }
        // A skip is its first word; the rest of the ring's end need not travel.
        const std::uint64_t last_offset = behind_offset_ + run - last;
        const bool skips = terms_.framed() && is_skip(last_offset, intransit_ + run - last);
        const std::uint64_t bytes = skips ? run - last + mark_bytes : run;

        const bool wake = bell_.publish(intransit_ + run);
        const Signal signal = signal_for(intransit_ + run);
        Status status;
        if constexpr (D.data != DataFlow::push1) {
            return Status::ok;  // never here: these have a loop of their own
        } else if constexpr (D.transfer == TransferNotification::immediate) {
            status = this->run(behind_offset_, bytes, intransit_ + run, signal);
        } else if (terms_.in_order) {
            status = mover_.run(behind_offset_, bytes, signal);
        } else {
            const std::uint64_t first = unit_at(behind_offset_, intransit_);
            const std::uint64_t mark =
                skips && first == run ? behind_offset_ : behind_offset_ + first - mark_bytes;
            status = mover_.run_then_mark(behind_offset_, bytes, mark, signal);
        }
        if (status == Status::full) break;
        if (status != Status::ok) return end();
        intransit_ += run;
        behind_offset_ += run;
        if (window_.last_is_signaled()) cover();
        if (wake) (void)bell_.ring();
    }
    return tell();
}

template <Design D>
    requires(check_design<D>())
std::uint64_t Sender<D>::units_within(std::uint64_t limit, std::uint64_t& last) const noexcept {
    if (!terms_.framed()) {
        last = terms_.slot_bytes;
        return limit / last * last;
    }
    std::uint64_t run = 0;
    while (run != limit) {
        const std::uint64_t unit = unit_at(behind_offset_ + run, intransit_ + run);
        if (run + unit > limit) break;
        run += unit;
        last = unit;
    }
    return run;
}

/// push_behind where units do not go as runs of one WRITE: push2 SENDs them one by one, and with
/// pull they need only be told of.
template <Design D>
    requires(check_design<D>())
Status Sender<D>::push_unit_runs() noexcept {
    if constexpr (D.data == DataFlow::pull) {
        if (laid() == intransit_) return tell();
        show_held_mark();
        const bool wake = bell_.publish(laid());
        intransit_ = laid();
        if (way_ != Way::moved) behind_offset_ = offset_;
        const Status told = tell();
        if (wake) (void)bell_.ring();
        return told;
    } else if constexpr (D.data == DataFlow::push2) {
        bool refreshed = false;
        while (laid() != intransit_) {
            if (behind_offset_ == terms_.ring_bytes) behind_offset_ = 0;
            // A batch that is not full takes a whole chunk.
            const std::uint64_t unit =
                terms_.framed() ? unit_at(behind_offset_, intransit_) : terms_.chunk_bytes;
            if (intransit_ - space_.consumed() + unit > terms_.window_bytes) {
                if (look_for_space() != Status::ok) return ended_;
                if (intransit_ - space_.consumed() + unit > terms_.window_bytes) {
                    if (refreshed) break;
                    refreshed = true;
                    if (const Status status = refresh(); status != Status::ok) return status;
                    ++lazy_refreshes_;
                    continue;
                }
            }
            if (!mover_.has_slots(unit / terms_.chunk_bytes)) {
                if (window_.broken()) return end();
                break;
            }
            Status status;
            if (!terms_.framed()) {
                const std::uint64_t bytes = std::min(laid() - intransit_, unit);
                if (bytes != unit && only_whole_) break;
                status = mover_.run(behind_offset_, bytes, signal_for(intransit_ + unit));
                if (bytes != unit) pass_rest(unit - bytes);
            } else if (is_skip(behind_offset_, intransit_)) {
                status = mover_.skip(behind_offset_, terms_.ring_bytes, mark_bytes);
            } else {
                const std::uint32_t length = frame_length(load_word(ring_ + behind_offset_));
                status = mover_.run(behind_offset_, Frames<D>::sent_bytes(length),
                                    signal_for(intransit_ + unit));
            }
            if (status != Status::ok) return end();  // there were slots
            intransit_ += unit;
            behind_offset_ += unit;
            if (window_.last_is_signaled()) cover();
        }
        return tell();
    } else {
        return Status::ok;
    }
}

}  // namespace millrace::ring
