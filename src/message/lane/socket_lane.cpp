// Messages over a stream socket, see the header.
#include "lane/socket_lane.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/facts.hpp"

namespace millrace::message {

using base::Status;

namespace {

constexpr const char* setting_up_a_socket = "set up messages over a socket";

/// What each end tells the other at the beginning.
struct SocketFacts {
    std::uint32_t version = 1;  ///< of the framing
    std::uint32_t nothing = 0;
};
static_assert(sizeof(SocketFacts) == 8);

void check(const SocketFacts& theirs, const std::string& peer) {
    if (theirs.version == SocketFacts{}.version) return;
    throw base::Error{base::ErrorCode::protocol, setting_up_a_socket, fmt::format("peer {}", peer),
                      fmt::format("it frames messages by version {}, and this end by {}",
                                  theirs.version, SocketFacts{}.version),
                      "use the same build of millrace on both sides"};
}

/// So much is sent without waiting for more of it.
constexpr std::size_t gathered_bytes = std::size_t{64} << 10;
/// Gulps of one look, so that a long message does not keep others waiting.
constexpr int gulps_of_a_look = 4;

}  // namespace

SocketLane::SocketLane(connect::Link link, const Options& options)
    : link_{std::move(link)},
      watch_{options.watch},
      gathers_{options.gathers},
      inbox_{options.max_message_bytes, HeldPart{options.held}} {
    for (std::vector<std::byte> rest = link_.take_over_socket(); !rest.empty();) {
        const std::span<std::byte> room = inbox_.room();
        const std::size_t taken = std::min(room.size(), rest.size());
        std::copy_n(rest.begin(), taken, room.begin());
        inbox_.took(taken);
        rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(taken));
    }
    if (watch_ != nullptr) watch_->add(socket(), this);
}

