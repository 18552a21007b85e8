// The transfer notification flow, one pair of types per TransferNotification (work 000, section
// 4.2): `TransferNotice` is the producer's half (tells how far the consumer may go), `TransferView`
// the consumer's (how far that is, as far as is known). Used by Transmitter and Intake.
//
// Positions are bytes in the stream; counters travel as PositionWords, immediates as 32 bits of
// units. With push1 and push2 data a position says what has arrived, with pull data what is there
// to be pulled. `limit`: where the producer can be at most; what it claims beyond is not believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/base/status.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/detail/moved_pull.hpp"
#include "millrace/ring/detail/receive_pool.hpp"
#include "millrace/ring/position.hpp"

namespace millrace::ring::detail {

// ---- the producer's half

/// Watermark and event: the data tell by themselves.
template <TransferNotification T>
class TransferNotice {
  public:
    base::Status tell(std::uint64_t) noexcept { return base::Status::ok; }
    [[nodiscard]] bool owes(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }
};

/// Push: an inline WRITE after the data, at most one in flight (section 6.1).
template <>
class TransferNotice<TransferNotification::push> {
  public:
    TransferNotice() noexcept = default;
    explicit TransferNotice(CounterPush push) noexcept : push_{std::move(push)} {}
    /// `full`: the one before is in flight; owes() until a later tell().
    base::Status tell(std::uint64_t position) noexcept {
        return push_.offer(PositionWord::pack(position));
    }
    [[nodiscard]] bool owes(std::uint64_t position) const noexcept {
        return push_.sent() != PositionWord::pack(position);
    }
    [[nodiscard]] std::uint64_t posted() const noexcept { return push_.posted(); }

  private:
    CounterPush push_;
};

/// Pull: a store, for the consumer to READ.
template <>
class TransferNotice<TransferNotification::pull> {
  public:
    TransferNotice() noexcept = default;
    explicit TransferNotice(CounterLine& line) noexcept : line_{&line} {}
    base::Status tell(std::uint64_t position) noexcept {
        line_->store(PositionWord::pack(position));
        return base::Status::ok;
    }
    [[nodiscard]] bool owes(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }

  private:
    CounterLine* line_ = nullptr;
};

/// Immediate: the data WRITEs carry it, each in exchange for a receive of the consumer's pool. The
/// consumer posts a receive again before it returns the space after it, so what it has consumed
/// also tells which receives are there again: nothing is ever sent that finds none.
template <>
class TransferNotice<TransferNotification::immediate> {
  public:
    TransferNotice() noexcept = default;
    /// Allocates for `pool` receives.
    explicit TransferNotice(std::uint32_t pool) : sent_(pool) {}
    base::Status tell(std::uint64_t) noexcept { return base::Status::ok; }
    [[nodiscard]] bool owes(std::uint64_t) const noexcept { return false; }
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }

    /// True: a receive is there for one more.
    [[nodiscard]] bool has_receive(std::uint64_t consumed) noexcept {
        while (count_ != 0 && static_cast<std::int64_t>(consumed - sent_[head_]) >= 0) {
            if (++head_ == sent_.size()) head_ = 0;
            --count_;
        }
        return count_ != sent_.size();
    }
    /// One was sent that carries `position`.
    void sent(std::uint64_t position) noexcept {
        std::size_t at = head_ + count_;
        if (at >= sent_.size()) at -= sent_.size();
        sent_[at] = position;
        ++count_;
    }

  private:
    std::vector<std::uint64_t> sent_;
    std::size_t head_ = 0;
    std::size_t count_ = 0;
};

[[nodiscard]] constexpr std::uint32_t immediate_of(std::uint64_t position) noexcept {
    return static_cast<std::uint32_t>(position / PositionWord::unit);
}

// ---- the consumer's half. look(): takes what is there, and asks where asking is the way.

/// What is so of views that post and receive nothing.
class QuietView {
  public:
    /// READs.
    [[nodiscard]] std::uint64_t posted() const noexcept { return 0; }
    /// Of these, on the mover's queue pair.
    [[nodiscard]] std::uint64_t posted_elsewhere() const noexcept { return 0; }
    [[nodiscard]] std::uint64_t receives() const noexcept { return 0; }
    /// True: nothing more can be learned.
    [[nodiscard]] bool broken() const noexcept { return false; }
    /// Posts again what was taken. Before the space after it is returned.
    void replenish() noexcept {}
};

