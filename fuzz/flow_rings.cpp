// A lying producer or consumer of a flow queue: an input chooses a point of the design space, and
// is a list of steps that write whatever they like into the memory that the other end may write
// (rings, marks, counters, credit), with enqueues and dequeues in between. Both ends are lied to.
//
// Required: every call returns, no sanitizer has anything to say, and what is handed to the
// program as an item lies in memory that was meant for items.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "fuzz/endpoints.hpp"
#include "fuzz/granted.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/ring/position.hpp"

namespace millrace::fuzz {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using flow::Bytes;
using ring::DataFlow;
using ring::Design;
using ring::SpaceNotification;
using ring::TransferNotification;

std::shared_ptr<connect::Endpoint> endpoint;

std::uint64_t value(Input& input, std::uint64_t old) {
    const std::uint64_t small = input.take<std::uint8_t>();
    switch (input.below(10)) {
        case 0: return input.take<std::uint64_t>();
        case 1: return ring::PositionWord::pack(small * 8);
        case 2: return ring::PositionWord::pack(std::uint64_t{input.take<std::uint32_t>()} * 8);
        case 3: return old + small;
        case 4: return old - small;
        case 5: return old ^ (std::uint64_t{1} << small % 64);
        case 6: return ~std::uint64_t{0};
        case 7: return std::uint64_t{input.take<std::uint32_t>()} << 32 | small;
        case 8: return small << 56 | input.take<std::uint32_t>();
        default: return small;
    }
}

template <class Item, Design D>
class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        flow::Options options;
        options.endpoint = endpoint;
        options.ring.capacity = std::is_same_v<Item, Bytes> ? 512 : 8;
        options.ring.receive_pool = 16;
        flow::Listener listener = flow::Listener::listen(unused_address(), options);
        std::thread other{[&] {
            producer_.emplace(flow::Producer<Item, D>::connect(listener.address(), options,
                                                               Deadline::after(20s)));
        }};
        consumer_.emplace(flow::Consumer<Item, D>::accept(listener, Deadline::after(20s)));
        other.join();
        granted_.emplace();
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        static_cast<void>(producer_->explain());
        static_cast<void>(consumer_->explain());
        if (input_.below(2) == 0) static_cast<void>(producer_->close(Deadline::now()));
        if (input_.below(2) == 0) consumer_->close();
    }

  private:
    void step() {
        switch (input_.below(8)) {
            case 0:
            case 1:
            case 2:
                granted_->scribble(input_, [&](std::uint64_t old) { return value(input_, old); });
                break;
            case 3:
            case 4: enqueue(); break;
            case 5:
            case 6: dequeue(); break;
            default: static_cast<void>(producer_->flush(Deadline::now())); break;
        }
    }
    void enqueue() {
        if constexpr (std::is_same_v<Item, Bytes>) {
            static constexpr std::array<std::byte, 256> content{};
            const std::size_t size = input_.take<std::uint8_t>();
            static_cast<void>(producer_->try_enqueue(std::span{content}.first(size)));
        } else {
            static_cast<void>(producer_->try_enqueue(input_.take<std::uint8_t>()));
        }
    }
    void dequeue() {
        if constexpr (std::is_same_v<Item, Bytes>) {
            std::span<const std::byte> item;
            if (consumer_->peek(item) != base::Status::ok) return;
            require(granted_->contains(item), "an item lies in a ring");
            static_cast<void>(std::count(item.begin(), item.end(), std::byte{0}));
            // The frame's header is no longer what it was when it is released.
            if (input_.below(4) == 0) {
                granted_->scribble(input_, [&](std::uint64_t old) { return value(input_, old); });
            }
            consumer_->release();
        } else {
            const Item* item = nullptr;
            if (consumer_->peek(item) != base::Status::ok) return;
            require(granted_->contains(std::as_bytes(std::span{item, 1})),
                    "an item lies in a ring");
            consumer_->release();
        }
    }

    Input& input_;
    std::optional<flow::Producer<Item, D>> producer_;
    std::optional<flow::Consumer<Item, D>> consumer_;
    std::optional<GrantedMemory> granted_;
};

template <class Item, Design D>
void run(Input& input) {
    Session<Item, D> session{input};
    session.run();
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    millrace::fuzz::endpoint = millrace::fuzz::open_on_own_fabric();
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace millrace::fuzz;
    using millrace::ring::design_1;
    using millrace::ring::design_2;
    constexpr Design immediate{DataFlow::push1, TransferNotification::immediate,
                               SpaceNotification::push2};
    constexpr Design event{DataFlow::push2, TransferNotification::event, SpaceNotification::push};
    constexpr Design pull{DataFlow::pull, TransferNotification::push, SpaceNotification::pull};
    constexpr Design pull_marks{DataFlow::pull, TransferNotification::watermark,
                                SpaceNotification::push};
    using Number = std::uint64_t;
    Input input{data, size};
    switch (input.below(9)) {
        case 0: run<Number, design_1>(input); break;
        case 1: run<Number, design_2>(input); break;
        case 2: run<Bytes, design_1>(input); break;
        case 3: run<Bytes, design_2>(input); break;
        case 4: run<Number, immediate>(input); break;
        case 5: run<Bytes, event>(input); break;
        case 6: run<Number, pull>(input); break;
        case 7: run<Bytes, pull_marks>(input); break;
        default: run<Bytes, immediate>(input); break;
    }
    return 0;
}
