// Completion queues as queue pairs see them: which sub-rings there are, and that they have
// something. What the poller does with them: polling.hpp.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "completion/completion_source.hpp"
#include "completion/completion_turns.hpp"
#include "system/extendable.hpp"
#include "system/guarded.hpp"
#include "system/thread_lock.hpp"

namespace millrace::soft {

struct Context;
struct CompletionChannel;

/// What the lock of a completion queue guards.
struct CompletionTurn {
    CompletionTurns turns;
    bool limited = false;  ///< its queue pairs have more slots than it: it may be overrun
    bool overrun = false;  ///< it has been
    bool shaped = false;   ///< a source's queue pair sends over a shaped link
    bool wired = false;    ///< or has had its peer on the wire
    std::size_t next_source = 0;
    std::uint64_t service_interval = 0;  ///< ticks: how often an idle poller calls `service`
    std::uint32_t armed = armed_not;     ///< epoch and mode, as in the queue pairs' blocks
};

struct CompletionQueue : ExtendableCompletionQueue {
    CompletionQueue() noexcept : ExtendableCompletionQueue{} {}

    Guarded<CompletionTurn, ThreadLock> turn;
    /// A source flushes: the watches do not tell everything.
    std::atomic<bool> attention{false};
    std::atomic<bool> event_forced{false};  ///< flushed completions came while armed
    bool overrun_ignored = false;           ///< the program has promised that it will not be
    bool stamps = false;                    ///< whoever completes says when
    Context* owner = nullptr;
    CompletionChannel* soft_channel = nullptr;

    /// That of its channel; -1: it has none.
    [[nodiscard]] int bell() const noexcept;

    /// Brings the source into the turns. Takes the lock. `node`: this process's.
    void attach(CompletionSource& source, Node& node);
    void detach(CompletionSource& source) noexcept;
    /// From now on polls that find nothing look at the wire. Takes the lock.
    void look_at_wire() noexcept;

    /// `source` has another position, or flushes no longer.
    void moved(PollHeld held, const CompletionSource& source) noexcept {
        turn(held).turns.moved(source);
    }
    void look_for_flushing(PollHeld held) noexcept;

    /// Called when a queue pair in ERROR has got something to flush: an armed completion queue
    /// owes an event for it. Without the lock.
    void flushed() noexcept;

    /// When its size or its sources have changed.
    void look_whether_limited(PollHeld held) noexcept;
    /// Tells the executors of all queue pairs.
    void publish_armed(PollHeld held) const noexcept;

  private:
    void publish_armed(PollHeld held, const CompletionSource& source) const noexcept;
};

}  // namespace millrace::soft
