// Links: exchange, goodbye, and looking after the peer.
#include "millrace/connect/link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "link_state.hpp"
#include "millrace/base/detail/forks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "sockets.hpp"
#include "waiting.hpp"

namespace millrace::connect {

Link::Link(std::unique_ptr<State> state) noexcept : state_{std::move(state)} {}
Link::Link(Link&&) noexcept = default;
Link& Link::operator=(Link&&) noexcept = default;
Link::~Link() = default;

Link::State::~State() {
    if (route == Route::wire) endpoint->context().take_arrivals(true);
}

Endpoint& Link::endpoint() noexcept { return *state_->endpoint; }
std::shared_ptr<Endpoint> Link::shared_endpoint() const noexcept { return state_->endpoint; }
verbs::ProtectionDomain& Link::protection_domain() noexcept {
    return state_->endpoint->protection_domain();
}
Transport Link::transport() const noexcept { return state_->transport; }
verbs::DatagramQueuePair& Link::datagrams() noexcept {
    return state_->given_datagrams != nullptr ? *state_->given_datagrams : state_->own_datagrams;
}
verbs::DatagramDestination Link::destination() const noexcept {
    return {.way = &state_->way,
            .queue_pair = state_->other.queue_pair.number,
            .key = state_->other.datagram_key};
}
std::uint32_t Link::peer_queue_pair() const noexcept { return state_->other.queue_pair.number; }
std::size_t Link::mtu() const noexcept { return std::size_t{128} << state_->path.mtu; }
std::vector<std::byte> Link::take_over_socket() { return state_->inbox.take_rest(); }
verbs::QueuePair& Link::queue_pair() noexcept { return state_->queue_pair; }
verbs::CompletionQueue& Link::send_queue() noexcept { return state_->send_queue; }
verbs::CompletionQueue& Link::receive_queue() noexcept {
    return state_->given_receive_queue != nullptr ? *state_->given_receive_queue
                                                  : state_->receive_queue;
}
bool Link::has_own_receive_queue() const noexcept { return state_->given_receive_queue == nullptr; }
verbs::CompletionChannel& Link::channel() noexcept { return state_->channel; }
bool Link::writes_in_order() const noexcept {
    return state_->own_writes_in_order && state_->other_writes_in_order;
}
std::array<int, 2> Link::news() const noexcept {
    return {state_->channel.descriptor(), state_->socket.get()};
}
int Link::socket() const noexcept { return state_->socket.get(); }
const Address& Link::local() const noexcept { return state_->local; }
const std::string& Link::peer_name() const noexcept { return state_->peer_name; }
std::span<const std::byte> Link::last_words() const noexcept { return state_->last_words; }

// Frames that wait for `exchange` are kept, but no more of them than a peer in step can have sent.
void Link::State::look() noexcept {
    constexpr std::size_t most_exchanges = 4;
    try {
        if (!socket.valid()) {
            throw Failure{base::ErrorCode::invalid_argument, std::string{base::copy_in_child}};
        }
        while (peer == PeerState::alive) {
            if (std::optional<Frame> frame = inbox.next(max_link_body)) {
                if (frame->type == FrameType::goodbye && frame->body.size() <= max_last_words) {
                    last_words = std::move(frame->body);
                    peer = PeerState::closed;
                } else if (frame->type == FrameType::refused) {
                    Refused refused = decode_refused(frame->body);
                    lost_code = base::ErrorCode::refused;
                    lost_remedy = std::move(refused.remedy);
                    throw Failure{lost_code, fmt::format("the peer refused: {}", refused.reason)};
                } else if (frame->type == FrameType::exchange &&
                           frame->body.size() <= max_exchange &&
                           exchanges.size() < most_exchanges) {
                    exchanges.push_back(std::move(frame->body));
                } else {
                    throw Failure{base::ErrorCode::protocol,
                                  fmt::format("it sent a message of type {} out of turn",
                                              static_cast<unsigned>(frame->type)),
                                  ""};
                }
                continue;
            }
            const auto received = inbox.receive(socket.get());
            if (received == FrameBuffer::Received::nothing) return;
            if (received == FrameBuffer::Received::ended) {
                lost_because = inbox.error() != 0
                                   ? base::describe_errno(inbox.error())
                                   : std::string{
                                         "its socket ended without a goodbye: its process "
                                         "ended, or let go of its end without a close"};
                peer = PeerState::lost;
            }
        }
    } catch (const Failure& failure) {
        peer = PeerState::lost;
        lost_because = failure.cause;
    } catch (const std::exception& failure) {  // out of memory
        peer = PeerState::lost;
        lost_because = failure.what();
    }
    // What it sent before its end lands before we tell of the end: adapters see to that themselves.
    if (peer != PeerState::alive && route == Route::wire) endpoint->context().take_arrivals(true);
    if (peer == PeerState::lost) {
        base::log(base::LogLevel::info, "connect", "lost {}: {}", peer_name, lost_because);
    }
}

PeerState Link::peer() noexcept {
    if (state_->peer == PeerState::alive) {
        if (state_->route == Route::wire) state_->endpoint->context().take_arrivals(false);
        const std::uint64_t now = base::ticks();
        if (now - state_->last_look >= state_->look_interval) {
            state_->last_look = now;
            state_->look();
        }
    }
    return state_->peer;
}

PeerState Link::peer_now() noexcept {
    if (state_->peer == PeerState::alive) {
        state_->last_look = base::ticks();
        state_->look();
    }
    return state_->peer;
}

PeerState Link::peer_so_far() const noexcept { return state_->peer; }
std::string Link::why_lost() const {
    return state_->peer == PeerState::lost ? state_->lost_because : std::string{};
}
std::uint32_t Link::peer_send_requests() const noexcept { return state_->other.max_send_requests; }

namespace {

[[noreturn]] void cannot_exchange(const Link::State& link, base::ErrorCode code, std::string cause,
                                  std::string remedy) {
    throw base::Error(code, "exchange facts with the peer", link.peer_name, std::move(cause),
                      std::move(remedy));
}

}  // namespace

void Link::State::flush() noexcept {
    while (!unsent.empty()) {
        const ssize_t n =
            send(socket.get(), unsent.data(), unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;  // full, or broken: then receiving tells
        unsent.erase(unsent.begin(), unsent.begin() + n);
    }
    std::vector<std::byte>{}.swap(unsent);  // an idle link keeps no room for it
}

void Link::State::take(const char* attempted, const Given& more) {
    try {
        place.take(more);
    } catch (const Failure& failure) {
        refuse(attempted, failure.code, failure.cause, failure.remedy);
    }
}

void Link::State::refuse(const char* attempted, base::ErrorCode code, const std::string& cause,
                         const std::string& remedy) {
    const std::vector<std::byte> frame = encode(Refused{code, cause, remedy});
    unsent.insert(unsent.end(), frame.begin(), frame.end());
    flush();
    said_goodbye = true;
    shutdown(socket.get(), SHUT_WR);
    drain(socket.get());
    throw base::Error{code, attempted, peer_name, cause, remedy};
}

void Link::refuse(const char* attempted, std::string cause, std::string remedy) {
    state_->refuse(attempted, base::ErrorCode::refused, cause, remedy);
}

namespace {

/// What is registered for that: whole pages.
std::uint64_t registered(std::size_t size) noexcept {
    const auto page = static_cast<std::uint64_t>(getpagesize());
    return (size + page - 1) / page * page;
}

}  // namespace

verbs::RegisteredBuffer Link::allocate(std::size_t size, verbs::Access access) {
    const std::uint64_t bytes = registered(size);
    const std::uint64_t counted = std::min(bytes, state_->reserved_bytes);
    state_->take("register memory for a peer", {.registered_bytes = bytes - counted});
    state_->reserved_bytes -= counted;
    return protection_domain().allocate(size, access);
}

verbs::RegisteredBuffer Link::allocate_packed(std::size_t size, verbs::Access access) {
    state_->take("register memory for a peer", {.registered_bytes = size});
    return protection_domain().allocate_packed(size, access);
}

void Link::reserve(std::size_t size) {
    state_->take("register memory for a peer", {.registered_bytes = registered(size)});
    state_->reserved_bytes += registered(size);
}

void Link::say(std::span<const std::byte> mine) {
    State& link = *state_;
    if (mine.size() > max_exchange) {
        cannot_exchange(
            link, base::ErrorCode::invalid_argument,
            fmt::format("{} bytes are more than the {} allowed", mine.size(), max_exchange),
            "send less, or send it through the queue pair");
    }
    if (link.out_of_step || link.said_goodbye) {
        cannot_exchange(
            link, base::ErrorCode::closed,
            link.said_goodbye ? "this end has said goodbye" : "an earlier exchange failed",
            "connect again");
    }
    const std::vector<std::byte> frame = encode_frame(FrameType::exchange, mine);
    link.unsent.insert(link.unsent.end(), frame.begin(), frame.end());
    link.flush();
}

std::optional<std::vector<std::byte>> Link::heard() {
    State& link = *state_;
    link.flush();
    link.look();
    if (link.unsent.empty() && !link.exchanges.empty()) {
        std::vector<std::byte> theirs = std::move(link.exchanges.front());
        link.exchanges.pop_front();
        return theirs;
    }
    if (link.peer == PeerState::closed) {
        cannot_exchange(link, base::ErrorCode::closed, "the peer said goodbye", "");
    }
    if (link.peer == PeerState::lost) {
        cannot_exchange(link, link.lost_code, link.lost_because, link.lost_remedy);
    }
    return std::nullopt;
}

std::optional<std::vector<std::byte>> Link::overheard() noexcept {
    State& link = *state_;
    if (link.exchanges.empty()) return std::nullopt;
    std::optional<std::vector<std::byte>> theirs{std::move(link.exchanges.front())};
    link.exchanges.pop_front();
    return theirs;
}

std::vector<std::byte> Link::exchange(std::span<const std::byte> mine,
                                      const base::Deadline& deadline) {
    say(mine);
    return hear(deadline);
}

std::vector<std::byte> Link::hear(const base::Deadline& deadline) {
    State& link = *state_;
    link.out_of_step = true;  // until it has ended well
    for (;;) {
        if (std::optional<std::vector<std::byte>> theirs = heard()) {
            link.out_of_step = false;
            return std::move(*theirs);
        }
        if (deadline.cancelled()) {
            cannot_exchange(link, base::ErrorCode::cancelled, "it was cancelled", "");
        }
        if (deadline.expired()) {
            cannot_exchange(link, base::ErrorCode::timed_out, "the peer did not answer in time",
                            "is it stopped or busy?");
        }
        pollfd entry{.fd = link.socket.get(),
                     .events = static_cast<short>(link.unsent.empty() ? POLLIN : POLLIN | POLLOUT),
                     .revents = 0};
        poll_for({&entry, 1}, deadline);
    }
}

void Link::say_goodbye(std::span<const std::byte> words) noexcept {
    State& link = *state_;
    if (link.said_goodbye) return;
    link.said_goodbye = true;
    if (link.out_of_step || !link.unsent.empty()) return;  // it would land in a message
    try {
        const std::vector<std::byte> frame =
            encode_frame(FrameType::goodbye, words.first(std::min(words.size(), max_last_words)));
        ssize_t sent;
        do {
            sent = send(link.socket.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        } while (sent < 0 && errno == EINTR);
        if (sent != static_cast<ssize_t>(frame.size())) {
            base::log(base::LogLevel::info, "connect", "{} did not hear our goodbye",
                      link.peer_name);
        }
    } catch (const std::bad_alloc&) {
        return;  // the peer will report the link as lost
    }
    shutdown(link.socket.get(), SHUT_WR);
}

void LinkParker::prepare() {
    drained_ = link_->channel().drained();
    is_peer_silent_ = false;
    // An arming that fails belongs to a broken queue, which the caller's poll reports.
    (void)link_->send_queue().arm();
    if (link_->has_own_receive_queue()) (void)link_->receive_queue().arm();
    if (link_->has_second_queue()) (void)link_->second_send_queue().arm();
}

void LinkParker::park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) {
    const Rest rest = settle();
    if (rest == Rest::nap) {
        poll_for({}, std::min(next_nap(), limit), cancellation);
    } else if (rest == Rest::sleep) {
        end_naps();
        sleep_for(std::min(limit, longest_sleep()), cancellation);
    }
    woken(rest);
}

void LinkParker::woken(Rest from) {
    if (from != Rest::look && !is_peer_silent_) (void)link_->peer_now();
}

void LinkParker::sleep_for(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) {
    pollfd entries[2] = {{.fd = link_->channel().descriptor(), .events = POLLIN, .revents = 0},
                         {.fd = link_->socket(), .events = POLLIN, .revents = 0}};
    // The socket of a peer that is gone is readable for ever.
    const int ready =
        poll_for({entries, link_->peer() == PeerState::alive ? 2U : 1U}, limit, cancellation);
    is_peer_silent_ = ready > 0 && entries[1].revents == 0;
}

// The socket of a peer that is gone is not watched any more, and a receive queue that others share
// is armed by them.
std::chrono::nanoseconds LinkParker::patience_for_events() const noexcept {
    return link_->peer_so_far() == PeerState::alive && link_->has_own_receive_queue()
               ? std::chrono::nanoseconds::max()
               : slice;
}

void LinkParker::retract() { (void)link_->channel().drain(); }

}  // namespace millrace::connect
