// What both loops wait for besides a queue: a TCP port, where whoever connects is told a number.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

/// A socket that listens at `port` of every address of this host.
inline int listen_at(const char* port) {
    const int tcp = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in any{AF_INET, htons(static_cast<in_port_t>(std::atoi(port))), {}, {}};
    if (bind(tcp, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 || listen(tcp, 8) != 0)
        throw std::system_error{errno, std::generic_category(), port};
    return tcp;
}

inline void tell_next(int tcp, long number) {
    const int client = accept(tcp, nullptr, nullptr);
    if (client < 0) return;  // it has left again
    dprintf(client, "%ld\n", number);
    close(client);
}
