// A fence that one process makes for another on the same machine (membarrier(2)). Used where one
// end of a ring publishes with each item, and the other sleeps now and then: the sleeper pays for
// both fences of wake_up.hpp. What publishes then need not wait for its stores on their way.
#pragma once

#include <atomic>

#include "millrace/base/language.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::end {

/// From now on far_fence() of any process of this machine reaches the threads of this one. False:
/// membarrier is not to be had here. Any thread; a system call at the first call.
[[nodiscard]] bool register_for_far_fences() noexcept;
/// True: the peer of `link` is on this machine (verbs::QueuePair::shares_memory), and this process
/// is registered.
[[nodiscard]] bool can_make_far_fences(connect::Link& link) noexcept;

/// A full fence in every thread, of every registered process, that runs just now; those that do
/// not run pass one before they run again. Any thread; a system call of some microseconds.
void far_fence() noexcept;

/// Where a far fence takes the place of one's own: only the compiler must keep the order.
inline void near_fence() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace millrace::end
