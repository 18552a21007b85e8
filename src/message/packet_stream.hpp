// A packet stream: one end of a conversation of messages over packets that may be lost, doubled,
// delayed and overtaken by others. Messages of any size, in both directions, each exactly once,
// whole and in order. Pure state: no I/O, no clock of its own. Used by DatagramWire
// (datagram_wire.hpp), which posts what next() says and hands over what has come.
//
// Each direction
//
//   sender    freed ≤ unacknowledged ≤ unsent ≤ laid ≤ limit           numbers of packets
//   receiver  consumed ≤ expected ≤ consumed + room
//
//   A message goes as one packet, written in place, or as several, if it is longer than one. A
//   packet stays in the sender's memory until the receiver has it and every transmission of it has
//   left: packets lie one behind the other in a ring of bytes, and leave it in order.
//
//   The receiver takes packet n if expected ≤ n < consumed + room and it is not here yet. It stays
//   where it came to until the program has read it, or has its piece of a longer message. So what
//   the receiver tells, `limit` = consumed + room, never shrinks, and what keeps to it always finds
//   a place. `expected` is the first that is missing.
//
//   A receiver that shares its memory with others may find it taken. What came out of order is of
//   no use until the gap before it is filled, and may be what has taken the memory, everyone's. So
//   packet `expected` has a place of this receiver alone, and all that is behind it waits for it.
//
//   Every packet of either direction says what has come of the other: `acknowledged` (expected), a
//   bit for each of the 64 behind it, and the limit. So a request is acknowledged by its answer,
//   and the answer by the next request: a call costs one packet each way. There is no packet for
//   acknowledging alone unless it is asked for (`asks`: half of what the sender has room for is on
//   its way), or the limit has moved by half of the room, or a gap is noticed.
//
// What is lost
//
//   by order  Transmissions are counted. Where one is acknowledged, and another one of `tolerance`
//             or more before it is not, the latter is taken for lost and sent again.
//   by time   Only one end, the client's, has a timer: a server with thousands of clients has none
//             to keep, and an idle client costs neither side anything. While something of the
//             client's is unacknowledged, or an answer is awaited (expect()), it sends a packet
//             with `probes` set when nothing has come for a time: the oldest one that is
//             unacknowledged, or one without data. Whoever gets it acknowledges, and sends again
//             the oldest packets that its state shows missing.
//
// Why it ends (every packet comes with some chance): while there is anything to be done, the
// client's timer is set. Is something of its own missing at the server, then each probe brings the
// oldest missing one, or its acknowledgement is what was missing, and the answer to the probe
// brings that. Is an answer missing, then the probe shows the server which, and it sends that one.
// Is the sender's room the matter, the probe, or the answer to it, tells the limit. Each step moves
// one of the numbers above, which never go back. And nothing goes on for ever: a packet is sent
// because the program has laid it; because a later one was acknowledged (each time another one);
// because of a probe (`repeats` at most); or because of the timer, whose pauses double. Packets
// without data are answered only if they probe, and whoever has no timer probes once for each
// packet that came damaged, if it is told of such (note_damaged()), and never otherwise.
//
// Who may say what. A packet with another token is nobody's: late ones of former connections, and
// foreign ones. What bears the token and cannot be true (an acknowledgement of what was not sent, a
// packet beyond the limit, a piece of no message) ends the stream: see failure(). Nothing that
// comes makes this end read or write outside of its memory, allocate more than the longest message,
// or send more than the above.
//
// Source: InfiniBand specification, chapter 9 (UC and UD promise none of it); work 001, section
// 4.2 (numbered messages); acknowledging by what travels anyway, and ranges, are TCP's (RFC 9293,
// 2018), losses by order of transmission RFC 8985, the timer RFC 6298.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "assembly.hpp"
#include "bounded_fifo.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/held_bytes.hpp"
#include "packet.hpp"

