// The handshake as a state machine that never blocks, so that a listener can hold many at once:
// whoever drives it polls the socket for `events()` and then calls `step()`.
//
//   connecting side   creates its queue pair, says Hello → hears Hello, connects it, says Ready
//                     → hears Ready: done
//   accepting side    hears Hello, creates and connects its queue pair, says Hello and Ready
//                     → hears Ready: done
// The accepting side creates nothing for a peer that has not said a proper Hello.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "link_state.hpp"

namespace millrace::connect {

enum class Role { connecting, accepting };

class Handshake {
  public:
    /// `socket` is connected and non-blocking. Throws Error when the queue pair cannot be made.
    Handshake(Role role, Descriptor socket, const LinkOptions& options,
              std::shared_ptr<Endpoint> endpoint, Address local, std::string peer_name);
    Handshake(Handshake&&) = default;
    Handshake& operator=(Handshake&&) = default;

    [[nodiscard]] int socket() const noexcept { return state_->socket.get(); }
    /// What to poll the socket for.
    [[nodiscard]] short events() const noexcept;
    /// Goes as far as it can. True: done, take the link. Throws Error, after telling the peer.
    [[nodiscard]] bool step();
    [[nodiscard]] Link take() { return Link{std::move(state_)}; }
    /// Once it is done: true if the peer has begun the first exchange. Looks at the socket.
    [[nodiscard]] bool speaks() noexcept;
    /// The peer has not said a word, read or unread. Looks at the socket.
    [[nodiscard]] bool is_silent() const noexcept;
    /// Once it is done: false if the last look found the peer gone, or what it said nonsense.
    [[nodiscard]] bool lives() const noexcept { return state_->peer == PeerState::alive; }
    /// Tells the peer, and returns the error to throw: how far it came before the time was over.
    [[nodiscard]] base::Error give_up(base::ErrorCode code, const std::string& how_long);

  private:
    enum class Stage { hello, ready, done };

    void create_queue_pair();
    void check_peer() const;
    void connect_queue_pair();
    void say(const std::vector<std::byte>& frame);
    void handle(const Frame& frame);
    void flush() noexcept;
    [[nodiscard]] static Refused as_told(const Failure& failure);
    void refuse(const Refused& refused) noexcept;
    [[nodiscard]] base::Error error(const Failure& failure) const;

    Role role_;
    LinkOptions options_;
    std::unique_ptr<Link::State> state_;
    Stage stage_ = Stage::hello;
    std::vector<std::byte> unsent_;
    bool peer_hears_ = true;
    bool peer_refused_ = false;
};

/// Throws Error when options can never work.
void validate(const LinkOptions& options);

}  // namespace millrace::connect
