// A producer that does not fall behind: while the consumer has no room, the newest item of each key
// waits here, and what was older is not sent any more. For prices, positions, states: whatever is
// worth nothing once there is a newer one. Work 000, chapter 1: an aggregation queue, whose Get
// "might return only the latest item", for each key and at the producer.
//
//     auto feed = flow::Producer<Price>::connect("host:7000", {}, deadline);
//     flow::ConflatingProducer prices{std::move(feed), &Price::instrument, {.keys = 500}};
//     if (prices.try_enqueue(price) != Status::ok) …         // never full with 500 instruments
//
// What the consumer sees of a key is a part of that key's items, in order, and the last of them is
// always among it. Keys take turns: the one that began to wait first is sent first, however often
// it, or others, change meanwhile. An item that went into the queue is not replaced any more: the
// smaller the queue (Options::ring.capacity), the fresher what comes out.
//
// In place of the newest item a fold of all of them can wait, as a sum:
//
//     const auto add = [](Sale& waiting, const Sale& one) { waiting.amount += one.amount; };
//     flow::ConflatingProducer sums{std::move(till), &Sale::article, {.keys = 500}, add};
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/keyed.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::flow {

struct ConflatingOptions {
    /// Keys that items can wait for at a time, 1 to 4,194,304. Their memory is taken at once: an
    /// item and 32 bytes each.
    std::uint32_t keys = 1024;
};

/// The newest item takes the place of the one that waits.
struct Newest {
    template <class T>
    void operator()(T& waiting, const T& item) const noexcept {
        waiting = item;
    }
};

/// `End`: a Producer, AnyProducer, Replicator or FanOut (where an item goes to the consumer of its
/// key's hash); it sends when its own calls do. `KeyOf`: what gives an item's key, a function
/// object or a pointer to a member; keys of any type that KeyHash knows. `Fold`: `void(T& waiting,
/// const T& item)`, which must leave the key as it is. Move-only; one thread at a time.
template <class End, class KeyOf, class Fold = Newest>
class ConflatingProducer : public detail::Outbox<End, KeyOf> {
    using Base = detail::Outbox<End, KeyOf>;

  public:
    using Item = typename Base::Item;
    static_assert(std::is_invocable_v<Fold&, Item&, const Item&>);

    /// Throws Error (invalid_argument).
    ConflatingProducer(End end, KeyOf key_of, ConflatingOptions options = {}, Fold fold = {})
        : Base{std::move(end), checked(options).keys, std::move(key_of)},
          fold_{std::move(fold)},
          keys_{options.keys} {}

    /// `ok`: it is on its way, or waits here. `full`: neither the queue nor the table has room: it
    /// is of a key that nothing waits for, and items of so many others do. `closed`, `peer_lost`.
    base::Status try_enqueue(const Item& item) {
        if (this->is_closing_) [[unlikely]]
            return base::Status::closed;
        base::Status status = try_send();
        if (status == base::Status::ok) [[likely]] {
            status = detail::put(this->end_, hash_of(item), item, nullptr);
            if (status == base::Status::ok) [[likely]] {
                ++this->counts_.taken;
                ++this->counts_.sent;
            }
        }
        return status == base::Status::full ? keep(item) : status;
    }
    /// The same, waiting where it is `full`. Also `timed_out`, `cancelled`.
    base::Status enqueue(const Item& item, const base::Deadline& deadline) {
        base::Status status;
        while ((status = try_enqueue(item)) == base::Status::full) {
            // One key less makes a place.
            status = this->send_front(&deadline);
            if (status != base::Status::ok) break;
        }
        return status;
    }
    /// Sends what waits, as far as there is room: each call does it, and a program that pauses
    /// calls this. `ok`: nothing waits; `full`; `closed`, `peer_lost`. In a program's own loop,
    /// when the queue's descriptor is readable.
    base::Status try_send() {
        return this->table_.is_empty() ? base::Status::ok : this->send_all(nullptr);
    }

    /// What it does, and then what the queue is.
    [[nodiscard]] std::string explain() const {
        return detail::explain_keyed(
                   std::is_same_v<Fold, Newest>
                       ? "a conflating producer: the newest item of a key waits while there is no "
                         "room"
                       : "a conflating producer: items of a key are folded while there is no room",
                   keys_, this->stats()) +
               detail::explain_end(this->end_);
    }

  private:
    static const ConflatingOptions& checked(const ConflatingOptions& options) {
        detail::check_keys("a conflating producer", options.keys);
        return options;
    }
    [[nodiscard]] std::uint64_t hash_of(const Item& item) const {
        // Only a FanOut asks.
        if constexpr (requires(End& end) { end.try_enqueue_keyed(std::uint64_t{}, item); }) {
            return Base::Table::hash_of(this->table_.key_of(item));
        }
        return 0;
    }
    [[gnu::noinline]] base::Status keep(const Item& item) {
        const auto& key = this->table_.key_of(item);
        const std::uint64_t hash = Base::Table::hash_of(key);
        const std::uint32_t at = this->table_.find(key, hash);
        if (at != Base::Table::none) {
            fold_(this->table_[at], item);
            ++this->counts_.folded;
        } else if (this->table_.is_full()) {
            ++this->counts_.crowded;
            return base::Status::full;
        } else {
            this->table_.add(item, hash);
        }
        ++this->counts_.taken;
        return base::Status::ok;
    }

    Fold fold_;
    std::uint32_t keys_;
};

}  // namespace millrace::flow
