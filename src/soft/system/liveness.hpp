// Notices that peer processes have gone: by the hang-up of their lifeline, a pipe whose only write
// end is theirs, and by their pidfd. Called by the node and its peers. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "system/descriptor.hpp"

namespace millrace::soft {

/// What tells the life of one peer.
struct PeerLife {
    Descriptor lifeline;  ///< a read end: hangs up on exit, exec and close. Never read
    Descriptor process;   ///< pidfd: exit, even if a child holds the write end open; or none
    std::atomic<bool> gone{false};

    /// Asks the kernel now; remembers a "gone".
    [[nodiscard]] bool ask() noexcept;

  private:
    friend class Liveness;  // whose mutex guards them
    std::uint64_t token_ = 0;
    std::vector<int> watchers_;  ///< epolls of others that watch it
};

class Liveness {
  public:
    Liveness();                  ///< Throws `base::Error`.
    void watch(PeerLife& life);  ///< until `forget`
    void forget(PeerLife& life) noexcept;
    /// Makes another epoll readable, too, from the end of `life` until `check` has found that. It
    /// may be closed at any time. False, with errno: it cannot be.
    [[nodiscard]] bool watch_from(int epoll, PeerLife& life) noexcept;
    /// As Node::check_liveness.
    bool check() noexcept;
    [[nodiscard]] int descriptor() const noexcept { return epoll_.get(); }

    /// In a child after fork: the epoll is the parent's, too. Never touch it again.
    void abandon() noexcept;
    [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  private:
    void remove(PeerLife& life) noexcept;

    Descriptor epoll_;
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, PeerLife*> watched_;
    std::uint64_t last_token_ = 0;
};

}  // namespace millrace::soft
