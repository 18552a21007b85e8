// What boost::lockfree::spsc_queue does between two threads of one process: the queue that C++
// programs take where no process boundary is in between. Package libboost-dev; where it was missing
// when this was built, these throw Error (not_found).
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Nanoseconds for one round trip of messages of 64 bytes, through a queue each way.
[[nodiscard]] double boost_round_trip(std::uint64_t round_trips);

/// Items of 8 bytes per second through a queue of `ring_bytes`, one push and one pop each.
[[nodiscard]] double boost_item_rate(std::size_t ring_bytes, std::uint64_t items);

}  // namespace millrace::bench
