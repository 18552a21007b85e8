// A TCP port of this host that nobody has at the moment, for programs that are told one. Somebody
// else may take it meanwhile: try again then.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace millrace::test {

/// 0: there is none.
[[nodiscard]] inline std::uint16_t free_port() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const auto generic = reinterpret_cast<sockaddr*>(&address);
    const bool found =
        ::bind(socket, generic, length) == 0 && ::getsockname(socket, generic, &length) == 0;
    ::close(socket);
    return found ? ntohs(address.sin_port) : std::uint16_t{0};
}

}  // namespace millrace::test
