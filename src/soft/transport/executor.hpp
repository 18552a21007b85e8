// Runs the send queue of one end of a connection: checks a work request against both ends' keys and
// states, moves the bytes, writes the completions. Called by queue pairs: for their own sends, and
// for the peer's pending ones. docs/soft/execution.md.
//
// One thread at a time (the queue pair's send lock, or its run lock). The caller brackets calls
// with a `HazardScope`, and everything the peer wrote is checked here before it is used.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "completion/completion_ring.hpp"
#include "fabric/copy_in_order.hpp"
#include "fabric/fabric.hpp"
#include "layout/block_layout.hpp"
#include "layout/hazard.hpp"
#include "millrace/base/detail/long_copy.hpp"
#include "system/counters.hpp"
#include "system/lines_ahead.hpp"
#include "transport/connection_end.hpp"
#include "transport/key_cache.hpp"
#include "transport/pieces.hpp"
#include "transport/reasons.hpp"
#include "transport/receiver.hpp"
#include "transport/request.hpp"
#include "transport/steps.hpp"

namespace millrace::soft {

enum class Progress : std::uint8_t {
    done,
    no_receive,  ///< the peer has posted no receive
    no_peer,     ///< the peer is not (yet, or any longer) connected to us and receiving
    gone,        ///< the peer's process is
    owners,      ///< only the sender's own process can do it
    busy,        ///< somebody holds the lock that an atomic needs
    failed,      ///< see `Executor::failure`
    not_due,     ///< in flight, as a whole or in part
    held,        ///< the other side executes just now
};

class Executor {
  public:
    Executor() noexcept;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Runs the sends of `sender` to `receiver`; exactly one of them, or both, is `mine`. The peer
    /// must outlive the executor's use; without one (`peer` null, `receiver` nobody) an unreliable
    /// sender's messages are dropped. Forgets everything it knew.
    void connect(Node* node, PeerNode* peer, const End& sender, const End& receiver,
                 bool asymmetric, Counters* counters) noexcept;
    void disconnect() noexcept;
    /// Has what the first request needs, of a receiver that is connected already: its bell opened,
    /// and places for keys. So who connects last need not when it first asks and rings, and who
    /// connects first, maybe to thousands, has those alone that it rings. False: the receiver is
    /// not connected yet.
    bool be_ready_for_first() noexcept;
    [[nodiscard]] bool connected() const noexcept { return connected_; }
    [[nodiscard]] const End& receiver() const noexcept { return receiver_.end; }

    /// Forgets where the peer's memory is mapped here: it may then be unmapped.
    void forget_regions() noexcept;

    /// True if the receiver is in a state to receive from the sender. Also notices that the peer
    /// has connected (again).
    [[nodiscard]] bool receiver_ready() noexcept {
        const std::uint64_t word = receiver_state_->load(std::memory_order_acquire);
        if (word - receiver_word_ <= receiving_states) [[likely]]
            return true;
        return receiver_changed(word);
    }
    /// The same of a receiver that need not hear us: it only has to be connected to us.
    [[nodiscard]] bool receiver_stands() const noexcept;
    /// Why what is sent does not arrive, or not all of it, though both ends are ready: what they
    /// were told of the way does not agree (path.hpp).
    [[nodiscard]] Reason way() const noexcept { return way_of(sender_, receiver_); }
    /// The same of what the receiver sends.
    [[nodiscard]] Reason way_back() const noexcept { return way_of(receiver_, sender_); }
    /// What either end was told has changed.
    void look_at_way_again() noexcept { receiver_word_ = no_word; }
    /// The same for the sender; used where the sender is the peer.
    [[nodiscard]] bool sender_ready() noexcept;

    /// Does it wait until what it has posted is complete? As `sender_ready` saw it.
    [[nodiscard]] bool sender_drains() const noexcept {
        return (sender_.end.block.control->state_word.load(std::memory_order_acquire) &
                state_mask) == IBV_QPS_SQD;
    }

    /// Still the connection that `sender_ready` saw, whatever its state.
    [[nodiscard]] bool sender_same() const noexcept {
        const std::uint64_t word =
            sender_.end.block.control->state_word.load(std::memory_order_acquire);
        return ((word ^ sender_word_) & ~state_mask) == 0;
    }
    /// After `progress` ended a run: could it go on now?
    [[nodiscard]] bool could_go_on(Progress progress) noexcept;

