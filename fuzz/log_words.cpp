// What a reader and a log may say to each other: requests of any content to a log's side of the
// protocol, frames of any content to a reader's, and both sides together while retention passes and
// the reader skips.
//
// Required: nothing that is said takes either side out of its invariants; a reader's position never
// goes back and never leaves a gap but by `passed`; what is acknowledged was sent; an honest pair
// never hears `wrong`.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/target.hpp"
#include "log/follower.hpp"
#include "log/subscription.hpp"
#include "millrace/flow/log_options.hpp"

namespace millrace::fuzz {
namespace {

using namespace flow::detail;

constexpr std::uint64_t sequence = 77;
const LogShape items_of_8{.item_size = 8, .item_alignment = 8, .item_name = 5};

/// A log that holds positions alone.
struct Positions {
    std::vector<std::uint64_t> epochs{0, 10};
    std::uint64_t first = 4;
    std::uint64_t end = 20;
    [[nodiscard]] LogView view() const { return {items_of_8, sequence, epochs, 3, first, end}; }
};

LogRequest request_of(Input& input) {
    LogRequest request;
    const auto small = [&] { return std::uint64_t{input.take<std::uint8_t>()}; };
    switch (input.below(4)) {
        case 0: {
            const auto bytes = input.bytes(sizeof request);
            std::memcpy(&request, bytes.data(), bytes.size());
            return request;
        }
        case 1: request.ask = static_cast<std::uint32_t>(LogAsk::join); break;
        case 2: request.ask = static_cast<std::uint32_t>(LogAsk::acknowledge); break;
        default: request.ask = static_cast<std::uint32_t>(LogAsk::skip); break;
    }
    request.from = input.below(5);
    request.position = small();
    request.acknowledged = input.below(2) == 0 ? 0 : small();
    request.sequence = input.below(3) == 0 ? 0 : sequence;
    request.epoch = input.below(5);
    request.item_size = 8;
    request.item_alignment = 8;
    request.item_name = input.below(8) == 0 ? 6 : 5;
    request.name_length = input.below(70);
    return request;
}

/// Requests of any content. What is not refused keeps the invariants.
void lie_to_the_log(Input& input) {
    Positions log;
    LogSubscription subscription;
    for (unsigned i = 0; i != 64 && !input.empty(); ++i) {
        const std::uint64_t before = subscription.acknowledged();
        const LogRequest request = request_of(input);
        const char* const fault = subscription.take(request, log.view(), [](const std::string&) {
            return std::optional<std::uint64_t>{9};
        });
        if (fault != nullptr) return;
        require(subscription.acknowledged() >= before, "an acknowledgement never goes back");
        require(subscription.acknowledged() <= log.end, "nothing is acknowledged that never was");
        require(subscription.sent() <= log.end, "nothing is sent that never was");
        require(subscription.name().size() <= longest_log_name, "a name has its limit");
        if (static_cast<LogAsk>(request.ask) == LogAsk::acknowledge) {
            require(request.position <= subscription.sent(), "what is acknowledged was sent");
        }
        if (subscription.is_due()) {
            std::vector<std::byte> frame(subscription.due_bytes());
            subscription.say(frame, log.view());
        }
        if (subscription.is_reading() && input.below(2) == 0) {
            if (subscription.sent() < log.first) {
                subscription.pass(log.view());
            } else {
                subscription.send(std::min(log.end, subscription.sent() + input.below(4)));
            }
        }
        if (input.below(4) == 0) log.end += input.below(8);
        if (input.below(4) == 0) log.first = std::min(log.end, log.first + input.below(8));
    }
}

/// Frames of any content. What is believed goes on from where the reader is.
void lie_to_the_reader(Input& input) {
    LogFollower follower{items_of_8};
    for (unsigned i = 0; i != 64 && !input.empty(); ++i) {
        const auto bytes = input.bytes(input.below(64));
        std::vector<std::byte> frame(bytes.size());
        std::memcpy(frame.data(), bytes.data(), bytes.size());
        if (frame.size() >= 8 && input.below(2) == 0) {
            const LogWord word{static_cast<LogSay>(input.below(8)), follower.position()};
            const std::uint64_t packed = word.pack();
            std::memcpy(frame.data(), &packed, sizeof packed);
        }
        const std::uint64_t before = follower.position();
        const LogFollower::State state = follower.state();
        const auto heard = follower.take(frame);
        if (heard == LogFollower::Heard::wrong) return;
        if (heard == LogFollower::Heard::items) {
            const auto items = follower.items();
            require(state == LogFollower::State::reading, "items come to a reader that reads");
            require(!items.empty() && items.size() % 8 == 0, "items are whole");
            require(items.data() == frame.data() + 8 && items.size() == frame.size() - 8,
                    "items lie in their frame");
            follower.move_to(before + items.size() / 8);
        } else if (state != LogFollower::State::joining) {
            require(follower.position() >= before, "a reader never goes back");
            require(follower.position() == before || state == LogFollower::State::skipping,
                    "a reader goes past nothing unless it skips");
        }
        if (follower.state() == LogFollower::State::passed && input.below(2) == 0) follower.skip();
    }
}

/// Records of Bytes.
void lie_about_records(Input& input) {
    const auto bytes = input.bytes(256);
    std::vector<std::byte> run(bytes.size());
    std::memcpy(run.data(), bytes.data(), bytes.size());
    std::span<const std::byte> rest{run};
    std::span<const std::byte> item;
    while (!rest.empty() && log_record_at(rest, item)) {
        require(item.data() >= run.data() && item.data() + item.size() <= run.data() + run.size(),
                "an item lies in its run");
        rest = rest.subspan(log_record_bytes(item.size()));
    }
}

/// Both sides by the rules: the reader hears nothing wrong, and misses nothing but what it skips.
void talk_honestly(Input& input) {
    Positions log;
    LogSubscription subscription;
    LogFollower follower{items_of_8};
    LogRequest join;
    join.ask = static_cast<std::uint32_t>(LogAsk::join);
    join.from = input.below(4);
    join.position = input.below(21);
    join.item_size = 8;
    join.item_alignment = 8;
    join.item_name = 5;
    join.name_length = 1;
    const auto ask = [&](const LogRequest& request) {
        require(subscription.take(
                    request, log.view(),
                    [](const std::string&) { return std::optional<std::uint64_t>{6}; }) == nullptr,
                "an honest reader is believed");
    };
    ask(join);
    std::vector<std::vector<std::byte>> on_its_way;
    for (unsigned i = 0; i != 128 && !input.empty(); ++i) {
        switch (input.below(5)) {
            case 0: log.end += input.below(4); break;
            case 1: log.first = std::min(log.end, log.first + input.below(6)); break;
            case 2: {
                std::vector<std::byte> frame(subscription.due_bytes());
                if (subscription.is_due()) {
                    subscription.say(frame, log.view());
                } else if (!subscription.is_reading()) {
                    break;
                } else if (subscription.sent() < log.first) {
                    subscription.pass(log.view());
                    break;
                } else if (subscription.sent() < log.end) {
                    const LogWord word{LogSay::items, subscription.sent()};
                    const std::uint64_t packed = word.pack();
                    const std::uint64_t count =
                        std::min<std::uint64_t>(log.end - subscription.sent(), 3);
                    frame.assign(8 + 8 * count, std::byte{0});
                    std::memcpy(frame.data(), &packed, sizeof packed);
                    subscription.send(subscription.sent() + count);
                } else {
                    break;
                }
                on_its_way.push_back(std::move(frame));
                break;
            }
            case 3: {
                if (on_its_way.empty()) break;
                const auto heard = follower.take(on_its_way.front());
                require(heard != LogFollower::Heard::wrong, "an honest log is believed");
                if (heard == LogFollower::Heard::items) {
                    follower.move_to(follower.position() + follower.items().size() / 8);
                }
                on_its_way.erase(on_its_way.begin());
                break;
            }
            default:
                if (follower.state() == LogFollower::State::passed) {
                    follower.skip();
                    LogRequest skip;
                    skip.ask = static_cast<std::uint32_t>(LogAsk::skip);
                    ask(skip);
                } else if (follower.state() == LogFollower::State::reading) {
                    LogRequest acknowledge;
                    acknowledge.ask = static_cast<std::uint32_t>(LogAsk::acknowledge);
                    acknowledge.position = follower.position();
                    ask(acknowledge);
                }
                break;
        }
        require(follower.position() <= log.end, "a reader has nothing that never was");
    }
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace millrace::fuzz;
    Input input{data, size};
    switch (input.below(4)) {
        case 0: lie_to_the_log(input); break;
        case 1: lie_to_the_reader(input); break;
        case 2: lie_about_records(input); break;
        default: talk_honestly(input); break;
    }
    return 0;
}
