// Many producers, one consumer that sees all items in the order of a key: a timestamp, a version, a
// position. Each producer's items are in that order already; the merge takes the smallest of those
// that are in front (a k-way merge). Work 000, section 3.4: an N-1 flow structure.
//
//     auto events = flow::Merge<Event, &Event::time>::listen("host:7000", {.expected = 3});
//     Event event;
//     while (events.dequeue(event, deadline) == Status::ok) use(event);
//
//     auto producer = flow::Producer<Event>::connect("host:7000", {}, deadline);   // each of three
//
// What comes out equals a stable sort of everything that went in: by key, of equal keys those of
// the producer first that joined first, of one producer as it sent them.
//
// An item is handed out once nothing smaller can come. A producer that has nothing in front, and
// may send something smaller still, is *silent*, and holds up the others:
//
//   producer 1   [ 7 ][ 9 ]        in front: 7
//   producer 2   [ 8 ]             in front: 8
//   producer 3                     last: 5. It may send a 6: nothing is handed out
//                                  last: 7, and it joined after 1: the 7 of producer 1 is
//
// It does so until it sends an item, or a heartbeat: an item that says what time it is, and is not
// handed out (`is_heartbeat`); until it has closed, or is lost; or until MergeOptions::patience is
// over. From then on it holds up nobody, until it sends again. What it then sends that should have
// come earlier is *late*: it is not handed out, as what comes out never goes back, but counted and
// told (on_late). So is an item that a producer sends out of order, where it comes too late.
//
// A newcomer is silent from when it connects: producers that shall all be heard from the beginning
// are `expected`, or connect before the first of them sends. One thread at a time, as a FanIn.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/sources.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/flow/time_source.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

struct MergeOptions {
    /// Of each producer's queue, and of this end's waits.
    Options queue{};
    /// As FanInOptions' of that name.
    std::uint32_t max_producers = 1024;
    /// When so many producers have joined, in all, no more are let in, and when all have left, it
    /// is `closed`. Nothing is handed out before so many have joined, or `patience` is over since
    /// it was made. 0: it goes on until close().
    std::uint32_t expected = 0;
    /// How long a silent producer holds up the others. Not given: for as long as it is there.
    std::optional<std::chrono::nanoseconds> patience{};
    /// What patience goes by.
    TimeSource clock{};
    /// As FanInOptions' of that name.
    std::optional<connect::AcceptorOptions> acceptor{};
};

struct MergeStats {
    FanInStats sources;            ///< items: that were handed out
    std::uint64_t heartbeats = 0;  ///< that have come
    std::uint64_t passed = 0;      ///< times that a silent producer was waited for no longer
    std::uint64_t late = 0;        ///< items that were not handed out
};

/// Every item is handed out.
struct NoHeartbeats {
    constexpr bool operator()(const auto& /*item*/) const noexcept { return false; }
};

namespace detail {

/// Throws Error (invalid_argument).
[[nodiscard]] FanInOptions sources_of(const MergeOptions& options);
[[nodiscard]] std::string explain_merge(const connect::Address& address,
                                        const MergeOptions& options, const MergeStats& stats,
                                        std::size_t silent);
void warn_of_late_item(const std::string& peer);

}  // namespace detail

/// `T`: an item type, or Bytes. `key_of`: what gives an item's key, a pointer to a member, a
/// function or a lambda that captures nothing; keys are compared by <. `is_heartbeat`:
/// `bool(item)`. Items are passed as `const T&`, or as std::span<const std::byte>. Move-only.
template <class T, auto key_of, auto is_heartbeat = NoHeartbeats{}, ring::Design D = ring::design_2>
class Merge : public detail::OfManyProducers<Merge<T, key_of, is_heartbeat, D>> {
  public:
    using Item = detail::Taken<T>;
    using Seen = detail::Seen<T>;
    using Given = detail::Given<T>;
    using Key = std::remove_cvref_t<std::invoke_result_t<decltype(key_of), Given>>;
    static_assert(std::totally_ordered<Key>, "keys are compared by <");
    static_assert(std::is_invocable_r_v<bool, decltype(is_heartbeat), Given>);
    using LateWatcher = std::function<void(const FanInSource& source, Given item)>;

    /// Waits for nobody. Throws Error (invalid_argument; permission, system: the address is in use
    /// …).
    [[nodiscard]] static Merge listen(const connect::Address& address, MergeOptions options = {}) {
        return Merge{std::make_unique<State>(address, std::move(options))};
    }

