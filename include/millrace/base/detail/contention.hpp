// Who has the processors that this process's threads offer while they wait (yielding.hpp): nobody
// else, as nobody needs them; its own threads, which are a crowd then; or other programs, which
// compute on a busy machine. A wait goes on otherwise in each case (wait.hpp).
//
// A crowd. Where a process has more threads that wait than processors, who offers its own has it
// back when the others have had it, a millisecond later with some 30 of them. That is no time that
// it has waited in vain: a thread that sleeps then, as it was not its turn, costs both ends system
// calls. And who spins for 20 us keeps from running what it waits for. An offer alone does not show
// who took it, but the processor time that the process gets does: where its threads have all
// processors that they may use, or all but one, on which a peer may run, and several of them come
// back from offers, they take them from each other.
//
// A busy machine. A program that computes keeps a processor that it is offered for its whole slice,
// some milliseconds, while a thread that sleeps is woken at once. An offer comes back late where
// that is so: nobody of this process was seen on that processor for a millisecond. But its own
// threads may keep processors for as long, as they are served all the while. So a late offer is a
// suspicion, and if there are more within a window of time in which the process is no crowd,
// nothing is offered for a while: waits look for a moment, and sleep.
// How many threads of all programs could run says when that is over, now and then, at no offer's
// price. Where it says nothing of our processors (a cpuset of which others know nothing), an offer
// is tried all the same, at a distance that grows while it is in vain.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"

namespace millrace::base {

/// Of a process, up to now.
struct ProcessorUse {
    std::chrono::nanoseconds time{0};  ///< on a clock
    std::chrono::nanoseconds used{0};  ///< processor time of all threads
    unsigned processors = 1;           ///< that they may run on
};
/// Of this process: some system calls.
[[nodiscard]] ProcessorUse processor_use() noexcept;

/// Threads of all programs that run or could, against the processors of this machine.
enum class Demand : std::uint8_t {
    is_met,
    exceeds,  ///< some have to wait for others
    unknown,
};
/// Right now: some system calls.
[[nodiscard]] Demand processor_demand() noexcept;

/// Who took a processor that was offered.
enum class Taken : std::uint8_t {
    not_at_all,
    by_crowd,
    by_others,  ///< for all that is known
};

/// All functions from any thread.
class Contention {
  public:
    /// What a wait in a crowd spins for at most. A peer that runs answers within it.
    static constexpr std::chrono::nanoseconds spin = std::chrono::microseconds{3};
    /// What an offer counts for that a crowd took: two switches and the cache lines they cost.
    static constexpr std::chrono::nanoseconds offer_costs = std::chrono::microseconds{4};

    /// The use of processors is asked for once in this time, in which programs that compute have
    /// had turns of theirs, and what it said holds for …
    static constexpr std::chrono::nanoseconds window = std::chrono::milliseconds{8};
    static constexpr std::chrono::nanoseconds holds = std::chrono::milliseconds{24};

    /// A program that computes keeps a processor for longer; threads of one process seldom do.
    static constexpr std::chrono::nanoseconds late = std::chrono::milliseconds{1};
    /// For so long nothing is offered after a late offer. If the next one is late as well, within
    /// `soon`, for twice as long, up to the longest.
    static constexpr std::chrono::nanoseconds shortest_rest = std::chrono::milliseconds{8};
    static constexpr std::chrono::nanoseconds longest_rest = std::chrono::seconds{4};
    static constexpr std::chrono::nanoseconds soon = std::chrono::milliseconds{64};
    /// While demand exceeds the processors, so many of these rests until an offer is tried.
    static constexpr std::uint64_t rests_to_trial = 64;
    static constexpr std::chrono::nanoseconds longest_to_trial = std::chrono::seconds{8};

    explicit constexpr Contention(ProcessorUse (*use)() noexcept = processor_use,
                                  Demand (*demand)() noexcept = processor_demand) noexcept
        : use_{use}, demand_{demand} {}

    /// A thread, null: the calling one, came back at `now` from an offer that was taken `away`
    /// ticks ago, on a processor; negative: that on which it runs.
    Taken came_back(std::uint64_t now, std::uint64_t away, const void* thread = nullptr,
                    int processor = -1) noexcept;
    /// The threads of this process were a crowd a short time ago.
    [[nodiscard]] bool is_crowd(std::uint64_t now) const noexcept {
        return is_before(now, crowd_until_.load(relaxed));
    }
    /// Other programs compute, as far as is known: who can sleep should, and nobody should offer.
    [[nodiscard]] bool is_busy(std::uint64_t now, const void* thread = nullptr) noexcept {
        const std::uint64_t until = busy_until_.load(relaxed);
        if (until == 0) [[likely]]
            return false;
        return is_before(now, until) || is_still_busy(now, until, thread);
    }

