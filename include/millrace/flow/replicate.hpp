// One producer, many consumers, each of which gets every item (work 000, section 3.4: multi-casting
// information services, log replication).
//
//     auto log = flow::Replicator<Entry>::connect({"host-a:7000", "host-b:7000"}, {}, deadline);
//     if (log.enqueue(entry, deadline) != Status::ok) …
//     if (log.flush(deadline) != Status::ok) …          // ok: it lies in everybody's memory
//
//     auto news = flow::Replicator<Quote>::listen(":7000", {.lagging = flow::Lagging::leaves});
//     if (news.enqueue(quote, deadline) != Status::ok) …  // to all who have connected by now
//
// An item goes to all or to nobody: what one consumer sees of the sequence, from when it joined to
// when it left, all others who are there see, too. Each has a queue of its own; one that lags holds
// up all, or leaves. One thread at a time.
//
// With flow::Filtered as item type each consumer may ask for a filter of its own (filter.hpp). One
// that leaves an item out has had it: it needs no room for it, and counts towards the quorum as
// before. One whose filter throws leaves, by WhenThrown::stop, as if it had died; by skip it stays,
// and lacks the item. What all others see is as above.
//
// Calls look each millisecond, by the clock, for consumers that have come or died: a producer that
// sends seldom calls look_around() between its items. A consumer is one of them once its setup is
// over; until then it holds up nobody.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/door.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/filtered_producer.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/room_waiter.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// What becomes of a consumer whose ring is full.
enum class Lagging : std::uint8_t {
    holds_up,  ///< all wait for it: `full`
    leaves     ///< it is waited for until ReplicatorOptions::patience is over, then dropped
};

struct ReplicatorOptions {
    /// Of each consumer's queue, and of this end's waits.
    Options queue{};
    Lagging lagging = Lagging::holds_up;
    std::chrono::nanoseconds patience = std::chrono::milliseconds{100};
    /// With fewer consumers than that, nothing is sent: `peer_lost`. Not given: 1 for connect(), 0
    /// for listen(), where items that nobody waits for are nobody's.
    std::optional<std::uint32_t> quorum{};
    /// listen(): consumers at a time.
    std::uint32_t max_consumers = 1024;
    /// listen(): consumers are let in by a thread of the replicator's own, whatever its owner does
    /// meanwhile (docs/loops.md); they get items from its next call on. None: within its calls.
    std::optional<connect::AcceptorOptions> acceptor{};
};

/// A consumer of a Replicator.
struct Replica {
    std::uint64_t number = 0;  ///< 1, 2, 3 … as they have joined
    std::uint32_t label = 0;   ///< its Options::ring.label
    std::string peer{};
    std::uint64_t from = 0;  ///< items that were sent before it joined
};

struct ReplicatorStats {
    std::uint64_t consumers = 0;  ///< now
    std::uint64_t joined = 0;
    std::uint64_t left = 0;     ///< closed, or died
    std::uint64_t dropped = 0;  ///< of these, because they lagged
    std::uint64_t items = 0;    ///< that were sent, to however many
    std::uint64_t full = 0;     ///< tries that found a ring full
};

/// Move-only. `T`: an item type, or Bytes.
template <class T, ring::Design D = ring::design_2>
class Replicator {
  public:
    using Item = detail::Given<T>;
    using Watcher = std::function<void(const Replica& replica, base::Status how)>;

    /// Connects to consumers (Consumer or FanIn) that listen. Throws Error as Producer::connect.
    [[nodiscard]] static Replicator connect(std::span<const connect::Address> addresses,
                                            ReplicatorOptions options,
                                            const base::Deadline& deadline) {
        if (!options.quorum.has_value()) options.quorum = 1;
        auto state = std::make_unique<State>(std::move(options));
        for (const connect::Address& address : addresses) {
            state->join(Producer<T, D>::connect(address, detail::without_spin(state->options.queue),
                                                deadline));
        }
        return Replicator{std::move(state)};
    }
    [[nodiscard]] static Replicator connect(std::initializer_list<connect::Address> addresses,
                                            ReplicatorOptions options,
                                            const base::Deadline& deadline) {
        return connect(std::span{addresses.begin(), addresses.size()}, std::move(options),
                       deadline);
    }
    /// Of queues that are connected already, each by a Connector, say.
    [[nodiscard]] static Replicator of(std::vector<Producer<T, D>> ends,
                                       ReplicatorOptions options = {}) {
        if (!options.quorum.has_value()) options.quorum = 1;
        auto state = std::make_unique<State>(std::move(options));
        for (Producer<T, D>& end : ends) state->join(std::move(end));
        return Replicator{std::move(state)};
    }
    /// Consumers connect to it, and leave, at any time. Throws Error (invalid_argument; permission,
    /// system: the address is in use …).
    [[nodiscard]] static Replicator listen(const connect::Address& address,
                                           ReplicatorOptions options = {}) {
        return Replicator{std::make_unique<State>(address, std::move(options))};
    }
    /// Of one that listens.
    [[nodiscard]] const connect::Address& address() const noexcept {
        return state_->door.listener().address();
    }

