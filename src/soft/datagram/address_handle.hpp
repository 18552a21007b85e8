// Address handles: what a UD send says about where it goes. Used by datagram sends.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/ip.h>

#include <cstdint>

#include "system/object_limit.hpp"

namespace millrace::soft {

struct AddressHandle : ibv_ah {
    ObjectLimit::Place place;
    ibv_ah_attr attributes{};
    bool reaches_host = false;  ///< LID or GID is that of this host's port, the only one there is
    bool multicast = false;     ///< the GID is a group's
    /// As it travels, but for what depends on the payload (`header_for`); if it is global.
    ibv_grh grh{};
};

/// What stands before a datagram that came over IPv4, in the 40 bytes of a GRH: libibverbs looks
/// for it there (ibv_init_ah_from_wc).
struct Ipv4InGrh {
    std::uint8_t zeros[20];
    iphdr header;
};
static_assert(sizeof(Ipv4InGrh) == sizeof(ibv_grh));

/// The header of a datagram whose payload, with the transport's headers and trailer (BTH, DETH,
/// immediate data, padding, ICRC), has `transport_bytes`. Also between GIDs that are IPv4 addresses
/// it has the GIDs: a NIC gives an IPv4 header there, and in a completion of its own kind that it
/// did; who trusts the plain completion (UCX's ud_verbs) looks for a GID.
[[nodiscard]] ibv_grh header_for(const AddressHandle& ah, std::uint32_t transport_bytes) noexcept;

/// Does the address name this host's port, the only one there is? By GID or by LID. An Ethernet
/// port of a NIC has no LID: the soft device takes its own there, too, so that programs that know
/// nothing of GIDs run.
[[nodiscard]] bool leads_to_port(ibv_context* context, const ibv_ah_attr& attributes) noexcept;
/// Of the port and the source GID that it names: are they there? A kernel refuses others.
[[nodiscard]] bool has_source(ibv_context* context, const ibv_ah_attr& attributes) noexcept;

/// The 16 bytes of a group begin like this (RFC 4291, 2.7).
[[nodiscard]] inline bool is_multicast(const ibv_gid& gid) noexcept { return gid.raw[0] == 0xff; }

}  // namespace millrace::soft