  private:
    static constexpr std::memory_order relaxed = std::memory_order_relaxed;
    [[nodiscard]] static bool is_before(std::uint64_t now, std::uint64_t end) noexcept {
        return static_cast<std::int64_t>(end - now) > 0;
    }
    void note_thread(std::uint64_t now, const void* thread) noexcept;
    void look_for_crowd(std::uint64_t now, const void* thread) noexcept;
    void compare(std::uint64_t now) noexcept;
    void begin_comparison(std::uint64_t now) noexcept;
    bool was_late(std::uint64_t now, std::uint64_t away, int processor) noexcept;
    void came_late(std::uint64_t now) noexcept;
    bool is_still_busy(std::uint64_t now, std::uint64_t until, const void* thread) noexcept;

    ProcessorUse (*use_)() noexcept;
    Demand (*demand_)() noexcept;
    // In ticks. Read by each wait that is not over at once.
    alignas(64) std::atomic<std::uint64_t> crowd_until_{0};
    std::atomic<std::uint64_t> busy_until_{0};  ///< 0: it is not
    // What a crowd is known by. One thread at a time writes it, unless it is kept from running for
    // a window meanwhile; then one comparison is wrong, and the next one is not.
    alignas(64) std::atomic<const void*> last_{nullptr};
    std::atomic<std::uint64_t> several_until_{0};
    std::atomic<std::uint64_t> due_{0};
    std::atomic<std::int64_t> time_{0};
    std::atomic<std::int64_t> used_{0};
    std::atomic<std::uint64_t> compared_{0};
    // What is known of other programs. Two that write it at once agree nearly.
    std::atomic<std::uint64_t> suspected_{0};
    std::atomic<std::uint64_t> rest_{0};
    std::atomic<std::uint64_t> trial_at_{0};
    std::atomic<std::uint64_t> offers_since_{0};  ///< 0: no rest was over yet
    /// By processor, as many as there are places: when a thread of ours came back there last.
    std::array<std::atomic<std::uint64_t>, 64> seen_{};
};

/// Of this process.
inline constinit Contention contention_of_process{};

/// Of one thread, on a busy machine: whether its waits spin before they sleep. They do while that
/// finds what they wait for; a peer on the same processor cannot answer meanwhile. Now and then one
/// tries.
class SpinHabit {
  public:
    static constexpr std::uint32_t first_trial = 16;
    static constexpr std::uint32_t last_trial = 256;
    /// Whether the wait that begins now is to spin. Then note() is to follow.
    [[nodiscard]] bool spins() noexcept {
        if (vain_ < patience || ++waits_ >= trial_at_) {
            waits_ = 0;
            return true;
        }
        return false;
    }
    void note(bool found) noexcept {
        if (found) {
            vain_ = 0;
            trial_at_ = first_trial;
        } else if (vain_ < patience) {
            ++vain_;
        } else {
            trial_at_ = 2 * trial_at_ < last_trial ? 2 * trial_at_ : last_trial;
        }
    }

  private:
    static constexpr std::uint32_t patience = 2;  ///< spins in vain in a row

    std::uint32_t vain_ = 0;
    std::uint32_t waits_ = 0;
    std::uint32_t trial_at_ = first_trial;
};

/// Of one thread: its waits that ended after an offer that was taken. Times are in ticks.
class ServedBehindOffers {
  public:
    static constexpr std::chrono::nanoseconds between_moves = std::chrono::milliseconds{100};
    /// One that began at `start` ended at `end`. True: so did the one before it, and nothing came
    /// in between, so what is waited for seems to run on the same processor; and it has not been
    /// true for a while: the scheduler moves threads back to a processor that seems to have few.
    [[nodiscard]] bool note(std::uint64_t start, std::uint64_t end) noexcept;

  private:
    std::uint64_t last_end_ = 0;
    std::uint64_t moved_ = 0;
    unsigned in_a_row_ = 0;
};

namespace detail {
inline thread_local constinit SpinHabit spin_habit{};

/// Notes such a wait of the calling thread, and moves it to another one of its processors if it
/// shares this one with what it waits for.
void came_behind_offer(std::uint64_t start, std::uint64_t end) noexcept;
}  // namespace detail

}  // namespace millrace::base
