// A crowd of callers of one service, and how long their calls take: threads of this process or
// processes of their own, which begin together; or one thread that drives many connections. They
// call in a closed loop, each again as soon as it has its answer, or in an open one, where calls
// are due at times of a rate (pace.hpp). Called by what loads a server: `millrace kv bench`, and
// the measurements.
//
//     const CrowdFigures figures = run_crowd({.members = 64}, [&](CrowdMember& me) {
//         Client client = connect(…);               // what comes before begin() does not count
//         call_in_turn(me, {.duration = 300ms}, [&] { client.call(…); });
//     });
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/yielding.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/base/wait.hpp"
#include "pace.hpp"

namespace millrace::workload {

struct CrowdOptions {
    std::size_t members = 1;
    enum class Kind : std::uint8_t {
        threads,
        processes,  ///< made by fork: each makes what it needs by itself
    } kind = Kind::threads;
    /// Processes that are not done by then are killed.
    std::chrono::seconds patience{60};
};

/// What a crowd has done.
struct CrowdFigures {
    double seconds = 0;                     ///< from when they began to the end of the last
    std::vector<std::uint64_t> per_member;  ///< calls that count
    std::unique_ptr<base::Histogram> ns = std::make_unique<base::Histogram>();  ///< of these

    [[nodiscard]] std::uint64_t calls() const noexcept { return ns->count(); }
    /// Calls of the member that had the fewest, to the mean. Of nobody: 0.
    [[nodiscard]] double least_to_mean() const noexcept;
};

/// Calls of the one that had the fewest, to the mean of all. 0, if there were none.
[[nodiscard]] double least_to_mean(std::span<const std::uint64_t> calls) noexcept;

namespace detail {
struct CrowdSeat;
struct CrowdControl;
}  // namespace detail

/// One of a crowd. Its thread alone.
class CrowdMember {
  public:
    CrowdMember(std::size_t number, detail::CrowdSeat& seat, detail::CrowdControl& control) noexcept
        : number_{number}, seat_{&seat}, control_{&control} {}
    [[nodiscard]] std::size_t number() const noexcept { return number_; }  ///< from 0 on

    /// Waits until all members have come so far. All get the same time, which is now. Once, by each
    /// of them. Throws Error if another one has failed before, which run_crowd does not tell of.
    [[nodiscard]] base::Clock::time_point begin();
    /// A call has its answer that began, or was due, at `since`, in ticks.
    void record(std::uint64_t since) noexcept;

