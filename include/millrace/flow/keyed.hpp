// What the producers that fold by key have in common: options, statistics, and entries that wait
// for room, in the order of their keys. Used by conflating.hpp, aggregating.hpp, windowed.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/key_table.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

struct KeyedStats {
    std::uint64_t taken = 0;    ///< items, or values, that calls have answered `ok` to
    std::uint64_t sent = 0;     ///< items that have gone into the queue
    std::uint64_t folded = 0;   ///< of those taken, how many became part of what waited already
    std::uint64_t waiting = 0;  ///< keys that something waits for, now
    std::uint64_t crowded = 0;  ///< times that a new key found no place
};

namespace detail {

/// What an end's items are. `End`: a Producer, AnyProducer, FanOut or Replicator.
template <class End>
struct ItemOf;
template <template <class, ring::Design> class End, class T, ring::Design D>
struct ItemOf<End<T, D>> {
    using type = T;
};
template <template <class> class End, class T>
struct ItemOf<End<T>> {
    using type = T;
};

/// Into the queue, to a FanOut's consumer for that key. `deadline`: null, or it waits for room.
template <class End, class Item>
base::Status put(End& end, std::uint64_t hash, const Item& item, const base::Deadline* deadline) {
    if constexpr (requires { end.try_enqueue_keyed(hash, item); }) {
        return deadline == nullptr ? end.try_enqueue_keyed(hash, item)
                                   : end.enqueue_keyed(hash, item, *deadline);
    } else {
        return deadline == nullptr ? end.try_enqueue(item) : end.enqueue(item, *deadline);
    }
}

/// Throws Error (invalid_argument): `keys` is not from 1 to 4,194,304. `what`: "a conflating
/// producer".
void check_keys(const char* what, std::uint32_t keys);
/// The first line of explain(), then the end's own.
[[nodiscard]] std::string explain_keyed(std::string_view what, std::uint32_t keys,
                                        const KeyedStats& stats);
template <class End>
[[nodiscard]] std::string explain_end(const End& end) {
    if constexpr (requires { end.explain(); }) return end.explain();
    return {};
}

/// Items that wait for room, one for each key. The key that began to wait first leaves first.
template <class End, class KeyOf>
class Outbox {
  public:
    using Item = typename ItemOf<End>::type;
    using Table = KeyTable<Item, KeyOf>;

    /// Until nothing waits here, and everything is in the consumer's ring. As the end's.
    base::Status flush(const base::Deadline& deadline) {
        const base::Status status = send_all(&deadline);
        return status == base::Status::ok ? end_.flush(deadline) : status;
    }
    /// Takes nothing new, sends what waits and says goodbye, as docs/closing.md says.
    base::Status close(const base::Deadline& deadline) {
        is_closing_ = true;
        const base::Status status = send_all(&deadline);
        return status == base::Status::ok ? end_.close(deadline) : status;
    }
    /// What was passed in: its descriptor(), stats(), look_around(). Nothing is to be enqueued
    /// there.
    [[nodiscard]] End& producer() noexcept { return end_; }
    [[nodiscard]] KeyedStats stats() const noexcept {
        KeyedStats stats = counts_;
        stats.waiting = table_.size();
        return stats;
    }
    /// Keys that something waits for.
    [[nodiscard]] std::size_t waiting() const noexcept { return table_.size(); }

  protected:
    Outbox(End end, std::uint32_t keys, KeyOf key_of)
        : end_{std::move(end)}, table_{keys, std::move(key_of)} {}

    /// What waits first. `deadline`: as put()'s. `ok`: it has gone.
    base::Status send_front(const base::Deadline* deadline) {
        const std::uint32_t at = table_.front();
        const base::Status status = put(end_, table_.hash_at(at), table_[at], deadline);
        if (status != base::Status::ok) return status;
        table_.remove(at);
        ++left_;
        ++counts_.sent;
        return status;
    }
    base::Status send_all(const base::Deadline* deadline) {
        while (!table_.is_empty()) {
            const base::Status status = send_front(deadline);
            if (status != base::Status::ok) return status;
        }
        return base::Status::ok;
    }

    End end_;
    Table table_;
    KeyedStats counts_{};
    std::uint64_t left_ = 0;  ///< keys that were here, and went
    bool is_closing_ = false;
};

}  // namespace detail
}  // namespace millrace::flow
