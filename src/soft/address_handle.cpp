// Address handles of the soft device: ibv_create_ah and what makes one from a completion.
#include "address_handle.hpp"

#include <endian.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include "context.hpp"
#include "domains.hpp"
#include "millrace/base/uncancelled.hpp"
#include "millrace/soft/device.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint8_t ib_transport = 0x1b;  ///< IBTA: next header of a GRH before a BTH

}  // namespace

bool leads_to_port(ibv_context* context, const ibv_ah_attr& attributes) noexcept {
    ibv_port_attr port;
    if (query_port(context, 1, &port) != 0) return false;
    const bool by_lid = port.link_layer != IBV_LINK_LAYER_ETHERNET;
    if (by_lid && attributes.dlid != port.lid) return false;
    if (attributes.is_global == 0) return by_lid;
    for (int index = 0; index < port.gid_tbl_len; ++index) {
        ibv_gid gid;
        if (query_gid(context, 1, index, &gid) != 0) continue;
        if (std::memcmp(gid.raw, attributes.grh.dgid.raw, sizeof gid.raw) == 0) return true;
    }
    return false;
}

bool has_source(ibv_context* context, const ibv_ah_attr& attributes) noexcept {
    ibv_gid gid;
    return attributes.port_num == 1 &&
           (attributes.is_global == 0 ||
            query_gid(context, 1, attributes.grh.sgid_index, &gid) == 0);
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) noexcept {
    const base::Uncancelled held;
    if (!usable(pd) || attributes->port_num != 1 || attributes->sl > 15 ||
        (attributes->is_global != 0 && attributes->grh.sgid_index != 0)) {
        errno = EINVAL;
        return nullptr;
    }
    auto* ah = new (std::nothrow) AddressHandle{};
    if (ah == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    ah->context = pd->context;
    ah->pd = pd;
    ah->attributes = *attributes;
    ibv_gid own;
    static_cast<void>(query_gid(pd->context, 1, 0, &own));
    if (attributes->is_global != 0) {
        const ibv_global_route& route = attributes->grh;
        ah->multicast = is_multicast(route.dgid);
        ah->reaches_host = std::memcmp(route.dgid.raw, own.raw, sizeof own.raw) == 0;
        ah->grh.version_tclass_flow =
            htobe32(std::uint32_t{6} << 28 | std::uint32_t{route.traffic_class} << 20 |
                    (route.flow_label & 0xfffff));
        ah->grh.next_hdr = ib_transport;
        ah->grh.hop_limit = route.hop_limit;
        ah->grh.sgid = own;
        ah->grh.dgid = route.dgid;
    } else {
        ah->reaches_host = leads_to_port(pd->context, *attributes);
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
    const std::uint32_t words = be32toh(grh->version_tclass_flow);
    attributes->is_global = 1;
    attributes->grh.dgid = grh->sgid;
    attributes->grh.sgid_index = 0;  // the port has one GID
    attributes->grh.flow_label = words & 0xfffff;
    attributes->grh.traffic_class = static_cast<std::uint8_t>(words >> 20 & 0xff);
    attributes->grh.hop_limit = 0xff;
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
