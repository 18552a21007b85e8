// Progress: takes the peer's messages, does what Connection::next answers, and completes what is
// over. One room, as every operation of the program goes through all of it.
#include "socket_core.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/copy_bytes.hpp"
#include "millrace/base/detail/long_copy.hpp"

namespace millrace::stream {

using base::Status;

void Socket::Core::take_messages() noexcept {
    if (end.ended() != Status::ok) return;
    is_quiet = false;
    EncodedMessage message;
    do {
        slots.take(message);
        const Violation violation = connection->deliver(message.span());
        if (violation != Violation::none) [[unlikely]] {
            (void)end.distrust([&] {
                return violation == Violation::no_memory
                           ? std::string{"there is no memory to keep what the peer has said"}
                           : fmt::format("the peer broke the protocol of byte streams: {}",
                                         name_of(violation));
            });
            break_off(Status::peer_lost);
            return;
        }
    } while (slots.has_next());
}

void Socket::Core::settle_writes() noexcept {
    if (end.window().reap() != Status::ok) {
        end_by_peer();
        return;
    }
    while (!in_flight.empty() && end.window().done(in_flight.front().ticket)) {
        const InFlight& written = in_flight.front();
        connection->written(written.places);
        hold.note_write(written.posted, base::ticks());
        in_flight.pop();
        is_quiet = false;
    }
}

void Socket::Core::act() noexcept {
    for (;;) {
        const bool could_post = end.ended() == Status::ok && may_post();
        const Action action = connection->next(could_post);
        if (const auto* const write = std::get_if<Write>(&action)) {
            perform(*write);
        } else if (const auto* const message = std::get_if<SendMessage>(&action)) {
            const bool is_last =
                message->message.bytes[0] == static_cast<std::byte>(MessageKind::fin);
            put(message->message, false, is_last ? end::Signal::now : end::Signal::when_due);
        } else if (const auto* const copy = std::get_if<CopyOut>(&action)) {
            perform(*copy);
        } else if (const auto* const sent = std::get_if<SendDone>(&action)) {
            perform(*sent);
        } else if (const auto* const received = std::get_if<ReceiveDone>(&action)) {
            perform(*received);
        } else {
            // What lies in the ring of a peer that is gone is still the program's.
            const bool is_over = end.ended() != Status::ok && !connection->is_broken() &&
                                 (connection->violation() != Violation::none ||
                                  connection->receiver().buffered() == 0);
            if (is_over) {
                connection->break_off();
                continue;
            }
            if ((connection->sender().is_awaiting() || hold.is_running()) && ends_hold()) continue;
            if (sends_reported != sends_added) report_sends();
            if (connection->sender().unsent() != 0) note_stall(could_post);
            lacked_requests = !could_post;
            is_quiet = (could_post || end.ended() != Status::ok) && !hold.is_running();
            return;
        }
    }
}

/// True: a send has waited long enough for an advertisement, and there is something to do.
bool Socket::Core::ends_hold() noexcept {
    const Sender& sender = connection->sender();
    if (!sender.is_awaiting() || end.ended() != Status::ok) {
        hold.stop();
        return false;
    }
    if (!hold.is_over(sender.sequence(), sender.bytes_to_copy(), base::ticks())) return false;
    connection->stop_awaiting();
    hold.stop();
    return true;
}

void Socket::Core::perform(const Write& write) noexcept {
    if (end.ended() != Status::ok) return;
    const Transfer& transfer = write.transfer;
    const std::span<const Piece> pieces = std::span{transfer.pieces}.first(transfer.piece_count);
    is_stalled = false;
    if (stores && !transfer.direct) {
        std::byte* at = at_peer.ring + transfer.address;
        for (const Piece& piece : pieces) {
            const std::byte* const from = send_at(piece.send).data + piece.offset;
            if (piece.length >= base::least_long_copy) {
                base::copy_for_peer(at, from, piece.length);
            } else {
                base::copy_bytes(at, from, piece.length);
            }
            at += piece.length;
        }
        put(write.notification, false, end::Signal::when_due);
        settle_with_others(transfer.places);
        return;
    }
    if (transfer.length == 0) {
        put(write.notification, false, end::Signal::now);
        settle_with_others(transfer.places);
        return;
    }
    std::array<ibv_sge, most_pieces> slices;
    std::size_t count = 0;
    const bool is_small = transfer.length <= max_inline;
    for (const Piece& piece : pieces) {
        Send& send = send_at(piece.send);
        if (send.is_bare && !is_small && !lend(send)) return;
        slices[count++] = {reinterpret_cast<std::uint64_t>(send.data + piece.offset), piece.length,
                           send.lkey};
    }
    post(verbs::Write{.from = std::span{slices}.first(count),
                      .to = transfer.direct ? verbs::RemoteAddress{transfer.address, transfer.key}
                                            : at_peer.ring_address + transfer.address,
                      .flags = is_small ? verbs::SendFlags::inlined : verbs::SendFlags::none},
         stores ? end::Signal::now : end::Signal::when_due);
    if (stores) {
        // A device that carries requests out at once has done so: its message needs no request.
        in_flight.push({end.window().posted(), transfer.places, base::ticks()});
        settle_writes();
        put(write.notification, !in_flight.empty(), end::Signal::now);
        return;
    }
    put(write.notification, true, end::Signal::now);
    // Not the last request, which may be the peer's event: that leaves no completion.
    in_flight.push({last_ticket, transfer.places, base::ticks()});
}

/// A transfer needs nothing of the device, but those before it may.
void Socket::Core::settle_with_others(std::uint32_t places) noexcept {
    if (in_flight.empty()) {
        connection->written(places);
    } else {
        in_flight.back().places += places;
    }
}

void Socket::Core::put(const EncodedMessage& message, bool behind_write,
                       end::Signal signal) noexcept {
    if (end.ended() != Status::ok) return;
    const std::uint64_t index = messages_sent++ & at_peer.slot_mask;
    if (stores && !behind_write) {
        fill(at_peer.slots[index], message, messages_sent);
    } else {
        post_slot(message, signal);
    }
    if (bell.publish(messages_sent)) [[unlikely]]
        (void)bell.ring();  // without a request for it, it is owed
}

void Socket::Core::post_slot(const EncodedMessage& message, end::Signal signal) noexcept {
    Slot slot;
    fill(slot, message, messages_sent);
    const verbs::RemoteAddress to =
        at_peer.slot_address + ((messages_sent - 1) & at_peer.slot_mask) * sizeof(Slot);
    const auto write = [&](std::size_t from, std::size_t length, end::Signal when) {
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&slot) + from,
                            static_cast<std::uint32_t>(length), 0};
        post(verbs::Write{.from = {&slice, 1}, .to = to + from, .flags = verbs::SendFlags::inlined},
             when);
    };
    if (in_order) [[likely]] {
        write(0, sizeof(Slot), signal);
    } else {
        write(0, offsetof(Slot, mark), end::Signal::when_due);
        write(offsetof(Slot, mark), sizeof slot.mark, signal);
    }
    if (signal == end::Signal::now) last_ticket = end.window().posted();
}

