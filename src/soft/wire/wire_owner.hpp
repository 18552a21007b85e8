// What a connection on the wire asks of its queue pair, which is in a room above. Implemented by
// queue_pair/queue_pair_wire.cpp.
#pragma once

#include <infiniband/verbs.h>

namespace millrace::soft {

class WireOwner {
  public:
    WireOwner() = default;
    virtual ~WireOwner() = default;
    WireOwner(const WireOwner&) = delete;
    WireOwner& operator=(const WireOwner&) = delete;

    /// Of the send side.
    virtual void lock() noexcept = 0;
    virtual void unlock() noexcept = 0;

    // With the lock.
    [[nodiscard]] virtual ibv_qp_state state() const noexcept = 0;
    /// Does the operation on a window that was posted first.
    [[nodiscard]] virtual ibv_wc_status run_local() noexcept = 0;
    /// The peer's first packet has come.
    virtual void established() noexcept = 0;
    /// A request has failed.
    virtual void sends_failed(ibv_wc_status status) noexcept = 0;
    /// Something has come, or is complete; the block may have a fault.
    virtual void moved() noexcept = 0;
};

}  // namespace millrace::soft
