// How large the ring and the number of advertisements are where the program does not say: from
// bandwidth times delay. Used by setup.cpp, once for each socket.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::stream {

/// Between the device and the program of the other end: until it looks, or is awake, and has given
/// room back or offered its next receive. A sleeper takes about as long to be awake. More would
/// gain something (docs/performance/work-003-stream.md), and cost memory: a ring's pages are there
/// from the beginning.
inline constexpr std::chrono::microseconds assumed_reaction{32};
/// Of what is chosen here.
inline constexpr std::uint64_t least_chosen_ring = std::uint64_t{256} << 10;
inline constexpr std::uint64_t largest_chosen_ring = std::uint64_t{64} << 20;
inline constexpr std::uint32_t fewest_chosen_adverts = 64;
inline constexpr std::uint32_t most_chosen_adverts = 4096;

/// The way between two ends.
struct Way {
    std::uint64_t bits_per_second = 0;        ///< of this end's port
    std::chrono::microseconds round_trip{0};  ///< of the devices; 0: nobody has measured it
};

/// Of a port, as its width and its speed say; 25 Gb/s where they say nothing that is known.
[[nodiscard]] std::uint64_t bits_per_second(const ibv_port_attr& port) noexcept;

/// Measures what the devices take to and fro: the least of two to four WRITEs of no bytes, as
/// whoever looks may lack a processor meanwhile. Who looks seldom measures that, too. Requires that
/// nothing has been posted by the link.
class RoundTrip {
  public:
    /// Looks for the WRITE that is under way, and posts the next one. True: it is over. Never
    /// blocks.
    [[nodiscard]] bool step(connect::Link& link) noexcept;
    /// At least 1 us; 0 if it is not over, took too long, or the connection broke, which whoever
    /// uses it next is told.
    [[nodiscard]] std::chrono::microseconds result() const noexcept { return result_; }

  private:
    base::Clock::time_point begin_{};
    base::Clock::time_point posted_{};
    std::chrono::nanoseconds least_ = std::chrono::nanoseconds::max();
    std::chrono::microseconds result_{0};
    int done_ = 0;
    bool is_under_way_ = false;
};

/// The same, waiting until it is over, or the deadline comes.
void measure_round_trip(connect::Link& link, RoundTrip& measured, const base::Deadline& deadline);

/// As many bytes as are under way until the room of the first ones has come back: the next power of
/// two, within the bounds above.
[[nodiscard]] std::uint64_t chosen_ring(const Way& way) noexcept;
/// As many as receives of `least` bytes take the place of that ring, within the bounds above.
[[nodiscard]] std::uint32_t chosen_adverts(const Way& way, std::uint64_t least) noexcept;
/// Why, for people: "100 Gb/s times 35 us: 3 to and fro, measured, and 32 until ...".
[[nodiscard]] std::string reason(const Way& way);

}  // namespace millrace::stream
