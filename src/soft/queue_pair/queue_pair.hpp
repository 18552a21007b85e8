// Queue pairs: both queues, the state machine, errors and their flushing. The entries of
// <millrace/soft/device.hpp> are in queue_pair.cpp (life) and queue_pair_states.cpp (modify),
// the posting in post.cpp.
//
// Locks, in the order in which they may be taken: that of the process's list, completion queues
// (both: the one at the lower address first), that of `sends`. Those of `receives` and `theirs` are
// taken alone or inside those.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "completion/completion_queue.hpp"
#include "copy_service/copy_service.hpp"
#include "fabric/node.hpp"
#include "layout/block_layout.hpp"
#include "millrace/base/clock.hpp"
#include "process/context.hpp"
#include "process/memory_window.hpp"
#include "queue_pair/connection.hpp"
#include "queue_pair/ending.hpp"
#include "queue_pair/receive_queue.hpp"
#include "queue_pair/stall.hpp"
#include "queue_pair/work_requests.hpp"
#include "receives/datagram.hpp"
#include "receives/receive_pool.hpp"
#include "system/counters.hpp"
#include "system/errand_lock.hpp"
#include "system/extendable.hpp"
#include "system/guarded.hpp"
#include "system/spin_lock.hpp"
#include "system/thread_lock.hpp"
#include "transport/cable_queue.hpp"
#include "transport/connection_end.hpp"
#include "transport/executor.hpp"
#include "transport/pending_sends.hpp"
#include "transport/request.hpp"
#include "transport/send_slots.hpp"
#include "transport/transport.hpp"

namespace millrace::soft {

/// The hazard words of a moment: who executes on a queue pair, and for it.
struct SeenHazards {
    std::uint64_t words[4]{};         ///< of the connection: send and run, ours and the peer's
    std::uint64_t copying = 0;        ///< our own service thread, for whichever peer
    std::vector<SeenSender> senders;  ///< to a UD queue pair
    bool complete = true;             ///< false: there was no memory to note all
};

/// Made when the peer's sends are run for the first time.
using PeerExecutor = std::unique_ptr<Executor>;
using TheirsHeld = Held<PeerExecutor>;

/// A queue pair's sends that wait, its timers and its errors: what the lock of `sends` guards.
struct SendSide {
    /// `block`: the queue pair's.
    explicit SendSide(const BlockView& block) noexcept : pending{block} {}

    /// The queue pair's, while it executes at once and light fences will do; else null.
    ExecutionLines* lines_at_once = nullptr;
    std::uint32_t opcodes = 0;       ///< one bit per ibv_wr_opcode that may be posted now
    bool told_of_way_there = false;  ///< of a mistake in it, and in the way of the peer's sends
    bool told_of_way_here = false;
    bool drained_event = false;                ///< the program wants to know when SQD is reached
    std::list<LocalOperation> deferred_local;  ///< of the pending requests, those on windows
    Executor own;                              ///< runs them
    PendingSends pending;
    Stall stall;
    base::Clock::time_point next_connect{};
    Ending ending;
    SeenHazards seen_hazards;
    ibv_qp_attr attributes{};
    bool leads_to_port = false;  ///< its address vector
    std::uint32_t resets = 0;
    /// Null: requests are executed at the doorbell, or wait in the pending ring. A UD queue pair
    /// has one all its life, a connected one from RTR to RESET, if its peer is on the wire.
    std::unique_ptr<Transport> transport;
};

struct QueuePair : ExtendableQueuePair {
    // --- the send side ---
    alignas(cache_line) SendSlots slots;
    std::uint32_t always = 0;  ///< flags of every request: IBV_SEND_SIGNALED, or none
    std::uint32_t send_sges = 0;
    std::uint32_t inline_bytes = 0;

  private:
    std::atomic<bool> at_once_{false};
    std::atomic<bool> draining_{false};
    std::atomic<bool> asymmetric_{false};
    std::atomic<bool> carried_{false};

  public:
    Guarded<SendSide, ThreadLock> sends{block};
    BlockView block;
    Counters counters;

    // --- where the pollers are; written by who holds the completion queue ---
    alignas(cache_line) std::atomic<std::uint32_t> send_head{first_position};  ///< oldest slot
    std::atomic<bool> corrupt{false};  ///< a sub-ring said what cannot be
    /// An executor did not leave a region in time, and its connection is to be broken.
    std::atomic<bool> given_up{false};
    /// Of Process::deaths, so many had happened when `service` last asked whether the peer lives.
    std::atomic<std::uint64_t> deaths_served{0};
    CompletionSource send_source;
    CompletionSource receive_source;
    std::atomic<ibv_wc_status> receive_status{IBV_WC_WR_FLUSH_ERR};  ///< of the first flushed one
    std::atomic<std::uint32_t> fault_slot{0};  ///< 1 + the receive of the pool that failed, 0: none
    std::atomic<std::uint32_t> destination{0};  ///< number of the queue pair it is connected to

