// Memory windows: parts of a region with a key and rights of their own. Type 1 is bound by
// ibv_bind_mw and belongs to a protection domain; type 2 (2B) is bound by a work request, belongs
// to the queue pair through which that was, and is invalidated by either side. docs/soft/memory.md.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <unordered_map>

#include "system/guarded.hpp"

namespace millrace::soft {

struct MemoryWindow;
struct Registration;

using WindowsByIndex = std::unordered_map<std::uint32_t, MemoryWindow*>;
/// Of the process's `Windows`.
using WindowsHeld = Held<WindowsByIndex>;

/// In ibv_send_wr::send_flags, by ibv_bind_mw: the window may be of type 1.
inline constexpr unsigned from_bind_mw = 1U << 31;

/// What a window was bound to last.
struct WindowBinding {
    const Registration* region = nullptr;
    std::uint32_t key = 0;  ///< 0: never bound, or unbound by us
    /// Type 2: those of the block of the queue pair that it is bound through, and which one is its.
    std::atomic<std::uint64_t>* words = nullptr;
    int slot = -1;
    std::uint64_t registration = 0;

    /// Of a window of type 2 the peer may have ended it since.
    [[nodiscard]] bool holds(ibv_mw_type type) const noexcept;
};

struct MemoryWindow : ibv_mw {
    std::uint32_t first_key = 0;  ///< of later ones the program chooses the low 8 bits
    std::atomic<int> waiting{0};  ///< requests in send queues that name it

    [[nodiscard]] WindowBinding& binding(WindowsHeld) noexcept { return binding_; }
    [[nodiscard]] bool bound(WindowsHeld) const noexcept { return binding_.holds(type); }

  private:
    WindowBinding binding_;
};

inline constexpr std::uint32_t window_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                               IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;
/// What a region's flags may be, but a window has no such right to give: no mistake, and nothing.
inline constexpr std::uint32_t regions_own_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_OPTIONAL_RANGE;
[[nodiscard]] inline bool understood(std::uint32_t access) noexcept {
    return (access & ~(window_access | regions_own_access)) == 0;
}

/// A work request on a window, which the sender's own process does without its peer. Kept in
/// private memory while it is pending: it holds pointers, and the pending ring is the peer's to
/// write.
struct LocalOperation {
    ibv_wr_opcode opcode = IBV_WR_LOCAL_INV;  ///< or IBV_WR_BIND_MW
    std::uint32_t flags = 0;
    std::uint32_t slot = 0;
    std::uint32_t key = 0;  ///< to be invalidated, or the window's new one
    MemoryWindow* window = nullptr;
    Registration* region = nullptr;  ///< null: the window is to show nothing
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t access = 0;
    std::uint32_t position = 0;  ///< in the pending ring

    /// It no longer waits.
    void window_done() const noexcept;
};

[[nodiscard]] inline bool is_local(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}
/// Windows of type 1 are bound by ibv_bind_mw only.
[[nodiscard]] bool may_be_posted(const ibv_send_wr& wr) noexcept;
[[nodiscard]] LocalOperation local_operation_of(const ibv_send_wr& wr, std::uint32_t flags,
                                                std::uint32_t slot) noexcept;

}  // namespace millrace::soft
