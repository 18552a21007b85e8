// Many producers, one consumer, and one ring for all of them (work 000, section 3.4: an N-1 flow
// structure whose producers are coordinated). A FanIn keeps a ring for each producer; here memory
// goes with the load, not with the number of those who are connected.
//
//     auto items = flow::SharedFanIn<Item>::listen("host:7000", {});
//     while (items.dequeue(item, deadline) == Status::ok) use(item, items.last().label);
//
//     auto producer = flow::SharedProducer<Item>::connect("host:7000", {}, deadline);
//
// Items of one producer come in its order. Between those of different ones it is that in which they
// took their places. What sharing costs: a producer that dies or stops between taking a place and
// filling it holds up all others. One that died is found by its connection, its queue pair is put
// into ERROR, and the place is passed over (a tombstone). One that lives is waited for, for
// SharedFanInOptions::patience, then it is given up: its connection ends, with the reason, and as
// nothing keeps a stopped process from storing late, the ring moves to other memory, where all
// others go on. A producer can damage what others laid (docs/threat-model.md): those that do not
// trust each other have a FanIn.
//
// A thread at a time: that which made it, or has called adopt() since. Calls look at the kernel as
// those of a FanIn do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/shared_ring.hpp"
#include "millrace/flow/sources.hpp"
#include "millrace/flow/stats.hpp"

namespace millrace::flow {

struct SharedFanInOptions {
    SharedOptions shared{};
    /// Items in the ring, 1 or more, of at most 1 GiB. Not given: 256 KiB of ring.
    std::optional<std::uint64_t> capacity{};
    /// Producers at a time, 1 to 65,534; one more is refused, with the reason.
    std::uint32_t max_producers = 1024;
    /// As FanInOptions::expected.
    std::uint32_t expected = 0;
    /// How long a producer that lives may leave a place empty which it has taken, and hold up all
    /// others, before it is given up.
    std::chrono::nanoseconds patience{std::chrono::seconds{2}};
    /// As FanInOptions::acceptor.
    std::optional<connect::AcceptorOptions> acceptor{};
};

struct SharedFanInStats {
    FanInStats producers;
    std::uint64_t tombstones = 0;  ///< places that were passed over, as nobody will fill them
    std::uint64_t moves = 0;       ///< of the ring to other memory
};

namespace detail {
[[nodiscard]] FanInOptions sources_of(const SharedFanInOptions& options);
[[nodiscard]] SharedRing::Plan plan_of(const SharedFanInOptions& options, const ItemFacts& item);
[[nodiscard]] Listener listen_for_shared(const connect::Address& address, const SharedRing& ring);
}  // namespace detail

/// Move-only.
template <class T>
class SharedFanIn : public detail::OfManyProducers<SharedFanIn<T>> {
    static_assert(PlainItem<T>,
                  "an item must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");

  public:
    using Item = T;
    using Seen = const T*;

    /// Waits for nobody. Throws Error (invalid_argument; permission, system: the address is in use
    /// …; unsupported: the device has no atomics).
    [[nodiscard]] static SharedFanIn listen(const connect::Address& address,
                                            SharedFanInOptions options = {}) {
        return SharedFanIn{std::make_unique<State>(address, options)};
    }

