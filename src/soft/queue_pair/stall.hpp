// Why a queue pair's oldest pending request does not go on, and since when: what its timers are
// about. Part of its send side.
#pragma once

#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "transport/executor.hpp"

namespace millrace::soft {

class Stall {
  public:
    [[nodiscard]] Progress why() const noexcept { return why_; }  ///< `done`: it goes on
    [[nodiscard]] bool at(std::uint32_t head) const noexcept {
        return why_ != Progress::done && head_ == head;
    }
    [[nodiscard]] base::Clock::duration age() const noexcept { return base::Clock::now() - since_; }
    void end() noexcept {
        why_ = Progress::done;
        alarm_set_ = false;
    }
    /// The request at `head` does not go on. False: that was known.
    bool begin(Progress why, std::uint32_t head) noexcept {
        if (why_ == why && head_ == head) return false;
        why_ = why;
        head_ = head;
        since_ = base::Clock::now();
        alarm_set_ = false;
        return true;
    }
    /// There is no peer for any of them.
    void begin_without_peer() noexcept { begin(Progress::no_peer, head_); }

    /// The other side executes the request at `head`: has it done so for a moment only? Both look
    /// when something is due, so they meet often, and one of them does it. Who holds it for long
    /// may be stopped: then it is as if it were not there.
    [[nodiscard]] bool is_held_briefly(std::uint32_t head) noexcept {
        const auto now = base::Clock::now();
        if (held_head_ != head || held_since_ == base::Clock::time_point{}) {
            held_head_ = head;
            held_since_ = now;
        }
        return now - held_since_ < std::chrono::milliseconds{1};
    }
    void is_held_no_longer() noexcept { held_since_ = {}; }

    /// Its timer has to be set: it was not since the channel's `alarms`.
    [[nodiscard]] bool needs_alarm(std::uint32_t alarms) noexcept {
        if (alarm_set_ && alarm_ == alarms) return false;
        alarm_set_ = true;
        alarm_ = alarms;
        return true;
    }

  private:
    Progress why_ = Progress::done;
    bool alarm_set_ = false;
    std::uint32_t head_ = 0;
    std::uint32_t held_head_ = 0;
    std::uint32_t alarm_ = 0;
    base::Clock::time_point since_{};
    base::Clock::time_point held_since_{};
};

}  // namespace millrace::soft
