// Address handles: what a UD send says about where it goes. Used by datagram sends.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace millrace::soft {

struct AddressHandle : ibv_ah {
    ibv_ah_attr attributes{};
    bool reaches_host = false;  ///< LID or GID is that of this host's port, the only one there is
    bool multicast = false;     ///< the GID is a group's
    ibv_grh grh{};              ///< as it travels, but for the payload's length; if it is global
};

/// Does the address name this host's port, the only one there is?
[[nodiscard]] bool leads_to_port(ibv_context* context, const ibv_ah_attr& attributes) noexcept;
/// Of the port and the source GID that it names: are they there? A kernel refuses others.
[[nodiscard]] bool has_source(ibv_context* context, const ibv_ah_attr& attributes) noexcept;

/// The 16 bytes of a group begin like this (RFC 4291, 2.7).
[[nodiscard]] inline bool is_multicast(const ibv_gid& gid) noexcept { return gid.raw[0] == 0xff; }

}  // namespace millrace::soft