    // --- the receive side ---
    alignas(cache_line) ReceiveQueue receives;
    std::atomic<std::uint64_t> state_word{0};  ///< as in the block, for executors of ours

    // --- where receives come from if they are not the queue pair's own; never changed ---
    ReceivePool* pool = nullptr;            ///< of the shared receive queue, or `own_pool`
    std::unique_ptr<ReceivePool> own_pool;  ///< of a UD queue pair without one
    std::unique_ptr<Datagram> datagram;     ///< of a UD queue pair

    // --- running the peer's pending sends ---
    alignas(cache_line) Guarded<PeerExecutor, ErrandLock> theirs;
    std::atomic<const PendingLine*> peer_pending{nullptr};  ///< null: not connected
    Counters run_counters;

  private:
    Connection connection_;

  public:
    // --- facts ---
    End end;                                      ///< as executors and the copy service know it
    std::unique_ptr<WorkRequests> work_requests;  ///< of an ibv_qp_ex
    Context* owner = nullptr;
    Block memory;
    Geometry geometry;
    std::atomic<std::uint32_t> access{0};
    PathLine path{};  ///< as in the block, where the peer may have changed it
    ibv_qp_init_attr created{};
    std::unique_ptr<CableQueue> cable;  ///< of a connected one; null: mode `fast`
    CableEnd* on_cable = nullptr;       ///< that, or what a UD queue pair has in flight
    std::mutex modify_mutex;            ///< one change of state after the other

    std::atomic<bool> established_told{false};
    /// Not 0: a stopped executor never let go, and may still copy what was registered before the
    /// one with this number.
    std::atomic<std::uint64_t> broken{0};

    /// Who it is connected to. That changes by who holds the process's queue pairs, `sends` and
    /// `theirs`, so that any of them will do to look.
    [[nodiscard]] const Connection& connection(QueuePairsHeld) const noexcept {
        return connection_;
    }
    [[nodiscard]] const Connection& connection(SendHeld) const noexcept { return connection_; }
    [[nodiscard]] const Connection& connection(TheirsHeld) const noexcept { return connection_; }
    /// Do light fences do, for all that executes on this connection?
    [[nodiscard]] bool asymmetric() const noexcept {
        return asymmetric_.load(std::memory_order_relaxed);
    }
    void set_asymmetric(SendHeld, bool now) noexcept {
        asymmetric_.store(now, std::memory_order_relaxed);
    }

    /// The soft device's lot after everything: pending work, faults, deaths, timers. Called by the
    /// poller of either completion queue; passes over what another thread is busy with.
    void service() noexcept;

    /// Has `service` nothing to do, after so many deaths (Process::deaths)? Without locks; it may
    /// be wrong for a moment.
    [[nodiscard]] bool is_quiet(std::uint64_t deaths) noexcept {
        const FaultLine& fault = *block.fault;
        return deaths_served.load(std::memory_order_relaxed) == deaths &&
               (executes_at_once() || is_carried()) &&
               pool == nullptr &&
               (fault.receive.load(std::memory_order_relaxed) |
                fault.send.load(std::memory_order_relaxed) |
                fault.wishes.load(std::memory_order_relaxed)) == 0 &&
               !corrupt.load(std::memory_order_relaxed) &&
               !given_up.load(std::memory_order_relaxed);
    }

    /// What is due on a shaped link has happened when this returns. Waits for other threads.
    void catch_up() noexcept;

    /// On a shaped link, before the end: waits until everything has arrived that was completed
    /// when it left.
    void await_landing() noexcept;

    /// The same as `service` by a thread that waits for events, of what a peer has done or its
    /// death.
    void look_after(QueuePairsHeld listed) noexcept;

