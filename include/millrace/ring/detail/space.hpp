// The space notification flow, one pair of types per SpaceNotification: `SpaceView` is the
// producer's half (how far is the consumer, as far as is known), `SpaceReturn` the consumer's.
// Used by Sender and Receiver. Positions are bytes in the stream, and travel as PositionWords.
// `sent`: how far the consumer can be at most; what it claims beyond is not believed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "millrace/base/status.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/receive_pool.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::ring::detail {

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
        : pull_{std::move(pull)},
          consumed_{initial},
          threshold_{static_cast<std::uint64_t>(static_cast<double>(ring_bytes) * refresh_above)},
          again_{std::max<std::uint64_t>(ring_bytes / 8, 1)} {}

    [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_.value(); }
    /// Takes what has arrived by itself.
    News look(std::uint64_t sent) noexcept {
        return pull_.poll() ? learn(pull_.value(), sent) : News::none;
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
    News learn(std::uint64_t word, std::uint64_t sent) noexcept {
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
    News look(std::uint64_t sent) noexcept { return learn(line_->load(), sent); }
    base::Status refresh() noexcept { return base::Status::ok; }
    [[nodiscard]] bool wants_refresh(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t look_after(std::uint64_t) const noexcept {
        return ~std::uint64_t{0};
    }
    News learn(std::uint64_t word, std::uint64_t sent) noexcept {
        return consumed_.take(word, sent);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }

  private:
    const CounterLine* line_ = nullptr;
    PeerPosition consumed_;
};

/// Push2: the consumer SENDs its progress; each SEND takes one of our receives, of a word each.
/// How many were taken and posted again stands in a line of ours, for the consumer to READ.
template <>
class SpaceView<SpaceNotification::push2> {
  public:
    /// Receives that are kept posted (section 6.3).
    static constexpr std::uint32_t receives = 32;

    SpaceView() noexcept = default;
    /// Posts the receives. `words`: `receives` words of own memory (local write) at `offset`.
    SpaceView(connect::Link& link, const verbs::MemoryRegion& region, std::size_t offset,
              CounterLine& taken, std::uint64_t initial) noexcept
        : pool_{link}, region_{&region}, offset_{offset}, taken_line_{&taken}, consumed_{initial} {
        taken_line_->store(PositionWord::pack(0));
        for (std::uint64_t i = 0; i < receives; ++i) post(i);
    }

    [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_.value(); }
    News look(std::uint64_t sent) noexcept {
        News outcome = News::none;
        const std::uint64_t before = taken_;
        pool_.take([&](const verbs::Completion& completion) noexcept {
            CounterLine* const word = at(completion.id());
            const News news = learn(word->load(), sent);
            if (news != News::none && outcome != News::impossible) outcome = news;
            ++taken_;
            post(completion.id());
        });
        if (taken_ != before) {
            taken_line_->store(PositionWord::pack(taken_ * PositionWord::unit));
        }
        return outcome;
    }
    base::Status refresh() noexcept { return base::Status::ok; }
    [[nodiscard]] bool wants_refresh(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t look_after(std::uint64_t) const noexcept {
        return ~std::uint64_t{0};
    }
    News learn(std::uint64_t word, std::uint64_t sent) noexcept {
        return consumed_.take(word, sent);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }
    [[nodiscard]] std::uint64_t receives_posted() const noexcept { return pool_.posted(); }

  private:
    [[nodiscard]] CounterLine* at(std::uint64_t i) const noexcept {
        return reinterpret_cast<CounterLine*>(region_->data() + offset_) + i;
    }
    void post(std::uint64_t i) noexcept {
        const ibv_sge slice =
            region_->slice(offset_ + i * sizeof(CounterLine), sizeof(std::uint64_t));
        (void)pool_.post({.id = i, .into = {&slice, 1}});
    }

    ReceivePool pool_;
    const verbs::MemoryRegion* region_ = nullptr;
    std::size_t offset_ = 0;
    CounterLine* taken_line_ = nullptr;
    std::uint64_t taken_ = 0;
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
    explicit SpaceReturn(CounterPush push) noexcept : push_{std::move(push)} {}

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

/// Push2: an inline SEND, at most one in flight, and never more than the producer has receives.
/// A producer that makes no calls posts none again, and a SEND that finds none would hold up all
/// that is posted after it. So SENDs are counted against what the producer has taken, READ from
/// its line when they run out as far as is known.
template <>
class SpaceReturn<SpaceNotification::push2> {
  public:
    SpaceReturn() noexcept = default;
    SpaceReturn(SendWindow& window, CounterPull taken, std::uint64_t initial) noexcept
        : window_{&window}, pull_{std::move(taken)}, sent_{PositionWord::pack(initial)} {}

    base::Status give(std::uint64_t consumed) noexcept {
        const std::uint64_t word = PositionWord::pack(consumed);
        if (word == sent_) return base::Status::ok;
        if (!window_->done(ticket_) || pull_.pending()) {
            const base::Status status = window_->reap();
            if (status != base::Status::ok) return status;
            if (!window_->done(ticket_)) return base::Status::full;
        }
        learn();
        if (out() >= SpaceView<SpaceNotification::push2>::receives) {
            (void)pull_.start();
            if (const base::Status status = window_->reap(); status != base::Status::ok) {
                return status;
            }
            learn();
            if (out() >= SpaceView<SpaceNotification::push2>::receives) return base::Status::full;
        }
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof word, 0};
        const base::Status status = window_->post(
            verbs::Send{.from = {&slice, 1}, .flags = verbs::SendFlags::inlined}, Signal::now);
        if (status == base::Status::ok) {
            sent_ = word;
            ticket_ = window_->posted();
            ++posted_;
        }
        return status;
    }
    [[nodiscard]] bool owes(std::uint64_t consumed) const noexcept {
        return sent_ != PositionWord::pack(consumed);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }
    /// READs of how many receives the producer has posted again.
    [[nodiscard]] std::uint64_t reads() const noexcept { return pull_.posted(); }

  private:
    [[nodiscard]] std::uint64_t out() const noexcept {
        return posted_ - taken_.value() / PositionWord::unit;
    }
    void learn() noexcept {
        if (pull_.poll()) (void)taken_.take(pull_.value(), posted_ * PositionWord::unit);
    }

    SendWindow* window_ = nullptr;
    CounterPull pull_;
    PeerPosition taken_;
    std::uint64_t sent_ = 0;
    std::uint64_t ticket_ = 0;
    std::uint64_t posted_ = 0;
};

}  // namespace millrace::ring::detail
