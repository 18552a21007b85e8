// Round trips and streams of items over the kernel's sockets.
#include "sockets.hpp"

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include <sys/socket.h>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/error.hpp"
#include "socket_ends.hpp"
#include "workload/cpu_time.hpp"

namespace millrace::bench {

std::string_view name_of(SocketKind kind) noexcept {
    return kind == SocketKind::unix_stream ? "Unix stream socket" : "TCP loopback";
}

double socket_round_trip(SocketKind kind, SocketWait wait, std::size_t size,
                         std::uint64_t round_trips) {
    const Windows windows{round_trips};
    const SocketEnds ends = connected(kind);
    return run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            return median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number);
                send_all(ends.first.get(), out.data(), size);
                require(receive_all(pair, ends.first.get(), in.data(), size, wait), "an answer");
                require_intact(stamped(in.data(), size, number), "a message over a socket");
            });
        },
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                require(receive_all(pair, ends.second.get(), in.data(), size, wait), "a message");
                require_intact(stamped(in.data(), size, number), "a message over a socket");
                stamp(out.data(), size, number);
                send_all(ends.second.get(), out.data(), size);
            }
        });
}

double socket_item_rate(SocketKind kind, std::size_t size, std::uint64_t items) {
    return socket_flow(kind, size, items).items_per_second;
}

SocketFlow socket_flow(SocketKind kind, std::size_t size, std::uint64_t items) {
    constexpr int receiver_cpu = 0;  // a value that the second side leaves
    const Windows windows{items};
    const std::uint64_t last = windows.total();
    const SocketEnds ends = connected(kind);
    SocketFlow flow;
    flow.items_per_second = run_pair(
        {},
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            pair.meet();
            const double cpu = workload::cpu_time().all();
            const double item_ns = median_step(windows, [&](std::uint64_t number) {
                stamp(out.data(), size, number - 1);
                send_all(ends.first.get(), out.data(), size);
            });
            pair.meet();  // all have been read
            const double both =
                workload::cpu_time().all() - cpu + std::bit_cast<double>(pair.value(receiver_cpu));
            flow.cpu_seconds_per_gigabyte =
                both / (static_cast<double>(last) * static_cast<double>(size) / 1e9);
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            std::vector<std::byte> buffer(size + 65'536);
            pair.meet();
            const double cpu = workload::cpu_time().all();
            std::size_t held = 0;
            std::uint64_t number = 0;
            while (number < last) {
                const ssize_t received = ::recv(ends.second.get(), buffer.data() + held, 65'536, 0);
                if (received < 0 && errno == EINTR) continue;
                if (received <= 0)
                    base::throw_errno(errno, "receive", "a socket of the baseline", "");
                held += static_cast<std::size_t>(received);
                std::size_t at = 0;
                for (; held - at >= size; at += size, ++number) {
                    keep(read_all(buffer.data() + at, size));
                    require_intact(stamped(buffer.data() + at, size, number),
                                   "an item over a socket");
                }
                std::memmove(buffer.data(), buffer.data() + at, held - at);
                held -= at;
            }
            pair.set_value(receiver_cpu,
                           std::bit_cast<std::uint64_t>(workload::cpu_time().all() - cpu));
            pair.meet();
        });
    return flow;
}

}  // namespace millrace::bench