    /// Where the bytes of a WRITE go to, and where they are.
    struct Way {
        std::byte* to;
        const std::byte* from;
        std::uint64_t length;
        [[nodiscard]] bool apart() const noexcept {
            return from >= to + length || to >= from + length;
        }
        /// Some bytes lie in both, and not in the same place.
        [[nodiscard]] bool overlaps() const noexcept {
            return from < to + length && to < from + length && to != from;
        }
    };
    /// The most frequent request of all, a WRITE of one piece between memory that is mapped here,
    /// with keys seen before: the way of its bytes, all checked; or false (then `run` decides). The
    /// hazard names both keys.
    [[nodiscard, gnu::always_inline]] bool find_way(const ibv_send_wr& wr,
                                                    Way& way) const noexcept {
        if (receiver_state_->load(std::memory_order_acquire) - receiver_word_ > receiving_states)
            [[unlikely]] {
            return false;
        }
        const ibv_sge& piece = *wr.sg_list;
        const std::uint64_t length = way.length = piece.length;
        const KeyCache::Region& target = receiver_.keys.at(wr.wr.rdma.rkey);
        if (!target.is_valid_as(wr.wr.rdma.rkey)) [[unlikely]]
            return false;
        const std::uint64_t to = wr.wr.rdma.remote_addr - target.iova;
        if (!KeyCache::lies_within(to, length, target.writable_length) ||
            !receiver_.grants(IBV_ACCESS_REMOTE_WRITE)) [[unlikely]] {
            return false;
        }
        way.to = target.write_to + to;
        if ((wr.send_flags & IBV_SEND_INLINE) != 0) [[likely]] {
            if (length > longest_inline_) [[unlikely]]
                return false;
            way.from = reinterpret_cast<const std::byte*>(piece.addr);
        } else {
            const KeyCache::Region& source = sender_.keys.at(piece.lkey);
            if (!source.is_valid_as(piece.lkey)) [[unlikely]]
                return false;
            const std::uint64_t at = piece.addr - source.iova;
            if (!KeyCache::lies_within(at, length, source.readable_length) || length > longest_)
                [[unlikely]]
                return false;
            way.from = source.read_from + at;
        }
        return true;
    }
    /// Of such a WRITE. The owner of what `rkey` names may have said that it needs no order.
    [[gnu::always_inline]] void copy_way(const Way& way, std::uint32_t rkey) const noexcept {
        if (way.length < base::least_long_copy ||
            (receiver_.keys.at(rkey).access & IBV_ACCESS_RELAXED_ORDERING) == 0) [[likely]] {
            copy_in_order(way.to, way.from, way.length);
        } else {
            base::copy_for_peer(way.to, way.from, way.length);
        }
    }
    /// After such a WRITE of `length` bytes to `to`: asks for the lines of the next one.
    [[gnu::always_inline]] void look_ahead(const std::byte* to, std::uint64_t length) noexcept {
        if (to == stream_end_) {
            if (length <= largest_fetched_ahead) {
                fetch_lines_ahead(to, length);
            } else {
                fetch_lines_of_next(to + length, length);
            }
        }
        stream_end_ = to + length;
    }
    /// The whole of it: done, or false with nothing done.
    [[nodiscard]] bool write_at_once(const ibv_send_wr& wr, std::uint32_t flags,
                                     std::uint32_t slot) noexcept {
        Way way;
        // Overlap: the copy is not for it. Laid where it is to go (map_remote): it is there.
        if (!find_way(wr, way) || way.overlaps()) [[unlikely]]
            return false;
        if (way.to != way.from) copy_way(way, wr.wr.rdma.rkey);
        look_ahead(way.to, way.length);
        receiver_.counters().add(Count::write);
        if ((flags & IBV_SEND_SIGNALED) != 0) {
            complete_send(slot, static_cast<std::uint32_t>(way.length));
        }
        return true;
    }

    /// The same of a SEND of one piece, without or with an immediate, to a receive of one piece in
    /// the peer's own receive queue. The hazard names nothing yet.
    [[nodiscard]] bool send_at_once(const ibv_send_wr& wr, std::uint32_t flags,
                                    std::uint32_t slot) noexcept;

