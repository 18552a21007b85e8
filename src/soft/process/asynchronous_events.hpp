// Asynchronous events: what happened to a queue pair, a completion queue, a shared receive queue or
// the device that no completion tells of. Each context has one queue. Its `async_fd` is an epoll of
// an eventfd that is readable exactly while an event is queued; a bell pipe, which peers ring when
// they have left something in a block that its owner has to know although it may never poll (a
// fault, or the first request to a queue pair in RTR); and the lives of the peers that the
// context's queue pairs are connected to. After the latter two, ibv_get_async_event looks for what
// there is.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <mutex>
#include <unordered_map>

#include "system/descriptor.hpp"

namespace millrace::soft {

class AsynchronousEvents {
  public:
    /// Throws `base::Error` if there are no descriptors left.
    AsynchronousEvents();

    /// The descriptor for the program, which is the program's to set (O_NONBLOCK).
    [[nodiscard]] int descriptor() const noexcept { return epoll_.get(); }
    /// What peers ring, by its number: open as long as this object, so that the number never
    /// names something else while a queue pair says it.
    [[nodiscard]] int bell() const noexcept { return bell_.get(); }

    /// Rings the bell. Any thread, never blocks.
    void ring() noexcept;
    /// Queues an event. Any thread, any locks held but this object's.
    void raise(const ibv_async_event& event) noexcept;
    /// Takes one, and counts it for `end`. False: there is none.
    [[nodiscard]] bool take(ibv_async_event& event) noexcept;
    /// Drops the queued events of `element`; returns how many of it have been taken so far.
    [[nodiscard]] unsigned end(const void* element) noexcept;
    /// The program has closed the context: closes the descriptor; `raise` does nothing from now on.
    void close() noexcept;

  private:
    /// With the mutex: `queued_` becomes readable, or is so no longer.
    void show() noexcept;
    void hide() noexcept;

    std::mutex mutex_;  ///< a leaf: nothing is locked under it
    std::deque<ibv_async_event> events_;
    std::unordered_map<const void*, unsigned> taken_;  ///< by element
    bool closed_ = false;
    Descriptor epoll_;
    Descriptor queued_;
    Descriptor bell_;  ///< both ends of the pipe
};

/// What an event is about.
enum class Element { none, qp, cq, srq };
[[nodiscard]] Element element_of(ibv_event_type type) noexcept;

}  // namespace millrace::soft
