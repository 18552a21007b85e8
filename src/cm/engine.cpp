#include "engine.hpp"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <thread>

#include "millrace/base/detail/own_threads.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/signals.hpp"

namespace millrace::cm {
namespace {

/// How late the program's end may be noticed.
constexpr int longest_sleep_ms = 500;

}  // namespace

int Engine::start(Watcher& watcher) noexcept {
    if (epoll_) return 0;
    epoll_ = soft::Descriptor{::epoll_create1(EPOLL_CLOEXEC)};
    bell_ = soft::Descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    const int error = !epoll_ || !bell_ ? errno : watch(bell_.get(), Watcher::nothing);
    if (error != 0) {
        become_copy();
        return error;
    }
    const base::SignalsBlocked blocked;
    try {
        std::thread{[this, &watcher] { run(watcher); }}.detach();
    } catch (const std::exception&) {
        become_copy();
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

void Engine::wake() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof one);
}

void Engine::run(Watcher& watcher) noexcept {
    pthread_setname_np(pthread_self(), "millrace-cm");
    const base::OwnThread own;
    std::array<epoll_event, 64> events;
    int sleep = longest_sleep_ms;
    for (;;) {
        const int count =
            ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), sleep);
        base::count_system_call();
        for (int i = 0; i < count; ++i) {
            const std::uint64_t what = events[static_cast<std::size_t>(i)].data.u64;
            if (what != Watcher::nothing) {
                watcher.look(what);
                continue;
            }
            std::uint64_t rings = 0;
            [[maybe_unused]] const ssize_t got = ::read(bell_.get(), &rings, sizeof rings);
        }
        sleep = std::min(watcher.tick(), longest_sleep_ms);
        if (count <= 0) base::end_with_program();
    }
}

}  // namespace millrace::cm