template <class Request>
void Socket::Core::post(Request request, end::Signal signal) noexcept {
    if (end.ended() != Status::ok) return;
    ++counts.requests;
    if (end.window().post(request, signal) != Status::ok) end_by_peer();
}

void Socket::Core::perform(const CopyOut& copy) noexcept {
    base::copy_bytes(receives[copy.receive].data + copy.offset, memory.data() + copy.ring_offset,
                     copy.length);
    take_ring_lines(copy.ring_offset, copy.length);
}

void Socket::Core::perform(const SendDone& done) noexcept {
    Send& send = send_at(done.send);
    send.status = outcome(done.status);
    if (send.is_copy) copies->places.return_to(send.staged_to);
    if (send.is_bare) --bare_sends;
    send.is_bare = false;
    send.region.reset();
    ++sends_done;
}

void Socket::Core::perform(const ReceiveDone& done) noexcept {
    Receive& receive = receives[done.receive];
    receive.is_used = false;
    receive.region.reset();
    free_receives.push_back(static_cast<std::uint32_t>(done.receive));
    if (receive.is_internal) {
        reader.result = done;
        reader.result->status = outcome(done.status);
        return;
    }
    completions.push({Completion::Kind::receive, outcome(done.status), receive.id, done.length});
}

/// In their order: a copy that is on its way ends with those before it.
void Socket::Core::report_sends() noexcept {
    while (sends_reported != sends_added) {
        const Send& send = send_at(sends_reported);
        const bool is_done = sends_reported < sends_done;
        const bool is_away =
            send.is_copy &&
            (send.is_patient || sends_reported < sends_done + connection->sender().given());
        // Of those that the program has heard of and the protocol not, there are as many at most.
        if (!is_done && (!is_away || sends_reported >= sends_done + options.sends)) return;
        ++sends_reported;
        if (send.is_internal) continue;
        const Status status = is_done ? send.status : Status::ok;
        completions.push(
            {Completion::Kind::send, status, send.id, status == Status::ok ? send.length : 0});
    }
}

void Socket::Core::note_stall(bool could_post) noexcept {
    if (is_stalled || connection->sender().coalesces()) return;
    is_stalled = true;
    if (!could_post) {
        ++counts.stalls_request;
    } else if (!connection->credits().transfer_allowed()) {
        ++counts.stalls_credit;
    } else if (mode == Mode::direct || connection->sender().holds_back() ||
               connection->sender().is_awaiting()) {
        ++counts.stalls_advert;
    } else {
        ++counts.stalls_room;
    }
}

void Socket::Core::look() noexcept {
    const std::uint64_t before = slots.taken() + sends_done;
    step();
    if (slots.taken() + sends_done != before) {
        empty_looks = 0;
    } else if ((++empty_looks & looks_between) == 0) {
        look_around();
    }
}

void Socket::Core::look_around() noexcept {
    if (shown != activity()) show();
    if (end.ended() != Status::ok) return;
    // Whoever fell asleep since the last message has READ that nothing is new.
    if (bell.owes()) (void)bell.ring();
    const bool broken = end.window().broken() || sleeper->broken();
    if (!broken && end.link().peer() == connect::PeerState::alive) return;
    end_by_peer();
    act();
}

Status Socket::Core::look_for(Completion& completion) noexcept {
    look();
    return take(completion) ? Status::ok : Status::empty;
}

}  // namespace millrace::stream
