// What other parts of this folder may do with a Client beyond its public calls: look at its
// rings, so that one thread can sleep for many of them, and send several requests at once. Used
// by the dispatcher.
#pragma once

#include "lane/ring_lane.hpp"
#include "millrace/message/client.hpp"

namespace millrace::message::detail {

struct ClientAccess {
    /// Until the next reconnect() or close().
    [[nodiscard]] static RingLane& ring(Client& client) noexcept;
    /// As many requests as the window allows have no answer, those that are not wanted included.
    [[nodiscard]] static bool window_is_full(const Client& client) noexcept;
    /// Something that was said to the server waits for room in its ring.
    [[nodiscard]] static bool holds_messages(const Client& client) noexcept;
    /// From here to end_batch() nothing is posted that could go together: requests are laid side by
    /// side, and one WRITE brings them, with one byte of a dense server's behind it. Between the
    /// two nothing but submit() may be called.
    static void begin_batch(Client& client) noexcept;
    static void end_batch(Client& client) noexcept;
};

}  // namespace millrace::message::detail
