// What both directions of a client's session share: the lane, the numbers of its requests, what
// the server has said of the session, and how it ended. Beneath requests.hpp and answers.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "client/call_window.hpp"
#include "client/server_byte.hpp"
#include "lane/any_lane.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"

namespace millrace::message {

struct ClientEnd {
    ClientEnd(const connect::Address& its_server, ClientOptions chosen)
        : server{its_server}, options{std::move(chosen)} {}

    /// Null: the session goes by packets, or a socket.
    [[nodiscard]] RingLane* ring() const noexcept { return line.ring(); }
    /// After what was sent, or while that is owed.
    void tell_server() noexcept { byte.tell(*ring()); }
    [[nodiscard]] bool flushes() { return line->flush() == base::Status::ok; }
    [[nodiscard]] bool is_clear() { return line.is_clear() || flushes(); }

    connect::Address server;
    ClientOptions options;
    AnyLane line;

    // What each request and answer asks for lies together, in few cache lines.
    CallWindow calls;
    std::uint64_t max_request = 0;
    base::Status ended = base::Status::ok;
    bool awaits_in_ring = false;  ///< answers: by neither SEND nor a lane without rings
    bool takes_batches = false;   ///< both ends send them
    bool is_copy = false;         ///< the client is of the parent of this process
    bool is_closed = false;       ///< by this end: close() was called
    ClientStats counts;
    ServerByte byte;

    SessionName session{};
    Welcome welcomed{};
    std::string why_failed;
};

}  // namespace millrace::message
