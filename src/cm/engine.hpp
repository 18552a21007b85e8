// The thread that waits for the connection manager's sockets: a blocking rdma_get_cm_event must
// hear of what others send, and a peer must be answered while the program computes. Started by the
// first channel that is opened, never ended. Called by the Manager.
#pragma once

#include <cstdint>

#include "../soft/system/descriptor.hpp"

namespace millrace::cm {

/// What the engine calls, from its thread.
class Watcher {
  public:
    /// What no socket is watched as.
    static constexpr std::uint64_t nothing = 0;

    /// The socket that is watched as `watch` has something, or its other end is gone. `watch` may
    /// have been forgotten meanwhile.
    virtual void look(std::uint64_t watch) noexcept = 0;
    /// Time has passed: called after each look, and at least some times in a second. Returns after
    /// how many milliseconds it wants to be called again, at the latest.
    virtual int tick() noexcept = 0;

  protected:
    ~Watcher() = default;
};

class Engine {
  public:
    /// 0 or an errno value. `watcher` lives as long as the process.
    [[nodiscard]] int start(Watcher& watcher) noexcept;
    [[nodiscard]] int watch(int socket, std::uint64_t watch) noexcept;
    /// Before the socket is closed: the child of a fork may have it still.
    void forget(int socket) noexcept;
    /// Has it tick at once.
    void wake() noexcept;
    /// In a child made by fork: there is no thread.
    void become_copy() noexcept {
        epoll_.close();
        bell_.close();
    }

  private:
    [[noreturn]] void run(Watcher& watcher) noexcept;

    soft::Descriptor epoll_;
    soft::Descriptor bell_;
};

}  // namespace millrace::cm
