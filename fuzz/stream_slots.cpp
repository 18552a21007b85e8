// A lying peer of a byte stream's socket: an input is a list of steps that write whatever they like
// into the memory that the other end may write (slots, ring, sleep flags, buffers that are lent
// out), with operations in between. Both ends are lied to. What the messages mean is stream_core's.
//
// Required: every call returns, no sanitizer has anything to say, and every operation completes
// once, within its buffer.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/endpoints.hpp"
#include "fuzz/granted.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/stream/socket.hpp"
#include "slot.hpp"

namespace millrace::fuzz {
namespace {

using namespace std::chrono_literals;
using namespace stream;
using base::Deadline;
using base::Status;

std::shared_ptr<connect::Endpoint> endpoint;

/// Marks of slots, first words of messages, lengths and places, and anything.
std::uint64_t value(Input& input, std::uint64_t old) {
    const std::uint64_t small = input.take<std::uint8_t>();
    switch (input.below(8)) {
        case 0: return input.take<std::uint64_t>();
        case 1:
        case 2: return Slot::mark_of(small % 16);
        case 3: return old + small;
        case 4: return old ^ (std::uint64_t{1} << small % 64);
        case 5: return (small & 7) | std::uint64_t{input.take<std::uint8_t>()} << 32;
        case 6: return ~std::uint64_t{0};
        default: return small;
    }
}

class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        SocketOptions options;
        options.endpoint = endpoint;
        const std::uint32_t kind = input.below(6);
        options.mode = static_cast<Mode>(kind % 3);
        options.type = static_cast<Type>(kind / 3);
        options.ring_bytes = 256;
        options.sends = options.receives = operations;
        options.tuning.least_advertised = options.tuning.least_advertised_plain =
            1 + input.below(64);
        Listener listener = Listener::listen(connect::Address::parse(unused_address()), options);
        std::thread other{[&] {
            ends_[0].socket.emplace(
                stream::connect(listener.address(), options, Deadline::after(20s)));
        }};
        ends_[1].socket.emplace(listener.accept(Deadline::after(20s)));
        other.join();
        granted_.emplace();
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        for (End& end : ends_) {
            static_cast<void>(end.socket->explain());
            static_cast<void>(end.socket->failure());
            const Status closed = end.socket->close(Deadline::now());
            while (take(end)) {
            }
            // Otherwise it may be closed again, and nothing was given up.
            require(end.open == 0 || closed == Status::timed_out, "every operation completes");
        }
    }

  private:
    static constexpr std::uint32_t operations = 4;
    static constexpr std::size_t longest = 200;

    struct End {
        Buffer memory{2 * operations * longest, endpoint};
        std::optional<Socket> socket;
        std::uint64_t number = 0;
        std::uint32_t open = 0;
    };

    bool take(End& end) {
        Completion done;
        if (end.socket->poll(done) != Status::ok) return false;
        require(end.open > 0, "an operation completes once");
        require(done.bytes <= longest, "a completion stays within its buffer");
        --end.open;
        return true;
    }

    void step() {
        End& end = ends_[input_.below(2)];
        const std::size_t length = 1 + input_.below(longest);
        const std::size_t offset = end.number % operations * longest;
        switch (input_.below(8)) {
            case 0:
            case 1:
            case 2:
                granted_->scribble(input_, [&](std::uint64_t old) { return value(input_, old); });
                break;
            case 3:
                if (end.socket->send(end.memory.slice(offset, length), end.number) == Status::ok) {
                    ++end.open;
                    ++end.number;
                }
                break;
            case 4: {
                const auto flags =
                    input_.below(3) == 0 ? ReceiveFlags::wait_all : ReceiveFlags::none;
                const Slice into = end.memory.slice(operations * longest + offset, length);
                try {
                    if (end.socket->receive(into, end.number, flags) == Status::ok) {
                        ++end.open;
                        ++end.number;
                    }
                } catch (const base::Error& error) {
                    // In mode direct, behind a read that has asked for what comes next.
                    if (error.code() != base::ErrorCode::invalid_argument) throw;
                }
                break;
            }
            case 5:
                if (input_.below(4) == 0) {
                    static_cast<void>(end.socket->cancel(end.number - 1));
                } else {
                    std::array<std::byte, 64> small{};
                    std::size_t size = 0;
                    static_cast<void>(end.socket->read_some(small, size, Deadline::now()));
                    static_cast<void>(end.socket->write_some(small, size, Deadline::now()));
                }
                break;
            case 6:
                if (input_.below(8) == 0) end.socket->shut_down();
                static_cast<void>(take(end));
                break;
            default: static_cast<void>(take(end)); break;
        }
    }

    Input& input_;
    std::array<End, 2> ends_;
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
