#include "engine.hpp"

#include <pthread.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <exception>
#include <thread>

#include "millrace/base/own_threads.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/base/system_calls.hpp"

namespace millrace::cm {
namespace {

/// How late a deadline may be noticed, and the program's end: deadlines are seconds away.
constexpr int longest_sleep_ms = 500;

}  // namespace

int Engine::start(Watcher& watcher) noexcept {
    if (epoll_) return 0;
    epoll_ = soft::Descriptor{::epoll_create1(EPOLL_CLOEXEC)};
    if (!epoll_) return errno;
    const base::SignalsBlocked blocked;
    try {
        std::thread{[this, &watcher] { run(watcher); }}.detach();
    } catch (const std::exception&) {
        epoll_.close();
        return EAGAIN;
    }
    return 0;
}

int Engine::watch(int socket, std::uint64_t watch) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = watch;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0 ? 0 : errno;
}

void Engine::forget(int socket) noexcept {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

void Engine::run(Watcher& watcher) noexcept {
    pthread_setname_np(pthread_self(), "millrace-cm");
    const base::OwnThread own;
    std::array<epoll_event, 64> events;
    for (;;) {
        const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                       longest_sleep_ms);
        base::count_system_call();
        for (int i = 0; i < count; ++i) watcher.look(events[static_cast<std::size_t>(i)].data.u64);
        watcher.tick();
        if (count <= 0) base::end_with_program();
    }
}

}  // namespace millrace::cm