namespace millrace::message {

/// What the two ends have agreed on.
struct PacketTerms {
    std::uint64_t own_token = 0;   ///< in packets to this end
    std::uint64_t peer_token = 0;  ///< in packets from it
    std::uint32_t own_first = 0;   ///< number of the first packet to this end
    std::uint32_t peer_first = 0;  ///< and from it
    /// The longest packet from this end, head included; a multiple of 16, larger than a head.
    std::size_t packet_bytes = 4096;
    std::uint32_t own_room = 16;   ///< packets that this end can hold, 1 to most_packets
    std::uint32_t peer_room = 16;  ///< and the peer
    bool has_timer = false;        ///< exactly one of both ends
    std::chrono::nanoseconds first_patience = std::chrono::milliseconds{10};
    std::chrono::nanoseconds least_patience = std::chrono::milliseconds{3};
    std::chrono::nanoseconds most_patience = std::chrono::milliseconds{100};
    /// The longest message to this end that is put together.
    std::size_t max_message_bytes = std::size_t{1} << 20;
    /// The longest packet to this end, for one whose owner's memory may be short: see receive().
    std::size_t spare_bytes = 0;
    /// Whose part such a message is while it is put together; null: nobody's.
    std::shared_ptr<HeldBytes> held{};
};

struct PacketCounts {
    std::uint64_t sent = 0;        ///< transmissions of packets with data
    std::uint64_t repeated = 0;    ///< of these, those that were not the packet's first
    std::uint64_t bare = 0;        ///< packets without data
    std::uint64_t probes = 0;      ///< timers that ran out
    std::uint64_t received = 0;    ///< packets with data, taken
    std::uint64_t duplicates = 0;  ///< that were here already
    std::uint64_t foreign = 0;     ///< that were nobody's
    std::uint64_t dropped = 0;     ///< for which the owner had no memory to spare
    std::uint64_t damaged = 0;     ///< that had come, and could not be read
};

/// One thread. Nothing blocks. Throws bad_alloc only, where messages are longer than a packet or
/// have to wait.
class PacketStream {
  public:
    using Time = base::Clock::time_point;

    /// Of packets without data: the end of the memory is for them.
    static constexpr std::size_t bare_places = 2;
    /// A packet is taken for lost when one was acknowledged that was sent so many later.
    static constexpr std::uint64_t tolerance = 3;
    /// Packets that are sent again for a probe.
    static constexpr std::uint32_t repeats = 4;
    /// The least memory that is enough for packets of this size.
    [[nodiscard]] static constexpr std::size_t least_memory(std::size_t packet_bytes) noexcept {
        return packet_bytes + bare_places * packet_head_bytes;
    }

    /// `memory`: what packets are sent from, aligned to 16 and at least as above.
    PacketStream(const PacketTerms& terms, std::span<std::byte> memory);
    PacketStream(const PacketStream&) = delete;
    PacketStream& operator=(const PacketStream&) = delete;

    // --- what comes

    enum class Arrival : std::uint8_t {
        kept,     ///< the packet is needed where it is, until take_free() names its slot
        passed,   ///< nothing of it is needed any more
        foreign,  ///< it was for somebody else, or is no packet
    };
    /// A packet has come, and lies at `packet`, which is the owner's `slot`. `may_keep` false:
    /// memory is short, so the packet that is read next is copied to the stream's own place for one
    /// (PacketTerms::spare_bytes), unless that is taken; the data of any other is as if lost.
    Arrival receive(std::span<const std::byte> packet, std::uint32_t slot, Time now,
                    bool may_keep = true);
    /// A packet has come of which only that it was for this end is known: the peer is to send the
    /// oldest ones that are missing again.
    void note_damaged() noexcept {
        owes_state_ = owes_probe_ = true;
        ++counts_.damaged;
    }
    /// Slots that were kept and are the owner's again. False: no more.
    [[nodiscard]] bool take_free(std::uint32_t& slot) noexcept;
    /// Gives back all that is kept: nothing is read any more.
    void drop_held() noexcept;

    /// `ok`: the next message, until pass(). `too_large`: it is longer than allowed; `message` is
    /// the beginning of it, until pass(), and the rest will be passed over. `empty`. `closed`:
    /// nothing more comes. `peer_lost`: see failure().
    base::Status look(std::span<const std::byte>& message);
    void pass() noexcept;
    /// What look() called too large was so for want of room (PacketTerms::held).
    [[nodiscard]] bool exceeds_budget() const noexcept { return assembled_.exceeds_budget(); }
    /// A message has come in part. Another number, once another one has begun.
    [[nodiscard]] bool is_assembling() const noexcept { return is_assembling_; }
    [[nodiscard]] std::uint64_t begun() const noexcept { return assembled_.begun(); }
    [[nodiscard]] std::size_t assembled_bytes() const noexcept { return assembled_.bytes().size(); }
    /// A look may find something that is here already.
    [[nodiscard]] bool has_more() const noexcept {
        return whole_ || expected_ != consumed_ || has_ended() || is_broken();
    }

    // --- what goes

