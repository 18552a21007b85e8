// The owner's side of a receive pool (receive_pool_layout.hpp): posting, taking back what
// completed, collecting the datagrams that arrived, recovering what claimants left behind.
// Owned by a shared receive queue, or by a UD queue pair without one.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "fabric/fabric.hpp"
#include "layout/receive_pool_layout.hpp"
#include "system/thread_lock.hpp"

namespace millrace::soft {

class Datagram;

/// A receive's memory, as its program has posted it.
struct PostedPieces {
    std::uint32_t count = 0;
    std::array<ibv_sge, max_sges> sges;
};

/// A queue pair that receives from a pool.
struct PoolUser {
    std::uint32_t index = 0;                             ///< of its block
    Datagram* datagram = nullptr;                        ///< of a UD queue pair, and
    const std::atomic<std::uint32_t>* polled = nullptr;  ///< where its poller is
    std::function<void()> run_waiting;  ///< of another: runs what waits at its peer, if anything
};

class ReceivePool {
  public:
    /// `resizable`: address space for as many as a queue may have is set aside, if there is any.
    enum class Growth : std::uint8_t { none, resizable };
    /// Throws std::bad_alloc; null, with errno set, when the node has no block left.
    [[nodiscard]] static std::unique_ptr<ReceivePool> make(Node& node, std::uint32_t entries,
                                                           std::uint32_t sges,
                                                           Growth growth = Growth::none);
    /// An executor that was stopped may still write to it: its memory is never used again.
    void quarantine() noexcept { quarantined_.store(true, std::memory_order_relaxed); }
    /// Gives its memory back, before the end.
    void give_back() noexcept;

