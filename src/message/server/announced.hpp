// Requests that a server READs (rendezvous.hpp): taken in their order when they are announced, so
// that small ones that come after them are served at once, and executed when they are whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/peer.hpp"

namespace millrace::message {

/// One thread: the server's.
class Announced {
  public:
    Announced(Server::State& server, std::size_t places) : server_{server} {
        fetching_.reserve(places);
    }

    [[nodiscard]] bool has_some() const noexcept { return !fetching_.empty(); }
    /// One is on its way that a client waits for.
    [[nodiscard]] bool has_wanted();
    /// False: it does not keep to the protocol, and is dropped.
    bool take(Peer& peer, const SessionHeader& header, std::span<const std::byte> payload);
    /// Has the clients found by the scan that have something to do about what is READ. True: there
    /// are some.
    bool look();
    /// Drops a client whose request cannot be READ.
    void look_after(Peer& peer, base::Clock::time_point now);

  private:
    Server::State& server_;
    std::vector<std::uint32_t> fetching_;  ///< places
};

}  // namespace millrace::message
