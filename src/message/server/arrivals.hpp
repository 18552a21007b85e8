// Clients whose messages no scan of mailboxes finds by itself: something else tells of them, and
// then the scan is told.
//
//   no ring     sockets, UC, UD, a shared buffer: the hosts of all such lanes tell which client may
//               have written. Of what a program serves besides its clients (Server::serve_beside) a
//               host tells, too
//   by SEND     completions tell: of a shared receive queue, or of receives of the client's own
//   a hello     of a client by ring that knows of no byte yet
//
// While there are clients by ring, which are looked at by a few loads, hosts are looked at only now
// and then: a look at them is a system call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/shared_receives.hpp"
#include "lane/lanes.hpp"
#include "millrace/message/server.hpp"
#include "server/peer.hpp"

namespace millrace::message {

/// One thread: the server's.
class Arrivals {
  public:
    Arrivals(Server::State& server, std::unique_ptr<SharedReceives> shared, LaneHosts hosts,
             std::size_t places);

    /// From now on its hub hears what tells of clients.
    void join_hub();
    /// A client's line begins, or ends, at its place.
    void add(Peer& peer);
    void remove(Peer& peer) noexcept;
    /// A client by ring whose hello is awaited.
    void await_hello(const Peer& peer) { hellos_.push_back(peer.id.place); }

    /// Before a lap.
    [[gnu::always_inline]] void look() {
        if (shared_ != nullptr || !by_send_.empty()) look_for_sends();
        if (!hellos_.empty()) [[unlikely]]
            look_for_hellos();
        if (by_network_ != 0 && hosts_are_due()) [[unlikely]]
            look_at_hosts();
    }
    /// While the server waits.
    void look_in_wait();
    /// After a visit that is not over in a ring: where the next message is awaited, or whether
    /// there is more.
    void looked(Peer& peer) {
        if (!peer.has_ring()) [[unlikely]] {
            looked_at_network(peer);
        } else {
            looked_at_ring(peer);
        }
    }
    /// The server is about to sleep. After it comes a look.
    void rest() noexcept;

    /// Nothing comes by SEND into receives of all.
    [[nodiscard]] bool has_own_receives() const noexcept { return shared_ == nullptr; }
    [[nodiscard]] SharedReceives* shared() noexcept { return shared_.get(); }
    [[nodiscard]] std::unique_ptr<NetworkLane> meet(connect::Link link) {
        return hosts_.meet(std::move(link));
    }
    void serve_beside(int descriptor, std::function<bool()> look);
    /// What is served besides had something since this was asked.
    [[nodiscard]] bool was_busy_beside() noexcept { return std::exchange(beside_was_busy_, false); }
    /// In lines.
    [[nodiscard]] std::string explain() const;

  private:
    [[nodiscard]] bool hosts_are_due() noexcept;
    void look_at_hosts();
    void look_for_sends();
    [[gnu::noinline]] void look_for_hellos() noexcept;
    [[gnu::noinline]] void looked_at_network(Peer& peer);
    void looked_at_ring(Peer& peer) noexcept;

    Server::State& server_;
    std::unique_ptr<SharedReceives> shared_;  ///< if Receives::shared
    LaneHosts hosts_;
    std::vector<std::uint32_t> told_;  ///< memory of look_at_hosts
    /// Places of clients that have receives of their own and no byte; only dense.
    std::vector<std::uint32_t> by_send_;
    std::vector<std::uint32_t> hellos_;  ///< of clients by ring
    std::size_t by_network_ = 0;         ///< clients
    std::size_t by_ring_ = 0;
    bool hosts_are_busy_ = false;   ///< the last look at them has found some
    bool lanes_have_more_ = false;  ///< … of which some have more, by now
    bool beside_is_busy_ = false;   ///< the last look at what is served besides has found something
    bool beside_was_busy_ = false;  ///< … one since was_busy_beside()
    std::uint64_t hosts_looked_at_ = 0;
    const std::uint64_t hosts_every_;  ///< where there are clients by ring
};

}  // namespace millrace::message
