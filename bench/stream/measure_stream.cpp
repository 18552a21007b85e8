#include "stream/measure_stream.hpp"

#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "cpu_time.hpp"
#include "framework/environment_scope.hpp"
#include "framework/meeting.hpp"
#include "framework/pair.hpp"
#include "framework/payload.hpp"
#include "framework/windows.hpp"
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::bench {
namespace {

using base::Status;

/// Values that the sides leave for each other.
enum Left : int { sender_cpu, sender_direct };

stream::SocketOptions options_of(const StreamCase& chosen) {
    stream::SocketOptions options;
    options.mode = chosen.mode;
    options.ring_bytes = chosen.ring_bytes;
    return options;
}

stream::Socket accept(Pair& pair, const StreamCase& chosen) {
    return accept_second(pair, [&](const auto& address) {
        return stream::Listener::listen(address, options_of(chosen));
    });
}

/// Buffers of one side, as many pages apart as they need, all at the case's offset.
class Places {
  public:
    Places(const StreamCase& chosen, std::uint32_t count)
        : bytes_{chosen.bytes},
          offset_{chosen.offset},
          step_{(chosen.bytes + chosen.offset + 4095) / 4096 * 4096},
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

/// What stands in the stream from `position` on: sends take turns in `sends` buffers, which do not
/// change, so that only the streams' work is measured.
class Pattern {
  public:
    explicit Pattern(const StreamCase& chosen) : period_{chosen.bytes * chosen.sends} {}

    void fill(std::span<std::byte> bytes, std::uint64_t position) const {
        for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = byte_at(position + at);
    }
    /// Of what came, the ends are looked at.
    [[nodiscard]] bool holds(std::span<const std::byte> bytes, std::uint64_t position) const {
        const std::size_t looked = std::min<std::size_t>(8, bytes.size());
        for (std::size_t at = 0; at < looked; ++at) {
            const std::size_t behind = bytes.size() - looked + at;
            if (bytes[at] != byte_at(position + at)) return false;
            if (bytes[behind] != byte_at(position + behind)) return false;
        }
        return true;
    }

  private:
    [[nodiscard]] std::byte byte_at(std::uint64_t position) const noexcept {
        const std::uint64_t at = position % period_;
        return static_cast<std::byte>((at >> 3) * 0x9e3779b97f4a7c15ULL >> 56 ^ at);
    }
    std::uint64_t period_;
};

double receive_all(Pair& pair, const StreamCase& chosen) {
    Places places{chosen, chosen.receives};
    auto socket = accept(pair, chosen);
    const Pattern pattern{chosen};
    const auto flags =
        chosen.wait_all ? stream::ReceiveFlags::wait_all : stream::ReceiveFlags::none;
    std::uint64_t begun = 0;
    while (begun < chosen.receives) {
        require(places.receive(socket, begun, flags), "a receive");
        ++begun;
    }
    pair.meet();
    const auto deadline = patience();
    const auto counts_from =
        base::Clock::now() + std::chrono::nanoseconds{static_cast<long>(chosen.seconds / 5 * 1e9)};
    std::optional<base::Clock::time_point> start;
    auto end = base::Clock::now();
    std::uint64_t position = 0;
    std::uint64_t counted_from = 0;
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
        if (!start && end >= counts_from) {
            start = end;
            counted_from = position;
        }
    }
    require(start.has_value() && end > *start, "a stream that lasts");
    pair.meet();
    return static_cast<double>(position - counted_from) * 1e9 /
           static_cast<double>((end - *start).count());
}

void send_all(Pair& pair, const StreamCase& chosen) {
    Places places{chosen, chosen.sends};
    const Pattern pattern{chosen};
    for (std::uint64_t at = 0; at < chosen.sends; ++at) {
        pattern.fill(places.at(at), at * chosen.bytes);
    }
    auto socket = stream::connect(address_of_first(pair), options_of(chosen), patience());
    pair.meet();
    const double cpu = tools::cpu_time().all();
    const auto deadline = patience();
    const auto over =
        base::Clock::now() + std::chrono::nanoseconds{static_cast<long>(chosen.seconds * 1e9)};
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    bool enough = false;
    while (!enough || begun != ended) {
        if (!enough && begun - ended < chosen.sends) {
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
    pair.set_value(sender_direct, std::bit_cast<std::uint64_t>(socket.stats().percent_direct()));
    pair.set_value(sender_cpu, std::bit_cast<std::uint64_t>(tools::cpu_time().all() - cpu));
    pair.meet();
}

}  // namespace

StreamFlow measure_stream(const StreamCase& chosen) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.device_mode};
    StreamFlow flow;
    flow.bytes_per_second = run_pair(
        {},
        [&](Pair& pair) {
            const double cpu = tools::cpu_time().all();
            const auto start = base::Clock::now();
            const double rate = receive_all(pair, chosen);
            const double seconds = nanoseconds_since(start) / 1e9;
            const double all =
                tools::cpu_time().all() - cpu + std::bit_cast<double>(pair.value(sender_cpu));
            flow.percent_direct = std::bit_cast<double>(pair.value(sender_direct));
            flow.cpu_seconds_per_gigabyte = all / seconds / (rate / 1e9);
            return rate;
        },
        [&](Pair& pair) { send_all(pair, chosen); });
    return flow;
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
            const Places in{chosen, 2};
            const Places out{chosen, 2};
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
            const Places in{chosen, 2};
            const Places out{chosen, 2};
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
