// Receiver over push2 data in batches: which slots of a chunk were sent, and where the rest is
// passed over. Part of Receiver, included by the files that make Receivers.
#pragma once

#include "millrace/ring/receiver.hpp"

#include <cstdint>

namespace millrace::ring {

template <Design D>
    requires(check_design<D>())
bool Receiver<D>::pass_rest() noexcept {
    if constexpr (D.data != DataFlow::push2) {
        return false;
    } else {
        chunks_.take();
        const std::uint64_t done = (consumed_ - initial_) % chunks_.chunk();
        if (done == 0) return false;
        const bool known = static_cast<std::int64_t>(chunks_.arrived() - (consumed_ - done)) > 0;
        if (!known || chunks_.filled(offset_) != done) return false;
        const std::uint64_t rest = chunks_.chunk() - done;
        consumed_ += rest;
        offset_ += rest;
        if (offset_ == ring_bytes_) offset_ = 0;
        arrived_ = consumed_;
        return true;
    }
}

/// What there is of the next chunk, if the producer has told that it is there.
template <Design D>
    requires(check_design<D>())
void Receiver<D>::enter_chunk(std::uint64_t told) noexcept {
    if constexpr (D.data == DataFlow::push2) {
        if (consumed_ != arrived_) return;
        (void)pass_rest();
        chunks_.take();
        if ((consumed_ - initial_) % chunks_.chunk() != 0) return;
        if (static_cast<std::int64_t>(told - consumed_) <= 0 || chunks_.arrived() == consumed_) {
            return;
        }
        const std::uint64_t bytes = chunks_.filled(offset_);
        if (bytes == 0 || bytes % terms_.slot_bytes != 0) {
            disbelieve();
            return;
        }
        arrived_ = consumed_ + bytes;
    }
}

}  // namespace millrace::ring
