// How clients of a server come, come back, and go.
//
//   accepted     a connection; the client is to say hello
//   join()       … in a new session, or in one that is known: then its connection goes to the place
//                where that session is, and the newcomer's place is vacant again
//   part()       its connection ends. Its session is kept if it resumes, until keep_house() finds
//                that it has been away for too long
//   misbehaved() … for what it wrote or did not read; lose() for want of memory, say
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/link.hpp"
#include "server/peer.hpp"

namespace millrace::message {

/// What the servers of a group share, or one that is alone has: how many clients they may have, and
/// the memory that these make them hold.
/// Any thread.
class Crowd {
  public:
    Crowd(std::uint32_t most, std::shared_ptr<HeldBytes> held) noexcept
        : most_{most}, held_{std::move(held)} {}
    [[nodiscard]] const std::shared_ptr<HeldBytes>& held() const noexcept { return held_; }
    /// False: there are `most` clients already.
    [[nodiscard]] bool enter() noexcept {
        std::uint32_t now = clients_.load(std::memory_order_relaxed);
        do {
            if (now >= most_) return false;
        } while (!clients_.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
        return true;
    }
    void leave() noexcept { clients_.fetch_sub(1, std::memory_order_relaxed); }

  private:
    const std::uint32_t most_;
    const std::shared_ptr<HeldBytes> held_;
    std::atomic<std::uint32_t> clients_{0};
};

/// One thread: the server's; an acceptor's thread calls what it says.
class Clients {
  public:
    Clients(Server::State& server, connect::Listener listener);
    ~Clients();

    [[nodiscard]] const connect::Address& address() const noexcept { return listener_.address(); }
    /// From now on the server accepts: in its turns, or in a thread of its own.
    void begin();
    /// The server is going: so do all connections, without a goodbye. In whichever thread.
    void end() noexcept;

    /// After its hello. If it has come back, its channel goes to the place that its session has.
    void join(Peer& peer, const Hello& hello);
    /// Its channel ends. `for_good`: and so does its session.
    void part(Peer& peer, bool for_good) noexcept;
    void misbehaved(Peer& peer, std::string_view how) noexcept;
    /// What was to be done for a client failed, for want of memory, say: that costs its channel.
    [[gnu::cold]] void lose(Peer& peer, const std::exception& error) noexcept;
    /// Says goodbye to each client that has all of its answers. True: to all. To be called again.
    [[nodiscard]] bool try_close_all();

  private:
    /// A connection that was let in: a lane, or what the serving thread is to make one of.
    using Newcomer = std::variant<connect::Link, AnyLane>;
    /// None: nobody has come, or it failed, which is logged. In the acceptor's thread, if there is
    /// one.
    [[nodiscard]] std::optional<Newcomer> try_accept();
    void take(Newcomer newcomer);
    void add(AnyLane line);
    void watch(Peer& peer);
    void unwatch(Peer& peer) noexcept;
    void join_again(Peer& peer, Peer& former, const Hello& hello);
    /// `newcomer` may set the byte of the place of `peer`, if it shall. False: it is refused.
    [[nodiscard]] bool grant(Peer& peer, Peer& newcomer);
    /// On what a connection is told of by its hello.
    void agree(Peer& peer, const Hello& hello) const noexcept;
    void welcome(Peer& peer, bool resumed);
    void refuse(Peer& peer, std::string why);
    void end_line(Peer& peer) noexcept;
    void vacate(Peer& peer) noexcept;
    void keep_house();
    /// Drops a client whose request does not go on coming.
    void look_after_begun(Peer& peer, base::Clock::time_point now);

    Server::State& server_;
    connect::Listener listener_;
    std::unordered_map<std::uint64_t, std::uint32_t> sessions_;  ///< places by their first word
    std::optional<connect::Acceptor> acceptor_;
};

}  // namespace millrace::message
