// Bars of byte streams: a round trip of a byte, large buffers that go straight into the receiver's,
// and mode dynamic in all situations; to the kernel's stream sockets, the ideal hand-over, and
// the other modes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/bars.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "bench/limits/hand_over.hpp"
#include "bench/limits/sockets.hpp"
#include "bench/stream/measure_stream.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::bench {
namespace {

void write(stream::Socket& socket, std::uint64_t number, const base::Deadline& deadline) {
    const std::array out{static_cast<std::byte>(number)};
    require(socket.write_all(out, deadline), "a byte that was written");
}

void read(stream::Socket& socket, std::uint64_t number, const base::Deadline& deadline) {
    std::array<std::byte, 1> in{};
    std::size_t size = 0;
    require(socket.read_some(in, size, deadline), "a byte to be read");
    require_intact(size == 1 && in[0] == static_cast<std::byte>(number), "a byte of a stream");
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

/// GB/s of sends that go straight into receives, each of which is read whole: four buffers at each
/// end, in turn.
double buffer_rate(std::size_t bytes, bool plain = false) {
    // Of plain memory the library decides which way is faster.
    const StreamCase chosen{.mode = plain ? stream::Mode::dynamic : stream::Mode::direct,
                            .bytes = bytes,
                            .wait_all = true,
                            .plain = plain};
    return measure_stream(chosen).bytes_per_second / 1e9;
}

/// The same copied once by the ideal hand-over, into four slots.
Contender one_copy(std::size_t bytes) {
    return {"one copy", [=] { return one_copy_bandwidth(bytes, 4 * bytes, (1U << 30) / bytes); },
            "GB/s"};
}

/// As many items as take some tenths of a second.
std::uint64_t items_of(std::size_t bytes) {
    return std::clamp<std::uint64_t>((std::uint64_t{1} << 29) / bytes, 40, 300'000);
}

/// GB/s of sends of so many bytes each.
double socket_rate(SocketKind kind, std::size_t bytes) {
    return socket_item_rate(kind, bytes, items_of(bytes)) * static_cast<double>(bytes) / 1e9;
}

/// With the size of sends that is best here and now.
Contender best_of_socket(SocketKind kind) {
    return {std::string{name_of(kind)},
            [=] {
                double best = 0;
                for (const std::size_t bytes : {16U << 10, 64U << 10, 256U << 10, 1U << 20}) {
                    best = std::max(best, socket_rate(kind, bytes));
                }
                return best;
            },
            "GB/s"};
}

std::string text_of(std::size_t bytes) {
    if (bytes >= 1U << 20) return fmt::format("{} MiB", bytes >> 20);
    if (bytes >= 1U << 10) return fmt::format("{} KiB", bytes >> 10);
    return fmt::format("{} B", bytes);
}

Contender buffers(std::size_t bytes) {
    return {"stream", [=] { return buffer_rate(bytes); }, "GB/s"};
}

Bar buffers_to_socket(std::size_t bytes, SocketKind kind, double limit) {
    return ratio_bar("stream",
                     fmt::format("buffers of {} over a byte stream to {} with its best size",
                                 text_of(bytes), name_of(kind)),
                     limit, Sense::at_least, buffers(bytes), best_of_socket(kind));
}

Bar buffers_to_one_copy(std::size_t bytes) {
    return ratio_bar("stream",
                     fmt::format("buffers of {} over a byte stream to the ideal one-copy hand-over",
                                 text_of(bytes)),
                     0.85, Sense::at_least, buffers(bytes), one_copy(bytes));
}

Contender of_stream(const std::string& name, const StreamCase& chosen) {
    return {name, [=] { return measure_stream(chosen).bytes_per_second / 1e9; }, "GB/s"};
}

/// One case in all three modes, through the same memory.
class Modes {
  public:
    explicit Modes(const StreamCase& chosen) : chosen_{chosen} {}
    void measure() {
        const auto first = static_cast<std::ptrdiff_t>(rounds_++ % order_.size());
        auto order = order_;
        std::rotate(order.begin(), order.begin() + first, order.end());
        const std::vector<StreamFlow> flows = measure_modes(chosen_, order);
        for (std::size_t at = 0; at < order.size(); ++at) flows_[order[at]] = flows[at];
    }
    /// By the last measure().
    [[nodiscard]] double rate(stream::Mode mode) const {
        return flows_.at(mode).bytes_per_second / 1e9;
    }

  private:
    StreamCase chosen_;
    std::array<stream::Mode, 3> order_{stream::Mode::dynamic, stream::Mode::direct,
                                       stream::Mode::indirect};
    std::size_t rounds_ = 0;
    std::map<stream::Mode, StreamFlow> flows_;
};

/// Of one case, as all three modes do it: the first of a round measures all. Receives are filled in
/// full, so that all modes go through as much memory.
BarPoint modes_at(const std::string& name, StreamCase chosen) {
    chosen.wait_all = true;
    // A hundred buffers and more, so that a few at the ends are no matter.
    constexpr std::size_t long_ones = 4U << 20;
    chosen.seconds = chosen.bytes >= long_ones ? 0.2 : 0.05;
    const auto modes = std::make_shared<Modes>(chosen);
    const auto name_in = [&](stream::Mode mode) {
        return fmt::format("{}, {}", name_of(mode), name);
    };
    const auto told = [&](stream::Mode mode) {
        return Contender{name_in(mode), [=] { return modes->rate(mode); }, "GB/s"};
    };
    return {.ours = {{name_in(stream::Mode::dynamic),
                      [=] {
                          modes->measure();
                          return modes->rate(stream::Mode::dynamic);
                      },
                      "GB/s"}},
            .others = {told(stream::Mode::direct), told(stream::Mode::indirect)}};
}

/// Of the study's figures (run_stream.cpp), in mode fast.
std::vector<BarPoint> modes_at_all_points() {
    std::vector<BarPoint> points;
    for (const std::size_t bytes :
         {4U << 10, 16U << 10, 64U << 10, 256U << 10, 1U << 20, 4U << 20, 16U << 20}) {
        points.push_back(modes_at(text_of(bytes), {.bytes = bytes, .sends = 4, .receives = 8}));
    }
    for (const std::size_t bytes : {16U << 10, 128U << 10, 1U << 20}) {
        for (const std::uint32_t sends : {1U, 8U, 64U}) {
            points.push_back(modes_at(fmt::format("{}, {} sends", text_of(bytes), sends),
                                      {.bytes = bytes, .sends = sends, .receives = 32}));
        }
    }
    for (const std::size_t offset : {1U, 64U, 1000U}) {
        points.push_back(
            modes_at(fmt::format("64 KiB, {} beside", offset),
                     {.bytes = 64 << 10, .sends = 4, .receives = 8, .offset = offset}));
    }
    return points;
}

/// Sends of `bytes`, with a few sends and receives at a time, to the same sends over each kind of
/// socket.
BarPoint to_sockets_at(std::size_t bytes) {
    const std::string name = text_of(bytes);
    // A receiver from a socket takes up to 64 KiB with a call; so does this.
    const std::size_t receive_bytes = std::max<std::size_t>(bytes, 64 << 10);
    BarPoint point;
    for (const auto& [sends, receives] : {std::pair{4U, 8U}, {8U, 4U}, {1U, 1U}, {64U, 32U}}) {
        // Some hundred megabytes are enough of a ratio.
        if (bytes > 1U << 20 && sends > 8) continue;
        point.ours.push_back(
            of_stream(fmt::format("{}, {} sends, {} receives", name, sends, receives),
                      {.bytes = bytes,
                       .receive_bytes = receive_bytes,
                       .sends = sends,
                       .receives = receives}));
    }
    for (const SocketKind kind : {SocketKind::tcp_loopback, SocketKind::unix_stream}) {
        point.others.push_back({fmt::format("{}, {}", name, name_of(kind)),
                                [=] { return socket_rate(kind, bytes); }, "GB/s"});
    }
    return point;
}

std::vector<BarPoint> to_sockets_at_all_points() {
    std::vector<BarPoint> points;
    for (std::size_t bytes = 64; bytes <= 16U << 20; bytes *= 8) {
        points.push_back(to_sockets_at(bytes));
    }
    points.push_back(to_sockets_at(64 << 10));
    points.push_back(to_sockets_at(1 << 20));
    return points;
}

/// Processor time of both ends for a GB. A socket's program has one buffer of a send's length at
/// each end; ours have some, but of no more than 8 and 16 MiB where more than one and two are not
/// needed: beyond the third-level cache it is memory that takes the time, for every mode that goes
/// through more of it.
std::vector<BarPoint> processor_to_tcp() {
    std::vector<BarPoint> points;
    for (std::size_t bytes = 16 << 10; bytes <= 16U << 20; bytes *= 4) {
        const std::string name = text_of(bytes);
        const auto of_memory = [bytes](std::uint32_t least, std::uint32_t most,
                                       std::size_t memory) {
            return std::clamp(static_cast<std::uint32_t>(memory / bytes), least, most);
        };
        const StreamCase chosen{.bytes = bytes,
                                .sends = of_memory(1, 4, std::size_t{8} << 20),
                                .receives = of_memory(2, 8, std::size_t{16} << 20)};
        points.push_back(
            {.ours = {{"stream, " + name,
                       [=] { return measure_stream(chosen).cpu_seconds_per_gigabyte; }, "s/GB"}},
             .others = {{"tcp, " + name,
                         [=] {
                             return socket_flow(SocketKind::tcp_loopback, bytes, items_of(bytes))
                                 .cpu_seconds_per_gigabyte;
                         },
                         "s/GB"}}});
    }
    return points;
}

const BarRegistration round_trip{ratio_bar(
    "stream", "spinning Unix stream socket's round trip of 1 B to a byte stream's", 5,
    Sense::at_least,
    {"socket",
     [] { return socket_round_trip(SocketKind::unix_stream, SocketWait::spinning, 1, 4'000); },
     "ns"},
    {"stream", [] { return stream_round_trip(20'000); }, "ns"})};

constexpr std::size_t middle = 64 << 10;
constexpr std::size_t large = 1 << 20;

const BarRegistration to_tcp{buffers_to_socket(large, SocketKind::tcp_loopback, 3)};
const BarRegistration to_unix{buffers_to_socket(large, SocketKind::unix_stream, 2)};
const BarRegistration middle_to_tcp{buffers_to_socket(middle, SocketKind::tcp_loopback, 3)};
const BarRegistration middle_to_unix{buffers_to_socket(middle, SocketKind::unix_stream, 2)};
const BarRegistration to_one_copy{buffers_to_one_copy(large)};
const BarRegistration middle_to_one_copy{buffers_to_one_copy(middle)};

const Contender plain{"stream", [] { return buffer_rate(large, true); }, "GB/s"};
const BarRegistration plain_to_tcp{
    ratio_bar("stream", "plain memory of 1 MiB over a byte stream to TCP with its best size", 1.5,
              Sense::at_least, plain, best_of_socket(SocketKind::tcp_loopback))};
const BarRegistration plain_to_one_copy{
    ratio_bar("stream", "plain memory of 1 MiB over a byte stream to the ideal one-copy hand-over",
              0, Sense::reported, plain, one_copy(large))};

const BarRegistration dynamic_to_others{
    worst_ratio_bar("stream", "dynamic to the better of direct and indirect, every point", 0.95,
                    Sense::at_least, modes_at_all_points())};
const BarRegistration dynamic_to_sockets{
    worst_ratio_bar("stream", "dynamic to the better of TCP and Unix sockets, any size and ratio",
                    1, Sense::at_least, to_sockets_at_all_points())};
const BarRegistration processor{worst_ratio_bar("stream",
                                                "processor time for a GB to TCP's, 16 KiB and more",
                                                0.6, Sense::at_most, processor_to_tcp())};

}  // namespace
}  // namespace millrace::bench
