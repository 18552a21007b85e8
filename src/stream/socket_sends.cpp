// What the program sends: asynchronously, by write_some, and the end of the stream.
#include "socket_core.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "millrace/base/detail/copy_bytes.hpp"

namespace millrace::stream {

using base::Status;

Status Socket::Core::send(std::span<const std::byte> from, const Slice* slice, std::uint64_t id,
                          SendFlags flags) {
    if (from.empty() && !keeps_messages()) return Status::empty;
    if (from.size() > longest_operation) return Status::too_large;
    const bool is_plain = slice == nullptr && !from.empty();
    if (is_plain && options.registered_only) refuse_plain("send");
    step();
    if (end.ended() != Status::ok) return end.ended();
    if (connection->sender().is_shut_down()) return Status::closed;
    if (open_sends == options.sends || !prepare_to_send()) return Status::full;
    // Behind one that is staged when it is posted, none is staged before: see Staging.
    const bool patient = is_plain && flags == SendFlags::more && bare_sends == 0 &&
                         from.size() <= options.tuning.coalesced_bytes && !keeps_messages();
    Send prepared;
    prepared.id = id;
    prepared.data = from.data();
    prepared.length = from.size();
    bool at_once = false;
    if (slice != nullptr) {
        prepared.lkey = slice->lkey();
        prepared.region = slice->hold();
    }
    if (is_plain) {
        at_once = goes_at_once(from.size(), patient);
        // What is stored in the ring needs nothing but its bytes.
        const Sender& sender = connection->sender();
        prepared.is_bare =
            stores && !patient && mode != Mode::direct &&
            (sender.adverts() == 0 || bare_sends != 0 || sender.forgoes(from.size()));
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

bool Socket::Core::prepare_to_send() noexcept {
    if (!sends.empty()) [[likely]]
        return true;
    return connection->prepare_to_send() && in_flight.prepare() && completions.prepare() &&
           resize(sends, std::size_t{2} * options.sends);
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
    return places <= sender.room() &&
           connection->credits().transfer_allowed(2 + places / ring_piece_bytes) && may_post();
}

void Socket::Core::shut_down() noexcept {
    connection->shut_down();
    is_quiet = false;
    step();
    tell_loop();
}

Status Socket::Core::write_some(std::span<const std::byte> from, std::size_t& size) {
    size = 0;
    if (from.empty() && !keeps_messages()) return Status::empty;
    look();
    if (end.ended() != Status::ok) return end.ended();
    const Sender& sender = connection->sender();
    if (sender.is_shut_down()) return Status::closed;
    if (!prepare_to_send()) return Status::full;
    // What had no requests, and would go before these bytes.
    if (lacked_requests && may_post()) act();
    // Only what goes at once: nobody may call again to let it go.
    bool can_go = sender.unsent() == 0 && connection->credits().transfer_allowed() && may_post() &&
                  sends_added - std::min(sends_done, sends_reported) < options.sends;
    std::size_t length = from.size();
    if (keeps_messages()) {
        if (length > longest_copied_message()) return Status::too_large;
        // Where the ring ends in between, two transfers, and twice may_post()'s requests.
        can_go =
            can_go && (sender.adverts() != 0 ||
                       (length + message_mark_bytes <= sender.room() &&
                        connection->credits().transfer_allowed(2) && end.window().free() >= 8));
    } else {
        can_go = can_go && sender.next_room() != 0;
        length = std::min<std::uint64_t>(length, sender.next_room());
    }
    if (!can_go) return Status::full;
    std::byte* copy = nullptr;
    const bool is_posted = !stores || (sender.adverts() != 0 && !sender.forgoes(length));
    if (is_posted && length != 0) {
        length = std::min(length, most_written);
        copy = stage(length);
        if (copy == nullptr) return Status::full;
        base::copy_bytes(copy, from.data(), length);
    }
    Send& send = add_send(from.first(length), 0);
    send.is_internal = true;
    if (copy != nullptr) {
        send.data = copy;
        send.lkey = copies->memory.region().lkey();
        send.is_copy = true;
        send.staged_to = copies->places.position();
    }
    (void)connection->send(sends_added - 1, length, false, true);
    act();
    tell_loop();
    size = length;
    return end.ended() == Status::ok ? Status::ok : end.ended();
}

/// That write_some takes.
std::size_t Socket::Core::longest_copied_message() const noexcept {
    if (mode == Mode::direct) return most_written;
    return std::min<std::size_t>(most_written, at_peer.ring_bytes - message_mark_bytes);
}

}  // namespace millrace::stream
