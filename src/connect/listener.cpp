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
// its owner does something else between two calls of accept. Those that are complete get the same
// time once more to begin their first exchange, where it is waited for.
struct Pending {
    Handshake handshake;
    std::chrono::nanoseconds left = patience;
};

/// Which peer ends a wait.
enum class Wanted {
    connected,  ///< whose handshake is complete
    speaking,   ///< … and who has begun the first exchange
    next,       ///< the next one: a failed handshake ends the wait, too
};

}  // namespace

struct Listener::State {
    Listening listening;
    LinkOptions options;
    std::shared_ptr<Endpoint> endpoint;
    std::vector<Pending> pending;
    std::deque<Pending> ready;  ///< handshakes that are complete
    Clock::time_point last_round = Clock::now();

    ~State() { unlink_own(listening); }

    /// Waits for news until the deadline (at most 50 ms), and handles them. What ended handshakes,
    /// and with them peers, is added to `failures`.
    void round(const base::Deadline& deadline, Wanted wanted, std::vector<base::Error>& failures);
    void take_new_peers(std::vector<base::Error>& failures);
    /// The first of those that are ready and wanted.
    [[nodiscard]] std::optional<Link> take_ready(Wanted wanted, std::vector<base::Error>& failures);
    /// Throws what ends the wait; logs failures, or throws the first if the next peer is wanted.
    [[nodiscard]] Link wait(const base::Deadline& deadline, Wanted wanted);
    [[nodiscard]] base::Error over(const base::Deadline& deadline, std::size_t failed,
                                   const std::optional<base::Error>& last) const;
    [[nodiscard]] bool has_room() const noexcept {
        return pending.size() + ready.size() < most_handshakes;
    }
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
Link Listener::accept(const base::Deadline& deadline) {
    return state_->wait(deadline, Wanted::connected);
}
Link Listener::accept_speaking(const base::Deadline& deadline) {
    return state_->wait(deadline, Wanted::speaking);
}
Link Listener::accept_one(const base::Deadline& deadline) {
    return state_->wait(deadline, Wanted::next);
}

void Listener::State::take_new_peers(std::vector<base::Error>& failures) {
    while (has_room()) {
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

void Listener::State::round(const base::Deadline& deadline, Wanted wanted,
                            std::vector<base::Error>& failures) {
    std::vector<pollfd> entries;
    entries.reserve(pending.size() + ready.size() + 1);
    for (const Pending& one : pending) {
        entries.push_back({one.handshake.socket(), one.handshake.events(), 0});
    }
    // Whoever waits for any link would have taken these.
    for (const Pending& one : ready) entries.push_back({one.handshake.socket(), POLLIN, 0});
    // When the house is full, new peers wait in the backlog until somebody's time is over.
    if (has_room()) entries.push_back({listening.socket.get(), POLLIN, 0});
    poll_for(entries, deadline);

    const auto now = Clock::now();
    const auto passed =
        std::min<std::chrono::nanoseconds>(now - last_round, std::chrono::milliseconds{100});
    last_round = now;
    if (wanted == Wanted::speaking) {
        for (Pending& one : ready) one.left -= passed;
    }
    std::vector<Pending> unfinished;
    for (std::size_t i = 0; i < pending.size(); ++i) {
        Pending& one = pending[i];
        one.left -= passed;
        try {
            if (entries[i].revents != 0 && one.handshake.step()) {
                ready.push_back({std::move(one.handshake)});
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

std::optional<Link> Listener::State::take_ready(Wanted wanted, std::vector<base::Error>& failures) {
    for (auto one = ready.begin(); one != ready.end();) {
        if (wanted != Wanted::speaking || one->handshake.speaks()) {
            Link link = one->handshake.take();
            ready.erase(one);
            return link;
        }
        if (!one->handshake.lives() || one->left.count() <= 0) {
            failures.push_back(one->handshake.give_up(base::ErrorCode::timed_out, "for 5 s"));
            one = ready.erase(one);
        } else {
            ++one;
        }
    }
    return std::nullopt;
}

base::Error Listener::State::over(const base::Deadline& deadline, std::size_t failed,
                                  const std::optional<base::Error>& last) const {
    const std::string object =
        fmt::format("{}, service '{}'", listening.address.to_string(), options.service);
    if (deadline.cancelled()) {
        return {base::ErrorCode::cancelled, "accept a peer", object, "it was cancelled", ""};
    }
    std::string cause = "nobody connected in time";
    std::string remedy = "check that the peer connects to this address";
    if (last.has_value()) {
        cause = fmt::format("{}: {} ({}): {}",
                            failed == 1 ? std::string{"the one peer that came did not get in"}
                                        : fmt::format("none of {} peers got in; the last", failed),
                            "cannot " + last->attempted(), last->object(), last->cause());
        remedy = last->remedy();
    } else if (!pending.empty() || !ready.empty()) {
        cause = fmt::format("{} still in the handshake",
                            pending.size() + ready.size() == 1
                                ? std::string{"one peer was"}
                                : fmt::format("{} peers were", pending.size() + ready.size()));
        remedy = "call accept again: it goes on where this call ended";
    }
    return {base::ErrorCode::timed_out, "accept a peer", object, std::move(cause),
            std::move(remedy)};
}

Link Listener::State::wait(const base::Deadline& deadline, Wanted wanted) {
    if (!listening.socket.valid()) {
        throw base::Error{
            base::ErrorCode::invalid_argument, "accept a peer",
            fmt::format("{}, service '{}'", listening.address.to_string(), options.service),
            "the listener belongs to the process that made it, and this one is its "
            "child, made by fork",
            "listen in the child, or accept in the parent"};
    }
    std::size_t failed = 0;
    std::optional<base::Error> last;
    for (bool first = true;; first = false) {
        std::vector<base::Error> failures;
        // A peer that is there is taken without a look at the others.
        if (!first) round(deadline, wanted, failures);
        std::optional<Link> link = take_ready(wanted, failures);
        for (const base::Error& error : failures) {
            base::log(base::LogLevel::warn, "connect", "{}", error.what());
        }
        if (wanted == Wanted::next && !failures.empty()) throw failures.front();
        if (link.has_value()) return std::move(*link);
        failed += failures.size();
        if (!failures.empty()) last = failures.back();
        if (!first && (deadline.cancelled() || deadline.expired())) {
            throw over(deadline, failed, last);
        }
    }
}

}  // namespace millrace::connect