    /// Runs one request up to its completions. `no_receive`, `no_peer` and `gone` leave everything
    /// as it was; `failed` has told the receiver (fault word), not the sender. An unreliable one
    /// (UC) knows `done` and `failed` only: what the peer cannot take is dropped, and only our own
    /// mistakes fail.
    [[nodiscard]] Progress run(const Request& request) noexcept;
    /// The status that the sender's completion of the request that failed has.
    [[nodiscard]] ibv_wc_status failure() const noexcept { return receiver_.refusal().sender; }
    /// It failed because the peer's pages did not come, and a thread of ours may still copy: the
    /// hazard has to stay as it is for good.
    [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
    /// And why: mode `strict` tells it.
    [[nodiscard]] const Reason& reason() const noexcept { return receiver_.refusal().why; }

    /// Completes a request that our process has done without its peer (binding a window), or says
    /// why it failed.
    void complete_local(std::uint32_t slot) noexcept { complete_send(slot, 0); }
    void fail_local(ibv_wc_status status) noexcept {
        static_cast<void>(receiver_.refuse(status, IBV_WC_SUCCESS, {}));
    }

    /// Runs the pending request at `entry` (of the sender's block), if it is due; in mode `strict`
    /// as much of it as is due.
    [[nodiscard]] Progress run_pending(const PendingEntry& entry) noexcept;

    /// Mode `strict`: the receiver of what has landed is told now, whatever the plan says.
    void set_hurry(bool hurry) noexcept { hurry_ = hurry; }

    /// Of the bytes that the request at `entry`, of our own block, is to carry. nullopt: it takes
    /// them from the program's memory no more (inline), has no right to them, or will carry none.
    [[nodiscard]] std::optional<std::uint64_t> checksum_of_source(
        const PendingEntry& entry) noexcept;

    /// Writes the sender's completion. For requests that run: `run` does it.
    void complete_send(std::uint32_t slot, std::uint32_t bytes) noexcept {
        CompletionRing& ring = sender_.completions;
        ring.write(ring.position(), bytes, 0, slot);
    }
    /// Wakes the sender for what is no completion, if its completion queue is armed for anything.
    void ring_sender(bool solicited) noexcept { sender_.completions.ring(solicited); }
    /// Wakes whoever waits for the sender's asynchronous events.
    void ring_sender_async() noexcept {
        sender_.ring_async(receiver_.peer(), receiver_.counters());
    }

    [[nodiscard]] bool asymmetric() const noexcept { return asymmetric_; }

  private:
    void limit_messages(std::uint32_t longest) noexcept;
    [[nodiscard]] static const PathLine& path_of(const Side& side) noexcept {
        return side.end.mine ? *side.end.path : *side.end.block.path;
    }
    [[nodiscard]] Reason way_of(const Side& from, const Side& to) const noexcept;
    /// The sges of an entry that the peer may be changing.
    using EntrySges = std::array<ibv_sge, max_sges>;
    [[nodiscard]] bool unpack(const PendingEntry& entry, Request& request,
                              EntrySges& sges) const noexcept;
    [[nodiscard]] PlanInUse plan() const noexcept {
        return {plan_, sender_.end.strict, sender_.end.block.pending};
    }
    template <class Steps>
    [[nodiscard]] Progress run_by(const Request& request) noexcept;
    [[nodiscard]] Progress run_in_pieces(const Request& request) noexcept;
    /// Locate, move, tell.
    template <class Steps>
    [[nodiscard]] Progress attempt(const Request& request) noexcept;
    template <class Steps>
    [[nodiscard]] Progress attempt_atomic(const Request& request) noexcept;
    [[nodiscard]] Progress locate(const Request& request, Located& it) noexcept;
    /// A request that cannot be sent now, because of `progress`. What is wrong with its data here
    /// is found all the same, as a device finds it that has them read before it hears of the peer.
    [[nodiscard]] Progress put_off(const Request& request, Progress progress) noexcept;
    /// The sender's side of it.
    [[nodiscard]] Progress locate_message(const Request& request, std::uint32_t access,
                                          Located& it) noexcept;
    /// After a READ whose own pieces are wrong.
    [[nodiscard]] Progress judge_read(const Request& request) noexcept;
    /// Copies, or has the peer copy what the system does not let us.
    [[nodiscard]] CopyResult move(const Request& request, const Located& it,
                                  std::uint64_t bytes) noexcept;
    [[nodiscard]] Progress move_failed(const Request& request, const Consumed& receive,
                                       CopyResult result) noexcept;
    /// Writes the completions.
    void tell(const Request& request, const Located& it) noexcept;
    [[nodiscard]] Progress tell_receiver(const Request& request) noexcept;
    /// `pause`: ns between reading and writing.
    [[nodiscard]] CopyResult change(const Request& request, const Reach& at,
                                    std::uint64_t& original, std::int64_t pause) noexcept;
    [[nodiscard]] Progress drop(const Request& request, Progress progress) noexcept;
    /// Of an unreliable sender: only the first `landing` bytes of a WRITE get there, nothing else.
    [[nodiscard]] Progress lose(const Request& request, std::uint64_t landing) noexcept;
    [[nodiscard]] bool receiver_changed(std::uint64_t word) noexcept;
    [[nodiscard]] static bool verify(const Side& peer, const Side& other,
                                     std::uint64_t word) noexcept;
    [[nodiscard]] bool gather(const Request& request, std::uint32_t access, Piece* pieces,
                              std::uint32_t& count, std::uint64_t& total) noexcept {
        return sender_.keys.gather(request.sges, request.sge_count,
                                   (request.flags & IBV_SEND_INLINE) != 0, access, pieces, count,
                                   total);
    }
    void announce_regions(const Request& request) noexcept;
    /// All keys of the request are checked: from here on it is in their regions only.
    void name_regions(const Piece* local, std::uint32_t local_count, const Piece* remote,
                      std::uint32_t remote_count) noexcept {
        if (local_count <= 1 && remote_count <= 1) [[likely]] {
            const std::uint32_t ours = local_count == 0 ? 0 : local->key;
            const std::uint32_t theirs = remote_count == 0 ? 0 : remote->key;
            hazard_->name(ours, theirs);
        } else {
            name_several(local, local_count, remote, remote_count);
        }
    }
    void name_several(const Piece* local, std::uint32_t local_count, const Piece* remote,
                      std::uint32_t remote_count) noexcept;
    [[nodiscard]] CopyResult copy(const Piece* to, std::uint32_t to_count, const Piece* from,
                                  std::uint32_t from_count, std::uint64_t total) noexcept;
    [[nodiscard]] CopyResult copy_one(const Reach& to, const Reach& from,
                                      std::uint64_t bytes) noexcept;
    /// The same by the peer, whose memory the system does not let us copy (executor_asking.cpp).
    [[nodiscard]] CopyResult copy_by_owner(const AskedCopy& right, const Piece* to,
                                           std::uint32_t to_count, const Piece* from,
                                           std::uint32_t from_count, std::uint64_t total) noexcept;
    [[nodiscard]] CopyResult copy_word(const Request& request, CopyPurpose purpose, const Reach& to,
                                       const Reach& from) noexcept;
    [[nodiscard]] CopyResult call_for_copies() noexcept;
    /// Of the peer's pending request: is any of its memory such?
    [[nodiscard]] bool is_peers_alone(const Request& request) noexcept;
    /// `why` is more than the statuses can say.
    Progress fail(ibv_wc_status sender, ibv_wc_status receiver, const Reason& why = {}) noexcept;
    Progress copy_failed(CopyResult result, ibv_wc_status sender, ibv_wc_status receiver) noexcept;
    /// As the receiver has refused it.
    Progress refused() noexcept;

    /// RTR, RTS, SQD, SQE: the words that follow that of RTR.
    static constexpr std::uint64_t receiving_states = IBV_QPS_SQE - IBV_QPS_RTR;
    static constexpr std::uint64_t no_word = ~std::uint64_t{0} - 4;  ///< matches nothing

    const std::atomic<std::uint64_t>* receiver_state_ = nullptr;
    const std::byte* stream_end_ = nullptr;  ///< behind the last WRITE; never dereferenced
    Receiver receiver_;
    Side sender_;
    std::uint64_t receiver_word_ = no_word;      ///< its state word in RTR
    std::uint64_t sender_word_ = no_word;        ///< its state word in RTS or SQD
    std::uint64_t longest_ = max_message_bytes;  ///< longer messages do not arrive
    std::uint64_t longest_inline_ = 0;           ///< nor are more bytes posted inline
    std::int64_t due_ = 0;                       ///< of the request that was not
    std::uint32_t plan_ = 0;                     ///< of the pending request that runs
    bool hurry_ = false;
    bool abandoned_ = false;
    bool copies_refused_ = false;  ///< the system's refusal, known when they were connected
    bool asymmetric_ = false;
    bool connected_ = false;
    bool reliable_ = true;
    Hazard* hazard_ = nullptr;  ///< under which it runs
};

}  // namespace millrace::soft
