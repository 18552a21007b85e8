// What an end does, see the header.
#include "socket_core.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/peer_causality.hpp"

namespace millrace::stream {

using base::Status;

// --- the program

Status Socket::Core::send(std::span<const std::byte> from, std::uint32_t lkey, std::uint64_t id,
                          SendFlags flags) {
    if (from.empty() && !keeps_messages()) return Status::empty;
    if (from.size() > longest_operation) return Status::too_large;
    step();
    if (ended != Status::ok) return ended;
    if (connection->sender().is_shut_down()) return Status::closed;
    if (open_sends == options.sends) return Status::full;
    const bool is_plain = lkey == 0 && !from.empty();
    // Behind one that is staged when it is posted, none is staged before: see Staging.
    const bool patient = is_plain && flags == SendFlags::more && bare_sends == 0 &&
                         from.size() <= options.coalesced_bytes && !keeps_messages();
    Send prepared;
    prepared.id = id;
    prepared.data = from.data();
    prepared.length = from.size();
    prepared.lkey = lkey;
    bool at_once = false;
    if (is_plain) {
        at_once = goes_at_once(from.size(), patient);
        // What is stored in the ring needs nothing but its bytes.
        prepared.is_bare = stores && !patient && mode != Mode::direct &&
                           (connection->sender().adverts() == 0 || bare_sends != 0);
        if (!at_once && !prepared.is_bare) make_postable(prepared, patient);
    }
    if (prepared.is_bare) ++bare_sends;
    send_at(sends_added++) = std::move(prepared);
    ++open_sends;
    (void)connection->send(sends_added - 1, from.size(),
                           patient && send_at(sends_added - 1).is_copy, at_once);
    act();
    tell_loop();
    return Status::ok;
}

/// A copy of a plain send, or a registration of it. Throws Error, and leaves it as it is.
void Socket::Core::make_postable(Send& send, bool patient) {
    const std::size_t most =
        options.registrations == nullptr ? most_staged : most_staged_beside_cache;
    std::byte* const copy = send.length <= most ? stage(send.length) : nullptr;
    if (copy == nullptr) {
        send.region =
            registered({const_cast<std::byte*>(send.data), send.length}, verbs::Access::none, true);
        send.lkey = send.region->lkey();
        return;
    }
    std::memcpy(copy, send.data, send.length);
    send.data = copy;
    send.lkey = staging_memory.region().lkey();
    send.is_copy = true;
    send.is_patient = patient;
    send.staged_to = staging.position();
    ++counts.staged;
}

/// An advertisement has come for bytes of `send`, which are about to be posted. False: that is the
/// end.
bool Socket::Core::lend(Send& send) noexcept {
    try {
        make_postable(send, false);
        send.is_bare = false;
        --bare_sends;
        return true;
    } catch (const std::exception& error) {
        // Some of it may be in the peer's ring: it can neither be sent nor taken back.
        end(Status::peer_lost,
            fmt::format("what was to be sent cannot be lent to the device: {}", error.what()));
        return false;
    }
}

/// Plain memory, for one operation at least.
RegistrationCache::Held Socket::Core::registered(std::span<std::byte> plain, verbs::Access access,
                                                 bool by_cache) {
    bool is_new = true;
    RegistrationCache::Held region;
    if (by_cache && options.registrations != nullptr) {
        region = options.registrations->find(plain, access, is_new);
    } else {
        region = std::make_shared<const verbs::MemoryRegion>(
            link.protection_domain().register_memory(plain, access));
    }
    ++(is_new ? counts.registrations : counts.registrations_kept);
    return region;
}

Socket::Core::Send& Socket::Core::add_send(std::span<const std::byte> from,
                                           std::uint64_t id) noexcept {
    Send& send = send_at(sends_added++);
    send.id = id;
    send.data = from.data();
    send.length = from.size();
    send.lkey = 0;
    send.is_internal = send.is_copy = send.is_patient = send.is_bare = false;
    send.status = Status::ok;
    return send;
}

/// Bytes that are stored at once stay where they are: nobody needs them behind this call.
bool Socket::Core::goes_at_once(std::size_t length, bool patient) noexcept {
    const Sender& sender = connection->sender();
    if (!stores || patient || sender.adverts() != 0 || sender.unsent() != 0) return false;
    // Two transfers where the ring ends in between.
    const std::uint64_t places = length + (keeps_messages() ? message_mark_bytes : 0);
    return places <= sender.room() && connection->credits().transfer_allowed(2) && may_post();
}

std::byte* Socket::Core::stage(std::size_t length) {
    if (staging_memory.size() == 0) {
        staging_memory = link.protection_domain().allocate(staging_bytes, verbs::Access::none);
        staging = Staging{staging_memory.data(), staging_bytes};
    }
    return staging.claim(length);
}

Status Socket::Core::receive(std::span<std::byte> into, std::uint32_t rkey, std::uint64_t id,
                             ReceiveFlags flags) {
    if (into.empty()) return Status::empty;
    if (into.size() > longest_operation) return Status::too_large;
    if (open_receives == options.receives) return Status::full;
    if (connection->is_broken() && ended == Status::closed && !is_closed_here) {
        // It ends as one that was there when the peer closed: nobody has to know which came first.
        act();
        ++open_receives;
        completions.push({Completion::Kind::receive, Status::closed, id, 0});
        tell_loop();
        return Status::ok;
    }
    const bool is_made_anew = rkey == 0 && !keeps_receives();
    const std::size_t least =
        is_made_anew ? options.least_advertised_plain : options.least_advertised;
    const bool advertised = mode == Mode::direct || (mode == Mode::dynamic && into.size() >= least);
    const Status status =
        start_receive(into, rkey, id, advertised, flags == ReceiveFlags::wait_all, false);
    if (status != Status::ok) return status;
    ++open_receives;
    step();
    tell_loop();
    return Status::ok;
}

Status Socket::Core::start_receive(std::span<std::byte> into, std::uint32_t rkey, std::uint64_t id,
                                   bool advertised, bool wait_all, bool is_internal) {
    if (connection->is_broken()) return ended;
    RegistrationCache::Held region;
    if (advertised && rkey == 0) {
        region = registered(into, verbs::Access::remote_write, keeps_receives());
        rkey = region->rkey();
    }
    // One more than the program may have: read_some's.
    const std::uint32_t index = free_receives.back();
    Receive& receive = receives[index];
    const Status status =
        connection->receive({.id = index,
                             .address = reinterpret_cast<std::uint64_t>(into.data()),
                             .length = into.size(),
                             .key = rkey,
                             .wait_all = wait_all,
                             .advertised = advertised});
    if (status != Status::ok) return outcome(status);
    free_receives.pop_back();
    receive.id = id;
    receive.data = into.data();
    receive.is_used = true;
    receive.is_internal = is_internal;
    receive.region = std::move(region);
    if (is_internal) reading = index;
    return Status::ok;
}

Status Socket::Core::cancel(std::uint64_t id) noexcept {
    step();
    Status status = Status::empty;
    for (std::uint32_t index = 0; index < receives.size(); ++index) {
        const Receive& receive = receives[index];
        if (!receive.is_used || receive.is_internal || receive.id != id) continue;
        status = connection->cancel(index);
        break;
    }
    act();
    tell_loop();
    return status;
}

void Socket::Core::shut_down() noexcept {
    connection->shut_down();
    step();
    tell_loop();
}

Status Socket::Core::write_some(std::span<const std::byte> from, std::size_t& size) {
    size = 0;
    if (from.empty() && !keeps_messages()) return Status::empty;
    look();
    if (ended != Status::ok) return ended;
    const Sender& sender = connection->sender();
    if (sender.is_shut_down()) return Status::closed;
    // What had no requests, and would go before these bytes.
    if (lacked_requests && may_post()) act();
    // Only what goes at once: nobody may call again to let it go.
    bool can_go = sender.unsent() == 0 && connection->credits().transfer_allowed() && may_post() &&
                  sends_added - std::min(sends_done, sends_reported) < options.sends;
    std::size_t length = from.size();
    if (keeps_messages()) {
        if (length > longest_copied_message()) return Status::too_large;
        // Where the ring ends in between, two transfers, and twice may_post()'s requests.
        can_go = can_go && (sender.adverts() != 0 ||
                            (length + message_mark_bytes <= sender.room() &&
                             connection->credits().transfer_allowed(2) && window.free() >= 8));
    } else {
        can_go = can_go && sender.next_room() != 0;
        length = std::min<std::uint64_t>(length, sender.next_room());
    }
    if (!can_go) return Status::full;
    std::byte* copy = nullptr;
    if ((!stores || sender.adverts() != 0) && length != 0) {
        length = std::min(length, most_written);
        copy = stage(length);
        if (copy == nullptr) return Status::full;
        std::memcpy(copy, from.data(), length);
    }
    Send& send = add_send(from.first(length), 0);
    send.is_internal = true;
    if (copy != nullptr) {
        send.data = copy;
        send.lkey = staging_memory.region().lkey();
        send.is_copy = true;
        send.staged_to = staging.position();
    }
    (void)connection->send(sends_added - 1, length, false, true);
    act();
    tell_loop();
    size = length;
    return ended == Status::ok ? Status::ok : ended;
}

/// That write_some takes.
std::size_t Socket::Core::longest_copied_message() const noexcept {
    if (mode == Mode::direct) return most_written;
    return std::min<std::size_t>(most_written, peer_ring_bytes - message_mark_bytes);
}

/// Of read_some: what comes goes to `into`, or where the peer, or a later call, may write to.
Status Socket::Core::start_read(std::span<std::byte> into) {
    Status status = Status::ok;
    if (mode == Mode::direct) {
        if (landing.size() == 0) {
            landing = link.protection_domain().allocate(landing_bytes, verbs::Access::remote_write);
        }
        landed = landing.data();
        status = start_receive({landing.data(), landing.size()}, landing.region().rkey(), 0, true,
                               false, true);
    } else {
        landed = nullptr;
        status = start_receive(into, 0, 0, false, false, true);
    }
    is_reading = status == Status::ok;
    read_result.reset();
    return status;
}

Status Socket::Core::read_some(std::span<std::byte> into, std::size_t& size) {
    size = 0;
    if (into.empty()) return Status::empty;
    if (is_lent) return Status::full;
    if (landed_size == 0 && !is_reading) {
        const Status status = start_read(into);
        if (status != Status::ok) return status;
    }
    look();
    Status status = Status::ok;
    if (is_reading) {
        status = end_reading();
        if (status != Status::ok && status != Status::too_large) return status;
        if (landed == nullptr) {
            size = read_result->length;
            return status;
        }
    }
    size = std::min(into.size(), landed_size);
    if (size != 0) std::memcpy(into.data(), landed, size);
    landed += size;
    landed_size -= size;
    if (keeps_messages() && landed_size != 0) {
        // A reader has one message, and what of it there is room for.
        landed_size = 0;
        status = Status::too_large;
    }
    return status;
}

/// `empty`: it goes on. Otherwise what came is in read_result, and landed_size, if it landed
/// elsewhere.
Status Socket::Core::end_reading() noexcept {
    if (!read_result.has_value()) return Status::empty;
    is_reading = false;
    const Status status = read_result->status;
    const bool has_come = status == Status::ok || status == Status::too_large;
    if (has_come && landed != nullptr) landed_size = read_result->length;
    return status;
}

Status Socket::Core::read_zero_copy(View& view) {
    view = {};
    if (!is_lent || !is_lent_landed) {
        if (mode == Mode::direct && landed_size == 0 && !is_reading) {
            const Status status = start_read({});
            if (status != Status::ok) return status;
        }
        look();
        const Status status = is_reading || landed_size != 0 ? lend_landed() : lend_ring();
        if (status != Status::ok && status != Status::too_large) return status;
        lent_status = status;
        is_lent = true;
    }
    view = lent;
    return lent_status;
}

/// What is where the peer, or a reader that has gone, had it put.
Status Socket::Core::lend_landed() noexcept {
    Status status = Status::ok;
    if (is_reading) {
        status = end_reading();
        if (status != Status::ok && status != Status::too_large) return status;
    }
    is_lent_landed = true;
    lent = {{landed, landed_size}, keeps_messages()};
    return status;
}

Status Socket::Core::lend_ring() noexcept {
    Lent found;
    if (connection->lend(found)) {
        is_lent_landed = false;
        lent = {{memory.data() + found.ring_offset, found.length}, found.ends_message};
        return Status::ok;
    }
    if (connection->receiver().finished()) return Status::closed;
    return connection->is_broken() ? ended : Status::empty;
}

Status Socket::Core::release(std::size_t size) noexcept {
    if (!is_lent) return Status::empty;
    if (size > lent.bytes.size()) return Status::too_large;
    is_lent = false;
    if (is_lent_landed) {
        landed += size;
        landed_size -= size;
        is_lent_landed = false;
    } else {
        connection->give_back(size);
        step();
    }
    tell_loop();
    return Status::ok;
}

void Socket::Core::end_read(std::span<std::byte> into) {
    // What lies elsewhere stays lent, and the next read takes what comes.
    if (!is_reading || landed != nullptr) return;
    if (keeps_messages()) {
        const std::uint64_t begun = connection->receiver().filled(reading);
        if (begun != 0) {
            // The beginning of a message, whose rest comes when `into` is gone.
            kept.assign(into.begin(), into.end());
            receives[reading].data = landed = kept.data();
            return;
        }
    }
    (void)connection->cancel(reading);
    act();
    is_reading = false;
}

// --- progress

void Socket::Core::take_messages() noexcept {
    if (ended != Status::ok) return;
    EncodedMessage message;
    while (slots.take(message)) {
        const Violation violation = connection->deliver(message.span());
        if (violation == Violation::none) [[likely]]
            continue;
        end(Status::peer_lost,
            fmt::format("the peer broke the protocol of byte streams: {}", name_of(violation)));
        return;
    }
}

void Socket::Core::settle_writes() noexcept {
    if (window.reap() != Status::ok) {
        end_by_peer();
        return;
    }
    while (!in_flight.empty() && window.done(in_flight.front().ticket)) {
        const InFlight& written = in_flight.front();
        connection->written(written.places);
        hold.note_write(written.posted, base::ticks());
        in_flight.pop();
    }
}

void Socket::Core::act() noexcept {
    for (;;) {
        const bool could_post = ended == Status::ok && may_post();
        const Action action = connection->next(could_post);
        if (const auto* const write = std::get_if<Write>(&action)) {
            perform(*write);
        } else if (const auto* const message = std::get_if<SendMessage>(&action)) {
            const bool is_last =
                message->message.bytes[0] == static_cast<std::byte>(MessageKind::fin);
            put(message->message, false, is_last ? ring::Signal::now : ring::Signal::when_due);
        } else if (const auto* const copy = std::get_if<CopyOut>(&action)) {
            perform(*copy);
        } else if (const auto* const sent = std::get_if<SendDone>(&action)) {
            perform(*sent);
        } else if (const auto* const received = std::get_if<ReceiveDone>(&action)) {
            perform(*received);
        } else {
            // What lies in the ring of a peer that is gone is still the program's.
            const bool is_over = ended != Status::ok && !connection->is_broken() &&
                                 (connection->violation() != Violation::none ||
                                  connection->receiver().buffered() == 0);
            if (is_over) {
                connection->break_off();
                continue;
            }
            if (ends_hold()) continue;
            if (sends_reported != sends_added) report_sends();
            if (connection->sender().unsent() != 0) note_stall(could_post);
            lacked_requests = !could_post;
            return;
        }
    }
}

/// True: a send has waited long enough for an advertisement, and there is something to do.
bool Socket::Core::ends_hold() noexcept {
    const Sender& sender = connection->sender();
    if (!sender.is_awaiting() || ended != Status::ok) {
        hold.stop();
        return false;
    }
    if (!hold.is_over(sender.sequence(), sender.bytes_to_copy(), base::ticks())) return false;
    connection->stop_awaiting();
    hold.stop();
    return true;
}

void Socket::Core::perform(const Write& write) noexcept {
    if (ended != Status::ok) return;
    const Transfer& transfer = write.transfer;
    const std::span<const Piece> pieces = std::span{transfer.pieces}.first(transfer.piece_count);
    is_stalled = false;
    if (stores && !transfer.direct) {
        std::byte* at = peer_ring + transfer.address;
        for (const Piece& piece : pieces) {
            std::memcpy(at, send_at(piece.send).data + piece.offset, piece.length);
            at += piece.length;
        }
        put(write.notification, false, ring::Signal::when_due);
        settle_with_others(transfer.places);
        return;
    }
    if (transfer.length == 0) {
        put(write.notification, false, ring::Signal::now);
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
                                            : peer_ring_address + transfer.address,
                      .flags = is_small ? verbs::SendFlags::inlined : verbs::SendFlags::none},
         ring::Signal::when_due);
    put(write.notification, true, ring::Signal::now);
    in_flight.push({window.posted(), transfer.places, base::ticks()});
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
                       ring::Signal signal) noexcept {
    if (ended != Status::ok) return;
    const std::uint64_t index = messages_sent++ & peer_slot_mask;
    if (stores && !behind_write) {
        fill(peer_slots[index], message, messages_sent);
    } else {
        post_slot(message, signal);
    }
    if (bell.publish(messages_sent)) [[unlikely]]
        (void)bell.ring();  // without a request for it the peer still counts as asleep
}

