// What the soft device knows once per process and fabric: the node, when liveness was last looked
// at, how many objects there are; and where what is done to all of its queue pairs is to be found
// (queue_pairs.hpp). Used by the verbs objects of this folder.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "fabric/fabric.hpp"
#include "process/windows.hpp"
#include "system/counters.hpp"
#include "system/guarded.hpp"
#include "system/object_limit.hpp"

namespace millrace::soft {

/// What ibv_query_device says of objects that no table of the node bounds.
inline constexpr int max_completion_queues = 65536;
inline constexpr int max_shared_receive_queues = static_cast<int>(queue_pairs_per_node);
inline constexpr int max_address_handles = 1 << 20;

class AsynchronousEvents;
struct CompletionChannel;
class CopyService;
class DatagramTargets;
class QueuePairs;
struct QueuePair;
class WirePort;

/// The queue pairs, for QueuePairs. Their lock is also held while one changes what it is connected
/// to.
struct ListedQueuePairs {
    std::vector<QueuePair*> all;
    std::vector<QueuePair*> kept;  ///< destroyed, but a stopped executor is in them
    std::vector<std::shared_ptr<void>> retired_mappings;  ///< executors may still know them
    std::array<std::uint64_t, count_kinds> retired{};     ///< counts of those that are gone
    std::uint64_t last_letting_go = 0;
};
using QueuePairsHeld = Held<ListedQueuePairs>;

class Process {
  public:
    Process(std::shared_ptr<Node> node, std::string fabric);

    [[nodiscard]] Node& node() noexcept { return *node_; }
    [[nodiscard]] const std::string& fabric() const noexcept { return fabric_; }
    [[nodiscard]] std::uint32_t new_pd() noexcept {
        return next_pd_.fetch_add(1, std::memory_order_relaxed);
    }

    [[nodiscard]] Guarded<ListedQueuePairs>& listed() noexcept { return listed_; }

    /// A number for a region about to be registered; see QueuePairs::fence_region.
    [[nodiscard]] std::uint64_t next_registration() noexcept {
        return registrations_.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    [[nodiscard]] std::uint64_t registrations() const noexcept {
        return registrations_.load(std::memory_order_relaxed);
    }

    /// Looks for peers that have gone if that was not done for 50 ms (`now`: base::ticks()).
    void look_for_deaths(std::uint64_t now) noexcept {
        std::uint64_t last = last_look_.load(std::memory_order_relaxed);
        if (now - last < look_interval_) [[likely]]
            return;
        look_now(now);
    }
    void look_now(std::uint64_t now) noexcept;
    /// How often peers were found to have gone, together or alone.
    [[nodiscard]] std::uint64_t deaths() const noexcept {
        return deaths_.load(std::memory_order_acquire);
    }

    /// The contexts' events and the completion channels: all are rung when a peer has died,
    /// because only one of them hears of it from the kernel.
    template <class Rung>
    void add(Rung& rung) {
        const std::lock_guard guard{events_mutex_};
        std::get<std::vector<Rung*>>(rung_).push_back(&rung);
    }
    template <class Rung>
    void remove(Rung& rung) noexcept {
        const std::lock_guard guard{events_mutex_};
        std::erase(std::get<std::vector<Rung*>>(rung_), &rung);
    }
    /// While it is held, nobody rings them for a death.
    [[nodiscard]] std::unique_lock<std::mutex> hold_events() {
        return std::unique_lock{events_mutex_};
    }

    [[nodiscard]] Windows& windows() noexcept { return windows_; }
    [[nodiscard]] DatagramTargets& datagram_targets() noexcept { return *datagram_targets_; }
    [[nodiscard]] CopyService& copies() noexcept { return *copies_; }
    [[nodiscard]] QueuePairs& queue_pairs() noexcept { return *queue_pairs_; }
    /// Null: there is no wire.
    [[nodiscard]] WirePort* wire() const noexcept { return wire_.load(std::memory_order_acquire); }
    /// Once, at any time.
    void take(std::shared_ptr<WirePort> wire) noexcept {
        wire_owner_ = std::move(wire);
        wire_.store(wire_owner_.get(), std::memory_order_release);
    }
    /// Once, before anything else is asked.
    void take(std::shared_ptr<CopyService> copies) noexcept { copies_ = std::move(copies); }
    void take(std::shared_ptr<DatagramTargets> all) noexcept { datagram_targets_ = std::move(all); }
    void take(std::shared_ptr<QueuePairs> all) noexcept { queue_pairs_ = std::move(all); }

    [[nodiscard]] ObjectLimit& completion_queues() noexcept { return completion_queues_; }
    [[nodiscard]] ObjectLimit& shared_receive_queues() noexcept { return shared_receive_queues_; }
    [[nodiscard]] ObjectLimit& address_handles() noexcept { return address_handles_; }

    /// Of what belongs to no queue pair.
    [[nodiscard]] Counters& counters() noexcept { return counters_; }

  private:
    std::shared_ptr<Node> node_;
    const std::string fabric_;
    Counters counters_;
    std::mutex events_mutex_;  ///< a leaf, but for the events' own
    std::tuple<std::vector<AsynchronousEvents*>, std::vector<CompletionChannel*>> rung_;
    Windows windows_{*node_};
    ObjectLimit completion_queues_{max_completion_queues};
    ObjectLimit shared_receive_queues_{max_shared_receive_queues};
    ObjectLimit address_handles_{max_address_handles};
    std::atomic<std::uint32_t> next_pd_{1};
    std::atomic<std::uint64_t> registrations_{0};
    std::atomic<std::uint64_t> deaths_{0};
    std::atomic<std::uint64_t> last_look_{0};
    std::uint64_t look_interval_;
    std::shared_ptr<WirePort> wire_owner_;  ///< queue pairs use it until their end
    std::atomic<WirePort*> wire_{nullptr};
    std::shared_ptr<DatagramTargets> datagram_targets_;
    std::shared_ptr<CopyService> copies_;
    Guarded<ListedQueuePairs> listed_;
    std::shared_ptr<QueuePairs> queue_pairs_;  ///< the last: it uses the others until its end
};

}  // namespace millrace::soft
