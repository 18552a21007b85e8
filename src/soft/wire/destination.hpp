// Where an address vector leads: over the wire, or not. Asked on the way to RTR, and by datagrams.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "wire/wire_address.hpp"

namespace millrace::soft {

class Process;

/// Where queue pair `qpn` at `attributes` is on the wire. Nothing: it is a peer of this fabric and
/// host, which memory leads to, or there is no such address, or no wire. May throw.
[[nodiscard]] std::optional<UdpAddress> address_on_wire(Process& process,
                                                        const ibv_ah_attr& attributes,
                                                        std::uint32_t qpn);

}  // namespace millrace::soft
