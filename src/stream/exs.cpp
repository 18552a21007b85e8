// The C face of byte streams, see the header: handles over Socket, Listener, Buffer and Hub. No
// exception leaves it.
#include "millrace/stream/exs.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "exs_handles.hpp"
#include "millrace/connect/link.hpp"

namespace stream = millrace::stream;
using namespace millrace::stream::exs;
using millrace::base::Deadline;
using millrace::base::Status;
using millrace::connect::Address;
using millrace::connect::Endpoint;

namespace {

/// A handle that `make()` makes; null where it throws.
template <class Handle, class Make>
Handle* made(Make&& make) noexcept {
    Handle* handle = nullptr;
    (void)guarded([&] {
        handle = make().release();
        return 0;
    });
    return handle;
}

Deadline deadline_in(int milliseconds) {
    return milliseconds < 0 ? Deadline::never()
                            : Deadline::after(std::chrono::milliseconds{milliseconds});
}

/// Until then, or until a connect is late.
Deadline until_next(const exs_queue_state& queue, Deadline deadline) {
    for (const exs_socket_state* const sock : queue.sockets) {
        if (sock->connect) deadline = deadline.no_later_than(sock->connect->deadline.point());
    }
    return deadline;
}

template <class Start>
int start(exs_socket_state* sock, const char* attempted, exs_queue_state* queue, exs_ahandle_t name,
          exs_memory_state* memory, const std::byte* bytes, std::size_t length, bool is_receive,
          Start&& operate) {
    if (sock == nullptr || queue == nullptr) return failed(EINVAL, "a handle is null");
    if (!sock->socket) return failed(ENOTCONN, "the socket is not connected");
    if (bytes == nullptr && length != 0) return failed(EFAULT, "the address of the bytes is null");
    if (!queue->has_room()) return failed(EAGAIN, "the queue has no room for another event");
    return guarded([&] {
        std::optional<stream::Slice> slice;
        if (memory != nullptr) {
            const std::byte* const begin = memory->buffer.data();
            if (bytes < begin || bytes > begin + memory->buffer.size()) {
                return failed(EINVAL, "the bytes do not lie in the registered memory");
            }
            slice = memory->buffer.slice(static_cast<std::size_t>(bytes - begin), length);
        }
        join(*sock, *queue);
        look_at(*sock);
        if (sock->free.empty()) return answer(*sock, attempted, Status::full);
        const std::uint32_t id = sock->free.back();
        const Status status = operate(slice, id);
        if (status != Status::ok) return answer(*sock, attempted, status);
        sock->free.pop_back();
        sock->operations[id] = {name, queue, memory, true, is_receive};
        if (memory != nullptr) ++memory->uses;
        ++queue->open;
        return 0;
    });
}

}  // namespace

