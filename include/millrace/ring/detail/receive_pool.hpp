// The receive side of a ring's end where receives carry the protocol: data (push2), immediates
// (transfer immediate) or credit (space push2). Counts what is posted and takes completions; used
// by TransferView, SpaceView and ChunkReceiver.
//
// Nobody else may poll the link's receive queue, so an end that has a ReceivePool has no Sleeper
// (whose events are receives too): it sleeps with a CompletionSleeper.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/connect/link.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::ring::detail {

/// One thread; never blocks, throws or allocates. The link's state must outlive it.
class ReceivePool {
  public:
    ReceivePool() noexcept = default;
    explicit ReceivePool(connect::Link& link) noexcept
        : queue_pair_{&link.queue_pair()}, completions_{&link.receive_queue()} {}

    /// False: refused, and the pool is broken.
    bool post(const verbs::Receive& receive) noexcept {
        if (queue_pair_->post(receive) != 0) [[unlikely]]
            broken_ = true;
        ++posted_;
        return !broken_;
    }
    /// Hands every completion that is there to `each`, in order, until one failed.
    template <class Each>
    void take(Each&& each) noexcept {
        std::array<verbs::Completion, 16> batch;
        while (!broken_) {
            const int count = completions_->poll(batch);
            if (count < 0) broken_ = true;
            if (count <= 0) return;
            for (const verbs::Completion& completion :
                 std::span{batch}.first(static_cast<std::size_t>(count))) {
                if (!completion.ok()) [[unlikely]] {
                    broken_ = true;
                    return;
                }
                each(completion);
            }
            if (static_cast<std::size_t>(count) < batch.size()) return;
        }
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }
    /// True once a receive has failed or was refused: the queue pair is broken.
    [[nodiscard]] bool broken() const noexcept { return broken_; }

  private:
    verbs::QueuePair* queue_pair_ = nullptr;
    verbs::CompletionQueue* completions_ = nullptr;
    std::uint64_t posted_ = 0;
    bool broken_ = false;
};

}  // namespace millrace::ring::detail
