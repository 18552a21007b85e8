// Aggregation queues (work 000, chapter 1): one Get may depend on several Puts, as the sum of what
// is in the queue now, or the last of it.
//
//     const auto got = flow::reduce(sales, total, [](long& sum, Sale one) { sum += one.amount; });
//     const Status status = flow::take_last(sales, newest, passed_over);
//
// The producer's side of it, by key: conflating.hpp, where the newest item waits for a consumer
// that does not keep up; aggregating.hpp and windowed.hpp, where what many values come to is sent
// in their place. For values of which only the newest is of any interest there is latest.hpp, where
// nothing queues at all.
#pragma once

#include <cstddef>
#include <type_traits>

#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/any_consumer.hpp"
#include "millrace/flow/stats.hpp"

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

}  // namespace millrace::flow
