// The Intake of pull data: asks where there is something, and READs it in runs. Included by the
// files that make Receivers.
#pragma once

#include "intake_parts.hpp"
#include "pulled_ahead.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace::ring::detail {

using base::Status;

template <Design D>
PullIntake<D>::PullIntake(connect::Link& link, const Terms& terms,
                          const verbs::RegisteredBuffer& ring)
    : IntakeBase<D>{link, terms},
      terms_{&terms},
      ring_{&ring},
      told_{terms.initial},
      link_{&link} {}

template <Design D>
PullIntake<D>::~PullIntake() = default;

template <Design D>
void PullIntake<D>::meet(const Meeting& met) {
    if (met.design.mover == Mover::active && met.terms.second_queue &&
        D.space != SpaceNotification::push2) {
        moved_ = std::make_unique<PulledAhead<D>>(*link_, *terms_, *ring_, met);
        // The mover READs into what it knows to be free: it is told in time.
        this->low_water_ = terms_->ring_bytes / 2;
        return;
    }
    begin(met);
}

template <Design D>
void PullIntake<D>::begin(const Meeting& met) {
    IntakeBase<D>::meet(met);
    probed_ = met.memory.data() + offsetof(ReceiverPage, probe_landing);
    puller_ = Puller{met.window, *ring_, met.theirs.ring,
                     met.memory.slice(offsetof(ReceiverPage, probe_landing), 8)};
}

template <Design D>
bool PullIntake<D>::ask(const Front& front, bool& believable) noexcept {
    if constexpr (D.transfer == TransferNotification::watermark) {
        // The first word of the next frame, or the mark of a slot some way ahead.
        std::uint64_t at = pull_offset_;
        if (!terms_->framed()) {
            at += ahead_ * terms_->slot_bytes - mark_bytes;
            if (at >= front.ring_bytes) at -= front.ring_bytes;
        }
        probing_ = puller_.start_probe(at) == Status::ok;
        return probing_ && puller_.finish() && look_at_probe(front);
    } else {
        believable = this->transfer_.look(front.arrived + front.ring_bytes) != News::impossible;
        const std::uint64_t position = this->transfer_.position();
        if (static_cast<std::int64_t>(position - told_) > 0) told_ = position;
        return told_ != front.arrived;
    }
}

template <Design D>
bool PullIntake<D>::look_at_probe(const Front& front) noexcept {
    probing_ = false;
    const std::uint64_t word = load_word(probed_);
    if (!terms_->framed()) {
        const std::uint64_t bytes = ahead_ * terms_->slot_bytes;
        if (word != slot_mark(front.arrived + bytes - terms_->slot_bytes, front.initial)) {
            ahead_ = 1;
            return false;
        }
        told_ = front.arrived + bytes;
        ahead_ = std::min(ahead_ * 2, terms_->capacity());
        return true;
    }
    const std::uint64_t tag = frame_tag(front.arrived, terms_->secret);
    const std::uint64_t rest = front.ring_bytes - pull_offset_;
    if (word == skip_word(tag)) {
        told_ = front.arrived + rest;
    } else if (is_frame_header(word, tag) && frame_length(word) <= terms_->max_frame() &&
               frame_bytes(frame_length(word)) <= rest) {
        told_ = front.arrived + frame_bytes(frame_length(word));
    }
    return told_ != front.arrived;
}

template <Design D>
bool PullIntake<D>::take_run(Front& front) noexcept {
    if (has_marks(D) && terms_->framed()) {
        const std::uint64_t tag = frame_tag(front.arrived, terms_->secret);
        const std::byte* const frame = front.ring + pull_offset_;
        const std::uint64_t word = load_word(frame);
        const bool whole =
            word == skip_word(tag) ||
            (is_frame_header(word, tag) && frame_bytes(frame_length(word)) == run_ &&
             load_word(frame + run_ - mark_bytes) == frame_trailer(tag, frame_length(word)));
        if (!whole) {
            told_ = front.arrived;
            run_ = 0;
            return false;
        }
    }
    front.arrived += run_;
    pull_offset_ += run_;
    if (pull_offset_ == front.ring_bytes) pull_offset_ = 0;
    run_ = 0;
    return true;
}

template <Design D>
bool PullIntake<D>::advance(Front& front, SpaceGiver<D.space>& giver, bool asleep) noexcept {
    if (moved_ == nullptr) return pull(front, giver, asleep);
    front.arrived = front.returned = moved_->take(front.consumed, asleep);
    return moved_->believable();
}

template <Design D>
void PullIntake<D>::awake() noexcept {
    if (moved_ != nullptr) moved_->awake();
}

template <Design D>
bool PullIntake<D>::broken() const noexcept {
    return IntakeBase<D>::broken() || (moved_ != nullptr && moved_->broken());
}

template <Design D>
std::uint64_t PullIntake<D>::transfer_reads() const noexcept {
    if (moved_ != nullptr) return moved_->transfer_reads();
    return IntakeBase<D>::transfer_reads() + puller_.probes();
}

template <Design D>
std::uint64_t PullIntake<D>::data_reads() const noexcept {
    return moved_ != nullptr ? moved_->data_reads() : puller_.runs();
}

template <Design D>
std::uint64_t PullIntake<D>::posted_elsewhere() const noexcept {
    return moved_ != nullptr ? moved_->posted() : IntakeBase<D>::posted_elsewhere();
}

template <Design D>
GivenByMover PullIntake<D>::given() const noexcept {
    return moved_ != nullptr ? moved_->given() : GivenByMover{};
}

template <Design D>
bool PullIntake<D>::pull(Front& front, SpaceGiver<D.space>& giver, bool asleep) noexcept {
    bool believable = true;
    // Devices that complete at once go through all of it in one call.
    for (int turn = 0; turn < 4; ++turn) {
        if (puller_.busy()) {
            if (!puller_.finish()) break;
            if (probing_) {
                if (!look_at_probe(front)) break;
            } else if (take_run(front)) {
                giver.give(front, front.arrived);
                if (front.consumed != front.arrived) break;
            }
        }
        const std::uint64_t space = front.ring_bytes - (front.arrived - front.consumed);
        // Within a wait, the sleeper knows when there is no news; asking again would wake it up.
        if (told_ == front.arrived && (asleep || space == 0 || !ask(front, believable))) break;
        std::uint64_t bytes = told_ - front.arrived;
        if (has_marks(D) && terms_->framed() && bytes > space) break;
        bytes = std::min({bytes, space, front.ring_bytes - pull_offset_});
        if (bytes == 0 || puller_.start(pull_offset_, bytes) != Status::ok) break;
        run_ = bytes;
    }
    return believable;
}

}  // namespace millrace::ring::detail
