// Whoever reaches a listener's socket, or is reached by connect(): an input is what such a peer
// says, in pieces. Frames as the protocol has them, with bytes of them changed, and plain bytes;
// to the accepting and to the connecting side, without a secret and with one, up to exchanges and
// goodbye on the link.
//
// Required: nothing but an Error ends it, nothing waits, no sanitizer has anything to say; and
// where there is a secret, nobody gets through who has not proved to know it.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/target.hpp"
#include "handshake.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "proof.hpp"
#include "wire.hpp"

namespace millrace::fuzz {
namespace {

using namespace connect;
using Bytes = std::vector<std::byte>;

/// Two ends of a connection.
struct Sockets {
    Sockets() {
        int ends[2];
        require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
                "two sockets");
        ours = Descriptor{ends[0]};
        theirs = Descriptor{ends[1]};
    }
    Descriptor ours;
    Descriptor theirs;
};

struct World {
    LinkOptions options;
    Sockets honest_sockets;
    std::unique_ptr<Handshake> honest;  ///< whose queue pair the hello below names
    Bytes hello;
};
World* open_world = nullptr;
World* world_with_secret = nullptr;

World* make_world(const std::shared_ptr<Endpoint>& endpoint, const Secret& secret) {
    auto* const made = new World;
    World& w = *made;
    w.options.endpoint = endpoint;
    w.options.admission.secret = secret;
    w.options.max_send_requests = 4;
    w.options.max_receive_requests = 4;
    w.honest =
        std::make_unique<Handshake>(Role::connecting, std::move(w.honest_sockets.ours), w.options,
                                    w.options.endpoint, Address::parse("unix:@fuzz"), "honest");
    require(!w.honest->step(), "a handshake waits for its peer's hello");
    w.hello.resize(4096);
    const ssize_t got =
        ::recv(w.honest_sockets.theirs.get(), w.hello.data(), w.hello.size(), MSG_DONTWAIT);
    require(got > 0, "who connects says hello");
    w.hello.resize(static_cast<std::size_t>(got));
    return made;
}

void make_worlds() {
    const std::shared_ptr<Endpoint> endpoint = Endpoint::open("soft0");
    open_world = make_world(endpoint, {});
    world_with_secret = make_world(endpoint, Secret{std::string_view{"known to both ends"}});
}

/// The peer of one handshake: what it has said and heard of what proofs are made of.
class Peer {
  public:
    Peer(const World& world, Role side, int socket)
        : world_{&world}, side_{side}, socket_{socket} {}

