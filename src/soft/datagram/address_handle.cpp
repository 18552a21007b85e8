// Address handles of the soft device: ibv_create_ah and what makes one from a completion.
#include "datagram/address_handle.hpp"

#include <endian.h>

#include <cerrno>
#include <cstdint>
#include <new>

#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/device.hpp"
#include "process/context.hpp"
#include "process/domains.hpp"
#include "process/port.hpp"
#include "process/process.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint8_t ib_transport = 0x1b;  ///< IBTA: next header of a GRH before a BTH
constexpr std::uint8_t udp_protocol = 17;    ///< IBTA, annex A17: RoCE version 2 is UDP
constexpr std::uint32_t udp_header_bytes = 8;

[[nodiscard]] ibv_grh header_of(const ibv_global_route& route, const ibv_gid_entry& own) noexcept {
    ibv_grh grh{};
    const bool version_2 = own.gid_type == IBV_GID_TYPE_ROCE_V2;
    grh.version_tclass_flow =
        htobe32(std::uint32_t{6} << 28 | std::uint32_t{route.traffic_class} << 20 |
                (route.flow_label & 0xfffff));
    grh.next_hdr = version_2 ? udp_protocol : ib_transport;
    grh.hop_limit = route.hop_limit;
    grh.sgid = own.gid;
    grh.dgid = route.dgid;
    return grh;
}

}  // namespace

ibv_grh header_for(const AddressHandle& ah, std::uint32_t transport_bytes) noexcept {
    ibv_grh grh = ah.grh;
    if (grh.next_hdr == udp_protocol) transport_bytes += udp_header_bytes;
    grh.paylen = htobe16(static_cast<std::uint16_t>(transport_bytes));
    return grh;
}

bool leads_to_port(ibv_context*, const ibv_ah_attr& attributes) noexcept {
    if (attributes.is_global == 0) return attributes.dlid == port_lid;
    return is_own_gid(attributes.grh.dgid);
}

bool has_source(ibv_context*, const ibv_ah_attr& attributes) noexcept {
    if (attributes.port_num != 1) return false;
    if (attributes.is_global == 0) return true;
    const auto own = gid_at(attributes.grh.sgid_index);
    if (own && !is_empty(own->gid)) return true;
    base::log(base::LogLevel::warn, "soft",
              "the port has no GID of index {}; choose one that ibv_devinfo -v lists",
              attributes.grh.sgid_index);
    return false;
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) noexcept {
    const base::Uncancelled held;
    if (!usable(pd) || attributes->sl > 15 || !has_source(pd->context, *attributes))
        return refused(EINVAL);
    auto place = context_of(pd->context)->process->address_handles().take();
    if (place == nullptr) return nullptr;  // errno says why
    auto* ah = new (std::nothrow) AddressHandle{};
    if (ah == nullptr) return refused(ENOMEM);
    ah->place = std::move(place);
    ah->context = pd->context;
    ah->pd = pd;
    ah->attributes = *attributes;
    ah->reaches_host = leads_to_port(pd->context, *attributes);
    if (attributes->is_global != 0) {
        ah->multicast = is_multicast(attributes->grh.dgid);
        ah->grh = header_of(attributes->grh, *gid_at(attributes->grh.sgid_index));
    }
    enter(pd);
    context_of(pd->context)->users.fetch_add(1);
    return ah;
}

int init_ah_from_wc(ibv_context*, std::uint8_t port, ibv_wc* completion, ibv_grh* grh,
                    ibv_ah_attr* attributes) noexcept {
    *attributes = ibv_ah_attr{};
    attributes->dlid = completion->slid;
    attributes->sl = completion->sl;
    attributes->src_path_bits = completion->dlid_path_bits;
    attributes->port_num = port;
    if ((completion->wc_flags & IBV_WC_GRH) == 0) return 0;
    attributes->is_global = 1;
    if (be32toh(grh->version_tclass_flow) >> 28 != 6) {
        const Ipv4InGrh& packet = *reinterpret_cast<const Ipv4InGrh*>(grh);
        attributes->grh.dgid = gid_of_ipv4(packet.header.saddr);
        attributes->grh.traffic_class = packet.header.tos;
        attributes->grh.hop_limit = 0xff;
        const int place = index_of_gid(gid_of_ipv4(packet.header.daddr), IBV_GID_TYPE_ROCE_V2);
        attributes->grh.sgid_index = static_cast<std::uint8_t>(place < 0 ? 1 : place);
        return 0;
    }
    const std::uint32_t words = be32toh(grh->version_tclass_flow);
    attributes->grh.dgid = grh->sgid;
    attributes->grh.flow_label = words & 0xfffff;
    attributes->grh.traffic_class = static_cast<std::uint8_t>(words >> 20 & 0xff);
    attributes->grh.hop_limit = 0xff;
    const std::uint32_t type = grh->next_hdr == udp_protocol                  ? IBV_GID_TYPE_ROCE_V2
                               : port_link_layer() == IBV_LINK_LAYER_ETHERNET ? IBV_GID_TYPE_ROCE_V1
                                                                              : IBV_GID_TYPE_IB;
    // What came to a group says nothing of the port's own GID: then the first of the kind.
    int index = index_of_gid(grh->dgid, type);
    if (index < 0) index = type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
    attributes->grh.sgid_index = static_cast<std::uint8_t>(index);
    return 0;
}

ibv_ah* create_ah_from_wc(ibv_pd* pd, ibv_wc* completion, ibv_grh* grh,
                          std::uint8_t port) noexcept {
    ibv_ah_attr attributes;
    static_cast<void>(init_ah_from_wc(pd->context, port, completion, grh, &attributes));
    return create_ah(pd, &attributes);
}

int destroy_ah(ibv_ah* public_ah) noexcept {
    const base::Uncancelled held;
    auto* const ah = static_cast<AddressHandle*>(public_ah);
    Context* const owner = context_of(ah->context);
    leave(ah->pd);
    delete ah;
    release(owner);
    return 0;
}

}  // namespace millrace::soft
