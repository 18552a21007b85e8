#include "tcp_socket.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "millrace/base/error.hpp"

namespace millrace::workload {

using base::throw_errno;

void for_each_address(const std::string& host, std::uint16_t port, int flags,
                      const std::function<bool(Descriptor&, const addrinfo&)>& use) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const std::string service = std::to_string(port);
    if (const int error =
            ::getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &wanted, &found);
        error != 0) {
        throw base::Error{base::ErrorCode::not_found, "find a host", host, ::gai_strerror(error),
                          ""};
    }
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
        Descriptor socket{::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        if (socket.get() >= 0 && use(socket, *at)) break;
    }
    ::freeaddrinfo(found);
}

Descriptor tcp_listen(const std::string& host, std::uint16_t port) {
    Descriptor listening;
    int error = 0;
    for_each_address(host, port, AI_PASSIVE, [&](Descriptor& socket, const addrinfo& address) {
        // Connections of a former listener that are closing do not matter.
        const int yes = 1;
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 ||
            ::listen(socket.get(), SOMAXCONN) != 0) {
            error = errno;
            return false;
        }
        listening = std::move(socket);
        return true;
    });
    if (listening.get() < 0) {
        throw_errno(error, "listen for TCP", host + ':' + std::to_string(port),
                    "choose an address of this host, and a port that nobody has");
    }
    return listening;
}

std::uint16_t tcp_port(const Descriptor& listener) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        throw_errno(errno, "ask for a port", "a TCP socket");
    }
    return ntohs(address.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                     : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace millrace::workload
