// Unix stream sockets and TCP over the loopback, with TCP_NODELAY.
#include "sockets.hpp"

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "framework/pair.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"

namespace millrace::bench {
namespace {

using base::throw_errno;

/// A descriptor that closes itself.
class Socket {
  public:
    explicit Socket(int descriptor = -1) noexcept : descriptor_{descriptor} {}
    Socket(Socket&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    ~Socket() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    [[nodiscard]] int get() const noexcept { return descriptor_; }

  private:
    int descriptor_;
};

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

/// Both ends of a connection. Each side uses one and closes the other.
struct Ends {
    Socket first;
    Socket second;
};

Ends connected(SocketKind kind) {
    Ends ends;
    if (kind == SocketKind::unix_stream) {
        int pair[2];
        check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0,
              "make a socket pair");
        ends = {Socket{pair[0]}, Socket{pair[1]}};
    } else {
        const Socket listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        check(listener.get() >= 0, "make a listening socket");
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        auto* generic = reinterpret_cast<sockaddr*>(&address);
        check(::bind(listener.get(), generic, length) == 0 && ::listen(listener.get(), 1) == 0 &&
                  ::getsockname(listener.get(), generic, &length) == 0,
              "listen on the loopback");
        ends.first = Socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        check(::connect(ends.first.get(), generic, length) == 0, "connect over the loopback");
        ends.second = Socket{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
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

void receive_all(Pair& pair, int descriptor, std::byte* to, std::size_t size, SocketWait wait) {
    const int flags = wait == SocketWait::spinning ? MSG_DONTWAIT : 0;
    std::uint32_t turn = 0;
    while (size > 0) {
        const ssize_t received = ::recv(descriptor, to, size, flags);
        if (received < 0 && errno == EINTR) continue;
        if (received < 0 && errno == EAGAIN && wait == SocketWait::spinning) {
            base::pause();
            pair.check(++turn * 1024);
            continue;
        }
        check(received > 0, "receive");
        to += received;
        size -= static_cast<std::size_t>(received);
    }
}

}  // namespace

std::string_view name_of(SocketKind kind) noexcept {
    return kind == SocketKind::unix_stream ? "Unix stream socket" : "TCP loopback";
}

double socket_round_trip(SocketKind kind, SocketWait wait, std::size_t size,
                         std::uint64_t round_trips) {
    const Windows windows{round_trips};
    const Ends ends = connected(kind);
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            return median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number);
                send_all(ends.first.get(), out.data(), size);
                receive_all(pair, ends.first.get(), in.data(), size, wait);
                require(stamped(in.data(), size, number), "a message over a socket");
            });
        },
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                receive_all(pair, ends.second.get(), in.data(), size, wait);
                require(stamped(in.data(), size, number), "a message over a socket");
                stamp(out.data(), size, number);
                send_all(ends.second.get(), out.data(), size);
            }
        });
}

double socket_item_rate(SocketKind kind, std::size_t size, std::uint64_t items) {
    const Windows windows{items};
    const std::uint64_t last = windows.total();
    const Ends ends = connected(kind);
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            pair.meet();
            const double item_ns = median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number - 1);
                send_all(ends.first.get(), out.data(), size);
            });
            pair.meet();  // all have been read
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            std::vector<std::byte> buffer(size + 65'536);
            pair.meet();
            std::size_t held = 0;
            std::uint64_t number = 0;
            while (number < last) {
                const ssize_t received = ::recv(ends.second.get(), buffer.data() + held, 65'536, 0);
                if (received < 0 && errno == EINTR) continue;
                check(received > 0, "receive");
                held += static_cast<std::size_t>(received);
                std::size_t at = 0;
                for (; held - at >= size; at += size, ++number) {
                    keep(read_all(buffer.data() + at, size));
                    require(stamped(buffer.data() + at, size, number), "an item over a socket");
                }
                std::memmove(buffer.data(), buffer.data() + at, held - at);
                held -= at;
            }
            pair.meet();
        });
}

}  // namespace millrace::bench
