// One producer, many consumers (work 000, section 3.4: a 1-N flow structure), each of which gets a
// part of the items.
//
//     auto parts = flow::FanOut<Item>::connect({"unix:/run/a", "unix:/run/b"}, {}, deadline);
//     status = parts.enqueue(item, deadline);                  // to the one whose turn it is
//     status = parts.enqueue_keyed(item.key, item, deadline);  // to the same one for a key
//
// Several FanOuts and several FanIns make an M-N structure, a shuffle: each of M producers has a
// FanOut to the N consumers, each of which has a FanIn, and partition_of() says the same to all.
//
//   P ──┬─▶ C
//   P ──┼─▶ C      consumer:  FanIn<Row>::listen(my_address, {.expected = M})
//   P ──┴─▶ C      producer:  FanOut<Row>::connect(addresses, {}, deadline), enqueue_keyed()
//
// Every consumer has a queue of its own: a slow or dead one holds up only what has to go to it. To
// give each consumer every item, see replicate.hpp. One thread at a time.
//
// With flow::Filtered as item type each consumer may ask for a filter of its own (filter.hpp). An
// item that names nobody goes to a consumer whose filter takes it, and to nobody if none does; one
// that is sent to a given consumer, or to that of its key, is left out if that one's filter does
// so. Both are answered by `ok`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/door.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/filtered_producer.hpp"
#include "millrace/flow/key_hash.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/room_waiter.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// Which of `parts` (1 or more) a key belongs to: the same in every process and release, and about
/// as many keys in each, however they are numbered.
[[nodiscard]] constexpr std::size_t partition_of(std::uint64_t key, std::size_t parts) noexcept {
    // The high part of a product: no division.
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::size_t>(Wide{detail::mixed(key)} * parts >> 64);
}

/// Whom an item goes to that names nobody.
enum class Routing : std::uint8_t {
    in_turn,          ///< the next one, and it is waited for: all get equally many
    whoever_has_room  ///< the next one that has room: a faster one gets more
};

struct FanOutOptions {
    /// Of each consumer's queue, and of this end's waits.
    Options queue{};
    Routing routing = Routing::whoever_has_room;
};

namespace detail {

[[noreturn]] void no_consumers();

}  // namespace detail

/// Move-only. `T`: an item type, or Bytes.
template <class T, ring::Design D = ring::design_2>
class FanOut {
  public:
    using Item = detail::Given<T>;

    /// Connects to consumers (Consumer or FanIn) that listen, in this order. Throws Error as
    /// Producer::connect; invalid_argument: no address.
    [[nodiscard]] static FanOut connect(std::span<const connect::Address> addresses,
                                        FanOutOptions options, const base::Deadline& deadline) {
        if (addresses.empty()) detail::no_consumers();
        FanOut made{std::move(options)};
        for (const connect::Address& address : addresses) {
            made.state_->ends.emplace_back(Producer<T, D>::connect(
                address, detail::without_spin(made.state_->options.queue), deadline));
        }
        return made;
    }
    [[nodiscard]] static FanOut connect(std::initializer_list<connect::Address> addresses,
                                        FanOutOptions options, const base::Deadline& deadline) {
        return connect(std::span{addresses.begin(), addresses.size()}, std::move(options),
                       deadline);
    }

    /// Of queues that are connected already, each by a Connector, say. Throws Error
    /// (invalid_argument: there is none).
    [[nodiscard]] static FanOut of(std::vector<Producer<T, D>> ends, FanOutOptions options = {}) {
        if (ends.empty()) detail::no_consumers();
        FanOut made{std::move(options)};
        for (Producer<T, D>& end : ends) made.state_->ends.emplace_back(std::move(end));
        return made;
    }

