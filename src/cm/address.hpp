// An IP address with a port, as programs hand it to librdmacm, and what the host says of it. Called
// by the commands that bind, resolve and connect.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace millrace::cm {

class Address {
  public:
    /// None: its family is AF_UNSPEC.
    Address() noexcept = default;
    /// From a sockaddr of `size` bytes. Nullopt: not AF_INET or AF_INET6, or too short for it.
    [[nodiscard]] static std::optional<Address> from(const void* bytes, std::size_t size) noexcept;
    /// 0.0.0.0 or ::
    [[nodiscard]] static Address any(int family) noexcept;
    /// 127.0.0.1 or ::1
    [[nodiscard]] static Address loopback(int family) noexcept;

    [[nodiscard]] int family() const noexcept { return value_.v4.sin_family; }
    [[nodiscard]] bool is_none() const noexcept { return family() == AF_UNSPEC; }
    [[nodiscard]] bool is_any() const noexcept;
    [[nodiscard]] bool is_multicast() const noexcept;
    /// In the host's byte order.
    [[nodiscard]] std::uint16_t port() const noexcept;
    void set_port(std::uint16_t port) noexcept;
    /// The address alone, in network order: 4 bytes or 16.
    [[nodiscard]] const std::byte* bytes() const noexcept;
    [[nodiscard]] std::size_t byte_count() const noexcept { return family() == AF_INET ? 4 : 16; }

    [[nodiscard]] const sockaddr* get() const noexcept { return &value_.any; }
    /// Of the sockaddr; 0: none.
    [[nodiscard]] socklen_t size() const noexcept;
    [[nodiscard]] std::string text() const;  ///< "10.0.0.1:7471"

  private:
    union {
        sockaddr any;
        sockaddr_in v4;
        sockaddr_in6 v6;
    } value_{.v6 = {}};
};

/// 0: a socket of this host may have it, as the wildcard and the loopback's. ENODEV: it is none of
/// this host's. Others: who can say.
[[nodiscard]] int check_local(const Address& address) noexcept;

/// The address that the host would reach `destination` from, with port 0: 0, or an errno value.
[[nodiscard]] int find_source(const Address& destination, Address& source) noexcept;

}  // namespace millrace::cm
