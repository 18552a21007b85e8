#include "transport/pending_sends.hpp"

#include <cstring>
#include <new>

#include "transport/request.hpp"

namespace millrace::soft {

bool PendingSends::make() noexcept {
    if (copy_ != nullptr) return true;
    const std::size_t entries = std::size_t{shared_.send_mask} + 1;
    copy_.reset(new (std::nothrow) std::byte[entries * shared_.pending_stride]);
    return copy_ != nullptr;
}

std::size_t PendingSends::fill(std::uint32_t position, const ibv_send_wr& wr, std::uint32_t flags,
                               std::uint32_t slot) noexcept {
    PendingEntry& to = entry(position);
    to.remote_address = wr.wr.rdma.remote_addr;
    to.remote_key = wr.wr.rdma.rkey;
    if (is_atomic(wr.opcode)) {
        to.remote_key = wr.wr.atomic.rkey;
        to.compare_or_add = wr.wr.atomic.compare_add;
        to.swap = wr.wr.atomic.swap;
    } else {
        to.compare_or_add = to.swap = 0;  // the peer sees all of it
    }
    to.immediate = wr.imm_data;
    to.opcode = static_cast<std::uint32_t>(wr.opcode);
    to.flags = flags & ~pending_lost;
    to.sges = static_cast<std::uint32_t>(wr.num_sge);
    to.inline_length = 0;
    to.slot = slot;
    to.plan = 0;
    store_due(to, 0);
    auto* const payload = reinterpret_cast<std::byte*>(&to + 1);
    if ((flags & IBV_SEND_INLINE) != 0) {
        for (int i = 0; i < wr.num_sge; ++i) {
            const ibv_sge& sge = wr.sg_list[i];
            std::memcpy(payload + to.inline_length, reinterpret_cast<const void*>(sge.addr),
                        sge.length);
            to.inline_length += sge.length;
        }
        return to.inline_length;
    }
    if (wr.num_sge <= 0) return 0;
    const std::size_t bytes = static_cast<std::size_t>(wr.num_sge) * sizeof(ibv_sge);
    std::memcpy(payload, wr.sg_list, bytes);
    return bytes;
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
