// The round trip of a message between two processes, sent and received by copy as most users do,
// over whatever sends and receives as a message::Channel does. Used by the bars of channels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::bench {

enum class Figure { median, mean };

template <std::size_t Size>
using Message = std::array<std::byte, Size>;

template <std::size_t Size, class End>
void send(End& end, Message<Size>& out, std::uint64_t number, const base::Deadline& deadline) {
    stamp(out.data(), Size, number);
    require(end.send(std::span<const std::byte>{out}, deadline), "a message that was sent");
}

template <std::size_t Size, class End>
void receive(End& end, Message<Size>& in, std::uint64_t number, const base::Deadline& deadline) {
    std::size_t received = 0;
    const auto status = end.receive(std::span<std::byte>{in}, received, deadline);
    require(status == base::Status::ok && received == Size && stamped(in.data(), Size, number),
            "a message that was received");
    keep(read_all(in.data(), Size));
}

/// In ns. `accept(Pair&)` and `connect(Pair&)` make the two ends.
template <std::size_t Size, class Accept, class Connect>
double round_trip_of(std::uint64_t round_trips, Figure figure, Accept&& accept, Connect&& connect) {
    const Windows windows{round_trips};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto end = accept(pair);
            const auto deadline = patience();
            Message<Size> out{};
            Message<Size> in{};
            pair.meet();
            const auto step = [&](std::uint64_t number) {
                send(end, out, number, deadline);
                receive(end, in, number, deadline);
            };
            const double ns =
                figure == Figure::mean ? mean_step(windows, step) : median_step(windows, step);
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            auto end = connect(pair);
            const auto deadline = patience();
            Message<Size> out{};
            Message<Size> in{};
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                receive(end, in, number, deadline);
                send(end, out, number, deadline);
            }
            pair.meet();  // nobody leaves while the other still waits
        });
}

template <std::size_t Size>
double channel_round_trip(std::uint64_t round_trips, Figure figure = Figure::median) {
    return round_trip_of<Size>(
        round_trips, figure,
        [](Pair& pair) {
            return accept_second(
                pair, [](const auto& address) { return message::Listener::listen(address); });
        },
        [](Pair& pair) { return message::connect(address_of_first(pair), {}, patience()); });
}

}  // namespace millrace::bench
