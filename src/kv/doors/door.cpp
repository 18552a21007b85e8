#include "doors/door.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/standard_streams.hpp"
#include "millrace/base/statistics.hpp"

namespace millrace::kv {
namespace {

/// Read at a time.
constexpr std::size_t piece = std::size_t{64} << 10;
/// Who holds more than this is among those that DoorOptions::max_held_bytes means.
constexpr std::size_t little = std::size_t{64} << 10;
constexpr int most_events = 64;
constexpr int most_newcomers = 16;

}  // namespace

Door::Door(DoorService& service, const connect::PlainListener& listener, std::size_t thread)
    : service_{service}, listener_{listener}, thread_{thread} {
    epoll_ = base::above_standard_streams(epoll_create1(EPOLL_CLOEXEC));
    if (epoll_ < 0) base::throw_errno(errno, "open a door", listener.address().to_string());
    timer_ =
        base::above_standard_streams(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &timer_}};
    if (timer_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &event) != 0) {
        const int error = errno;
        if (timer_ >= 0) ::close(timer_);
        ::close(epoll_);
        base::throw_errno(error, "open a door", listener.address().to_string());
    }
    received_ = std::make_unique_for_overwrite<char[]>(piece);
    watch_newcomers(true);
}

Door::~Door() {
    ::close(timer_);
    ::close(epoll_);
}

void Door::add(std::uint64_t DoorStats::*count, std::uint64_t more) noexcept {
    base::Counter{&(counts_.*count)}.add(more);
}

namespace {
constexpr std::uint64_t DoorStats::*all_counts[] = {
    &DoorStats::connections,  &DoorStats::accepted,  &DoorStats::refused,   &DoorStats::denied,
    &DoorStats::commands,     &DoorStats::errors,    &DoorStats::malformed, &DoorStats::slow,
    &DoorStats::idle,         &DoorStats::greedy,    &DoorStats::bytes_in,  &DoorStats::bytes_out,
    &DoorStats::tls_accepted, &DoorStats::tls_failed};
static_assert(std::size(all_counts) * sizeof(std::uint64_t) == sizeof(DoorStats));
}  // namespace

void Door::add_to(DoorStats& stats) const noexcept {
    for (const auto count : all_counts) {
        stats.*count += base::Counter{const_cast<std::uint64_t*>(&(counts_.*count))}.value();
    }
}

void Door::watch_newcomers(bool watches) noexcept {
    if (watches == watches_newcomers_) return;
    // Not all threads need wake for one peer.
    epoll_event event{.events = EPOLLIN | EPOLLEXCLUSIVE, .data = {.ptr = &watches_newcomers_}};
    (void)epoll_ctl(epoll_, watches ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.descriptor(),
                    &event);
    watches_newcomers_ = watches;
}

bool Door::look() noexcept {
    std::array<epoll_event, most_events> events;
    const int count = epoll_wait(epoll_, events.data(), most_events, 0);
    bool is_tick = false;
    for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.ptr == &timer_) {
            is_tick = true;
            continue;
        }
        try {
            if (event.data.ptr == &watches_newcomers_) {
                accept_some();
            } else {
                auto& connection = *static_cast<Connection*>(event.data.ptr);
                try {
                    serve(connection, event.events);
                } catch (const std::exception&) {
                    // There was no memory for what it asks. Its answers are not the next one's.
                    output_.drop();
                    close(connection, &DoorStats::greedy);
                }
            }
        } catch (const std::exception&) {
            // Nor for who came.
            watch_newcomers(false);
        }
    }
    // Behind the others, as it closes connections that these may be of.
    if (is_tick) tick();
    bury();
    if (count > 0) set_timer();
    return count > 0;
}

void Door::bury() noexcept { buried_.clear(); }