    /// As Wire::claim, commit and send: room for a message of one packet, where it is sent from.
    /// Until it is committed, the same place again for no more bytes than before.
    base::Status claim(std::size_t size, std::span<std::byte>& place) noexcept;
    void commit(std::size_t size) noexcept;
    /// Takes a copy of head and payload, which are one message.
    base::Status send(std::span<const std::byte> head, std::span<const std::byte> payload);
    /// What send() took and was not laid into packets yet.
    [[nodiscard]] bool is_clear() const noexcept { return waiting_.empty(); }
    [[nodiscard]] std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept { return flushed_bytes_; }
    /// The peer has everything.
    [[nodiscard]] bool is_acknowledged() const noexcept {
        return unacknowledged_ == laid_ && waiting_.empty();
    }

    /// Another number, once a packet with data has come, or was laid, or was acknowledged.
    [[nodiscard]] std::uint64_t progress() const noexcept {
        return counts_.received + laid_ + unacknowledged_;
    }

    /// The next packet to be posted, within the memory; the same again until it was posted().
    /// Not valid any longer behind any other call. False: there is nothing to send now.
    /// `with_bare` false: what could travel with an answer that may follow at once waits for it.
    [[nodiscard]] bool next(std::span<const std::byte>& packet, Time now,
                            bool with_bare = true) noexcept;
    /// What next() gave was sent before, or has no data: that it has left must be told without
    /// anything else being posted. Of others so many may be left out as take an eighth of the
    /// memory.
    [[nodiscard]] bool wants_completion() const noexcept {
        return offered_bare_ != bare_places || laid_packets_[offered_ & index_mask].is_due;
    }
    /// It was posted, and has left when the ticket is completed. Tickets count up.
    void posted(std::uint64_t ticket, Time now) noexcept;
    /// All tickets up to this one have left.
    void completed(std::uint64_t ticket) noexcept { completed_ = ticket; }
    /// There was no room for a packet whose memory may be free, were it known to have left.
    [[nodiscard]] bool lacks_completions() const noexcept { return lacks_completions_; }

    // --- time

    /// Answers are awaited, or not any more.
    void expect(bool answers, Time now) noexcept;
    /// When wake() has to be called, if nothing comes. Time::max(): never.
    [[nodiscard]] Time due() const noexcept { return is_timed_ ? due_ : Time::max(); }
    /// The timer has run out, if it has.
    void wake(Time now) noexcept;

    // --- the end

    /// The number behind the last packet that was laid: what the peer's end_at() takes.
    [[nodiscard]] std::uint32_t end() const noexcept { return laid_; }
    /// The number behind the last packet that has come, with all before it.
    [[nodiscard]] std::uint32_t got() const noexcept { return expected_; }
    /// The peer sends nothing from this number on: said by other means. False: that cannot be.
    bool end_at(std::uint32_t number, Time now) noexcept;
    /// Why it is over before its end; empty while it is not.
    [[nodiscard]] std::string_view failure() const noexcept { return failure_; }
    [[nodiscard]] const PacketCounts& counts() const noexcept { return counts_; }
    /// Longest message of one packet.
    [[nodiscard]] std::size_t longest_single() const noexcept {
        return terms_.packet_bytes - packet_head_bytes;
    }

  private:
    static constexpr std::uint32_t spare_slot = ~std::uint32_t{0};

    /// A packet that was received and not read.
    struct Held {
        const std::byte* payload = nullptr;
        std::uint32_t slot = 0;
        std::uint16_t length = 0;
        std::uint16_t flags = 0;
    };
    /// A packet that was laid and may be needed.
    struct Laid {
        std::size_t offset = 0;
        std::size_t bytes = 0;    ///< its head included
        std::uint64_t order = 0;  ///< of its last transmission
        std::uint64_t ticket = 0;
        Time sent{};
        std::uint16_t flags = 0;
        bool is_repeated = false;
        bool is_acknowledged = false;
        bool is_due = false;  ///< to be sent again
    };
    static constexpr std::uint32_t index_mask = most_packets - 1;

    [[nodiscard]] Laid& laid(std::uint32_t number) noexcept {
        return laid_packets_[number & index_mask];
    }
    [[nodiscard]] bool is_broken() const noexcept { return !failure_.empty(); }
    [[nodiscard]] bool has_ended() const noexcept { return end_.has_value() && consumed_ == *end_; }
    /// Behind the last packet that this end has a place for.
    [[nodiscard]] std::uint32_t own_limit() const noexcept { return consumed_ + terms_.own_room; }
    void fail(std::string_view why) noexcept {
        if (failure_.empty()) failure_ = why;
    }

