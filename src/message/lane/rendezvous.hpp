// Messages that do not go through the receiver's ring (LargeMessages in transfer.hpp): one end's
// half of both directions. RingLane (ring_lane.hpp) hands its calls on to it; server and client say
// which announcements are to be followed.
//
//   sender    lays the payload in registered memory of its own, and announces it by a message of
//             40 bytes in the ring, in its order: address, key, length (session.hpp)
//   receiver  READs it, 64 KiB at a time and two of them under way, through the same queue pair as
//             everything else, and looks at the ring in between; then tells the sender how many of
//             its announcements are done with, by one counter in the sender's ControlPage
//   sender    uses the memory again
//
// Announcements are followed in their order, one message after the other, so a counter says all.
// Those that the receiver does not want are counted in their turn, and not READ. What is cancelled
// while it is READ is READ no further, and is counted when nothing of it is under way. So memory
// that a peer may still READ is never used for another message, whatever becomes of the request.
//
// READs are cut up as the requests after one complete only after it: a ring's memory is not used
// again until then, and a WRITE of a small message should not wait for megabytes to end.
//
// The receiver takes memory for at most LargeMessages::max_bytes at a time, or one message, and
// never for more than the length that its caller has allowed. The sender keeps at most as much, and
// `most_announced` messages; what is beyond travels in pieces (ring_lane.hpp). A peer that
// announces memory that is not there breaks its own connection; one that counts what was never
// announced, too.
//
// Memory is kept for the next message, and given back when nobody used it for a second.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "channel/channel_core.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::message {

/// Registered memory of one kind of access, used again. One thread.
class MemoryPool {
  public:
    MemoryPool(std::shared_ptr<connect::Endpoint> endpoint, verbs::Access access,
               std::size_t most_kept) noexcept
        : endpoint_{std::move(endpoint)}, access_{access}, most_kept_{most_kept} {}

    /// At least so many bytes; none: there is no memory, or it cannot be registered.
    [[nodiscard]] verbs::RegisteredBuffer take(std::size_t size) noexcept;
    void give_back(verbs::RegisteredBuffer memory) noexcept;
    /// Gives back to the system what nobody has used for long.
    void tidy(base::Clock::time_point now) noexcept;
    [[nodiscard]] bool empty() const noexcept { return kept_.empty(); }

  private:
    struct Kept {
        verbs::RegisteredBuffer memory;
        base::Clock::time_point since;
    };
    std::shared_ptr<connect::Endpoint> endpoint_;  ///< outlives what is registered there
    verbs::Access access_;
    std::size_t most_kept_;
    std::size_t kept_bytes_ = 0;
    std::vector<Kept> kept_;
};

/// One thread. Never blocks. Must outlive the queue pair of `core`, as that may READ into it.
class Rendezvous {
  public:
    /// `part`: whose the memory is that it READs into.
    Rendezvous(Channel::Core& core, const LargeMessages& setting, HeldPart part = HeldPart{});

    // --- sending

