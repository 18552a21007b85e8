#include "transport/pending_sends.hpp"

#include <cstring>
#include <new>

namespace millrace::soft {

bool PendingSends::make() noexcept {
    if (copy_ != nullptr) return true;
    const std::size_t entries = std::size_t{shared_.send_mask} + 1;
    copy_.reset(new (std::nothrow) std::byte[entries * shared_.pending_stride]);
    return copy_ != nullptr;
}

void PendingSends::append(std::size_t bytes) noexcept {
    const PendingEntry& posted = entry(tail_);
    PendingEntry& shown = *shared_.pending_entry(tail_);
    std::memcpy(static_cast<void*>(&shown), &posted, offsetof(PendingEntry, due));
    std::memcpy(static_cast<void*>(&shown + 1), &posted + 1, bytes);
    store_due(shown, posted.due);
    ++tail_;
}

void PendingSends::show() noexcept {
    shown_ = tail_;
    shared_.pending->tail.store(tail_, std::memory_order_release);
}

bool PendingSends::believe(std::uint32_t head) noexcept {
    if (head - seen_ > tail_ - seen_) return false;
    seen_ = head;
    return true;
}

void PendingSends::drop() noexcept {
    shared_.pending->step.store(0, std::memory_order_relaxed);
    shared_.pending->head.store(tail_, std::memory_order_release);
    seen_ = shown_ = tail_;
}

}  // namespace millrace::soft
