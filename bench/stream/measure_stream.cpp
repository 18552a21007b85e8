#include "measure_stream.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/socket.hpp"
#include "workload/cpu_time.hpp"

namespace millrace::bench {
namespace {

using base::Status;

/// Values that the sides leave for each other.
enum Left : int { sender_cpu, sender_direct, sender_direct_transfers, sender_bytes };

stream::SocketOptions options_of(const StreamCase& chosen) {
    stream::SocketOptions options;
    options.mode = chosen.mode;
    options.tuning.protocol = chosen.protocol;
    options.ring_bytes = chosen.ring_bytes;
    return options;
}

stream::Socket accept(Pair& pair, const StreamCase& chosen) {
    return accept_second(pair, [&](const auto& address) {
        return stream::Listener::listen(address, options_of(chosen));
    });
}

[[nodiscard]] std::size_t receive_bytes_of(const StreamCase& chosen) {
    return chosen.receive_bytes == 0 ? chosen.bytes : chosen.receive_bytes;
}

/// Buffers of one side, as many pages apart as they need, all at the case's offset.
class Places {
  public:
    Places(const StreamCase& chosen, std::size_t bytes, std::uint32_t count)
        : bytes_{bytes},
          offset_{chosen.offset},
          step_{(bytes + chosen.offset + 4095) / 4096 * 4096},
          count_{count},
          is_plain_{chosen.plain},
          memory_{count * step_} {
        if (is_plain_) plain_.resize(count * step_);
    }

    [[nodiscard]] std::span<std::byte> at(std::uint64_t number) {
        return is_plain_ ? std::span{plain_}.subspan(number % count_ * step_ + offset_, bytes_)
                         : slice(number).bytes();
    }
    [[nodiscard]] Status send(stream::Socket& socket, std::uint64_t number) {
        return is_plain_ ? socket.send(std::span<const std::byte>{at(number)}, number)
                         : socket.send(slice(number), number);
    }
    [[nodiscard]] Status receive(stream::Socket& socket, std::uint64_t number,
                                 stream::ReceiveFlags flags) {
        return is_plain_ ? socket.receive(at(number), number, flags)
                         : socket.receive(slice(number), number, flags);
    }
    [[nodiscard]] stream::Slice slice(std::uint64_t number) const {
        return memory_.slice(number % count_ * step_ + offset_, bytes_);
    }

  private:
    std::size_t bytes_;
    std::size_t offset_;
    std::size_t step_;
    std::uint32_t count_;
    bool is_plain_;
    stream::Buffer memory_;
    std::vector<std::byte> plain_;
};

/// What stands in the stream: sends take turns in `sends` buffers, of which each has its number at
/// both ends (payload.hpp), and between them what does not change, so that the streams' work is
/// what takes the time.
class Pattern {
  public:
    /// `first`: the number of the first send at its ends, by which streams through the same buffers
    /// differ.
    explicit Pattern(const StreamCase& chosen, std::uint64_t first = 0)
        : bytes_{chosen.bytes}, sends_{chosen.sends}, first_{first} {}

    /// Of the buffer of send `number` and all that take turns in it.
    void fill(std::span<std::byte> bytes, std::uint64_t number) const {
        for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = between(number, at);
    }
    [[nodiscard]] bool holds(std::span<const std::byte> bytes, std::uint64_t position) const {
        if (!is_right(bytes, position, 0) || !is_right(bytes, position, bytes.size())) return false;
        std::uint64_t end = (position / bytes_ + 1) * bytes_ - position;
        for (; end < bytes.size(); end += bytes_) {
            if (!is_right(bytes, position, end)) return false;
        }
        return true;
    }

  private:
    static constexpr std::size_t looked = sizeof(std::uint64_t);

