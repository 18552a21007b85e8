// Awaitable forms of a channel's waiting operations, for coroutines (base/coroutine.hpp). The same
// answers as those, after the same try_ calls; the thread is others' meanwhile. One task may send
// and another one receive; what is passed by reference lives as long as the operation.
//
//     while (co_await message::receive(channel, message, deadline) == Status::ok) …
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/coroutine.hpp"
#include "millrace/message/channel.hpp"

namespace millrace::message {

/// At most Channel::max_piece() bytes: `too_large` otherwise. While messages lie unreceived in a
/// channel that is full, room is looked for by the clock, every 50 µs to 1 ms.
[[nodiscard]] inline auto send(Channel& channel, std::span<const std::byte> message,
                               const base::Deadline& deadline) {
    return base::until_done(
        channel, [&channel, message] { return channel.try_send(message); }, deadline);
}

/// `fill` writes `size` bytes in place, see Channel::try_send.
template <class Fill>
[[nodiscard]] auto send(Channel& channel, std::size_t size, Fill fill,
                        const base::Deadline& deadline) {
    return base::until_done(
        channel,
        [&channel, size, fill = std::move(fill)]() mutable { return channel.try_send(size, fill); },
        deadline);
}

/// Hands the next message to `take`, in place, see Channel::try_receive.
template <class Take>
    requires std::is_invocable_v<Take&, std::span<const std::byte>>
[[nodiscard]] auto receive(Channel& channel, Take take, const base::Deadline& deadline) {
    return base::until_done(
        channel, [&channel, take = std::move(take)]() mutable { return channel.try_receive(take); },
        deadline);
}

/// Replaces `into` by the next message.
[[nodiscard]] inline auto receive(Channel& channel, std::vector<std::byte>& into,
                                  const base::Deadline& deadline) {
    return base::until_done(
        channel,
        [&channel, &into] {
            return channel.try_receive([&into](std::span<const std::byte> message) {
                into.assign(message.begin(), message.end());
            });
        },
        deadline);
}

/// Sends no more; see Channel::finish. After it, close() ends the connection within moments.
[[nodiscard]] inline auto finish(Channel& channel, const base::Deadline& deadline) {
    return base::until_done(
        channel,
        [&channel] {
            const base::Status status = channel.finish(base::Deadline::now());
            return status == base::Status::timed_out ? base::Status::full : status;
        },
        deadline);
}

/// connect::Accepted<Channel> of the next peer that sets up its channel.
[[nodiscard]] inline base::Task<connect::Accepted<Channel>> accept(Listener& listener,
                                                                   const base::Deadline& deadline) {
    return connect::accept_by<Channel>(
        listener, [&listener] { return listener.try_accept(); }, deadline);
}

/// connect::Accepted<Channel> of a connector that has connected. Throws what try_connect throws.
/// Connector::wait with Deadline::now() tells how far one came whose time was over.
[[nodiscard]] inline base::Task<connect::Accepted<Channel>> connect(
    Connector& connector, const base::Deadline& deadline) {
    return connect::accept_by<Channel>(
        connector, [&connector] { return connector.try_connect(); }, deadline);
}

}  // namespace millrace::message