void Door::accept_some() {
    // Of several threads each takes one, so that no one has them all.
    const int most = service_.gate.threads() == 1 ? most_newcomers : 1;
    for (int i = 0; i < most; ++i) {
        const int socket = listener_.accept();
        if (socket < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            if (errno == ECONNABORTED || errno == EINTR) continue;
            // No descriptor, or no memory: until the next tick.
            add(&DoorStats::refused);
            return watch_newcomers(false);
        }
        std::unique_ptr<Connection> made;
        try {
            made = make_connection();
            if (service_.identity != nullptr) {
                made->tls = std::make_unique<TlsSession>(*service_.identity, socket);
            }
            connections_.reserve(connections_.size() + 1);
            buried_.reserve(connections_.size() + 1);
            made->session.peer = listener_.name_of_peer(socket);
        } catch (...) {
            ::close(socket);
            throw;
        }
        if (service_.crowd.open.fetch_add(1, std::memory_order_relaxed) >=
            service_.options.max_connections) {
            // Where there is TLS, a word before the handshake is noise.
            const std::string_view full = made->tls == nullptr ? full_text() : std::string_view{};
            (void)::send(socket, full.data(), full.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            ::close(socket);
            service_.crowd.open.fetch_sub(1, std::memory_order_relaxed);
            add(&DoorStats::refused);
            continue;
        }
        DoorSession& session = made->session;
        session.number = 1 + service_.sessions.fetch_add(1, std::memory_order_relaxed);
        session.descriptor = socket;
        session.is_known = !service_.options.password;
        session.came = session.asked = base::Clock::now();
        made->interest = EPOLLIN;
        epoll_event event{.events = made->interest, .data = {.ptr = made.get()}};
        const bool is_watched = epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) == 0;
        {
            const Gate::Inside inside{service_.gate, thread_};
            connections_.push_back(std::move(made));
        }
        add(&DoorStats::accepted);
        add(&DoorStats::connections);
        if (connections_.back()->is_shaking_hands()) ++shaking_hands_;
        if (!is_watched) close(*connections_.back(), &DoorStats::refused);
    }
}

void Door::serve(Connection& connection, std::uint32_t events) {
    if (connection.is_closed) return;
    if ((events & EPOLLERR) != 0) return close(connection);
    if (connection.is_shaking_hands() && !shake_hands(connection)) return;
    if (connection.output.unsent() != 0 && !send(connection, connection.output)) return;
    if (connection.is_paused) go_on(connection);
    const auto takes = [&] {
        return !connection.is_closed && !connection.is_paused && !connection.session.is_leaving;
    };
    if (takes() && has_more(connection, events)) receive(connection, TlsSession::From::socket);
    // The socket tells nothing of what was read from it already.
    while (connection.tls != nullptr && takes() && connection.tls->has_kept()) {
        receive(connection, TlsSession::From::kept);
    }
    if (!connection.is_closed) settle(connection);
}

bool Door::has_more(const Connection& connection, std::uint32_t events) const noexcept {
    const bool waited = connection.tls != nullptr && connection.tls->wants_to_write();
    return (events & (EPOLLIN | EPOLLHUP | (waited ? EPOLLOUT : 0U))) != 0;
}

bool Door::shake_hands(Connection& connection) {
    switch (connection.tls->shake_hands()) {
        case TlsSession::Handshake::done:
            --shaking_hands_;
            add(&DoorStats::tls_accepted);
            return true;
        case TlsSession::Handshake::goes_on:
            watch(connection, connection.tls->wants_to_write() ? EPOLLOUT : EPOLLIN);
            return false;
        case TlsSession::Handshake::failed: break;
    }
    close(connection, &DoorStats::tls_failed);
    return false;
}

/// False: it is closed.
bool Door::send(Connection& connection, Output& output) noexcept {
    std::uint64_t sent = 0;
    const Output::Sent how = output.send(connection.session.descriptor, connection.tls.get(), sent);
    add(&DoorStats::bytes_out, sent);
    if (sent != 0 && connection.is_paused) connection.read_at = base::Clock::now();
    if (how != Output::Sent::nothing) return true;
    close(connection);
    return false;
}

