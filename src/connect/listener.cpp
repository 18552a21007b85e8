// Listeners: accepting peers, with many handshakes under way at once, so that a silent or slow one
// keeps nobody waiting. Everything that a listener waits for is in one epoll, which programs can
// put into a loop of their own.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "handshake.hpp"
#include "identity.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/detail/sole_use.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "sharing.hpp"
#include "sockets.hpp"
#include "timer.hpp"
#include "waiting.hpp"

namespace millrace::connect {
namespace {

using base::Clock;
using std::chrono::nanoseconds;

constexpr nanoseconds patience = std::chrono::seconds{5};
/// Between two calls at most so much time passes for those who wait: see Pending.
constexpr nanoseconds longest_round = std::chrono::milliseconds{100};
/// Nobody is taken for so long after the system had nothing to take him with.
constexpr nanoseconds pause_when_exhausted = longest_round;
/// Whoever has just come may say its first word before it has to leave for a newcomer.
constexpr nanoseconds first_word = std::chrono::milliseconds{100};

/// A quarter of the descriptors that the process may have, and not more than a thousand.
std::size_t most_handshakes() noexcept {
    constexpr rlim_t most = 1024;
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 64;
    return static_cast<std::size_t>(std::clamp<rlim_t>(files.rlim_cur / 4, 16, most));
}

// A peer on its way in: in its handshake, or through it and silent. The time runs while the
// listener serves it, not while its owner does something else between two calls. Those that are
// through get the same time once more to begin their first exchange, where it is waited for.
struct Pending {
    Handshake handshake;
    nanoseconds until{0};  ///< of the time that was served
    std::uint32_t events = EPOLLIN;
    bool connected = false;  ///< the handshake is complete
};
using Peers = std::list<Pending>;

/// Which peer is wanted.
enum class Wanted {
    connected,  ///< whose handshake is complete
    speaking,   ///< … and who has begun the first exchange
    next,       ///< the next one: a failed handshake ends the wait, too
};

}  // namespace

struct Listener::State {
    State(std::shared_ptr<Sharing> its_sharing, std::uint32_t its_number, LinkOptions its_options)
        : sharing{std::move(its_sharing)},
          number{its_number},
          options{std::move(its_options)},
          endpoint{options.endpoint} {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    std::shared_ptr<Sharing> sharing;
    const std::uint32_t number;  ///< among those that share the address
    const Listening& listening = sharing->listening;
    LinkOptions options;
    std::shared_ptr<Endpoint> endpoint;
    std::string fabric;  ///< what its soft device reaches; empty: it is none
    Descriptor epoll;
    Descriptor timer;
    Peers pending;    ///< by when their time is over
    Peers connected;  ///< likewise, their handshakes complete
    Peers speaking;   ///< and their first exchange begun: not in the epoll any more
    std::size_t most = most_handshakes();
    nanoseconds served{0};
    Clock::time_point last_round = Clock::now();
    bool alarm_is_set = false;
    bool takes_new = true;
    /// Given up for a moment when there is no other descriptor, to take a peer and tell it so:
    /// otherwise the listening socket would stay readable, and a loop that waits for it spin.
    Descriptor reserve = take_reserve();
    std::optional<nanoseconds> pauses_until;  ///< of the time that was served
    base::SoleUse use;                        ///< by the call that is under way

    ~State() { sharing->close(number); }

    void open();
    /// Handles what has happened, and before `deadline` waits for that. What ended handshakes, and
    /// with them peers, is added to `failures`.
    void round(const base::Deadline& deadline, Wanted wanted, std::vector<base::Error>& failures);
    void go_on(Pending& peer, std::vector<base::Error>& failures);
    /// A peer that has said hello: it stays here, or is handed to the listener whose it is. False:
    /// it is not here any more.
    [[nodiscard]] bool settle(Peers::iterator at, std::vector<base::Error>& failures);
    /// Those that others have heard, and that are ours.
    void take_settled(std::vector<base::Error>& failures);
    void take_new_peers(std::vector<base::Error>& failures);
    [[nodiscard]] static Descriptor take_reserve() noexcept;
    /// There was no descriptor for a peer. True: there may be one now, or that peer was refused.
    [[nodiscard]] bool relieve(std::vector<base::Error>& failures);
    void dismiss(Peers::iterator silent, std::vector<base::Error>& failures);
    /// Something may be done for newcomers.
    [[nodiscard]] bool has_place() noexcept {
        return !pauses_until.has_value() && (peers() < most || longest_silent() != pending.end());
    }
    void dismiss_late(Wanted wanted, std::vector<base::Error>& failures);
    [[nodiscard]] bool make_place(std::vector<base::Error>& failures);
    [[nodiscard]] Peers::iterator longest_silent() noexcept;
    /// The first of those that are wanted.
    [[nodiscard]] std::optional<Link> take(Wanted wanted);
    [[nodiscard]] std::optional<Link> try_take(Wanted wanted, const base::Deadline& deadline,
                                               std::vector<base::Error>& failures);
    [[nodiscard]] std::optional<Link> look(Wanted wanted);
    /// Throws what ends the wait; logs failures, or throws the first if the next peer is wanted.
    [[nodiscard]] Link wait(const base::Deadline& deadline, Wanted wanted);
    [[nodiscard]] base::Error over(const base::Deadline& deadline, std::size_t failed,
                                   const std::optional<base::Error>& last) const;
    void check_owner() const;

    /// `what`: a Pending, or else &takes_new for newcomers, &number for settled ones, &timer.
    void watch(int operation, int descriptor, std::uint32_t events, const void* what) const;
    void forget(const Pending& peer) const noexcept {
        (void)epoll_ctl(epoll.get(), EPOLL_CTL_DEL, peer.handshake.socket(), nullptr);
    }
    void watch_newcomers(bool wanted) {
        if (takes_new == wanted) return;
        watch(EPOLL_CTL_MOD, listening.socket.get(), wanted ? EPOLLIN : 0U, &takes_new);
        takes_new = wanted;
    }
    /// The descriptor becomes readable when somebody's time is over, or at once.
    void set_alarm(bool now) noexcept;
    [[nodiscard]] std::size_t peers() const noexcept {
        return pending.size() + connected.size() + speaking.size();
    }
};

Listener::Listener(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

namespace {

void prepare(LinkOptions& options, const Address& address) {
    validate(options);
    if (options.accepted.has_rdma() && options.endpoint == nullptr) {
        options.endpoint = Endpoint::shared();
    }
    if (options.accepted.has(Transport::ud) && options.datagrams.queue_pair == nullptr) {
        throw base::Error{base::ErrorCode::invalid_argument, "listen", address.to_string(),
                          "transport ud is to be taken, and there is no queue pair for it",
                          "make one (ProtectionDomain::create_datagram_queue_pair) and give it as "
                          "LinkOptions::datagrams"};
    }
}

}  // namespace

Listener Listener::listen(const Address& address, LinkOptions options) {
    std::vector<LinkOptions> one;
    one.push_back(std::move(options));
    return std::move(listen_together(address, std::move(one)).front());
}

std::vector<Listener> Listener::listen_together(const Address& address,
                                                std::vector<LinkOptions> options) {
    if (options.empty() || options.size() > Sharing::most_listeners) {
        throw base::Error{base::ErrorCode::invalid_argument, "listen", address.to_string(),
                          fmt::format("{} listeners are to share it", options.size()),
                          fmt::format("let 1 to {} share it", Sharing::most_listeners)};
    }
    for (LinkOptions& one : options) prepare(one, address);
    const auto sharing = std::make_shared<Sharing>(
        listen_on(address), options.front().admission.budget, options.size());
    std::vector<Listener> listeners;
    for (LinkOptions& one : options) {
        auto state = std::make_unique<State>(sharing, static_cast<std::uint32_t>(listeners.size()),
                                             std::move(one));
        state->open();
        listeners.push_back(Listener{std::move(state)});
    }
    return listeners;
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

std::optional<Link> Listener::try_accept() { return state_->look(Wanted::connected); }
std::optional<Link> Listener::try_accept_speaking() { return state_->look(Wanted::speaking); }
int Listener::descriptor() const noexcept { return state_->epoll.get(); }
Given Listener::given() const noexcept { return state_->sharing->ledger->given(); }

void Listener::State::open() {
    epoll = Descriptor{epoll_create1(EPOLL_CLOEXEC)};
    timer = Descriptor{timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
    if (!epoll.valid() || !timer.valid()) {
        base::throw_errno(errno, "listen", listening.address.to_string(),
                          "raise the limit of open files (ulimit -n)");
    }
    watch(EPOLL_CTL_ADD, listening.socket.get(), EPOLLIN, &takes_new);
    if (sharing->has_several()) {
        watch(EPOLL_CTL_ADD, sharing->bell(number), EPOLLIN, &number);
    }
    watch(EPOLL_CTL_ADD, timer.get(), EPOLLIN, &timer);
    if (endpoint != nullptr && endpoint->context().is_soft()) {
        fabric = printable(soft_fabric(), 512);
    }
}

void Listener::State::watch(int operation, int descriptor, std::uint32_t events,
                            const void* what) const {
    epoll_event event{.events = events, .data = {.ptr = const_cast<void*>(what)}};
    if (epoll_ctl(epoll.get(), operation, descriptor, &event) != 0) {
        base::throw_errno(errno, "accept a peer", listening.address.to_string(),
                          "raise fs.epoll.max_user_watches (sysctl)");
    }
}

void Listener::State::set_alarm(bool now) noexcept {
    const bool wanted = now || !pending.empty() || !connected.empty() || pauses_until.has_value();
    if (!wanted && !alarm_is_set) return;
    set_timer(timer.get(), !wanted ? no_alarm : now ? nanoseconds{0} : longest_round);
    alarm_is_set = wanted;
}

/// Of those who had the time for a first word; or pending.end().
Peers::iterator Listener::State::longest_silent() noexcept {
    for (auto at = pending.begin(); at != pending.end(); ++at) {
        if (at->until - patience + first_word > served) break;  // nor had those behind it
        if (at->handshake.is_silent()) return at;
    }
    return pending.end();
}

/// The peer that has said nothing for longest leaves, if there is no place for another one.
bool Listener::State::make_place(std::vector<base::Error>& failures) {
    if (peers() < most) return true;
    const auto silent = longest_silent();
    if (silent == pending.end()) return false;
    dismiss(silent, failures);
    return true;
}

void Listener::State::dismiss(Peers::iterator silent, std::vector<base::Error>& failures) {
    forget(*silent);
    failures.push_back(
        silent->handshake.give_up(base::ErrorCode::timed_out, "while many others came"));
    pending.erase(silent);
}

Descriptor Listener::State::take_reserve() noexcept {
    try {
        return Descriptor{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    } catch (const std::exception&) {
        return {};
    }
}

bool Listener::State::relieve(std::vector<base::Error>& failures) {
    if (const auto silent = longest_silent(); silent != pending.end()) {
        dismiss(silent, failures);
        return true;
    }
    if (!reserve.valid()) return false;
    reserve = Descriptor{};
    const Descriptor socket{
        accept4(listening.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    const bool is_taken = socket.valid();
    if (is_taken) {
        const std::string peer = peer_text(socket.get(), listening.address);
        const base::Error error{base::ErrorCode::resource_exhausted, "accept a peer", peer,
                                "this process has no descriptor left for it",
                                "raise the limit of open files (ulimit -n)"};
        const std::vector<std::byte> told =
            encode(Refused{base::ErrorCode::refused,
                           "the listener's process has no descriptor left for another peer",
                           "come again when others have left, or raise its limit of open files "
                           "(ulimit -n)"});
        (void)send(socket.get(), told.data(), told.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        shutdown(socket.get(), SHUT_WR);
        drain(socket.get());
        failures.push_back(error);
    }
    return is_taken;
}

void Listener::State::take_new_peers(std::vector<base::Error>& failures) {
    for (;;) {
        // When the house is full of those who talk, or have just come, new peers wait until one of
        // them is through, or its time is over.
        if (!make_place(failures)) return watch_newcomers(false);
        Descriptor socket{
            accept4(listening.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (!socket.valid()) {
            const int error = errno;
            if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
                if (error == EMFILE) {
                    const bool goes_on = relieve(failures);
                    if (!reserve.valid()) reserve = take_reserve();
                    if (goes_on) continue;
                }
                failures.push_back({base::ErrorCode::resource_exhausted, "accept a peer",
                                    listening.address.to_string(), base::describe_errno(error),
                                    error == EMFILE ? "raise the limit of open files (ulimit -n)"
                                                    : "end other programs"});
                pauses_until = served + pause_when_exhausted;
                return watch_newcomers(false);
            }
            if (error == EINTR || error == ECONNABORTED || error == EPERM || error == EPROTO) {
                continue;
            }
            return;  // EAGAIN: nobody is waiting
        }
        prepare_connected(socket.get());
        const int descriptor = socket.get();
        try {
            pending.push_back(Pending{
                .handshake = Handshake{Role::accepting, std::move(socket), options, endpoint,
                                       listening.address, peer_text(descriptor, listening.address),
                                       sharing->ledger, fabric},
                .until = served + patience});
            if (sharing->has_several()) pending.back().handshake.halt_at_hello();
        } catch (const base::Error& error) {
            failures.push_back(error);
            continue;
        }
        watch(EPOLL_CTL_ADD, descriptor, EPOLLIN, &pending.back());
    }
}

/// One of those in the epoll, which has something to say or to hear.
void Listener::State::go_on(Pending& peer, std::vector<base::Error>& failures) {
    Peers& from = peer.connected ? connected : pending;
    const auto at =
        std::find_if(from.begin(), from.end(), [&](const Pending& one) { return &one == &peer; });
    try {
        bool is_done = !peer.connected && peer.handshake.step();
        if (!peer.connected && peer.handshake.has_halted()) {
            if (!settle(at, failures)) return;
            is_done = peer.handshake.step();
        }
        if (is_done) {
            peer.connected = true;
            peer.until = served + patience;
            connected.splice(connected.end(), pending, at);
        }
    } catch (const base::Error& error) {
        forget(peer);
        from.erase(at);
        failures.push_back(error);
        return;
    } catch (...) {  // for want of memory: that costs this peer, and nobody else
        forget(peer);
        from.erase(at);
        throw;
    }
    if (peer.connected && peer.handshake.speaks()) {
        forget(peer);
        speaking.splice(speaking.end(), connected, at);
    } else if (peer.connected && !peer.handshake.lives()) {
        failures.push_back(peer.handshake.give_up(base::ErrorCode::timed_out, "for 5 s"));
        forget(peer);
        connected.erase(at);
    } else if (const auto events = static_cast<std::uint32_t>(peer.handshake.events());
               events != peer.events) {
        watch(EPOLL_CTL_MOD, peer.handshake.socket(), events, &peer);
        peer.events = events;
    }
}

bool Listener::State::settle(Peers::iterator at, std::vector<base::Error>& failures) {
    Handshake& handshake = at->handshake;
    const std::uint32_t chosen = handshake.choose_listener();
    if (chosen == number) {
        handshake.go_on_for(options, endpoint);
        return true;
    }
    forget(*at);
    if (!sharing->give(chosen, handshake, most)) {
        failures.push_back(handshake.give_up(base::ErrorCode::timed_out, "while many others came"));
    }
    pending.erase(at);
    return false;
}

void Listener::State::take_settled(std::vector<base::Error>& failures) {
    std::exception_ptr thrown;
    for (Handshake& handshake : sharing->take(number)) {
        try {
            handshake.go_on_for(options, endpoint);
            pending.push_back(
                Pending{.handshake = std::move(handshake), .until = served + patience});
            Pending& peer = pending.back();
            watch(EPOLL_CTL_ADD, peer.handshake.socket(), EPOLLIN, &peer);
            go_on(peer, failures);
        } catch (...) {  // it costs this peer, and not those behind it
            thrown = std::current_exception();
        }
    }
    if (thrown != nullptr) std::rethrow_exception(thrown);
}

void Listener::State::dismiss_late(Wanted wanted, std::vector<base::Error>& failures) {
    const auto now = Clock::now();
    served += std::min<nanoseconds>(now - last_round, longest_round);
    last_round = now;
    for (Peers* const peers : {&pending, &connected}) {
        // Whoever waits for any link will take those that are connected.
        if (peers == &connected && wanted != Wanted::speaking) continue;
        while (!peers->empty() && peers->front().until <= served) {
            forget(peers->front());
            failures.push_back(
                peers->front().handshake.give_up(base::ErrorCode::timed_out, "for 5 s"));
            peers->pop_front();
        }
    }
}

void Listener::State::round(const base::Deadline& deadline, Wanted wanted,
                            std::vector<base::Error>& failures) {
    if (!deadline.expired() && !deadline.cancelled()) {
        set_alarm(false);  // for those whose time may be over
        pollfd readable{.fd = epoll.get(), .events = POLLIN, .revents = 0};
        (void)poll_for({&readable, 1}, deadline);
    }
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll.get(), events.data(), events.size(), 0);
    bool newcomers = false;
    bool settled = false;
    for (int i = 0; i < count; ++i) {
        void* const what = events[static_cast<std::size_t>(i)].data.ptr;
        if (what == &takes_new) {
            newcomers = true;  // behind the others: one of them may leave for a newcomer
        } else if (what == &number) {
            settled = true;
        } else if (what != &timer) {
            go_on(*static_cast<Pending*>(what), failures);
        }
    }
    if (settled) take_settled(failures);
    dismiss_late(wanted, failures);
    if (pauses_until.has_value() && *pauses_until <= served) {
        pauses_until.reset();
        if (!reserve.valid()) reserve = take_reserve();
    }
    if (!takes_new && has_place()) watch_newcomers(true);
    if (newcomers) take_new_peers(failures);
}

std::optional<Link> Listener::State::take(Wanted wanted) {
    Peers* from = &speaking;
    if (speaking.empty() && wanted != Wanted::speaking) from = &connected;
    if (from->empty()) return std::nullopt;
    if (from == &connected) forget(connected.front());
    // It leaves whatever becomes of it.
    Peers one;
    one.splice(one.end(), *from, from->begin());
    return one.front().handshake.take();
}

/// A peer that is there is taken without a look at the others.
std::optional<Link> Listener::State::try_take(Wanted wanted, const base::Deadline& deadline,
                                              std::vector<base::Error>& failures) {
    std::optional<Link> link = take(wanted);
    if (!link.has_value()) {
        round(deadline, wanted, failures);
        link = take(wanted);
    }
    if (link.has_value() && !pauses_until.has_value()) watch_newcomers(true);  // its place is free
    for (const base::Error& error : failures) {
        base::log(base::LogLevel::warn, "connect", "{}", error.what());
    }
    return link;
}

std::optional<Link> Listener::State::look(Wanted wanted) {
    const base::SoleCall call{use, "accept a peer", listening.address.to_string()};
    check_owner();
    std::vector<base::Error> failures;
    std::optional<Link> link = try_take(wanted, base::Deadline::now(), failures);
    // Others that are ready raise no event any more.
    set_alarm(!speaking.empty() || (wanted == Wanted::connected && !connected.empty()));
    return link;
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
    } else if (peers() != 0) {
        cause = fmt::format(
            "{} still in the handshake",
            peers() == 1 ? std::string{"one peer was"} : fmt::format("{} peers were", peers()));
        remedy = "call accept again: it goes on where this call ended";
    }
    return {base::ErrorCode::timed_out, "accept a peer", object, std::move(cause),
            std::move(remedy)};
}

void Listener::State::check_owner() const {
    if (listening.socket.valid()) return;
    base::refuse_copy("accept a peer", fmt::format("{}, service '{}'",
                                                   listening.address.to_string(), options.service));
}

Link Listener::State::wait(const base::Deadline& deadline, Wanted wanted) {
    const base::SoleCall call{use, "accept a peer", listening.address.to_string()};
    check_owner();
    std::size_t failed = 0;
    std::optional<base::Error> last;
    for (;;) {
        std::vector<base::Error> failures;
        std::optional<Link> link = try_take(wanted, deadline, failures);
        if (wanted == Wanted::next && !failures.empty()) throw failures.front();
        if (link.has_value()) {
            set_alarm(!speaking.empty() || !connected.empty());
            return std::move(*link);
        }
        failed += failures.size();
        if (!failures.empty()) last = failures.back();
        if (deadline.cancelled() || deadline.expired()) throw over(deadline, failed, last);
    }
}

}  // namespace millrace::connect
