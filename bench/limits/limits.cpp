// The list of limits: what is measured, at which sizes, how often.
#include "limits.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "cache_line.hpp"
#include "copies.hpp"
#include "hand_over.hpp"
#include "ideal_ring.hpp"
#include "sockets.hpp"

namespace millrace::bench {
namespace {

/// How many messages of `size` make about `bytes`, within reason.
std::uint64_t count_for(std::size_t bytes, std::size_t size, std::uint64_t most) {
    return std::clamp<std::uint64_t>(bytes / size, 500, most);
}

}  // namespace

std::vector<Contender> all_limits(bool brief) {
    const std::uint64_t part = brief ? 4 : 1;
    std::vector<Contender> list;
    const auto add = [&](std::string name, std::string unit, std::function<double()> run) {
        list.push_back({std::move(name), std::move(run), std::move(unit)});
    };
    const std::vector<std::size_t> sizes =
        brief ? std::vector<std::size_t>{8, 64, 4096, 65536}
              : std::vector<std::size_t>{8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536};

    add("cache-line ping-pong, a line each way", "ns",
        [=] { return cache_line_round_trip(40'000 / part); });
    add("cache-line ping-pong, one line both ways", "ns",
        [=] { return shared_line_round_trip(40'000 / part); });
    for (const auto size : sizes) {
        const auto trips = count_for(32U << 20, size, 20'000) / part;
        add(fmt::format("message round trip, two copies each way, {} B", size), "ns",
            [=] { return message_round_trip(size, trips); });
        if (size > 4096) continue;
        add(fmt::format("message round trip through rings of 256 KiB, {} B", size), "ns",
            [=] { return message_round_trip(size, trips, std::size_t{256} << 10); });
    }
    for (const auto size : ideal_ring_sizes) {
        if (size > 4096) continue;  // too few of them fit the limits' ring
        if (brief && size != 8 && size != 64 && size != 4096) continue;
        const auto items = count_for(256U << 20, size, 4'000'000) / part;
        for (const int batch : {1, 16}) {
            for (const auto consumer : {RingConsumer::prompt, RingConsumer::patient}) {
                if (consumer == RingConsumer::patient && (batch != 1 || size > 64)) continue;
                add(fmt::format("ring, {} B items, published {}{}", size,
                                batch == 1 ? "each" : "every 16",
                                consumer == RingConsumer::patient ? ", patient consumer" : ""),
                    "items/s", [=] {
                        return ideal_ring_rate(size, ring_bytes_of_limits, batch, items, consumer);
                    });
            }
        }
    }
    for (const auto size : sizes) {
        const auto messages = count_for(256U << 20, size, 2'000'000) / part;
        add(fmt::format("one-copy hand-over, {} B", size), "GB/s",
            [=] { return one_copy_bandwidth(size, ring_bytes_of_limits, messages); });
    }
    for (const auto size : sizes) {
        add(fmt::format("memcpy hot, {} B", size), "GB/s", [=] { return copy_hot(size); });
        add(fmt::format("memcpy cold, {} B", size), "GB/s", [=] { return copy_cold(size); });
    }
    add("process_vm_writev of 8 B, in a loop", "ns",
        [=] { return process_vm_write(10'000 / part); });
    add("process_vm_writev of 8 B, to and fro, one way", "ns",
        [=] { return process_vm_one_way(10'000 / part); });
    for (const auto kind : {SocketKind::unix_stream, SocketKind::tcp_loopback}) {
        for (const std::size_t size : {std::size_t{64}, std::size_t{4096}}) {
            if (brief && size != 64) continue;
            add(fmt::format("{} round trip, blocking, {} B", name_of(kind), size), "ns",
                [=] { return socket_round_trip(kind, SocketWait::blocking, size, 2'000 / part); });
            add(fmt::format("{} round trip, spinning, {} B", name_of(kind), size), "ns",
                [=] { return socket_round_trip(kind, SocketWait::spinning, size, 4'000 / part); });
            add(fmt::format("{}, one send per item, {} B", name_of(kind), size), "items/s",
                [=] { return socket_item_rate(kind, size, 100'000 / part); });
        }
    }
    return list;
}

}  // namespace millrace::bench
