// A lying peer of a message channel: an input is a list of steps that write whatever they like
// into the memory that the other end may write (ring, credit, flags), with sends and receives in
// between. Both ends are lied to.
//
// Required: every call returns, no sanitizer has anything to say, and a received message lies in
// the ring or has been put together in memory of the channel.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/endpoints.hpp"
#include "fuzz/granted.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/ring/position.hpp"

namespace millrace::fuzz {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using message::Channel;

std::shared_ptr<connect::Endpoint> endpoint;

/// Header words of frames, footers, positions, and anything.
std::uint64_t value(Input& input, std::uint64_t old) {
    const std::uint64_t small = input.take<std::uint8_t>();
    switch (input.below(8)) {
        case 0: return input.take<std::uint64_t>();
        case 1: return ring::PositionWord::pack(small * 64);
        case 2: return old + small;
        case 3: return old ^ (std::uint64_t{1} << small % 64);
        case 4:  // what is there with other flags or another length
            return old ^ (std::uint64_t{input.take<std::uint8_t>()} << message::length_bits) ^
                   small;
        case 5: return (old & ~message::facts_mask) | input.take<std::uint16_t>();
        case 6: return ~std::uint64_t{0};
        default: return small;
    }
}

class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        message::ChannelOptions options;
        options.endpoint = endpoint;
        options.ring_bytes = 1024;
        options.max_message_bytes = 8192;
        message::Listener listener =
            message::Listener::listen(connect::Address::parse(unused_address()), options);
        std::thread other{[&] {
            left_.emplace(message::connect(listener.address(), options, Deadline::after(20s)));
        }};
        right_.emplace(listener.accept(Deadline::after(20s)));
        other.join();
        granted_.emplace();
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        for (const auto* end : {&left_, &right_}) {
            static_cast<void>((*end)->explain());
            static_cast<void>((*end)->failure());
        }
        if (input_.below(2) == 0) static_cast<void>(left_->close(Deadline::now()));
    }

  private:
    void step() {
        Channel& end = input_.below(2) == 0 ? *left_ : *right_;
        switch (input_.below(8)) {
            case 0:
            case 1:
            case 2:
                granted_->scribble(input_, [&](std::uint64_t old) { return value(input_, old); });
                break;
            case 3: {
                static constexpr std::array<std::byte, 256> content{};
                static_cast<void>(
                    end.try_send(std::span{content}.first(input_.take<std::uint8_t>())));
                break;
            }
            case 4: {
                static constexpr std::array<std::byte, 3000> content{};
                static_cast<void>(end.send(content, Deadline::now()));
                break;
            }
            case 5:
                static_cast<void>(end.try_receive([&](std::span<const std::byte> message) {
                    require(message.size() <= 8192, "a message is no longer than it may be");
                    static_cast<void>(std::count(message.begin(), message.end(), std::byte{0}));
                }));
                break;
            case 6:
                static_cast<void>(end.try_receive([&](const message::Piece& piece) {
                    require(granted_->contains(piece.payload), "a piece lies in the ring");
                }));
                break;
            default: {
                std::array<std::byte, 64> into;
                std::size_t size = 0;
                static_cast<void>(end.try_receive(into, size));
                break;
            }
        }
    }

    Input& input_;
    std::optional<Channel> left_;
    std::optional<Channel> right_;
    std::optional<GrantedMemory> granted_;
};

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    millrace::fuzz::endpoint = millrace::fuzz::open_on_own_fabric();
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return millrace::fuzz::run_session<millrace::fuzz::Session>(data, size);
}