    /// Around `at` of what came, on both sides of it.
    [[nodiscard]] bool is_right(std::span<const std::byte> bytes, std::uint64_t position,
                                std::size_t at) const {
        const std::size_t end = std::min(at + looked, bytes.size());
        for (std::size_t look = at - std::min(at, looked); look < end; ++look) {
            if (bytes[look] != byte_at(position + look)) return false;
        }
        return true;
    }
    [[nodiscard]] std::byte byte_at(std::uint64_t position) const noexcept {
        const std::uint64_t number = position / bytes_;
        const std::size_t at = position % bytes_;
        const std::size_t to_end = bytes_ - at;
        if (at < looked) return byte_of(first_ + number, at);
        if (bytes_ >= 2 * looked && to_end <= looked) {
            return byte_of(first_ + number, looked - to_end);
        }
        return between(number, at);
    }
    [[nodiscard]] static std::byte byte_of(std::uint64_t number, std::size_t index) noexcept {
        return static_cast<std::byte>(number >> (8 * index));
    }
    [[nodiscard]] std::byte between(std::uint64_t number, std::size_t at) const noexcept {
        return static_cast<std::byte>((at >> 3) * 0x9e3779b97f4a7c15ULL >> 56 ^ at ^
                                      number % sends_);
    }
    std::size_t bytes_;
    std::uint32_t sends_;
    std::uint64_t first_;
};

Places places_of_receives(const StreamCase& chosen) {
    return {chosen, receive_bytes_of(chosen), chosen.receives};
}

Places places_of_sends(const StreamCase& chosen) {
    Places places{chosen, chosen.bytes, chosen.sends};
    const Pattern pattern{chosen};
    for (std::uint64_t at = 0; at < chosen.sends; ++at) pattern.fill(places.at(at), at);
    return places;
}

/// What a stream took at its receiver.
struct Received {
    std::uint64_t bytes = 0;  ///< after the warm-up
    double ns = 0;
    std::uint64_t all_bytes = 0;
    double all_ns = 0;              ///< from when both were ready
    double sender_cpu_seconds = 0;  ///< for all of them
    double receiver_cpu_seconds = 0;
    double percent_direct = 0;
    double percent_direct_transfers = 0;
};

Received receive_all(Pair& pair, const StreamCase& chosen, Places& places,
                     std::uint64_t first = 0) {
    auto socket = accept(pair, chosen);
    const Pattern pattern{chosen, first};
    const auto flags =
        chosen.wait_all ? stream::ReceiveFlags::wait_all : stream::ReceiveFlags::none;
    std::uint64_t begun = 0;
    while (begun < chosen.receives) {
        require(places.receive(socket, begun, flags), "a receive");
        ++begun;
    }
    pair.meet();
    const double cpu = workload::cpu_time().all();
    const auto deadline = patience();
    const auto ready = base::Clock::now();
    const auto counts_from =
        ready + std::chrono::nanoseconds{static_cast<long>(chosen.seconds / 5 * 1e9)};
    std::optional<base::Clock::time_point> start;
    auto end = base::Clock::now();
    std::uint64_t position = 0;
    std::uint64_t counted_from = 0;
    std::vector<Arrived> arrivals;
    while (true) {
        stream::Completion done;
        require(socket.wait(done, deadline), "a completion");
        if (done.status == Status::closed) break;
        require(done.status, "a receive");
        const auto bytes = places.at(done.id).first(done.bytes);
        require_intact(pattern.holds(bytes, position), "bytes of a stream");
        keep(read_all(bytes.data(), bytes.size()));
        position += done.bytes;
        require(places.receive(socket, begun, flags), "a receive");
        ++begun;
        end = base::Clock::now();
        if (chosen.window.count() != 0) arrivals.push_back({end, position});
        if (!start && end >= counts_from) {
            start = end;
            counted_from = position;
        }
    }
    require(start.has_value() && end > *start, "a stream that lasts");
    const double own_cpu = workload::cpu_time().all() - cpu;
    pair.meet();
    require_intact(position == pair.value(sender_bytes), "the length of a stream");
    Received received{
        .bytes = position - counted_from,
        .ns = static_cast<double>((end - *start).count()),
        .all_bytes = position,
        .all_ns = static_cast<double>((end - ready).count()),
        .sender_cpu_seconds = std::bit_cast<double>(pair.value(sender_cpu)),
        .receiver_cpu_seconds = own_cpu,
        .percent_direct = std::bit_cast<double>(pair.value(sender_direct)),
        .percent_direct_transfers = std::bit_cast<double>(pair.value(sender_direct_transfers))};
    if (chosen.window.count() != 0) {
        const double rate = rate_over(arrivals, counts_from, chosen.window);
        require(rate > 0, "a stream that lasts longer than a window");
        received.ns = static_cast<double>(received.bytes) * 1e9 / rate;
    }
    return received;
}

void send_all(Pair& pair, const StreamCase& chosen, Places& places, std::uint64_t first = 0) {
    auto socket = stream::connect(address_of_first(pair), options_of(chosen), patience());
    pair.meet();
    const double cpu = workload::cpu_time().all();
    const auto deadline = patience();
    const auto over =
        base::Clock::now() + std::chrono::nanoseconds{static_cast<long>(chosen.seconds * 1e9)};
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    bool enough = false;
    while (!enough || begun != ended) {
        if (!enough && begun - ended < chosen.sends) {
            stamp(places.at(begun).data(), chosen.bytes, first + begun);
            require(places.send(socket, begun), "a send");
            ++begun;
            enough = base::Clock::now() >= over;
            continue;
        }
        stream::Completion done;
        require(socket.wait(done, deadline), "a completion");
        require(done.status, "a send");
        ++ended;
    }
    socket.shut_down();
    const stream::SocketStats sent = socket.stats();
    pair.set_value(sender_direct, std::bit_cast<std::uint64_t>(sent.percent_direct()));
    const std::uint64_t transfers = sent.direct_transfers + sent.indirect_transfers;
    pair.set_value(sender_direct_transfers,
                   std::bit_cast<std::uint64_t>(100 * static_cast<double>(sent.direct_transfers) /
                                                static_cast<double>(transfers)));
    pair.set_value(sender_bytes, begun * chosen.bytes);
    pair.set_value(sender_cpu, std::bit_cast<std::uint64_t>(workload::cpu_time().all() - cpu));
    pair.meet();
}

/// Of streams one after the other, as one.
StreamFlow flow_of(std::span<const Received> streams) {
    Received sum;
    double direct_bytes = 0;
    double direct_transfers = 0;
    for (const Received& each : streams) {
        sum.bytes += each.bytes;
        sum.ns += each.ns;
        sum.all_bytes += each.all_bytes;
        sum.all_ns += each.all_ns;
        sum.sender_cpu_seconds += each.sender_cpu_seconds;
        sum.receiver_cpu_seconds += each.receiver_cpu_seconds;
        const auto bytes = static_cast<double>(each.all_bytes);
        direct_bytes += each.percent_direct * bytes;
        direct_transfers += each.percent_direct_transfers * bytes;
    }
    const auto all_bytes = static_cast<double>(sum.all_bytes);
    const double percent_of_time = 1e9 * 100 / sum.all_ns;
    return {.bytes_per_second = static_cast<double>(sum.bytes) * 1e9 / sum.ns,
            .percent_direct = direct_bytes / all_bytes,
            .percent_direct_transfers = direct_transfers / all_bytes,
            .cpu_seconds_per_gigabyte =
                (sum.sender_cpu_seconds + sum.receiver_cpu_seconds) / (all_bytes / 1e9),
            .sender_cpu_percent = sum.sender_cpu_seconds * percent_of_time,
            .receiver_cpu_percent = sum.receiver_cpu_seconds * percent_of_time};
}

}  // namespace

double rate_over(std::span<const Arrived> arrivals, base::Clock::time_point first,
                 std::chrono::nanoseconds window) {
    std::vector<double> rates;
    std::size_t end = 0;  // the last one that is within the window
    for (const Arrived& begin : arrivals) {
        if (begin.when < first) continue;
        if (arrivals.back().when - begin.when <= window) break;
        while (arrivals[end + 1].when - begin.when <= window) ++end;
        rates.push_back(static_cast<double>(arrivals[end].bytes - begin.bytes) * 1e9 /
                        static_cast<double>(window.count()));
    }
    return rates.empty() ? 0 : quantile(std::move(rates), 0.5);
}

StreamFlow measure_stream(const StreamCase& chosen) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.device_mode};
    Received received;
    (void)run_pair(
        {},
        [&](Pair& pair) {
            Places places = places_of_receives(chosen);
            received = receive_all(pair, chosen, places);
            return 0;
        },
        [&](Pair& pair) {
            Places places = places_of_sends(chosen);
            send_all(pair, chosen, places);
        });
    return flow_of(std::span{&received, 1});
}