    /// `ok`; `empty`; `closed`: as many producers as were expected have come and gone, or this end
    /// was closed. A producer that leaves or dies does not end it: on_change() tells of it.
    base::Status try_dequeue(T& item) {
        State& state = *state_;
        const base::Status status = state.find();
        if (status != base::Status::ok) return status;
        std::memcpy(&item, state.ring->front(), sizeof(T));
        state.take();
        return base::Status::ok;
    }
    /// The same, waiting for one. Also `timed_out`, `cancelled`.
    base::Status dequeue(T& item, const base::Deadline& deadline) {
        const base::Status status = try_dequeue(item);
        if (status != base::Status::empty) [[likely]]
            return status;
        state_->ring->stand_back(deadline);
        return state_->wait([&] { return try_dequeue(item); }, deadline);
    }
    /// As many items as are there, at most `items.size()`.
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<T> items) {
        return detail::one_by_one(items, [this](T& item) { return try_dequeue(item); });
    }
    /// The next item where it lies. It stays there, and in front, until release(). A producer that
    /// is not trusted may change it meanwhile.
    base::Status peek(Seen& item) {
        State& state = *state_;
        if (!state.is_peeked) {
            const base::Status status = state.find();
            if (status != base::Status::ok) return status;
            state.is_peeked = true;
            state.count(*state.source_in_front(), 0);
        }
        item = reinterpret_cast<const T*>(state.ring->front());
        return base::Status::ok;
    }
    base::Status peek(Seen& item, const base::Deadline& deadline) {
        return state_->wait([&] { return peek(item); }, deadline);
    }
    /// Gives the peeked item's place back.
    void release() {
        State& state = *state_;
        if (std::exchange(state.is_peeked, false)) state.take();
    }

    [[nodiscard]] SharedFanInStats stats() const noexcept {
        const detail::SharedRing::Counts& ring = state_->ring->counts();
        return {state_->counts, ring.tombstones, ring.moves};
    }
    /// What is listened for, the ring, and how one of the producers is connected.
    [[nodiscard]] std::string explain() const {
        return "shared fan-in at " + this->address().to_string() + ": " +
               std::to_string(state_->counts.producers) + " producers of at most " +
               std::to_string(state_->options.max_producers) + "\n" + state_->ring->explain() +
               state_->explain_queue();
    }

  private:
    friend class detail::OfManyProducers<SharedFanIn>;
    struct NoMark {};
    struct State;
    using Sources = detail::Sources<State, detail::SharedMember, NoMark>;
    using Source = typename Sources::Source;
    using RingOwner = std::shared_ptr<detail::SharedRing>;

    struct State : Sources {
        State(const connect::Address& address, const SharedFanInOptions& chosen)
            : State{address, chosen,
                    std::make_shared<detail::SharedRing>(
                        detail::plan_of(chosen, detail::item_facts<T>()))} {}
        State(const connect::Address& address, const SharedFanInOptions& chosen, RingOwner its_ring)
            : Sources{detail::sources_of(chosen),
                      [&](const FanInOptions&) {
                          return detail::Door{"a shared fan-in",
                                              detail::listen_for_shared(address, *its_ring)};
                      },
                      [its_ring](Listener& listener) {
                          return detail::SharedMember::try_accept(listener, its_ring);
                      }},
              ring{std::move(its_ring)} {}

        /// `ok`: an item is in front, whose producer is known. `empty`; `closed`.
        base::Status find() {
            this->look_now_and_then();
            if (this->is_closed) [[unlikely]]
                return this->nothing();
            do {
                if (ring->has_front()) [[likely]] {
                    Source* const source = source_in_front();
                    if (source == nullptr) [[unlikely]] {
                        this->keep_house();  // it comes in by the acceptor
                        return base::Status::empty;
                    }
                    if (!source->is_active) [[unlikely]]
                        this->activate(*source);
                    return base::Status::ok;
                }
            } while (ring->look_on([this](void* source) {
                this->leave(*static_cast<Source*>(source), base::Status::peer_lost);
            }));
            return this->nothing();
        }
        [[nodiscard]] Source* source_in_front() const noexcept {
            return static_cast<Source*>(ring->source_of_front());
        }
        void take() {
            this->count(*source_in_front(), 1);
            is_peeked = false;
            ring->release();
        }

        // --- what Sources asks

        void came(Source& source) { source.consumer.bind(&source); }
        void goes(Source&) noexcept {}
        [[nodiscard]] bool may_sleep() const noexcept { return this->active.empty(); }
        void rests() noexcept {}
        void nap() const {
            // Somebody has died and left a place empty, or leaves when others' items were taken.
            if (ring->has_claims()) std::this_thread::sleep_for(std::chrono::microseconds{50});
        }

        RingOwner ring;
        bool is_peeked = false;
    };

    explicit SharedFanIn(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