    /// Consumers, dead ones included.
    [[nodiscard]] std::size_t size() const noexcept { return state_->ends.size(); }
    /// The queue to one of them: its stats(), explain(), peer() and failure(), claim and commit.
    [[nodiscard]] Producer<T, D>& to(std::size_t consumer) noexcept {
        return state_->ends[consumer].producer;
    }
    /// The last item that a filter did not leave out was sent to this one.
    [[nodiscard]] std::size_t last() const noexcept { return state_->cursor; }

    /// To whom FanOutOptions::routing says; consumers that are gone are passed over. `full`: there
    /// is no room now; `closed`, `peer_lost`: nobody is left, as the last one said.
    base::Status try_enqueue(Item item) { return state_->route(item); }
    /// The same, waiting for room. Also `timed_out`, `cancelled`.
    base::Status enqueue(Item item, const base::Deadline& deadline) {
        State& state = *state_;
        base::Status status = state.route(item);
        if (status != base::Status::full) [[likely]]
            return status;
        while (status == base::Status::full && state.options.routing == Routing::in_turn) {
            status = enqueue_to(state.turn_of, item, deadline);
            if (status != base::Status::closed && status != base::Status::peer_lost) return status;
            // The one that it waited for is gone: it is the next one's turn.
            state.leave(state.turn_of, status);
            status = state.route(item);
        }
        if (status != base::Status::full) return status;
        state.await_room();
        const base::Status waited = state.waiter.wait(
            [&] {
                status = state.route(item);
                return status != base::Status::full;
            },
            deadline);
        return waited == base::Status::ok ? status : waited;
    }
    /// To one of them. As Producer's calls of that name.
    base::Status try_enqueue_to(std::size_t consumer, Item item) {
        bool is_laid = true;
        const base::Status status = State::put(to(consumer), item, is_laid);
        if (status == base::Status::ok && is_laid) state_->cursor = consumer;
        if (status == base::Status::full && state_->waiter.has_descriptor()) [[unlikely]]
            state_->waiter.watch_only(to(consumer).descriptor());
        return status;
    }
    base::Status enqueue_to(std::size_t consumer, Item item, const base::Deadline& deadline) {
        bool is_laid = true;
        const base::Status status = State::put(to(consumer), item, is_laid, deadline);
        if (status == base::Status::ok && is_laid) state_->cursor = consumer;
        return status;
    }
    /// To the one that `key` belongs to, see partition_of(). If that is gone, so are its items:
    /// `closed`, `peer_lost`, and what becomes of that part is for the program to say.
    base::Status try_enqueue_keyed(std::uint64_t key, Item item) {
        return try_enqueue_to(partition_of(key, size()), item);
    }
    base::Status enqueue_keyed(std::uint64_t key, Item item, const base::Deadline& deadline) {
        return enqueue_to(partition_of(key, size()), item, deadline);
    }

    /// For a program's own loop, as Producer's: readable until a try_ call has answered `full`, and
    /// again when that one is to be made once more.
    [[nodiscard]] int descriptor() { return state_->waiter.descriptor(); }

    /// Looks after the consumers, by a system call for each: calls that send do it now and then, by
    /// queue; a producer that pauses may want to. Never blocks. How many are there.
    std::size_t look_around() {
        std::size_t there = 0;
        for (std::size_t at = 0; at != state_->ends.size(); ++at) {
            if (state_->ends[at].is_gone) continue;
            const base::Status status = to(at).look_around();
            if (status == base::Status::closed || status == base::Status::peer_lost) {
                state_->leave(at, status);
            } else {
                ++there;
            }
        }
        return there;
    }
    /// As Producer::flush and close (docs/closing.md), for all consumers that are there: the first
    /// answer that is not `ok` of any, after all were tried.
    base::Status flush(const base::Deadline& deadline) {
        return state_->each([&](auto& end) { return end.flush(deadline); });
    }
    base::Status close(const base::Deadline& deadline) {
        state_->is_closing = true;
        return state_->each([&](auto& end) { return end.close(deadline); });
    }

