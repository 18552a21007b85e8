// Two processes that exchange messages of 64 bytes on two cores that others may use as well: by
// what Millrace has, and by Unix stream sockets whose calls block. Nobody is pinned.
#pragma once

#include <chrono>
#include <cstdint>

#include "millrace/base/wait.hpp"

namespace millrace::bench {

/// By what they exchange them.
enum class Contact : std::uint8_t { channel, call, queues, stream, unix_socket };

struct Trips {
    Contact by = Contact::channel;
    base::WaitPolicy wait{};
    /// On average, at times that chance decides; their latencies count from when they were due. 0:
    /// each as soon as the one before it is answered.
    double a_second = 0;
    std::chrono::milliseconds duration{300};
};
struct RoundTrips {
    double per_second = 0;
    double median_us = 0;
    double p99_us = 0;
};
[[nodiscard]] RoundTrips round_trips(const Trips& chosen);

/// Items a second in one direction, each by a call of its own. Not for calls.
[[nodiscard]] double items_per_second(Contact contact, const base::WaitPolicy& wait,
                                      std::chrono::milliseconds duration);

}  // namespace millrace::bench
