// The protocol of a connection on the wire, of either kind: roce's state machines of RC, or of UC,
// behind one face. Part of `Connected`.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "roce/outlet.hpp"
#include "roce/packet.hpp"
#include "roce/sides.hpp"

namespace millrace::soft {

class ConnectionProtocol {
  public:
    /// `type`: RC or UC. `most_requests`: posted and not complete. `receive_buffer`: bytes of the
    /// peer's socket, or of this one's, as hosts are alike. Throws std::bad_alloc.
    [[nodiscard]] static std::unique_ptr<ConnectionProtocol> make(ibv_qp_type type,
                                                                  roce::SendSide& sends,
                                                                  roce::ReceiveSide& receives,
                                                                  std::uint32_t most_requests,
                                                                  std::uint32_t receive_buffer);
    ConnectionProtocol() = default;
    virtual ~ConnectionProtocol() = default;
    ConnectionProtocol(const ConnectionProtocol&) = delete;
    ConnectionProtocol& operator=(const ConnectionProtocol&) = delete;

    /// RTR, and RTS.
    virtual void start_receiving(const ibv_qp_attr& attributes) noexcept = 0;
    virtual void start_sending(const ibv_qp_attr& attributes) noexcept = 0;
    /// Attributes that may change later.
    virtual void change(const ibv_qp_attr& attributes) noexcept = 0;
    virtual void hold(bool held) noexcept = 0;
    virtual void post(const roce::Request& request) noexcept = 0;
    virtual void arrived(const roce::Packet& packet, std::int64_t now) noexcept = 0;
    /// What has come is answered, though nothing else is to leave any more.
    virtual void answer(std::int64_t, roce::Outlet&) noexcept {}
    /// False: the outlet was full. `acknowledges`: also what has arrived, though it might wait.
    virtual bool send(std::int64_t now, roce::Outlet& outlet, bool acknowledges) noexcept = 0;
    /// Something has arrived that was not acknowledged.
    [[nodiscard]] virtual bool owes_acknowledgement() const noexcept { return false; }
    /// `acknowledges`: also that of an acknowledgement.
    [[nodiscard]] virtual std::int64_t next_deadline(bool acknowledges) const noexcept = 0;
    [[nodiscard]] virtual bool is_drained() const noexcept = 0;
    /// Nothing is sent any more, until `start_sending`. So many requests were posted and not
    /// complete, the failed one not counted.
    [[nodiscard]] virtual std::uint32_t abort() noexcept = 0;
    /// Packets that were sent again, since the beginning.
    [[nodiscard]] virtual std::uint64_t repeated() const noexcept { return 0; }
};

}  // namespace millrace::soft
