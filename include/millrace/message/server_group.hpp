// Servers of several threads at one address, and the clients distributed among them.
//
//     auto group = message::ServerGroup::listen(address, {}, {.count = 4});
//     (void)group.serve([](message::Request& request) { … }, deadline);      // by all four threads
//
// Each thread has a Server of its own, with all that belongs to one: no request waits for another
// thread or takes a lock. A client belongs to one server from its first word on, the one that has
// the fewest clients then, and its session stays there. A client that comes back asks for the
// server that keeps its session (session.hpp): that server knows its requests, and deferred answers
// find it.
//
// A group of one is a Server, at the same cost. Source: work 001, section 4.2, whose server has one
// thread; the threads of work 004's servers (section 4.1) each have their own clients, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/server.hpp"

namespace millrace::message {

/// By which threads a group serves.
struct ServerThreads {
    /// 1 to 256. One of them is the thread that calls serve(), the others live while it does.
    std::uint32_t count = 1;
    /// The processors that the threads are pinned to, one each, and from the beginning again if
    /// there are fewer; the calling thread stays pinned. A server's thread allocates what its
    /// clients need, so by the system's default that lies on its NUMA node. None: no thread is
    /// pinned.
    std::vector<int> cores{};
};

/// Belongs to the thread that made it, or to the one that called adopt() since, as Server; stop(),
/// is_ending() and stats() are for any thread. Move-only.
class ServerGroup {
  public:
    /// `options` are those of each server; max_clients and max_held_bytes are for all together.
    /// Throws Error as Server::listen;
    /// invalid_argument: a number of threads out of range, or a core that the process may not use.
    [[nodiscard]] static ServerGroup listen(const connect::Address& address,
                                            const ServerOptions& options = {},
                                            const ServerThreads& threads = {});
    ServerGroup(ServerGroup&&) noexcept;
    ServerGroup& operator=(ServerGroup&&) noexcept;
    ~ServerGroup();

    [[nodiscard]] const connect::Address& address() const noexcept;
    [[nodiscard]] std::size_t size() const noexcept;
    /// ClientId::server of its clients is `number`. For a program that has threads, or a loop, of
    /// its own: each adopts one, and serves it as any Server.
    [[nodiscard]] Server& server(std::size_t number) noexcept;

    /// What the clients of all servers make them hold. For libraries on top of a group that hold
    /// something for clients, too.
    [[nodiscard]] const std::shared_ptr<HeldBytes>& held() const noexcept;

    /// Serves by all threads until it is stopped (`closed`), or `timed_out`, or `cancelled`.
    /// `handler(Request&)` is called by all of them, so that it must be thread-safe. What is thrown
    /// in a thread outside of the handler, by a log's sink for one, ends all, and comes out here.
    /// Throws Error (resource_exhausted: no thread).
    template <class Handler>
    base::Status serve(Handler&& handler, const base::Deadline& deadline) {
        return run(
            [&](Server& server, std::size_t) { return serve_one(server, handler, deadline); });
    }

    /// Calls `body` in each thread, whose server belongs to it meanwhile: so a thread may have a
    /// handler of its own. Returns when all have returned, what the first of them did, or `closed`
    /// if the group was stopped. From the first on is_ending() is true, and every server's rest()
    /// and serve() return.
    using Body = std::function<base::Status(Server& server, std::size_t number)>;
    base::Status run(const Body& body);
    /// For a body: as Server::serve, until is_ending().
    template <class Handler>
    base::Status serve_one(Server& server, Handler& handler, const base::Deadline& deadline) {
        for (;;) {
            const base::Status status = server.serve(handler, deadline);
            // A stop that came late for the last time means nothing.
            if (status != base::Status::closed || is_ending()) return status;
        }
    }
    /// run() is to return: it was stopped, or one of the threads has ended.
    [[nodiscard]] bool is_ending() const noexcept;
    /// Ends serve() and run() at once, now or when they are called next, once. Any thread, and
    /// signal handlers.
    void stop() noexcept;

    /// As those of Server, for all of them.
    base::Status drain(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    void adopt() noexcept;

    /// Of all together.
    [[nodiscard]] ServerStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;

  private:
    struct State;
    explicit ServerGroup(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::message
