// Two ends of a byte stream, joined by two pipes that keep order and take as long as they like,
// with memory, and with a judge: whatever happens at either end is compared with a queue of bytes.
// Driven step by step by the tests of this folder.
//
// What is judged: every byte comes in order and exactly once; a WRITE lands in the ring, or in the
// buffer of a receive that its program has not got back, where that was advertised; a buffer comes
// back when the protocol says so; a fresh advertisement is not thrown away; messages find a
// receive; nobody stands still who has something to do. Where messages are kept, each receive has
// one, cut off where it is too long, and says so.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "connection.hpp"
#include "millrace/base/status.hpp"

namespace millrace::stream {

/// The byte at a position of the stream that an end sends.
inline std::uint8_t content(unsigned end, std::uint64_t position) {
    return static_cast<std::uint8_t>(((position + 1) * 0x9e3779b97f4a7c15 + end) >> 24);
}

class TwoEnds {
  public:
    static constexpr std::uint64_t longest_receive = 32;

    /// `terms` are those of end 0.
    explicit TwoEnds(const Terms& terms) : ends_{End{terms}, End{mirrored(terms)}} {}

    // ---- the programs

    base::Status send(unsigned end, std::uint64_t length, bool patient = false,
                      bool at_once = false) {
        End& at = ends_[end];
        const base::Status status = at.core.send(at.sends.size(), length, patient, at_once);
        if (status == base::Status::ok) {
            at.sends.push_back({at.sent, length, false});
            at.sent += length;
            if (!patient) at.impatient = at.sent;
        }
        return status;
    }
    base::Status receive(unsigned end, std::uint64_t length, bool wait_all = false,
                         bool advertised = true) {
        End& at = ends_[end];
        const std::uint64_t id = at.receives.size();
        wait_all = wait_all && !keeps_messages(1 - end);
        const base::Status status =
            at.core.receive({id, address_of(id), length, key_of(id), wait_all, advertised});
        if (status == base::Status::ok) at.receives.push_back({length, wait_all});
        return status;
    }
    /// Of what `end` receives.
    [[nodiscard]] Mode mode_towards(unsigned end) const { return ends_[1 - end].mode; }
    /// Of what `end` sends.
    [[nodiscard]] bool keeps_messages(unsigned end) const { return ends_[end].mark_bytes != 0; }
    base::Status cancel(unsigned end, std::uint64_t id) {
        const base::Status status = ends_[end].core.cancel(id);
        if (status == base::Status::ok) ends_[end].receives[id].cancelled = true;
        return status;
    }
    /// What is first in the ring is looked at where it lies; false: there is nothing to lend.
    bool lend(unsigned end) {
        End& at = ends_[end];
        const bool was_lent = at.core.receiver().is_lent();
        Lent lent;
        if (!at.core.lend(lent)) return false;
        judge(lent.ring_offset + lent.length <= at.ring.size() &&
                  (lent.length != 0 || lent.ends_message),
              "what is lent stays within the ring");
        judge(
            !was_lent || (lent.ring_offset == at.lent.ring_offset && lent.length >= at.lent.length),
            "what is lent stays where it is");
        at.lent = lent;
        judge_lent(end);
        return true;
    }
    /// `length`, or less, if less was lent.
    void give_back(unsigned end, std::uint64_t length) {
        End& at = ends_[end];
        if (!at.core.receiver().is_lent()) return;
        judge_lent(end);
        length = std::min(length, at.lent.length);
        std::memset(at.ring.data() + at.lent.ring_offset, 0xee, length);
        at.core.give_back(length);
        at.received += length;
        if (length == at.lent.length && at.lent.ends_message) {
            const End& from = ends_[1 - end];
            judge(at.messages_taken < from.sends.size() &&
                      at.received == from.sends[at.messages_taken].begin +
                                         from.sends[at.messages_taken].length,
                  "what is lent ends with its message");
            ++at.messages_taken;
        }
        lent_ += length;
    }
    void shut_down(unsigned end) {
        ends_[end].core.shut_down();
        ends_[end].shut_down = true;
    }

    // ---- steps

