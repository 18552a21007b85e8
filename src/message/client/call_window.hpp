// The requests of a session that have no answer: their numbers follow each other, and each has a
// state until its answer was handed out. A request has its place in the window by its number, from
// the lowest one without an answer on. Used by the client (client_end.hpp).
//
//   ...  none | wanted  none  unwanted  wanted | not sent yet ...
//             lowest                           next
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "millrace/message/detail/entries.hpp"

namespace millrace::message {

/// One thread. Only set_up() allocates.
class CallWindow {
  public:
    using Call = detail::CallState;

    /// For up to `most` requests at a time, before the first one.
    void set_up(std::uint32_t most) {
        calls_.resize(std::bit_ceil(std::size_t{most}));
        mask_ = calls_.size() - 1;
    }
    /// As many as the server allows.
    void limit(std::uint32_t most) noexcept { most_ = most; }

    [[nodiscard]] std::uint64_t next() const noexcept { return next_; }
    [[nodiscard]] std::uint64_t lowest() const noexcept { return lowest_; }
    [[nodiscard]] std::uint32_t most() const noexcept { return most_; }
    [[nodiscard]] std::size_t places() const noexcept { return calls_.size(); }
    [[nodiscard]] std::size_t place_of(std::uint64_t id) const noexcept { return id & mask_; }
    /// How many have no answer, those that are not wanted included.
    [[nodiscard, gnu::always_inline]] std::uint64_t open() const noexcept {
        return next_ - lowest_;
    }
    [[nodiscard, gnu::always_inline]] bool is_full() const noexcept { return open() >= most_; }
    [[nodiscard, gnu::always_inline]] bool is_open(std::uint64_t id) const noexcept {
        return id - lowest_ < open();
    }
    [[nodiscard]] Call of(std::uint64_t id) const noexcept { return calls_[id & mask_]; }
    /// How many answers the program waits for.
    [[nodiscard]] std::size_t wanted() const noexcept { return wanted_; }

    /// One more request: its number.
    [[gnu::always_inline]] std::uint64_t add() noexcept {
        calls_[next_ & mask_] = Call::wanted;
        ++wanted_;
        return next_++;
    }
    void add(std::size_t count) noexcept {
        const std::size_t begin = next_ & mask_;
        const std::size_t to_the_end = std::min(count, calls_.size() - begin);
        std::fill_n(calls_.data() + begin, to_the_end, Call::wanted);
        if (count != to_the_end) std::fill_n(calls_.data(), count - to_the_end, Call::wanted);
        next_ += count;
        wanted_ += count;
    }
    /// The program does not want its answer any more.
    void give_up(std::uint64_t id) noexcept {
        calls_[id & mask_] = Call::unwanted;
        --wanted_;
    }
    /// An answer has come that is not wanted.
    void settle(std::uint64_t id) noexcept {
        calls_[id & mask_] = Call::none;
        if (id != lowest_) return;
        do {
            ++lowest_;
        } while (lowest_ != next_ && calls_[lowest_ & mask_] == Call::none);
    }
    /// An answer was handed out, or is kept to be.
    void settle_wanted(std::uint64_t id) noexcept {
        settle(id);
        --wanted_;
    }
    /// After `count` answers that were handed out, and settled in the run: eight at a time, as far
    /// as there are so many.
    void settle_run(std::size_t count) noexcept {
        wanted_ -= count;
        while (lowest_ != next_) {
            const std::size_t here = lowest_ & mask_;
            std::uint64_t eight = 1;
            if (open() >= sizeof eight && calls_.size() - here >= sizeof eight) {
                std::memcpy(&eight, calls_.data() + here, sizeof eight);
            }
            if (eight == 0) {
                lowest_ += sizeof eight;
            } else if (calls_[here] == Call::none) {
                ++lowest_;
            } else {
                return;
            }
        }
    }
    /// Whether somebody wants the answer to the lowest one, which has none.
    [[nodiscard]] bool drop_lowest() noexcept {
        Call& its = calls_[lowest_++ & mask_];
        const bool was_wanted = its == Call::wanted;
        its = Call::none;
        if (was_wanted) --wanted_;
        return was_wanted;
    }

    /// Of the answers between `at` and `end`, which count from the number `from`.
    [[nodiscard, gnu::always_inline]] detail::AnswerRun run(const std::byte* at,
                                                            const std::byte* end,
                                                            std::uint64_t from) noexcept {
        return {.at = at,
                .end = end,
                .from = from,
                .lowest = lowest_,
                .open = open(),
                .mask = mask_,
                .calls = calls_.data()};
    }

  private:
    std::uint64_t next_ = 1;
    std::uint64_t lowest_ = 1;  ///< everything below is answered
    std::uint64_t mask_ = 0;
    std::uint32_t most_ = 0;
    std::size_t wanted_ = 0;
    std::vector<Call> calls_;  ///< by number; side by side, as several are asked for at a time
};

}  // namespace millrace::message