SocketLane::~SocketLane() {
    if (watch_ != nullptr) watch_->remove(socket());
    if (!is_blocked_ || read_by_peer_.has_value()) return;
    // What a peer has not taken is not kept for it by the kernel either.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(socket(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// --- receiving

Status SocketLane::take(std::span<const std::byte>& message) {
    for (int gulps = 0;; ++gulps) {
        switch (inbox_.front(message)) {
            case SocketInbox::Found::message: return Status::ok;
            case SocketInbox::Found::too_large: return Status::too_large;
            case SocketInbox::Found::goodbye:
                read_by_peer_ = inbox_.passed_by_peer();
                end(Status::closed, {});
                return ended_;
            case SocketInbox::Found::garbage:
                end(Status::peer_lost, "the peer sent what is no frame of messages");
                return ended_;
            case SocketInbox::Found::nothing: break;
        }
        if (ended_ != Status::ok) return ended_;
        if (gulps == gulps_of_a_look || !receive()) {
            (void)flush();
            return ended_ == Status::ok ? Status::empty : ended_;
        }
    }
}

bool SocketLane::receive() {
    if (watch_ != nullptr && !may_read_) return false;
    const std::span<std::byte> room = inbox_.room();
    if (room.empty()) return true;  // what is in front is refused
    ssize_t count;
    do {
        base::count_system_call();
        count = recv(socket(), room.data(), room.size(), MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count > 0) {
        const auto bytes = static_cast<std::size_t>(count);
        inbox_.took(bytes);
        received_bytes_ += bytes;
        // What did not fill the room was all; what comes later is told of.
        if (bytes < room.size() && !is_ending_) may_read_ = false;
        return true;
    }
    may_read_ = false;
    if (count == 0) {
        end(Status::peer_lost, inbox_.is_between_frames()
                                   ? "its socket ended without a goodbye"
                                   : "its socket ended in the middle of a message");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        end(Status::peer_lost, base::describe_errno(errno));
    } else if (is_broken_) {
        end(Status::peer_lost, "its socket takes nothing more");
    }
    return false;
}

bool SocketLane::has_more() const noexcept {
    return inbox_.has_front() || (watch_ != nullptr && may_read_);
}

void SocketLane::told(const connect::SocketWatch::Told& what) noexcept {
    if (what.may_read) may_read_ = true;
    if (what.ends) is_ending_ = true;
    if (what.may_write) set_blocked(false);
}

// --- sending

Status SocketLane::claim(std::size_t size, std::span<std::byte>& place) {
    if (const Status status = may_send(); status != Status::ok) return status;
    if (size > largest_message) return Status::too_large;
    if (is_blocked_) return Status::full;
    place = outbox_.claim(size);
    return Status::ok;
}

Status SocketLane::lay(std::size_t size) noexcept {
    outbox_.commit(size);
    if (!gathers_ || outbox_.pending().size() >= gathered_bytes) (void)flush();
    return Status::ok;
}

Status SocketLane::keep(const SessionHead& head, std::span<const std::byte> payload) {
    if (const Status status = may_send(); status != Status::ok) return status;
    outbox_.append(head, payload);
    (void)flush();
    return Status::ok;
}

Status SocketLane::flush() noexcept {
    if (outbox_.empty()) return Status::ok;
    if (is_broken_) return Status::peer_lost;
    // A server is told when there is room again.
    if (is_blocked_ && watch_ != nullptr) return Status::full;
    while (!outbox_.empty()) {
        const std::span<const std::byte> pending = outbox_.pending();
        base::count_system_call();
        const ssize_t count =
            ::send(socket(), pending.data(), pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count >= 0) {
            outbox_.sent(static_cast<std::size_t>(count));
            sent_bytes_ += static_cast<std::uint64_t>(count);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            set_blocked(true);
            return Status::full;
        } else if (errno != EINTR) {
            // What the peer sent before its end is still to be read.
            is_broken_ = true;
            may_read_ = true;
            set_blocked(false);
            return Status::peer_lost;
        }
    }
    set_blocked(false);
    return Status::ok;
}

void SocketLane::set_blocked(bool is_blocked) noexcept {
    if (is_blocked == is_blocked_) return;
    is_blocked_ = is_blocked;
    if (news_ != nullptr) news_->want_room(is_blocked);
}

// --- waiting

void SocketLane::Parker::park(std::chrono::nanoseconds limit,
                              const base::Cancellation* cancellation) {
    connect::wait_for_socket(lane_->socket(), lane_->is_blocked_, limit, cancellation);
}

std::span<const int> SocketLane::news() {
    if (news_ == nullptr) {
        news_ = std::make_unique<connect::SocketNews>(socket());
        news_->want_room(is_blocked_);
        news_descriptor_ = news_->descriptor();
    }
    return {&news_descriptor_, 1};
}

// --- the conversation

void SocketLane::answer_goodbye() noexcept {
    if (ended_ == Status::closed) say_goodbye();
}

void SocketLane::say_goodbye() noexcept {
    if (!std::exchange(said_goodbye_, true)) {
        try {
            outbox_.append_goodbye(inbox_.passed());
        } catch (const std::bad_alloc&) {
            return;  // then the peer has to do with the end of the connection
        }
    }
    (void)flush();
}

bool SocketLane::peer_had_all() const noexcept {
    return read_by_peer_.has_value() && *read_by_peer_ >= outbox_.laid();
}

bool SocketLane::has_ended() {
    std::span<const std::byte> message;
    for (int i = 0; i < 64; ++i) {
        const Status status = take(message);
        if (status != Status::ok && status != Status::too_large) return status != Status::empty;
        inbox_.pass();
    }
    return false;
}

bool SocketLane::is_delivered() noexcept {
    int unacknowledged = 0;
    // Of a Unix socket these are bytes that lie at the peer already.
    if (link_.local().kind() == connect::Address::Kind::unix_socket) return true;
    base::count_system_call();
    return ioctl(socket(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
}

Status SocketLane::finish() {
    may_read_ = true;
    std::span<const std::byte> message;
    (void)take(message);  // for the peer's end, if nothing lies before it
    if (watch_ != nullptr) set_blocked(false);
    const bool is_sent = flush() == Status::ok;
    if (ended_ == Status::ok && !is_broken_) {
        if (!is_sent || !is_delivered()) return Status::full;
        say_goodbye();
        if (!outbox_.empty() && !is_broken_) return Status::full;
        (void)shutdown(socket(), SHUT_WR);
        return Status::ok;
    }
    if (!has_ended()) return Status::full;
    answer_goodbye();
    (void)shutdown(socket(), SHUT_WR);
    if (peer_had_all()) return Status::ok;
    return ended_ == Status::closed ? Status::closed : Status::peer_lost;
}

std::string SocketLane::explain() const {
    return fmt::format(
        "{}\nmessages over that socket, framed; by one system call what has come, up to {} KiB",
        link_.explain(), ByteQueue::usual >> 10);
}

// --- both ends

std::unique_ptr<NetworkLane> SocketHost::meet(connect::Link link) {
    const SocketFacts mine;
    const auto theirs = link.hear(base::Deadline::now());
    check(connect::facts_in<SocketFacts>(theirs, setting_up_a_socket, link.peer_name()),
          link.peer_name());
    link.say(connect::bytes_of(mine));
    return std::make_unique<SocketLane>(
        std::move(link), SocketLane::Options{max_message_bytes_, &watch_, true, held_});
}

void SocketHost::look(std::vector<std::uint32_t>& places) {
    constexpr std::size_t enough = 1024;
    for (std::size_t looked = 0; looked < enough;) {
        const auto all = watch_.look();
        for (const connect::SocketWatch::Told& one : all) {
            auto& lane = *static_cast<SocketLane*>(one.whose);
            lane.told(one);
            if (lane.place() != Lane::no_place) places.push_back(lane.place());
        }
        looked += all.size();
        if (all.size() < connect::SocketWatch::most) return;
    }
}

std::string SocketHost::explain() const {
    return "clients over sockets (tcp): an epoll tells who has written";
}

std::unique_ptr<NetworkLane> connect_socket_lane(const connect::Address& server,
                                                 const connect::LinkOptions& options,
                                                 const SocketLane::Options& lane,
                                                 const base::Deadline& deadline) {
    connect::Link link = connect::connect(server, options, deadline);
    const SocketFacts mine;
    const auto theirs = link.exchange(connect::bytes_of(mine), deadline);
    check(connect::facts_in<SocketFacts>(theirs, setting_up_a_socket, link.peer_name()),
          link.peer_name());
    return std::make_unique<SocketLane>(std::move(link), lane);
}

}  // namespace millrace::message