    /// Does what the end wants done next; false: nothing.
    bool act(unsigned end, bool may_post = true) {
        const Action action = ends_[end].core.next(may_post);
        return std::visit([&](const auto& what) { return perform(end, what); }, action);
    }
    void act_all(unsigned end) {
        while (act(end)) {
        }
    }
    /// What this end sent first of all that is on its way reaches the other; false: nothing is.
    bool arrive(unsigned from) {
        End& at = ends_[from];
        if (at.pipe.empty()) return false;
        const Packet packet = at.pipe.front();
        at.pipe.pop_front();
        if (packet.write) {
            land(from, *packet.write);
        } else {
            --at.messages;
            deliver(from, packet.message);
        }
        return true;
    }
    void arrive_all(unsigned from) {
        while (arrive(from)) {
        }
    }
    /// The completions of all WRITEs of this end that have landed; false: there are none.
    bool complete(unsigned end) {
        End& at = ends_[end];
        if (at.completed == at.landed) return false;
        at.core.written(at.landed - at.completed);
        at.completed = at.landed;
        at.marks_completed = at.marks_landed;
        return true;
    }
    /// Time passes; false: nobody waited for it.
    bool stop_awaiting(unsigned end) {
        if (!ends_[end].core.sender().is_awaiting()) return false;
        ++awaited_in_vain_;
        ends_[end].core.stop_awaiting();
        return true;
    }
    /// Until neither end has anything to do and nothing is on its way. Then nobody may be waiting
    /// for what could happen by itself.
    void settle() {
        for (unsigned round = 0; failure_.empty(); ++round) {
            bool moved = false;
            for (unsigned end = 0; end < 2; ++end) {
                while (act(end)) moved = true;
                while (arrive(end)) moved = true;
                moved |= complete(end);
            }
            // Time passes where nothing else does.
            for (unsigned end = 0; !moved && end < 2; ++end) moved |= stop_awaiting(end);
            if (!moved) break;
            if (round == 10'000) fail("messages go to and fro for ever");
        }
        if (failure_.empty()) judge_stall(0), judge_stall(1);
    }

    /// The connection breaks; what is on its way is lost.
    void break_off() {
        for (unsigned end = 0; end < 2; ++end) {
            ends_[end].pipe.clear();
            ends_[end].broken = true;
            ends_[end].core.break_off();
            act_all(end);
            judge(ends_[end].sends_done == ends_[end].sends.size(), "every send ends");
            for (const ReceiveRecord& record : ends_[end].receives) {
                judge(record.done.has_value(), "every receive ends");
            }
        }
    }

    // ---- what is so

    [[nodiscard]] const std::string& failure() const { return failure_; }
    [[nodiscard]] const Sender& sender(unsigned end) const { return ends_[end].core.sender(); }
    [[nodiscard]] const Receiver& receiver(unsigned end) const {
        return ends_[end].core.receiver();
    }
    [[nodiscard]] Connection& core(unsigned end) { return ends_[end].core; }
    [[nodiscard]] std::size_t in_flight(unsigned from) const { return ends_[from].pipe.size(); }
    /// Bytes that this end's program has received, and sent.
    [[nodiscard]] std::uint64_t received(unsigned end) const { return ends_[end].received; }
    [[nodiscard]] std::uint64_t sent(unsigned end) const { return ends_[end].sent; }
    /// Messages that this end's program has received, and those that were cut off.
    [[nodiscard]] std::uint64_t messages(unsigned end) const { return ends_[end].messages_taken; }
    [[nodiscard]] std::uint64_t cut_off(unsigned end) const { return ends_[end].cut_off; }
    /// Bytes that the programs have taken out of the rings where they lay.
    [[nodiscard]] std::uint64_t lent() const { return lent_; }
    /// Sends that waited for an advertisement until time was over.
    [[nodiscard]] std::uint64_t awaited_in_vain() const { return awaited_in_vain_; }
    [[nodiscard]] std::uint64_t sends(unsigned end) const { return ends_[end].sends.size(); }
    [[nodiscard]] std::uint64_t receives(unsigned end) const { return ends_[end].receives.size(); }
    /// How many bytes a receive got and how it ended, if it has.
    [[nodiscard]] std::optional<ReceiveDone> done(unsigned end, std::uint64_t id) const {
        return ends_[end].receives[id].done;
    }
    [[nodiscard]] bool send_done(unsigned end, std::uint64_t id) const {
        return ends_[end].sends[id].done;
    }

  private:
    struct SendRecord {
        std::uint64_t begin;
        std::uint64_t length;
        bool done;
    };
    struct ReceiveRecord {
        std::uint64_t length;
        bool wait_all;
        bool cancelled = false;
        std::optional<ReceiveDone> done{};
        std::array<std::uint8_t, longest_receive> bytes{};
    };
    struct Landing {
        bool direct;
        std::uint64_t address;
        std::uint32_t key;
        std::uint32_t places;
        std::vector<std::uint8_t> bytes;
    };
    struct Packet {
        std::optional<Landing> write;
        EncodedMessage message{};
    };
    struct End {
        explicit End(const Terms& terms)
            : mode{terms.outgoing.mode},
              slots{terms.peer_slots},
              coalesced{terms.coalesced_bytes},
              awaited{terms.awaited_bytes},
              mark_bytes{terms.outgoing.mark_bytes},
              core{terms},
              ring(terms.incoming.ring_bytes) {}
        Mode mode;            ///< of what it sends
        std::uint32_t slots;  ///< for its messages
        std::uint32_t coalesced;
        std::uint64_t awaited;
        std::uint32_t mark_bytes;  ///< of what it sends
        bool broken = false;
        bool shut_down = false;
        Connection core;
        std::vector<std::uint8_t> ring;
        std::deque<Packet> pipe;     ///< on its way to the other end
        std::uint32_t messages = 0;  ///< ... of these
        std::vector<SendRecord> sends;
        std::vector<ReceiveRecord> receives;
        std::uint64_t sent = 0;
        std::uint64_t impatient = 0;  ///< ... up to the end of the last send that is not patient
        std::uint64_t landed = 0;
        std::uint64_t completed = 0;
        std::uint64_t marks_landed = 0;
        std::uint64_t marks_completed = 0;
        std::uint64_t received = 0;
        std::uint64_t messages_taken = 0;
        std::uint64_t cut_off = 0;
        std::uint64_t sends_done = 0;
        Lent lent;  ///< while the receiver says so
    };

    static Terms mirrored(Terms terms) {
        std::swap(terms.outgoing, terms.incoming);
        std::swap(terms.own_slots, terms.peer_slots);
        return terms;
    }
    static std::uint64_t address_of(std::uint64_t id) { return (id + 1) << 12; }
    static std::uint32_t key_of(std::uint64_t id) { return static_cast<std::uint32_t>(id * 7 + 1); }

    void fail(const std::string& what) {
        if (failure_.empty()) failure_ = what;
    }
    bool judge(bool holds, const char* what) {
        if (!holds) fail(what);
        return holds;
    }

    bool perform(unsigned, const Idle&) { return false; }
    bool perform(unsigned end, const Write& write) {
        End& at = ends_[end];
        Landing landing{write.transfer.direct,
                        write.transfer.address,
                        write.transfer.key,
                        write.transfer.places,
                        {}};
        for (std::uint32_t i = 0; i < write.transfer.piece_count; ++i) {
            const Piece& piece = write.transfer.pieces[i];
            if (!judge(piece.send < at.sends.size() && !at.sends[piece.send].done,
                       "a transfer takes from a send that is outstanding")) {
                return false;
            }
            const SendRecord& record = at.sends[piece.send];
            judge(piece.offset + piece.length <= record.length, "a transfer stays within its send");
            for (std::uint32_t byte = 0; byte < piece.length; ++byte) {
                landing.bytes.push_back(content(end, record.begin + piece.offset + byte));
            }
        }
        judge(landing.bytes.size() == write.transfer.length && landing.places != 0,
              "a transfer is as long as its pieces");
        judge(landing.places == write.transfer.length ||
                  landing.places == write.transfer.length + at.mark_bytes,
              "nothing but a mark has places without bytes");
        at.pipe.push_back({std::move(landing)});
        return post(end, write.notification);
    }
    bool perform(unsigned end, const SendMessage& send) { return post(end, send.message); }
    bool post(unsigned end, const EncodedMessage& message) {
        ends_[end].pipe.push_back({std::nullopt, message});
        return judge(++ends_[end].messages <= ends_[end].slots, "a message finds a receive");
    }
    bool perform(unsigned end, const CopyOut& copy) {
        End& at = ends_[end];
        ReceiveRecord* const record = outstanding(end, copy.receive);
        if (record == nullptr) return false;
        if (!judge(copy.length > 0 && copy.offset + copy.length <= record->length &&
                       copy.ring_offset + copy.length <= at.ring.size(),
                   "a copy stays within ring and buffer")) {
            return false;
        }
        std::memcpy(record->bytes.data() + copy.offset, at.ring.data() + copy.ring_offset,
                    copy.length);
        // Free is free: what is read from there again is wrong.
        std::memset(at.ring.data() + copy.ring_offset, 0xee, copy.length);
        return true;
    }
    bool perform(unsigned end, const SendDone& done) {
        End& at = ends_[end];
        if (!judge(done.send == at.sends_done && done.send < at.sends.size(),
                   "sends complete in order")) {
            return false;
        }
        SendRecord& record = at.sends[done.send];
        const bool is_written = at.mark_bytes != 0 ? done.send < at.marks_completed
                                                   : record.begin + record.length <= at.completed;
        judge(done.status == base::Status::peer_lost ? at.broken : is_written,
              "a send completes when it is written");
        record.done = true;
        ++at.sends_done;
        return true;
    }
    bool perform(unsigned end, const ReceiveDone& done) {
        ReceiveRecord* const record = outstanding(end, done.receive);
        if (record == nullptr) return false;
        End& at = ends_[end];
        record->done = done;
        judge(done.length <= record->length, "a receive has no more than its length");
        for (std::uint64_t i = 0; i < done.length; ++i) {
            judge(record->bytes[i] == content(1 - end, at.received + i),
                  "bytes come in order and exactly once");
        }
        if (keeps_messages(1 - end)) {
            judge_message(end, *record);
            return true;
        }
        at.received += done.length;
        switch (done.status) {
            case base::Status::ok:
                judge(done.length > 0, "a receive that is ok has bytes");
                judge(!record->wait_all || done.length == record->length ||
                          at.core.receiver().finished(),
                      "MSG_WAITALL is filled whole");
                break;
            case base::Status::cancelled:
                judge(record->cancelled, "only what is cancelled ends so");
                break;
            case base::Status::closed:
                judge(done.length == 0 && at.received == ends_[1 - end].sent,
                      "closed is the end of the stream");
                break;
            default: judge(at.broken, "a receive ends without a reason");
        }
        return true;
    }

    /// How a receive ended that was to take one message; its bytes have been looked at.
    void judge_message(unsigned end, const ReceiveRecord& record) {
        End& at = ends_[end];
        const End& from = ends_[1 - end];
        const ReceiveDone& done = *record.done;
        switch (done.status) {
            case base::Status::ok:
            case base::Status::too_large: {
                if (!judge(at.messages_taken < from.sends.size(), "no message is invented")) return;
                const SendRecord& message = from.sends[at.messages_taken++];
                const bool is_cut_off = done.status == base::Status::too_large;
                judge(message.begin <= at.received && (at.received == message.begin || lent_ != 0),
                      "messages come in order");
                // Its beginning may have been lent before.
                const std::uint64_t left = message.begin + message.length - at.received;
                judge(is_cut_off ? done.length == record.length && record.length < left
                                 : done.length == left,
                      "a receive has its message, or as much of it as there is room for");
                at.received += left;
                at.cut_off += is_cut_off ? 1 : 0;
                break;
            }
            case base::Status::cancelled:
                judge(record.cancelled && done.length == 0, "a message that has begun comes whole");
                break;
            case base::Status::closed:
                judge(done.length == 0 && at.messages_taken == from.sends.size(),
                      "closed is the end of the stream");
                break;
            default: judge(at.broken, "a receive ends without a reason");
        }
    }

    void judge_lent(unsigned end) {
        const End& at = ends_[end];
        for (std::uint64_t i = 0; i < at.lent.length; ++i) {
            judge(at.ring[at.lent.ring_offset + i] == content(1 - end, at.received + i),
                  "what is lent stays as it is");
        }
    }

    ReceiveRecord* outstanding(unsigned end, std::uint64_t id) {
        End& at = ends_[end];
        const bool holds = id < at.receives.size() && !at.receives[id].done;
        return judge(holds, "the buffer of a receive is outstanding") ? &at.receives[id] : nullptr;
    }

    void land(unsigned from, const Landing& landing) {
        End& to = ends_[1 - from];
        ends_[from].landed += landing.places;
        if (landing.places != landing.bytes.size()) ++ends_[from].marks_landed;
        if (landing.bytes.empty()) return;
        std::uint8_t* target = nullptr;
        if (landing.direct) {
            const std::uint64_t id = (landing.address >> 12) - 1;
            ReceiveRecord* const record = outstanding(1 - from, id);
            if (record == nullptr) return;
            const std::uint64_t offset = landing.address - address_of(id);
            if (!judge(landing.key == key_of(id) && offset + landing.bytes.size() <= record->length,
                       "a direct transfer stays within the advertised buffer")) {
                return;
            }
            target = record->bytes.data() + offset;
        } else {
            if (!judge(landing.address + landing.bytes.size() <= to.ring.size(),
                       "an indirect transfer stays within the ring")) {
                return;
            }
            target = to.ring.data() + landing.address;
        }
        std::memcpy(target, landing.bytes.data(), landing.bytes.size());
    }

    void deliver(unsigned from, const EncodedMessage& message) {
        End& to = ends_[1 - from];
        const bool fresh = certainly_fresh(from, message);
        const std::uint64_t stale = to.core.sender().counts().adverts_stale;
        const Violation violation = to.core.deliver(message.span());
        if (violation != Violation::none) {
            fail("an honest peer is accused of " + std::string{name_of(violation)});
        }
        judge(!fresh || to.core.sender().counts().adverts_stale == stale,
              "a fresh advertisement is not thrown away");
    }
    /// Of an ADVERT: it is for the receive that is next, no byte is on its way, and its end waits
    /// for a direct transfer.
    [[nodiscard]] bool certainly_fresh(unsigned from, const EncodedMessage& message) const {
        Message decoded;
        if (decode(message.span(), decoded) != Violation::none) return false;
        const auto* const advert = std::get_if<AdvertMessage>(&decoded);
        if (advert == nullptr) return false;
        const Receiver& receiver = ends_[from].core.receiver();
        const End& to = ends_[1 - from];
        std::uint64_t next = 0;
        while (next < ends_[from].receives.size() && ends_[from].receives[next].done) ++next;
        return next < ends_[from].receives.size() && advert->address >> 12 == next + 1 &&
               advert->phase == receiver.phase() && to.pipe.empty() && receiver.buffered() == 0 &&
               receiver.sequence() == to.core.sender().sequence();
    }

    void judge_stall(unsigned from) {
        const Sender& sender = ends_[from].core.sender();
        const Receiver& receiver = ends_[1 - from].core.receiver();
        const Mode mode = ends_[from].mode;
        judge(sender.unsent() == 0 || receiver.outstanding() == 0 || receiver.is_lent(),
              "stall: there are bytes to send and a receive for them");
        judge(receiver.buffered() == 0 || receiver.outstanding() == 0 || receiver.is_lent(),
              "stall: there are bytes in the ring and a receive for them");
        judge(mode == Mode::direct || sender.unsent() == 0 || may_wait(from) || may_be_held(from) ||
                  receiver.buffered() == ends_[1 - from].ring.size() || lacks_room_for_mark(from),
              "stall: there are bytes to send and room in the ring");
        judge(!sender.is_awaiting(), "stall: nobody tells a send that time is over");
        judge(ends_[from].sends_done == ends_[from].sends.size() || sender.unsent() != 0,
              "stall: a send does not complete");
        for (const ReceiveRecord& record : ends_[1 - from].receives) {
            judge(!record.cancelled || record.done, "stall: a cancelled receive does not end");
        }
    }

    /// What is unsent is little and patient, and would lie in the ring behind what is there.
    [[nodiscard]] bool may_wait(unsigned from) const {
        const End& at = ends_[from];
        const Sender& sender = at.core.sender();
        return !at.shut_down && sender.sequence() >= at.impatient &&
               sender.unsent() < at.coalesced && ends_[1 - from].core.receiver().buffered() > 0;
    }

    /// A message's bytes are away, and its mark finds no room in the ring.
    [[nodiscard]] bool lacks_room_for_mark(unsigned from) const {
        const End& at = ends_[from];
        const End& to = ends_[1 - from];
        const std::uint64_t room = to.ring.size() - to.core.receiver().buffered();
        if (at.mark_bytes == 0 || room >= at.mark_bytes) return false;
        return at.core.sender().lacks_room_for_mark();
    }

    /// What is unsent is long, and the ring is not empty.
    [[nodiscard]] bool may_be_held(unsigned from) const {
        const End& at = ends_[from];
        if (at.awaited == 0 || ends_[1 - from].core.receiver().buffered() == 0) return false;
        const std::uint64_t next = at.sends_done + at.core.sender().given();
        return next < at.sends.size() && at.sends[next].length + at.mark_bytes >= at.awaited;
    }

    std::array<End, 2> ends_;
    std::uint64_t lent_ = 0;
    std::uint64_t awaited_in_vain_ = 0;
    std::string failure_;
};

}  // namespace millrace::stream
