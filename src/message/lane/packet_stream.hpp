// A packet stream: one end of a conversation of messages over packets that may be lost, doubled,
// delayed and overtaken by others. Messages of any size, in both directions, each exactly once,
// whole and in order. Pure state: no I/O, no clock of its own. Its halves are PacketReceiver and
// PacketSender; here is what joins them: heads of packets, and time. Used by PacketLane
// (packet_lane.hpp), which posts what next() says and hands over what has come.
//
// Each direction
//
//   sender    freed ≤ unacknowledged ≤ unsent ≤ laid ≤ limit           numbers of packets
//   receiver  consumed ≤ expected ≤ consumed + room
//
//   A message goes as one packet, written in place, or as several, if it is longer than one. A
//   packet stays in the sender's memory until the receiver has it and every transmission of it has
//   left: packets lie one after the other in a ring of bytes, and leave it in order.
//
//   The receiver takes packet n if expected ≤ n < consumed + room and it is not here yet. It stays
//   where it came to until the program has read it, or has its piece of a longer message. So what
//   the receiver tells, `limit` = consumed + room, never shrinks, and what keeps to it always finds
//   a place. `expected` is the first that is missing.
//
//   A receiver that shares its memory with others may find it taken. What came out of order is of
//   no use until the gap before it is filled, and may be what has taken the memory, everyone's. So
//   packet `expected` has a place of this receiver alone, and all that comes after it waits for it.
//
//   Every packet of either direction says what has come of the other: `acknowledged` (expected), a
//   bit for each of the 64 after it, and the limit. So a request is acknowledged by its answer,
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
//             unacknowledged, or one without data. The end that gets it acknowledges, and sends
//             again the oldest packets that its state shows missing.
//
// Why it ends (every packet comes with some chance): while there is anything to be done, the
// client's timer is set. Is something of its own missing at the server, then each probe brings the
// oldest missing one, or its acknowledgement is what was missing, and the answer to the probe
// brings that. Is an answer missing, then the probe shows the server which, and it sends that one.
// Is the sender's room the matter, the probe, or the answer to it, tells the limit. Each step moves
// one of the numbers above, which never go back. And nothing goes on for ever: a packet is sent
// because the program has laid it; because a later one was acknowledged (each time another one);
// because of a probe (`repeats` at most); or because of the timer, whose pauses double. Packets
// without data are answered only if they probe, and an end without a timer probes once for each
// packet that came damaged, if it is told of that (note_damaged()), and never else.
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
#include <span>
#include <string_view>

#include "lane/packet_receiver.hpp"
#include "lane/packet_sender.hpp"
#include "lane/packet_terms.hpp"
#include "millrace/base/status.hpp"

namespace millrace::message {

/// One thread. Nothing blocks. Throws bad_alloc only, where messages are longer than a packet or
/// have to wait.
class PacketStream {
  public:
    using Time = PacketTime;
    using Arrival = PacketArrival;

    /// Of packets without data: the end of the memory is for them.
    static constexpr std::size_t bare_places = 2;
    /// The least memory that is enough for packets of this size.
    [[nodiscard]] static constexpr std::size_t least_memory(std::size_t packet_bytes) noexcept {
        return packet_bytes + bare_places * packet_head_bytes;
    }

    /// `memory`: what packets are sent from, aligned to 16 and at least as above.
    PacketStream(const PacketTerms& terms, std::span<std::byte> memory);
    PacketStream(const PacketStream&) = delete;
    PacketStream& operator=(const PacketStream&) = delete;

    // --- what comes

    /// A packet has come, and lies at `packet`, which is the owner's `slot`. `may_keep` false:
    /// memory is short, so the packet that is read next is copied to the stream's own place for one
    /// (PacketTerms::spare_bytes), unless that is taken; the data of any other is as if lost.
    Arrival receive(std::span<const std::byte> packet, std::uint32_t slot, Time now,
                    bool may_keep = true);
    /// A packet has come of which only that it was for this end is known: the peer is to send the
    /// oldest ones that are missing again.
    void note_damaged() noexcept {
        receiver_.owe_state();
        owes_probe_ = true;
        ++log_.counts.damaged;
    }
    /// Slots that were kept and are the owner's again. False: no more.
    [[nodiscard]] bool take_free(std::uint32_t& slot) noexcept { return receiver_.take_free(slot); }
    /// Gives back all that is kept: nothing is read any more.
    void drop_held() noexcept { receiver_.drop_held(); }