void Socket::Core::post_slot(const EncodedMessage& message, ring::Signal signal) noexcept {
    Slot slot;
    fill(slot, message, messages_sent);
    const verbs::RemoteAddress to =
        peer_slot_address + ((messages_sent - 1) & peer_slot_mask) * sizeof(Slot);
    const auto write = [&](std::size_t from, std::size_t length, ring::Signal when) {
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&slot) + from,
                            static_cast<std::uint32_t>(length), 0};
        post(verbs::Write{.from = {&slice, 1}, .to = to + from, .flags = verbs::SendFlags::inlined},
             when);
    };
    if (in_order) [[likely]] {
        write(0, sizeof(Slot), signal);
    } else {
        write(0, offsetof(Slot, mark), ring::Signal::when_due);
        write(offsetof(Slot, mark), sizeof slot.mark, signal);
    }
    if (signal == ring::Signal::now) last_ticket = window.posted();
}

template <class Request>
void Socket::Core::post(Request request, ring::Signal signal) noexcept {
    if (ended != Status::ok) return;
    ++counts.requests;
    if (window.post(request, signal) != Status::ok) end_by_peer();
}

void Socket::Core::perform(const CopyOut& copy) noexcept {
    std::memcpy(receives[copy.receive].data + copy.offset, memory.data() + copy.ring_offset,
                copy.length);
}

