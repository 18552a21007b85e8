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
// each millisecond, for who joins and leaves: a join takes a few of them. A program that calls
// seldom, or waits elsewhere meanwhile, calls look_around(), or lets a thread of the fan-in's own
// accept (FanInOptions::acceptor). What sleeps is asleep in one epoll; a producer that is idle
// costs a look of some instructions in each round, and no system call.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/any_consumer.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/door.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/options.hpp"

namespace millrace::flow {

struct FanInOptions {
    /// Of each producer's queue, and of this end's waits. `peer_labels` is set by `levels`.
    Options queue{};
    /// Producers at a time, 1 to 65,536; one more is refused, with the reason. With levels, so many
    /// queues of each level.
    std::uint32_t max_producers = 1024;
    /// Priorities, 1 to 256. More than one: a producer's label (Options::ring) is its level, 0 the
    /// most urgent; one with another label is refused.
    std::uint32_t levels = 1;
    /// Items that are taken from one producer, if it has so many, before the next one's turn; 1 or
    /// more. Within a level.
    std::uint32_t burst = 16;
    /// When so many producers have joined, in all, no more are let in, and when all have left, the
    /// flow is `closed`. A PriorityProducer is one, however many levels it has. 0: it goes on until
    /// close().
    std::uint32_t expected = 0;
    /// Producers are let in by a thread of the fan-in's own, whatever its owner does meanwhile
    /// (docs/loops.md). None: within its calls. One that comes behind the last that is expected may
    /// then learn of it by a queue that is `closed`, or `peer_lost`, from the beginning.
    std::optional<connect::AcceptorOptions> acceptor{};
};

/// A producer of a FanIn. A PriorityProducer is one.
struct FanInSource {
    std::uint64_t number = 0;  ///< 1, 2, 3 … as they have come
    std::uint32_t label = 0;   ///< its Options::ring.label; that of the queue that the item came by
    std::string peer{};        ///< "127.0.0.1:41234 (pid 4711 on host)"
    std::uint64_t items = 0;   ///< that were taken from it
};

struct FanInStats {
    std::uint64_t producers = 0;  ///< now
    std::uint64_t joined = 0;
    std::uint64_t closed = 0;  ///< have left in good order, and all of their items were taken
    std::uint64_t lost = 0;    ///< have died
    std::uint64_t items = 0;
    std::uint64_t sleeps = 0;
};

namespace detail {
/// Throws Error (invalid_argument).
void check(const FanInOptions& options);
/// Options of the queues beneath.
[[nodiscard]] Options queue_options(const FanInOptions& options);
}  // namespace detail

/// Move-only. `T`: an item type, or Bytes.
template <class T, ring::Design D = ring::design_2>
class FanIn {
  public:
    using Item = detail::Taken<T>;
    using Seen = detail::Seen<T>;
    using Watcher = std::function<void(const FanInSource& source, base::Status how)>;

    /// Waits for nobody. Throws Error (invalid_argument; permission, system: the address is in use
    /// …).
    [[nodiscard]] static FanIn listen(const connect::Address& address, FanInOptions options = {}) {
        return FanIn{std::make_unique<State>(address, std::move(options))};
    }
    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const connect::Address& address() const noexcept {
        return state_->door.listener().address();
    }

    /// `ok`; `empty`; `closed`: as many producers as were expected have come and gone, or this end
    /// was closed. A producer that leaves or dies is no end: on_leave() tells of it.
    base::Status try_dequeue(Item& item) {
        State& state = *state_;
        const base::Status status = state.find();
        if (status != base::Status::ok) return status;
        state.count(1);
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
            state.count(taken);
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
            state.count(0);
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
        state.count(1);
    }
    /// Whose the item was that was taken, or peeked at, last. Valid until the next call.
    [[nodiscard]] const FanInSource& last() const noexcept { return state_->last; }

