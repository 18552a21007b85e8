// How a server sleeps: which clients are told that it does, and what wakes it. While it is awake it
// looks at memory, and at the kernel once in a millisecond; before it sleeps it tells the clients
// that were active since it slept last, and no others. Each of those rings once for that sleep.
//
// Every channel is looked at, or its client rings: a client that is not in `awake_` sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "server/peer.hpp"

namespace millrace::message {

/// One thread: the server's.
class Rest {
  public:
    Rest(Server::State& server, std::size_t places);

    /// This client is looked at from now on.
    [[gnu::noinline]] void activate(Peer& peer) {
        if (peer.is_active) return;
        peer.is_active = true;
        awake_.push_back(peer.id.place);
    }
    /// Its client has rung, or its socket says something.
    void became_readable(Peer& peer);

    /// Server::rest.
    base::Status rest(const base::Deadline& deadline);
    /// True: a lap would find a message, and begins there.
    [[nodiscard]] bool has_message();

    // --- in turns

    /// At the beginning of a turn.
    void begin_turn();
    /// At its end, after the requests, which do not wait for the clock.
    void end_turn(bool was_busy);
    void look_at_kernel();

    // --- in a program's own loop

    [[nodiscard]] bool is_nested() const noexcept { return is_nested_; }
    /// From now on it is in one.
    void nest();

  private:
    class Sleeper;
    [[nodiscard]] bool has_work();
    [[nodiscard]] bool kernel_is_due() noexcept {
        return must_look_ || base::ticks() - looked_at_ >= look_every_;
    }
    /// At one client that is awake, for what its own messages do not tell of.
    void look_at_next_awake() noexcept;
    /// After a look that found nothing: such looks are so dear that a request would wait for them.
    [[nodiscard]] bool next_awake_is_due() noexcept { return (++empty_looks_ & 15) == 0; }
    /// Tells the clients that are awake.
    void fall_asleep();
    void look_whether_loop_goes_on(bool was_busy);

    Server::State& server_;
    std::vector<std::uint32_t> awake_;  ///< places
    std::size_t next_awake_ = 0;        ///< in `awake_`: which is looked at next
    std::uint64_t turns_ = 0;
    std::uint32_t empty_looks_ = 0;
    bool must_look_ = true;
    bool is_nested_ = false;
    std::uint64_t looked_at_ = 0;  ///< ticks
    const std::uint64_t look_every_;
    std::uint64_t busy_at_ = 0;  ///< ticks; only if nested
    const std::uint64_t spin_ticks_;
};

}  // namespace millrace::message