extern "C" {

int exs_init(int version) {
    if (version != EXS_VERSION) {
        return failed(EINVAL,
                      fmt::format("version {} is asked for, and this is {}", version, EXS_VERSION));
    }
    return guarded([] {
        (void)Endpoint::shared();
        return 0;
    });
}

const char* exs_last_error(void) { return last_error(); }

exs_mhandle_t exs_mregister(void* memory, size_t length) {
    return made<exs_memory_state>([&] {
        return std::make_unique<exs_memory_state>(
            stream::Buffer{std::span{static_cast<std::byte*>(memory), length}});
    });
}

int exs_mderegister(exs_mhandle_t memory) {
    if (memory == nullptr) return failed(EINVAL, "a handle is null");
    if (memory->uses != 0) return failed(EBUSY, "an operation uses the memory");
    delete memory;
    return 0;
}

exs_qhandle_t exs_qcreate(int depth) {
    if (depth <= 0) {
        (void)failed(EINVAL, "a queue has room for one event at least");
        return nullptr;
    }
    return made<exs_queue_state>(
        [&] { return std::make_unique<exs_queue_state>(static_cast<std::size_t>(depth)); });
}

int exs_qdelete(exs_qhandle_t queue) {
    if (queue == nullptr) return failed(EINVAL, "a handle is null");
    if (queue->open != 0 || !queue->events.empty()) {
        return failed(EBUSY, "operations name the queue whose events were not taken");
    }
    return guarded([&] {
        queue->hub.adopt();
        for (exs_socket_state* const sock : queue->sockets) {
            std::erase_if(sock->queues, [&](const auto& joined) { return joined.first == queue; });
        }
        delete queue;
        return 0;
    });
}

int exs_qdequeue(exs_qhandle_t queue, exs_event_t* events, int count, int milliseconds) {
    if (queue == nullptr || events == nullptr || count <= 0) {
        return failed(EINVAL, "there is no queue, or no room for an event");
    }
    return guarded([&] {
        queue->hub.adopt();
        if (queue->events.empty()) {
            look_at_all(*queue);
        }
        const Deadline deadline = deadline_in(milliseconds);
        while (queue->events.empty() && milliseconds != 0) {
            if (queue->hub.rest(until_next(*queue, deadline)) == Status::ok) {
                (void)queue->hub.turn();
            } else if (deadline.expired()) {
                break;
            } else {
                look_at_all(*queue);
            }
        }
        int taken = 0;
        for (; taken < count && !queue->events.empty(); ++taken) {
            events[taken] = queue->events.front();
            queue->events.pop();
        }
        return taken;
    });
}

exs_shandle_t exs_socket(int type) {
    if (type != SOCK_STREAM && type != SOCK_SEQPACKET) {
        (void)failed(ESOCKTNOSUPPORT, "a socket is of type SOCK_STREAM or SOCK_SEQPACKET");
        return nullptr;
    }
    return made<exs_socket_state>([&] {
        auto sock = std::make_unique<exs_socket_state>();
        if (type == SOCK_SEQPACKET) sock->options.type = stream::Type::seqpacket;
        return sock;
    });
}

int exs_setmode(exs_shandle_t sock, int mode) {
    if (sock == nullptr) return failed(EINVAL, "a handle is null");
    if (sock->socket || sock->listener || sock->connect) {
        return failed(EISCONN, "the socket has its mode");
    }
    switch (mode) {
        case EXS_MODE_DYNAMIC: sock->options.mode = stream::Mode::dynamic; return 0;
        case EXS_MODE_DIRECT: sock->options.mode = stream::Mode::direct; return 0;
        case EXS_MODE_INDIRECT: sock->options.mode = stream::Mode::indirect; return 0;
        default: return failed(EINVAL, fmt::format("there is no mode {}", mode));
    }
}

int exs_setregisteredonly(exs_shandle_t sock, int on) {
    if (sock == nullptr) return failed(EINVAL, "a handle is null");
    if (sock->socket || sock->listener || sock->connect) {
        return failed(EISCONN, "the socket is in use");
    }
    sock->options.registered_only = on != 0;
    return 0;
}

int exs_bind(exs_shandle_t sock, const char* address) {
    if (sock == nullptr || address == nullptr) return failed(EINVAL, "a handle is null");
    if (sock->socket || sock->listener || sock->connect) {
        return failed(EISCONN, "the socket is in use");
    }
    return guarded([&] {
        sock->address = Address::parse(address);
        return 0;
    });
}

int exs_listen(exs_shandle_t sock) {
    if (sock == nullptr || !sock->address) return failed(EINVAL, "the socket is not bound");
    if (sock->socket || sock->listener || sock->connect) {
        return failed(EISCONN, "the socket is in use");
    }
    return guarded([&] {
        sock->listener.emplace(stream::Listener::listen(*sock->address, sock->options));
        sock->listens_at = sock->listener->address().to_string();
        return 0;
    });
}

const char* exs_address(exs_shandle_t sock) {
    return sock == nullptr || !sock->listener ? nullptr : sock->listens_at.c_str();
}

int exs_accept(exs_shandle_t sock, exs_ahandle_t ahandle, exs_qhandle_t queue) {
    if (sock == nullptr || queue == nullptr) return failed(EINVAL, "a handle is null");
    if (!sock->listener) return failed(EINVAL, "the socket does not listen");
    if (!queue->has_room()) return failed(EAGAIN, "the queue has no room for another event");
    return guarded([&] {
        join(*sock, *queue);
        sock->accepts.push_back({ahandle, queue});
        ++queue->open;
        look_at(*sock);
        return 0;
    });
}

int exs_connect(exs_shandle_t sock, const char* address, int milliseconds, exs_ahandle_t ahandle,
                exs_qhandle_t queue) {
    if (sock == nullptr || address == nullptr || queue == nullptr) {
        return failed(EINVAL, "a handle is null");
    }
    if (sock->connect) return failed(EALREADY, "the socket is being connected");
    if (sock->socket || sock->listener) return failed(EISCONN, "the socket is in use");
    if (!queue->has_room()) return failed(EAGAIN, "the queue has no room for another event");
    return guarded([&] {
        sock->connect.emplace(
            exs_socket_state::Connect{stream::Connector{Address::parse(address), sock->options},
                                      deadline_in(milliseconds), ahandle, queue});
        const int joined = guarded([&] {
            join(*sock, *queue);
            return 0;
        });
        if (joined != 0) {
            sock->connect.reset();
            return joined;
        }
        ++queue->open;
        return 0;
    });
}

int exs_send(exs_shandle_t sock, const void* bytes, size_t length, int flags, exs_mhandle_t memory,
             exs_ahandle_t ahandle, exs_qhandle_t queue) {
    if ((flags & ~MSG_MORE) != 0) return failed(EINVAL, "a send has no flag but MSG_MORE");
    const auto more = flags == MSG_MORE ? stream::SendFlags::more : stream::SendFlags::none;
    const auto* const from = static_cast<const std::byte*>(bytes);
    return start(sock, "send", queue, ahandle, memory, from, length, false,
                 [&](const std::optional<stream::Slice>& slice, std::uint64_t id) {
                     return slice ? sock->socket->send(*slice, id, more)
                                  : sock->socket->send(std::span{from, length}, id, more);
                 });
}

int exs_recv(exs_shandle_t sock, void* bytes, size_t length, int flags, exs_mhandle_t memory,
             exs_ahandle_t ahandle, exs_qhandle_t queue) {
    if ((flags & ~MSG_WAITALL) != 0) return failed(EINVAL, "a receive has no flag but MSG_WAITALL");
    const auto all =
        flags == MSG_WAITALL ? stream::ReceiveFlags::wait_all : stream::ReceiveFlags::none;
    auto* const into = static_cast<std::byte*>(bytes);
    return start(sock, "receive", queue, ahandle, memory, into, length, true,
                 [&](const std::optional<stream::Slice>& slice, std::uint64_t id) {
                     return slice ? sock->socket->receive(*slice, id, all)
                                  : sock->socket->receive(std::span{into, length}, id, all);
                 });
}

int exs_cancel(exs_shandle_t sock, exs_ahandle_t ahandle) {
    if (sock == nullptr) return failed(EINVAL, "a handle is null");
    return guarded([&] {
        int found = 0;
        for (std::size_t id = 0; id < sock->operations.size(); ++id) {
            const auto& operation = sock->operations[id];
            if (!operation.is_open || !operation.is_receive || operation.name != ahandle) continue;
            if (sock->socket->cancel(id) == Status::ok) ++found;
        }
        if (sock->connect && sock->connect->name == ahandle) {
            end_connect(*sock, ECANCELED);
            ++found;
        }
        for (std::size_t i = 0; i < sock->accepts.size();) {
            const auto accept = sock->accepts[i];
            if (accept.name != ahandle) {
                ++i;
                continue;
            }
            exs_event_t event{};
            event.type = EXS_EVT_ACCEPT;
            event.error = ECANCELED;
            event.socket = sock;
            event.ahandle = ahandle;
            sock->accepts.erase(sock->accepts.begin() + static_cast<std::ptrdiff_t>(i));
            give(*accept.queue, event);
            ++found;
        }
        return found != 0 ? 0 : failed(ENOENT, "no receive, accept or connect has that name");
    });
}

int exs_shutdown(exs_shandle_t sock, int how) {
    if (sock == nullptr || !sock->socket) return failed(ENOTCONN, "the socket is not connected");
    if (how != SHUT_WR) return failed(EOPNOTSUPP, "SHUT_WR alone ends a direction");
    return guarded([&] {
        sock->socket->shut_down();
        return 0;
    });
}

int exs_close(exs_shandle_t sock, int milliseconds) {
    if (sock == nullptr) return failed(EINVAL, "a handle is null");
    Status status = Status::ok;
    const int ended = guarded([&] {
        const std::unique_ptr<exs_socket_state> owned{sock};
        if (sock->socket) {
            look_at(*sock);
            sock->is_closing = true;
            status = sock->socket->close(deadline_in(milliseconds));
            look_at(*sock);
        }
        if (sock->connect) end_connect(*sock, ECANCELED);
        while (!sock->accepts.empty()) (void)exs_cancel(sock, sock->accepts.front().name);
        part(*sock);
        return 0;
    });
    if (ended != 0 || status == Status::ok) return ended;
    return failed(errno_of(status), fmt::format("cannot close in good order: {}", name_of(status)));
}

}  // extern "C"
