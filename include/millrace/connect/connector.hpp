// Connecting without waiting: a connection on its way, for programs with a loop of their own. Made
// use of by connect() itself, and by the floors above.
#pragma once

#include <memory>
#include <optional>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::connect {

/// One attempt to reach a listener, which goes on within the calls. Move-only; one thread at a
/// time. One that goes before it has its link gives up, and nothing is left of it.
class Connector {
  public:
    /// Begins. The name of a host is looked up here, which may block as long as the system's
    /// resolver does; numbers and paths are not. Throws Error (invalid_argument, not_found, and as
    /// Endpoint::shared).
    Connector(const Address& address, LinkOptions options);
    Connector(Connector&&) noexcept;
    Connector& operator=(Connector&&) noexcept;
    ~Connector();

    /// The link, once it is there; none yet. While nothing listens there it tries again, each time
    /// behind 1 to 50 ms. Never blocks. Not to be called again behind the link or an Error. Throws
    /// Error (refused, version_mismatch, protocol, peer_lost, permission, resource_exhausted).
    [[nodiscard]] std::optional<Link> try_connect();
    /// The same, waiting: connect() from here on. With Deadline::now() it says how far it came.
    /// Throws Error (timed_out, cancelled; refused: nothing listened) as well.
    [[nodiscard]] Link wait(const base::Deadline& deadline);
    /// For a program's own loop: readable means that try_connect has something to do; behind the
    /// link, that its peer has said something. Level-triggered. Lives as long as the connector.
    /// Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor();
    /// Behind the link, for a floor above that awaits something else of it before it hands it on:
    /// descriptor() is readable when this one is, too; -1: no longer. It lives until then. Never
    /// blocks.
    void await_beside(int other) noexcept;

    struct State;

  private:
    std::unique_ptr<State> state_;
};

}  // namespace millrace::connect
