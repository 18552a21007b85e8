// The space notification flow, one pair of types per SpaceNotification: `SpaceView` is the
// producer's half (how far is the consumer, as far as is known), `SpaceReturn` the consumer's.
// Used by Sender and Receiver. Positions are bytes in the stream, and travel as PositionWords.
// `sent`: how far the consumer can be at most; what it claims beyond is not believed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/base/status.hpp"
#include "millrace/ring/counter.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/position.hpp"

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

    [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_.value(); }
    /// Takes what has arrived by itself.
    Claim look(std::uint64_t sent) noexcept {
        return pull_.poll() ? learn(pull_.value(), sent) : Claim::nothing_new;
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
    /// Takes a word that came another way (the announcement of a sleep).
    Claim learn(std::uint64_t word, std::uint64_t sent) noexcept {
        return consumed_.take(word, sent);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return pull_.posted(); }

  private:
    CounterPull pull_;
    PeerPosition consumed_;
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

    [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_.value(); }
    Claim look(std::uint64_t sent) noexcept { return learn(line_->load(), sent); }
    base::Status refresh() noexcept { return base::Status::ok; }
    [[nodiscard]] bool wants_refresh(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t look_after(std::uint64_t) const noexcept {
        return ~std::uint64_t{0};
    }
    Claim learn(std::uint64_t word, std::uint64_t sent) noexcept {
        return consumed_.take(word, sent);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }

  private:
    const CounterLine* line_ = nullptr;
    PeerPosition consumed_;
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

    base::Status give(std::uint64_t consumed) noexcept {
        return push_.offer(PositionWord::pack(consumed));
    }
    /// True if the last give() did not go out.
    [[nodiscard]] bool owes(std::uint64_t consumed) const noexcept {
        return push_.sent() != PositionWord::pack(consumed);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return push_.posted(); }

  private:
    CounterPush push_;
};

}  // namespace millrace::ring