    /// `ok`: the next message, until pass(). `too_large`: it is longer than allowed; `message` is
    /// the beginning of it, until pass(), and the rest will be passed over. `empty`. `closed`:
    /// nothing more comes. `peer_lost`: see failure().
    base::Status look(std::span<const std::byte>& message) { return receiver_.look(message); }
    void pass() noexcept { receiver_.pass(); }
    /// What look() called too large was so for want of room (PacketTerms::held).
    [[nodiscard]] bool exceeds_budget() const noexcept {
        return receiver_.assembled().exceeds_budget();
    }
    [[nodiscard]] Begun begun() const noexcept { return receiver_.assembled().begun(); }
    /// A look may find something that is here already.
    [[nodiscard]] bool has_more() const noexcept {
        return receiver_.has_more() || log_.is_broken();
    }

    // --- what goes

    /// As Lane::claim, commit and send: room for a message of one packet, where it is sent from.
    /// Until it is committed, the same place again for no more bytes than before.
    base::Status claim(std::size_t size, std::span<std::byte>& place) noexcept {
        return sender_.claim(size, place);
    }
    void commit(std::size_t size) noexcept { sender_.commit(size); }
    /// Takes a copy of head and payload, which are one message.
    base::Status send(std::span<const std::byte> head, std::span<const std::byte> payload) {
        return sender_.send(head, payload);
    }
    /// What send() took and was not laid into packets yet.
    [[nodiscard]] bool is_clear() const noexcept { return sender_.kept().empty(); }
    [[nodiscard]] std::size_t waiting_bytes() const noexcept { return sender_.kept().bytes(); }
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept {
        return sender_.kept().flushed_bytes();
    }
    /// The peer has everything.
    [[nodiscard]] bool is_acknowledged() const noexcept { return sender_.is_acknowledged(); }

    /// Another number, once a packet with data has come, or was laid, or was acknowledged.
    [[nodiscard]] std::uint64_t progress() const noexcept {
        return log_.counts.received + sender_.progress();
    }

    /// The next packet to be posted, within the memory; the same again until it was posted().
    /// Not valid any longer after any other call. False: there is nothing to send now.
    /// `with_bare` false: what could travel with an answer that may follow at once waits for it.
    [[nodiscard]] bool next(std::span<const std::byte>& packet, Time now,
                            bool with_bare = true) noexcept;
    /// What next() gave was sent before, or has no data: that it has left must be told without
    /// anything else being posted. Of others so many may be left out as take an eighth of the
    /// memory.
    [[nodiscard]] bool wants_completion() const noexcept {
        return offered_bare_ != bare_places || sender_.at(offered_).is_due;
    }
    /// It was posted, and has left when the ticket is completed. Tickets count up.
    void posted(std::uint64_t ticket, Time now) noexcept;
    /// All tickets up to this one have left.
    void completed(std::uint64_t ticket) noexcept { sender_.completed(ticket); }
    /// There was no room for a packet whose memory may be free, were it known to have left.
    [[nodiscard]] bool lacks_completions() const noexcept { return sender_.lacks_completions(); }

    // --- time

    /// Answers are awaited, or not any more.
    void expect(bool answers, Time now) noexcept;
    /// When wake() has to be called, if nothing comes. Time::max(): never.
    [[nodiscard]] Time due() const noexcept { return is_timed_ ? due_ : Time::max(); }
    /// The timer has run out, if it has.
    void wake(Time now) noexcept;

    // --- the end

    /// The number after the last packet that was laid: what the peer's end_at() takes.
    [[nodiscard]] std::uint32_t end() const noexcept { return sender_.end(); }
    /// The number after the last packet that has come, with all before it.
    [[nodiscard]] std::uint32_t got() const noexcept { return receiver_.expected(); }
    /// The peer sends nothing from this number on: said by other means. False: that cannot be.
    bool end_at(std::uint32_t number, Time now) noexcept;
    /// Why it is over before its end; empty while it is not.
    [[nodiscard]] std::string_view failure() const noexcept { return log_.failure; }
    [[nodiscard]] const PacketCounts& counts() const noexcept { return log_.counts; }
    /// Longest message of one packet.
    [[nodiscard]] std::size_t longest_single() const noexcept { return sender_.longest_single(); }

  private:
    std::span<const std::byte> offer(std::byte* place, std::uint32_t sequence, std::size_t payload,
                                     std::uint16_t flags) noexcept;
    [[nodiscard]] bool is_waiting() const noexcept {
        return expects_ || sender_.is_waiting() || receiver_.awaits_end();
    }
    [[nodiscard]] std::chrono::nanoseconds patience() const noexcept;
    /// Something has gone on: the timer begins anew, if there is anything to wait for.
    void restart(Time now) noexcept;

    PacketTerms terms_;
    PacketLog log_;
    PacketReceiver receiver_;
    PacketSender sender_;
    std::byte* bare_memory_;
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
};

}  // namespace millrace::message