    /// Lets in who waits outside, and looks after those who are in. Other calls do it each
    /// millisecond; a program that makes none for a while may want to. Never blocks. How many
    /// producers there are.
    std::size_t look_around() {
        state_->keep_house();
        state_->look_after(state_->active.size());
        return state_->counts.producers;
    }
    /// Producers now.
    [[nodiscard]] std::size_t producers() const noexcept { return state_->counts.producers; }
    /// Called within calls of this end for each producer that has joined (`ok`), or has left and
    /// all of whose items were taken (`closed`, `peer_lost`). It must not use this end.
    void on_change(Watcher watcher) { state_->watcher = std::move(watcher); }
    /// Takes no more producers; those that are here go on.
    void stop_accepting() {
        state_->door.require_owner("stop accepting");
        state_->door.stop_accepting();
    }
    /// Takes no more items. What is left is lost, and producers read `closed`.
    void close() { state_->close(); }

    /// From now on it belongs to the calling thread. A call in another one throws Error
    /// (invalid_argument), at the latest a millisecond behind the last one in its own.
    void adopt() noexcept { state_->door.hub().adopt(); }
    /// For a program's own loop: readable means that a try_ call may find an item, or has
    /// something to do. It stays readable until one has answered `empty`, and for
    /// Options::wait.spin behind the last item. Lives as long as this end. docs/loops.md.
    [[nodiscard]] int descriptor() {
        state_->door.require_owner("put into a loop");
        state_->is_nested = true;
        state_->busy_at = base::ticks();
        state_->door.hub().post([] {});
        return state_->door.hub().descriptor();
    }
    [[nodiscard]] FanInStats stats() const noexcept { return state_->counts; }
    /// What is listened for, and what each producer's queue is, of one of them.
    [[nodiscard]] std::string explain() const { return state_->explain(); }

  private:
    /// A producer, with one queue or one for each of its levels.
    struct Party {
        FanInSource facts;
        ring::Crew crew;
        std::uint32_t came = 0;    ///< queues, also those closed before the others came
        std::uint32_t queues = 0;  ///< that are here
        bool lost_one = false;

        [[nodiscard]] bool has_joined() const noexcept { return came >= crew.size; }
    };
    struct Source {
        Source(Consumer<T, D> end, Party& its_party)
            : consumer{std::move(end)}, party{&its_party}, label{consumer.peer_label()} {}
        Consumer<T, D> consumer;
        Party* party;
        std::uint32_t label;
        connect::Hub::Id member{};
        bool is_active = false;  ///< it would not wake us if we slept now
    };
    struct Level {
        std::vector<std::unique_ptr<Source>> sources;
        std::size_t cursor = 0;  ///< who was served last
    };

    struct State {
        State(const connect::Address& address, FanInOptions chosen)
            : options{std::move(chosen)},
              wait_policy{options.queue.wait},
              door{"a fan-in", address, detail::queue_options(options),
                   std::uint64_t{options.max_producers} * options.levels},
              levels(options.levels),
              aside_ticks{base::ticks_in(std::chrono::microseconds{5})},
              spin_ticks{base::ticks_in(wait_policy.spin)} {
            if (!options.acceptor.has_value()) return;
            door.accept_beside(
                *options.acceptor,
                [&listener = door.listener()] { return Consumer<T, D>::try_accept(listener); },
                [this](Consumer<T, D> consumer) { take(std::move(consumer)); });
        }
        State(const State&) = delete;
        State& operator=(const State&) = delete;
        ~State() {
            if (!door.is_of_this_process()) return;  // what is in the hub is in the parent's, too
            door.hub().adopt();                      // whoever ends it
            door.stop_accepting();
            for (Level& level : levels) {
                for (const auto& source : level.sources) door.hub().remove(source->member);
            }
        }

        // --- the polled path

        /// `ok`: `current` has an item in front. `empty`; `closed`.
        base::Status find() {
            if (peeked != nullptr) [[unlikely]]
                peeked = nullptr;
            if (door.is_due()) [[unlikely]] {
                keep_house();
            } else if ((++calls & 63) == 0) [[unlikely]] {
                look_after(1);
            }
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
                    left = options.burst - 1;
                    if (!source.is_active) activate(source);
                    return base::Status::ok;
                }
            }
            left = 0;
            return nothing();
        }
        void count(std::uint64_t items) {
            counts.items += items;
            FanInSource& facts = current->party->facts;
            facts.items += items;
            if (last.number != facts.number || last.label != current->label) [[unlikely]] {
                last = facts;
                last.label = current->label;
            }
            last.items = facts.items;
        }
        [[gnu::noinline]] base::Status nothing() {
            const std::uint64_t now = base::ticks();
            if (now - aside_at >= aside_ticks) {
                aside_at = now;
                look_after(1);
            }
            if (is_closed) return base::Status::closed;
            if (is_nested) keep_loop();
            return base::Status::empty;
        }