void Socket::Core::perform(const SendDone& done) noexcept {
    Send& send = send_at(done.send);
    send.status = outcome(done.status);
    if (send.is_copy) staging.return_to(send.staged_to);
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
        read_result = done;
        read_result->status = outcome(done.status);
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
    if (ended != Status::ok) return;
    if (bell.peer_sleeps()) (void)bell.ring();
    const bool broken = window.broken() || sleeper->broken();
    if (!broken && link.peer() == connect::PeerState::alive) return;
    end_by_peer();
    act();
}

Status Socket::Core::look_for(Completion& completion) noexcept {
    look();
    return take(completion) ? Status::ok : Status::empty;
}

// --- the end

void Socket::Core::end_by_peer() noexcept {
    if (ended != Status::ok) return;
    const connect::PeerState peer = link.peer_now();
    // What it sent before its end has landed before we learnt of the end: look once more.
    take_messages();
    if (ended != Status::ok) return;
    // And what it had of ours by then is sent, whether or not the device still said so.
    (void)window.reap();
    const bool had_all = peer == connect::PeerState::closed && peer_had_all();
    while (!in_flight.empty() && (had_all || window.done(in_flight.front().ticket))) {
        connection->written(in_flight.front().places);
        in_flight.pop();
    }
    if (peer != connect::PeerState::closed) {
        end(Status::peer_lost, cause_of_loss());
    } else if (connection->receiver().ended()) {
        end(Status::closed, {});
    } else {
        end(Status::peer_lost, "the peer closed before the end of its stream");
    }
}