    /// False: it cannot be so.
    bool take_state(const PacketHead& head, Time now) noexcept;
    void note_acknowledged(Laid& packet, Time now) noexcept;
    void repeat(Laid& packet) noexcept {
        if (packet.is_acknowledged || packet.is_due) return;
        packet.is_due = true;
        ++due_packets_;
    }
    void repeat_overtaken() noexcept;
    void repeat_oldest() noexcept;
    Arrival take_data(const PacketHead& head, std::span<const std::byte> payload,
                      std::uint32_t slot, bool may_keep) noexcept;
    void release_front() noexcept;
    /// Nothing is needed any more where that packet lies.
    void free(const Held& held) noexcept;

    [[nodiscard]] std::optional<std::size_t> place_for(std::size_t bytes) noexcept;
    void free_packets() noexcept;
    /// Cuts one packet off what waits. False: nothing waits, or there is no room.
    bool cut() noexcept;
    void lay(std::size_t offset, std::size_t payload, std::uint16_t flags) noexcept;
    std::span<const std::byte> offer(std::byte* place, std::uint32_t sequence, std::size_t payload,
                                     std::uint16_t flags) noexcept;
    [[nodiscard]] bool asks(std::size_t bytes) const noexcept;

    [[nodiscard]] bool is_waiting() const noexcept {
        return unacknowledged_ != laid_ || !waiting_.empty() || is_blocked_ || expects_ ||
               (end_.has_value() && expected_ != *end_);
    }
    [[nodiscard]] std::chrono::nanoseconds patience() const noexcept;
    /// Something has gone on: the timer begins anew, if there is anything to wait for.
    void restart(Time now) noexcept;
    void measure(std::chrono::nanoseconds round_trip) noexcept;

    PacketTerms terms_;
    std::span<std::byte> memory_;  ///< of packets with data
    std::byte* bare_memory_;

    // The receiver.
    std::uint32_t consumed_;
    std::uint32_t expected_;
    std::uint64_t beyond_ = 0;  ///< bit i: packet expected + 1 + i is held
    std::uint32_t told_limit_;
    std::uint32_t gap_told_;  ///< `expected` when a gap was noticed
    bool has_told_gap_ = false;
    bool owes_state_ = false;
    std::array<Held, most_packets> held_{};
    std::vector<std::byte> spare_;  ///< where one payload lies that the owner has no memory for
    bool spare_is_taken_ = false;
    BoundedFifo<std::uint32_t> free_slots_{most_packets};
    Assembly assembled_;
    bool is_assembling_ = false;
    bool is_skipping_ = false;   ///< the rest of a message that is too large
    bool whole_ = false;         ///< `assembled_` is handed out until pass()
    bool is_too_large_ = false;  ///< … as what a message that is too large begins with
    std::optional<std::uint32_t> end_;

    // The sender.
    std::uint32_t freed_;
    std::uint32_t unacknowledged_;
    std::uint32_t unsent_;
    std::uint32_t laid_;
    std::uint32_t limit_;
    std::array<Laid, most_packets> laid_packets_{};
    std::size_t front_ = 0;  ///< of the ring: where the next packet is laid
    std::size_t claimed_ = 0;
    std::size_t claimed_bytes_ = 0;  ///< 0: nothing is claimed; its head included
    bool is_blocked_ = false;        ///< the program has found the peer's room taken
    std::uint32_t due_packets_ = 0;  ///< that have to be sent again
    std::uint64_t orders_ = 0;
    std::uint64_t order_acknowledged_ = 0;
    std::uint64_t completed_ = 0;
    bool lacks_completions_ = false;
    std::uint32_t asked_ = 0;  ///< packets that were sent since one has asked, or all were there
    std::size_t asked_bytes_ = 0;  ///< of these
    std::deque<std::vector<std::byte>> waiting_;
    std::size_t begun_ = 0;  ///< bytes of the first one that were cut off
    std::size_t waiting_bytes_ = 0;
    std::uint64_t flushed_bytes_ = 0;
    std::array<std::uint64_t, bare_places> bare_tickets_{};

    // What next() gave.
    std::uint32_t offered_ = 0;  ///< number of a packet with data, unless it is bare
    std::size_t offered_bare_ = bare_places;
    std::uint16_t offered_flags_ = 0;
    bool is_offered_as_it_was_ = false;  ///< it is under way, and its head must not be touched

    // Time.
    bool expects_ = false;
    bool owes_probe_ = false;
    bool is_timed_ = false;
    Time due_{};
    unsigned attempts_ = 0;
    std::chrono::nanoseconds round_trip_{0};  ///< 0: none was measured
    std::chrono::nanoseconds variation_{0};

    std::string_view failure_;
    PacketCounts counts_;
};

}  // namespace millrace::message
