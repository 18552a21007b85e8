// Sending UD datagrams: ibv_post_send of a UD queue pair. Called by post.cpp; owned by queue pairs.
// docs/soft-device.md, "Receive pools".
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "completion/completion_ring.hpp"
#include "datagram/datagram_flight.hpp"
#include "datagram/datagram_target.hpp"
#include "fabric/multicast.hpp"

namespace millrace::soft {

struct QueuePair;

/// The sending half of a UD queue pair. With its send_lock.
class DatagramSender {
  public:
    /// `qp` has its block, its completion queues and its fences.
    explicit DatagramSender(QueuePair& qp) noexcept;

    /// ibv_post_send, in whatever state.
    [[nodiscard]] int post(ibv_send_wr* wr, ibv_send_wr** bad) noexcept;

    /// Lets go of receivers that are gone: their memory, and what tells of their process.
    void forget_gone() noexcept;

    /// The datagram is there: whoever has a receive for it now has it.
    void deliver(const DatagramAddress& to, const DatagramMessage& message) noexcept;
    /// Writes the completion of the request in `slot`.
    void complete(std::uint32_t slot, std::uint32_t bytes) noexcept;

  private:
    [[nodiscard]] ibv_wc_status run(const ibv_send_wr& wr, std::uint32_t flags,
                                    std::uint32_t slot) noexcept;
    /// At once, or once it has arrived.
    void send(const DatagramAddress& to, const DatagramMessage& message, std::uint32_t flags,
              std::uint32_t slot) noexcept;
    void send_to(std::uint32_t qpn, const DatagramMessage& message) noexcept;
    void send_to_group(const ibv_gid& group, const DatagramMessage& message) noexcept;

    QueuePair& qp_;
    std::unordered_map<std::uint32_t, std::shared_ptr<DatagramTarget>> targets_;
    Groups groups_;
    std::uint32_t last_qpn_ = 0;
    DatagramTarget* last_ = nullptr;
    CompletionRing completions_;
    KeyCache keys_;
    std::uint32_t bytes_ = 0;  ///< of the request that `run` ran
};

}  // namespace millrace::soft