    /// Goes to ERROR: the first outstanding send gets `send`, the first receive `receive`. Does not
    /// wait; `settle` finishes it.
    void begin_error(SendHeld held, ibv_wc_status send, ibv_wc_status receive,
                     std::optional<ibv_event_type> event) noexcept;
    /// An executor has not left a region for too long: breaks the connection, now or, where the
    /// executor is a thread of ours, when that comes out. `registrations`: so many there were.
    void give_up(std::uint64_t registrations) noexcept;
    /// With a transport: what is due.
    void move_transport(SendHeld held) noexcept;
    /// On the way to RTR, without locks: a transport, if what `attributes` name is on the wire.
    /// Throws base::Error.
    [[nodiscard]] std::unique_ptr<Transport> make_wire(const ibv_qp_attr& attributes);
    /// From here on this is how its requests travel, or how they do no longer: null.
    void take_transport(SendHeld held, std::unique_ptr<Transport> transport) noexcept;
    /// After what has come over the wire, with or without faults.
    void look_after_arrival(SendHeld held) noexcept;
    /// Its peer is there: tells the program once.
    void tell_established() noexcept;
    /// Of a connection to RESET, or of any queue pair at its end, without locks: it has no transport,
    /// and what came over the wire calls it no more.
    void leave_wire() noexcept;
    /// In SQD, is what was posted before not complete yet?
    [[nodiscard]] bool draining() const noexcept { return draining_; }
    /// Connected, and its requests travel over the wire?
    [[nodiscard]] bool is_carried() const noexcept {
        return carried_.load(std::memory_order_relaxed);
    }
    void set_draining(SendHeld, bool now) noexcept { draining_ = now; }
    /// In SQD: tells the program once all that was posted before is complete.
    void finish_draining(SendHeld held) noexcept;
    /// A send failed by its sender's own fault: goes to ERROR, or where sends are not
    /// acknowledged (UC) to SQE, in which receiving goes on.
    void begin_send_error(SendHeld held, ibv_wc_status status) noexcept;
    [[nodiscard]] bool reliable() const noexcept { return qp_type == IBV_QPT_RC; }
    /// As the copy service knows it.
    [[nodiscard]] CopyGranter copy_granter() const noexcept {
        return {&end, datagram.get(), &broken};
    }
    [[nodiscard]] bool strict() const noexcept { return cable != nullptr && cable->strict(); }
    /// In SQE, with everything flushed: back to RTS.
    [[nodiscard]] bool end_send_error(PollHeld, SendHeld held) noexcept;
    /// Ends the wait for executors if they have stopped, or a second has passed.
    bool settle(SendHeld held) noexcept;
    /// Are all executors of this connection out (or never to be heard of again)?
    /// With `region`: those that may be in it.
    [[nodiscard]] bool executors_out(const SeenHazards& seen,
                                     const FencedKey* region = nullptr) const noexcept;
    void see_hazards(SeenHazards& seen) const noexcept;
    /// Waits (at most a second) until they are.
    [[nodiscard]] bool wait_for_executors(const FencedKey* region = nullptr) const noexcept;

    /// Makes the next completion of a queue pair in ERROR.
    bool flush(PollHeld, CompletionSource& source, ibv_wc& wc) noexcept;
    /// Of a source that flushes: would `flush` make one?
    [[nodiscard]] bool has_to_flush(const CompletionSource& source) const noexcept {
        if (source.send) return send_head.load(std::memory_order_relaxed) != slots.tail();
        if (own_pool != nullptr) return own_pool->holds_some();
        if (pool != nullptr) return fault_slot.load(std::memory_order_relaxed) != 0;
        return source.position.load(std::memory_order_relaxed) !=
               receives.tail().load(std::memory_order_acquire);
    }

    /// Tells the program once if what the two ends were told of the way between them does not
    /// agree. `both`: of the peer's sends, too.
    void tell_of_way(SendHeld held, bool both) noexcept;

    /// Finds the peer and its block, if it is there. False: its device is in another mode.
    [[nodiscard]] bool connect(QueuePairsHeld listed, SendHeld held, TheirsHeld) noexcept;
    void disconnect(QueuePairsHeld listed, SendHeld held, TheirsHeld run) noexcept;

    /// Makes both executors forget where the peer's memory is mapped here. False: one of them is
    /// at work.
    [[nodiscard]] bool forget_regions(QueuePairsHeld) noexcept;

    /// Of a UD queue pair: lets go of receivers that are gone. False: a sender is at work.
    [[nodiscard]] bool forget_gone_receivers() noexcept;

    /// Binds or invalidates a window, which needs nothing of the peer. Outside of hazards:
    /// invalidating waits for the peer's.
    [[nodiscard]] Progress run_local(SendHeld held, const LocalOperation& operation) noexcept;
    /// The same of the one that was kept first, which another one completes.
    [[nodiscard]] ibv_wc_status run_kept_local(SendHeld held) noexcept;
    /// Keeps it for when the pending request that is appended next comes to its turn. False: no
    /// memory.
    [[nodiscard]] bool defer_local(SendHeld held, const LocalOperation& operation) noexcept;
    void forget_local(SendHeld held) noexcept;

    /// Runs our pending sends as far as they go.
    void run_own_pending(SendHeld held) noexcept;
    /// Runs the peer's pending sends as far as they go, or tells the thread that runs them to look
    /// again. Any thread, without locks.
    void run_peer_pending() noexcept;
    /// The same by who has nothing new for them, but comes because time has passed: leaves them to
    /// a thread that is at it.
    void look_for_peer_pending() noexcept;
    /// The same after a look whether there are any. What made it possible must be published and
    /// fenced.
    void run_peer_pending_if_any() noexcept {
        const PendingLine* const pending = peer_pending.load(std::memory_order_acquire);
        if (pending != nullptr && pending->head.load(std::memory_order_relaxed) !=
                                      pending->tail.load(std::memory_order_relaxed)) [[unlikely]] {
            run_peer_pending();
        }
    }

