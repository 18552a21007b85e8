// Connector, and connect(), which waits for one: finds the listener, tries again while nothing
// listens yet, and drives the handshake.
#include "millrace/connect/connector.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "handshake.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "sockets.hpp"
#include "timer.hpp"
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

}  // namespace

struct Connector::State {
    enum class Stage : std::uint8_t {
        reaching,  ///< goes through the candidates
        pending,   ///< one of them is being connected to
        pausing,   ///< nothing listened at any of them
        shaking,   ///< the handshake
        done,      ///< the link was taken
    };

    State(const Address& where, LinkOptions chosen) : address{where}, options{std::move(chosen)} {}

    [[nodiscard]] std::optional<Link> step();
    /// Waits for what the next step() needs, or a while.
    void rest(const base::Deadline& deadline) const noexcept;
    [[nodiscard]] bool goes_on() const noexcept;
    void reach();
    void note(int error);
    void shake();
    [[nodiscard]] pollfd awaited() const noexcept;
    /// Where there is a descriptor, it waits for the same as the next step().
    void watch() noexcept;
    /// Within `epoll`.
    void await(int descriptor, std::uint32_t events) noexcept;

    Address address;
    LinkOptions options;
    base::Clock::time_point start = base::Clock::now();
    Stage stage = Stage::reaching;
    std::vector<SocketAddress> candidates;
    std::size_t next = 0;
    int last_error = 0;  ///< in this round
    int hopeless = 0;
    std::chrono::nanoseconds pause = std::chrono::milliseconds{1};
    base::Clock::time_point again{};  ///< when the pause is over
    Descriptor socket;
    std::optional<Handshake> handshake;
    int link_socket = -1;
    int beside = -1;  ///< of await_beside
    int probed = -1;  ///< of the handshake, in `epoll`
    Descriptor timer;
    Descriptor epoll;
};

/// The one that is next could not be reached.
void Connector::State::note(int error) {
    (may_change(error) ? last_error : hopeless) = error;
    socket = Descriptor{};
    ++next;
    stage = Stage::reaching;
}

void Connector::State::reach() {
    if (next == candidates.size()) {
        // One candidate that may still come up is hope enough ("localhost" has two).
        if (last_error == 0 && hopeless != 0) {
            throw failed(hopeless, address, "", options.if_nobody_listens);
        }
        again = base::Clock::now() + pause;
        pause = std::min<std::chrono::nanoseconds>(pause * 2, std::chrono::milliseconds{50});
        stage = Stage::pausing;
        return;
    }
    const SocketAddress& to = candidates[next];
    socket =
        Descriptor{::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!socket.valid()) {
        hopeless = errno;
        ++next;
        return;
    }
    if (::connect(socket.get(), to.raw(), to.size) == 0) {
        shake();
    } else if (errno == EINPROGRESS || errno == EINTR) {
        stage = Stage::pending;
    } else {
        note(errno);
    }
}

void Connector::State::shake() {
    if (connected_to_itself(socket.get())) {
        note(ECONNREFUSED);
        return;
    }
    prepare_connected(socket.get());
    const Address local = local_address(socket.get(), address);
    const std::string name = peer_text(socket.get(), address);
    handshake.emplace(Role::connecting, std::move(socket), options, options.endpoint, local, name);
    link_socket = handshake->socket();
    stage = Stage::shaking;
}

std::optional<Link> Connector::State::step() {
    for (;;) {
        switch (stage) {
            case Stage::reaching: reach(); break;
            case Stage::pending: {
                if (!goes_on()) return std::nullopt;
                int error = 0;
                socklen_t size = sizeof error;
                getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
                if (error != 0) {
                    note(error);
                } else {
                    shake();
                }
                break;
            }
            case Stage::pausing:
                if (base::Clock::now() < again) return std::nullopt;
                next = 0;
                last_error = hopeless = 0;
                stage = Stage::reaching;
                break;
            case Stage::shaking:
                if (!handshake->step()) return std::nullopt;
                stage = Stage::done;
                return handshake->take();
            case Stage::done: return std::nullopt;
        }
    }
}

pollfd Connector::State::awaited() const noexcept {
    switch (stage) {
        case Stage::pending: return {.fd = socket.get(), .events = POLLOUT, .revents = 0};
        case Stage::shaking:
            if (const int probe = handshake->probe(); probe >= 0) {
                return {.fd = probe, .events = POLLIN, .revents = 0};
            }
            return {.fd = handshake->socket(), .events = handshake->events(), .revents = 0};
        case Stage::done: return {.fd = link_socket, .events = POLLIN, .revents = 0};
        default: return {.fd = -1, .events = 0, .revents = 0};
    }
}

