// A producer that sends what many values come to, by key: a sum of each article's sales in place of
// each sale. Work 000, chapter 1 (aggregation queues), at the producer, so that less travels.
//
//     using Total = flow::Keyed<std::uint32_t, flow::Sum<long>>;
//     auto queue = flow::Producer<Total>::connect("host:7000", {}, deadline);
//     flow::AggregatingProducer totals{std::move(queue), {.keys = 500, .items = 10'000}};
//     if (totals.try_enqueue(sale.article, sale.amount) != Status::ok) …
//
// The consumer gets parts, which it joins:
//
//     while (parts.dequeue(part, deadline) == Status::ok) all[part.key].join(part.value);
//
// What is gathered is sent when one of these says so: so many values (AggregatingOptions::items),
// so many bytes of results (`bytes`), so long after the first value (`after`), or a call of flush()
// or try_flush(). Until it has gone, later values of its key still become part of it: no value
// waits for room. The parts of a key join to what all of its values come to, each of them counted
// once.
//
// At the bound a key that is not there yet makes the oldest one leave early; `full` is said if
// there is no room for that. Keys leave in the order in which they came.
//
// A producer moves only within its calls: one that pauses calls try_send(), and due_in() says when.
// Over a FanOut, a result goes to the consumer of its key: a combiner before a shuffle.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/folds.hpp"
#include "millrace/flow/keyed.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/time_source.hpp"

namespace millrace::flow {

/// What travels: a key, and what some of its values come to.
template <class Key, Aggregate A>
struct Keyed {
    Key key{};
    A value{};
};

struct AggregatingOptions {
    /// Keys at a time, 1 to 4,194,304. Their memory is taken at once: a result and 32 bytes each.
    std::uint32_t keys = 1024;
    /// Sent after so many values. 0: not by their number.
    std::uint64_t items = 0;
    /// Sent when the results that wait are so many bytes. 0: not by their size.
    std::uint64_t bytes = 0;
    /// Sent so long after the first value. 0: not by the clock.
    std::chrono::nanoseconds after{0};
    TimeSource clock{};
};

namespace detail {

/// The key of a Keyed or a Windowed.
struct KeyOfResult {
    template <class Result>
    const auto& operator()(const Result& result) const noexcept {
        return result.key;
    }
};

/// Throws Error (invalid_argument).
void check(const AggregatingOptions& options);
[[nodiscard]] std::string explain_flushes(const AggregatingOptions& options);

}  // namespace detail

/// `End`: a Producer, AnyProducer, Replicator or FanOut of Keyed. Move-only; one thread at a time.
template <class End>
class AggregatingProducer : public detail::Outbox<End, detail::KeyOfResult> {
    using Base = detail::Outbox<End, detail::KeyOfResult>;

  public:
    using Item = typename Base::Item;
    using Key = decltype(Item::key);
    using Value = decltype(Item::value);

    /// Throws Error (invalid_argument).
    AggregatingProducer(End end, AggregatingOptions options)
        : Base{std::move(end), checked(options).keys, detail::KeyOfResult{}},
          options_{std::move(options)} {}

    /// Adds `value`, which is what Value::add takes, to what `key` has. `ok`: it is a part of what
    /// waits or is on its way; `full`: see above; `closed`, `peer_lost`.
    template <class V>
    base::Status try_enqueue(const Key& key, const V& value) {
        return take(key, value, nullptr);
    }
    /// The same, waiting where it is `full`. Also `timed_out`, `cancelled`.
    template <class V>
    base::Status enqueue(const Key& key, const V& value, const base::Deadline& deadline) {
        return take(key, value, &deadline);
    }
    /// Sends what is due, as far as there is room. `ok`: nothing is; `full`; `closed`, `peer_lost`.
    base::Status try_send() {
        if (is_due_by_time()) make_due();
        return send_due();
    }
    /// Makes all of it due, and sends it as far as there is room. As try_send.
    base::Status try_flush() {
        make_due();
        return send_due();
    }
    /// Until everything is in the consumer's ring. As Producer's.
    base::Status flush(const base::Deadline& deadline) {
        make_due();
        return Base::flush(deadline);
    }
    /// How long until something is due by the clock; 0: it is. max(): nothing will be.
    [[nodiscard]] std::chrono::nanoseconds due_in() const {
        if (left_to_send()) return std::chrono::nanoseconds::zero();
        if (!due_at_.has_value()) return std::chrono::nanoseconds::max();
        return std::max(std::chrono::nanoseconds::zero(),
                        *due_at_ - detail::time_by(options_.clock));
    }

    /// What it does, and then what the queue is.
    [[nodiscard]] std::string explain() const {
        return detail::explain_keyed(detail::explain_flushes(options_), options_.keys,
                                     this->stats()) +
               detail::explain_end(this->end_);
    }

  private:
    static const AggregatingOptions& checked(const AggregatingOptions& options) {
        detail::check(options);
        return options;
    }
    template <class V>
    base::Status take(const Key& key, const V& value, const base::Deadline* deadline) {
        if (this->is_closing_) [[unlikely]]
            return base::Status::closed;
        base::Status status = try_send();
        if (status != base::Status::ok && status != base::Status::full) [[unlikely]]
            return status;
        const std::uint64_t hash = Base::Table::hash_of(key);
        std::uint32_t at = this->table_.find(key, hash);
        if (at != Base::Table::none) {
            ++this->counts_.folded;
        } else {
            if (this->table_.is_full()) {
                ++this->counts_.crowded;
                status = this->send_front(deadline);
                if (status != base::Status::ok) return status;
            }
            at = this->table_.add(Item{key, {}}, hash);
        }
        this->table_[at].value.add(value);
        ++this->counts_.taken;
        ++gathered_;
        if (options_.after.count() != 0 && !due_at_.has_value()) {
            due_at_ = detail::time_by(options_.clock) + options_.after;
        }
        if (is_enough()) {
            make_due();
            // It was taken, whatever becomes of what is sent: the next call tells of an end.
            (void)send_due();
        }
        return base::Status::ok;
    }
    [[nodiscard]] bool is_enough() const noexcept {
        return (options_.items != 0 && gathered_ >= options_.items) ||
               (options_.bytes != 0 && this->table_.size() * sizeof(Item) >= options_.bytes);
    }
    [[nodiscard]] bool is_due_by_time() const {
        return due_at_.has_value() && detail::time_by(options_.clock) >= *due_at_;
    }
    /// All that is here now.
    void make_due() {
        due_until_ = this->left_ + this->table_.size();
        gathered_ = 0;
        due_at_.reset();
    }
    [[nodiscard]] bool left_to_send() const noexcept { return this->left_ < due_until_; }
    base::Status send_due() {
        while (left_to_send()) {
            const base::Status status = this->send_front(nullptr);
            if (status != base::Status::ok) return status;
        }
        return base::Status::ok;
    }

    AggregatingOptions options_;
    std::uint64_t gathered_ = 0;   ///< values since it was made due last
    std::uint64_t due_until_ = 0;  ///< what comes first is due, until so many keys have left
    std::optional<std::chrono::nanoseconds> due_at_{};
};

}  // namespace millrace::flow
