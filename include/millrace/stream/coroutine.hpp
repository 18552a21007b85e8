// Awaitable forms of a byte stream's waiting operations, for coroutines (base/coroutine.hpp). The
// same answers as those, after the same try_ calls; the thread is others' meanwhile. One task may
// read, another one write, and another one take completions; what is passed by reference lives as
// long as the operation. A task that is destroyed has read nothing, or written some of its bytes.
//
//     while (co_await stream::read_some(socket, memory, size, deadline) == Status::ok) …
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/coroutine.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::stream {

namespace detail {

/// What a call that does not wait has answered, unless that was `not_yet`.
[[nodiscard]] inline std::optional<base::Status> unless(base::Status not_yet,
                                                        base::Status status) noexcept {
    return status == not_yet ? std::nullopt : std::optional{status};
}

}  // namespace detail

/// The next completion; `empty`, at once, where no operation is outstanding. Of one task at a time.
[[nodiscard]] inline auto wait(Socket& socket, Completion& completion,
                               const base::Deadline& deadline) {
    return base::until_done(
        socket,
        [&socket, &completion]() -> std::optional<base::Status> {
            const base::Status status = socket.poll(completion);
            if (status == base::Status::empty && socket.outstanding() == 0) return status;
            return detail::unless(base::Status::empty, status);
        },
        deadline);
}

/// See Socket::read_some. The memory is not lent while the task waits. Of one task at a time.
[[nodiscard]] inline auto read_some(Socket& socket, std::span<std::byte> into, std::size_t& size,
                                    const base::Deadline& deadline) {
    return base::until_done(
        socket,
        [&socket, into, &size]() -> std::optional<base::Status> {
            const base::Status status = socket.try_read_some(into, size);
            if (into.empty()) return status;
            return detail::unless(base::Status::empty, status);
        },
        deadline);
}

/// See Socket::read_zero_copy. Of one task at a time.
[[nodiscard]] inline auto read_zero_copy(Socket& socket, View& view,
                                         const base::Deadline& deadline) {
    return base::until_done(
        socket,
        [&socket, &view] {
            return detail::unless(base::Status::empty, socket.try_read_zero_copy(view));
        },
        deadline);
}

/// See Socket::write_some. Of one task at a time.
[[nodiscard]] inline auto write_some(Socket& socket, std::span<const std::byte> from,
                                     std::size_t& size, const base::Deadline& deadline) {
    return base::until_done(
        socket,
        [&socket, from, &size] {
            return detail::unless(base::Status::full, socket.try_write_some(from, size));
        },
        deadline);
}

/// Until all are under way. Anything but `ok`: some of them may be, if they are not a message.
[[nodiscard]] inline auto write_all(Socket& socket, std::span<const std::byte> from,
                                    const base::Deadline& deadline) {
    return base::until_done(
        socket,
        [&socket, from]() mutable -> std::optional<base::Status> {
            for (;;) {
                std::size_t size = 0;
                const base::Status status = socket.try_write_some(from, size);
                // Of no bytes: there are no messages, and nothing was to be done.
                if (status == base::Status::empty) return base::Status::ok;
                if (status != base::Status::ok) return detail::unless(base::Status::full, status);
                if (size == from.size()) return status;
                from = from.subspan(size);
            }
        },
        deadline);
}

/// Socket::close. A task that is destroyed has shut down the socket, and not closed it.
[[nodiscard]] inline base::Task<base::Status> close(Socket& socket, base::Deadline deadline) {
    const base::Status status = co_await base::until_done(
        socket, [&socket] { return detail::unless(base::Status::full, socket.try_close()); },
        deadline);
    const bool is_late = status == base::Status::timed_out || status == base::Status::cancelled;
    co_return is_late ? socket.close(deadline) : status;
}

/// connect::Accepted<Socket> of the next peer that sets up its socket.
[[nodiscard]] inline base::Task<connect::Accepted<Socket>> accept(Listener& listener,
                                                                  const base::Deadline& deadline) {
    return connect::accept_by<Socket>(
        listener, [&listener] { return listener.try_accept(); }, deadline);
}

/// connect::Accepted<Socket> of a connector that has connected. Throws what try_connect throws.
/// Connector::wait with Deadline::now() tells how far one came whose time was over.
[[nodiscard]] inline base::Task<connect::Accepted<Socket>> connect(Connector& connector,
                                                                   const base::Deadline& deadline) {
    return connect::accept_by<Socket>(
        connector, [&connector] { return connector.try_connect(); }, deadline);
}

}  // namespace millrace::stream
