// Aggregation queues (work 000, chapter 1): one Get may depend on several Puts, as the sum of what
// is in the queue now, or the last of it.
//
//     const auto got = flow::reduce(sales, total, [](long& sum, Sale one) { sum += one.amount; });
//     const Status status = flow::take_last(sales, newest, passed_over);
//
// Where the consumer does not keep up, CombiningProducer folds on the other side what has not left
// yet: it is never full, and less travels the more there is. For values of which only the newest is
// of any interest there is latest.hpp, where nothing queues at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/any_consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// Takes the items that are there, in their order, at most `most`, and calls `fold(value, item)`
/// for each where it lies (`const T&`, or std::span<const std::byte> for Bytes). Answers as
/// try_dequeue_batch: how many they were, and, if it was not `most`, what stopped it. `Consumer`: a
/// Consumer, an AnyConsumer or a FanIn. If `fold` throws, that item stays in front.
template <class Consumer, class Value, class Fold>
BatchResult reduce(Consumer& consumer, Value& value, Fold&& fold,
                   std::size_t most = std::size_t{1} << 20) {
    BatchResult result;
    while (result.count != most) {
        typename Consumer::Seen seen{};
        result.status = consumer.peek(seen);
        if (result.status != base::Status::ok) break;
        if constexpr (std::is_pointer_v<typename Consumer::Seen>) {
            fold(value, *seen);
        } else {
            fold(value, seen);
        }
        consumer.release();
        ++result.count;
    }
    return result;
}

/// Sets `item` to the last of the items that are there and passes over the others; `passed_over`:
/// how many. As try_dequeue.
template <class Consumer, class Item>
base::Status take_last(Consumer& consumer, Item& item, std::size_t& passed_over) {
    passed_over = 0;
    base::Status status = consumer.try_dequeue(item);
    if (status != base::Status::ok) return status;
    for (constexpr std::size_t most = std::size_t{1} << 20; passed_over != most; ++passed_over) {
        status = consumer.try_dequeue(item);
        if (status != base::Status::ok) break;
    }
    // What was taken before the end is an answer; the end is the next one's.
    return base::Status::ok;
}

/// A producer that is never full: an item that finds no room is combined with the one that waits
/// for some already. `Combine`: `bool(T& waiting, const T& item)` puts `item` into `waiting`;
/// false: these two cannot be one (keys that differ), and then it is `full` as ever. Move-only; one
/// thread at a time.
template <class T, class Combine, ring::Design D = ring::design_2>
class CombiningProducer {
    static_assert(std::is_invocable_r_v<bool, Combine&, T&, const T&>);

  public:
    explicit CombiningProducer(Producer<T, D> producer, Combine combine = {})
        : producer_{std::move(producer)}, combine_{std::move(combine)} {}

    /// `ok`: it is on its way, or part of what waits here; `full`: see above; `closed`,
    /// `peer_lost`.
    base::Status try_enqueue(const T& item) {
        if (is_closing_) [[unlikely]]
            return base::Status::closed;
        if (is_waiting_) {
            const base::Status status = send_waiting();
            if (status == base::Status::full) return join(item);
            if (status != base::Status::ok) return status;
        }
        const base::Status status = producer_.try_enqueue(item);
        if (status != base::Status::full) return status;
        waiting_ = item;
        is_waiting_ = true;
        return base::Status::ok;
    }
    /// The same, waiting for room where two items cannot be one. Also `timed_out`, `cancelled`.
    base::Status enqueue(const T& item, const base::Deadline& deadline) {
        base::Status status = try_enqueue(item);
        if (status != base::Status::full) return status;
        status = producer_.enqueue(waiting_, deadline);
        if (status != base::Status::ok) return status;
        is_waiting_ = false;
        return try_enqueue(item);
    }
    /// Sends what waits here, if there is room by now: for a program that pauses, which nobody else
    /// does it for. `ok`: nothing waits; `full`; `closed`, `peer_lost`.
    base::Status try_send() { return is_waiting_ ? send_waiting() : base::Status::ok; }
    /// Until everything is in the consumer's ring. As Producer's.
    base::Status flush(const base::Deadline& deadline) {
        if (is_waiting_) {
            const base::Status status = producer_.enqueue(waiting_, deadline);
            if (status != base::Status::ok) return status;
            is_waiting_ = false;
        }
        return producer_.flush(deadline);
    }
    /// As Producer's (docs/closing.md).
    base::Status close(const base::Deadline& deadline) {
        is_closing_ = true;
        if (is_waiting_) {
            const base::Status status = producer_.enqueue(waiting_, deadline);
            if (status != base::Status::ok) return status;
            is_waiting_ = false;
        }
        return producer_.close(deadline);
    }
    /// Items that became part of another one.
    [[nodiscard]] std::uint64_t combined() const noexcept { return combined_; }
    [[nodiscard]] bool is_waiting() const noexcept { return is_waiting_; }
    /// Its descriptor(), stats(), explain(). Nothing is to be enqueued there.
    [[nodiscard]] Producer<T, D>& producer() noexcept { return producer_; }

  private:
    base::Status send_waiting() {
        const base::Status status = producer_.try_enqueue(waiting_);
        if (status == base::Status::ok) is_waiting_ = false;
        return status;
    }
    base::Status join(const T& item) {
        if (!combine_(waiting_, item)) return base::Status::full;
        ++combined_;
        return base::Status::ok;
    }

    Producer<T, D> producer_;
    Combine combine_;
    T waiting_{};
    bool is_waiting_ = false;
    bool is_closing_ = false;
    std::uint64_t combined_ = 0;
};

}  // namespace millrace::flow