        // --- beside it

        /// By the clock: who comes, and some of those who are awake.
        [[gnu::noinline]] void keep_house() {
            if (door.look("take items")) accept();
            look_after(detail::looked_after_at_once);
        }
        /// Looks after so many of those who are awake, in turn.
        [[gnu::noinline]] void look_after(std::size_t most) {
            for (most = std::min(most, active.size()); most != 0 && !active.empty(); --most) {
                if (++aside >= active.size()) aside = 0;
                Source& source = *active[aside];
                const base::Status status = source.consumer.look_around();
                if (status != base::Status::empty) leave(source, status);
            }
        }
        void accept() {
            while (!is_closed && may_join()) {
                std::optional<Consumer<T, D>> consumer =
                    Consumer<T, D>::try_accept(door.listener());
                if (!consumer.has_value()) return;
                take(std::move(*consumer));
            }
        }
        [[nodiscard]] bool may_join() const noexcept {
            return options.expected == 0 || counts.joined < options.expected;
        }
        void take(Consumer<T, D> consumer) {
            if (is_closed || !may_join()) return consumer.close();
            Party& party = party_of(consumer);
            const std::size_t at = options.levels == 1 ? 0 : consumer.peer_label();
            auto& sources = levels[at].sources;
            sources.push_back(std::make_unique<Source>(std::move(consumer), party));
            Source& source = *sources.back();
            ++party.queues;
            source.member =
                door.hub().add(source.consumer.descriptor(), [this, &source] { activate(source); });
            activate(source);
            ++party.came;
            if (!party.has_joined()) return;
            ++counts.joined;
            ++counts.producers;
            if (!may_join()) {
                door.stop_accepting();
                dismiss([](const Party& one) { return !one.has_joined(); });
            }
            if (watcher) watcher(party.facts, base::Status::ok);
        }
        Party& party_of(const Consumer<T, D>& consumer) {
            const ring::Crew crew = consumer.peer_crew();
            for (const auto& party : parties) {
                if (crew.number != 0 && party->crew.number == crew.number && !party->has_joined()) {
                    return *party;
                }
            }
            parties.push_back(std::make_unique<Party>(
                Party{.facts = {++numbered, consumer.peer_label(), consumer.peer()},
                      .crew = crew.number == 0 ? ring::Crew{} : crew}));
            return *parties.back();
        }
        void leave(Source& source, base::Status how) {
            Party& party = *source.party;
            party.lost_one = party.lost_one || how == base::Status::peer_lost;
            remove(source);
            if (party.queues != 0) return;
            const bool had_joined = party.has_joined();
            if (!had_joined && !party.lost_one && parties.size() <= options.max_producers) return;
            const FanInSource facts = party.facts;
            how = party.lost_one ? base::Status::peer_lost : base::Status::closed;
            std::erase_if(parties, [&](const auto& one) { return one.get() == &party; });
            if (!had_joined) return;
            ++(how == base::Status::peer_lost ? counts.lost : counts.closed);
            --counts.producers;
            if (!may_join() && counts.producers == 0) is_closed = true;
            if (watcher) watcher(facts, how);
        }
        void remove(Source& source) {
            door.hub().remove(source.member);
            if (current == &source) {
                current = nullptr;
                left = 0;
            }
            if (peeked == &source) peeked = nullptr;
            --source.party->queues;
            std::erase(active, &source);
            for (Level& level : levels) {
                std::erase_if(level.sources, [&](const auto& one) { return one.get() == &source; });
            }
        }
        /// Closes the queues of the producers that `is_meant`, which are forgotten.
        template <class Which>
        void dismiss(Which&& is_meant) {
            for (Level& level : levels) {
                for (std::size_t i = level.sources.size(); i-- != 0;) {
                    Source& source = *level.sources[i];
                    if (!is_meant(*source.party)) continue;
                    source.consumer.close();
                    remove(source);
                }
            }
            std::erase_if(parties, [&](const auto& one) { return is_meant(*one); });
        }
        void activate(Source& source) {
            if (source.is_active) return;
            source.is_active = true;
            active.push_back(&source);
        }
        void close() {
            door.require_owner("close");
            is_closed = true;
            door.stop_accepting();
            dismiss([](const Party&) { return true; });
            counts.closed += std::exchange(counts.producers, 0);
        }

