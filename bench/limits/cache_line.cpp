// Ping-pong of a number in one word, or in one word per direction on lines of their own.
#include "cache_line.hpp"

#include <cstdint>

#include "bench/framework/windows.hpp"

namespace millrace::bench {
namespace {

struct Lines {
    alignas(128) std::atomic<std::uint64_t> there;
    alignas(128) std::atomic<std::uint64_t> back;
};

using Word = std::atomic<std::uint64_t>;

/// `there` and `back` may be the same word: the numbers tell whose turn it is.
double ping_pong(std::uint64_t round_trips, Word Lines::*there, Word Lines::*back) {
    const Windows windows{round_trips};
    return run_pair(
        {.shared_bytes = sizeof(Lines)},
        [&](Pair& pair) {
            auto* lines = pair.shared_at<Lines>(0);
            pair.meet();
            return median_step(windows, [&](std::uint64_t number) {
                (lines->*there).store(2 * number - 1, std::memory_order_release);
                pair.spin_until(
                    [&] { return (lines->*back).load(std::memory_order_acquire) == 2 * number; });
            });
        },
        [&](Pair& pair) {
            auto* lines = pair.shared_at<Lines>(0);
            pair.meet();
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                pair.spin_until([&] {
                    return (lines->*there).load(std::memory_order_acquire) == 2 * number - 1;
                });
                (lines->*back).store(2 * number, std::memory_order_release);
            }
        });
}

}  // namespace

double cache_line_round_trip(std::uint64_t round_trips) {
    return ping_pong(round_trips, &Lines::there, &Lines::back);
}

double shared_line_round_trip(std::uint64_t round_trips) {
    return ping_pong(round_trips, &Lines::there, &Lines::there);
}

}  // namespace millrace::bench
