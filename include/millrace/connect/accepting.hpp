// Accepting peers whose setup goes on above the link: one that fails there is passed over as one
// that fails its handshake is. Used by the listeners of floor 5.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::connect {

/// How long one peer may take for what follows the handshake, while the others wait.
inline constexpr std::chrono::seconds setup_patience{5};

namespace detail {

/// Logs a failure that is the peer's own and remembers it. False: it concerns every peer.
[[nodiscard]] bool pass_over(const std::string& peer, const base::Error& error, std::string& last);
/// `error`, that ended the wait, with what was passed over before.
[[noreturn]] void end_wait(const base::Error& error, std::size_t passed_over,
                           const std::string& last);

}  // namespace detail

/// Accepts links until `set_up(Link, const base::Deadline&)` makes something of one, and returns
/// that. Where it throws an Error of the codes refused, protocol, peer_lost, closed or timed_out,
/// the peer is logged and passed over. Throws what Listener::accept and `set_up` otherwise throw;
/// if the time is over, the error names the last peer that was passed over.
template <class SetUp>
[[nodiscard]] auto accept_until_set_up(Listener& listener, const base::Deadline& deadline,
                                       SetUp&& set_up) {
    std::size_t passed_over = 0;
    std::string last;
    const auto next = [&] {
        try {
            return listener.accept(deadline);
        } catch (const base::Error& error) {
            detail::end_wait(error, passed_over, last);
        }
    };
    for (;;) {
        Link link = next();
        const std::string peer = link.peer_name();
        try {
            return set_up(std::move(link),
                          deadline.no_later_than(base::Clock::now() + setup_patience));
        } catch (const base::Error& error) {
            if (!detail::pass_over(peer, error, last)) throw;
            ++passed_over;
        }
    }
}

}  // namespace millrace::connect
