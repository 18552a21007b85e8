// Long copies into memory that another processor reads next: past the caches where that is faster.
// Used by who stores a peer's bytes and tells it of them afterwards: the soft device's WRITEs to
// regions of relaxed ordering, and the rings of byte streams.
//
// A line that lies changed in another processor's cache has to be fetched from there before it can
// be stored to, even to be overwritten whole, and between processors that share no cache that takes
// longer than to memory: stores past the caches (non-temporal ones) fetch nothing. Between
// processors of one third-level cache, and for copies larger than the second-level ones, ordinary
// stores are faster. Which it is depends on where a program runs, which may change while it runs.
// So each thread tries both ways now and then, apart for each size, and takes the faster one. The
// faster one is not the one whose copies take less time: what the writer spares, the reader may pay
// for, who fetches from memory what would have lain in a cache. So what is compared is the time
// from one copy to the next, which has in it how long the thread waited for its reader in between.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// What is shorter is copied as ever, by whoever copies it.
inline constexpr std::size_t least_long_copy = std::size_t{16} << 10;

/// Copies `bytes`, which are `least_long_copy` at least. The two must not overlap. Bytes become
/// visible in no order, but the last of them (down to the last boundary of 8) behind all others, as
/// a peer may poll them, and all before whatever this thread stores behind it with release order.
void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// Which way the next copy goes, of copies of about one size by one thread. Tells no time itself.
class CopyChoice {
  public:
    enum class Way : std::uint8_t { cached, streaming };

    /// A copy of `bytes` begins at `now`, of any clock: its way. The one before has taken until
    /// now, its reader's share included. But where that is `idle` times as long as the slower way
    /// takes the writer, the program had nothing to copy: then what the writer took counts alone.
    [[nodiscard]] Way begin(std::uint64_t now, std::size_t bytes) noexcept {
        if (bytes_ != 0) {
            const float all = static_cast<float>(now - begun_) / static_cast<float>(bytes_);
            const float most = idle * std::max(own_[0], own_[1]);
            note(all < most ? all : own_of(next_));
        }
        begun_ = now;
        bytes_ = bytes;
        return next_;
    }
    /// It is done, for its writer.
    void end(std::uint64_t now) noexcept {
        own_of(next_) = static_cast<float>(now - begun_) / static_cast<float>(bytes_);
    }
    /// Of the next copy.
    [[nodiscard]] Way next() const noexcept { return next_; }
    /// Behind each copy: that next() one took `cost` for each byte. begin() does it for the last.
    void note(float cost) noexcept;

    /// Copies of a trial, of which the last ones are compared with as many of the other way: those
    /// before show what the way before left in the caches, and what the reader makes of it, who may
    /// be as many copies behind as receives are offered (32 say).
    static constexpr std::uint32_t trial = 48;
    static constexpr std::uint32_t most_compared = 15;
    static constexpr std::uint32_t compared(std::uint32_t of) noexcept {
        return of * most_compared / trial | 1;
    }
    /// Between two trials of so many copies; the worse the other way did, the more of them.
    static constexpr std::uint32_t fewest_between(std::uint32_t of) noexcept { return 50 * of; }
    static constexpr std::uint32_t most_between(std::uint32_t of) noexcept { return 1024 * of; }
    static constexpr float idle = 16;

    constexpr CopyChoice() noexcept = default;
    /// With shorter trials: of copies that take long, and whose readers are few of them behind.
    explicit constexpr CopyChoice(std::uint32_t of) noexcept : trial_{of}, left_{of} {}

  private:
    [[nodiscard]] float typical() noexcept;
    [[nodiscard]] float& own_of(Way way) noexcept { return own_[way == Way::cached ? 0 : 1]; }

    std::uint32_t trial_ = trial;
    Way next_ = Way::cached;
    Way chosen_ = Way::cached;
    bool is_trying_ = false;  ///< next_ is not the chosen one
    std::uint32_t left_ = trial;
    float chosen_cost_ = 0;
    std::size_t bytes_ = 0;  ///< of the last copy; 0: there was none
    std::uint64_t begun_ = 0;
    std::array<float, 2> own_{};  ///< what a byte of the last copy of each way took its writer
    std::array<float, most_compared> last_{};
};

}  // namespace millrace::base
