// Connections that clients of many threads share (Design::connection): one to each server, and one
// thread that brings their calls there and the answers back. It is message::Dispatcher, which
// connects to a server when the first client asks for that.
//
//     auto dispatcher = std::make_shared<rpc::Dispatcher>();
//     std::jthread thread{[&] { dispatcher->adopt(); (void)dispatcher->run(never); }};
//
//     rpc::ClientOptions options;                                  // in each worker
//     options.design = rpc::Design{.connection = rpc::Connection::dispatcher};
//     options.dispatcher = dispatcher;
//     auto client = rpc::Client::connect<Get>(address, options, deadline);
//
// Clients share a connection whose ClientOptions::messages say the same, but for what is of each by
// itself (window, wait) and what DispatcherOptions say; others have another one, and what
// message::Dispatcher does not offer (resumes, transports other than rc) is refused.
//
// A server has as many queue pairs, rings and mailboxes as there are processes. It takes all
// clients of a dispatcher for one: ServerOptions::max_pending_of_client, and whether a client has
// left. Source: work 004, section 4.1, design 2 (communication dispatcher).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/rpc/design.hpp"

namespace millrace::rpc {

struct DispatcherOptions {
    /// Of each connection, for all clients together, in place of what ClientOptions::messages say:
    /// calls without an answer, and bytes of the ring for answers. The server may allow fewer
    /// calls.
    std::uint32_t window = 1024;
    std::size_t ring_bytes = std::size_t{128} << 10;
    /// How the dispatcher waits.
    base::WaitPolicy wait{};
    /// Connections over the dispatcher's life: each that a server's end made necessary counts.
    std::uint32_t max_connections = 1024;
};

/// Belongs to the thread that made it, or called adopt() since, as message::Dispatcher. It has no
/// thread by itself: somebody calls run(). Clients hold it (ClientOptions::dispatcher).
class Dispatcher {
  public:
    /// Connects to nobody. Throws Error.
    explicit Dispatcher(const DispatcherOptions& options = {});
    Dispatcher(const Dispatcher&) = delete;
    Dispatcher& operator=(const Dispatcher&) = delete;
    ~Dispatcher();

    /// Serves its clients until it is stopped (`closed`), or `timed_out`, or `cancelled`.
    base::Status run(const base::Deadline& deadline);
    /// One round of that, for a loop of the program's own. Never sleeps. How much it did.
    std::size_t turn();
    /// Ends run() at once, now or when it is called next, once. Any thread, and signal handlers.
    void stop() noexcept;
    /// From now on it belongs to the calling thread.
    void adopt() noexcept;
    /// What has no answer gets Code::closed, and no client can call any more; then the connections
    /// are closed. Answers as message::Dispatcher::close.
    base::Status close(const base::Deadline& deadline);

    /// Any thread.
    [[nodiscard]] message::DispatcherStats stats() const noexcept;
    /// Its thread.
    [[nodiscard]] std::string explain() const;

    struct State;  ///< private to rpc/
    [[nodiscard]] State& state() noexcept { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

}  // namespace millrace::rpc