        // --- sleeping

        /// Asks all who are awake for a wake-up.
        void fall_asleep() {
            std::size_t stay = 0;
            for (std::size_t i = 0; i < active.size(); ++i) {
                Source& source = *active[i];
                Seen seen{};
                const base::Status status = source.consumer.peek(seen);
                if (status == base::Status::empty) {
                    source.is_active = false;
                } else {
                    active[stay++] = &source;
                }
            }
            active.resize(stay);
        }
        class Sleeper final : public base::Parker {
          public:
            explicit Sleeper(State& state) noexcept : state_{&state} {}
            void prepare() override { state_->fall_asleep(); }
            void park(std::chrono::nanoseconds limit,
                      const base::Cancellation* cancellation) override {
                ++state_->counts.sleeps;
                // One whose end has come, or whose item was seen just now, is not slept over.
                if (state_->active.empty()) {
                    state_->door.rest("wait for an item",
                                      base::Deadline::after(limit).cancelled_by(cancellation));
                }
                if (state_->door.look("wait for an item")) state_->accept();
            }
            void retract() override {}

          private:
            State* state_;
        };
        template <class Try>
        base::Status wait(Try&& try_once, const base::Deadline& deadline) {
            base::Status status = try_once();
            if (status != base::Status::empty) [[likely]]
                return status;
            Sleeper sleeper{*this};
            const base::Status waited = base::wait_until(
                [&] {
                    status = try_once();
                    return status != base::Status::empty;
                },
                deadline, wait_policy, sleeper);
            return waited == base::Status::ok ? status : waited;
        }
        /// Nothing was found, and the program may sleep in a loop of its own.
        void keep_loop() {
            const std::uint64_t now = base::ticks();
            if (counts.items != items_seen) {
                items_seen = counts.items;
                busy_at = now;
            }
            if (door.look("take items")) accept();
            if (now - busy_at >= spin_ticks) {
                fall_asleep();
                if (active.empty()) return;
            }
            door.hub().post([] {});  // the descriptor stays readable
        }

        [[nodiscard]] std::string explain() {
            std::string text = "fan-in at " + door.listener().address().to_string() + ": " +
                               std::to_string(counts.producers) + " producers of at most " +
                               std::to_string(options.max_producers) + ", " +
                               std::to_string(options.levels) + " levels, at most " +
                               std::to_string(options.burst) + " items of one in turn\n";
            for (const auto& [sources, cursor] : levels) {
                if (sources.empty()) continue;
                return text + "the queue of one of them: " + sources.front()->consumer.explain();
            }
            return text;
        }

        FanInOptions options;
        base::WaitPolicy wait_policy;
        detail::Door door;
        std::vector<Level> levels;
        std::vector<std::unique_ptr<Party>> parties;
        std::uint64_t numbered = 0;
        Watcher watcher{};
        std::uint64_t aside_ticks;
        std::uint64_t spin_ticks;

        Source* current = nullptr;  ///< who is served
        std::size_t current_level = 0;
        std::uint32_t left = 0;  ///< items that it may have taken before the next one's turn
        Source* peeked = nullptr;
        std::uint64_t calls = 0;
        std::uint64_t aside_at = 0;
        FanInSource last{};

        std::vector<Source*> active;
        std::size_t aside = 0;  ///< in `active`
        bool is_closed = false;
        bool is_nested = false;
        std::uint64_t busy_at = 0;
        std::uint64_t items_seen = 0;
        FanInStats counts;
    };

    explicit FanIn(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