void Door::receive(Connection& connection, TlsSession::From from) {
    Input& input = connection.input;
    const bool is_whole = input.size == 0;
    char* to = received_.get();
    std::size_t room = piece;
    if (!is_whole) {
        // Not more at once than has come: who says that much follows may lie.
        const std::size_t wanted = connection.wanted();
        const std::size_t more = wanted > input.size ? wanted - input.size : 0;
        // And by a part of what has come, so that many short arguments are not copied each time.
        const std::size_t least = std::max(piece / 4, input.size / 2);
        input.reserve(input.size + std::clamp(more, least, input.size + piece / 4));
        to = input.bytes.get() + input.size;
        room = input.capacity - input.size;
    }
    const ssize_t got = connection.tls == nullptr
                            ? ::recv(connection.session.descriptor, to, room, 0)
                            : connection.tls->receive(to, room, from);
    if (got <= 0) {
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (got < 0) return close(connection);
        connection.session.is_leaving = true;  // it may read its last answers still
        return;
    }
    add(&DoorStats::bytes_in, static_cast<std::uint64_t>(got));
    const auto size = static_cast<std::size_t>(got);
    if (is_whole) {
        const std::string_view data{to, size};
        const std::size_t used = carry_out_all(connection, data);
        if (!connection.is_closed) input.append(data.substr(used));
    } else {
        input.size += size;
        const std::size_t used = carry_out_all(connection, input.view());
        if (!connection.is_closed) input.drop_front(used);
    }
}

/// What was left when it was paused.
void Door::go_on(Connection& connection) {
    if (connection.output.unsent() > service_.options.max_unread_bytes / 2) return;
    connection.is_paused = false;
    --paused_;
    const std::size_t used = carry_out_all(connection, connection.input.view());
    if (!connection.is_closed) connection.input.drop_front(used);
}

void Door::pause(Connection& connection) noexcept {
    if (connection.is_paused) return;
    connection.is_paused = true;
    connection.read_at = base::Clock::now();
    ++paused_;
}

/// Were so many bytes of answers held for it.
bool Door::is_too_much(const Connection& connection, std::size_t unsent) const noexcept {
    return service_.crowd.held.load(std::memory_order_relaxed) - connection.held + unsent >
           service_.options.max_held_bytes;
}

std::size_t Door::carry_out_all(Connection& connection, std::string_view data) {
    const bool is_own = connection.output.unsent() != 0;
    Output& output = is_own ? connection.output : output_;
    const std::size_t most = service_.options.max_unread_bytes;
    std::size_t used = 0;
    while (used < data.size() && !connection.session.is_leaving) {
        const Done done = carry_out_some(connection, data.substr(used), output);
        used += done.used;
        if (done.is_long) [[unlikely]] {
            output_.drop();
            close(connection, &DoorStats::slow);
            return used;
        }
        if (output.unsent() >= send_at) {
            if (!send(connection, output)) {
                output_.drop();
                return used;
            }
            if (output.unsent() > most || is_too_much(connection, output.unsent())) {
                pause(connection);
                break;
            }
        }
        if (done.waits) break;
    }
    if (!send(connection, output)) {
        output_.drop();
        return used;
    }
    if (!is_own && output.unsent() != 0) connection.output.take_rest_of(output);
    output.trim();
    return used;
}

void Door::trim(std::string& scratch) noexcept {
    constexpr std::size_t usual = std::size_t{2} << 20;
    if (scratch.capacity() > usual) [[unlikely]]
        std::string{}.swap(scratch);
}

/// After a visit: what it holds, and what the epoll is to tell of it from now on.
void Door::settle(Connection& connection) {
    const DoorSession& session = connection.session;
    const std::size_t unsent = connection.output.unsent();
    if (session.is_leaving) {
        if (unsent == 0) return close(connection);
        pause(connection);  // so that it is not waited for longer than for others
    }
    connection.output.trim();
    const std::size_t held = connection.input.capacity + connection.held_beside() +
                             (unsent == 0 ? 0 : connection.output.held());
    const std::uint64_t all =
        service_.crowd.held.fetch_add(held - connection.held, std::memory_order_relaxed) + held -
        connection.held;
    connection.held = held;
    if (all > service_.options.max_held_bytes) [[unlikely]] {
        if (held + connection.held_for_later() > little) {
            return close(connection, &DoorStats::greedy);
        }
    }
    const std::uint32_t reads = connection.is_paused || session.is_leaving ? 0U : EPOLLIN;
    // Who is paused may have read all since: then it goes on at once.
    const bool waits = unsent != 0 || connection.is_paused ||
                       (connection.tls != nullptr && connection.tls->wants_to_write());
    watch(connection, reads | (waits ? EPOLLOUT : 0U));
}

