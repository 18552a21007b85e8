// What the ends of a flow queue count. The same numbers stand, a little later, in a statistics
// page that other processes can read (base::StatisticsPage).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/flow/filter.hpp"
#include "millrace/ring/receiver.hpp"
#include "millrace/ring/sender.hpp"

namespace millrace::flow {

struct ProducerStats {
    std::uint64_t items = 0;
    std::uint64_t payload_bytes = 0;
    ring::SenderCounts ring;
    FilterCounts filter{};  ///< where the consumer has asked for one
};

struct ConsumerStats {
    std::uint64_t items = 0;
    std::uint64_t payload_bytes = 0;
    std::uint64_t empty_returns = 0;
    ring::ReceiverCounts ring;
    /// What the producer has told of the filter that this end asked for.
    ring::FilterTold filter{};
};

/// What a batch operation did: `count` items, and why it stopped there (`ok`: it did not).
struct BatchResult {
    base::Status status = base::Status::ok;
    std::size_t count = 0;
};

namespace detail {
/// As many items as `take(item)` gives.
template <class Item, class Take>
[[nodiscard]] BatchResult one_by_one(std::span<Item> items, Take&& take) {
    BatchResult result;
    for (Item& item : items) {
        result.status = take(item);
        if (result.status != base::Status::ok) break;
        ++result.count;
    }
    return result;
}
}  // namespace detail

}  // namespace millrace::flow
