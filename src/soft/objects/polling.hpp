// The poller's side of a completion queue: takes turns over the completion sub-rings of the queue
// pairs attached to it, looks after these, and knows when an event is due. docs/soft/completion.md.
// Called through ibv_context_ops (poll_cq, req_notify_cq) and by who waits for events.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "completion/completion_queue.hpp"
#include "millrace/base/detail/yielding.hpp"
#include "system/guarded.hpp"
#include "system/object_limit.hpp"
#include "system/thread_lock.hpp"

namespace millrace::soft {

/// The completion that ibv_cq_ex's functions read.
struct ReadCompletion {
    ibv_wc current{};
    std::uint64_t clock = 0;      ///< nanoseconds of the device's clock, when it was written
    std::uint64_t wallclock = 0;  ///< nanoseconds since 1970, likewise
};

struct ExtendedPoll {
    const bool single_threaded;
    const bool with_wallclock;
    Guarded<ReadCompletion, ThreadLock> turn{};  ///< from start_poll to end_poll
};

/// Fewer events of a completion queue (ibv_modify_cq): one is put off until so many completions are
/// there, or so much time has passed since it was first found to be due. Its owner does that, when
/// an event is asked for; who completes rings the bell as ever.
struct Moderation {
    std::uint32_t count = 0;      ///< completions per event; below 2: no moderation
    std::int64_t period = 0;      ///< ns that an event may be put off; 0: no moderation
    std::int64_t put_off_at = 0;  ///< as `cable_now`: when an event was first put off, 0: none is

    [[nodiscard]] bool on() const noexcept { return count > 1 && period != 0; }
};

/// Who makes the fence between a completion and the look at the armed word. A queue that is armed
/// seldom makes it for everybody, with membarrier, when it arms: completing costs nothing. One that
/// is armed again and again says so in the armed word (`armed_fenced`): once that was published
/// with membarrier, whoever completes sees it, and makes a full fence before the look that counts;
/// the one who arms needs no more than its own. Until the word loses that bit again.
struct ArmingCost {
    /// So many completions' fences cost about as much as one membarrier.
    static constexpr std::uint32_t few = 64;
    /// Looks at the clock, one in 64 polls that find something, without an arming between them.
    static constexpr std::uint32_t long_ago = 4;

    std::uint32_t passed = few;  ///< completions from arming to arming, lately; at most `few`
    std::uint32_t looks = 0;     ///< since the last arming
};

/// What the lock guards besides.
struct PollerState {
    explicit PollerState(base::Yields how) noexcept : yielding{how} {}

    int remaining = 0;               ///< after an overrun: so many more can be taken
    bool empty_before = false;       ///< the last poll found nothing
    std::uint32_t full_polls = 0;    ///< polls that found something
    std::uint64_t last_service = 0;  ///< ticks
    base::Yielding yielding;
    Moderation moderation;
    ArmingCost arming;
};

struct PolledQueue : CompletionQueue {
    explicit PolledQueue(base::Yields how) noexcept : poller_{how} {}

    std::uint64_t yield_after = 0;  ///< ticks: how long an idle poller keeps the processor
    std::atomic<unsigned> events_delivered{0};
    ObjectLimit::Place place;
    std::unique_ptr<ExtendedPoll> extended_poll;  ///< of an ibv_cq_ex

    [[nodiscard]] PollerState& poller(PollHeld) noexcept { return poller_; }
    [[nodiscard]] const PollerState& poller(PollHeld) const noexcept { return poller_; }

    /// What can be taken now.
    [[nodiscard]] int take(PollHeld held, int count, ibv_wc* wc) noexcept;
    /// The same if it is `limited`; negative: it is in error, and has nothing more to give.
    [[nodiscard]] int take_limited(PollHeld held, int count, ibv_wc* wc) noexcept;
    [[nodiscard]] bool take_one(PollHeld held, CompletionSource& source, ibv_wc& wc) noexcept;

    /// Is an event due?
    [[nodiscard]] bool event_due(PollHeld held) const noexcept;
    /// Are there requests to be flushed, whose completions are made when they are polled?
    [[nodiscard]] bool has_to_flush(PollHeld held) const noexcept;
    /// Is an event due, and not put off? Then it disarms.
    [[nodiscard]] bool take_event(PollHeld held) noexcept;
    /// Begins another epoch of `mode`. What is polled behind it, or whoever completes sees it.
    void arm(PollHeld held, std::uint32_t mode) noexcept;
    /// Now and then, by a poller that always finds something.
    void look_whether_armed_seldom(PollHeld held) noexcept {
        if ((turn(held).armed & armed_fenced) != 0 &&
            ++poller_.arming.looks == ArmingCost::long_ago) {
            arm_seldom(held);
        }
    }
    /// Is something in flight that is due in a moment?
    [[nodiscard]] bool due_soon(PollHeld held) const noexcept;
    /// Looks after the queue pairs (faults, deaths, timers, pending work).
    void service(PollHeld held) noexcept;
    /// At `now`, long after the last time: all that has to be done now and then by whoever polls.
    /// Of many queue pairs only a few at a time, and only those that a look without locks finds to
    /// need it. False: none, so there is nothing new to take.
    [[nodiscard]] bool look_around(PollHeld held, std::uint64_t now) noexcept;

  private:
    /// How many completions there are that the event would be for, at most `most`.
    [[nodiscard]] std::uint32_t count_due(PollHeld held, std::uint32_t most) const noexcept;
    /// An event being due: is it to come later? The channel's descriptor becomes readable then.
    [[nodiscard]] bool put_off(PollHeld held) noexcept;
    void fail_by_overrun(PollHeld held, std::uint64_t waiting) noexcept;
    void arm_seldom(PollHeld held) noexcept;

    PollerState poller_;
};

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) noexcept;
/// As poll_cq for one completion, and when it was written, as `cable_now`: by the clock of whoever
/// wrote it, and never later than now. An error is made by the poll that finds it.
int poll_with_stamp(PolledQueue& cq, ibv_wc& wc, std::uint64_t& stamp) noexcept;
int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept;
/// EINVAL: it asks for something else than moderation.
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attributes) noexcept;

}  // namespace millrace::soft
