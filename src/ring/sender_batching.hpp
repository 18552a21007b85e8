// When what was appended is due: fixed and dynamic batching (work 000, section 6.4). Part of
// Sender, included by the files that make Senders.
//
// The work sends the next batch with the first enqueue after the transfer before is done. Where
// transfers are done at once that is one transfer for each item; so a batch also waits while the
// consumer has not yet taken what it was sent, until it is of the agreed size. To ask costs
// something, so it is asked when 1, 2, 4 ... items have gathered, not for each.
#pragma once

#include "millrace/ring/sender.hpp"

#include <algorithm>
#include <cstdint>

namespace millrace::ring {

template <Design D>
    requires(check_design<D>())
base::Status Sender<D>::push() noexcept {
    if (batching_ == Batching::dynamic) gather_ = 0;
    if (way_ == Way::behind) return push_behind();
    const std::uint64_t bytes = produced_ - intransit_;
    show_held_mark();
    return bytes == 0 ? tell() : push_straight(bytes);
}

template <Design D>
    requires(check_design<D>())
base::Status Sender<D>::send_weighed() noexcept {
    if (way_ == Way::moved) return moved_->send(produced_);
    const std::uint64_t bytes = produced_ - intransit_;
    if (bytes < gather_) return ended_;
    if (batching_ == Batching::dynamic && !is_due(bytes)) return ended_;
    only_whole_ = batching_ == Batching::fixed;
    const base::Status status = push();
    only_whole_ = false;
    return status;
}

/// True: `bytes` should go now. False: gather_ says when to ask again.
template <Design D>
    requires(check_design<D>())
bool Sender<D>::is_due(std::uint64_t bytes) noexcept {
    if (window_.reap() != base::Status::ok) return true;  // push() will tell
    reap_transferred();
    const bool flying = D.data != DataFlow::pull && transferred_ != intransit_;
    bool busy = space_.consumed() != intransit_;
    if (!flying && busy && bytes < terms_.batch_bytes) {
        if (refresh() != base::Status::ok) return true;
        busy = space_.consumed() != intransit_;
    }
    if (!flying && (!busy || bytes >= terms_.batch_bytes)) return true;
    gather_ = bytes < terms_.batch_bytes ? std::min(2 * bytes, terms_.batch_bytes)
                                         : bytes + terms_.batch_bytes;
    return false;
}

}  // namespace millrace::ring
