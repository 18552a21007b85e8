// DataFlow::push2: chunks of the producer's ring as SENDs into receives that the consumer has
// posted for the same chunks of its ring (work 000, sections 4.1 and 6.2). Used by Transmitter and
// Intake.
//
// Both rings are cut into chunks of the agreed transfer size, and a SEND never crosses one: fixed
// items have chunks of a slot or, batched, of as many slots as make a batch; frames begin at a
// chunk and take as many as they need. What a SEND leaves free of its chunk is skipped by both
// ends, so positions count chunks: of a batch that is not full, the receive's completion tells how
// many bytes there are. The consumer keeps receives posted for `window_bytes` after what it has
// consumed, and returns space only when the receive of that space is posted again: a SEND never
// finds no receive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/receive_pool.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::ring::detail {

/// The producer's half. One thread; never blocks, throws or allocates.
class Push2 {
  public:
    Push2() noexcept = default;
    Push2(SendWindow& window, const verbs::RegisteredBuffer& source, std::uint64_t chunk) noexcept
        : window_{&window},
          source_{reinterpret_cast<std::uint64_t>(source.data())},
          chunk_{chunk},
          local_key_{source.region().lkey()} {}

    /// True if `count` SENDs have slots.
    [[nodiscard]] bool has_slots(std::uint64_t count) noexcept {
        if (window_->free() >= count) [[likely]]
            return true;
        return window_->reap() == base::Status::ok && window_->free() >= count;
    }
    /// Posts the `bytes` at `offset`, which begin at a chunk. The caller has asked has_slots().
    base::Status run(std::uint64_t offset, std::uint64_t bytes, Signal signal) noexcept {
        for (std::uint64_t done = 0; done < bytes; done += chunk_) {
            const std::uint64_t size = std::min(chunk_, bytes - done);
            const base::Status status =
                send(offset + done, size, bytes - done <= chunk_ ? signal : Signal::when_due);
            if (status != base::Status::ok) return status;
        }
        return base::Status::ok;
    }
    /// One SEND of `bytes` for each chunk of [offset, end): what is skipped.
    base::Status skip(std::uint64_t offset, std::uint64_t end, std::uint64_t bytes) noexcept {
        for (; offset < end; offset += chunk_) {
            const base::Status status = send(offset, bytes, Signal::when_due);
            if (status != base::Status::ok) return status;
        }
        return base::Status::ok;
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }

  private:
    base::Status send(std::uint64_t offset, std::uint64_t bytes, Signal signal) noexcept {
        const ibv_sge slice{source_ + offset, static_cast<std::uint32_t>(bytes), local_key_};
        const base::Status status = window_->post(verbs::Send{.from = {&slice, 1}}, signal);
        posted_ += status == base::Status::ok ? 1 : 0;
        return status;
    }

    SendWindow* window_ = nullptr;
    std::uint64_t source_ = 0;
    std::uint64_t chunk_ = 0;
    std::uint32_t local_key_ = 0;
    std::uint64_t posted_ = 0;
};

/// The consumer's half: the receives, in the order of the ring. One thread; never blocks, throws
/// or allocates.
class ChunkReceiver {
  public:
    /// Posts receives for `window` bytes of the `ring`'s first `ring_bytes`. Allocates.
    ChunkReceiver(connect::Link& link, const verbs::RegisteredBuffer& ring,
                  std::uint64_t ring_bytes, std::uint64_t chunk, std::uint64_t window,
                  std::uint64_t initial)
        : pool_{link},
          ring_{&ring},
          ring_bytes_{ring_bytes},
          chunk_{chunk},
          window_{window},
          arrived_{initial},
          posted_until_{initial},
          filled_(ring_bytes / chunk) {
        post_until(initial + window);
    }

    /// Up to where chunks have arrived, as far as completions were taken.
    [[nodiscard]] std::uint64_t arrived() const noexcept { return arrived_; }
    void take() noexcept {
        pool_.take([&](const verbs::Completion& completion) noexcept {
            filled_[arrived_index_] = completion.bytes();
            if (++arrived_index_ == filled_.size()) arrived_index_ = 0;
            arrived_ += chunk_;
        });
    }
    /// What was sent of the chunk at `offset` in the ring, which has arrived.
    [[nodiscard]] std::uint64_t filled(std::uint64_t offset) const noexcept {
        return filled_[offset / chunk_];
    }
    [[nodiscard]] std::uint64_t chunk() const noexcept { return chunk_; }
    [[nodiscard]] std::uint64_t posted() const noexcept { return pool_.posted(); }
    [[nodiscard]] bool broken() const noexcept { return pool_.broken(); }
    /// Posts receives again for what was consumed (and whose completion was taken). Returns up to
    /// where the producer may be told that space is free.
    std::uint64_t replenish(std::uint64_t consumed) noexcept {
        take();
        const bool ahead = static_cast<std::int64_t>(consumed - arrived_) > 0;
        post_until((ahead ? arrived_ : consumed) + window_);
        return posted_until_ - window_;
    }

  private:
    void post_until(std::uint64_t position) noexcept {
        while (static_cast<std::int64_t>(position - posted_until_) >=
               static_cast<std::int64_t>(chunk_)) {
            const ibv_sge slice = ring_->slice(offset_, chunk_);
            if (!pool_.post({.into = {&slice, 1}})) return;
            posted_until_ += chunk_;
            offset_ += chunk_;
            if (offset_ == ring_bytes_) offset_ = 0;
        }
    }

    ReceivePool pool_;
    const verbs::RegisteredBuffer* ring_;
    std::uint64_t ring_bytes_;
    std::uint64_t chunk_;
    std::uint64_t window_;
    std::uint64_t arrived_;
    std::uint64_t posted_until_;
    std::uint64_t offset_ = 0;           ///< of posted_until_
    std::vector<std::uint32_t> filled_;  ///< bytes of each chunk of the ring that arrived
    std::size_t arrived_index_ = 0;      ///< of the chunk at arrived_
};

}  // namespace millrace::ring::detail
