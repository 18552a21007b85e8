// Addresses of IP of either family, as GIDs have them (IPv4 as ::ffff:a.b.c.d) and as the system
// takes them. Used by the wire.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::soft {

class IpAddress {
  public:
    /// None.
    constexpr IpAddress() = default;
    /// IPv4, in the processor's byte order; 0: none.
    constexpr IpAddress(std::uint32_t ipv4) noexcept {
        if (ipv4 == 0) return;
        bytes_[10] = bytes_[11] = 0xff;
        for (unsigned i = 0; i < 4; ++i)
            bytes_[12 + i] = static_cast<std::uint8_t>(ipv4 >> (24 - 8 * i));
    }
    explicit IpAddress(const in6_addr& address) noexcept;
    explicit IpAddress(const ibv_gid& gid) noexcept;

    /// "10.0.0.1", "fd00::1". Nothing: it is neither.
    [[nodiscard]] static std::optional<IpAddress> parse(std::string_view text);

    [[nodiscard]] constexpr bool is_none() const noexcept { return bytes_ == decltype(bytes_){}; }
    [[nodiscard]] constexpr bool is_ipv4() const noexcept {
        for (unsigned i = 0; i < 10; ++i)
            if (bytes_[i] != 0) return false;
        return bytes_[10] == 0xff && bytes_[11] == 0xff;
    }
    /// Of 127.0.0.0/8, or ::1.
    [[nodiscard]] constexpr bool is_loopback() const noexcept {
        constexpr std::array<std::uint8_t, 16> of_ipv6{0, 0, 0, 0, 0, 0, 0, 0,
                                                       0, 0, 0, 0, 0, 0, 0, 1};
        return is_ipv4() ? bytes_[12] == 127 : bytes_ == of_ipv6;
    }
    /// Of a group, of no host, or of one link alone, which a GID does not name (fe80::/10).
    [[nodiscard]] constexpr bool is_of_no_host() const noexcept {
        if (is_ipv4()) return bytes_[12] >> 4 >= 0xe;
        return is_none() || bytes_[0] == 0xff || (bytes_[0] == 0xfe && bytes_[1] >> 6 == 2);
    }
    /// Of an IPv4 address, in the processor's byte order.
    [[nodiscard]] constexpr std::uint32_t ipv4() const noexcept {
        return std::uint32_t{bytes_[12]} << 24 | std::uint32_t{bytes_[13]} << 16 |
               std::uint32_t{bytes_[14]} << 8 | bytes_[15];
    }
    [[nodiscard]] constexpr const std::array<std::uint8_t, 16>& bytes() const noexcept {
        return bytes_;
    }
    [[nodiscard]] ibv_gid gid() const noexcept;
    /// As `parse` takes it.
    [[nodiscard]] std::string words() const;

    friend constexpr auto operator<=>(const IpAddress&, const IpAddress&) = default;

  private:
    std::array<std::uint8_t, 16> bytes_{};
};

/// With a UDP port, in the processor's byte order.
struct UdpAddress {
    IpAddress ip;
    std::uint16_t port = 0;
    friend constexpr auto operator<=>(const UdpAddress&, const UdpAddress&) = default;
};

/// "127.0.0.2:4791", "[fd00::1]:4791"
[[nodiscard]] std::string describe(const UdpAddress& address);

/// As the system takes it: of the family that the address has.
struct SocketAddress {
    union {
        sockaddr any;
        sockaddr_in ipv4;
        sockaddr_in6 ipv6;
    };
    [[nodiscard]] socklen_t size() const noexcept {
        return any.sa_family == AF_INET6 ? sizeof ipv6 : sizeof ipv4;
    }
};
[[nodiscard]] SocketAddress socket_address(const UdpAddress& address) noexcept;
[[nodiscard]] UdpAddress udp_address_of(const SocketAddress& address) noexcept;
/// Of a socket that is bound. Nothing: the system does not say, errno says why.
[[nodiscard]] std::optional<UdpAddress> own_address_of(int socket) noexcept;

}  // namespace millrace::soft
