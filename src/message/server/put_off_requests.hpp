// Requests that others are served before (detail/put_off.hpp): they wait here, in their order,
// until a turn finds no other request, or 16 others were served for each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "server/peer.hpp"

namespace millrace::message {

namespace detail {
struct HandlerRef;
}

/// One thread: the server's.
class PutOffRequests {
  public:
    explicit PutOffRequests(Server::State& server) noexcept : server_{server} {}

    [[nodiscard]] bool is_empty() const noexcept { return waiting_.empty(); }
    /// Keeps a copy of a request. `taken_at`: ticks, as Request's. False: there is no room.
    bool add(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload,
             std::uint64_t taken_at);
    /// After a turn that took so many requests: serves those of them that are due, or one. How
    /// many.
    [[gnu::noinline]] std::size_t serve(const detail::HandlerRef& handler, std::size_t requests);
    /// Ticks when the request that the handler has was put off.
    [[nodiscard]] std::uint64_t handed_at() const noexcept { return handed_at_; }

  private:
    struct One {
        ClientId client;
        SessionHeader header;
        std::vector<std::byte> payload;
        std::uint64_t taken_at = 0;
        std::uint64_t at = 0;  ///< ticks
    };
    /// The first one that is wanted still. False: there is none.
    bool serve_next(const detail::HandlerRef& handler);
    void serve(Peer& peer, const One& one, const detail::HandlerRef& handler);

    Server::State& server_;
    std::deque<One> waiting_;
    std::size_t bytes_ = 0;   ///< of their payloads
    std::size_t added_ = 0;   ///< in this turn
    std::size_t others_ = 0;  ///< that were served while some waited
    std::uint64_t handed_at_ = 0;
};

}  // namespace millrace::message
