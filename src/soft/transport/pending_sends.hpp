// The requests of a queue pair that could not run when they were posted. They are written twice: in
// the block they are for whoever executes, and in the peer's hands; this process's executors
// believe the copy here. Part of the queue pair's send side.
// docs/soft/waiting.md.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "layout/block_layout.hpp"

namespace millrace::soft {

class PendingSends {
  public:
    /// In `shared`, the block, which must outlive it.
    explicit PendingSends(const BlockView& shared) noexcept : shared_{shared} {}

    /// Makes the copy, if there is none yet. False: there is no memory for it.
    [[nodiscard]] bool make() noexcept;
    [[nodiscard]] bool made() const noexcept { return copy_ != nullptr; }

    /// Where the next one is posted.
    [[nodiscard]] std::uint32_t tail() const noexcept { return tail_; }
    /// Up to there they may be executed; in SQD not all.
    [[nodiscard]] std::uint32_t shown() const noexcept { return shown_; }
    /// So many are posted and not executed. The peer may have written any number.
    [[nodiscard]] std::uint32_t count() const noexcept { return tail_ - head(); }
    /// Of these, so many may be.
    [[nodiscard]] std::uint32_t executable() const noexcept { return shown_ - head(); }
    /// As it was posted; at `tail` to be filled in.
    [[nodiscard]] PendingEntry& entry(std::uint32_t position) const noexcept {
        return *reinterpret_cast<PendingEntry*>(
            copy_.get() + std::size_t{position & shared_.send_mask} * shared_.pending_stride);
    }

    /// Fills in the one at `position`; `slot`: that of the send queue. How many bytes follow it.
    std::size_t fill(std::uint32_t position, const ibv_send_wr& wr, std::uint32_t flags,
                     std::uint32_t slot) noexcept;
    /// Posts what was filled in, with so many bytes behind it.
    void append(std::size_t bytes) noexcept;
    /// Gives one a position that nobody is to execute.
    void append_failed() noexcept { ++tail_; }
    /// What was posted may be executed.
    void show() noexcept;
    /// Can the ring's head be there? False: back, or beyond what was posted.
    [[nodiscard]] bool believe(std::uint32_t head) noexcept;
    /// None of them is to be executed any more.
    void drop() noexcept;
    /// As at the beginning; the block is not touched.
    void restart() noexcept { tail_ = shown_ = seen_ = first_position; }

  private:
    [[nodiscard]] std::uint32_t head() const noexcept {
        return shared_.pending->head.load(std::memory_order_acquire);
    }

    const BlockView& shared_;
    std::unique_ptr<std::byte[]> copy_;
    std::uint32_t tail_ = first_position;
    std::uint32_t shown_ = first_position;
    std::uint32_t seen_ = first_position;  ///< so much was executed, when it was last looked at
};

}  // namespace millrace::soft
