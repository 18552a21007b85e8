// What the soft device knows once per process and fabric: the node, the queue pairs that hold
// something of it, when liveness was last looked at, the statistics page. Used by the verbs
// objects of this folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "copy_service.hpp"
#include "counters.hpp"
#include "datagram_target.hpp"
#include "fabric.hpp"
#include "millrace/base/statistics.hpp"
#include "object_limit.hpp"
#include "windows.hpp"

namespace millrace::soft {

/// What ibv_query_device says of objects that no table of the node bounds.
inline constexpr int max_completion_queues = 65536;
inline constexpr int max_shared_receive_queues = static_cast<int>(queue_pairs_per_node);
inline constexpr int max_address_handles = 1 << 20;

struct QueuePair;
class AsynchronousEvents;
struct CompletionChannel;

class Process {
  public:
    /// The one of this process, made by the first call; the fabric is MILLRACE_FABRIC, "default".
    /// Another one, if that has changed meanwhile: what is open stays in the fabric it is in.
    /// Throws `base::Error` if the fabric cannot be joined.
    [[nodiscard]] static std::shared_ptr<Process> current();

    Process(std::shared_ptr<Node> node, std::string fabric);
    ~Process();

    [[nodiscard]] Node& node() noexcept { return *node_; }
    [[nodiscard]] std::uint32_t new_pd() noexcept {
        return next_pd_.fetch_add(1, std::memory_order_relaxed);
    }

    void add(QueuePair& qp);
    void remove(QueuePair& qp) noexcept;
    /// Keeps a destroyed queue pair whose connection a stopped executor has not left: fences of
    /// regions have to go on asking for it.
    void keep(std::unique_ptr<QueuePair> qp) noexcept;
    /// Held while a queue pair changes what it is connected to.
    [[nodiscard]] std::mutex& queue_pairs_mutex() noexcept { return mutex_; }

    /// A number for a region about to be registered; see `fence_region`.
    [[nodiscard]] std::uint64_t next_registration() noexcept {
        return registrations_.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    [[nodiscard]] std::uint64_t registrations() const noexcept {
        return registrations_.load(std::memory_order_relaxed);
    }
    /// After a region or a window was invalidated: waits, at most a second, until no executor of
    /// any connection can still be copying from or to it. False: one can (its connection is
    /// broken). Executors elsewhere are left alone. Holds the mutex only while it looks.
    [[nodiscard]] bool fence_region(std::uint32_t key, std::uint64_t registration);

    /// In mode `strict`, before a region is invalidated: says which requests in flight name it.
    void tell_of_requests_with(std::uint32_t key) noexcept;

    /// Looks for peers that have gone if that was not done for 50 ms (`now`: base::ticks()).
    void look_for_deaths(std::uint64_t now) noexcept {
        std::uint64_t last = last_look_.load(std::memory_order_relaxed);
        if (now - last < look_interval_) [[likely]]
            return;
        look_now(now);
    }
    void look_now(std::uint64_t now) noexcept;
    /// Serves the queue pairs to which a peer has done something that their owner has to be told
    /// of, and those whose peer has died: for programs that wait for events and do not poll.
    void look_after_queue_pairs() noexcept;

    /// The contexts' events and the completion channels: all are rung when a peer has died,
    /// because only one of them hears of it from the kernel.
    void add(AsynchronousEvents& events);
    void remove(AsynchronousEvents& events) noexcept;
    void add(CompletionChannel& channel);
    void remove(CompletionChannel& channel) noexcept;
    /// While it is held, nobody rings them for a death.
    [[nodiscard]] std::unique_lock<std::mutex> hold_events() {
        return std::unique_lock{events_mutex_};
    }

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
    void let_go_of_the_dead() noexcept {
        if (deaths() == deaths_let_go_.load(std::memory_order_relaxed)) [[likely]]
            return;
        collect(base::ticks());
    }
    /// How often peers were found to have gone, together or alone.
    [[nodiscard]] std::uint64_t deaths() const noexcept {
        return deaths_.load(std::memory_order_acquire);
    }

    [[nodiscard]] CopyService& copies() noexcept { return copies_; }
    [[nodiscard]] Windows& windows() noexcept { return windows_; }
    [[nodiscard]] DatagramTargets& datagram_targets() noexcept { return datagram_targets_; }

    [[nodiscard]] ObjectLimit& completion_queues() noexcept { return completion_queues_; }
    [[nodiscard]] ObjectLimit& shared_receive_queues() noexcept { return shared_receive_queues_; }
    [[nodiscard]] ObjectLimit& address_handles() noexcept { return address_handles_; }

    Counters& counters() noexcept { return counters_; }
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
    void tend_now(std::uint64_t now) noexcept;
    void publish_now(std::uint64_t now) noexcept;
    void collect(std::uint64_t now) noexcept;
    void retire_mappings();
    void let_go_of_the_gone(std::uint64_t now) noexcept;
    /// With the mutex held.
    void publish_sums() noexcept;

    std::shared_ptr<Node> node_;
    const std::string fabric_;
    CopyService copies_{*node_};
    std::mutex mutex_;
    std::vector<QueuePair*> queue_pairs_;
    std::vector<std::unique_ptr<QueuePair>> kept_;
    DatagramTargets datagram_targets_;
    std::mutex events_mutex_;  ///< a leaf, but for the events' own
    std::vector<AsynchronousEvents*> events_;
    std::vector<CompletionChannel*> channels_;
    Windows windows_;
    ObjectLimit completion_queues_{max_completion_queues};
    ObjectLimit shared_receive_queues_{max_shared_receive_queues};
    ObjectLimit address_handles_{max_address_handles};
    std::atomic<std::uint32_t> next_pd_{1};
    std::atomic<std::uint64_t> registrations_{0};
    std::atomic<std::uint64_t> deaths_{0};
    std::atomic<std::uint64_t> last_tending_{0};
    std::uint64_t tend_interval_;  ///< how often it is looked whether any of the below is due
    std::atomic<std::uint64_t> last_look_{0};
    std::uint64_t look_interval_;
    std::atomic<std::uint64_t> last_collection_{0};
    std::uint64_t last_letting_go_ = 0;            ///< with the mutex
    std::atomic<std::uint64_t> deaths_let_go_{0};  ///< so many there had been then; with the mutex
    std::vector<std::shared_ptr<void>> retired_mappings_;  ///< executors may still know them
    std::atomic<std::uint64_t> last_publication_{0};
    std::uint64_t publish_interval_;
    std::atomic<std::uint64_t> publication_cost_{0};  ///< ticks that the last one took
    Counters counters_;  ///< of queue pairs that are gone, and what belongs to none
    std::array<std::uint64_t, count_kinds> retired_{};
    std::unique_ptr<base::StatisticsPage> page_;
};

}  // namespace millrace::soft