bool Connector::State::goes_on() const noexcept {
    pollfd entry = awaited();
    return poll_for({&entry, 1}, std::chrono::nanoseconds{0}) > 0;
}

void Connector::State::rest(const base::Deadline& deadline) const noexcept {
    if (stage == Stage::pausing) {
        poll_for({}, deadline.no_later_than(again));
    } else {
        pollfd entry = awaited();
        poll_for({&entry, 1}, deadline);
    }
}

void Connector::State::watch() noexcept {
    if (!epoll.valid()) return;
    const bool pauses = stage == Stage::pausing;
    const int probe = stage == Stage::shaking ? handshake->probe() : -1;
    if (probed >= 0 && probe < 0) (void)epoll_ctl(epoll.get(), EPOLL_CTL_DEL, probed, nullptr);
    probed = probe;
    set_timer(timer.get(), pauses ? again - base::Clock::now() : no_alarm);
    const pollfd entry = awaited();
    if (entry.fd < 0) return;
    std::uint32_t events = 0;
    if ((entry.events & POLLIN) != 0) events |= EPOLLIN;
    if ((entry.events & POLLOUT) != 0) events |= EPOLLOUT;
    await(entry.fd, events);
    if (beside >= 0) await(beside, EPOLLIN);
}

void Connector::State::await(int descriptor, std::uint32_t events) noexcept {
    epoll_event event{};
    event.events = events;
    // A socket that was closed has left by itself, and another one may have its number.
    if (epoll_ctl(epoll.get(), EPOLL_CTL_MOD, descriptor, &event) != 0) {
        (void)epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event);
    }
}

Connector::Connector(const Address& address, LinkOptions options) {
    validate(options);
    if (address.kind() == Address::Kind::tcp && address.port() == 0) {
        throw base::Error(ErrorCode::invalid_argument, "connect", address.to_string(),
                          "port 0 only means something to a listener",
                          "use the port that the listener reports");
    }
    if (options.endpoint == nullptr && options.transport != Transport::tcp) {
        options.endpoint = Endpoint::shared();
    }
    state_ = std::make_unique<State>(address, std::move(options));
    state_->candidates = resolve(address, false, "connect");
}
Connector::Connector(Connector&&) noexcept = default;
Connector& Connector::operator=(Connector&&) noexcept = default;
Connector::~Connector() = default;

std::optional<Link> Connector::try_connect() {
    std::optional<Link> link = state_->step();
    state_->watch();
    return link;
}

Link Connector::wait(const base::Deadline& deadline) {
    State& state = *state_;
    for (;;) {
        if (std::optional<Link> link = try_connect()) return std::move(*link);
        if (deadline.cancelled() || deadline.expired()) {
            const auto waited = base::Clock::now() - state.start;
            if (state.stage != State::Stage::shaking) {
                throw_over(state.address, deadline, state.last_error, waited,
                           state.options.if_nobody_listens);
            }
            if (deadline.cancelled()) {
                throw state.handshake->give_up(ErrorCode::cancelled, "when cancelled");
            }
            const std::chrono::duration<double> seconds = waited;
            throw state.handshake->give_up(ErrorCode::timed_out,
                                           fmt::format("within {:.1f} s", seconds.count()));
        }
        state.rest(deadline);
    }
}

void Connector::await_beside(int other) noexcept {
    State& state = *state_;
    if (state.epoll.valid() && state.beside >= 0 && other != state.beside) {
        (void)epoll_ctl(state.epoll.get(), EPOLL_CTL_DEL, state.beside, nullptr);
    }
    state.beside = other;
    state.watch();
}

int Connector::descriptor() {
    State& state = *state_;
    if (!state.epoll.valid()) {
        Descriptor timer{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
        Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
        epoll_event event{};
        event.events = EPOLLIN;
        if (!timer.valid() || !epoll.valid() ||
            epoll_ctl(epoll.get(), EPOLL_CTL_ADD, timer.get(), &event) != 0) {
            const int error = errno;
            throw base::Error(ErrorCode::resource_exhausted, "wait for a connection in a loop",
                              state.address.to_string(), base::describe_errno(error),
                              "raise the limit of open files (ulimit -n)");
        }
        state.timer = std::move(timer);
        state.epoll = std::move(epoll);
        // What it can do at once it does within try_connect.
        if (state.stage == State::Stage::reaching) {
            set_timer(state.timer.get(), std::chrono::nanoseconds{0});
        } else {
            state.watch();
        }
    }
    return state.epoll.get();
}

Link connect(const Address& address, LinkOptions options, const base::Deadline& deadline) {
    return Connector{address, std::move(options)}.wait(deadline);
}

}  // namespace millrace::connect
