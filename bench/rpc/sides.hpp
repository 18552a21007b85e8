// What both processes of a measurement of requests and responses go by: the board that they share,
// how cycles and responses are counted, and how large queues are. Used by responders.cpp and
// requesters.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "measure_rpc.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::bench {

inline constexpr std::size_t request_bytes = 64;
inline constexpr std::size_t window_responses = 64;
inline constexpr std::size_t most_responders = 64;
/// Polls, and lets the others of its core run at once, as there are more of them than cores.
inline constexpr base::WaitPolicy shared_core{std::chrono::nanoseconds{0},
                                              std::chrono::nanoseconds::max(), false};

/// What both sides share.
struct Board {
    enum Phase : std::uint32_t { setting_up, measuring, over };
    std::atomic<std::uint32_t> phase;
    std::uint32_t ports[most_responders];
    double cycles;       ///< of a responder, for each response
    double all_cycles;   ///< ... those in which it found nothing, too
    double vain_cycles;  ///< of a turn that found nothing
    double found;        ///< mailboxes with a message, which may be several requests
    double looked_at;
};

/// The cycles of each, by windows of so many.
class CyclesOfWindows {
  public:
    /// All since the last time; the first time says when they begin.
    void add_until(std::uint64_t now, std::size_t count) {
        if (last_ != 0) add(now - last_, count);
        last_ = now;
    }
    void add(std::uint64_t cycles, std::size_t count) {
        cycles_ += cycles;
        if ((count_ += count) < window_responses) return;
        windows_.push_back(static_cast<double>(cycles_) / static_cast<double>(count_));
        cycles_ = count_ = 0;
    }
    [[nodiscard]] double median() const { return windows_.empty() ? 0 : quantile(windows_, 0.5); }

  private:
    std::uint64_t cycles_ = 0;
    std::uint64_t count_ = 0;
    std::uint64_t last_ = 0;
    std::vector<double> windows_;
};

/// When each window of responses was full; whatever thread fills it says so.
class ResponseWindows {
  public:
    explicit ResponseWindows(std::chrono::nanoseconds duration) : ends_(4096) {
        const std::uint64_t now = base::ticks();
        least_ = now + base::ticks_in(duration);
        most_ = now + base::ticks_in(std::chrono::seconds{3});
        at_all_ = now + base::ticks_in(std::chrono::seconds{40});
    }
    void answered(std::uint64_t now) {
        const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
        if (count % window_responses != 0) return;
        const std::uint64_t window = count / window_responses - 1;
        if (window < ends_.size()) ends_[window].store(now, std::memory_order_relaxed);
    }
    [[nodiscard]] bool is_over() const {
        const std::uint64_t now = base::ticks();
        const std::uint64_t full = count_.load(std::memory_order_relaxed) / window_responses;
        return full >= ends_.size() || (now >= least_ && full > enough) ||
               (now >= most_ && full > 1) || now >= at_all_;
    }
    /// Responses a second, the median window's.
    [[nodiscard]] double per_second() const {
        std::vector<double> times;
        for (std::size_t i = 1; i < ends_.size(); ++i) {
            const std::uint64_t end = ends_[i].load(std::memory_order_relaxed);
            const std::uint64_t begin = ends_[i - 1].load(std::memory_order_relaxed);
            if (end > begin && begin != 0) times.push_back(static_cast<double>(end - begin));
        }
        require(!times.empty(), "enough responses in 40 s");
        return static_cast<double>(window_responses) *
               static_cast<double>(base::ticks_in(std::chrono::seconds{1})) /
               quantile(std::move(times), 0.5);
    }

  private:
    static constexpr std::size_t enough = 20;
    std::vector<std::atomic<std::uint64_t>> ends_;
    std::atomic<std::uint64_t> count_{0};
    std::uint64_t least_ = 0;
    std::uint64_t most_ = 0;    ///< from here on as few as make a result are enough
    std::uint64_t at_all_ = 0;  ///< and from here on none
};

[[nodiscard]] inline std::size_t items_of(const RpcCase& chosen) {
    return chosen.memory_bytes / chosen.response_bytes;
}
/// Of a receive for answers by SEND: a whole response with its head and frame, if that may be.
[[nodiscard]] inline std::size_t slot_for(const RpcCase& chosen) {
    return std::clamp(std::bit_ceil(chosen.response_bytes + 64), std::size_t{128},
                      std::size_t{64} << 10);
}
/// For all the responses that may be on their way over a connection, up to 16 of 16 KiB.
[[nodiscard]] inline std::size_t ring_for(const RpcCase& chosen) {
    const std::size_t on_their_way =
        std::clamp(chosen.per_dispatcher * chosen.window, std::size_t{2}, std::size_t{16});
    const std::size_t room = std::max(slot_for(chosen), std::bit_ceil(chosen.response_bytes + 64));
    return std::max(std::size_t{16} << 10, room * std::bit_ceil(on_their_way));
}
[[nodiscard]] inline std::size_t dispatchers_of(const RpcCase& chosen) {
    return (chosen.requesters + chosen.per_dispatcher - 1) / chosen.per_dispatcher;
}
[[nodiscard]] inline std::size_t connections_of(const RpcCase& chosen) {
    return chosen.per_dispatcher == 0 ? chosen.requesters : dispatchers_of(chosen);
}

}  // namespace millrace::bench
