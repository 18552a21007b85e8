// The receives that a queue pair without a pool has posted. They are written twice: in the block
// they are for the peer's executor, and in its hands; this process's executors believe the copy
// here. Owned by the queue pair. docs/soft/queue-pair-block.md.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "layout/block_layout.hpp"
#include "system/thread_lock.hpp"

namespace millrace::soft {

class ReceiveQueue {
  public:
    /// Before the first post. Throws std::bad_alloc.
    void make(const Geometry& geometry) {
        stride_ = static_cast<std::uint32_t>(geometry.receive_stride());
        copy_ = std::make_unique_for_overwrite<std::byte[]>(geometry.receive_entries *
                                                            geometry.receive_stride());
    }
    /// As a BlockView has it; null: there is no such queue.
    [[nodiscard]] std::byte* copy() const noexcept { return copy_.get(); }

    /// Where the next one is posted. Any thread.
    [[nodiscard]] const std::atomic<std::uint32_t>& tail() const noexcept { return tail_; }
    /// Of a receive that is posted.
    [[nodiscard]] std::uint64_t id(std::uint32_t position) const noexcept {
        return reinterpret_cast<const ReceiveEntry*>(copy_.get() +
                                                     std::size_t{position & mask} * stride_)
            ->wr_id;
    }

    /// Who posts, one at a time; the others wait.
    class Posting {
      public:
        explicit Posting(ReceiveQueue& queue) noexcept : queue_{queue} {
            queue.lock_.lock_often();
            begin_ = tail_ = queue.tail_.load(std::memory_order_relaxed);
        }
        ~Posting() { queue_.lock_.unlock(); }
        Posting(const Posting&) = delete;
        Posting& operator=(const Posting&) = delete;

        /// Is there a place? `head`: the oldest that is not polled.
        [[nodiscard]] bool has_room(std::uint32_t head) const noexcept {
            return tail_ - head < queue_.capacity;
        }
        /// Of `shared`, the block.
        void put(const ibv_recv_wr& wr, const BlockView& mine, const BlockView& shared) noexcept {
            for (const BlockView* const view : {&mine, &shared}) {
                ReceiveEntry* const entry = view->receive_entry(tail_);
                entry->sges = static_cast<std::uint32_t>(wr.num_sge);
                if (wr.num_sge == 1) [[likely]] {
                    std::memcpy(entry + 1, wr.sg_list, sizeof(ibv_sge));
                } else if (wr.num_sge > 0) {
                    std::memcpy(entry + 1, wr.sg_list,
                                static_cast<std::size_t>(wr.num_sge) * sizeof(ibv_sge));
                }
            }
            mine.receive_entry(tail_)->wr_id = wr.wr_id;
            ++tail_;
        }
        /// What was put may be consumed. False: nothing was.
        bool publish(const BlockView& shared) noexcept {
            queue_.tail_.store(tail_, std::memory_order_release);
            shared.receive->tail.store(tail_, std::memory_order_release);
            return tail_ != begin_;
        }

      private:
        ReceiveQueue& queue_;
        std::uint32_t begin_;
        std::uint32_t tail_;
    };
    /// Nobody posts while it lives.
    class Pause {
      public:
        explicit Pause(ReceiveQueue& queue) noexcept : queue_{queue} { queue.lock_.lock(); }
        ~Pause() { queue_.lock_.unlock(); }
        Pause(const Pause&) = delete;
        Pause& operator=(const Pause&) = delete;
        /// There are none, as at the beginning.
        void clear() noexcept { queue_.tail_.store(first_position, std::memory_order_relaxed); }

      private:
        ReceiveQueue& queue_;
    };

    // Facts; never changed. Of a pool's queue pair, of its completions and its pool.
    std::uint32_t mask = 0;
    std::uint32_t capacity = 0;
    std::uint32_t sges = 0;

  private:
    ThreadLock lock_;  ///< of who posts
    std::atomic<std::uint32_t> tail_{first_position};
    std::uint32_t stride_ = 0;
    std::unique_ptr<std::byte[]> copy_;
};

}  // namespace millrace::soft
