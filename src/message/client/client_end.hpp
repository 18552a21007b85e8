// What both directions of a client's session share: the lane, the numbers of its requests, what
// the server has said of the session, and how it ended. Beneath requests.hpp and answers.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "client/call_window.hpp"
#include "line.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/client.hpp"
#include "client/server_byte.hpp"

namespace millrace::message {

struct ClientEnd {
    ClientEnd(const connect::Address& its_server, ClientOptions chosen)
        : server{its_server}, options{std::move(chosen)} {}

    [[nodiscard]] Channel::Core& core() noexcept { return line->core(); }
    /// After what was sent, or while that is owed.
    void tell_server() noexcept { byte.tell(core()); }
    [[nodiscard]] bool flushes() { return line->flush() == base::Status::ok; }
    [[nodiscard]] bool is_clear() { return line->is_clear() || flushes(); }

    connect::Address server;
    ClientOptions options;
    std::optional<Line> line;

    // What each request and answer asks for lies together, in few cache lines.
    CallWindow calls;
    std::uint64_t max_request = 0;
    base::Status ended = base::Status::ok;
    bool awaits_in_ring = false;  ///< answers: neither by wire nor by SEND
    bool takes_batches = false;   ///< both ends send them
    bool is_copy = false;         ///< the client is of the parent of this process
    ClientStats counts;
    ServerByte byte;

    SessionName session{};
    Welcome welcomed{};
    std::string why_failed;
};

}  // namespace millrace::message