std::vector<StreamFlow> measure_modes(const StreamCase& chosen,
                                      std::span<const stream::Mode> modes) {
    if (modes.empty()) return {};
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.device_mode};
    // To the last and back, so that what changes steadily meanwhile is the same for all. One before
    // them maps the buffers and teaches the sender how to copy.
    const auto each_twice = [&](auto&& run) {
        const std::size_t turns = 2 * modes.size();
        StreamCase one = chosen;
        one.mode = modes.front();
        run(0, one, 0, true);
        for (std::size_t turn = 0; turn < turns; ++turn) {
            const std::size_t at = std::min(turn, turns - 1 - turn);
            one.mode = modes[at];
            // More than a stream has sends.
            run(at, one, std::uint64_t{turn + 1} << 40, false);
        }
    };
    std::vector<std::vector<Received>> received(modes.size());
    (void)run_pair(
        {},
        [&](Pair& pair) {
            Places places = places_of_receives(chosen);
            each_twice(
                [&](std::size_t at, const StreamCase& one, std::uint64_t first, bool is_warm_up) {
                    const Received each = receive_all(pair, one, places, first);
                    if (!is_warm_up) received[at].push_back(each);
                });
            return 0;
        },
        [&](Pair& pair) {
            Places places = places_of_sends(chosen);
            each_twice([&](std::size_t, const StreamCase& one, std::uint64_t first, bool) {
                send_all(pair, one, places, first);
            });
        });
    std::vector<StreamFlow> flows;
    for (const auto& streams : received) flows.push_back(flow_of(streams));
    return flows;
}