    [[nodiscard]] const PoolView& view() const noexcept { return view_; }
    [[nodiscard]] const Block& block() const noexcept { return block_; }
    /// So many receives may be outstanding.
    [[nodiscard]] std::uint32_t entries() const noexcept {
        return entries_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint32_t sges() const noexcept { return view_.sges(); }

    /// From now on `entries` receives, rounded up to a power of two, may be outstanding; any
    /// thread, while others post and peers take. 0, or an errno value with nothing changed: EINVAL
    /// (more are outstanding, or it is below the limit, which counts unless there is a new one),
    /// ENOMEM.
    [[nodiscard]] int resize(std::uint32_t entries, bool with_new_limit) noexcept;

    /// Detached ones are never named again.
    void attach(PoolUser user);
    void detach(std::uint32_t index) noexcept;
    [[nodiscard]] bool used() noexcept;

    /// ibv_post_(srq_)recv without what follows from it. Any thread.
    [[nodiscard]] int post(ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept;
    /// After post: runs what waits at the peers of its queue pairs, if anything does.
    void serve_waiting() noexcept {
        light_fence(asymmetric_.load(std::memory_order_relaxed));
        if (view_.waiting().flag.load(std::memory_order_relaxed) != 0) [[unlikely]]
            run_waiting();
    }
    /// A peer without membarrier takes part: `serve_waiting` has to pay for its fence.
    void need_full_fences() noexcept { asymmetric_.store(false, std::memory_order_relaxed); }

    /// What was posted as `number`. False: nothing is.
    [[nodiscard]] bool posted(std::uint32_t number, PostedPieces& pieces) noexcept;

    /// A completion names `number`: it is free again. False: nothing was posted there.
    [[nodiscard]] bool take_back(std::uint32_t number, std::uint64_t& wr_id) noexcept;
    /// The same for the oldest that was never claimed (flushing). False: there is none.
    [[nodiscard]] bool take_oldest(std::uint64_t& wr_id) noexcept;
    [[nodiscard]] bool holds_some() noexcept {
        const std::lock_guard guard{lock_};
        return first_ != tail_ || !strays_.empty();
    }

    /// Brings arrived datagrams into the rings of their queue pairs. `patiently`: also looks
    /// whether a claimed receive that does not arrive has lost its claimant; true: one is worth
    /// another look soon.
    bool collect(bool patiently) noexcept;
    /// Where the next datagram will show, for idle pollers.
    [[nodiscard]] const std::atomic<std::uint32_t>* next_arrival(std::uint32_t& expected) noexcept;

    /// `number` is named by a completion that is still to be polled.
    void mark_done(std::uint32_t number) noexcept;
    /// Offers again what queue pair `index` has claimed and not completed; with `completed`, also
    /// what it has completed but nobody has polled, and empties `arrived`. Its executors must be
    /// out.
    void offer_again(std::uint32_t index, bool completed, Datagram* arrived = nullptr) noexcept;
    /// Offers one receive again that this process has claimed.
    void offer_again_one(std::uint32_t number) noexcept;
    /// Forgets all receives. No executor may be in it.
    void clear(Datagram& arrived) noexcept;

    /// The limit: 0 disarms. `reached` is called, with no lock, when the receives are fewer.
    void set_limit(std::uint32_t limit) noexcept;
    [[nodiscard]] std::uint32_t limit() const noexcept {
        return limit_.load(std::memory_order_relaxed);
    }
    void check_limit() noexcept {
        if (limit_.load(std::memory_order_relaxed) != 0) [[unlikely]]
            look_at_limit();
    }
    std::function<void()> reached;

  private:
    enum class Held : std::uint8_t { free, posted, done };
    struct Receive {
        std::uint64_t wr_id = 0;
        Held held = Held::free;
        std::uint8_t sges = 0;
    };
    struct Stray {
        std::uint32_t number;
        std::uint32_t position;
    };

    ReceivePool(Node& node, const Block& block, const PoolGeometry& room, std::uint32_t entries);
    [[nodiscard]] int back(std::uint32_t slots) noexcept;
    /// With both of the locks that `resize` takes.
    void widen(std::uint32_t places, std::vector<std::uint32_t>& order,
               std::vector<std::uint32_t>& free) noexcept;
    void place(std::uint32_t number) noexcept;
    void run_waiting() noexcept;
    void look_at_limit() noexcept;
    [[nodiscard]] const PoolUser* user(std::uint32_t index) const noexcept;
    [[nodiscard]] bool pass_first(bool patiently) noexcept;
    /// Whether a claimant is gone is asked seldom: the answer takes several system calls.
    [[nodiscard]] bool may_ask(std::uint64_t now) noexcept;
    [[nodiscard]] bool give_up_first(const Datagram& datagram, std::uint64_t claim) noexcept;
    /// Takes those that have arrived; `all`: also gives up those whose claimant is out or dead.
    enum class Strays : std::uint8_t { arrived, all };
    void look_at_strays(Strays which) noexcept;
    void reset_free() noexcept;
    void set_free(std::uint32_t number) noexcept {
        receives_[number].held = Held::free;
        free_[free_end_++ & mask_] = number;
    }

    Node& node_;
    Block block_;
    PoolView view_;
    std::atomic<bool> asymmetric_;
    std::atomic<bool> quarantined_{false};
    std::atomic<std::uint32_t> limit_{0};
    std::atomic<std::uint32_t> entries_{0};

    std::mutex resize_mutex_;  ///< before `lock_`
    std::mutex users_mutex_;   ///< before `lock_`
    ThreadLock lock_;          ///< guards what follows; `users_` both
    std::vector<PoolUser> users_;
    std::uint32_t mask_ = 0;              ///< of the rings, the shared one included: it only grows
    std::vector<Receive> receives_;       ///< of every slot that was ever used
    std::vector<std::uint32_t> retired_;  ///< slots of these that the queue has shrunk by
    std::unique_ptr<ibv_sge[]> pieces_;   ///< of each receive; the slots' are in the peers' hands
    std::vector<std::uint32_t> free_;     ///< a ring: what was freed first is posted first
    std::uint32_t free_begin_ = 0;
    std::uint32_t free_end_ = 0;
    std::uint32_t tail_ = first_position;
    std::uint32_t head_seen_ = first_position;

    // For datagrams: what was posted, in order, beginning with the first that is not collected.
    bool collects_ = false;
    std::vector<std::uint32_t> order_;
    std::uint32_t first_ = first_position;
    std::vector<Stray> strays_;  ///< claimed long ago, not arrived, others went past them
    bool stuck_ = false;         ///< `first_` is claimed and has not arrived since
    std::uint32_t stuck_position_ = 0;
    std::uint64_t stuck_since_ = 0;  ///< ticks
    std::uint64_t stuck_word_ = 0;   ///< its claimant's hazard then
    std::uint64_t asked_at_ = 0;     ///< ticks, of a look whether a claimant is gone
};

}  // namespace millrace::soft
