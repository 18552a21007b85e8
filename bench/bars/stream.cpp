// Bars of byte streams: a round trip of a few bytes, and large buffers that go straight into the
// receiver's, beside the kernel's stream sockets.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "framework/bars.hpp"
#include "framework/meeting.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
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

const Contender buffers{"stream",
                        [] {
                            const StreamCase chosen{.bytes = large, .wait_all = true};
                            return measure_stream(chosen).bytes_per_second / large;
                        },
                        "items/s"};

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

}  // namespace
}  // namespace millrace::bench
