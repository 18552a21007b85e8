// Thread domains: queue pairs that one thread at a time uses, so that a device's driver takes no
// locks for them and may give the thread a doorbell page of its own. ibv_alloc_td(3),
// ibv_alloc_parent_domain(3).
//
//     auto thread = ThreadDomain::allocate(context);
//     auto domain = thread.domain_for(shared_domain);   // protects as shared_domain does
//     auto queue_pair = domain.create_queue_pair(options);
//
// The driver of mlx5 has them, that of rxe has not. The soft device has them: a batch of requests
// (ibv_wr_start …) and an extended completion queue of theirs take no lock. ibv_post_send costs the
// same with and without: its lock is a store as long as one thread posts.
#pragma once

#include <infiniband/verbs.h>

#include "millrace/base/error.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::verbs {

class Context;

/// Says that one thread at a time uses what is made in it. Move-only; the domains made from it must
/// go first, the context last.
class ThreadDomain {
  public:
    /// Throws Error (unsupported, resource_exhausted).
    [[nodiscard]] static ThreadDomain allocate(const Context& context);
    ThreadDomain() noexcept = default;
    ThreadDomain(ThreadDomain&& other) noexcept;
    ThreadDomain& operator=(ThreadDomain&& other) noexcept;
    ThreadDomain(const ThreadDomain&) = delete;
    ThreadDomain& operator=(const ThreadDomain&) = delete;
    ~ThreadDomain();

    /// A domain whose queue pairs belong to this thread domain, and which protects as `domain`
    /// does: regions of the one are good for queue pairs of the other. `domain` is none of these
    /// itself, of the same context, and must outlive it. Throws Error (unsupported,
    /// invalid_argument, resource_exhausted).
    [[nodiscard]] ProtectionDomain domain_for(const ProtectionDomain& domain) const;

    [[nodiscard]] ibv_td* raw() const noexcept { return raw_; }

  private:
    explicit ThreadDomain(ibv_td* raw) noexcept : raw_{raw} {}
    ibv_td* raw_ = nullptr;
};

}  // namespace millrace::verbs