    /// The next item in the order. `ok`; `empty`: nothing is there, or a silent producer holds it
    /// up; `closed`: as many producers as were expected have come and gone, or this end was closed.
    base::Status try_dequeue(Item& item) {
        State& state = *state_;
        const base::Status status = state.find();
        if (status != base::Status::ok) return status;
        Source& source = state.take();
        state.count(source, 1);
        return source.consumer.try_dequeue(item);
    }
    /// The same, waiting for one. Also `timed_out`, `cancelled`.
    base::Status dequeue(Item& item, const base::Deadline& deadline) {
        return state_->wait([&] { return try_dequeue(item); }, deadline);
    }
    /// As many items as may be handed out, at most `items.size()`.
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<Item> items) {
        return detail::one_by_one(items, [this](Item& item) { return try_dequeue(item); });
    }
    /// The next item where it lies. It stays there, and in front, until release().
    base::Status peek(Seen& item) {
        State& state = *state_;
        if (state.peeked == nullptr) {
            const base::Status status = state.find();
            if (status != base::Status::ok) return status;
            state.peeked = state.heads.front();
            state.count(*state.peeked, 0);
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
        Source& source = state.take();
        state.count(source, 1);
        source.consumer.release();
    }

    /// Called within calls of this end for each item that is late, which is gone then. It must not
    /// use this end. Without it, the first is told in the log (warn), and all are counted.
    void on_late(LateWatcher watcher) { state_->late_watcher = std::move(watcher); }

    [[nodiscard]] MergeStats stats() const noexcept { return state_->all_counts(); }
    /// What is listened for, how long a silent producer is waited for and how many are, and what
    /// the queue of one of them is.
    [[nodiscard]] std::string explain() const {
        return detail::explain_merge(this->address(), state_->merging, stats(),
                                     state_->silent.size()) +
               state_->explain_queue();
    }

  private:
    friend class detail::OfManyProducers<Merge>;
    struct Mark {
        std::optional<Key> newest{};  ///< of its keys; of one in `heads`, that in front unless late
        Key head{};
        std::chrono::nanoseconds quiet_since{0};
        bool is_passed = false;  ///< it was waited for no longer
        bool is_muted = false;   ///< its descriptor is not watched
    };
    struct State;
    using Sources = detail::Sources<State, Consumer<T, D>, Mark>;
    using Source = typename Sources::Source;

    struct State : Sources {
        State(const connect::Address& address, MergeOptions chosen)
            : Sources{"a merge", address, detail::sources_of(chosen)},
              merging{std::move(chosen)},
              made_at{now()} {}

        /// `ok`: the first of `heads` may be handed out. `empty`; `closed`.
        base::Status find() {
            peeked = nullptr;
            this->look_now_and_then();
            look_at_silent();
            return may_hand_out() ? base::Status::ok : this->nothing();
        }
        /// The first of `heads`, whose item is about to be handed out.
        Source& take() {
            peeked = nullptr;
            std::pop_heap(heads.begin(), heads.end(), comes_later);
            Source& source = *heads.back();
            heads.pop_back();
            last_key = source.mark.head;
            silent.push_back(&source);
            if (std::exchange(source.mark.is_muted, false)) [[unlikely]]
                this->watch(source);
            if (merging.patience.has_value()) source.mark.quiet_since = now();
            return source;
        }
        [[nodiscard]] MergeStats all_counts() const noexcept {
            MergeStats stats = merge_counts;
            stats.sources = this->counts;
            return stats;
        }

        // --- who is silent

        /// Those that have something in front by now are silent no longer.
        void look_at_silent() {
            for (std::size_t i = 0; i < silent.size();) {
                Source& source = *silent[i];
                if (!source.consumer.has_item() || !look_at(source)) {
                    ++i;
                    continue;
                }
                heads.push_back(&source);
                std::push_heap(heads.begin(), heads.end(), comes_later);
                silent[i] = silent.back();
                silent.pop_back();
            }
        }
        /// There is an item in front that may be handed out.
        bool look_at(Source& source) {
            if (!source.is_active) this->activate(source);
            // One that sends nothing else is not looked at for ever.
            for (int most = 64; most != 0; --most) {
                Seen seen{};
                if (source.consumer.peek(seen) != base::Status::ok) return false;
                const Given item = given(seen);
                Mark& mark = source.mark;
                mark.head = std::invoke(key_of, item);
                if (!mark.newest.has_value() || *mark.newest < mark.head) mark.newest = mark.head;
                mark.is_passed = false;
                if (merging.patience.has_value()) mark.quiet_since = now();
                if (is_heartbeat(item)) {
                    ++merge_counts.heartbeats;
                } else if (last_key.has_value() && mark.head < *last_key) {
                    tell_late(source, item);
                } else {
                    return true;
                }
                source.consumer.release();
            }
            return false;
        }
        void tell_late(const Source& source, Given item) {
            if (late_watcher) {
                late_watcher(source.party->facts, item);
            } else if (merge_counts.late == 0) {
                detail::warn_of_late_item(source.party->facts.peer);
            }
            ++merge_counts.late;
        }
        [[nodiscard]] bool may_hand_out() {
            if (heads.empty() || this->is_closed) return false;
            if (this->counts.joined < merging.expected && patience_left(made_at).count() > 0) {
                return false;
            }
            return std::ranges::none_of(
                silent, [&](Source* source) { return holds_up(*source, *heads.front()); });
        }
        [[nodiscard]] bool holds_up(Source& source, const Source& first) {
            Mark& mark = source.mark;
            if (mark.newest.has_value() &&
                !precedes(*mark.newest, source, first.mark.head, first)) {
                return false;
            }
            if (patience_left(mark.quiet_since).count() > 0) return true;
            if (!std::exchange(mark.is_passed, true)) ++merge_counts.passed;
            return false;
        }
        [[nodiscard]] static bool precedes(const Key& key, const Source& of, const Key& other,
                                           const Source& of_other) {
            if (key < other) return true;
            if (other < key) return false;
            return of.party->facts.number < of_other.party->facts.number;
        }
        static bool comes_later(const Source* one, const Source* other) {
            return precedes(other->mark.head, *other, one->mark.head, *one);
        }

        // --- time

        [[nodiscard]] std::chrono::nanoseconds now() const {
            return detail::time_by(merging.clock);
        }
        [[nodiscard]] std::chrono::nanoseconds patience_left(std::chrono::nanoseconds since) const {
            using std::chrono::nanoseconds;
            if (!merging.patience.has_value()) return nanoseconds::max();
            return std::max(nanoseconds::zero(), *merging.patience - (now() - since));
        }

        // --- what Sources asks

        void came(Source& source) {
            source.mark.quiet_since = now();
            silent.push_back(&source);
        }
        void goes(Source& source) noexcept {
            if (peeked == &source) peeked = nullptr;
            std::erase(silent, &source);
            if (std::erase(heads, &source) != 0) {
                std::make_heap(heads.begin(), heads.end(), comes_later);
            }
        }
        /// All that are awake have an item in front, and it may not be handed out.
        [[nodiscard]] bool may_sleep() {
            return this->active.size() == heads.size() && !may_hand_out();
        }
        /// Descriptors of those that have an item in front are readable, and are not watched until
        /// it is handed out. What wakes us is who is silent, or the end of a patience.
        void rests() {
            for (Source* source : heads) {
                if (std::exchange(source->mark.is_muted, true)) continue;
                this->door.hub().remove(source->member);
            }
            if (timer.has_value()) this->door.hub().remove(*std::exchange(timer, std::nullopt));
            const auto next = next_patience();
            if (next != std::chrono::nanoseconds::max()) {
                timer = this->door.hub().after(next, [] {});
            }
        }
        /// How long until somebody has been silent for too long. max(): nobody will.
        [[nodiscard]] std::chrono::nanoseconds next_patience() const {
            auto next = std::chrono::nanoseconds::max();
            if (heads.empty() || !merging.patience.has_value()) return next;
            const auto consider = [&](std::chrono::nanoseconds since) {
                const auto left = patience_left(since);
                if (left.count() > 0) next = std::min(next, left);
            };
            if (this->counts.joined < merging.expected) consider(made_at);
            for (const Source* source : silent) consider(source->mark.quiet_since);
            return next;
        }

        MergeOptions merging;
        std::chrono::nanoseconds made_at;
        std::vector<Source*> heads;   ///< a heap: the one whose item comes next is first
        std::vector<Source*> silent;  ///< the others
        std::optional<Key> last_key{};
        Source* peeked = nullptr;
        LateWatcher late_watcher{};
        MergeStats merge_counts;
        std::optional<connect::Hub::Id> timer{};
    };

    [[nodiscard]] static Given given(const Seen& seen) {
        if constexpr (std::is_pointer_v<Seen>) {
            return *seen;
        } else {
            return seen;
        }
    }

    explicit Merge(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
    std::unique_ptr<State> state_;
};

}  // namespace millrace::flow