void Socket::Core::end(Status how, std::string why) noexcept {
    if (ended != Status::ok) return;
    ended = how;
    why_failed = std::move(why);
    // From here on the peer writes to no receive, and the device reads no send.
    link.queue_pair().fail();
    connection->break_off_sending();
}

std::string Socket::Core::cause_of_loss() const {
    return window.broken() ? window.failure() : "the peer's process or its host ended";
}

bool Socket::Core::all_delivered() noexcept {
    if (!connection->sender().finished()) return false;
    return window.done(last_ticket) || (window.reap() == Status::ok && window.done(last_ticket));
}

bool Socket::Core::peer_had_all() const noexcept {
    const std::span<const std::byte> words = link.last_words();
    if (words.size() != sizeof(LastWords)) return false;
    std::uint64_t arrived = 0;
    std::memcpy(&arrived, words.data(), words.size());
    // A peer that claims more harms nobody.
    return arrived >= connection->sender().sequence() + connection->sender().unsent();
}

void Socket::Core::say_goodbye() noexcept {
    take_messages();
    const std::uint64_t arrived =
        connection->receiver().sequence() + connection->receiver().buffered();
    LastWords words;
    std::memcpy(words.data(), &arrived, words.size());
    link.say_goodbye(words);
}

// --- sleeping elsewhere

