// Accepting peers whose setup goes on above the link: one that fails there is passed over as one
// that fails its handshake is. Used by the listeners of floor 5.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::connect {

/// How long one peer may take for what follows its first word, while the others wait.
inline constexpr std::chrono::seconds setup_patience{5};

namespace detail {

/// The peers that one wait passed over.
class PassedOver {
  public:
    /// Logs a failure that is the peer's own and remembers it. False: it concerns every peer.
    [[nodiscard]] bool add(const std::string& peer, const base::Error& error);
    [[nodiscard]] bool any() const noexcept { return count_ != 0; }
    /// What ended the wait, with what was passed over before.
    [[noreturn]] void end(const base::Error& error) const;
    /// The time was over when the last of them failed.
    [[noreturn]] void end(const Listener& listener, const base::Deadline& deadline) const;

  private:
    std::size_t count_ = 0;
    std::optional<base::Error> last_;
};

}  // namespace detail

/// Accepts links until `set_up(Link, const base::Deadline&)` makes something of one, and returns
/// that. Where it throws an Error of the codes refused, protocol, peer_lost, closed or timed_out,
/// the peer is logged and passed over. Throws what Listener::accept and `set_up` otherwise throw;
/// if the time is over, the error names the last peer that was passed over.
///
/// No peer is lost to a short deadline: one that has not yet said its first word stays with the
/// listener, and one that has gets the set-up patience, whatever is left of the deadline. So the
/// call may return later than its deadline by as long as that peer takes for its further words, if
/// it has any to say: 5 s if it is stopped among them.
template <class SetUp>
[[nodiscard]] auto accept_until_set_up(Listener& listener, const base::Deadline& deadline,
                                       SetUp&& set_up) {
    detail::PassedOver passed_over;
    const auto next = [&] {
        try {
            return listener.accept_speaking(deadline);
        } catch (const base::Error& error) {
            passed_over.end(error);
        }
    };
    for (;;) {
        Link link = next();
        const std::string peer = link.peer_name();
        try {
            return set_up(std::move(link), deadline.moved_to(base::Clock::now() + setup_patience));
        } catch (const base::Error& error) {
            if (!passed_over.add(peer, error)) throw;
        }
        if (deadline.expired() || deadline.cancelled()) passed_over.end(listener, deadline);
    }
}

/// As accept_until_set_up, but never blocks: none, if no peer is there whose setup can begin.
/// `set_up(Link)` must not wait for the peer's further words.
template <class SetUp>
[[nodiscard]] auto try_accept_set_up(Listener& listener, SetUp&& set_up)
    -> std::optional<decltype(set_up(std::declval<Link>()))> {
    detail::PassedOver passed_over;
    for (;;) {
        std::optional<Link> link = listener.try_accept_speaking();
        if (!link.has_value()) return std::nullopt;
        const std::string peer = link->peer_name();
        try {
            return set_up(std::move(*link));
        } catch (const base::Error& error) {
            if (!passed_over.add(peer, error)) throw;
        }
    }
}

}  // namespace millrace::connect
