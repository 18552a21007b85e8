// Whoever reaches a listener's socket, or is reached by connect(): an input is what such a peer
// says, in pieces. Frames as the protocol has them, with bytes of them changed, and plain bytes;
// to the accepting and to the connecting side, up to exchanges and goodbye on the link.
//
// Required: nothing but an Error ends it, nothing waits, and no sanitizer has anything to say.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/target.hpp"
#include "handshake.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
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
World* world = nullptr;

void make_world() {
    world = new World;
    World& w = *world;
    w.options.endpoint = Endpoint::open("soft0");
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
}

/// What the peer says next.
Bytes next_words(Input& input) {
    Bytes words;
    const auto some = [&](std::size_t most) {
        const auto bytes = std::as_bytes(input.bytes(input.take<std::uint8_t>() % (most + 1)));
        return Bytes{bytes.begin(), bytes.end()};
    };
    switch (input.below(8)) {
        case 0:
        case 1: words = world->hello; break;
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
        default: return some(255);
    }
    for (std::uint32_t changes = input.below(4); changes > 0; --changes) {
        words[input.take<std::uint16_t>() % words.size()] = input.take<std::byte>();
    }
    if (input.below(8) == 0) words.resize(input.take<std::uint16_t>() % words.size());
    return words;
}

void converse(Input& input) {
    const Role role = input.below(2) == 0 ? Role::accepting : Role::connecting;
    Sockets sockets;
    const int theirs = sockets.theirs.get();
    Handshake handshake{role,
                        std::move(sockets.ours),
                        world->options,
                        world->options.endpoint,
                        Address::parse("unix:@fuzz"),
                        "fuzzer"};
    bool done = handshake.step();
    for (int i = 0; i < 12 && !done && !input.empty(); ++i) {
        const Bytes words = next_words(input);
        static_cast<void>(::send(theirs, words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
        if (input.below(16) == 0) ::shutdown(theirs, SHUT_WR);
        done = handshake.step();
    }
    if (!done) throw handshake.give_up(base::ErrorCode::timed_out, "for now");
    Link link = handshake.take();
    require(!link.explain().empty(), "a link can be explained");
    for (int i = 0; i < 12 && !input.empty(); ++i) {
        const Bytes words = next_words(input);
        static_cast<void>(::send(theirs, words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
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
    millrace::fuzz::make_world();
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
