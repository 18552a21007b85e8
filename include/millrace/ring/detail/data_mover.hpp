// The data mover: one thread of a process that moves the data of all its active flows (work 000,
// section 6.4), so that to enqueue is to write to the local ring and nothing else. Used by Sender.
//
// The thread exists while a flow does. It goes through its flows; when none of them had anything to
// do it yields, and then sleeps until a flow is notified. Where something is on its way, or waits
// for the peer, it looks again after naps of 20 us that grow to 1 ms.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "millrace/base/detail/thread_bell.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::ring::detail {

/// What the mover does for one flow.
class MovedFlow {
  public:
    enum class Next : std::uint8_t {
        moved,    ///< something went on: look again at once
        waiting,  ///< nothing now, but something is on its way or waits for the peer
        idle,     ///< nothing until notify()
    };
    /// Called by the mover's thread alone. Never blocks, never throws.
    [[nodiscard]] virtual Next move() noexcept = 0;

  protected:
    ~MovedFlow() = default;
};

class DataMover {
  public:
    /// The mover of this process; starts it for the first flow. It ends with the last one. It runs
    /// where the thread that started it may run. Throws std::system_error if no thread can be made.
    [[nodiscard]] static std::shared_ptr<DataMover> of_this_process();
    /// In a child made by fork, which has no such thread: `mover` is its parent's, and is neither
    /// used nor ended any more, as the thread may hold its lock for ever.
    static void forget(std::shared_ptr<DataMover>& mover) noexcept;

    DataMover();
    DataMover(const DataMover&) = delete;
    DataMover& operator=(const DataMover&) = delete;
    ~DataMover();

    void add(MovedFlow& flow);
    /// When this returns the thread does not touch the flow any more.
    void remove(MovedFlow& flow) noexcept;
    /// After a sequentially consistent store of what there is to do. A system call if the mover
    /// sleeps, else a load. From any thread.
    void notify() noexcept { bell_.ring(); }

    /// Holds the mover still, for as long as the lock lives: to look at what it writes.
    [[nodiscard]] std::unique_lock<std::mutex> pause() noexcept;
    /// As pause, but only if that needs no waiting.
    [[nodiscard]] std::unique_lock<std::mutex> try_pause() noexcept {
        return std::unique_lock{flows_mutex_, std::try_to_lock};
    }
    /// How often it went to sleep without anything on its way.
    [[nodiscard]] std::uint64_t sleeps() const noexcept {
        return sleeps_.load(std::memory_order_relaxed);
    }

  private:
    class MoverParker;
    void run() noexcept;
    MovedFlow::Next pass() noexcept;

    base::ThreadBell bell_;
    std::atomic<bool> stopping_{false};
    std::atomic<std::uint32_t> pausing_{0};  ///< threads that want the mutex: the mover lets them
    std::atomic<std::uint64_t> sleeps_{0};
    std::mutex flows_mutex_;
    std::vector<MovedFlow*> flows_;
    std::thread thread_;
};

}  // namespace millrace::ring::detail