void Door::watch(Connection& connection, std::uint32_t interest) noexcept {
    if (interest == connection.interest) return;
    epoll_event event{.events = interest, .data = {.ptr = &connection}};
    (void)epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.session.descriptor, &event);
    connection.interest = interest;
}

void Door::close(Connection& connection, std::uint64_t DoorStats::*why) noexcept {
    if (connection.is_closed) return;
    connection.is_closed = true;
    if (why != nullptr) add(why);
    if (connection.is_paused) --paused_;
    if (connection.is_shaking_hands()) --shaking_hands_;
    if (connection.tls != nullptr) connection.tls->end();
    const int socket = std::exchange(connection.session.descriptor, -1);
    // Closing does not, where a child that this process has forked still holds the socket.
    (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
    // What it has sent and nobody reads would reset the connection, and with it its last answers.
    (void)::shutdown(socket, SHUT_WR);
    for (int i = 0; i < 16 && ::recv(socket, received_.get(), piece, MSG_DONTWAIT) > 0; ++i) {
    }
    ::close(socket);
    const Gate::Inside inside{service_.gate, thread_};
    forget(connection);
    connection.tls.reset();
    connection.output.drop();  // at once, as it counts no more: it is buried after all others' turn
    service_.crowd.held.fetch_sub(connection.held, std::memory_order_relaxed);
    service_.crowd.open.fetch_sub(1, std::memory_order_relaxed);
    base::Counter{&counts_.connections}.add(~std::uint64_t{0});
    const auto at = std::ranges::find(connections_, &connection, &std::unique_ptr<Connection>::get);
    std::swap(*at, connections_.back());
    buried_.push_back(std::move(connections_.back()));
    connections_.pop_back();
}

void Door::set_timer() noexcept {
    const bool wants = paused_ != 0 || shaking_hands_ != 0 || !watches_newcomers_ ||
                       wants_ticks() ||
                       (service_.options.idle_timeout.count() != 0 && !connections_.empty());
    if (wants == is_timed_) return;
    is_timed_ = wants;
    itimerspec each{};
    if (wants) each.it_value.tv_sec = each.it_interval.tv_sec = 1;
    (void)timerfd_settime(timer_, 0, &each, nullptr);
}

void Door::tick() noexcept {
    std::uint64_t times = 0;
    (void)::read(timer_, &times, sizeof times);
    watch_newcomers(true);
    on_tick();
    const auto now = base::Clock::now();
    const auto idle = service_.options.idle_timeout;
    for (std::size_t i = connections_.size(); i-- != 0;) {
        Connection& connection = *connections_[i];
        if (connection.is_paused && now - connection.read_at >= service_.options.patience) {
            close(connection, &DoorStats::slow);
        } else if (connection.is_shaking_hands() &&
                   now - connection.session.came >= service_.options.patience) {
            close(connection, &DoorStats::tls_failed);
        } else if (idle.count() != 0 && now - connection.session.asked >= idle) {
            close(connection, &DoorStats::idle);
        }
    }
}

void Door::close() noexcept {
    watch_newcomers(false);
    while (!connections_.empty()) close(*connections_.back());
    bury();
}

// --- Input

void Door::Input::reserve(std::size_t wanted) {
    if (wanted <= capacity) return;
    auto larger = std::make_unique_for_overwrite<char[]>(wanted);
    if (size != 0) std::memcpy(larger.get(), bytes.get(), size);
    bytes = std::move(larger);
    capacity = wanted;
}

void Door::Input::append(std::string_view more) {
    if (more.empty()) return;
    reserve(size + more.size());
    std::memcpy(bytes.get() + size, more.data(), more.size());
    size += more.size();
}

void Door::Input::drop_front(std::size_t count) noexcept {
    if (count == 0) return;
    size -= count;
    if (size == 0) {
        *this = {};
    } else {
        std::memmove(bytes.get(), bytes.get() + count, size);
    }
}

}  // namespace millrace::kv
