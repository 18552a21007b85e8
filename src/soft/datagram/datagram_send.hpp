// Sending UD datagrams: what a request says is gathered, and goes to whom it is for, at once or
// once it has crossed a modelled link. Owned by queue pairs, which post. docs/soft/receives.md.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "completion/completion_ring.hpp"
#include "datagram/datagram_flight.hpp"
#include "datagram/datagram_target.hpp"
#include "datagram/datagram_wire.hpp"
#include "fabric/multicast.hpp"
#include "transport/transport.hpp"

namespace millrace::soft {

class Process;

/// The sending half of a UD queue pair.
class DatagramSender final : public Transport {
  public:
    /// What it knows of its queue pair.
    struct Of {
        const BlockView& block;
        const End& end;
        const std::uint32_t& qkey;
        bool asymmetric;
        Counters& counters;
        Process& process;
    };
    /// `flights`: over a modelled link; null: datagrams arrive at once. `wire`: to whom is not in
    /// this host's memory; null: nobody else is reached.
    DatagramSender(const Of& of, std::unique_ptr<DatagramFlights> flights,
                   std::unique_ptr<DatagramWire> wire) noexcept;

    [[nodiscard]] bool takes(const ibv_send_wr& wr) const noexcept override;
    [[nodiscard]] ibv_wc_status post(const ibv_send_wr& wr, std::uint32_t flags,
                                     std::uint32_t slot) noexcept override;
    [[nodiscard]] ibv_wc_status move() noexcept override;
    void abort() noexcept override;
    [[nodiscard]] std::uint32_t aborted() const noexcept override {
        return flights_ != nullptr ? flights_->grounded() : failed_;
    }
    void restart() noexcept override;
    [[nodiscard]] bool idle() const noexcept override {
        return flights_ == nullptr || flights_->released_all();
    }
    void forget_gone() noexcept override;

  private:
    [[nodiscard]] ibv_wc_status run(const ibv_send_wr& wr, std::uint32_t flags,
                                    std::uint32_t slot) noexcept;
    /// The datagram is there: whoever has a receive for it now has it.
    void deliver(const DatagramAddress& to, const DatagramMessage& message) noexcept;
    /// Writes the completion of the request in `slot`.
    void complete(std::uint32_t slot, std::uint32_t bytes) noexcept;
    void complete_left(std::int64_t now) noexcept;
    /// At once, or once it has arrived.
    void send(const DatagramAddress& to, const DatagramMessage& message, std::uint32_t flags,
              std::uint32_t slot) noexcept;
    void send_to(std::uint32_t qpn, const DatagramMessage& message) noexcept;
    void send_to_group(const ibv_gid& group, const DatagramMessage& message) noexcept;

    const Of of_;
    const std::unique_ptr<DatagramFlights> flights_;
    const std::unique_ptr<DatagramWire> wire_;
    std::unordered_map<std::uint32_t, std::shared_ptr<DatagramTarget>> targets_;
    Groups groups_;
    std::uint32_t last_qpn_ = 0;
    DatagramTarget* last_ = nullptr;
    CompletionRing completions_;
    KeyCache keys_;
    std::uint32_t bytes_ = 0;   ///< of the request that `run` ran
    std::uint32_t failed_ = 0;  ///< without flights: one that failed when it was posted
};

}  // namespace millrace::soft
