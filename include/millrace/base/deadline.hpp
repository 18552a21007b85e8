// Deadline and cancellation: how long a wait may last, part of every waiting call's signature.
#pragma once

#include <chrono>

#include "millrace/base/cancellation.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::base {

/// A point on the monotonic clock, optionally with a cancellation. A cheap value type.
class Deadline {
  public:
    /// Waits as long as it takes. Combine with `cancelled_by` wherever a person may be waiting.
    [[nodiscard]] static Deadline never() noexcept { return Deadline{Clock::time_point::max()}; }
    /// Looks once and does not wait.
    [[nodiscard]] static Deadline now() noexcept { return Deadline{Clock::time_point::min()}; }
    [[nodiscard]] static Deadline after(std::chrono::nanoseconds duration) noexcept {
        const auto now = Clock::now();
        return Deadline{duration >= Clock::time_point::max() - now ? Clock::time_point::max()
                                                                   : now + duration};
    }
    [[nodiscard]] static Deadline at(Clock::time_point point) noexcept { return Deadline{point}; }

    /// The same deadline, which also ends when `cancellation` is requested.
    [[nodiscard]] Deadline cancelled_by(const Cancellation& cancellation) const noexcept {
        return cancelled_by(&cancellation);
    }
    /// Null: by none.
    [[nodiscard]] Deadline cancelled_by(const Cancellation* cancellation) const noexcept {
        Deadline copy = *this;
        copy.cancellation_ = cancellation;
        return copy;
    }

    /// The same deadline, but not after `limit`.
    [[nodiscard]] Deadline no_later_than(Clock::time_point limit) const noexcept {
        Deadline copy = *this;
        if (limit < copy.point_) copy.point_ = limit;
        return copy;
    }

    /// Another time, with the same cancellation.
    [[nodiscard]] Deadline moved_to(Clock::time_point point) const noexcept {
        Deadline copy = *this;
        copy.point_ = point;
        return copy;
    }

    [[nodiscard]] bool expired() const noexcept {
        if (point_ == Clock::time_point::max()) return false;
        if (point_ == Clock::time_point::min()) return true;
        return Clock::now() >= point_;
    }
    /// What may end it early; null: nothing but the time.
    [[nodiscard]] const Cancellation* cancellation() const noexcept { return cancellation_; }
    [[nodiscard]] bool cancelled() const noexcept {
        return cancellation_ != nullptr && cancellation_->requested();
    }
    /// Time left, not negative; `nanoseconds::max()` when it never expires.
    [[nodiscard]] std::chrono::nanoseconds remaining() const noexcept {
        if (point_ == Clock::time_point::max()) return std::chrono::nanoseconds::max();
        if (point_ == Clock::time_point::min()) return std::chrono::nanoseconds::zero();
        const auto left = point_ - Clock::now();
        return left.count() > 0 ? left : std::chrono::nanoseconds::zero();
    }
    [[nodiscard]] Clock::time_point point() const noexcept { return point_; }

  private:
    explicit Deadline(Clock::time_point point) noexcept : point_{point} {}
    Clock::time_point point_;
    const Cancellation* cancellation_ = nullptr;
};

}  // namespace millrace::base
