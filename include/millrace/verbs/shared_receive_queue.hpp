// Shared receive queues: receives that several queue pairs take from.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "millrace/base/error.hpp"
#include "millrace/verbs/control_path.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::verbs {

/// What to create.
struct SharedReceiveOptions {
    std::uint32_t max_requests = 128;
    std::uint32_t max_slices = 1;
};

/// Receives for all queue pairs that are created with it (QueuePairOptions::shared_receives), which
/// must go first. Which of them takes a receive is known from its completion, in that queue pair's
/// receive queue. Move-only. Posting is thread-safe. InfiniBand specification, "Shared Receive
/// Queue".
class SharedReceiveQueue {
  public:
    SharedReceiveQueue() noexcept = default;
    SharedReceiveQueue(SharedReceiveQueue&& other) noexcept;
    SharedReceiveQueue& operator=(SharedReceiveQueue&& other) noexcept;
    SharedReceiveQueue(const SharedReceiveQueue&) = delete;
    SharedReceiveQueue& operator=(const SharedReceiveQueue&) = delete;
    ~SharedReceiveQueue();

    /// 0, ENOMEM (full: take completions first), EINVAL (more slices than it was created for).
    /// Never blocks, never throws.
    [[nodiscard]] int post(const Receive& receive) noexcept {
        ibv_recv_wr wr = to_raw(receive);
        ibv_recv_wr* bad;
        return ibv_post_srq_recv(raw_, &wr, &bad);
    }
    /// Tells once, by IBV_EVENT_SRQ_LIMIT_REACHED (asynchronous_event.hpp), when fewer than `limit`
    /// receives are left; 0 disarms. Throws Error (invalid_argument: more than it has room for).
    void arm_limit(std::uint32_t limit);
    /// The limit that is armed; 0: none, or it has been told.
    [[nodiscard]] std::uint32_t armed_limit() const;
    /// Receives that it has room for: at least what was asked for.
    [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] ibv_srq* raw() const noexcept { return raw_; }

  private:
    friend class ProtectionDomain;
    SharedReceiveQueue(ibv_srq* raw, const ControlPath& path, std::uint32_t capacity) noexcept
        : raw_{raw}, path_{&path}, capacity_{capacity} {}
    ibv_srq* raw_ = nullptr;
    const ControlPath* path_ = nullptr;
    std::uint32_t capacity_ = 0;
};

}  // namespace millrace::verbs
