// A process with many byte streams in a hub, that nobody writes to. Included by the bars of what
// such a process takes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::bench {

/// What `measure(hub)` says of the process that has accepted `count` streams. The other one sleeps
/// for so long meanwhile, as meet() spins.
template <class Measure>
[[nodiscard]] double with_idle_streams(std::size_t count, std::chrono::seconds asleep,
                                       Measure measure) {
    stream::SocketOptions options;
    options.ring_bytes = 4096;
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            auto listener =
                stream::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            std::vector<stream::Socket> ends;
            while (ends.size() != count) ends.push_back(listener.accept(patience()));
            connect::Hub hub;
            for (stream::Socket& end : ends) {
                hub.add_end(end.descriptor(), [&hub, &end] {
                    std::array<std::byte, 64> bytes;
                    std::size_t size = 0;
                    if (end.try_read_some(bytes, size) != base::Status::empty) hub.stop();
                });
            }
            const double measured = measure(hub);
            pair.meet();
            return measured;
        },
        [&](Pair& pair) {
            const connect::Address address = address_of_first(pair);
            std::vector<stream::Socket> ends;
            while (ends.size() != count) {
                ends.push_back(stream::connect(address, options, patience()));
            }
            std::this_thread::sleep_for(asleep);
            pair.meet();
        });
}

}  // namespace millrace::bench
