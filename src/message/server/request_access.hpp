// What the server does with a Request that its handler may not.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/message/server.hpp"
#include "server/state.hpp"

namespace millrace::message::detail {

struct RequestAccess {
    [[nodiscard]] static Request make(Server::State& server, Peer& peer,
                                      const SessionHeader& header,
                                      std::span<const std::byte> payload) noexcept {
        return {&server, &peer, peer.id, header, payload};
    }
    [[nodiscard]] static Server::State& server_of(const Request& request) noexcept {
        return *static_cast<Server::State*>(request.server_);
    }
    [[nodiscard]] static Peer& peer_of(const Request& request) noexcept {
        return *static_cast<Peer*>(request.peer_);
    }
    [[nodiscard]] static bool is_answered(const Request& request) noexcept {
        return request.stage_ == Request::Stage::answered;
    }
    static void mark_as_put_off(Request& request, std::uint64_t taken_at) noexcept {
        request.was_put_off_ = true;
        request.taken_at_ = taken_at;
    }
};

/// Has the handler have it.
[[gnu::always_inline]] inline void hand_over(Server::State& server, Peer& peer, Request& request,
                                             const HandlerRef& handler) {
    handler.call(handler.handler, request);
    if (!RequestAccess::is_answered(request)) [[unlikely]]
        (void)server.answering.answer(peer, request.id(), Outcome::dropped, {});
}

}  // namespace millrace::message::detail
