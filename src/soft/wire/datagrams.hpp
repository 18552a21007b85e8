// The wire of a UD queue pair: datagrams as packets, both ways. Made with the queue pair, gone with
// it. What arrives is delivered as by a sender of this process.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>

#include "datagram/datagram_wire.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {

class Process;

class Datagrams final : public DatagramWire, private WireReceiver {
  public:
    /// From here on the port may call it. Throws base::Error.
    Datagrams(WirePort& port, Process& process, std::uint32_t qpn);
    /// Not with a lock that receivers wait for.
    ~Datagrams() override;

    [[nodiscard]] bool carries(const ibv_ah_attr& attributes, std::uint32_t qpn) noexcept override;
    [[nodiscard]] bool send(const DatagramMessage& message, std::uint32_t qpn) noexcept override;
    void flush() noexcept override { port_.flush(); }

  private:
    // WireReceiver
    void arrived(const WirePacket& packet) noexcept override;
    bool settled(std::int64_t, Answers) noexcept override { return false; }

    WirePort& port_;
    Process& process_;
    const std::uint32_t qpn_;
    std::map<UdpAddress, std::shared_ptr<WireRoute>> routes_;
    WireRoute* to_ = nullptr;  ///< as `carries` has found it
    std::uint32_t psn_ = 0;
    std::shared_ptr<DatagramTarget> own_;  ///< this queue pair, as its senders know it
};

}  // namespace millrace::soft
