// A work request on a memory window, which the sender's own process does without its peer. Kept in
// private memory while it is pending: it holds pointers, and the pending ring is the peer's to
// write. Used by post.cpp and the queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

struct MemoryWindow;
struct Registration;

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

}  // namespace millrace::soft
