// What a thread that sleeps for several clients at once asks of each of them, beyond the public
// calls: whether there is something to do, and that the server wakes this thread. Used by the
// dispatcher, which polls its clients by itself while it is awake and has their news in one epoll.
#pragma once

#include <chrono>
#include <cstddef>

#include "millrace/message/client.hpp"

namespace millrace::message::detail {

struct ClientRest {
    /// Readable when there is news after begin(). Throws Error as RingLane::watch.
    [[nodiscard]] static int watch(Client& client, std::chrono::nanoseconds spin);
    static void unwatch(Client& client) noexcept;
    /// A request that found no room, and would be `lacking` bytes with its head, could be sent now.
    [[nodiscard]] static bool has_room(Client& client, std::size_t lacking);
    /// poll() would find something, or has_room(). `lacking`: 0 of a client for which no request
    /// waits.
    [[nodiscard]] static bool has_news(Client& client, std::size_t lacking);
    /// From here to end() the server rings for what has_news() would say.
    static void begin(Client& client, std::size_t lacking);
    static void end(Client& client);
};

}  // namespace millrace::message::detail
