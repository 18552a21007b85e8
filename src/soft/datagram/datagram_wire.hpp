// How a UD queue pair reaches those who are not in this host's memory. Implemented by wire/; asked
// by DatagramSender, with the queue pair's send side.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "datagram/datagram_target.hpp"

namespace millrace::soft {

class DatagramWire {
  public:
    DatagramWire() = default;
    virtual ~DatagramWire() = default;
    DatagramWire(const DatagramWire&) = delete;
    DatagramWire& operator=(const DatagramWire&) = delete;

    /// Is queue pair `qpn` at `attributes` reached so? Then `send` goes there.
    [[nodiscard]] virtual bool carries(const ibv_ah_attr& attributes,
                                       std::uint32_t qpn) noexcept = 0;
    /// False: it is lost here.
    [[nodiscard]] virtual bool send(const DatagramMessage& message,
                                    std::uint32_t qpn) noexcept = 0;
    /// What was sent leaves now.
    virtual void flush() noexcept = 0;
};

}  // namespace millrace::soft
