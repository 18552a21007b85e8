#include "server/put_off_requests.hpp"

#include <exception>
#include <utility>

#include "millrace/base/clock.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "server/state.hpp"

namespace millrace::message {

bool PutOffRequests::add(Peer& peer, const SessionHeader& header,
                         std::span<const std::byte> payload, std::uint64_t taken_at) {
    // What waits here leaves place for others.
    if (payload.size() > server_.options.tuning.max_put_off_bytes - bytes_ ||
        server_.counts.pending >= server_.options.max_pending / 2) {
        return false;
    }
    waiting_.push_back({.client = peer.id,
                        .header = header,
                        .payload = {payload.begin(), payload.end()},
                        .taken_at = taken_at,
                        .at = base::ticks()});
    bytes_ += payload.size();
    ++added_;
    ++server_.counts.put_off;
    // As one that was deferred, which its client may take back.
    server_.answering.defer(peer, header.id);
    return true;
}

std::size_t PutOffRequests::serve(const detail::HandlerRef& handler, std::size_t requests) {
    constexpr std::uint32_t others_before = detail::PuttingOff::others_before;
    others_ += requests - std::exchange(added_, 0);
    std::size_t due = requests == 0 ? 1 : others_ / others_before;
    others_ = requests == 0 ? 0 : others_ % others_before;
    std::size_t served = 0;
    for (; due != 0 && serve_next(handler); --due) ++served;
    if (waiting_.empty()) others_ = 0;
    return served;
}

bool PutOffRequests::serve_next(const detail::HandlerRef& handler) {
    while (!waiting_.empty()) {
        const One one = std::move(waiting_.front());
        waiting_.pop_front();
        bytes_ -= one.payload.size();
        Peer* const peer = server_.places.find(one.client);
        if (peer == nullptr || !server_.answering.take_deferred(*peer, one.header.id)) continue;
        try {
            serve(*peer, one, handler);
        } catch (const std::exception& error) {
            server_.clients.lose(*peer, error);
        }
        if (peer->line.network() != nullptr) server_.turns.tell(*peer);
        return true;
    }
    return false;
}

void PutOffRequests::serve(Peer& peer, const One& one, const detail::HandlerRef& handler) {
    if (server_.is_draining) return server_.answering.decline(peer, one.header.id);
    handed_at_ = one.at;
    Request request = detail::RequestAccess::make(server_, peer, one.header, one.payload);
    detail::RequestAccess::mark_as_put_off(request, one.taken_at);
    detail::hand_over(server_, peer, request, handler);
}

}  // namespace millrace::message
