// The rarer paths of a channel's end: finding room, closing, losing the peer.
#include "channel/channel_core.hpp"
#include "memory.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/detail/yielding.hpp"

namespace millrace::message {

namespace {
base::Status status_of(connect::PeerState peer) noexcept {
    return peer == connect::PeerState::closed ? base::Status::closed : base::Status::peer_lost;
}
}  // namespace

// A thread that sleeps owes nothing: the peer may wait for this room.
void Channel::Core::ChannelSleeper::prepare() {
    core_->falls_asleep = true;
    if (core_->published != core_->reader.position()) core_->publish();
    Sleeper::prepare();
}

// A thread that was woken looks around, as it may have been the peer's end that woke it: by the
// socket, which tells it once.
void Channel::Core::ChannelSleeper::retract() {
    Sleeper::retract();
    core_->empty_looks |= looks_between;
}

// What comes between the last look and the arming of the queue raises no event.
end::Sleeper::Rest Channel::Core::ChannelSleeper::settle() {
    const std::uint64_t before = core_->arrivals();
    const Rest rest = Sleeper::settle();
    return core_->arrivals() != before || core_->read_has_come() ? Rest::look : rest;
}

bool Channel::Core::ChannelSleeper::take_told() noexcept {
    const std::uint64_t before = core_->arrivals() + woken();
    core_->poll_receives();
    return core_->arrivals() + woken() != before;
}

void Channel::Core::take_consumed(std::uint64_t word) noexcept {
    // A peer that claims to have consumed what was never sent must not open the ring.
    if (consumed.take(word, writer.position()) == ring::News::impossible) {
        distrust("the peer says that it consumed more than was sent");
    }
}

base::Status Channel::Core::post_apart(Transmission frame) noexcept {
    return post_here(frame, figures.frame_writes());
}

base::Status Channel::Core::commit_apart_if_roomy(std::size_t size) noexcept {
    const std::uint64_t extent = frame_bytes_apart(writer.position(), size);
    const std::uint64_t needed = extent + writer.size() / 2;
    if (writer.free_bytes(consumed.value()) < needed) {
        // What the peer has told of, but not by its messages.
        take_consumed(page().credit.load());
        if (ended_sending != base::Status::ok) return ended_sending;
    }
    reusable = consumed.value();
    if (writer.free_bytes(reusable) < needed) return commit(size, frame_whole);
    (void)writer.commit_apart(size);
    // Nothing else may come by for long, as room is found here and told of by such messages.
    if (writer.to_the_end() == writer.size()) show_now_and_then();
    room = std::min(writer.free_bytes(reusable), writer.to_the_end());
    return count_sent(show_progress(), size, frame_whole);
}

base::Status Channel::Core::make_room(std::size_t size) noexcept {
    if (end.is_closing()) return base::Status::closed;
    show_now_and_then();
    if (!end.has_descriptor()) [[likely]]
        return find_room(size);
    end_rest();
    const base::Status status = find_room(size);
    wants_room = status == base::Status::full;
    wanted_size = size;
    if (wants_room) {
        if (!end.stays_awake(activity())) rest();
    } else {
        end.wake();
    }
    return status;
}

base::Status Channel::Core::find_room(std::size_t size) noexcept {
    forget_room();
    lacks_room = false;
    if (ended_sending != base::Status::ok) return ended_sending;
    if (size > max_piece()) return base::Status::too_large;
    while (true) {
        // Twice 2 requests at most for a skip and a frame, and room for the counters'.
        if (!stores && window().free() < 4) {
            if (window().reap() != base::Status::ok) return lost_or_closed();
            if (window().free() < 4) return found_full();
        }
        const std::uint64_t needed = peer_slot == 0 ? writer.needed(size) : peer_slot;
        if (needed > writer.free_bytes(reusable)) {
            const base::Status status = look_for_room(needed);
            if (status != base::Status::ok) return status;
        }
        if (!writer.must_skip(size)) break;
        const base::Status status = post(writer.skip(), figures.other_writes());
        if (status != base::Status::ok) return status;
    }
    room = peer_slot == 0 ? std::min(writer.free_bytes(reusable), writer.to_the_end()) : peer_slot;
    return base::Status::ok;
}

base::Status Channel::Core::look_for_room(std::uint64_t needed) noexcept {
    for (int attempt = 0;; ++attempt) {
        if (window().reap() != base::Status::ok) return lost_or_closed();
        transmitted.look(window(), writer.position());
        take_consumed(page().credit.load());
        if (pull.poll()) take_consumed(pull.value());
        if (ended_sending != base::Status::ok) return ended_sending;
        if (stores) transmitted.set(writer.position());
        // The older of the two: a place is free when it was consumed, and reusable when the
        // device is done with it, which only its completion tells.
        reusable = writer.position() - std::max(writer.position() - consumed.value(),
                                                writer.position() - transmitted.position());
        if (needed <= writer.free_bytes(reusable)) return base::Status::ok;
        if (attempt != 0) return found_full();
        // Who sleeps is rung for, and would be woken by the answer to each question. Asking now and
        // then makes good for progress that the peer stored without a fence.
        const std::uint64_t now = base::ticks();
        if (falls_asleep && sleeper->waits_for_bell() && now - asked_ticks < asking_pause) {
            return found_full();
        }
        asked_ticks = now;
        // Ask. Behind this READ everything posted is complete, too.
        if (pull.start() == base::Status::peer_lost) return lost_or_closed();
    }
}

base::Status Channel::Core::found_full() noexcept {
    figures.found_full();
    lacks_room = true;
    if (link().peer() == connect::PeerState::alive) [[likely]]
        return base::Status::full;
    return lost_or_closed();
}

base::Status Channel::Core::lost_or_closed() noexcept {
    // A peer that closes takes its memory away, and what we still post fails: no surprise then.
    const connect::PeerState peer = link().peer_now();
    if (peer != connect::PeerState::closed) fail_by_loss();
    ended_sending = status_of(peer);
    forget_room();
    return ended_sending;
}

void Channel::Core::become_copy() noexcept {
    static constexpr std::array<std::byte, 2 * frame_alignment> nothing{};
    for (base::Status* const ended : {&ended_sending, &ended_receiving}) {
        if (*ended == base::Status::ok) *ended = base::Status::peer_lost;
    }
    is_not_plain = true;
    forget_room();
    reader.expect(nothing.data());
}

void Channel::Core::fail(std::string_view why) noexcept {
    if (end.ended() == base::Status::ok) (void)end.fail([&] { return std::string{why}; });
    if (ended_sending == base::Status::ok) ended_sending = base::Status::peer_lost;
    forget_room();
}

void Channel::Core::distrust(std::string_view why) noexcept {
    if (end.ended() == base::Status::ok) (void)end.distrust([&] { return std::string{why}; });
    fail(why);
}

void Channel::Core::fail_by_loss() noexcept {
    if (end.ended() == base::Status::ok) {
        (void)end.fail([&] { return end::cause_of_loss(link(), window()); });
    }
    fail({});
}

void Channel::Core::wake_peer() noexcept {
    // Without a slot it is owed, and the next look around tries again.
    (void)bell.ring();
}

base::Status Channel::Core::tell_peer() noexcept {
    if (incoming.has_value()) pass_slot();
    if (reader.position() - credited >= credit_due) return_credit();
    if (peer_waits_for_room()) wake_peer();
    return base::Status::ok;
}

void Channel::Core::return_credit() noexcept {
    show_now_and_then();
    const std::uint64_t position = reader.position();
    if (credit.offer(ring::PositionWord::pack(position)) == base::Status::ok) {
        credited = told = position;
    }
    published = position;
    (void)bell.publish(Progress::pack(writer.position(), position));
    if (bell.peer_waits_for_room()) wake_peer();
}

void Channel::Core::publish() noexcept {
    published = reader.position();
    base::telling_peers();
    page().consumed.store(ring::PositionWord::pack(published));
    (void)bell.publish(Progress::pack(writer.position(), published));
    if (bell.peer_waits_for_room()) wake_peer();
}

base::Status Channel::Core::send_close() noexcept {
    data_position = writer.position();
    const base::Status status = reserve_last(0);
    if (status != base::Status::ok) return status;
    // The peer may go as soon as it has read this frame, and answers nothing more then.
    signal = end::Signal::now;
    const base::Status posted = post(writer.commit(0, frame_close), figures.other_writes());
    if (posted == base::Status::ok) {
        ended_sending = base::Status::closed;
        forget_room();
        closed_by_us = true;
    }
    return posted;
}

base::Status Channel::Core::deliver() noexcept {
    if (!closed_by_us) {
        // A peer that has closed reads nothing more, and its goodbye tells how far it has read.
        if (link().peer() != connect::PeerState::alive) return lost_or_closed();
        if (const base::Status status = send_close(); status != base::Status::ok) return status;
    }
    if (transmitted.is_done(window())) return base::Status::ok;
    // Only the close frame's completion says that everything was delivered.
    const bool is_broken = window().reap() != base::Status::ok;
    if (transmitted.is_done(window())) return base::Status::ok;
    if (!is_broken && link().peer() == connect::PeerState::alive) return base::Status::full;
    // What was delivered before its end has completed by now.
    (void)window().reap();
    return transmitted.is_done(window()) ? base::Status::ok : lost_or_closed();
}

void Channel::Core::begin_to_close() noexcept {
    if (!end.is_closing()) forget_room();
    (void)link().peer_now();
}

base::Status Channel::Core::note_closed(base::Status status) noexcept {
    forget_room();  // nothing new is taken
    if (!end.is_closed()) return status;
    ended_sending = ended_receiving = base::Status::closed;
    note_plain();
    show();
    closed_by_us = true;
    end.wake();
    return status;
}

std::uint64_t Channel::Core::read_position() noexcept {
    Piece unread;
    (void)reader.look(unread);  // passes over what is no message
    return reader.position();
}

bool Channel::Core::peer_had_all() const noexcept {
    const std::optional<std::uint64_t> read = end.peer_position();
    // Positions wrap; a peer that claims more harms nobody.
    const std::uint64_t sent = closed_by_us ? data_position : writer.position();
    return read.has_value() && static_cast<std::int64_t>(*read - sent) >= 0;
}

base::Status Channel::Core::found_none(Piece& piece) noexcept {
    if (!end.has_descriptor()) [[likely]]
        return find_piece(piece, false);
    end_rest();
    const base::Status status = find_piece(piece, true);
    if (status == base::Status::empty) {
        if (!end.stays_awake(activity())) rest();
    } else {
        end.wake();
    }
    return status;
}

void Channel::Core::end_rest() noexcept {
    if (!end.has_descriptor()) return;
    end.end_rest();
    falls_asleep = false;
}

void Channel::Core::rest() noexcept {
    // A wait for room may look here before it sleeps by itself.
    const bool waits = std::exchange(waiting_for_room, false);
    end.rest([this] {
        Piece piece;
        if (find_piece(piece, true) != base::Status::empty || read_has_come()) return true;
        if (!wants_room || find_room(wanted_size) == base::Status::full) return false;
        // Told once: a program that does not want it any more is not called again and again.
        wants_room = false;
        return true;
    });
    waiting_for_room = waits;
}

base::Status Channel::Core::find_piece(Piece& piece, bool is_thorough) noexcept {
    if (incoming.has_value() && incoming->empty()) poll_receives();
    if (ended_receiving != base::Status::ok) return ended_receiving;
    switch (reader.look(piece)) {
        case FrameReader::Look::piece: empty_looks = 0; return base::Status::ok;
        case FrameReader::Look::nothing: {
            // Nobody releases a skip that was passed over, and the peer waits for its room.
            const bool has_skipped = reader.take_skipped();
            ++empty_looks;
            if (!stores && ((empty_looks & looks_between_polls) == 0 || is_thorough)) {
                // Who looks at memory alone makes no call of verbs, and there are devices that go
                // on in such calls. It also tells of what failed, which look_around() goes by.
                // When to give the processor away is for who waits to say.
                const base::WaitsByPolicy here;
                (void)window().reap();
            }
            if ((empty_looks & looks_between) == 0 || has_skipped || is_thorough) {
                return look_around(piece);
            }
            return base::Status::empty;
        }
        default: return end_receiving(piece);
    }
}

ChannelStats Channel::Core::stats() const noexcept {
    ChannelStats stats = figures.stats();
    stats.credit_writes = credit.posted();
    stats.credit_reads = pull.posted();
    stats.sleeps = sleeper->sleeps();
    stats.events_sent = bell.rung();
    stats.events_received = sleeper->woken();
    return stats;
}

void Channel::Core::show() noexcept { figures.show(stats()); }

base::Status Channel::Core::look_around(Piece& piece) noexcept {
    if (figures.has_changed()) show();
    if (published != reader.position()) {
        publish();
    } else if (bell.owes()) {
        // Whoever has fallen asleep since found by its READ that nothing is new. To ring for it
        // without a reason would wake it to do the same here: two idle ends would never sleep.
        wake_peer();
    }
    const bool broken = window().broken() || sleeper->broken();
    if (!broken && link().peer() == connect::PeerState::alive) return base::Status::empty;
    const connect::PeerState peer = link().peer_now();
    // What it sent before its end has landed before we learnt of the end: look once more.
    poll_receives();
    if (ended_receiving != base::Status::ok) return ended_receiving;
    switch (reader.look(piece)) {
        case FrameReader::Look::piece: return base::Status::ok;
        case FrameReader::Look::nothing: break;
        default: return end_receiving(piece);
    }
    if (peer != connect::PeerState::closed) fail_by_loss();
    ended_receiving = status_of(peer);
    note_plain();
    return ended_receiving;
}

base::Status Channel::Core::end_receiving(Piece& piece) noexcept {
    if (reader.look(piece) == FrameReader::Look::closed) {
        ended_receiving = base::Status::closed;
    } else {
        distrust("the peer wrote a frame that the protocol does not allow");
        ended_receiving = base::Status::peer_lost;
    }
    note_plain();
    return ended_receiving;
}

bool Channel::Core::is_news(std::uint64_t word) noexcept {
    const Progress peer = Progress::unpack(word);
    const bool more_to_read = Progress::ahead(peer.sent, Progress::units(reader.position())) > 0;
    const bool more_room = Progress::ahead(peer.consumed, Progress::units(consumed.value())) > 0;
    // A program's own loop waits for the one and the other.
    if (end.has_descriptor() && wants_room) return more_to_read || more_room;
    if (!waiting_for_room) return more_to_read;
    // Messages that wait here unread are no news to who waits for room.
    return more_room || (more_to_read && !reader.arriving());
}

}  // namespace millrace::message
