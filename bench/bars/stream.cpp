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
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/socket.hpp"

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

constexpr std::uint64_t places = 4;  ///< buffers of a side that are in use at a time

/// Buffers of `size` bytes per second: the receiver lends four in turn and reads every one.
double stream_buffer_rate(std::size_t size, std::uint64_t count) {
    return run_pair(
        {},
        [&](Pair& pair) {
            auto socket = accept_second(
                pair, [](const auto& address) { return stream::Listener::listen(address); });
            const auto deadline = patience();
            const stream::Buffer memory{places * size};
            const auto lend = [&](std::uint64_t number) {
                require(socket.receive(memory.slice(number % places * size, size), number,
                                       stream::ReceiveFlags::wait_all),
                        "a receive");
            };
            for (std::uint64_t number = 0; number < places; ++number) lend(number);
            pair.meet();
            auto start = base::Clock::now();
            for (std::uint64_t number = 0; number < count; ++number) {
                if (number == count / 10) start = base::Clock::now();  // what was before warms up
                stream::Completion done;
                require(socket.wait(done, deadline), "a completion");
                require_intact(done.status == base::Status::ok && done.bytes == size &&
                                   stamped(memory.data() + number % places * size, size, number),
                               "a buffer of a stream");
                keep(read_all(memory.data() + number % places * size, size));
                if (number + places < count) lend(number + places);
            }
            const double ns = nanoseconds_since(start);
            pair.meet();
            return static_cast<double>(count - count / 10) * 1e9 / ns;
        },
        [&](Pair& pair) {
            auto socket = stream::connect(address_of_first(pair), {}, patience());
            const auto deadline = patience();
            const stream::Buffer memory{places * size};
            pair.meet();
            for (std::uint64_t number = 0; number < count + places; ++number) {
                if (number >= places) {
                    stream::Completion done;
                    require(socket.wait(done, deadline), "a completion");
                    require(done.status, "a send");
                }
                if (number >= count) continue;
                stamp(memory.data() + number % places * size, size, number);
                require(socket.send(memory.slice(number % places * size, size), number), "a send");
            }
            pair.meet();
        });
}

constexpr std::size_t large = std::size_t{1} << 20;

const Contender buffers{"stream", [] { return stream_buffer_rate(large, 2'000); }, "items/s"};

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
