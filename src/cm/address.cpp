#include "address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "../soft/system/descriptor.hpp"

namespace millrace::cm {

std::optional<Address> Address::from(const void* bytes, std::size_t size) noexcept {
    sa_family_t family = AF_UNSPEC;
    if (size < sizeof family) return std::nullopt;
    std::memcpy(&family, bytes, sizeof family);
    Address address;
    if (family == AF_INET && size >= sizeof(sockaddr_in)) {
        std::memcpy(&address.value_.v4, bytes, sizeof(sockaddr_in));
    } else if (family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
        std::memcpy(&address.value_.v6, bytes, sizeof(sockaddr_in6));
    } else {
        return std::nullopt;
    }
    return address;
}

Address Address::any(int family) noexcept {
    Address address;
    address.value_.v4.sin_family = static_cast<sa_family_t>(family);
    return address;
}

Address Address::loopback(int family) noexcept {
    Address address = any(family);
    if (family == AF_INET) {
        address.value_.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
        address.value_.v6.sin6_addr = in6addr_loopback;
    }
    return address;
}

bool Address::is_any() const noexcept {
    if (family() == AF_INET) return value_.v4.sin_addr.s_addr == htonl(INADDR_ANY);
    return std::memcmp(&value_.v6.sin6_addr, &in6addr_any, sizeof in6addr_any) == 0;
}

bool Address::is_multicast() const noexcept {
    if (family() == AF_INET) return IN_MULTICAST(ntohl(value_.v4.sin_addr.s_addr));
    return IN6_IS_ADDR_MULTICAST(&value_.v6.sin6_addr);
}

// The port is at the same place in both.
std::uint16_t Address::port() const noexcept { return ntohs(value_.v4.sin_port); }
void Address::set_port(std::uint16_t port) noexcept { value_.v4.sin_port = htons(port); }
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

const std::byte* Address::bytes() const noexcept {
    return family() == AF_INET ? reinterpret_cast<const std::byte*>(&value_.v4.sin_addr)
                               : reinterpret_cast<const std::byte*>(&value_.v6.sin6_addr);
}

socklen_t Address::size() const noexcept {
    switch (family()) {
        case AF_INET: return sizeof(sockaddr_in);
        case AF_INET6: return sizeof(sockaddr_in6);
        default: return 0;
    }
}

std::string Address::text() const {
    char host[INET6_ADDRSTRLEN] = "";
    ::inet_ntop(family(), bytes(), host, sizeof host);
    return family() == AF_INET ? fmt::format("{}:{}", host, port())
                               : fmt::format("[{}]:{}", host, port());
}

int check_local(const Address& address) noexcept {
    const soft::Descriptor probe{
        ::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!probe) return errno;
    Address with_any_port = address;
    with_any_port.set_port(0);
    if (::bind(probe.get(), with_any_port.get(), with_any_port.size()) == 0) return 0;
    return errno == EADDRNOTAVAIL ? ENODEV : errno;
}

int find_source(const Address& destination, Address& source) noexcept {
    const soft::Descriptor probe{
        ::socket(destination.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!probe) return errno;
    Address to = destination;
    if (to.port() == 0) to.set_port(9);  // any; nothing is sent
    if (::connect(probe.get(), to.get(), to.size()) != 0) return errno;
    sockaddr_storage found{};
    socklen_t size = sizeof found;
    if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&found), &size) != 0) return errno;
    const auto address = Address::from(&found, size);
    if (!address) return EAFNOSUPPORT;
    source = *address;
    source.set_port(0);
    return 0;
}

}  // namespace millrace::cm
