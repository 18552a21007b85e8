// Sleeping where what is slept for comes with a completion of a receive: the consumer of push2 data
// or of immediates, the producer of space push2. Used by Sender and Receiver in place of Sleeper.
//
// The completion queues are armed, then the caller looks once more, then it sleeps. Whatever comes
// after the arming raises an event, so no flag needs to travel and the other end posts no events.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "millrace/connect/link.hpp"
#include "millrace/end/send_window.hpp"

namespace millrace::end {

class CompletionSleeper : public connect::LinkParker {
  public:
    /// `window`: over the link's sends; it must outlive this.
    CompletionSleeper(connect::Link& link, SendWindow& window) noexcept
        : connect::LinkParker{link}, link_{&link}, windows_{&window, nullptr} {}
    /// The one over the link's second queue pair, if this end posts there.
    void reap_also(SendWindow& second) noexcept { windows_[1] = &second; }

    /// What it has sent is complete, or will be: a queue that holds that is not armed to sleep.
    void prepare() override {
        for (SendWindow* const window : windows_) {
            if (window != nullptr) (void)window->reap();
        }
        connect::LinkParker::prepare();
    }
    Rest settle() override {
        if (is_late()) return Rest::nap;
        if (events_were_taken()) return Rest::look;
        ++sleeps_;
        return Rest::sleep;
    }
    void woken(Rest from) override {
        has_slept_ = from == Rest::sleep;
        connect::LinkParker::woken(from);
    }
    void retract() override {
        const std::uint64_t before = link_->channel().drained();
        connect::LinkParker::retract();
        if (std::exchange(has_slept_, false) && link_->channel().drained() != before) ++woken_;
    }

    /// Nothing needs to be asked for: whatever comes raises an event.
    [[nodiscard]] bool waits_for_bell() const noexcept { return true; }

    [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override {
        return std::min(patience_for_events(), pause_);
    }
    /// From now on no sleep is longer than this: the waiting thread has something to do by the
    /// clock.
    void sleep_at_most(std::chrono::nanoseconds pause) noexcept { pause_ = pause; }

    /// Sleeps that really happened, and those that a completion ended.
    [[nodiscard]] std::uint64_t sleeps() const noexcept { return sleeps_; }
    [[nodiscard]] std::uint64_t woken() const noexcept { return woken_; }

  protected:
    /// True: something is known to be on its way that raises no event (a counter after data whose
    /// completions are taken already), so look again soon.
    [[nodiscard]] virtual bool is_late() noexcept { return false; }

  private:
    connect::Link* link_;
    std::array<SendWindow*, 2> windows_;
    std::chrono::nanoseconds pause_ = std::chrono::nanoseconds::max();
    std::uint64_t sleeps_ = 0;
    std::uint64_t woken_ = 0;
    bool has_slept_ = false;  ///< since prepare()
};

}  // namespace millrace::end
