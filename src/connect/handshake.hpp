// The handshake as a state machine that never blocks, so that a listener can hold many at once:
// whoever drives it polls the socket for `events()` and then calls `step()`.
//
//   connecting side   creates its queue pair (where the transport that it wants has one), says
//                     Hello → hears Hello, connects it, probes the path where that is the soft
//                     device's wire, says Ready → hears Ready: done
//   accepting side    hears Hello, creates and connects its queue pair, says Hello and Ready
//                     → hears Ready: done
// and with a secret (proof.hpp tells what a proof is made of)
//   connecting side   creates its queue pair, says Hello → hears Challenge, says Proof
//                     → hears Hello and Ready, looks at its proof, connects the queue pair, says
//                     Ready with a proof of its own: done
//   accepting side    hears Hello, says Challenge → hears Proof, creates and connects its queue
//                     pair, says Hello and Ready with a proof → hears Ready, looks at its proof:
//                     done
// The accepting side creates nothing for a peer that has not said a proper Hello, or does not know
// the secret, or for whom there is no place; and the latter two learn nothing of it. Where
// listeners share an address, it halts behind the Hello until it is given to one of them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "ledger.hpp"
#include "link_state.hpp"
#include "proof.hpp"

namespace millrace::connect {

enum class Role { connecting, accepting };

class Handshake {
  public:
    /// `socket` is connected and non-blocking. `ledger`: the listener's. `fabric`: what the soft
    /// device reaches, where that was asked before (it takes system calls). Throws Error when the
    /// queue pair cannot be made.
    Handshake(Role role, Descriptor socket, const LinkOptions& options,
              std::shared_ptr<Endpoint> endpoint, Address local, std::string peer_name,
              std::shared_ptr<Ledger> ledger = nullptr, const std::string& fabric = {});
    Handshake(Handshake&&) = default;
    Handshake& operator=(Handshake&&) = default;

    [[nodiscard]] int socket() const noexcept { return state_->socket.get(); }
    /// What to poll the socket for.
    [[nodiscard]] short events() const noexcept;
    /// What to poll for reading in the socket's place while a probe of the wire is under way; else
    /// -1.
    [[nodiscard]] int probe() const noexcept { return probes_ ? state_->channel.descriptor() : -1; }
    /// Goes as far as it can, but on the accepting side only until a queue pair is made: that takes
    /// some 100 us, and whoever accepts may have others to serve before it is connected. Then
    /// events() asks for the socket's room, which there is. True: done, take the link. Throws
    /// Error, after telling the peer.
    [[nodiscard]] bool step();
    [[nodiscard]] Link take() { return Link{std::move(state_)}; }

    // --- where listeners share an address, on the accepting side

    /// It shall halt behind the Hello. Before the first step().
    void halt_at_hello() noexcept { halts_ = true; }
    /// It has halted.
    [[nodiscard]] bool has_halted() const noexcept { return stage_ == Stage::halted; }
    /// The number of the listener that it is given to.
    [[nodiscard]] std::uint32_t choose_listener() noexcept {
        return state_->place.choose_listener(state_->other.listener);
    }
    /// From the next step() on it goes on for the listener that has these.
    void go_on_for(const LinkOptions& options, std::shared_ptr<Endpoint> endpoint);

    /// Once it is done: true if the peer has begun the first exchange. Looks at the socket.
    [[nodiscard]] bool speaks() noexcept;
    /// The peer has not said a word, read or unread. Looks at the socket.
    [[nodiscard]] bool is_silent() const noexcept;
    /// Once it is done: false if the last look found the peer gone, or what it said nonsense.
    [[nodiscard]] bool lives() const noexcept { return state_->peer == PeerState::alive; }
    /// Tells the peer, and returns the error to throw: how far it came before the time was over.
    [[nodiscard]] base::Error give_up(base::ErrorCode code, const std::string& how_long);

  private:
    enum class Stage { hello, halted, proof, made, ready, done };

    void create_queue_pair();
    void create_queues();
    void create_datagrams();
    void describe_device();
    void check_transport() const;
    void check_secrets() const;
    void check_peer();
    void check_protocol() const;
    /// Whether this end's device has a wire.
    void look_for_wire();
    /// By what the two devices reach each other, if by anything (route.cpp).
    void choose_route();
    void go_by_wire(std::string why);
    /// The connecting end's last step before its Ready: over the wire, the peer's device answers a
    /// request of no bytes first, so that who connects hears of a path that UDP does not pass. UC
    /// and UD have no answers.
    void confirm();
    void look_at_probe();
    [[noreturn]] void refuse_path(const verbs::Completion& answer) const;
    [[noreturn]] void refuse_other_fabric() const;
    [[noreturn]] void refuse_other_kind() const;
    void connect_queue_pair();
    void say(const std::vector<std::byte>& frame);
    void say_ready();
    void handle(const Frame& frame);
    void hear_hello(const Frame& frame);
    /// What follows the peer's Hello on the accepting side.
    void answer_hello();
    void admit();
    /// Says who this end is, with the queue pair that was made, and connects that.
    void introduce();
    /// Goes on when the peer has said something.
    [[nodiscard]] bool listens() const noexcept {
        return stage_ != Stage::halted && stage_ != Stage::made && stage_ != Stage::done;
    }
    void hear_ready(const Ready& ready);
    [[nodiscard]] bool has_secret() const noexcept { return bool{options_.admission.secret}; }
    /// What answers the challenge.
    [[nodiscard]] Digest answer() const;
    /// What the Ready of either side carries.
    [[nodiscard]] Digest proof_of(Role prover, bool writes_in_order) const;
    [[noreturn]] void refuse_proof() const;
    void flush() noexcept;
    [[nodiscard]] static Refused as_told(const Failure& failure);
    void refuse(const Refused& refused) noexcept;
    [[nodiscard]] base::Error error(const Failure& failure) const;

    Role role_;
    LinkOptions options_;
    std::unique_ptr<Link::State> state_;
    Stage stage_ = Stage::hello;
    bool halts_ = false;
    bool probes_ = false;
    std::vector<std::byte> unsent_;
    /// The parts of proofs: both Hellos as they were on the wire, and the challenge.
    std::vector<std::byte> connecting_hello_;
    std::vector<std::byte> accepting_hello_;
    std::optional<Nonce> challenge_;
    bool peer_hears_ = true;
    bool peer_refused_ = false;
};

/// Throws Error when options can never work.
void validate(const LinkOptions& options);

}  // namespace millrace::connect
