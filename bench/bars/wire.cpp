// Bars of the soft device's wire: RoCEv2 in UDP between two processes of this machine, held against
// what UDP and TCP do there. Everything goes by the wire (MILLRACE_WIRE=…,always): without ICRC, as
// between two processes of one machine, and where a bar says so, with it.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "bench/framework/bars.hpp"
#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/rounds.hpp"
#include "bench/framework/windows.hpp"
#include "bench/limits/datagrams.hpp"
#include "bench/limits/limits.hpp"
#include "bench/limits/sockets.hpp"
#include "bench/stream/measure_stream.hpp"
#include "flow_rates.hpp"
#include "idle_streams.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/stream/socket.hpp"
#include "use_of_ends.hpp"

namespace millrace::bench {
namespace {

/// While it lives, devices that are opened have a wire, and go by it.
class OverWire {
  public:
    explicit OverWire(const char* wire) : wire_{"MILLRACE_WIRE", wire} {}

  private:
    EnvironmentScope device_{"MILLRACE_DEVICE", "soft0"};
    EnvironmentScope wire_;
};

template <class Measure>
Contender over_wire(const char* name, Measure measure, const char* unit,
                    const char* wire = "127.0.0.2,always") {
    return {name,
            [measure, wire] {
                const OverWire scope{wire};
                return measure();
            },
            unit};
}

/// An end of a link with memory that the peer may write to and read.
class End {
  public:
    static constexpr std::uint32_t most_requests = 256;
    static constexpr std::uint32_t message_bytes = 64;

    static connect::LinkOptions options() {
        return {.service = "bench wire",
                .max_send_requests = most_requests,
                .max_receive_requests = 64,
                .max_inline = message_bytes};
    }
    End(connect::Link link, std::size_t bytes)
        : link_{std::move(link)},
          memory_{link_.protection_domain().allocate(
              bytes, verbs::Access::remote_write | verbs::Access::remote_read)} {
        const auto mine = memory_.remote();
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}), patience());
        require(answer.size() == sizeof peer_, "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof peer_);
    }
    [[nodiscard]] connect::Link& link() noexcept { return link_; }
    [[nodiscard]] std::byte* memory() noexcept { return memory_.data(); }
    [[nodiscard]] verbs::RemoteAddress peer() const noexcept { return peer_; }
    [[nodiscard]] ibv_sge slice(std::size_t at, std::uint32_t bytes) {
        return memory_.slice(at, bytes);
    }
    /// Into place `number` modulo 64 of the memory.
    void post_receive(std::uint64_t number) {
        const ibv_sge into = slice(number % 64 * message_bytes, message_bytes);
        require(link_.queue_pair().post(verbs::Receive{.id = number, .into = {&into, 1}}) == 0,
                "a posted receive");
    }
    void reap(Pair& pair, verbs::CompletionQueue& queue, int wanted) {
        std::array<verbs::Completion, 64> done;
        for (std::uint32_t turn = 0; wanted > 0;) {
            const auto most = std::min<std::size_t>(done.size(), static_cast<std::size_t>(wanted));
            const int got = queue.poll(std::span{done}.first(most));
            for (int i = 0; i < got; ++i)
                require(done[static_cast<std::size_t>(i)].ok(), "a request");
            wanted -= got;
            if (got == 0) pair.check(++turn);
        }
    }

  private:
    connect::Link link_;
    verbs::RegisteredBuffer memory_;
    verbs::RemoteAddress peer_{};
};

/// Both ends, met; `first` measures.
template <class First, class Second>
double between_ends(std::size_t bytes, First first, Second second) {
    return run_pair(
        {.shared_bytes = 4096},
        [&](Pair& pair) {
            End end{accept_second(pair,
                                  [](const auto& address) {
                                      return connect::Listener::listen(address, End::options());
                                  }),
                    bytes};
            pair.meet();
            const double measured = first(pair, end);
            pair.meet();
            return measured;
        },
        [&](Pair& pair) {
            End end{connect::connect(address_of_first(pair), End::options(), patience()), bytes};
            pair.meet();
            second(pair, end);
            pair.meet();
        });
}

