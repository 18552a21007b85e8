// Credits: how many messages an end may send before the peer has taken some of them. Used by
// Connection. One thread.
//
// Each end has a number of slots (slot.hpp), and has read a slot's message before it sends anything
// that says so. Every message takes a slot of the peer, and every message says how many of
// the peer's have been taken (header.credits), so credits come back with whatever is sent.
//
// So that nobody waits for credits whose return waits for credits, they are spent in three tiers:
//
//   transfers              leave `reserve_of(slots)` of them for what follows
//   ADVERT, ACK, CANCEL,   leave the last one
//   CANCELLED, FIN
//   CREDIT                 takes the last one, too, but is sent only when `threshold_of(slots)`
//   credits
//                          or more are owed
//
// Why that suffices: let all that was sent be taken. Who may not send a transfer has spent at least
// slots - reserve credits, the peer owes them, and that is no less than the threshold; so the peer
// sends CREDIT, if it has a credit. If it has none, its last one went for a CREDIT; that returned
// two or more to this end, which are spent only if its own last went for a CREDIT, behind the
// peer's; and that one returned two or more to the peer. And CREDITs do not go to and fro for ever:
// it takes at least two of one end to make one of the other due.
//
// Source: work 003 leaves this open.
#pragma once

#include <algorithm>
#include <cstdint>

#include "violation.hpp"

namespace millrace::stream {

/// Of one end, for the messages of the other.
inline constexpr std::uint32_t fewest_slots = 6;
inline constexpr std::uint32_t most_slots = 1U << 16;

[[nodiscard]] constexpr std::uint32_t reserve_of(std::uint32_t slots) noexcept {
    return std::clamp(slots / 4, 2U, 32U);
}
[[nodiscard]] constexpr std::uint32_t threshold_of(std::uint32_t slots) noexcept {
    return (slots - reserve_of(slots)) / 2;
}
static_assert(threshold_of(fewest_slots) >= 2);

/// How many more than `known` a header's credits say, whose upper half does not travel. What is out
/// is far less than 2^32, so a number that goes back shows as one that is far too large.
[[nodiscard]] constexpr std::uint32_t credits_beyond(std::uint64_t known,
                                                     std::uint32_t word) noexcept {
    return word - static_cast<std::uint32_t>(known);
}

class Credits {
  public:
    /// Both within [fewest_slots, most_slots].
    Credits(std::uint32_t own_slots, std::uint32_t peer_slots) noexcept
        : own_slots_{own_slots}, peer_slots_{peer_slots} {}

    /// So many of them, one behind the other.
    [[nodiscard]] bool transfer_allowed(std::uint32_t count = 1) const noexcept {
        return available() >= reserve_of(peer_slots_) + count;
    }
    [[nodiscard]] bool control_allowed() const noexcept { return available() > 1; }
    /// A CREDIT is due, and may be sent.
    [[nodiscard]] bool return_due() const noexcept {
        return owed() >= threshold_of(own_slots_) && available() > 0;
    }

    /// Counts a message that is sent now, and answers what its header says of credits.
    [[nodiscard]] std::uint32_t spend() noexcept {
        ++sent_;
        told_ = taken_;
        return static_cast<std::uint32_t>(told_);
    }

    /// A message of the peer came whose header says `returned`.
    [[nodiscard]] Violation take(std::uint32_t returned) noexcept {
        ++taken_;
        if (taken_ - told_ > own_slots_) return Violation::credit_overrun;
        const std::uint32_t news = credits_beyond(returned_, returned);
        if (news > sent_ - returned_) return Violation::credit_forged;
        returned_ += news;
        return Violation::none;
    }

    [[nodiscard]] std::uint64_t available() const noexcept {
        return peer_slots_ - (sent_ - returned_);
    }
    [[nodiscard]] std::uint64_t owed() const noexcept { return taken_ - told_; }
    /// Messages of this end that the peer has said to have taken.
    [[nodiscard]] std::uint64_t returned() const noexcept { return returned_; }

  private:
    std::uint32_t own_slots_;
    std::uint32_t peer_slots_;
    std::uint64_t sent_ = 0;      ///< messages of this end
    std::uint64_t returned_ = 0;  ///< ... that the peer has said to have taken
    std::uint64_t taken_ = 0;     ///< messages of the peer
    std::uint64_t told_ = 0;      ///< ... of which the peer has been told
};

}  // namespace millrace::stream