    /// What the block's receive line says at the beginning: no receives, or, of a shared receive
    /// queue's, up to where the sub-ring has room for completions.
    [[nodiscard]] std::uint32_t first_receive_tail() const noexcept {
        return srq == nullptr ? first_position : first_position + receives.mask + 1;
    }
    /// A completion of a shared receive queue's receive was polled, the one before `position`.
    void free_completion_before(std::uint32_t position) noexcept {
        block.receive->tail.store(position + receives.mask + 1, std::memory_order_release);
        if (pool->entries() <= receives.mask + 1) [[likely]]
            return;
        // The queue has grown: a request may have waited for room, and not for a receive.
        light_fence(asymmetric());
        run_peer_pending_if_any();
    }

    /// RTS and nothing pending: post_send executes.
    [[nodiscard]] bool executes_at_once() const noexcept {
        return at_once_.load(std::memory_order_relaxed);
    }
    void execute_at_once(SendHeld held, bool now) noexcept {
        at_once_.store(now, std::memory_order_relaxed);
        static_assert(offsetof(ExecutionLines, fault) == cache_line);
        sends(held).lines_at_once =
            now && asymmetric() ? reinterpret_cast<ExecutionLines*>(block.hazard) : nullptr;
    }

    /// All positions in the block, as at the beginning. Nobody uses it.
    void rewind_block() noexcept;
    /// Writes state, for the peer and for the program.
    void set_state(SendHeld, ibv_qp_state next) noexcept;
    /// `state` for who does not hold `sends`.
    [[nodiscard]] ibv_qp_state state_now() noexcept {
        return std::atomic_ref{state}.load(std::memory_order_relaxed);
    }

    /// In mode `strict`, before the region with `key` is deregistered: says if a request that may
    /// still be executed names it.
    void tell_if_in_flight(std::uint32_t key) noexcept;

    /// In mode `strict`, before the queue pair leaves for ERROR: completes the receive of what its
    /// peer may know to have arrived. False: somebody else is busy with it.
    [[nodiscard]] bool take_landed() noexcept;

  private:
    /// What runs the peer's pending sends; null: it is not connected, or there is no memory.
    [[nodiscard]] Executor* their_executor(TheirsHeld run) noexcept;
    /// What the peer has left for us to do. True: it wants to have something copied.
    [[nodiscard]] bool hear_wishes() noexcept {
        return block.fault->wishes.load(std::memory_order_relaxed) != 0 && take_wishes();
    }
    [[nodiscard, gnu::cold]] bool take_wishes() noexcept;
    [[nodiscard]] ibv_wc_status change_window(SendHeld held,
                                              const LocalOperation& operation) noexcept;
    void grant_copies(QueuePairsHeld listed) noexcept;
    void watch_peer() const noexcept;
    /// In mode `strict`.
    void tell_oldest_fails(SendHeld held, ibv_wc_status status,
                           const Reason& reason) const noexcept;
    void tell_faults(SendHeld held, ibv_wc_status send, ibv_wc_status receive) const noexcept;
    /// True if the peer is still to be found.
    [[nodiscard]] bool serve(SendHeld held) noexcept;
    /// Goes to an error if there is reason to, outside of this thread's own requests.
    [[nodiscard]] bool take_failures(SendHeld held) noexcept;
    void await_executors(SendHeld held, Ending::Phase how) noexcept;
    void run_peer_pending(TheirsHeld run) noexcept;
    /// Shaped, connected: has the peer's oldest request in flight arrived?
    [[nodiscard]] bool peer_is_due(TheirsHeld) noexcept;
    /// `own`: it is our requests that are run; else the peer's.
    [[nodiscard]] Progress run_pending(std::optional<SendHeld> own, Executor& executor,
                                       const BlockView& view, Hazard& hazard,
                                       Counters& counts) noexcept;
    void check_timers(SendHeld held) noexcept;
    /// Whoever sleeps for the send queue's events looks at this queue pair again by then.
    void look_again_in(SendHeld held, std::chrono::nanoseconds delay) noexcept;
    /// The same for an executor that nobody hears leave, and that was waited for that long.
    void look_again_behind(SendHeld held, std::chrono::nanoseconds waited) noexcept;
    void look_after_pool() noexcept;
    void settle_shared(SendHeld held) noexcept;
    [[nodiscard]] bool flush_pooled(ibv_wc& wc) noexcept;
};

/// Which operations the queue pair's type and its attributes let it post.
[[nodiscard]] std::uint32_t allowed_opcodes(SendHeld held, const QueuePair& qp) noexcept;

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) noexcept;
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept;

}  // namespace millrace::soft