/// Nanoseconds of SENDs of 64 bytes to and fro.
double send_round_trip(std::uint64_t round_trips) {
    const Windows windows{round_trips};
    constexpr std::uint64_t ahead = 32;
    const auto begin = [](End& end) {
        for (std::uint64_t number = 1; number <= ahead; ++number) end.post_receive(number);
    };
    const auto say = [](Pair& pair, End& end, std::uint64_t number) {
        std::array<std::byte, End::message_bytes> out{};
        stamp(out.data(), out.size(), number);
        const ibv_sge from{reinterpret_cast<std::uint64_t>(out.data()), End::message_bytes, 0};
        const bool signaled = number % ahead == 0;
        require(end.link().queue_pair().post(verbs::Send{
                    .from = {&from, 1},
                    .flags = signaled ? verbs::SendFlags::inlined | verbs::SendFlags::signaled
                                      : verbs::SendFlags::inlined}) == 0,
                "a posted SEND");
        if (signaled) end.reap(pair, end.link().send_queue(), 1);
    };
    const auto hear = [](Pair& pair, End& end, std::uint64_t number) {
        end.reap(pair, end.link().receive_queue(), 1);
        require_intact(
            stamped(end.memory() + number % 64 * End::message_bytes, End::message_bytes, number),
            "a message");
        end.post_receive(number + ahead);
    };
    return between_ends(
        64 * End::message_bytes,
        [&](Pair& pair, End& end) {
            begin(end);
            pair.meet();
            return median_step(windows, [&](std::uint64_t number) {
                say(pair, end, number);
                hear(pair, end, number);
            });
        },
        [&](Pair& pair, End& end) {
            begin(end);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                hear(pair, end, number);
                say(pair, end, number);
            }
        });
}

/// The end of WRITEs that its program takes no part in: it sleeps, as servers of perftest do.
void sleep_until_done(Pair& pair, End&) {
    auto& done = *pair.shared_at<std::atomic<int>>(0);
    for (std::uint32_t turn = 1; done.load() == 0; ++turn) {
        base::NapParker{}.park(std::chrono::milliseconds{1}, nullptr);
        pair.check(turn);
    }
}

/// Bytes per second of WRITEs of 1 MiB, four under way.
double write_rate() {
    constexpr std::uint32_t bytes = 1 << 20;
    constexpr std::uint64_t under_way = 4;
    const Windows windows{400};
    return between_ends(
        bytes,
        [&](Pair& pair, End& end) {
            std::uint64_t reaped = 0;
            const double ns = median_step(windows, [&](std::uint64_t number) {
                if (number - reaped > under_way) {
                    end.reap(pair, end.link().send_queue(), 1);
                    ++reaped;
                }
                const ibv_sge from = end.slice(0, bytes);
                require(end.link().queue_pair().post(
                            verbs::Write{.from = {&from, 1},
                                         .to = end.peer(),
                                         .flags = verbs::SendFlags::signaled}) == 0,
                        "a posted WRITE");
            });
            end.reap(pair, end.link().send_queue(), static_cast<int>(windows.total() - reaped));
            *pair.shared_at<std::atomic<int>>(0) = 1;
            return 1e9 / ns * bytes;
        },
        sleep_until_done);
}

