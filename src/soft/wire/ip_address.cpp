// See ip_address.hpp.
#include "wire/ip_address.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace millrace::soft {

IpAddress::IpAddress(const in6_addr& address) noexcept {
    std::memcpy(bytes_.data(), &address, bytes_.size());
}

IpAddress::IpAddress(const ibv_gid& gid) noexcept {
    std::copy(std::begin(gid.raw), std::end(gid.raw), bytes_.begin());
}

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
    const std::string words{text};
    in_addr four{};
    if (::inet_pton(AF_INET, words.c_str(), &four) == 1) return IpAddress{ntohl(four.s_addr)};
    in6_addr six{};
    if (::inet_pton(AF_INET6, words.c_str(), &six) == 1) return IpAddress{six};
    return std::nullopt;
}

ibv_gid IpAddress::gid() const noexcept {
    ibv_gid gid;
    std::copy(bytes_.begin(), bytes_.end(), gid.raw);
    return gid;
}

std::string IpAddress::words() const {
    char text[INET6_ADDRSTRLEN] = "";
    const bool four = is_none() || is_ipv4();
    ::inet_ntop(four ? AF_INET : AF_INET6, bytes_.data() + (four ? 12 : 0), text, sizeof text);
    return text;
}

std::string describe(const UdpAddress& address) {
    const bool brackets = !address.ip.is_none() && !address.ip.is_ipv4();
    return fmt::format("{}{}{}:{}", brackets ? "[" : "", address.ip.words(), brackets ? "]" : "",
                       address.port);
}

SocketAddress socket_address(const UdpAddress& of) noexcept {
    SocketAddress address{};
    if (of.ip.is_none() || of.ip.is_ipv4()) {
        address.ipv4.sin_family = AF_INET;
        address.ipv4.sin_port = htons(of.port);
        address.ipv4.sin_addr.s_addr = htonl(of.ip.ipv4());
    } else {
        address.ipv6 = {};
        address.ipv6.sin6_family = AF_INET6;
        address.ipv6.sin6_port = htons(of.port);
        std::memcpy(&address.ipv6.sin6_addr, of.ip.bytes().data(), sizeof(in6_addr));
    }
    return address;
}

UdpAddress udp_address_of(const SocketAddress& address) noexcept {
    if (address.any.sa_family == AF_INET6) {
        return {IpAddress{address.ipv6.sin6_addr}, ntohs(address.ipv6.sin6_port)};
    }
    return {IpAddress{ntohl(address.ipv4.sin_addr.s_addr)}, ntohs(address.ipv4.sin_port)};
}

std::optional<UdpAddress> own_address_of(int socket) noexcept {
    SocketAddress own{};
    socklen_t length = sizeof own.ipv6;
    if (::getsockname(socket, &own.any, &length) != 0) return std::nullopt;
    return udp_address_of(own);
}

}  // namespace millrace::soft
