// Memory windows: parts of a region with a key and rights of their own. Type 1 is bound by
// ibv_bind_mw and belongs to a protection domain; type 2 (2B) is bound by a work request, belongs
// to the queue pair through which that was, and is invalidated by either side. docs/soft-device.md.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "context.hpp"
#include "local_operation.hpp"

namespace millrace::soft {

struct QueuePair;

/// What is not const is guarded by the mutex of the process's `Windows`.
struct MemoryWindow : ibv_mw {
    Context* owner = nullptr;
    std::uint32_t index = 0;               ///< of all its keys; the program chooses the low 8 bits
    const Registration* region = nullptr;  ///< what it was bound to last
    std::uint32_t bound_key = 0;           ///< 0: never bound, or unbound by us
    QueuePair* qp = nullptr;               ///< type 2: whose block has its slot
    int slot = -1;
    std::uint64_t registration = 0;
    std::atomic<int> waiting{0};  ///< requests in send queues that name it

    /// Type 2: the peer may have ended it since.
    [[nodiscard]] bool bound() const noexcept;
};

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept;
/// EBUSY while a request that binds it waits in a send queue, or a stopped process may be using it.
int dealloc_mw(ibv_mw* window) noexcept;
int bind_mw(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* bind) noexcept;

[[nodiscard]] inline bool is_local(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}
/// Windows of type 1 are bound by ibv_bind_mw only.
[[nodiscard]] bool may_be_posted(const ibv_send_wr& wr) noexcept;
[[nodiscard]] LocalOperation local_operation_of(const ibv_send_wr& wr, std::uint32_t flags,
                                                std::uint32_t slot) noexcept;

}  // namespace millrace::soft
