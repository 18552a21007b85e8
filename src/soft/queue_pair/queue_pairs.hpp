// The queue pairs of a process, and what is done to all of them: fencing regions, serving those
// that nobody polls, letting go of peers that are gone, the statistics page. Owned by the process.
// Called by whoever makes, polls or waits for them. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "millrace/base/statistics.hpp"
#include "process/process.hpp"
#include "system/counters.hpp"

namespace millrace::soft {

/// The one of this process, made by the first call; the fabric is MILLRACE_FABRIC, "default".
/// Another one, if that has changed meanwhile: what is open stays in the fabric it is in.
/// Throws `base::Error` if the fabric cannot be joined.
[[nodiscard]] std::shared_ptr<Process> current_process();

class QueuePairs {
  public:
    explicit QueuePairs(Process& process);
    ~QueuePairs();
    QueuePairs(const QueuePairs&) = delete;
    QueuePairs& operator=(const QueuePairs&) = delete;

    void add(QueuePair& qp);
    void remove(QueuePair& qp) noexcept;
    /// Keeps a destroyed queue pair whose connection a stopped executor has not left: fences of
    /// regions have to go on asking for it.
    void keep(std::unique_ptr<QueuePair> qp) noexcept;

    /// After a region or a window was invalidated: waits, at most a second, until no executor of
    /// any connection can still be copying from or to it. Executors elsewhere are left alone. Holds
    /// the mutex only while it looks. 0; EBUSY: one can (its connection is broken); ENOMEM. Then it
    /// is to be asked again.
    [[nodiscard]] int fence_region(std::uint32_t key, std::uint64_t registration) noexcept;

    /// In mode `strict`, before a region is invalidated: says which requests in flight name it.
    void tell_of_requests_with(std::uint32_t key) noexcept;

    /// Serves the queue pairs to which a peer has done something that their owner has to be told
    /// of, and those whose peer has died: for programs that wait for events and do not poll.
    void look_after() noexcept;

    /// What has to be done now and then by whoever polls: looks for deaths, publishes statistics,
    /// unmaps what peers no longer register. `now`: base::ticks(). Without the mutex.
    void tend(std::uint64_t now) noexcept {
        if (now - last_tending_.load(std::memory_order_relaxed) < tend_interval_) [[likely]]
            return;
        tend_now(now);
    }
    /// Gives back what was held of peers that were found to have gone since it was last done: for
    /// threads that wait for events, of which nobody may poll afterwards. Without locks. What
    /// another thread is busy with just now stays until the next poll or event.
    void let_go_of_the_dead() noexcept;
    /// Brings the statistics page up to date if that was not done for 100 ms (`now`:
    /// base::ticks()). Passes over it while another thread is busy with the queue pairs.
    void publish_by_clock(std::uint64_t now) noexcept {
        if (now - last_publication_.load(std::memory_order_relaxed) < publish_interval_) [[likely]]
            return;
        publish_now(now);
    }
    /// Before a wait of unknown length, in which nobody would look at the clock: at any time, but
    /// for at most a hundredth of it.
    void publish_before_sleep() noexcept;

  private:
    using Sums = std::array<std::uint64_t, count_kinds>;

    void tend_now(std::uint64_t now) noexcept;
    void publish_now(std::uint64_t now) noexcept;
    void collect(std::uint64_t now) noexcept;
    void retire_mappings(QueuePairsHeld held);
    void let_go_of_the_gone(QueuePairsHeld held, std::uint64_t now) noexcept;
    void publish_sums(QueuePairsHeld held) noexcept;
    static void add_to(Sums& sums, const QueuePair& qp) noexcept;

    Process& process_;
    std::atomic<std::uint64_t> last_tending_{0};
    std::uint64_t tend_interval_;  ///< how often it is looked whether any of the below is due
    std::atomic<std::uint64_t> last_collection_{0};
    std::uint64_t collect_interval_;
    std::atomic<std::uint64_t> deaths_let_go_{0};  ///< so many there had been then
    std::atomic<std::uint64_t> last_publication_{0};
    std::uint64_t publish_interval_;
    std::atomic<std::uint64_t> publication_cost_{0};  ///< ticks that the last one took
    std::unique_ptr<base::StatisticsPage> page_;
};

}  // namespace millrace::soft