/// Watermark and event: nothing but the marks, or the completions of the data.
template <TransferNotification T>
class TransferView : public QuietView {};

template <>
class TransferView<TransferNotification::push> : public QuietView {
  public:
    TransferView() noexcept = default;
    TransferView(const CounterLine& line, std::uint64_t initial) noexcept
        : line_{&line}, position_{initial} {}
    [[nodiscard]] std::uint64_t position() const noexcept { return position_.value(); }
    News look(std::uint64_t limit) noexcept { return position_.take(line_->load(), limit); }

  private:
    const CounterLine* line_ = nullptr;
    PeerPosition position_;
};

/// Pull: a READ of the producer's line, at most one in flight. With a mover, it is that which
/// READs; a thread that looks never waits.
template <>
class TransferView<TransferNotification::pull> : public QuietView {
  public:
    TransferView() noexcept = default;
    TransferView(SendWindow& window, CounterPull pull, std::uint64_t initial) noexcept
        : window_{&window}, pull_{std::move(pull)}, position_{initial} {}
    TransferView(std::unique_ptr<MovedPull> moved, std::uint64_t initial) noexcept
        : moved_{std::move(moved)}, position_{initial} {}
    [[nodiscard]] std::uint64_t position() const noexcept { return position_.value(); }
    News look(std::uint64_t limit) noexcept {
        if (moved_ != nullptr) {
            const News news = position_.take(moved_->word(), limit);
            if (news == News::none) moved_->want();
            return news;
        }
        if (pull_.pending()) {
            (void)window_->reap();
            if (!pull_.poll()) return News::none;
            const News news = position_.take(pull_.value(), limit);
            if (news != News::none) return news;
        }
        (void)pull_.start();
        (void)window_->reap();  // a device that completes at once has answered already
        return pull_.poll() ? position_.take(pull_.value(), limit) : News::none;
    }
    [[nodiscard]] std::uint64_t posted() const noexcept {
        return moved_ != nullptr ? moved_->posted() : pull_.posted();
    }
    [[nodiscard]] bool broken() const noexcept { return moved_ != nullptr && moved_->broken(); }
    [[nodiscard]] std::uint64_t posted_elsewhere() const noexcept {
        return moved_ != nullptr ? moved_->posted() : 0;
    }

  private:
    SendWindow* window_ = nullptr;
    CounterPull pull_;
    std::unique_ptr<MovedPull> moved_;
    PeerPosition position_;
};

/// Immediate: completions of receives of no bytes.
template <>
class TransferView<TransferNotification::immediate> : public QuietView {
  public:
    TransferView() noexcept = default;
    /// Posts the receives.
    TransferView(connect::Link& link, std::uint32_t receives, std::uint64_t initial) noexcept
        : pool_{link}, position_{initial}, taken_{receives} {
        replenish();
    }
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    News look(std::uint64_t limit) noexcept {
        const std::uint64_t before = position_;
        bool impossible = false;
        pool_.take([&](const verbs::Completion& completion) noexcept {
            ++taken_;
            const std::uint64_t bytes =
                std::uint64_t{completion.immediate() - immediate_of(position_)} *
                PositionWord::unit;
            if (!completion.has_immediate() || bytes > limit - position_) impossible = true;
            if (!impossible) position_ += bytes;
        });
        if (impossible) return News::impossible;
        return position_ != before ? News::newer : News::none;
    }
    void replenish() noexcept {
        for (; taken_ != 0; --taken_) {
            if (!pool_.post({})) return;
        }
    }
    [[nodiscard]] std::uint64_t receives() const noexcept { return pool_.posted(); }
    [[nodiscard]] bool broken() const noexcept { return pool_.broken(); }

  private:
    ReceivePool pool_;
    std::uint64_t position_ = 0;
    std::uint64_t taken_ = 0;
};

}  // namespace millrace::ring::detail
