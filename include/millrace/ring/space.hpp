// The space notification flow, one pair of types per SpaceNotification: `SpaceView` is the
// producer's half (how far is the consumer, as far as is known), `SpaceReturn` the consumer's.
// Used by Sender and Receiver. Positions are bytes in the stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/base/status.hpp"
#include "millrace/ring/counter.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::ring {

template <SpaceNotification S>
class SpaceView;
template <SpaceNotification S>
class SpaceReturn;

/// Pull: READs the consumer's progress, lazily above a part of the ring in use, and by force when
/// it is full.
template <>
class SpaceView<SpaceNotification::pull> {
  public:
    SpaceView() noexcept = default;
    SpaceView(CounterPull pull, std::uint64_t initial, std::uint64_t ring_bytes,
              double refresh_above) noexcept
        : pull_{pull},
          consumed_{initial},
          threshold_{static_cast<std::uint64_t>(static_cast<double>(ring_bytes) * refresh_above)},
          again_{std::max<std::uint64_t>(ring_bytes / 8, 1)} {}

    [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_; }
    /// Takes what has arrived by itself.
    void look() noexcept {
        if (pull_.poll()) learn(pull_.value());
    }
    /// Asks the consumer. The answer comes with a completion: look() after reaping it.
    base::Status refresh() noexcept { return pull_.start(); }
    [[nodiscard]] bool wants_refresh(std::uint64_t in_use) const noexcept {
        return in_use > threshold_ && !pull_.pending();
    }
    /// How many bytes the producer may go on before it looks here again.
    [[nodiscard]] std::uint64_t look_after(std::uint64_t in_use) const noexcept {
        if (pull_.pending()) return 0;
        return in_use < threshold_ ? std::max(threshold_ - in_use, again_) : again_;
    }
    /// A newer value that came another way (the announcement of a sleep). True: it is newer.
    bool learn(std::uint64_t consumed) noexcept {
        if (static_cast<std::int64_t>(consumed - consumed_) <= 0) return false;
        consumed_ = consumed;
        return true;
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return pull_.posted(); }

  private:
    CounterPull pull_;
    std::uint64_t consumed_ = 0;
    std::uint64_t threshold_ = 0;
    std::uint64_t again_ = 0;
};

/// Push: the consumer WRITEs its progress into a line of ours.
template <>
class SpaceView<SpaceNotification::push> {
  public:
    SpaceView() noexcept = default;
    SpaceView(const CounterLine& line, std::uint64_t initial) noexcept
        : line_{&line}, consumed_{initial} {}

    [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_; }
    void look() noexcept { (void)learn(line_->load()); }
    base::Status refresh() noexcept {
        look();
        return base::Status::ok;
    }
    [[nodiscard]] bool wants_refresh(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t look_after(std::uint64_t) const noexcept {
        return ~std::uint64_t{0};
    }
    bool learn(std::uint64_t consumed) noexcept {
        if (static_cast<std::int64_t>(consumed - consumed_) <= 0) return false;
        consumed_ = consumed;
        return true;
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }

  private:
    const CounterLine* line_ = nullptr;
    std::uint64_t consumed_ = 0;
};

/// Pull: nothing to do; the producer reads the progress that the consumer's Bell publishes.
template <>
class SpaceReturn<SpaceNotification::pull> {
  public:
    base::Status give(std::uint64_t) noexcept { return base::Status::ok; }
    [[nodiscard]] bool owes(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }
};

/// Push: an inline WRITE, at most one in flight.
template <>
class SpaceReturn<SpaceNotification::push> {
  public:
    SpaceReturn() noexcept = default;
    explicit SpaceReturn(CounterPush push) noexcept : push_{push} {}

    base::Status give(std::uint64_t consumed) noexcept { return push_.offer(consumed); }
    /// True if the last give() did not go out.
    [[nodiscard]] bool owes(std::uint64_t consumed) const noexcept {
        return push_.sent() != consumed;
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return push_.posted(); }

  private:
    CounterPush push_;
};

}  // namespace millrace::ring
