// What others see of a socket: a program's loop, whose descriptor is to be readable once there is
// news, and readers of its statistics.
#include "socket_core.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

namespace millrace::stream {

void Socket::Core::tell_loop() noexcept {
    // A hold is over by the clock, which a descriptor at rest may not have.
    if (!end.has_descriptor() || !(owes_news() || hold.is_running())) return;
    end.end_rest();
    end.wake();
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

SocketStats Socket::Core::stats() const noexcept {
    SocketStats stats;
    const SenderCounts& sent = connection->sender().counts();
    const ReceiverCounts& received = connection->receiver().counts();
    stats.direct_bytes_sent = sent.direct_bytes;
    stats.direct_transfers = sent.direct_transfers;
    stats.indirect_bytes_sent = sent.indirect_bytes;
    stats.indirect_transfers = sent.indirect_transfers;
    stats.direct_bytes_received = received.direct_bytes;
    stats.direct_transfers_received = received.direct_transfers;
    stats.indirect_bytes_received = received.indirect_bytes;
    stats.indirect_transfers_received = received.indirect_transfers;
    stats.copies = received.copies;
    stats.lent_bytes = received.lent_bytes;
    stats.adverts_sent = received.adverts;
    stats.adverts_used = sent.adverts_used;
    stats.adverts_stale = sent.adverts_stale;
    stats.adverts_withdrawn = sent.adverts_withdrawn;
    stats.adverts_forgone = sent.adverts_forgone;
    stats.phase_changes = sent.phase_changes;
    stats.messages_sent = messages_sent;
    stats.messages_received = slots.taken();
    stats.credits = connection->credits().returned();
    stats.requests = counts.requests;
    stats.stalls_advert = counts.stalls_advert;
    stats.stalls_room = counts.stalls_room;
    stats.stalls_credit = counts.stalls_credit;
    stats.stalls_request = counts.stalls_request;
    stats.staged = counts.staged;
    stats.registrations = counts.registrations;
    stats.registrations_kept = counts.registrations_kept;
    stats.taken_bytes = counts.taken_bytes;
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
                                    static_cast<std::uint64_t>(now.percent_direct()),
                                    now.direct_bytes_received,
                                    now.direct_transfers_received,
                                    now.indirect_bytes_received,
                                    now.indirect_transfers_received,
                                    now.copies,
                                    now.lent_bytes,
                                    now.adverts_sent,
                                    now.adverts_used,
                                    now.adverts_stale,
                                    now.adverts_withdrawn,
                                    now.adverts_forgone,
                                    now.phase_changes,
                                    now.messages_sent,
                                    now.messages_received,
                                    now.credits,
                                    now.requests,
                                    now.stalls_advert,
                                    now.stalls_room,
                                    now.stalls_credit,
                                    now.stalls_request,
                                    now.staged,
                                    now.registrations,
                                    now.registrations_kept,
                                    now.taken_bytes,
                                    now.sleeps,
                                    now.events_sent,
                                    now.events_received};
    static_assert(std::size(values) == own_figures);
    statistics.set(values);
}

}  // namespace millrace::stream
