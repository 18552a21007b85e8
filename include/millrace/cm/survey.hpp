// Which ports of rdma_cm are taken on this host, on the soft device's fabrics: what the kernel tells
// of every process's sockets in /proc/net/unix. Called by `millrace soft status`, and by who takes
// one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/language.hpp"

namespace millrace::cm {

struct TakenPort {
    uid_t user = 0;
    std::string fabric{};  ///< of a name longer than 32: "~" and its hash
    std::string space{};   ///< tcp, udp, ib
    /// Hexadecimal digits of one address; "*4", "*6": all of a family, "*6" of both; "*6o": of IPv6
    /// only.
    std::string key{};
    std::uint16_t port = 0;
    bool shared = false;     ///< RDMA_OPTION_ID_REUSEADDR
    bool listening = false;  ///< rdma_listen
    /// One end of a connection, which has its listener's name or its own.
    bool connected = false;

    /// "0.0.0.0:7471", "[::1]:7471".
    [[nodiscard]] std::string address() const;
};

/// All, every user's. May throw std::bad_alloc.
[[nodiscard]] std::vector<TakenPort> taken_ports();

}  // namespace millrace::cm
