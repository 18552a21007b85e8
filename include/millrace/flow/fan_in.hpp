// Many producers, one consumer (work 000, section 3.4: an N-1 flow structure). Any number of
// Producers connect to one address, come and go, and one thread takes their items.
//
//     auto items = flow::FanIn<Item>::listen("host:7000", {});
//     Item item;
//     while (items.dequeue(item, deadline) == Status::ok) use(item, items.last().label);
//
//     auto producer = flow::Producer<Item>::connect("host:7000", {}, deadline);    // each of many
//
// Every producer has a queue of its own, so that none can hold up, or write into, another one's:
// what has to be coordinated (work 000, section 3.4) is only who is looked at next. Items of one
// producer come in its order; between those of different ones there is none. Producers are served
// in turn, FanInOptions::burst items at most before the next one that has some.
//
// With levels, it is a priority queue (work 000, chapter 1): a producer's label is its level, and
// no item is taken while a level with a smaller number has one. PriorityProducer (priority.hpp) has
// a queue for each level.
//
// A thread at a time: that which made it, or has called adopt() since. Calls look at the kernel
// each millisecond, for producers that join or leave: a join takes a few of them. A program that
// calls seldom, or waits elsewhere meanwhile, calls look_around(), or lets a thread of the fan-in's
// own accept (FanInOptions::acceptor). What sleeps is asleep in one epoll; a producer that is idle
// costs a look of some instructions in each round, and no system call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/any_consumer.hpp"
#include "millrace/flow/sources.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// Move-only. `T`: an item type, or Bytes.
template <class T, ring::Design D = ring::design_2>
class FanIn : public detail::OfManyProducers<FanIn<T, D>> {
  public:
    using Item = detail::Taken<T>;
    using Seen = detail::Seen<T>;

    /// Waits for nobody. Throws Error (invalid_argument; permission, system: the address is in use
    /// …).
    [[nodiscard]] static FanIn listen(const connect::Address& address, FanInOptions options = {}) {
        return FanIn{std::make_unique<State>(address, std::move(options))};
    }

    /// `ok`; `empty`; `closed`: as many producers as were expected have come and gone, or this end
    /// was closed. A producer that leaves or dies does not end it: on_change() tells of it.
    base::Status try_dequeue(Item& item) {
        State& state = *state_;
        const base::Status status = state.find();
        if (status != base::Status::ok) return status;
        state.count(*state.current, 1);
        return state.current->consumer.try_dequeue(item);
    }
    /// The same, waiting for one. Also `timed_out`, `cancelled`.
    base::Status dequeue(Item& item, const base::Deadline& deadline) {
        return state_->wait([&] { return try_dequeue(item); }, deadline);
    }
    /// As many items as are there, at most `items.size()`, from one producer after the other.
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<Item> items) {
        BatchResult result;
        State& state = *state_;
        while (result.count != items.size()) {
            result.status = state.find();
            if (result.status != base::Status::ok) break;
            const std::size_t most =
                std::min<std::size_t>(items.size() - result.count, state.left + std::size_t{1});
            const std::size_t taken =
                state.current->consumer.try_dequeue_batch(items.subspan(result.count, most)).count;
            state.count(*state.current, taken);
            state.left -= static_cast<std::uint32_t>(taken) - 1;
            result.count += taken;
        }
        return result;
    }
    /// The next item where it lies. It stays there, and in front, until release().
    base::Status peek(Seen& item) {
        State& state = *state_;
        if (state.peeked == nullptr) {
            const base::Status status = state.find();
            if (status != base::Status::ok) return status;
            state.peeked = state.current;
            state.count(*state.current, 0);
        }
        return state.peeked->consumer.peek(item);
    }
    base::Status peek(Seen& item, const base::Deadline& deadline) {
        return state_->wait([&] { return peek(item); }, deadline);
    }
    /// Gives the peeked item's place back to its producer.
    void release() {
        State& state = *state_;
        if (state.peeked == nullptr) return;
        state.current = std::exchange(state.peeked, nullptr);
        state.current->consumer.release();
        state.count(*state.current, 1);
    }

    [[nodiscard]] FanInStats stats() const noexcept { return state_->counts; }
    /// What is listened for, and what each producer's queue is, of one of them.
    [[nodiscard]] std::string explain() const { return state_->explain(); }

  private:
    friend class detail::OfManyProducers<FanIn>;
    struct NoMark {};
    struct State;
    using Sources = detail::Sources<State, Consumer<T, D>, NoMark>;
    using Source = typename Sources::Source;
    struct Level {
        std::vector<Source*> sources;
        std::size_t cursor = 0;  ///< the one that was served last
    };

    struct State : Sources {
        State(const connect::Address& address, FanInOptions chosen)
            : Sources{"a fan-in", address, std::move(chosen)}, levels(this->options.levels) {}

        /// `ok`: `current` has an item in front. `empty`; `closed`.
        base::Status find() {
            if (peeked != nullptr) [[unlikely]]
                peeked = nullptr;
            this->look_now_and_then();
            for (std::size_t at = 0; at != levels.size(); ++at) {
                // Only now: a more urgent level may have something by now.
                if (left != 0 && current_level == at && current->consumer.has_item()) [[likely]] {
                    --left;
                    return base::Status::ok;
                }
                Level& level = levels[at];
                const std::size_t count = level.sources.size();
                for (std::size_t i = 0; i != count; ++i) {
                    if (++level.cursor >= count) level.cursor = 0;
                    Source& source = *level.sources[level.cursor];
                    if (!source.consumer.has_item()) continue;
                    current = &source;
                    current_level = at;
                    left = this->options.burst - 1;
                    if (!source.is_active) this->activate(source);
                    return base::Status::ok;
                }
            }
            left = 0;
            return this->nothing();
        }
        [[nodiscard]] std::string explain() {
            std::string text = "fan-in at " + this->door.listener().address().to_string() + ": " +
                               std::to_string(this->counts.producers) + " producers of at most " +
                               std::to_string(this->options.max_producers) + ", " +
                               std::to_string(this->options.levels) + " levels, at most " +
                               std::to_string(this->options.burst) + " items of one in turn\n";
            return text + this->explain_queue();
        }

        // --- what Sources asks

        void came(Source& source) { level_of(source).sources.push_back(&source); }
        void goes(Source& source) noexcept {
            if (current == &source) {
                current = nullptr;
                left = 0;
            }
            if (peeked == &source) peeked = nullptr;
            std::erase(level_of(source).sources, &source);
        }
        [[nodiscard]] Level& level_of(const Source& source) noexcept {
            return levels[levels.size() == 1 ? 0 : source.label];
        }
        /// One whose end has come, or whose item was seen just now, is not slept over.
        [[nodiscard]] bool may_sleep() const noexcept { return this->active.empty(); }
        void rests() noexcept {}

        std::vector<Level> levels;
        Source* current = nullptr;  ///< the one that is served
        std::size_t current_level = 0;
        std::uint32_t left = 0;  ///< items that it may have taken before the next one's turn
        Source* peeked = nullptr;
    };

    explicit FanIn(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
