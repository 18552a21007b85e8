// What of this host's network hinders the soft device's wire to other hosts.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "doctor/checks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/soft/wire.hpp"

namespace millrace::tools::doctor {
namespace {

/// A burst of a few destinations fits.
constexpr std::uint32_t enough_buffer = 1 << 20;

Finding mtu(const soft::WireOutlook& wire) {
    Finding finding{.name = "wire MTU",
                    .found = fmt::format("{} bytes at {}: packets carry {}", wire.interface_mtu,
                                         wire.address, wire.packet_bytes)};
    if (wire.packet_bytes < 1024) {
        finding.verdict = wire.packet_bytes == 0 ? Verdict::fail : Verdict::warn;
        finding.means = wire.packet_bytes == 0 ? "no packet of the wire fits"
                                               : "more packets, each of which costs time";
        finding.remedy = "raise the interface's MTU (ip link set … mtu 1500)";
    }
    return finding;
}

Finding port(const soft::WireOutlook& wire) {
    using Port = soft::WireOutlook::Port;
    Finding finding{.name = "wire port"};
    const std::string named = fmt::format("UDP port 4791 of {}", wire.address);
    switch (wire.port) {
        case Port::free: finding.found = named + " is free"; break;
        case Port::shared: finding.found = named + " is shared by processes of this user"; break;
        case Port::taken:
            finding.verdict = Verdict::warn;
            finding.found = named + " is taken: by rdma_rxe, another user or another program";
            finding.means = "the wire uses another port, which peers of Millrace find and others "
                            "do not";
            finding.remedy = "rdma link delete rxe0, or let MILLRACE_WIRE name another address";
            break;
    }
    return finding;
}

Finding buffers(const soft::WireOutlook& wire) {
    Finding finding{.name = "wire buffers",
                    .found = fmt::format("{} KiB for a socket to receive{}",
                                         wire.receive_buffer / 1024,
                                         wire.cuts ? "" : ", no UDP segmentation")};
    if (wire.receive_buffer < enough_buffer || !wire.cuts) {
        finding.verdict = Verdict::warn;
        finding.means = wire.cuts ? "bursts of large messages are lost here and sent again"
                                  : "each packet costs a pass through the kernel";
        finding.remedy = wire.cuts ? "sysctl -w net.core.rmem_max=4194304"
                                   : "use a kernel of version 4.18 or newer";
    }
    return finding;
}

}  // namespace

std::vector<Finding> check_wire() {
    try {
        const soft::WireOutlook wire = soft::look_at_wire();
        return {mtu(wire), port(wire), buffers(wire)};
    } catch (const base::Error& error) {
        return {{.name = "wire",
                 .verdict = Verdict::warn,
                 .found = error.cause(),
                 .means = "the soft device reaches no other host",
                 .remedy = error.remedy().empty() ? "look at `ip address`" : error.remedy()}};
    }
}

}  // namespace millrace::tools::doctor