  private:
    std::size_t number_;
    detail::CrowdSeat* seat_;
    detail::CrowdControl* control_;
    double ns_per_tick_ = 1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
};

/// Runs `member` for each, and returns when all have returned. What the first of them threw is
/// thrown on; of a process: an Error (system) with its text. `timed_out`, `peer_lost`: a process
/// was killed because of its patience, or has died.
CrowdFigures run_crowd(const CrowdOptions& options,
                       const std::function<void(CrowdMember&)>& member);

/// What a member does.
struct CrowdLoad {
    std::chrono::nanoseconds warm_up{0};  ///< what is answered within it does not count
    std::chrono::nanoseconds duration = std::chrono::milliseconds{250};  ///< after that
    /// Of this member, which makes what is due within the duration, however late. 0: a closed loop.
    double offered_per_second = 0;
};

/// Begins, and makes one call after the other: `call()` returns when it is answered. Behind each
/// that counts, `record(since)` is called: it began, or was due, then.
template <class Call, class Record>
void call_in_turn(CrowdMember& me, const CrowdLoad& load, Call&& call, Record&& record) {
    const auto begin = me.begin() + load.warm_up;
    const auto end = begin + load.duration;
    if (load.offered_per_second == 0) {
        for (;;) {
            const std::uint64_t since = base::ticks();
            call();
            const auto now = base::Clock::now();
            if (now >= end) return;
            if (now >= begin) record(since);
        }
    }
    end_sleeps_at_once();
    Pace pace{load.offered_per_second, static_cast<std::uint32_t>(me.number() + 1),
              begin - load.warm_up};
    for (; pace.due() < end; pace.next()) {
        if (!pace.is_due()) pace.sleep();
        const std::uint64_t since = pace.due_ticks();
        call();
        if (pace.due() >= begin) record(since);
    }
}
template <class Call>
void call_in_turn(CrowdMember& me, const CrowdLoad& load, Call&& call) {
    call_in_turn(me, load, call, [&me](std::uint64_t since) { me.record(since); });
}

// Where several calls of a caller may be on their way. A caller has
//     bool send(std::uint64_t since)               makes a call, which began or was due then;
//     false:
//                                                  there is no room until one that is on its way
//                                                  has its answer
//     bool poll()                                  takes an answer that is there
//     bool take(const base::Deadline& deadline)    waits for one; false: there is none by then
//     void await()                                 the same, and throws if there is none
//     std::size_t outstanding() const              calls without an answer

/// A closed loop: as many calls as may be `outstanding` at a time, until `is_over(sent)`, which is
/// asked before each, and all are answered. How many.
template <class Caller, class IsOver>
std::uint64_t keep_calling(Caller& caller, std::size_t outstanding, IsOver&& is_over) {
    std::uint64_t sent = 0;
    while (!is_over(sent)) {
        if (caller.outstanding() < outstanding && caller.send(base::ticks())) {
            ++sent;
        } else {
            caller.await();
        }
    }
    while (caller.outstanding() != 0) caller.await();
    return sent;
}

/// An open loop: each call when it is due, or as soon after that as there is room and fewer than
/// `outstanding` are on their way; those due until `end`. How many.
template <class Caller>
std::uint64_t call_when_due(Caller& caller, std::size_t outstanding, Pace pace,
                            base::Clock::time_point end) {
    end_sleeps_at_once();
    std::uint64_t sent = 0;
    while (pace.due() < end || caller.outstanding() != 0) {
        const bool has_place = pace.due() < end && caller.outstanding() < outstanding;
        if (has_place && !pace.is_due()) {
            if (caller.outstanding() == 0) {
                pace.sleep();
            } else {
                (void)caller.take(base::Deadline::at(pace.due()));
            }
        } else if (has_place && caller.send(pace.due_ticks())) {
            ++sent;
            pace.next();
        } else {
            caller.await();
        }
    }
    return sent;
}

// One thread for the calls of many callers: it looks for their answers all the while, offers its
// processor where there has been none for a moment, and sleeps only where there has been none for
// long, in await(), which then says why.

namespace detail {

/// Looks at all callers that found nothing, one after the other.
class VainLaps {
  public:
    void note(bool found) noexcept {
        if (found) {
            count_ = 0;
            return;
        }
        const std::uint64_t now = base::ticks();
        if (count_++ == 0) {
            yielding_.begin(now, base::ticks_in(base::WaitPolicy{}.spin));
        } else if (yielding_.due(now)) {
            yielding_.offer();
        }
    }
    /// There were so many that something is wrong. Counts anew from here on.
    [[nodiscard]] bool are_many() noexcept {
        if (count_ < many) return false;
        count_ = 0;
        return true;
    }

  private:
    static constexpr std::uint32_t many = 1U << 20;
    std::uint32_t count_ = 0;
    base::Yielding yielding_{base::yields_of_process()};
};

/// Takes the answers that are there. True: some calls are still without one.
template <class Caller>
bool poll_all(std::span<Caller* const> callers, VainLaps& vain_laps) {
    bool has_some = false;
    Caller* waiting = nullptr;
    for (Caller* const caller : callers) {
        while (caller->poll()) has_some = true;
        if (caller->outstanding() != 0) waiting = caller;
    }
    vain_laps.note(has_some);
    if (waiting != nullptr && vain_laps.are_many()) waiting->await();
    return waiting != nullptr;
}

}  // namespace detail

/// A closed loop of all callers: as keep_calling(). `outstanding`: of each.
template <class Caller, class IsOver>
std::uint64_t drive(std::span<Caller* const> callers, std::size_t outstanding, IsOver&& is_over) {
    std::uint64_t sent = 0;
    detail::VainLaps vain_laps;
    bool over = false;
    do {
        for (Caller* const caller : callers) {
            while (!over && caller->outstanding() < outstanding) {
                over = is_over(sent);
                if (over || !caller->send(base::ticks())) break;
                ++sent;
            }
        }
    } while (detail::poll_all(callers, vain_laps) || !over);
    return sent;
}

/// An open loop of all callers: as call_when_due(), each call by the next one that has room.
template <class Caller>
std::uint64_t drive_when_due(std::span<Caller* const> callers, std::size_t outstanding, Pace pace,
                             base::Clock::time_point end) {
    std::uint64_t sent = 0;
    detail::VainLaps vain_laps;
    std::size_t next = 0;
    const auto send_by_next = [&](std::uint64_t since) {
        for (std::size_t i = 0; i != callers.size(); ++i) {
            Caller& caller = *callers[next];
            next = next + 1 == callers.size() ? 0 : next + 1;
            if (caller.outstanding() < outstanding && caller.send(since)) return true;
        }
        return false;
    };
    do {
        while (pace.due() < end && pace.is_due() && send_by_next(pace.due_ticks())) {
            ++sent;
            pace.next();
        }
    } while (detail::poll_all(callers, vain_laps) || pace.due() < end);
    return sent;
}

}  // namespace millrace::workload
