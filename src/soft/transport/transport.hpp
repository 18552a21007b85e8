// How a queue pair's requests travel where neither end's process executes them from the other's
// block: by datagrams, or by whatever else carries bytes. Called by who holds the queue
// pair's send side, and owned by it; what arrives here is done by whoever implements this, in
// `move`. docs/architecture.md, "Inside soft/".
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

class Transport {
  public:
    Transport() = default;
    virtual ~Transport() = default;
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    /// May it be posted? The queue pair has looked at what its type and its size say.
    [[nodiscard]] virtual bool takes(const ibv_send_wr& wr) const noexcept = 0;
    /// Sends the request in `slot`, whose `flags` are all that it has, and completes it, then or
    /// in `move`. What it fails with, if it does so at once.
    [[nodiscard]] virtual ibv_wc_status post(const ibv_send_wr& wr, std::uint32_t flags,
                                             std::uint32_t slot) noexcept = 0;
    /// Moves on what is due, and completes what is through. What the next one to complete fails
    /// with, if it does now.
    [[nodiscard]] virtual ibv_wc_status move() noexcept = 0;
    /// The queue pair goes to an error: what has not left never will.
    virtual void abort() noexcept = 0;
    /// So many posted requests were not complete then.
    [[nodiscard]] virtual std::uint32_t aborted() const noexcept = 0;
    /// It sends again.
    virtual void restart() noexcept = 0;
    /// Everything posted is complete.
    [[nodiscard]] virtual bool idle() const noexcept = 0;
    /// The queue pair has gone to `state`, or stays there with other attributes.
    virtual void learn(const ibv_qp_attr& attributes, ibv_qp_state state) noexcept {
        static_cast<void>(attributes);
        static_cast<void>(state);
    }
    virtual void leave_out_icrc() noexcept {}  ///< of the wire's packets: both ends have agreed
    /// Lets go of receivers that are gone: their memory, and what tells of their process.
    virtual void forget_gone() noexcept {}
};

}  // namespace millrace::soft
