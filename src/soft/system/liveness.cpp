#include "system/liveness.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"

namespace millrace::soft {

bool PeerLife::ask() noexcept {
    const base::Uncancelled held;
    if (gone.load(std::memory_order_relaxed)) return false;
    pollfd signs[2] = {{lifeline.get(), 0, 0}, {process.get(), POLLIN, 0}};
    base::count_system_call();
    if (::poll(signs, 2, 0) > 0) {
        gone.store(true, std::memory_order_release);
        return false;
    }
    return true;
}

Liveness::Liveness() : epoll_{::epoll_create1(EPOLL_CLOEXEC)} {
    if (!epoll_) base::throw_errno(errno, "make the soft device's liveness watch", "this process");
}

void Liveness::watch(PeerLife& life) {
    const std::scoped_lock lock{mutex_};
    life.token_ = ++last_token_;
    watched_.emplace(life.token_, &life);
    epoll_event event{};
    event.data.u64 = life.token_;
    event.events = 0;  // the hang-up is told in any case; what is written there is nobody's
    int failed = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, life.lifeline.get(), &event);
    event.events = EPOLLIN;
    if (life.process)
        failed |= ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, life.process.get(), &event);
    if (failed != 0) {
        const int cause = errno;
        remove(life);
        base::throw_errno(cause, "watch a peer's life", "this process",
                          "raise fs.epoll.max_user_watches");
    }
}

bool Liveness::watch_from(int epoll, PeerLife& life) noexcept {
    const std::scoped_lock lock{mutex_};
    if (!watched_.contains(life.token_)) return true;  // its end is known already
    try {
        // A closed epoll's number is another's now, or soon: its place is taken over.
        if (std::find(life.watchers_.begin(), life.watchers_.end(), epoll) ==
            life.watchers_.end()) {
            life.watchers_.push_back(epoll);
        }
    } catch (const std::bad_alloc&) {
        errno = ENOMEM;
        return false;
    }
    epoll_event event{};
    event.data.fd = -1;
    event.events = 0;
    // Of several connections of one channel to one peer, the first has done it.
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, life.lifeline.get(), &event) != 0 && errno != EEXIST) {
        return false;
    }
    event.events = EPOLLIN;
    return !life.process || ::epoll_ctl(epoll, EPOLL_CTL_ADD, life.process.get(), &event) == 0 ||
           errno == EEXIST;
}

void Liveness::forget(PeerLife& life) noexcept {
    const std::scoped_lock lock{mutex_};
    remove(life);
}

void Liveness::remove(PeerLife& life) noexcept {
    if (watched_.erase(life.token_) == 0) return;
    // Explicitly: closing is not enough while a fork's child has the same descriptors.
    const auto leave = [&life](int epoll) {
        ::epoll_ctl(epoll, EPOLL_CTL_DEL, life.lifeline.get(), nullptr);
        ::epoll_ctl(epoll, EPOLL_CTL_DEL, life.process.get(), nullptr);
    };
    leave(epoll_.get());
    for (const int epoll : life.watchers_) leave(epoll);
    life.watchers_.clear();
}

bool Liveness::check() noexcept {
    const base::Uncancelled held;
    bool found = false;
    for (;;) {
        epoll_event events[32];
        const int count = ::epoll_wait(epoll_.get(), events, 32, 0);
        base::count_system_call();
        if (count <= 0) return found;
        const std::scoped_lock lock{mutex_};
        for (int i = 0; i < count; ++i) {
            const auto life = watched_.find(events[i].data.u64);
            if (life == watched_.end()) continue;
            PeerLife& lost = *life->second;
            lost.gone.store(true, std::memory_order_release);
            remove(lost);
            found = true;
        }
    }
}

void Liveness::abandon() noexcept {
    epoll_.close();
    watched_.clear();
}

}  // namespace millrace::soft