    /// `ok`: it is on its way to all who are there, and they are no fewer than the quorum. They
    /// were there when they were looked after last: a millisecond ago at most, with more than 32
    /// consumers one more for each 32. Whether those who are there now have it, flush() says.
    /// `full`: one of them has no room, and nobody got it; `peer_lost`: they are fewer than the
    /// quorum, and nobody got it, or, if one was lost while it was sent, those who remain;
    /// `too_large` (Bytes only); `closed`: by this end.
    base::Status try_enqueue(Item item) {
        State& state = *state_;
        if (state.door.is_due()) [[unlikely]]
            state.keep_house();
        return state.send(item);
    }
    /// The same, waiting for room. Also `timed_out`, `cancelled`.
    base::Status enqueue(Item item, const base::Deadline& deadline) {
        State& state = *state_;
        while (true) {
            const base::Status status = try_enqueue(item);
            if (status != base::Status::full) [[likely]]
                return status;
            // The one that is full is the one to be waited for.
            const base::Status waited = state.wait_for_room(deadline);
            if (waited != base::Status::ok) return waited;
        }
    }

    /// Items from the front of `items`, as many as have room with all who are there, sent together.
    /// As so many try_enqueue() otherwise: each item goes to all or to nobody.
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const T> items)
        requires(!std::is_same_v<T, Bytes> && !detail::is_filtered<T>)
    {
        State& state = *state_;
        if (state.door.is_due()) [[unlikely]]
            state.keep_house();
        return state.send_batch(items);
    }
    /// For a program's own loop, as Producer's: readable until a try_ call has answered `full`, and
    /// again when it is to be made once more, or somebody has come; look_around() takes them in.
    [[nodiscard]] int descriptor() {
        state_->door.require_owner("put into a loop");
        detail::Door& door = state_->door;
        return state_->room.descriptor(door.has_listener() ? door.hub().descriptor() : -1);
    }

    /// Until every item is in the ring of every consumer, and each was found alive after its last.
    /// As Producer::flush: the first answer that is not `ok`; a consumer that is gone meanwhile is
    /// none of it; `peer_lost`: those who remain are fewer than the quorum.
    base::Status flush(const base::Deadline& deadline) {
        while (true) {
            const base::Deadline slice = state_->slice_of(deadline);
            const base::Status status = state_->each([&](auto& end) {
                const base::Status flushed = end.flush(slice);
                return flushed == base::Status::ok ? State::find_alive(end, slice) : flushed;
            });
            if (status != base::Status::timed_out || deadline.expired()) return status;
            state_->keep_house();
        }
    }
    /// As Producer's (docs/closing.md), of all: the first answer that is not `ok`.
    base::Status close(const base::Deadline& deadline) {
        state_->door.require_owner("close");
        state_->is_closed = true;
        state_->door.stop_accepting();
        return state_->each([&](auto& end) { return end.close(deadline); });
    }
    /// Lets in who waits outside, and looks after those who are in. Calls that send do it each
    /// millisecond; a producer that pauses may want to. Never blocks. How many consumers there are.
    std::size_t look_around() {
        state_->keep_house();
        state_->look_after(state_->replicas.size());
        return state_->replicas.size();
    }
    [[nodiscard]] std::size_t consumers() const noexcept { return state_->replicas.size(); }
    /// Called within calls of this end for each consumer that has joined (`ok`), has left
    /// (`closed`, `peer_lost`), or was dropped as it lagged (`full`). It must not use this end.
    void on_change(Watcher watcher) { state_->watcher = std::move(watcher); }
    /// From now on it belongs to the calling thread. Where it listens, a call in another one throws
    /// Error (invalid_argument), at the latest a millisecond after the last one in its own.
    void adopt() noexcept { state_->door.hub().adopt(); }
    [[nodiscard]] ReplicatorStats stats() const noexcept { return state_->counts; }

  private:
    struct Member {
        Member(Producer<T, D> end, Replica its_facts)
            : producer{std::move(end)}, facts{std::move(its_facts)} {}
        Producer<T, D> producer;
        Replica facts;
        std::optional<base::Clock::time_point> full_since{};
        /// Of an unfiltered item.
        std::conditional_t<std::is_same_v<T, Bytes>, std::span<std::byte>, T*> place{};
    };

    struct State {
        explicit State(ReplicatorOptions chosen)
            : options{std::move(chosen)},
              quorum{options.quorum.value_or(0)},
              room{options.queue.wait} {}
        State(const connect::Address& address, ReplicatorOptions chosen)
            : options{std::move(chosen)},
              door{"a replicator", address, detail::without_spin(options.queue),
                   options.max_consumers},
              quorum{options.quorum.value_or(0)},
              room{options.queue.wait} {
            if (!options.acceptor.has_value()) return;
            door.accept_beside(
                *options.acceptor,
                [&listener = door.listener()] { return Producer<T, D>::try_accept(listener); },
                [this](Producer<T, D> producer) { arriving.push_back(std::move(producer)); });
        }
        State(const State&) = delete;
        State& operator=(const State&) = delete;
        ~State() {
            if (!door.is_of_this_process()) return;
            door.hub().adopt();  // by the thread that ends it
            door.stop_accepting();
        }

        base::Status send(Item item) {
            const base::Status found = find_room(item);
            if (found != base::Status::ok) return found;
            for (std::size_t i = 0; i < replicas.size();) {
                const base::Status status = commit(*replicas[i], item);
                if (status == base::Status::ok) [[likely]] {
                    ++i;
                } else {
                    leave(i, status);
                }
            }
            ++counts.items;
            return replicas.size() < quorum ? base::Status::peer_lost : base::Status::ok;
        }
        BatchResult send_batch(std::span<const T> items) {
            BatchResult result;
            while (result.count != items.size() && result.status == base::Status::ok) {
                result.status = find_room(items[result.count]);
                if (result.status != base::Status::ok) break;
                std::uint64_t count = items.size() - result.count;
                for (const auto& member : replicas) {
                    count = std::min(count, member->producer.room());
                }
                const auto batch = items.subspan(result.count, count);
                for (std::size_t i = 0; i < replicas.size();) {
                    const base::Status status =
                        replicas[i]->producer.try_enqueue_batch(batch).status;
                    if (status == base::Status::ok) [[likely]] {
                        ++i;
                    } else {
                        leave(i, status);
                    }
                }
                counts.items += count;
                result.count += count;
                if (replicas.size() < quorum) result.status = base::Status::peer_lost;
            }
            return result;
        }
        base::Status find_room(Item item) {
            if (is_closed) return base::Status::closed;
            // First there must be room for it everywhere. A claim that is not used does no harm,
            // and each is a call in which a queue moves on, be another one full or not.
            bool has_room = true;
            for (std::size_t i = 0; i < replicas.size();) {
                Member& member = *replicas[i];
                const base::Status status = claim(member, item);
                if (status == base::Status::ok) [[likely]] {
                    member.full_since.reset();
                } else if (status == base::Status::too_large) {
                    return status;
                } else if (status != base::Status::full || is_late(member)) {
                    leave(i, status);
                    continue;
                } else if (std::exchange(has_room, false)) {
                    ++counts.full;
                    fullest = i;
                    if constexpr (std::is_same_v<T, Bytes>) awaited_bytes = item.size();
                }
                ++i;
            }
            if (replicas.size() < quorum) return base::Status::peer_lost;
            if (!has_room && room.has_descriptor()) [[unlikely]]
                await_room();
            return has_room ? base::Status::ok : base::Status::full;
        }
        [[gnu::cold]] void await_room() {
            Member& member = *replicas[fullest];
            room.watch_only(member.producer.descriptor());
            if (options.lagging == Lagging::leaves) {
                room.wake_at(*member.full_since + options.patience);
            }
        }
        static base::Status claim(Member& member, Item item) noexcept {
            if constexpr (detail::is_filtered<T>) {
                return member.producer.prepare(item);
            } else if constexpr (std::is_same_v<T, Bytes>) {
                return member.producer.claim(item.size(), member.place);
            } else {
                return member.producer.claim(member.place);
            }
        }
        static base::Status commit(Member& member, [[maybe_unused]] Item item) noexcept {
            if constexpr (detail::is_filtered<T>) {
                return member.producer.settle();
            } else {
                if constexpr (std::is_same_v<T, Bytes>) {
                    if (!item.empty()) std::memcpy(member.place.data(), item.data(), item.size());
                } else {
                    std::memcpy(member.place, &item, sizeof(T));
                }
                return member.producer.commit();
            }
        }
        bool is_late(Member& member) {
            if (options.lagging == Lagging::holds_up) return false;
            const auto now = base::Clock::now();
            if (!member.full_since.has_value()) member.full_since = now;
            return now - *member.full_since >= options.patience;
        }
        base::Status wait_for_room(const base::Deadline& deadline) {
            Member& member = *replicas[fullest];
            // In slices, so that those who come meanwhile are let in.
            base::Deadline until = slice_of(deadline);
            if (options.lagging == Lagging::leaves) {
                until = until.no_later_than(*member.full_since + options.patience);
            }
            base::Status status = base::Status::ok;
            if constexpr (detail::is_filtered<T>) {
                status = member.producer.wait_for_room(until);
            } else if constexpr (std::is_same_v<T, Bytes>) {
                status = member.producer.claim(awaited_bytes, member.place, until);
            } else {
                status = member.producer.claim(member.place, until);
            }
            // Whatever else it is, the next try finds out.
            const bool is_over = status == base::Status::cancelled ||
                                 (status == base::Status::timed_out && deadline.expired());
            return is_over ? status : base::Status::ok;
        }

        void join(Producer<T, D> producer) {
            ++counts.joined;
            ++counts.consumers;
            Replica facts{counts.joined, producer.peer_label(), producer.peer(), counts.items};
            replicas.push_back(std::make_unique<Member>(std::move(producer), std::move(facts)));
            if (watcher) watcher(replicas.back()->facts, base::Status::ok);
        }
        void leave(std::size_t at, base::Status how) {
            const std::unique_ptr<Member> member = std::move(replicas[at]);
            if (room.is_used()) room.forget(member->producer.descriptor());
            replicas.erase(replicas.begin() + static_cast<std::ptrdiff_t>(at));
            --counts.consumers;
            ++counts.left;
            if (how == base::Status::full) ++counts.dropped;
            if (watcher) watcher(member->facts, how);
        }
        [[nodiscard]] static base::Deadline slice_of(const base::Deadline& deadline) {
            return deadline.no_later_than(base::Clock::now() + base::Parker::slice);
        }
        /// By the clock: those that come, and some of those that are here.
        [[gnu::noinline]] void keep_house() {
            const bool somebody_came = door.look("send an item");
            if (is_closed) return;
            while (somebody_came) {
                std::optional<Producer<T, D>> producer =
                    Producer<T, D>::try_accept(door.listener());
                if (!producer.has_value()) break;
                arriving.push_back(std::move(*producer));
            }
            meet_newcomers();
            // Their last word comes by no event of the hub's.
            if (room.has_descriptor() && !arriving.empty()) {
                (void)door.hub().after(std::chrono::milliseconds{1}, [] {});
            }
            look_after(detail::looked_after_at_once);
        }
        void meet_newcomers() {
            for (std::size_t i = 0; i < arriving.size();) {
                const base::Status status = arriving[i].look_around();
                if (status == base::Status::full) {
                    ++i;
                    continue;
                }
                Producer<T, D> producer = std::move(arriving[i]);
                arriving.erase(arriving.begin() + static_cast<std::ptrdiff_t>(i));
                if (status == base::Status::ok) {
                    join(std::move(producer));
                } else {
                    detail::note_lost_newcomer(producer.peer(), producer.failure());
                }
            }
        }
        /// Looks after so many of those who are here, in turn.
        void look_after(std::size_t most) {
            for (most = std::min(most, replicas.size()); most != 0 && !replicas.empty(); --most) {
                if (++aside >= replicas.size()) aside = 0;
                const base::Status status = replicas[aside]->producer.look_around();
                if (status != base::Status::ok && status != base::Status::full) {
                    leave(aside, status);
                }
            }
        }
        /// `ok`: it is, by a look from now on. Waits for a mover that is at work.
        static base::Status find_alive(Producer<T, D>& producer, const base::Deadline& deadline) {
            base::Status found = base::Status::ok;
            base::NapParker nap;
            const base::Status waited = base::wait_until(
                [&] {
                    found = producer.look_around();
                    return found != base::Status::full;
                },
                deadline, base::WaitPolicy{}, nap);
            return waited == base::Status::ok ? found : waited;
        }
        template <class Call>
        base::Status each(Call&& call) {
            base::Status first = base::Status::ok;
            for (std::size_t i = 0; i < replicas.size();) {
                const base::Status status = call(replicas[i]->producer);
                if (status == base::Status::closed || status == base::Status::peer_lost) {
                    leave(i, status);
                    continue;
                }
                if (first == base::Status::ok) first = status;
                ++i;
            }
            return first == base::Status::ok && replicas.size() < quorum ? base::Status::peer_lost
                                                                         : first;
        }

        ReplicatorOptions options;
        detail::Door door{};
        std::size_t quorum;
        detail::RoomWaiter room;
        std::vector<std::unique_ptr<Member>> replicas;
        std::vector<Producer<T, D>> arriving;  ///< their setup is not over
        std::size_t aside = 0;          ///< in `replicas`: the one that was looked after last
        std::size_t fullest = 0;        ///< the one that had no room
        std::size_t awaited_bytes = 0;  ///< … for so many
        Watcher watcher{};
        bool is_closed = false;
        ReplicatorStats counts;
    };

    explicit Replicator(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
