// Datagrams over the loopback.
#include "datagrams.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/error.hpp"
#include "socket_ends.hpp"

namespace millrace::bench {
namespace {

void check(bool done, const char* what) {
    if (!done) base::throw_errno(errno, what, "a UDP socket of the baseline", "");
}

workload::Descriptor bound(sockaddr_in& address) {
    workload::Descriptor socket{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    check(::bind(socket.get(), generic, size) == 0 &&
              ::getsockname(socket.get(), generic, &size) == 0,
          "bind");
    const int bytes = 4 << 20;  // of which the system gives what it allows
    check(::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0,
          "set the receive buffer");
    return socket;
}

/// Each connected to the other.
SocketEnds connected_datagrams() {
    sockaddr_in first;
    sockaddr_in second;
    SocketEnds ends{bound(first), bound(second)};
    check(::connect(ends.first.get(), reinterpret_cast<const sockaddr*>(&second), sizeof second) ==
                  0 &&
              ::connect(ends.second.get(), reinterpret_cast<const sockaddr*>(&first),
                        sizeof first) == 0,
          "connect");
    return ends;
}

void send(int socket, const std::byte* from, std::size_t size) {
    ssize_t sent;
    do {
        sent = ::send(socket, from, size, MSG_NOSIGNAL);
    } while (sent < 0 && (errno == EINTR || errno == ECONNREFUSED));
    check(sent == static_cast<ssize_t>(size), "send");
}

/// Bytes of the next datagram; spins until there is one.
std::size_t receive(Pair& pair, int socket, std::byte* to, std::size_t room) {
    for (std::uint32_t turn = 0;;) {
        const ssize_t got = ::recv(socket, to, room, MSG_DONTWAIT);
        if (got >= 0) return static_cast<std::size_t>(got);
        check(errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED, "receive");
        base::pause();
        pair.check(++turn * 1024);
    }
}

/// What the receiver tells, and how far the sender may be ahead of it.
class Progress {
  public:
    explicit Progress(std::uint64_t window) noexcept : window_{window} {}
    /// Of the sender, at `sent`: waits while too much is under way.
    void wait(Pair& pair, int socket, std::uint64_t sent) {
        while (sent - told_ >= window_) {
            std::byte word[sizeof told_];
            require(receive(pair, socket, word, sizeof word) == sizeof word, "a word of progress");
            std::memcpy(&told_, word, sizeof told_);
        }
    }
    /// Of the receiver, which has `taken`.
    void tell(int socket, std::uint64_t taken, bool now) {
        if (taken == told_ || (!now && taken - told_ < window_ / 4)) return;
        told_ = taken;
        std::byte word[sizeof taken];
        std::memcpy(word, &taken, sizeof taken);
        send(socket, word, sizeof word);
    }

  private:
    std::uint64_t window_;
    std::uint64_t told_ = 0;
};

}  // namespace

double datagram_round_trip(std::size_t size, std::uint64_t round_trips) {
    const Windows windows{round_trips};
    const SocketEnds ends = connected_datagrams();
    const auto take = [size](Pair& pair, int socket, std::vector<std::byte>& in,
                             std::uint64_t number) {
        require(receive(pair, socket, in.data(), size) == size, "a datagram");
        require_intact(stamped(in.data(), size, number), "a datagram");
    };
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(size), in(size);
            pair.meet();
            return median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number);
                send(ends.first.get(), out.data(), size);
                take(pair, ends.first.get(), in, number);
            });
        },
        [&](Pair& pair) {
            std::vector<std::byte> out(size), in(size);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                take(pair, ends.second.get(), in, number);
                stamp(out.data(), size, number);
                send(ends.second.get(), out.data(), size);
            }
        });
}

double datagram_rate(std::size_t size, std::uint64_t datagrams) {
    constexpr std::uint64_t window = 128;
    const Windows windows{datagrams};
    const SocketEnds ends = connected_datagrams();
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            Progress progress{window};
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                progress.wait(pair, ends.first.get(), number - 1);
                stamp(out.data(), size, number);
                send(ends.first.get(), out.data(), size);
            });
            pair.meet();
            return 1e9 / ns;
        },
        [&](Pair& pair) {
            std::vector<std::byte> in(size);
            Progress progress{window};
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                require(receive(pair, ends.second.get(), in.data(), size) == size, "a datagram");
                require_intact(stamped(in.data(), size, number), "a datagram");
                progress.tell(ends.second.get(), number, number == windows.total());
            }
            pair.meet();
        });
}

double segment_rate(std::uint64_t bytes) {
    constexpr int segment = 4096;
    constexpr std::size_t send_bytes = 15 * segment;  // of a datagram's 64 KiB
    constexpr std::uint64_t window = 128 << 10;
    constexpr std::size_t place = 1 << 20;
    const Windows windows{bytes / send_bytes};
    const SocketEnds ends = connected_datagrams();
    const int on = 1;
    check(::setsockopt(ends.first.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0 &&
              ::setsockopt(ends.second.get(), SOL_UDP, UDP_GRO, &on, sizeof on) == 0,
          "turn on segments");
    const std::uint64_t whole = windows.total() * send_bytes;
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(send_bytes);
            Progress progress{window};
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                progress.wait(pair, ends.first.get(), (number - 1) * send_bytes);
                stamp(out.data(), send_bytes, number);
                send(ends.first.get(), out.data(), send_bytes);
            });
            pair.meet();
            return 1e9 / ns * static_cast<double>(send_bytes);
        },
        [&](Pair& pair) {
            std::vector<std::byte> in(64 << 10), memory(place + in.size());
            Progress progress{window};
            pair.meet();
            for (std::uint64_t taken = 0; taken < whole;) {
                const std::size_t got = receive(pair, ends.second.get(), in.data(), in.size());
                std::memcpy(memory.data() + taken % place, in.data(), got);
                keep(memory[taken % place]);
                taken += got;
                progress.tell(ends.second.get(), taken, taken >= whole);
            }
            pair.meet();
        });
}

}  // namespace millrace::bench
