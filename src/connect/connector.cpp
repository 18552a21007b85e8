// connect(): finds the listener, tries again while nothing listens yet, and drives the handshake.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "handshake.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "sockets.hpp"
#include "waiting.hpp"

namespace millrace::connect {
namespace {

using base::ErrorCode;

/// Nothing listens there yet, or its queue of newcomers is full: worth another try.
bool may_change(int error) noexcept {
    return error == ECONNREFUSED || error == ENOENT || error == EAGAIN || error == ETIMEDOUT ||
           error == ECONNRESET || error == ECONNABORTED;
}

base::Error failed(int error, const Address& address, std::string_view tried,
                   std::string_view if_nobody_listens) {
    std::string cause = base::describe_errno(error);
    std::string remedy = "check the address and the network";
    ErrorCode code = base::code_of_errno(error);
    if (error == ECONNREFUSED || error == ENOENT) {
        code = ErrorCode::refused;
        cause = fmt::format("nothing listens there: {}{}", cause, tried);
        remedy = "start the listening side, and check the address";
        if (!if_nobody_listens.empty()) remedy += fmt::format("; {}", if_nobody_listens);
    } else if (error == EAGAIN) {
        code = ErrorCode::timed_out;
        cause = fmt::format("the listener does not take new peers{}", tried);
        remedy = "is the listening side stopped or busy?";
    } else if (error == EACCES || error == EPERM) {
        code = ErrorCode::permission;
        remedy = "check the rights on the socket's path, or the firewall";
    } else if (error == EMFILE) {
        remedy = "raise the limit of open files (ulimit -n)";
    }
    return base::Error{code, "connect", address.to_string(), std::move(cause), std::move(remedy)};
}

/// Non-blocking connect, waited for until the deadline. 0, an errno value, or -1 when the deadline
/// passed or it was cancelled.
int connect_once(int socket, const SocketAddress& to, const base::Deadline& deadline) {
    if (::connect(socket, to.raw(), to.size) == 0) return 0;
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    for (;;) {
        pollfd entry{.fd = socket, .events = POLLOUT, .revents = 0};
        if (poll_for({&entry, 1}, deadline) > 0) {
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
            return error;
        }
        if (deadline.cancelled() || deadline.expired()) return -1;
    }
}

[[noreturn]] void throw_over(const Address& address, const base::Deadline& deadline, int last_error,
                             std::chrono::nanoseconds waited, std::string_view if_nobody_listens) {
    if (deadline.cancelled()) {
        throw base::Error(ErrorCode::cancelled, "connect", address.to_string(), "it was cancelled",
                          "");
    }
    const double seconds = std::chrono::duration<double>(waited).count();
    if (last_error > 0) {
        throw failed(last_error, address, fmt::format(", tried for {:.1f} s", seconds),
                     if_nobody_listens);
    }
    throw base::Error(ErrorCode::timed_out, "connect", address.to_string(),
                      fmt::format("the host did not answer within {:.1f} s", seconds),
                      "check the address, the network and its firewalls");
}

/// A connected socket. Throws Error.
Descriptor reach(const Address& address, const base::Deadline& deadline,
                 std::string_view if_nobody_listens) {
    const auto start = base::Clock::now();
    const std::vector<SocketAddress> candidates = resolve(address, false, "connect");
    std::chrono::nanoseconds pause = std::chrono::milliseconds{1};
    for (;;) {
        int last_error = 0, hopeless = 0;
        for (const SocketAddress& to : candidates) {
            Descriptor socket{
                ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
            if (!socket.valid()) {
                hopeless = errno;
                continue;
            }
            int error = connect_once(socket.get(), to, deadline);
            if (error == 0 && connected_to_itself(socket.get())) error = ECONNREFUSED;
            if (error == 0) return socket;
            if (error > 0 && may_change(error)) last_error = error;
            if (error > 0 && !may_change(error)) hopeless = error;
        }
        // One candidate that may still come up is hope enough ("localhost" has two).
        if (last_error == 0 && hopeless != 0) {
            throw failed(hopeless, address, "", if_nobody_listens);
        }
        if (deadline.cancelled() || deadline.expired()) {
            throw_over(address, deadline, last_error, base::Clock::now() - start,
                       if_nobody_listens);
        }
        poll_for({}, std::min(pause, deadline.remaining()));
        pause = std::min<std::chrono::nanoseconds>(pause * 2, std::chrono::milliseconds{50});
    }
}

}  // namespace

Link connect(const Address& address, LinkOptions options, const base::Deadline& deadline) {
    validate(options);
    if (address.kind() == Address::Kind::tcp && address.port() == 0) {
        throw base::Error(ErrorCode::invalid_argument, "connect", address.to_string(),
                          "port 0 only means something to a listener",
                          "use the port that the listener reports");
    }
    if (options.endpoint == nullptr && options.transport != Transport::tcp) {
        options.endpoint = Endpoint::shared();
    }
    const auto start = base::Clock::now();
    Descriptor socket = reach(address, deadline, options.if_nobody_listens);
    prepare_connected(socket.get());
    const Address local = local_address(socket.get(), address);
    const std::string name = peer_text(socket.get(), address);
    std::shared_ptr<Endpoint> endpoint = options.endpoint;
    Handshake handshake{
        Role::connecting, std::move(socket), options, std::move(endpoint), local, name};
    while (!handshake.step()) {
        if (deadline.cancelled()) throw handshake.give_up(ErrorCode::cancelled, "when cancelled");
        if (deadline.expired()) {
            const std::chrono::duration<double> waited = base::Clock::now() - start;
            throw handshake.give_up(ErrorCode::timed_out,
                                    fmt::format("within {:.1f} s", waited.count()));
        }
        pollfd entry{.fd = handshake.socket(), .events = handshake.events(), .revents = 0};
        poll_for({&entry, 1}, deadline);
    }
    return handshake.take();
}

}  // namespace millrace::connect