    /// Memory for a payload of `size` bytes, until announce(); asked once more before that, it is
    /// the next payload's. False: it has to go in pieces.
    [[nodiscard]] bool claim(std::size_t size, std::span<std::byte>& place);
    /// The first `size` bytes of what was claimed are a message with this head. What is to be sent.
    struct Announced {
        SessionHead head;
        std::array<std::byte, announcement_bytes> where;
    };
    [[nodiscard]] Announced announce(const SessionHead& head, std::size_t size);
    /// What was announced last was not sent.
    void take_back() noexcept;
    /// Takes note of what the peer is done with. False: it counts what was never announced.
    [[nodiscard]] bool reclaim() noexcept;
    /// Some of what was announced is not done with, as far as is known.
    [[nodiscard]] bool has_announced() const noexcept { return !announced_.empty(); }
    /// So many since it was asked last.
    [[nodiscard]] std::uint64_t count_announced() noexcept {
        return announcements_ - std::exchange(counted_announcements_, announcements_);
    }
    /// Bytes of announced payload that the peer is not done with.
    [[nodiscard]] std::size_t staged_bytes() const noexcept { return staged_bytes_; }
    /// Bytes of announced payload that the peer was done with, all in all.
    [[nodiscard]] std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }

    // --- receiving

    /// The message `head`, its kind that of one in a ring, is to be READ. False: more was announced
    /// than may be.
    [[nodiscard]] bool fetch(const SessionHead& head, const Announcement& from);
    /// What was announced last is not wanted. False as fetch().
    [[nodiscard]] bool decline();
    /// No more of it is READ, if it is on its way; it ends as any other, with no payload.
    bool give_up(std::uint64_t id) noexcept;
    [[nodiscard]] bool is_fetching(std::uint64_t id) const noexcept;
    /// Some of it will be handed out.
    [[nodiscard]] bool wants_some() const noexcept;
    /// There is something to do for pump(), or to hand out, now or later.
    [[nodiscard]] bool is_busy() const noexcept { return !coming_.empty() || owes_count_; }
    /// Some of it is done with, and was not handed out.
    [[nodiscard]] bool has_done() const noexcept { return done_ != 0; }
    /// … now.
    [[nodiscard]] bool is_due() noexcept;
    /// Another number, once a READ is complete, or a message is done with.
    [[nodiscard]] std::uint64_t progress() const noexcept { return counted_ + complete_; }
    /// What comes through the ring waits for a message that is to be READ before.
    [[nodiscard]] bool holds_ring() const noexcept;
    /// Takes what has been READ, and posts further READs. `ok`, or `peer_lost`.
    base::Status pump() noexcept;

    enum class Arrival : std::uint8_t { none, whole, given_up, no_memory };
    /// How the next message ended that was to be READ, in the order of announcements.
    [[nodiscard]] Arrival arrival() noexcept;
    /// Its head and payload, side by side; only the head if it is not whole. Until pop().
    [[nodiscard]] std::span<const std::byte> message() const noexcept;
    void pop() noexcept;

    // --- memory

    [[nodiscard]] bool keeps_memory() const noexcept {
        return !staging_.empty() || !landing_.empty();
    }
    void tidy(base::Clock::time_point now) noexcept {
        staging_.tidy(now);
        landing_.tidy(now);
    }

  private:
    /// Where a payload begins in memory that it is READ into: after its head, on a cache line.
    static constexpr std::size_t payload_at = 64;
    static constexpr std::size_t read_bytes = std::size_t{64} << 10;
    static constexpr std::size_t most_reads = 2;
    /// Slots of the send queue that stay free for what is smaller.
    static constexpr std::uint32_t slots_for_others = 8;

    struct Staged {
        verbs::RegisteredBuffer memory;
        std::size_t bytes = 0;
    };
    struct Coming {
        enum class State : std::uint8_t { wanted, given_up, no_memory, declined };
        SessionHead head{};
        Announcement from{};
        State state = State::declined;
        verbs::RegisteredBuffer memory{};
        std::uint64_t asked = 0;   ///< bytes, of which READs were posted
        std::uint64_t ticket = 0;  ///< of the last of these
    };

    [[nodiscard]] bool is_done(const Coming& one) const noexcept;
    [[nodiscard]] bool has_room() const noexcept { return coming_.size() < most_announced; }
    /// Memory for it. False: not yet.
    [[nodiscard]] bool land(Coming& one) noexcept;
    void release(Coming& one) noexcept;
    base::Status ask() noexcept;
    void count() noexcept;
    base::Status tell() noexcept;

    Channel::Core* core_;
    LargeMessages setting_;
    HeldPart part_;  ///< of landing_bytes_
    MemoryPool staging_;
    MemoryPool landing_;

    verbs::RegisteredBuffer claimed_;
    std::deque<Staged> announced_;
    std::size_t staged_bytes_ = 0;  ///< of announced_
    std::uint64_t taken_bytes_ = 0;
    std::uint64_t announcements_ = 0;          ///< all in all
    std::uint64_t counted_announcements_ = 0;  ///< of these, those that were asked for
    ring::PeerPosition taken_;                 ///< of these, as far as the peer has told

    std::deque<Coming> coming_;
    std::size_t done_ = 0;           ///< of the first ones: nothing of them is under way
    std::uint64_t counted_ = 0;      ///< announcements that are done with, all in all
    std::size_t landing_bytes_ = 0;  ///< of payload, in memory of coming_
    std::array<std::uint64_t, most_reads> reads_{};  ///< tickets, the oldest first
    std::size_t under_way_ = 0;                      ///< of reads_
    std::uint64_t complete_ = 0;                     ///< READs, all in all
    bool owes_count_ = false;                        ///< the peer was not told of counted_
    end::PeerWord counter_;                          ///< at the peer, where that is addressable
};

}  // namespace millrace::message