  private:
    struct End {
        explicit End(Producer<T, D> made) : producer{std::move(made)} {}
        Producer<T, D> producer;
        bool is_gone = false;  ///< its consumer is, or it was closed
    };
    struct State {
        explicit State(FanOutOptions chosen)
            : options{std::move(chosen)}, waiter{options.queue.wait} {}

        base::Status route(Item item) {
            if (is_closing) [[unlikely]]
                return base::Status::closed;
            const std::size_t count = ends.size();
            bool is_full = false;
            bool is_unwanted = false;
            [[maybe_unused]] const Producer<T, D>* unwilling = nullptr;
            for (std::size_t i = 0; i != count; ++i) {
                std::size_t at = cursor + 1 + i;
                if (at >= count) at -= count;
                if (ends[at].is_gone) [[unlikely]]
                    continue;
                bool is_laid = true;
                if constexpr (detail::is_filtered<T>) {
                    // A consumer that asks as the one before would leave it out as well.
                    if (unwilling != nullptr && unwilling->is_asked_as(ends[at].producer)) continue;
                }
                const base::Status status = put(ends[at].producer, item, is_laid);
                if constexpr (detail::is_filtered<T>) {
                    if (status == base::Status::ok && !is_laid) {
                        is_unwanted = true;
                        unwilling = &ends[at].producer;
                        continue;
                    }
                }
                if (status == base::Status::ok) [[likely]] {
                    cursor = at;
                    return status;
                }
                if (status == base::Status::full) {
                    is_full = true;
                    turn_of = at;
                    if (options.routing == Routing::in_turn) break;
                } else if (status == base::Status::too_large) {
                    return status;
                } else {
                    leave(at, status);
                }
            }
            if (is_full && waiter.has_descriptor()) [[unlikely]]
                await_room();
            return is_full ? base::Status::full : is_unwanted ? base::Status::ok : why_last;
        }
        /// `is_laid`: true before; false if a filter has left out what was answered by `ok`.
        static base::Status put(Producer<T, D>& producer, Item item,
                                [[maybe_unused]] bool& is_laid) {
            if constexpr (detail::is_filtered<T>) {
                return producer.try_enqueue(item, is_laid);
            } else {
                return producer.try_enqueue(item);
            }
        }
        static base::Status put(Producer<T, D>& producer, Item item, [[maybe_unused]] bool& is_laid,
                                const base::Deadline& deadline) {
            if constexpr (detail::is_filtered<T>) {
                return producer.enqueue(item, is_laid, deadline);
            } else {
                return producer.enqueue(item, deadline);
            }
        }

        /// The next one has no room; or none has.
        [[gnu::cold]] void await_room() {
            if (options.routing == Routing::in_turn) {
                return waiter.watch_only(ends[turn_of].producer.descriptor());
            }
            waiter.watch_all([this](const auto& add) {
                for (End& end : ends) {
                    if (!end.is_gone) add(end.producer.descriptor());
                }
            });
        }
        void leave(std::size_t at, base::Status how) {
            End& end = ends[at];
            why_last = how;
            end.is_gone = true;
            if (waiter.is_used()) waiter.forget(end.producer.descriptor());
        }
        template <class Call>
        base::Status each(Call&& call) {
            base::Status first = base::Status::ok;
            for (End& end : ends) {
                if (end.is_gone) continue;
                const base::Status status = call(end.producer);
                if (first == base::Status::ok) first = status;
            }
            return first;
        }

        FanOutOptions options;
        detail::RoomWaiter waiter;
        std::vector<End> ends;
        bool is_closing = false;
        std::size_t cursor = static_cast<std::size_t>(-1);  ///< the one that was served last
        std::size_t turn_of = 0;                       ///< whose turn it is, and which one is full
        base::Status why_last = base::Status::closed;  ///< why the last one left
    };

    explicit FanOut(FanOutOptions options) : state_{std::make_unique<State>(std::move(options))} {}
    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
