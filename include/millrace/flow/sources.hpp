// The producers of a structure that takes items of many: how they come and leave, and how it sleeps
// until one of them has something. FanIn and Merge are made of it; which item is next, each of them
// says for itself. Programs use its options, and what it tells of producers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/door.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/with_design.hpp"
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
    /// (docs/loops.md). None: within its calls. One that comes after the last that is expected may
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
void check(const char* whose, const FanInOptions& options);
/// Options of the queues beneath. Throws Error as check.
[[nodiscard]] Options queue_options(const char* whose, const FanInOptions& options);

/// `Owner` derives from it, and has, for calls from here:
///   came(Source&), goes(Source&)   one more, and one that is about to be destroyed
///
///   may_sleep()                    nothing that is awake has what it could hand out
///
///   rests()                        it is about to sleep
///
///   nap()                          not required: may_sleep() says no, and a wait is to go on
///
/// `End`: what it has of each producer, a Consumer or what has the same calls. `Mark`: what the
/// owner notes of each source. One thread at a time: that of the door.
template <class Owner, class End, class Mark>
struct Sources {
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
        Source(End end, Party& its_party)
            : consumer{std::move(end)}, party{&its_party}, label{consumer.peer_label()} {}
        End consumer;
        Party* party;
        std::uint32_t label;
        connect::Hub::Id member{};
        bool is_active = false;  ///< it would not wake us if we slept now
        Mark mark{};
    };

    /// Any thread that accepts.
    using LetIn = std::function<std::optional<End>(Listener& listener)>;

    /// `whose`: "a fan-in". Throws Error.
    Sources(const char* whose, const connect::Address& address, FanInOptions chosen)
        : Sources{std::move(chosen),
                  [&](const FanInOptions& asked) {
                      return Door{whose, address, queue_options(whose, asked),
                                  std::uint64_t{asked.max_producers} * asked.levels};
                  },
                  [](Listener& listener) { return End::try_accept(listener); }} {}
    /// `make_door(const FanInOptions&)`: where they come in.
    template <class MakeDoor>
    Sources(FanInOptions chosen, MakeDoor&& make_door, LetIn let_them_in)
        : options{std::move(chosen)},
          wait_policy{options.queue.wait},
          door{make_door(options)},
          let_in{std::move(let_them_in)},
          aside_ticks{base::ticks_in(std::chrono::microseconds{5})},
          spin_ticks{base::ticks_in(wait_policy.spin)} {
        if (!options.acceptor.has_value()) return;
        door.accept_beside(
            *options.acceptor, [this] { return let_in(door.listener()); },
            [this](End consumer) { take(std::move(consumer)); });
    }
    Sources(const Sources&) = delete;
    Sources& operator=(const Sources&) = delete;
    ~Sources() {
        if (!door.is_of_this_process()) return;  // what is in the hub is in the parent's, too
        door.hub().adopt();                      // by the thread that ends it
        door.stop_accepting();
        for (const auto& source : sources) door.hub().remove(source->member);
    }

    [[nodiscard]] Owner& owner() noexcept { return static_cast<Owner&>(*this); }

    // --- within calls that take items

    /// First of each of them: producers that come, or are gone, by the clock.
    void look_now_and_then() {
        if (door.is_due()) [[unlikely]] {
            keep_house();
        } else if ((++calls & 63) == 0) [[unlikely]] {
            look_after(1);
        }
    }
    /// What the queue of one of them is.
    [[nodiscard]] std::string explain_queue() const {
        if (sources.empty()) return {};
        return "the queue of one of them: " + sources.front()->consumer.explain();
    }
    /// So many items of that one were handed out.
    void count(const Source& source, std::uint64_t items) {
        counts.items += items;
        FanInSource& facts = source.party->facts;
        facts.items += items;
        if (last.number != facts.number || last.label != source.label) [[unlikely]] {
            last = facts;
            last.label = source.label;
        }
        last.items = facts.items;
    }
    /// Where there is no item: `empty`; `closed`.
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

    // --- producers that come and leave

    /// By the clock: those that come, and some of those that are awake.
    [[gnu::noinline]] void keep_house() {
        if (door.look("take items")) accept();
        look_after(looked_after_at_once);
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
            std::optional<End> consumer = let_in(door.listener());
            if (!consumer.has_value()) return;
            take(std::move(*consumer));
        }
    }
    [[nodiscard]] bool may_join() const noexcept {
        return options.expected == 0 || counts.joined < options.expected;
    }
    void take(End consumer) {
        if (is_closed || !may_join()) return consumer.close();
        Party& party = party_of(consumer);
        sources.push_back(std::make_unique<Source>(std::move(consumer), party));
        Source& source = *sources.back();
        owner().came(source);
        ++party.queues;
        watch(source);
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
    /// Its descriptor wakes us.
    void watch(Source& source) {
        source.member =
            door.hub().add(source.consumer.descriptor(), [this, &source] { activate(source); });
    }
    Party& party_of(const End& consumer) {
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
        owner().goes(source);
        --source.party->queues;
        std::erase(active, &source);
        std::erase_if(sources, [&](const auto& one) { return one.get() == &source; });
    }
    /// Closes the queues of the producers that `is_meant`, which are forgotten.
    template <class Which>
    void dismiss(Which&& is_meant) {
        for (std::size_t i = sources.size(); i-- != 0;) {
            Source& source = *sources[i];
            if (!is_meant(*source.party)) continue;
            source.consumer.close();
            remove(source);
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

    /// The descriptor of all of them together.
    [[nodiscard]] int descriptor() {
        door.require_owner("put into a loop");
        is_nested = true;
        busy_at = base::ticks();
        door.hub().post([] {});
        return door.hub().descriptor();
    }
    /// Asks all who are awake for a wake-up.
    void fall_asleep() {
        std::size_t stay = 0;
        for (std::size_t i = 0; i < active.size(); ++i) {
            Source& source = *active[i];
            typename End::Seen seen{};
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
        explicit Sleeper(Sources& sources) noexcept : sources_{&sources} {}
        void prepare() override { sources_->fall_asleep(); }
        void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
            ++sources_->counts.sleeps;
            if (sources_->owner().may_sleep()) {
                sources_->owner().rests();
                sources_->door.rest("wait for an item",
                                    base::Deadline::after(limit).cancelled_by(cancellation));
            } else if constexpr (requires(Owner& owner) { owner.nap(); }) {
                sources_->owner().nap();
            }
            if (sources_->door.look("wait for an item")) sources_->accept();
        }
        void retract() override {}

      private:
        Sources* sources_;
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
            if (owner().may_sleep()) return owner().rests();
        }
        door.hub().post([] {});  // the descriptor stays readable
    }

    FanInOptions options;
    base::WaitPolicy wait_policy;
    Door door;
    LetIn let_in;
    std::vector<std::unique_ptr<Source>> sources;
    std::vector<std::unique_ptr<Party>> parties;
    std::uint64_t numbered = 0;
    std::function<void(const FanInSource& source, base::Status how)> watcher{};
    std::uint64_t aside_ticks;
    std::uint64_t spin_ticks;

    std::uint64_t calls = 0;
    std::uint64_t aside_at = 0;
    FanInSource last{};  ///< whose the item was that was handed out last

    std::vector<Source*> active;
    std::size_t aside = 0;  ///< in `active`
    bool is_closed = false;
    bool is_nested = false;
    std::uint64_t busy_at = 0;
    std::uint64_t items_seen = 0;
    FanInStats counts;
};

/// What a structure of many producers has, whichever item it hands out next. `Structure` derives
/// from it, and holds a Sources by its `state_`.
template <class Structure>
class OfManyProducers {
  public:
    using Watcher = std::function<void(const FanInSource& source, base::Status how)>;

    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const connect::Address& address() const noexcept {
        return state().door.listener().address();
    }
    /// Whose the item was that was taken, or peeked at, last. Valid until the next call.
    [[nodiscard]] const FanInSource& last() const noexcept { return state().last; }

    /// Lets in the producers that wait outside, and looks after those that are in. Other calls do
    /// it each millisecond; a program that makes none for a while may want to. Never blocks. How
    /// many producers there are.
    std::size_t look_around() {
        state().keep_house();
        state().look_after(state().active.size());
        return producers();
    }
    /// Producers now.
    [[nodiscard]] std::size_t producers() const noexcept { return state().counts.producers; }
    /// Called within calls of this end for each producer that has joined (`ok`), or has left and
    /// all of whose items were taken (`closed`, `peer_lost`). It must not use this end.
    void on_change(Watcher watcher) { state().watcher = std::move(watcher); }
    /// Takes no more producers; those that are here go on.
    void stop_accepting() {
        state().door.require_owner("stop accepting");
        state().door.stop_accepting();
    }
    /// Takes no more items. What is left is lost, and producers read `closed`.
    void close() { state().close(); }

    /// From now on it belongs to the calling thread. A call in another one throws Error
    /// (invalid_argument), at the latest a millisecond after the last one in its own.
    void adopt() noexcept { state().door.hub().adopt(); }
    /// For a program's own loop: readable means that a try_ call may find an item, or has
    /// something to do. It stays readable until one has answered `empty`, and for
    /// Options::wait.spin after the last item. Lives as long as this end. docs/loops.md.
    [[nodiscard]] int descriptor() { return state().descriptor(); }

  protected:
    OfManyProducers() = default;

  private:
    [[nodiscard]] auto& state() noexcept { return *static_cast<Structure&>(*this).state_; }
    [[nodiscard]] const auto& state() const noexcept {
        return *static_cast<const Structure&>(*this).state_;
    }
};

}  // namespace detail
}  // namespace millrace::flow
