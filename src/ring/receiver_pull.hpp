// Receiver over pull data: asks where there is something, and READs it in runs. Part of Receiver,
// included by the files that make Receivers.
#pragma once

#include "millrace/ring/receiver.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace millrace::ring {

using base::Status;

/// Where there is something to pull beyond arrived_: told_ says so afterwards. False: not known
/// yet, or there is nothing.
template <Design D>
    requires(check_design<D>())
bool Receiver<D>::ask() noexcept {
    if constexpr (D.data != DataFlow::pull) {
        return false;
    } else if constexpr (D.transfer == TransferNotification::watermark) {
        // The first word of the next frame, or the mark of a slot some way ahead.
        std::uint64_t at = pull_offset_;
        if (!terms_.framed()) {
            at += ahead_ * terms_.slot_bytes - mark_bytes;
            if (at >= ring_bytes_) at -= ring_bytes_;
        }
        probing_ = puller_.start_probe(at) == Status::ok;
        return probing_ && puller_.finish() && look_at_probe();
    } else {
        if (transfer_.look(arrived_ + ring_bytes_) == News::impossible) disbelieve();
        if (static_cast<std::int64_t>(transfer_.position() - told_) > 0) {
            told_ = transfer_.position();
        }
        return told_ != arrived_;
    }
}

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::look_at_probe() noexcept {
    probing_ = false;
    const std::uint64_t word = load_word(page_memory_.data() + offsetof(Page, probe_landing));
    if (!terms_.framed()) {
        const std::uint64_t bytes = ahead_ * terms_.slot_bytes;
        if (word != slot_mark(arrived_ + bytes - terms_.slot_bytes, initial_)) {
            ahead_ = 1;
            return false;
        }
        told_ = arrived_ + bytes;
        ahead_ = std::min(ahead_ * 2, terms_.capacity());
        return true;
    }
    const std::uint64_t tag = frame_tag(arrived_, terms_.secret);
    const std::uint64_t rest = ring_bytes_ - pull_offset_;
    if (word == skip_word(tag)) {
        told_ = arrived_ + rest;
    } else if (is_frame_header(word, tag) && frame_length(word) <= terms_.max_frame() &&
               frame_bytes(frame_length(word)) <= rest) {
        told_ = arrived_ + frame_bytes(frame_length(word));
    }
    return told_ != arrived_;
}

/// The run has arrived. False: it was not what its first word promised, and is READ again.
template <Design D>
    requires(check_design<D>())
bool Receiver<D>::take_run() noexcept {
    if constexpr (has_marks(D)) {
        if (terms_.framed()) {
            const std::uint64_t tag = frame_tag(arrived_, terms_.secret);
            const std::byte* const frame = ring_ + pull_offset_;
            const std::uint64_t word = load_word(frame);
            const bool whole =
                word == skip_word(tag) ||
                (is_frame_header(word, tag) && frame_bytes(frame_length(word)) == run_ &&
                 load_word(frame + run_ - mark_bytes) == frame_trailer(tag, frame_length(word)));
            if (!whole) {
                told_ = arrived_;
                run_ = 0;
                return false;
            }
        }
    }
    arrived_ += run_;
    pull_offset_ += run_;
    if (pull_offset_ == ring_bytes_) pull_offset_ = 0;
    run_ = 0;
    return_credit();
    return true;
}

template <Design D>
    requires(check_design<D>())
void Receiver<D>::pull() noexcept {
    // Devices that complete at once go through all of it in one call.
    for (int turn = 0; turn < 4; ++turn) {
        if (puller_.busy()) {
            if (!puller_.finish()) return;
            if (probing_) {
                if (!look_at_probe()) return;
            } else if (take_run() && consumed_ != arrived_) {
                return;
            }
        }
        if (told_ == arrived_) {
            if (hushed() || arrived_ - consumed_ == ring_bytes_ || !ask()) return;
        }
        std::uint64_t bytes = told_ - arrived_;
        const std::uint64_t space = ring_bytes_ - (arrived_ - consumed_);
        if (has_marks(D) && terms_.framed() && bytes > space) return;
        bytes = std::min({bytes, space, ring_bytes_ - pull_offset_});
        if (bytes == 0) return;
        if (puller_.start(pull_offset_, bytes) != Status::ok) return;
        run_ = bytes;
    }
}

}  // namespace millrace::ring
