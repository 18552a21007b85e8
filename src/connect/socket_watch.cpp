// SocketNews and SocketWatch: an epoll each, level-triggered for the one, edge-triggered for many.
#include "millrace/connect/socket_watch.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "descriptor.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "waiting.hpp"

namespace millrace::connect {

namespace {

[[noreturn]] void no_more(const char* attempted) {
    throw base::Error{base::ErrorCode::resource_exhausted, attempted, "an epoll",
                      base::describe_errno(errno), "raise the limit of open files (ulimit -n)"};
}

void add_to(const Descriptor& epoll, int socket, epoll_event event, const char* attempted) {
    if (!epoll.valid() || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket, &event) != 0) {
        no_more(attempted);
    }
}

}  // namespace

void wait_for_socket(int socket, bool for_room, std::chrono::nanoseconds limit,
                     const base::Cancellation* cancellation) noexcept {
    base::count_system_call();
    pollfd entry{.fd = socket,
                 .events = static_cast<short>(for_room ? POLLIN | POLLOUT : POLLIN),
                 .revents = 0};
    (void)poll_for({&entry, 1}, limit, cancellation);
}

// --- SocketNews

struct SocketNews::State {
    int socket;
    Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
    bool wants_room = false;
};

SocketNews::SocketNews(int socket) : state_{std::make_unique<State>(State{.socket = socket})} {
    add_to(state_->epoll, socket, {.events = EPOLLIN | EPOLLRDHUP, .data = {}},
           "wait for a socket");
}
SocketNews::~SocketNews() = default;

int SocketNews::descriptor() const noexcept { return state_->epoll.get(); }

void SocketNews::want_room(bool wanted) noexcept {
    if (wanted == state_->wants_room) return;
    state_->wants_room = wanted;
    base::count_system_call();
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {}};
    if (wanted) event.events |= EPOLLOUT;
    (void)epoll_ctl(state_->epoll.get(), EPOLL_CTL_MOD, state_->socket, &event);
}

// --- SocketWatch

struct SocketWatch::State {
    Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
    std::array<epoll_event, most> events{};
    std::array<Told, most> told{};
};

SocketWatch::SocketWatch() : state_{std::make_unique<State>()} {
    if (!state_->epoll.valid()) no_more("watch sockets");
}
SocketWatch::~SocketWatch() = default;

void SocketWatch::add(int socket, void* whose) {
    add_to(state_->epoll, socket,
           {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.ptr = whose}},
           "watch a socket");
}

void SocketWatch::remove(int socket) noexcept {
    (void)epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, socket, nullptr);
}

std::span<const SocketWatch::Told> SocketWatch::look() noexcept {
    base::count_system_call();
    const int count = epoll_wait(state_->epoll.get(), state_->events.data(),
                                 static_cast<int>(state_->events.size()), 0);
    const auto found = static_cast<std::size_t>(std::max(count, 0));
    for (std::size_t i = 0; i < found; ++i) {
        const std::uint32_t events = state_->events[i].events;
        const bool ends = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        state_->told[i] = {.whose = state_->events[i].data.ptr,
                           .may_read = ends || (events & EPOLLIN) != 0,
                           .may_write = ends || (events & EPOLLOUT) != 0,
                           .ends = ends};
    }
    return std::span{state_->told}.first(found);
}

int SocketWatch::descriptor() const noexcept { return state_->epoll.get(); }

}  // namespace millrace::connect
