// Bars of byte streams: a round trip of a few bytes, and large buffers that go straight into the
// receiver's, beside the kernel's stream sockets and the ideal hand-over.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "framework/bars.hpp"
#include "framework/meeting.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "limits/hand_over.hpp"
#include "limits/sockets.hpp"
#include "millrace/stream/socket.hpp"
#include "stream/measure_stream.hpp"

namespace millrace::bench {
namespace {

using Word = std::array<std::byte, 8>;

void write(stream::Socket& socket, std::uint64_t number, const base::Deadline& deadline) {
    Word out{};
    stamp(out.data(), out.size(), number);
    require(socket.write_all(out, deadline), "bytes that were written");
}

void read(stream::Socket& socket, std::uint64_t number, const base::Deadline& deadline) {
    Word in{};
    for (std::size_t have = 0; have < in.size();) {
        std::size_t size = 0;
        require(socket.read_some(std::span{in}.subspan(have), size, deadline), "bytes to be read");
        have += size;
    }
    require_intact(stamped(in.data(), in.size(), number), "bytes of a stream");
}

double stream_round_trip(std::uint64_t round_trips) {
    const Windows windows{round_trips};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto socket = accept_second(
                pair, [](const auto& address) { return stream::Listener::listen(address); });
            const auto deadline = patience();
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                write(socket, number, deadline);
                read(socket, number, deadline);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            auto socket = stream::connect(address_of_first(pair), {}, patience());
            const auto deadline = patience();
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                read(socket, number, deadline);
                write(socket, number, deadline);
            }
            pair.meet();  // nobody leaves while the other still waits
        });
}

constexpr std::size_t large = std::size_t{1} << 20;

/// Four buffers of `bytes` are lent in turn, and each read whole.
double buffer_rate(std::size_t bytes, bool plain = false) {
    const StreamCase chosen{.bytes = bytes, .wait_all = true, .plain = plain};
    return measure_stream(chosen).bytes_per_second / 1e9;
}

/// The same copied once by the ideal hand-over, into four slots.
Contender one_copy(std::size_t bytes) {
    return {"one copy", [=] { return one_copy_bandwidth(bytes, 4 * bytes, (1U << 30) / bytes); },
            "GB/s"};
}

const Contender buffers{"stream", [] { return buffer_rate(large) * 1e9 / large; }, "items/s"};

/// As many items as take some tenths of a second.
constexpr std::uint64_t items_of(std::size_t bytes) { return (std::size_t{1} << 29) / bytes; }

/// Half as many sends as receives, in mode dynamic, to the better of the kernel's.
Bar to_better_socket(std::size_t bytes) {
    return ratio_bar(
        "stream",
        fmt::format("{} KiB over a byte stream to the better of TCP and Unix sockets", bytes >> 10),
        1, Sense::at_least,
        {"stream",
         [=] {
             const StreamCase chosen{.bytes = bytes, .sends = 4, .receives = 8};
             return measure_stream(chosen).bytes_per_second / 1e9;
         },
         "GB/s"},
        {"socket",
         [=] {
             const auto rate = [&](SocketKind kind) {
                 return socket_item_rate(kind, bytes, items_of(bytes)) *
                        static_cast<double>(bytes) / 1e9;
             };
             return std::max(rate(SocketKind::tcp_loopback), rate(SocketKind::unix_stream));
         },
         "GB/s"});
}

/// Processor time of both ends for a GB.
Bar processor_to_tcp(std::size_t bytes) {
    return ratio_bar("stream",
                     fmt::format("processor time for a GB of {} KiB each to TCP's", bytes >> 10),
                     0.6, Sense::at_most,
                     {"stream",
                      [=] {
                          const StreamCase chosen{.bytes = bytes, .sends = 4, .receives = 8};
                          return measure_stream(chosen).cpu_seconds_per_gigabyte;
                      },
                      "s/GB"},
                     {"tcp",
                      [=] {
                          return socket_flow(SocketKind::tcp_loopback, bytes, items_of(bytes))
                              .cpu_seconds_per_gigabyte;
                      },
                      "s/GB"});
}

const BarRegistration round_trip{ratio_bar(
    "stream", "spinning Unix stream socket's round trip of 8 B to a byte stream's", 5,
    Sense::at_least,
    {"socket",
     [] { return socket_round_trip(SocketKind::unix_stream, SocketWait::spinning, 8, 4'000); },
     "ns"},
    {"stream", [] { return stream_round_trip(20'000); }, "ns"})};
const BarRegistration to_tcp{ratio_bar(
    "stream", "buffers of 1 MiB over a byte stream to TCP's", 3, Sense::at_least, buffers,
    {"tcp", [] { return socket_item_rate(SocketKind::tcp_loopback, large, 1'000); }, "items/s"})};
const BarRegistration to_unix{ratio_bar(
    "stream", "buffers of 1 MiB over a byte stream to a Unix socket's", 2, Sense::at_least, buffers,
    {"unix", [] { return socket_item_rate(SocketKind::unix_stream, large, 1'000); }, "items/s"})};

const BarRegistration to_one_copy{ratio_bar(
    "stream", "buffers of 1 MiB over a byte stream to the ideal one-copy hand-over", 0.85,
    Sense::at_least, {"stream", [] { return buffer_rate(large); }, "GB/s"}, one_copy(large))};
const BarRegistration to_one_copy_of_64_kib{ratio_bar(
    "stream", "buffers of 64 KiB over a byte stream to the ideal one-copy hand-over", 0.85,
    Sense::at_least, {"stream", [] { return buffer_rate(64 << 10); }, "GB/s"}, one_copy(64 << 10))};
const BarRegistration plain_to_tcp{ratio_bar(
    "stream", "plain memory of 1 MiB over a byte stream to TCP's", 1.5, Sense::at_least,
    {"stream", [] { return buffer_rate(large, true) * 1e9 / large; }, "items/s"},
    {"tcp", [] { return socket_item_rate(SocketKind::tcp_loopback, large, 1'000); }, "items/s"})};
const BarRegistration to_better_of_4_kib{to_better_socket(4 << 10)};
const BarRegistration to_better_of_64_kib{to_better_socket(64 << 10)};
const BarRegistration to_better_of_1_mib{to_better_socket(large)};
const BarRegistration processor_of_16_kib{processor_to_tcp(16 << 10)};
const BarRegistration processor_of_1_mib{processor_to_tcp(large)};

}  // namespace
}  // namespace millrace::bench