    void say(const Bytes& words) {
        static_cast<void>(::send(socket_, words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    }
    void hear() {
        while (inbox_.receive(socket_) == FrameBuffer::Received::some) {
        }
        while (std::optional<Frame> frame = inbox_.next(max_handshake_body)) {
            if (frame->type == FrameType::hello) heard_hello_ = std::move(frame->body);
            if (frame->type == FrameType::challenge)
                challenge_ = decode_challenge(frame->body).nonce;
        }
    }
    /// What it says next.
    [[nodiscard]] Bytes next_words(Input& input);
    /// It has said what only who knows the secret can.
    [[nodiscard]] bool has_proved() const noexcept { return proved_; }

  private:
    [[nodiscard]] Bytes said_hello() const {
        return {world_->hello.begin() + header_bytes, world_->hello.end()};
    }
    [[nodiscard]] Bytes proof_of_the_secret(Input& input);

    const World* world_;
    Role side_;  ///< of the other one
    int socket_;
    FrameBuffer inbox_;
    Bytes heard_hello_;
    Nonce challenge_{};
    bool proved_ = false;
};

/// As an honest peer would prove it at this point, if it is one of those where it would.
Bytes Peer::proof_of_the_secret(Input& input) {
    const Secret& secret = world_->options.admission.secret;
    const Bytes said = said_hello();
    const bool accepts = side_ == Role::connecting;
    switch (input.below(3)) {
        case 0: {
            challenge_.fill(input.take<std::byte>());
            return encode(Challenge{challenge_});
        }
        case 1: return encode(Proof{prove(secret, answer_label, {said, challenge_})});
        default: break;
    }
    proved_ = true;
    const std::byte order{1};
    return encode(Ready{.writes_in_order = true,
                        .proof = prove(secret, accepts ? accepting_label : connecting_label,
                                       {accepts ? heard_hello_ : said, challenge_,
                                        accepts ? said : heard_hello_, std::span{&order, 1}})});
}

Bytes Peer::next_words(Input& input) {
    Bytes words;
    const auto some = [&](std::size_t most) {
        const auto bytes = std::as_bytes(input.bytes(input.take<std::uint8_t>() % (most + 1)));
        return Bytes{bytes.begin(), bytes.end()};
    };
    switch (input.below(world_ == open_world ? 8 : 12)) {
        case 0:
        case 1: words = world_->hello; break;
        case 2: words = encode(Ready{.writes_in_order = input.below(2) == 0}); break;
        case 3: {
            const Bytes reason = some(60);
            words = encode(
                Refused{static_cast<base::ErrorCode>(input.below(16)),
                        std::string{reinterpret_cast<const char*>(reason.data()), reason.size()}});
            break;
        }
        case 4: words = encode_frame(FrameType::exchange, some(200)); break;
        case 5: words = encode_frame(FrameType::goodbye, some(255)); break;
        case 6: words = encode_frame(static_cast<FrameType>(input.below(8)), some(100)); break;
        case 7: return some(255);
        default: return proof_of_the_secret(input);
    }
    for (std::uint32_t changes = input.below(4); changes > 0; --changes) {
        words[input.take<std::uint16_t>() % words.size()] = input.take<std::byte>();
    }
    if (input.below(8) == 0) words.resize(input.take<std::uint16_t>() % words.size());
    return words;
}

/// As who polls for what it asks for: who accepts goes on by itself when its queue pair is made.
bool go_on(Handshake& handshake) {
    const bool done = handshake.step();
    return done || ((handshake.events() & POLLOUT) != 0 && handshake.step());
}

void converse(Input& input) {
    const std::uint32_t chosen = input.below(4);
    const Role role = chosen % 2 == 0 ? Role::accepting : Role::connecting;
    const World& world = chosen < 2 ? *open_world : *world_with_secret;
    Sockets sockets;
    const int theirs = sockets.theirs.get();
    Handshake handshake{role,
                        std::move(sockets.ours),
                        world.options,
                        world.options.endpoint,
                        Address::parse("unix:@fuzz"),
                        "fuzzer"};
    Peer peer{world, role, theirs};
    bool done = go_on(handshake);
    for (int i = 0; i < 12 && !done && !input.empty(); ++i) {
        peer.hear();
        peer.say(peer.next_words(input));
        if (input.below(16) == 0) ::shutdown(theirs, SHUT_WR);
        done = go_on(handshake);
    }
    if (!done) throw handshake.give_up(base::ErrorCode::timed_out, "for now");
    require(&world == open_world || peer.has_proved(), "who gets through knows the secret");
    Link link = handshake.take();
    require(!link.explain().empty(), "a link can be explained");
    for (int i = 0; i < 12 && !input.empty(); ++i) {
        peer.say(peer.next_words(input));
        static_cast<void>(link.peer_now());
        require(link.last_words().size() <= max_last_words, "last words are few");
        if (input.below(4) == 0) {
            require(link.exchange(std::as_bytes(input.bytes(32)),
                                  base::Deadline::after(std::chrono::nanoseconds{0}))
                            .size() <= max_exchange,
                    "an exchange is as long as it may be");
        }
    }
    link.say_goodbye();
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    millrace::fuzz::use_own_fabric();
    millrace::fuzz::make_worlds();
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    millrace::fuzz::Input input{data, size};
    try {
        millrace::fuzz::converse(input);
    } catch (const millrace::base::Error&) {  // said in words: as it has to be
    }
    return 0;
}
