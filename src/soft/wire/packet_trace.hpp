// The wire's packets in a file that tshark and tcpdump read (pcap, IP without a link layer), by
// `millrace soft trace --pcap FILE`, which sets MILLRACE_WIRE_PCAP. Several threads and processes
// append to one file: each packet is one write. Used by the port.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "system/descriptor.hpp"
#include "wire/wire_address.hpp"

namespace millrace::soft {

class PacketTrace {
  public:
    /// Null: MILLRACE_WIRE_PCAP is not set. Throws base::Error: the file cannot be written.
    [[nodiscard]] static std::unique_ptr<PacketTrace> from_environment();

    /// `payload`: of UDP, with the ICRC. Over IPv4 the identification is `id`.
    void write(const UdpAddress& from, const UdpAddress& to, std::span<const std::uint8_t> payload,
               std::uint16_t id) noexcept;

  private:
    explicit PacketTrace(Descriptor file) noexcept : file_{std::move(file)} {}

    Descriptor file_;
    std::atomic<bool> has_lost_{false};
};

}  // namespace millrace::soft
