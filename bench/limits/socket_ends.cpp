// Unix stream sockets and TCP over the loopback, with TCP_NODELAY.
#include "socket_ends.hpp"

#include <cerrno>
#include <cstdint>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "millrace/base/error.hpp"

namespace millrace::bench {
namespace {

using base::throw_errno;

void check(bool done, const char* what) {
    if (!done) throw_errno(errno, what, "a socket of the baseline", "");
}

/// A blocking call ends after five seconds, so that a lost peer ends the measurement.
void set_patience(int descriptor) {
    const timeval limit{5, 0};
    check(::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
              ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0,
          "set a time limit");
}

}  // namespace

SocketEnds connected(SocketKind kind) {
    SocketEnds ends;
    if (kind == SocketKind::unix_stream) {
        int pair[2];
        check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0,
              "make a socket pair");
        ends = {workload::Descriptor{pair[0]}, workload::Descriptor{pair[1]}};
    } else {
        const workload::Descriptor listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        check(listener.get() >= 0, "make a listening socket");
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        auto* generic = reinterpret_cast<sockaddr*>(&address);
        check(::bind(listener.get(), generic, length) == 0 && ::listen(listener.get(), 1) == 0 &&
                  ::getsockname(listener.get(), generic, &length) == 0,
              "listen on the loopback");
        ends.first = workload::Descriptor{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        check(::connect(ends.first.get(), generic, length) == 0, "connect over the loopback");
        ends.second =
            workload::Descriptor{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        check(ends.second.get() >= 0, "accept over the loopback");
        const int on = 1;
        for (const int end : {ends.first.get(), ends.second.get()}) {
            check(::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0,
                  "set TCP_NODELAY");
        }
    }
    set_patience(ends.first.get());
    set_patience(ends.second.get());
    return ends;
}

void send_all(int descriptor, const std::byte* from, std::size_t size) {
    while (size > 0) {
        const ssize_t sent = ::send(descriptor, from, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        check(sent > 0, "send");
        from += sent;
        size -= static_cast<std::size_t>(sent);
    }
}

bool receive_all(Pair& pair, int descriptor, std::byte* to, std::size_t size, SocketWait wait) {
    const int flags = wait == SocketWait::spinning ? MSG_DONTWAIT : 0;
    const std::size_t whole = size;
    std::uint32_t turn = 0;
    while (size > 0) {
        const ssize_t received = ::recv(descriptor, to, size, flags);
        if (received < 0 && errno == EINTR) continue;
        if (received < 0 && errno == EAGAIN && wait == SocketWait::spinning) {
            base::pause();
            pair.check(++turn * 1024);
            continue;
        }
        if (received == 0 && size == whole) return false;
        check(received > 0, "receive");
        to += received;
        size -= static_cast<std::size_t>(received);
    }
    return true;
}

}  // namespace millrace::bench
