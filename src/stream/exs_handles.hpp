// What the handles of the C face stand for: exs.cpp, exs_progress.cpp and exs_errors.cpp share it.
#pragma once

#include "millrace/stream/exs.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bounded_queue.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/socket.hpp"

struct exs_memory_state {
    millrace::stream::Buffer buffer;
    std::uint64_t uses = 0;  ///< by operations
};

struct exs_queue_state {
    explicit exs_queue_state(std::size_t depth) : events{depth} {
        if (!events.prepare()) throw std::bad_alloc{};
    }
    [[nodiscard]] bool has_room() const noexcept {
        return open + events.size() < events.capacity();
    }

    millrace::stream::BoundedQueue<exs_event_t> events;
    std::size_t open = 0;  ///< operations that have no event yet
    millrace::connect::Hub hub;
    std::vector<exs_socket_state*> sockets;  ///< in the hub
};

struct exs_socket_state {
    struct Operation {
        exs_ahandle_t name = nullptr;
        exs_queue_state* queue = nullptr;
        exs_memory_state* memory = nullptr;
        bool is_open = false;
        bool is_receive = false;
    };
    struct Accept {
        exs_ahandle_t name;
        exs_queue_state* queue;
    };
    struct Connect {
        millrace::stream::Connector connector;
        millrace::base::Deadline deadline;
        exs_ahandle_t name;
        exs_queue_state* queue;
    };

    millrace::stream::SocketOptions options;
    std::optional<millrace::connect::Address> address;  ///< it is bound to
    std::string listens_at;
    std::optional<millrace::stream::Listener> listener;
    std::optional<millrace::stream::Socket> socket;
    std::optional<Connect> connect;     ///< under way
    std::vector<Operation> operations;  ///< by the id of the socket's
    std::vector<std::uint32_t> free;
    bool is_closing = false;
    std::deque<Accept> accepts;
    std::vector<std::pair<exs_queue_state*, millrace::connect::Hub::Id>>
        queues;  ///< whose hubs it is in
};

namespace millrace::stream::exs {

// --- errors: exs_errors.cpp

/// What exs_last_error() says of this thread's last call that failed.
[[nodiscard]] const char* last_error() noexcept;
/// -1, with errno and that text.
int failed(int number, std::string_view text) noexcept;
[[nodiscard]] int errno_of(base::Status status) noexcept;
[[nodiscard]] int errno_of(base::ErrorCode code) noexcept;
/// 0; or -1, as `attempted` has come to `status`.
int answer(const exs_socket_state& sock, const char* attempted, base::Status status);

/// `call()`, or -1 with what it threw.
template <class Call>
int guarded(Call&& call) noexcept {
    try {
        return call();
    } catch (const base::Error& error) {
        return failed(errno_of(error.code()), error.what());
    } catch (const std::bad_alloc&) {
        return failed(ENOMEM, "there is no memory left");
    } catch (const std::exception& error) {
        return failed(EIO, error.what());
    }
}

// --- progress: exs_progress.cpp

/// An operation of the queue is over.
void give(exs_queue_state& queue, const exs_event_t& event);
/// No queue waits for the socket any more.
void part(exs_socket_state& sock);
/// The connect that is under way is over.
void end_connect(exs_socket_state& sock, int error);
/// Takes what is over, until there is nothing more.
void look_at(exs_socket_state& sock);
/// The same of all sockets that the queue waits for.
void look_at_all(exs_queue_state& queue);
/// The queue waits for the socket from now on.
void join(exs_socket_state& sock, exs_queue_state& queue);

}  // namespace millrace::stream::exs