void Socket::Core::end_rest() noexcept {
    if (readiness != nullptr) readiness->end(*sleeper);
}

void Socket::Core::tell_loop() noexcept {
    // A hold is over by the clock, which a descriptor at rest may not have.
    if (readiness == nullptr || !(owes_news() || hold.is_running())) return;
    end_rest();
    readiness->wake();
}

bool Socket::Core::owes_news(std::optional<Awaited> but) const noexcept {
    if (!completions.empty()) return true;
    const std::uint64_t now = news();
    for (std::size_t kind = 0; kind < awaited_kinds; ++kind) {
        if (but.has_value() && kind == static_cast<std::size_t>(*but)) continue;
        if (searches[kind].has_value() && *searches[kind] != now) return true;
    }
    return false;
}

void Socket::Core::settle_news() noexcept {
    const std::uint64_t now = news();
    for (std::optional<std::uint64_t>& seen : searches) {
        if (seen.has_value()) seen = now;
    }
}

// --- reports

SocketStats Socket::Core::stats() const noexcept {
    SocketStats stats = counts;
    const SenderCounts& sent = connection->sender().counts();
    const ReceiverCounts& received = connection->receiver().counts();
    stats.direct_bytes_sent = sent.direct_bytes;
    stats.direct_transfers = sent.direct_transfers;
    stats.indirect_bytes_sent = sent.indirect_bytes;
    stats.indirect_transfers = sent.indirect_transfers;
    stats.direct_bytes_received = received.direct_bytes;
    stats.indirect_bytes_received = received.indirect_bytes;
    stats.copies = received.copies;
    stats.lent_bytes = received.lent_bytes;
    stats.adverts_sent = received.adverts;
    stats.adverts_used = sent.adverts_used;
    stats.adverts_stale = sent.adverts_stale;
    stats.adverts_withdrawn = sent.adverts_withdrawn;
    stats.phase_changes = sent.phase_changes;
    stats.messages_sent = messages_sent;
    stats.messages_received = slots.taken();
    stats.sleeps = sleeper->sleeps();
    stats.events_sent = bell.rung();
    stats.events_received = sleeper->woken();
    return stats;
}

void Socket::Core::show() noexcept {
    shown = activity();
    const SocketStats now = stats();
    const std::uint64_t values[] = {now.direct_bytes_sent,
                                    now.direct_transfers,
                                    now.indirect_bytes_sent,
                                    now.indirect_transfers,
                                    now.direct_bytes_received,
                                    now.indirect_bytes_received,
                                    now.copies,
                                    now.lent_bytes,
                                    now.adverts_sent,
                                    now.adverts_used,
                                    now.adverts_stale,
                                    now.adverts_withdrawn,
                                    now.phase_changes,
                                    now.messages_sent,
                                    now.messages_received,
                                    now.requests,
                                    now.stalls_advert,
                                    now.stalls_room,
                                    now.stalls_credit,
                                    now.stalls_request,
                                    now.staged,
                                    now.registrations,
                                    now.registrations_kept,
                                    now.sleeps,
                                    now.events_sent,
                                    now.events_received};
    std::size_t index = 0;
    for (const std::uint64_t value : values) statistics.counter(index++).set(value);
}

}  // namespace millrace::stream
