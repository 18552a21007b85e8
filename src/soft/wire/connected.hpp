// A connected queue pair whose peer is on the wire: what joins roce's state machines to this
// process's port, and to the queue pair's memory, receives and completions. Made at RTR, gone at
// RESET. docs/architecture.md, "How requests travel".
//
// The queue pair's send side, and its lock, has both directions: who posts, the thread that drains
// the port and the engine wait for it, each for a few packets. So it is never held by who waits for
// the port to let go of a receiver, or for the engine to let go of a timer.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"
#include "wire/arrivals.hpp"
#include "wire/connection_protocol.hpp"
#include "wire/departures.hpp"
#include "wire/wire_engine.hpp"
#include "wire/wire_owner.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {

class Connected final : public Transport, private WireReceiver, private WireTimer {
  public:
    struct Of {
        WirePort& port;
        UdpAddress peer;
        Departures::Of sends;
        Arrivals::Of receives;
    };
    /// From here on it may be called by the port. Throws std::bad_alloc, base::Error.
    Connected(const Of& of, std::unique_ptr<WireOwner> owner);
    /// Not with the owner's lock.
    ~Connected() override;

    [[nodiscard]] bool takes(const ibv_send_wr&) const noexcept override { return true; }
    [[nodiscard]] ibv_wc_status post(const ibv_send_wr& wr, std::uint32_t flags,
                                     std::uint32_t slot) noexcept override;
    [[nodiscard]] ibv_wc_status move() noexcept override;
    void abort() noexcept override;
    [[nodiscard]] std::uint32_t aborted() const noexcept override { return aborted_; }
    void restart() noexcept override;
    [[nodiscard]] bool idle() const noexcept override { return protocol_->is_drained(); }
    void learn(const ibv_qp_attr& attributes, ibv_qp_state state) noexcept override;
    void leave_out_icrc() noexcept override { go_unchecked(); }

  private:
    // WireReceiver
    void arrived(const WirePacket& packet) noexcept override;
    bool settled(std::int64_t now, Answers answers) noexcept override;
    // WireTimer
    void due(std::int64_t now) noexcept override;

    [[nodiscard]] bool receives() const noexcept;
    void take(const WirePacket& packet) noexcept;
    void send(std::int64_t now, bool acknowledges = true) noexcept;
    void answer() noexcept;
    [[nodiscard]] Check check() const noexcept {
        return goes_unchecked() ? Check::left_out : Check::icrc;
    }
    void tell_owner() noexcept;

    WirePort& port_;
    const std::shared_ptr<WireRoute> route_;
    const std::uint32_t qpn_;
    const ibv_qp_type type_;
    const std::unique_ptr<WireOwner> owner_;
    Departures departures_;
    Arrivals arrivals_;
    const std::unique_ptr<ConnectionProtocol> protocol_;
    ibv_qp_attr attributes_{};
    bool sends_ = false;  ///< has been at RTS
    bool failed_ = false;
    std::uint32_t aborted_ = 0;
    std::uint64_t repeated_ = 0;         ///< so many packets the port was told of
    unsigned acknowledges_at_once_ = 0;  ///< so many batches, as the program has not answered
};

}  // namespace millrace::soft
