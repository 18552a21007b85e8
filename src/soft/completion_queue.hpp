// Completion queues: takes turns over the completion sub-rings of the queue pairs attached to it.
// The poller's side of docs/soft-device.md, "Completion queues". Called through
// ibv_context_ops (poll_cq, req_notify_cq), by queue pairs, and by the completion channel.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "block_layout.hpp"
#include "completion_turns.hpp"
#include "extended_completion_queue.hpp"
#include "millrace/base/yielding.hpp"
#include "moderation.hpp"
#include "object_limit.hpp"
#include "spin_lock.hpp"
#include "thread_lock.hpp"

namespace millrace::soft {

struct Context;
struct QueuePair;
struct CompletionChannel;
class ReceivePool;

inline constexpr std::size_t not_current = ~std::size_t{0};

/// One sub-ring as its poller sees it. Lives in the queue pair; guarded by the lock of the
/// completion queue that it is attached to, except the atomics.
struct CompletionSource {
    CompletionEntry* ring = nullptr;
    std::uint32_t mask = 0;
    bool send = false;
    QueuePair* qp = nullptr;
    /// Of a UD queue pair: `ring` is filled from it, by whoever polls.
    ReceivePool* collects_from = nullptr;
    std::atomic<std::uint32_t> position{first_position};  ///< next to be polled
    /// The queue pair is in ERROR and settled: entries from `limit` on are not looked at, what
    /// remains is flushed.
    std::atomic<bool> flushing{false};
    std::atomic<std::uint32_t> limit{0};
    std::size_t index = not_current;  ///< among those that the poller looks at
    std::uint32_t quiet_since =
        0;  ///< position when the poller last asked itself whether it has to
    NewsPlace place;
    std::atomic<std::uint64_t> polled{0};  ///< completions taken, for the statistics page
    std::atomic<std::uint64_t> errors{0};  ///< of which flushed or failed
    std::uint32_t arm_position = 0;        ///< first entry that had not been there at arming
    std::uint64_t arrival_stamp = 0;       ///< of the datagram taken last; 0: none

    [[nodiscard]] const CompletionEntry& entry(std::uint32_t at) const noexcept {
        return ring[at & mask];
    }
    [[nodiscard]] bool holds(std::uint32_t at) const noexcept {
        return entry(at).sequence.load(std::memory_order_acquire) == sequence_of(at);
    }
};

struct CompletionQueue : ExtendableCompletionQueue {
    explicit CompletionQueue(base::Yields how) noexcept
        : ExtendableCompletionQueue{}, yielding{how} {}

    ThreadLock lock;
    CompletionTurns turns;
    /// A source flushes: the watches do not tell everything.
    std::atomic<bool> attention{false};
    bool limited = false;          ///< its queue pairs have more slots than it: it may be overrun
    bool overrun = false;          ///< it has been; only `remaining` more can be taken
    bool overrun_ignored = false;  ///< the program has promised that it will not be
    bool stamps = false;           ///< whoever completes says when
    int remaining = 0;
    bool shaped = false;  ///< a source's queue pair sends over a shaped link
    std::size_t next_source = 0;
    bool empty_before = false;           ///< the last poll found nothing
    std::uint32_t full_polls = 0;        ///< polls that found something
    std::uint64_t last_service = 0;      ///< ticks
    std::uint64_t service_interval = 0;  ///< ticks: how often an idle poller calls `service`
    std::uint64_t yield_after = 0;       ///< ticks: how long an idle poller keeps the processor
    base::Yielding yielding;
    std::uint32_t armed = armed_not;        ///< epoch and mode, as in the queue pairs' blocks
    std::atomic<bool> event_forced{false};  ///< flushed completions came while armed
    std::atomic<unsigned> events_delivered{0};
    Context* owner = nullptr;
    ObjectLimit::Place place;
    CompletionChannel* soft_channel = nullptr;
    /// That of its channel; -1: it has none.
    [[nodiscard]] int bell() const noexcept;
    std::unique_ptr<ExtendedPoll> extended_poll;  ///< of an ibv_cq_ex
    Moderation moderation;

    /// Brings the source into the turns. Takes the lock.
    void attach(CompletionSource& source);
    void detach(CompletionSource& source) noexcept;

    /// With the lock held: `source` has another position, or flushes no longer.
    void moved(const CompletionSource& source) noexcept { turns.moved(source); }
    void look_for_flushing() noexcept;

    /// Called when a queue pair in ERROR has got something to flush: an armed completion queue
    /// owes an event for it. Without the lock.
    void flushed() noexcept;

    /// With the lock held: what can be taken now.
    [[nodiscard]] int take(int count, ibv_wc* wc) noexcept;
    /// The same if it is `limited`; negative: it is in error, and has nothing more to give.
    [[nodiscard]] int take_limited(int count, ibv_wc* wc) noexcept;
    /// With the lock held, when its size or its sources have changed.
    void look_whether_limited() noexcept;
    [[nodiscard]] bool take_one(CompletionSource& source, ibv_wc& wc) noexcept;

    /// With the lock held: is an event due?
    [[nodiscard]] bool event_due() const noexcept;
    /// With the lock held: how many completions there are that the event would be for, at most
    /// `most`.
    [[nodiscard]] std::uint32_t count_due(std::uint32_t most) const noexcept;
    /// With the lock held, an event being due: is it to come later (moderation.hpp)? The channel's
    /// descriptor becomes readable then.
    [[nodiscard]] bool put_off() noexcept;
    /// With the lock held: is it armed, and is something to be polled that it would tell of if it
    /// came now? No event is due for what was there before the arming.
    [[nodiscard]] bool unpolled_due() const noexcept;
    /// With the lock held: is an event due, and not put off? Then it disarms.
    [[nodiscard]] bool take_event() noexcept;
    /// With the lock held: is something in flight that is due in a moment?
    [[nodiscard]] bool due_soon() const noexcept;
    /// With the lock held: looks after the queue pairs (faults, deaths, timers, pending work).
    void service() noexcept;
    /// The same, of many queue pairs only a few at a time, and only those that a look without
    /// locks finds to need it. False: none, so there is nothing new to take.
    [[nodiscard]] bool service_some() noexcept;
    /// With the lock held, at `now`, long after the last time: all that has to be done now and then
    /// by whoever polls. As `service_some`.
    [[nodiscard]] bool look_around(std::uint64_t now) noexcept;

    /// With the lock held: tells the executors of all queue pairs.
    void publish_armed() const noexcept;

  private:
    void publish_armed(const CompletionSource& source) const noexcept;
    void fail_by_overrun(std::uint64_t waiting) noexcept;
};

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) noexcept;
/// As poll_cq for one completion, and when it was written, as `cable_now`: by the clock of whoever
/// wrote it, and never later than now. An error is made by the poll that finds it.
int poll_with_stamp(CompletionQueue& cq, ibv_wc& wc, std::uint64_t& stamp) noexcept;
int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept;

}  // namespace millrace::soft