double measure_stream_echo(const StreamCase& chosen, std::uint64_t echoes) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.device_mode};
    const Windows windows{echoes};
    // One place is received into while the other one is sent from.
    const auto receive = [&](stream::Socket& socket, const Places& in, std::uint64_t number) {
        require(socket.receive(in.slice(number), number, stream::ReceiveFlags::wait_all),
                "a receive");
    };
    const auto completed = [](stream::Socket& socket, const base::Deadline& deadline) {
        for (bool received = false; !received;) {
            stream::Completion done;
            require(socket.wait(done, deadline), "a completion");
            require(done.status, "a completion");
            received = done.kind == stream::Completion::Kind::receive;
        }
    };
    const auto send = [&](stream::Socket& socket, const Places& out, std::uint64_t number) {
        stamp(out.slice(number).bytes().data(), chosen.bytes, number);
        require(socket.send(out.slice(number), number), "a send");
    };
    const auto arrived = [&](const Places& in, std::uint64_t number) {
        require_intact(stamped(in.slice(number).bytes().data(), chosen.bytes, number),
                       "bytes of a stream");
    };
    return run_pair(
        {},
        [&](Pair& pair) {
            const Places in{chosen, chosen.bytes, 2};
            const Places out{chosen, chosen.bytes, 2};
            auto socket = accept(pair, chosen);
            const auto deadline = patience();
            receive(socket, in, 1);
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                send(socket, out, number);
                completed(socket, deadline);
                arrived(in, number);
                receive(socket, in, number + 1);
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            const Places in{chosen, chosen.bytes, 2};
            const Places out{chosen, chosen.bytes, 2};
            auto socket = stream::connect(address_of_first(pair), options_of(chosen), patience());
            const auto deadline = patience();
            receive(socket, in, 1);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                completed(socket, deadline);
                arrived(in, number);
                receive(socket, in, number + 1);
                send(socket, out, number);
            }
            pair.meet();
        });
}

}  // namespace millrace::bench
