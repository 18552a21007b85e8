// A socket that listens for a protocol that is not Millrace's own: it accepts, and says no word.
// Millrace's own ends come through Listener (link.hpp). Used by the doors of the key-value store.
#pragma once

#include <memory>
#include <string>

#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"

namespace millrace::connect {

/// accept() and descriptor() are for any thread; of several that accept, each peer comes to one.
class PlainListener {
  public:
    /// A Unix path that a dead process left is taken over; one on which somebody listens is not.
    /// Throws Error as Listener::listen: the address is in use, is none of this host, and so on.
    explicit PlainListener(const Address& address);
    PlainListener(const PlainListener&) = delete;
    PlainListener& operator=(const PlainListener&) = delete;
    /// Removes the path of a Unix socket.
    ~PlainListener();

    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const Address& address() const noexcept;
    /// Readable: accept() may find a peer.
    [[nodiscard]] int descriptor() const noexcept;
    /// The socket of a peer that has come, which is the caller's to close; or -1 with `errno`.
    /// Never blocks, and neither does what it returns; TCP sends at once, and looks for dead peers.
    [[nodiscard]] int accept() const noexcept;
    /// "127.0.0.1:4711", or the path of a Unix socket.
    [[nodiscard]] std::string name_of_peer(int socket) const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::connect
