// Awaitable forms of a listener's waiting operation, for coroutines (base/coroutine.hpp).
#pragma once

#include <optional>
#include <utility>

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::connect {

/// What waiting for a peer has given.
template <class End>
struct Accepted {
    base::Status status = base::Status::ok;  ///< ok, timed_out, cancelled
    std::optional<End> end{};                ///< with ok
};

/// co_await: Accepted<End> of the next peer for whom `try_accept()` has an end. Throws what that
/// throws. What the listeners' forms are made of.
template <class End, class Listener, class TryAccept>
[[nodiscard]] base::Task<Accepted<End>> accept_by(Listener& listener, TryAccept try_accept,
                                                  base::Deadline deadline) {
    Accepted<End> accepted;
    accepted.status = co_await base::until_done(
        listener,
        [&] {
            accepted.end = try_accept();
            return accepted.end.has_value() ? base::Status::ok : base::Status::empty;
        },
        deadline);
    co_return std::move(accepted);
}

/// co_await: the next peer, as Listener::accept. Throws Error (resource_exhausted).
[[nodiscard]] inline base::Task<Accepted<Link>> accept(Listener& listener,
                                                       const base::Deadline& deadline) {
    return accept_by<Link>(
        listener, [&listener] { return listener.try_accept(); }, deadline);
}

}  // namespace millrace::connect
