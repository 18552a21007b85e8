#include "wire/destination.hpp"

#include "datagram/address_handle.hpp"
#include "fabric/node.hpp"
#include "process/port.hpp"
#include "process/process.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {

std::optional<UdpAddress> address_on_wire(Process& process, const ibv_ah_attr& attributes,
                                          std::uint32_t qpn) {
    const WirePort* const wire = process.wire();
    if (wire == nullptr) return std::nullopt;
    if (wire->is_always() && leads_to_port(nullptr, attributes)) return wire->own();
    if (attributes.is_global == 0) return std::nullopt;
    auto address = udp_address_of(attributes.grh.dgid);
    if (address && address->ip.is_ipv4() != wire->own().ip.is_ipv4()) address.reset();
    if (address && is_own_gid(attributes.grh.dgid) &&
        process.node().peer(node_of_qpn(qpn)) != nullptr) {
        return std::nullopt;
    }
    return address;
}

}  // namespace millrace::soft
