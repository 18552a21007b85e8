// Lying producers, and a lying consumer, of a shared ring: an input is a list of steps that write
// whatever they like into the memory that other ends may write (tail, slots, marks, attempts,
// notices of moves), with enqueues and dequeues in between.
//
// Required: every call returns, no sanitizer has anything to say, and what is handed to the
// program as an item lies in memory that was meant for items.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "fuzz/endpoints.hpp"
#include "fuzz/granted.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "millrace/base/error.hpp"
#include "millrace/flow/shared_fan_in.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "millrace/ring/position.hpp"

namespace millrace::fuzz {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using Number = std::uint64_t;
namespace detail = flow::detail;

std::shared_ptr<connect::Endpoint> endpoint;

std::uint64_t value(Input& input, std::uint64_t old) {
    const std::uint64_t small = input.take<std::uint8_t>();
    switch (input.below(9)) {
        case 0: return input.take<std::uint64_t>();
        case 1: return detail::shared_word(input.below(4), small);
        case 2: return detail::shared_word(small, old);
        case 3: return old + small;
        case 4: return old - small;
        case 5: return old ^ (std::uint64_t{1} << small % 64);
        case 6: return detail::shared_moved;
        case 7: return ring::PositionWord::pack(small * ring::PositionWord::unit);
        default: return small;
    }
}

class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        flow::SharedOptions options;
        options.endpoint = endpoint;
        in_.emplace(flow::SharedFanIn<Number>::listen(
            unused_address(),
            {.shared = options, .capacity = 1 + input_.below(9), .patience = 200us}));
        for (int i = 0; i != 2; ++i) {
            std::atomic<bool> is_there{false};
            std::thread other{[&] {
                out_.push_back(flow::SharedProducer<Number>::connect(in_->address(), options,
                                                                     Deadline::after(20s)));
                is_there = true;
            }};
            while (!is_there) (void)in_->look_around();
            other.join();
        }
        while (in_->producers() != out_.size()) (void)in_->look_around();
        granted_.emplace();
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
        static_cast<void>(in_->explain());
        for (auto& one : out_) {
            static_cast<void>(one.explain());
            if (input_.below(2) == 0) static_cast<void>(one.close(Deadline::now()));
        }
        if (input_.below(2) == 0) in_->close();
    }

  private:
    void step() {
        flow::SharedProducer<Number>& one = out_[input_.below(2)];
        switch (input_.below(8)) {
            case 0:
            case 1:
            case 2: scribble(); break;
            case 3: static_cast<void>(one.try_enqueue(input_.take<std::uint8_t>())); break;
            case 4: {
                const std::array<Number, 5> items{};
                static_cast<void>(
                    one.try_enqueue_batch(std::span{items}.first(1 + input_.below(5))));
                break;
            }
            case 5:
            case 6: dequeue(); break;
            default:
                static_cast<void>(one.flush(Deadline::now()));
                static_cast<void>(in_->look_around());
                break;
        }
    }
    /// While what was granted is what it was.
    void scribble() {
        if (in_->stats().moves != 0 || in_->producers() != out_.size()) return;
        granted_->scribble(input_, [&](std::uint64_t old) { return value(input_, old); });
    }
    void dequeue() {
        // Long enough for an empty place to be looked after.
        const Deadline deadline = Deadline::after(input_.below(4) == 0 ? 500us : 0us);
        const Number* item = nullptr;
        if (in_->peek(item, deadline) != base::Status::ok) return;
        if (in_->stats().moves == 0) {
            require(granted_->contains(std::as_bytes(std::span{item, 1})),
                    "an item lies in a ring");
        }
        if (input_.below(4) == 0) scribble();
        in_->release();
    }

    Input& input_;
    std::optional<flow::SharedFanIn<Number>> in_;
    std::vector<flow::SharedProducer<Number>> out_;
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