/// WRITEs of 64 bytes per second, posted by 64.
double write_list_rate(std::uint64_t lists) {
    constexpr std::uint64_t list = 64;
    const Windows windows{lists};
    return between_ends(
        64 * End::message_bytes,
        [&](Pair& pair, End& end) {
            std::uint64_t reaped = 0;
            const double ns = median_step(windows, [&](std::uint64_t number) {
                if (number - reaped > 2) {
                    end.reap(pair, end.link().send_queue(), 1);
                    ++reaped;
                }
                verbs::Batch<list> batch;
                std::array<ibv_sge, list> from;
                for (std::uint32_t i = 0; i < list; ++i) {
                    from[i] = end.slice(i * End::message_bytes, End::message_bytes);
                    const verbs::Write one{.from = {&from[i], 1},
                                           .to = end.peer() + i * End::message_bytes,
                                           .flags = i + 1 == list ? verbs::SendFlags::signaled
                                                                  : verbs::SendFlags::none};
                    require(batch.add(one), "room in a list");
                }
                require(end.link().queue_pair().post(batch) == 0, "a posted list");
            });
            end.reap(pair, end.link().send_queue(), static_cast<int>(windows.total() - reaped));
            *pair.shared_at<std::atomic<int>>(0) = 1;
            return 1e9 / ns * list;
        },
        sleep_until_done);
}

