// How what a program has asked for goes on: completions, connects and accepts become events.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "exs_handles.hpp"

namespace millrace::stream::exs {

using base::Deadline;
using base::Status;
using connect::Hub;

void give(exs_queue_state& queue, const exs_event_t& event) {
    --queue.open;
    queue.events.push(event);
}

namespace {

void finish(exs_socket_state& sock, const Completion& done) {
    exs_socket_state::Operation& operation = sock.operations[done.id];
    const bool is_end = operation.is_receive && done.status == Status::closed && !sock.is_closing;
    exs_event_t event{};
    event.type = operation.is_receive ? EXS_EVT_RECV : EXS_EVT_SEND;
    event.error = is_end ? 0 : errno_of(done.status);
    event.socket = &sock;
    event.ahandle = operation.name;
    event.length = done.bytes;
    event.end_of_stream = is_end ? 1 : 0;
    operation.is_open = false;
    if (operation.memory != nullptr) --operation.memory->uses;
    sock.free.push_back(static_cast<std::uint32_t>(done.id));
    give(*operation.queue, event);
}

void take_socket(exs_socket_state& sock, Socket socket) {
    const std::size_t most = std::size_t{sock.options.sends} + sock.options.receives;
    sock.operations.resize(most);
    sock.free.resize(most);
    for (std::uint32_t i = 0; i < most; ++i) sock.free[i] = i;
    sock.socket.emplace(std::move(socket));
}

}  // namespace

void part(exs_socket_state& sock) {
    for (const auto& [queue, id] : sock.queues) {
        queue->hub.adopt();
        (void)queue->hub.remove(id);
        std::erase(queue->sockets, &sock);
    }
    sock.queues.clear();
}

/// Its queue waits for the socket, from the next operation on.
void end_connect(exs_socket_state& sock, int error) {
    part(sock);
    exs_event_t event{};
    event.type = EXS_EVT_CONNECT;
    event.error = error;
    event.socket = &sock;
    event.ahandle = sock.connect->name;
    exs_queue_state& queue = *sock.connect->queue;
    sock.connect.reset();
    give(queue, event);
}

namespace {
void look_at_connect(exs_socket_state& sock) {
    int error = 0;
    const int ended = guarded([&] {
        const bool is_late = sock.connect->deadline.expired();
        std::optional<Socket> socket;
        if (is_late) {
            socket.emplace(sock.connect->connector.wait(Deadline::now()));
        } else {
            socket = sock.connect->connector.try_connect();
        }
        if (!socket) return 1;
        take_socket(sock, std::move(*socket));
        return 0;
    });
    if (ended == 1) return;
    if (ended != 0) error = errno;
    end_connect(sock, error);
}
}  // namespace

void look_at(exs_socket_state& sock) {
    if (sock.connect) look_at_connect(sock);
    Completion done;
    while (sock.socket && sock.socket->poll(done) == Status::ok) finish(sock, done);
    while (!sock.accepts.empty()) {
        std::optional<Socket> peer = sock.listener->try_accept();
        if (!peer) return;
        auto accepted = std::make_unique<exs_socket_state>();
        accepted->options = sock.options;
        take_socket(*accepted, std::move(*peer));
        const auto accept = sock.accepts.front();
        sock.accepts.pop_front();
        exs_event_t event{};
        event.type = EXS_EVT_ACCEPT;
        event.socket = &sock;
        event.ahandle = accept.name;
        event.accepted = accepted.release();
        give(*accept.queue, event);
    }
}

void join(exs_socket_state& sock, exs_queue_state& queue) {
    for (const auto& [joined, id] : sock.queues) {
        if (joined == &queue) return;
    }
    queue.hub.adopt();
    queue.sockets.reserve(queue.sockets.size() + 1);
    sock.queues.reserve(sock.queues.size() + 1);
    const int descriptor = sock.connect  ? sock.connect->connector.descriptor()
                           : sock.socket ? sock.socket->descriptor()
                                         : sock.listener->descriptor();
    const Hub::Id id = queue.hub.add(descriptor, [&sock] { look_at(sock); });
    sock.queues.emplace_back(&queue, id);
    queue.sockets.push_back(&sock);
}

/// Nobody joins meanwhile, and whoever has connected leaves.
void look_at_all(exs_queue_state& queue) {
    for (std::size_t i = 0; i < queue.sockets.size();) {
        exs_socket_state* const sock = queue.sockets[i];
        look_at(*sock);
        if (i < queue.sockets.size() && queue.sockets[i] == sock) ++i;
    }
}

}  // namespace millrace::stream::exs
