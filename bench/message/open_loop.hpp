// Requests that come at random times of a rate, whatever has been answered: how long they take, and
// how long they would take of an ideal server on the same two cores. Used by the bars of messaging.
//
// Where a thread loses its core for 2 ms, as it may by what else runs in the system or beneath it,
// requests wait for these 2 ms, of any server. So the load is given in slices, and between two of
// them the same two threads only read the clock, for as long as a slice takes, and note when they
// were away. An ideal queue with the same arrivals, which stands still in these gaps, says what
// the machine makes of the longest times. Gaps that the server or its clients make by themselves
// are not in it: they are seen in the load alone. A slice begins with a server that is awake: what
// it takes to wake one is measured by itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/message/session.hpp"

namespace millrace::bench {

/// A thread was away: from one reading of the clock to the next, in nanoseconds of its slice.
struct Gap {
    double begin_ns = 0;
    double end_ns = 0;
};

/// What each of the requests that are due at these times, in order, would take: a client's thread
/// hands over what is due and sees answers at any time at which it is not away, and a server's
/// takes `service_ns` for one after the other, in its order, while it is not away. Gaps are in
/// order, too.
[[nodiscard]] std::vector<double> ideal_times(std::span<const double> due_ns, double service_ns,
                                              std::span<const Gap> of_client,
                                              std::span<const Gap> of_server);

struct OpenLoad {
    message::Polling polling = message::Polling::automatic;
    std::size_t clients = 64;          ///< driven by one thread
    double share = 0.7;                ///< of what the same clients get answered at most
    std::uint64_t requests = 100'000;  ///< of a slice
    std::size_t slices = 20;
    /// The handler sleeps for `stall` in each one of so many requests; 0: never. To see that what
    /// a server of ours does is told apart from what the machine does.
    std::uint64_t stall_every = 0;
    std::chrono::nanoseconds stall{std::chrono::milliseconds{2}};
};

struct OpenLatency {
    double capacity = 0;    ///< requests a second
    double median_ns = 0;   ///< from when a request was due, to its answer
    double longest_ns = 0;  ///< of all but one in a thousand
    /// The same of an ideal server: the median above, and what its queue adds.
    double ideal_longest_ns = 0;
    double away = 0;  ///< share of its slices in which the server's thread was away, bare
    double longest_away_ns = 0;  ///< … for so long at once
};
[[nodiscard]] OpenLatency latency_at_rate(const OpenLoad& setting);

}  // namespace millrace::bench