/// Nanoseconds of READs of 64 bytes from a process that sleeps meanwhile, or computes.
double read_time(bool computes) {
    const Windows windows{5'000};
    return between_ends(
        End::message_bytes,
        [&](Pair& pair, End& end) {
            const double ns = median_step(windows, [&](std::uint64_t) {
                const ibv_sge into = end.slice(0, End::message_bytes);
                require(end.link().queue_pair().post(
                            verbs::Read{.into = {&into, 1},
                                        .from = end.peer(),
                                        .flags = verbs::SendFlags::signaled}) == 0,
                        "a posted READ");
                end.reap(pair, end.link().send_queue(), 1);
            });
            *pair.shared_at<std::atomic<int>>(0) = 1;
            return ns;
        },
        [&](Pair& pair, End&) {
            auto& done = *pair.shared_at<std::atomic<int>>(0);
            std::uint64_t number = 1;
            for (std::uint32_t turn = 1; done.load() == 0; ++turn) {
                if (computes) {
                    for (int i = 0; i < 10'000; ++i) keep(number *= 0x9e3779b97f4a7c15U);
                } else {
                    base::NapParker{}.park(std::chrono::milliseconds{1}, nullptr);
                }
                pair.check(turn);
            }
        });
}

/// In a second, of all threads of a process with idle byte streams in a hub, that nobody writes to.
double wake_ups_of_idle_streams() {
    return with_idle_streams(allowed(1000), std::chrono::seconds{6}, [](connect::Hub& hub) {
        constexpr std::chrono::seconds measured{4};
        (void)hub.run(base::Deadline::after(std::chrono::seconds{1}));  // all are quiet
        rusage before{}, after{};
        getrusage(RUSAGE_SELF, &before);
        const base::Status status = hub.run(base::Deadline::after(measured));
        getrusage(RUSAGE_SELF, &after);
        require(status == base::Status::timed_out, "streams that stay idle");
        return static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) /
               static_cast<double>(measured.count());
    });
}

constexpr std::size_t bytes_of_message = End::message_bytes;
constexpr auto dynamic = ring::with(ring::design_1, ring::Batching::dynamic);

double flow_rate() {
    flow::Options queue;
    queue.ring.capacity = ring_bytes_of_limits / ring::slot_bytes_of(64, 8, true);
    return flow_item_rate<64, dynamic>(queue, 400'000);
}

double stream_rate(std::size_t bytes) {
    return measure_stream({.bytes = bytes, .wait_all = true}).bytes_per_second / 1e9;
}

/// With the best of its sizes.
double tcp_rate() {
    double best = 0;
    for (const std::size_t bytes : {16U << 10, 64U << 10, 256U << 10, 1U << 20}) {
        best =
            std::max(best, socket_item_rate(SocketKind::tcp_loopback, bytes, (1U << 28) / bytes) *
                               static_cast<double>(bytes) / 1e9);
    }
    return best;
}

const auto round_trip_of_wire = over_wire(
    "wire", [] { return send_round_trip(20'000); }, "ns");
const auto tcp = Contender{"TCP", tcp_rate, "GB/s"};
const auto writes = over_wire(
    "wire", [] { return write_rate() / 1e9; }, "GB/s");

const BarRegistration to_udp{
    ratio_bar("wire", "round trip of 64 B SENDs to one of bare UDP, both spinning", 1.4,
              Sense::at_most, round_trip_of_wire,
              {"UDP", [] { return datagram_round_trip(bytes_of_message, 20'000); }, "ns"})};
const BarRegistration bytes_to_tcp{
    ratio_bar("wire", "round trip of 64 B SENDs to one of TCP, both spinning", 1.0, Sense::at_most,
              round_trip_of_wire,
              {"TCP",
               [] {
                   return socket_round_trip(SocketKind::tcp_loopback, SocketWait::spinning,
                                            bytes_of_message, 20'000);
               },
               "ns"})};
const BarRegistration writes_to_tcp{ratio_bar("wire", "WRITEs of 1 MiB to TCP with its best size",
                                              0.9, Sense::at_least, writes, tcp)};
const BarRegistration checked_writes_to_tcp{
    ratio_bar("wire", "WRITEs of 1 MiB with ICRC to TCP with its best size", 0.6, Sense::at_least,
              over_wire(
                  "wire", [] { return write_rate() / 1e9; }, "GB/s", "127.0.0.2,always,checked"),
              tcp)};
const BarRegistration writes_to_segments{
    ratio_bar("wire", "WRITEs of 1 MiB to bare UDP in segments, copied once", 0.8, Sense::at_least,
              writes, {"UDP", [] { return segment_rate(1U << 29) / 1e9; }, "GB/s"})};
const BarRegistration lists_to_datagrams{
    ratio_bar("wire", "WRITEs of 64 B by 64 to a datagram a call", 4, Sense::at_least,
              over_wire(
                  "wire", [] { return write_list_rate(4'000); }, "items/s"),
              {"UDP", [] { return datagram_rate(bytes_of_message, 200'000); }, "items/s"})};
const BarRegistration items_to_tcp{ratio_bar(
    "wire", "64 B items of a flow queue in dynamic batches to TCP with a send each", 10,
    Sense::at_least, over_wire("wire", flow_rate, "items/s"),
    {"TCP", [] { return socket_item_rate(SocketKind::tcp_loopback, 64, 200'000); }, "items/s"})};
const BarRegistration items_to_packed_tcp{ratio_bar(
    "wire", "64 B items of a flow queue in dynamic batches to TCP with sends of 16 KiB", 0.8,
    Sense::at_least, over_wire("wire", flow_rate, "items/s"),
    {"TCP",
     [] { return socket_item_rate(SocketKind::tcp_loopback, 16U << 10, 40'000) * (16 << 10) / 64; },
     "items/s"})};
const BarRegistration large_streams{ratio_bar(
    "wire", "byte stream in buffers of 1 MiB to TCP with its best size", 0.85, Sense::at_least,
    over_wire(
        "wire", [] { return stream_rate(1U << 20); }, "GB/s"),
    tcp)};
const BarRegistration streams{ratio_bar(
    "wire", "byte stream in buffers of 64 KiB to TCP with its best size", 0.85, Sense::at_least,
    over_wire(
        "wire", [] { return stream_rate(64U << 10); }, "GB/s"),
    tcp)};
// Its own end of the run is one, and the wire's engine looks whether the program ends: after 0.25,
// 0.5, 1, 2, 4 and then every 8 seconds.
const BarRegistration idle{{.group = "wire",
                            .name = "wake-ups a second of a process with 1,000 idle byte streams",
                            .limit = 1.5,
                            .sense = Sense::at_most,
                            .unit = "",
                            .measure = [](const RoundOptions& options) {
                                Rounds rounds{options};
                                rounds.add(over_wire("ours", wake_ups_of_idle_streams, ""));
                                return rounds.run().summary("ours");
                            }}};
const BarRegistration reads{ratio_bar(
    "wire", "READ of 64 B from a process that computes to one that sleeps", 3, Sense::at_most,
    over_wire(
        "computes", [] { return read_time(true); }, "ns"),
    over_wire(
        "sleeps", [] { return read_time(false); }, "ns"))};

}  // namespace
}  // namespace millrace::bench
