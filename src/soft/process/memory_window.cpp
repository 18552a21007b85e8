#include "process/memory_window.hpp"

#include <cstdint>

#include "layout/block_layout.hpp"
#include "process/context.hpp"

namespace millrace::soft {

bool WindowBinding::holds(ibv_mw_type type) const noexcept {
    if (key == 0) return false;
    if (type == IBV_MW_TYPE_1) return true;
    return is_word_of(words[slot].load(std::memory_order_acquire), key);
}

void LocalOperation::window_done() const noexcept {
    if (window != nullptr) window->waiting.fetch_sub(1);
}

bool may_be_posted(const ibv_send_wr& wr) noexcept {
    const ibv_mw* const window = wr.bind_mw.mw;
    if (window == nullptr) return false;
    if ((wr.send_flags & from_bind_mw) != 0) return true;
    return window->type == IBV_MW_TYPE_2 && wr.bind_mw.bind_info.mr != nullptr;
}

LocalOperation local_operation_of(const ibv_send_wr& wr, std::uint32_t flags,
                                  std::uint32_t slot) noexcept {
    LocalOperation operation;
    operation.opcode = wr.opcode;
    operation.flags = flags;
    operation.slot = slot;
    if (wr.opcode == IBV_WR_LOCAL_INV) {
        operation.key = wr.invalidate_rkey;
        return operation;
    }
    const ibv_mw_bind_info& info = wr.bind_mw.bind_info;
    operation.window = static_cast<MemoryWindow*>(wr.bind_mw.mw);
    // Whatever the program gave for the others.
    operation.key = (operation.window->first_key & ~0xffU) | (wr.bind_mw.rkey & 0xff);
    if (info.mr != nullptr) {
        operation.region = static_cast<MemoryRegion*>(info.mr)->registration.get();
    }
    operation.address = info.addr;
    operation.length = info.length;
    operation.access = info.mw_access_flags;
    return operation;
}

}  // namespace millrace::soft
