// Listeners: accepting peers, with any number of handshakes under way at once, so that a silent or
// slow one keeps nobody waiting.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "handshake.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "sockets.hpp"
#include "waiting.hpp"

namespace millrace::connect {
namespace {

using base::Clock;

constexpr std::size_t most_handshakes = 64;
constexpr std::chrono::nanoseconds patience = std::chrono::seconds{5};

// A handshake and what is left of its time. The time runs while the listener serves it, not while
// its owner does something else between two calls of accept.
struct Pending {
    Handshake handshake;
    std::chrono::nanoseconds left = patience;
};

}  // namespace

struct Listener::State {
    Listening listening;
    LinkOptions options;
    std::shared_ptr<Endpoint> endpoint;
    std::vector<Pending> pending;
    std::deque<Link> ready;
    Clock::time_point last_round = Clock::now();

    ~State() { unlink_own(listening); }

    /// Waits for news until the deadline (at most 50 ms), and handles them. The errors of failed
    /// handshakes are added to `failures`.
    void round(const base::Deadline& deadline, std::vector<base::Error>& failures);
    void take_new_peers(std::vector<base::Error>& failures);
    /// Throws what ends the wait; logs failures, or throws the first if `strict`.
    [[nodiscard]] Link wait(const base::Deadline& deadline, bool strict);
};

Listener::Listener(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

Listener Listener::listen(const Address& address, LinkOptions options) {
    validate(options);
    auto state = std::make_unique<State>();
    state->endpoint = options.endpoint != nullptr ? options.endpoint : Endpoint::open();
    state->options = std::move(options);
    state->listening = listen_on(address);
    return Listener{std::move(state)};
}

const Address& Listener::address() const noexcept { return state_->listening.address; }
Link Listener::accept(const base::Deadline& deadline) { return state_->wait(deadline, false); }
Link Listener::accept_one(const base::Deadline& deadline) { return state_->wait(deadline, true); }

void Listener::State::take_new_peers(std::vector<base::Error>& failures) {
    while (pending.size() < most_handshakes) {
        Descriptor socket{
            accept4(listening.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (!socket.valid()) {
            const int error = errno;
            if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
                base::throw_errno(error, "accept a peer", listening.address.to_string(),
                                  "raise the limit of open files (ulimit -n)");
            }
            if (error == EINTR || error == ECONNABORTED || error == EPERM || error == EPROTO) {
                continue;
            }
            return;  // EAGAIN: nobody is waiting
        }
        prepare_connected(socket.get());
        const int number = socket.get();
        try {
            pending.push_back(
                Pending{Handshake{Role::accepting, std::move(socket), options, endpoint,
                                  listening.address, peer_text(number, listening.address)}});
        } catch (const base::Error& error) {
            failures.push_back(error);
        }
    }
}

void Listener::State::round(const base::Deadline& deadline, std::vector<base::Error>& failures) {
    std::vector<pollfd> entries;
    entries.reserve(pending.size() + 1);
    for (const Pending& one : pending) {
        entries.push_back({one.handshake.socket(), one.handshake.events(), 0});
    }
    // When the house is full, new peers wait in the backlog until somebody's time is over.
    if (pending.size() < most_handshakes) {
        entries.push_back({listening.socket.get(), POLLIN, 0});
    }
    poll_for(entries, deadline);

    const auto now = Clock::now();
    const auto passed =
        std::min<std::chrono::nanoseconds>(now - last_round, std::chrono::milliseconds{100});
    last_round = now;
    std::vector<Pending> unfinished;
    for (std::size_t i = 0; i < pending.size(); ++i) {
        Pending& one = pending[i];
        one.left -= passed;
        try {
            if (entries[i].revents != 0 && one.handshake.step()) {
                ready.push_back(one.handshake.take());
            } else if (one.left.count() <= 0) {
                failures.push_back(one.handshake.give_up(base::ErrorCode::timed_out, "for 5 s"));
            } else {
                unfinished.push_back(std::move(one));
            }
        } catch (const base::Error& error) {
            failures.push_back(error);
        }
    }
    pending = std::move(unfinished);
    take_new_peers(failures);
}

Link Listener::State::wait(const base::Deadline& deadline, bool strict) {
    for (;;) {
        if (!ready.empty()) {
            Link link = std::move(ready.front());
            ready.pop_front();
            return link;
        }
        std::vector<base::Error> failures;
        round(deadline, failures);
        for (const base::Error& error : failures) {
            base::log(base::LogLevel::warn, "connect", "{}", error.what());
        }
        if (strict && !failures.empty()) throw failures.front();
        if (!ready.empty()) continue;
        if (deadline.cancelled() || deadline.expired()) {
            throw base::Error(
                deadline.cancelled() ? base::ErrorCode::cancelled : base::ErrorCode::timed_out,
                "accept a peer",
                fmt::format("{}, service '{}'", listening.address.to_string(), options.service),
                deadline.cancelled() ? "it was cancelled"
                : pending.empty()
                    ? "nobody connected in time"
                    : fmt::format("{} peers were still in their handshake", pending.size()),
                deadline.cancelled() ? "" : "check that the peer connects to this address");
        }
    }
}

}  // namespace millrace::connect
