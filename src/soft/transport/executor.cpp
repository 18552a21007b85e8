#include "transport/executor.hpp"

#include <cstdint>
#include <utility>

#include "fabric/node.hpp"
#include "receives/receive_pool.hpp"
#include "transport/strict_plan.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] std::uint64_t address_of(const Reach& reach) noexcept {
    return reach.direct != nullptr ? reinterpret_cast<std::uint64_t>(reach.direct) : reach.remote;
}

}  // namespace

CopyResult Executor::copy_one(const Reach& to, const Reach& from, std::uint64_t bytes) noexcept {
    if (to.direct != nullptr && from.direct != nullptr) [[likely]] {
        // Overlap is the program's mistake, or a region written onto itself: both have to end.
        if (to.direct < from.direct + bytes && from.direct < to.direct + bytes) [[unlikely]] {
            if (to.direct != from.direct) __builtin_memmove(to.direct, from.direct, bytes);
        } else {
            copy_in_order(to.direct, from.direct, bytes);
        }
        return CopyResult::ok;
    }
    if (to.pid != nowhere && from.pid != nowhere) counters_->add(Count::system_copy);
    return transfer(to, from, bytes, *peer_);
}

CopyResult Executor::copy(const Piece* to, std::uint32_t to_count, const Piece* from,
                          std::uint32_t from_count, std::uint64_t total) noexcept {
    return for_each_run(to, to_count, from, from_count, total,
                        [this](const Reach& there, const Reach& here, std::uint64_t bytes) {
                            return copy_one(there, here, bytes);
                        });
}

void Executor::name_several(const Piece* local, std::uint32_t local_count, const Piece* remote,
                            std::uint32_t remote_count) noexcept {
    RegionNames names;
    for (std::uint32_t i = 0; i < local_count; ++i) names.add_sender(local[i].key);
    for (std::uint32_t i = 0; i < remote_count; ++i) names.add_receiver(remote[i].key);
    names.publish(*hazard_);
}

/// Of a shared receive queue: is there room for its completion?
bool Executor::receive_available(std::uint32_t& position) noexcept {
    const BlockView& block = receiver_.end.block;
    position = block.consumed->position.load(std::memory_order_relaxed);
    if (receiver_.end.mine) [[unlikely]] {
        // The peer may have written any number there.
        const std::uint32_t head = receiver_.end.receive_head->load(std::memory_order_acquire);
        if (receiver_.end.pool) return position - head <= block.receive_mask;
        return position - head < receiver_.end.receive_tail->load(std::memory_order_acquire) - head;
    }
    std::uint32_t available = receive_tail_ - position;
    if (available - 1 > block.receive_mask) {  // none, or the other executor went past what we saw
        receive_tail_ = block.receive->tail.load(std::memory_order_acquire);
        available = receive_tail_ - position;
        if (available - 1 > block.receive_mask) return false;
    }
    return true;
}

/// From a shared receive queue: as late as possible, because nothing but a completion or a fault
/// gives it back.
bool Executor::claim_receive(std::uint32_t& position, const PoolSlot*& slot) noexcept {
    if (claimed_ != 0) [[unlikely]] {  // by a request that the receiver's owner did not copy yet
        slot = &receiver_.end.pool.slot(claimed_ - 1);
        position = receiver_.end.block.consumed->position.load(std::memory_order_relaxed);
        return true;
    }
    // A queue that has grown has more receives than the queue pair has room for completions.
    if (!receive_available(position)) [[unlikely]]
        return false;
    const ClaimedReceive claimed =
        receiver_.end.pool.claim_or_wait(index_of_qpn(receiver_.end.qpn), node_->number());
    if (claimed.slot == nullptr) return false;
    slot = claimed.slot;
    claimed_ = claimed.number + 1;
    if (receiver_.end.pool.below_limit(claimed.position)) [[unlikely]]
        ring_async(receiver_);
    return true;
}

template <class Steps>
Progress Executor::run_as(const Request& request) noexcept {
    const Progress progress = attempt<Steps>(request);
    if (reliable_ || progress == Progress::done) [[likely]]
        return progress;
    if (Steps::in_pieces && progress == Progress::not_due) return progress;
    if (progress == Progress::owners || abandoned_) return progress;
    return drop(request, progress);
}

Progress Executor::run(const Request& request) noexcept { return run_as<AtOnce>(request); }
Progress Executor::run_in_pieces(const Request& request) noexcept {
    return run_as<InPieces>(request);
}

template <class Steps>
Progress Executor::gather_message(const Request& request, std::uint32_t access, Pieces& pieces,
                                  std::uint32_t& count, std::uint64_t& total) noexcept {
    if (!gather(request, access, pieces.data(), count, total)) [[unlikely]] {
        because<Steps>([&] { return sender_.keys.reason(); });
        return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    }
    if (total > max_message_bytes) [[unlikely]] {
        because<Steps>([&] {
            return Reason{ReasonKind::message_too_long, 0, total - max_message_bytes};
        });
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
    }
    return Progress::done;
}

template <class Steps>
[[gnu::noinline]] Progress Executor::put_off(const Request& request, Progress progress) noexcept {
    // What a READ or an atomic brings is written here when it comes.
    if (request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode)) return progress;
    Pieces local;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    const Progress found = gather_message<Steps>(request, 0, local, count, total);
    return found == Progress::done ? progress : found;
}

template <class Steps>
Progress Executor::find_target(const Request& request, std::uint64_t bytes,
                               Piece& target) noexcept {
    const std::uint32_t needed =
        request.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if ((access_->load(std::memory_order_relaxed) & needed) == 0) {
        because<Steps>([&] { return Reason{ReasonKind::queue_pair_access, 0, needed}; });
        return fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    target.length = bytes;
    target.key = request.remote_key;
    if (bytes == 0 ||
        receiver_.keys.find(request.remote_key, request.remote_address, bytes, needed, target.at)) {
        return Progress::done;
    }
    because<Steps>([&] { return receiver_.keys.reason(); });
    // The receive that it would have completed was to say so.
    return fail(IBV_WC_REM_ACCESS_ERR, request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                                           ? IBV_WC_LOC_ACCESS_ERR
                                           : IBV_WC_WR_FLUSH_ERR);
}

template <class Steps>
Progress Executor::find_receive(const Consumed& receive, std::uint64_t bytes, Pieces& pieces,
                                std::uint32_t& count) noexcept {
    const BlockView& block = receiver_.end.block;
    std::uint64_t room = 0;
    bool known = false;
    if (!receive.pooled) [[likely]] {
        const ReceiveEntry* const entry = block.receive_entry(receive.position);
        known = receiver_.keys.scatter(entry->sges, block.receive_sges, entry + 1, pieces.data(),
                                       count, room);
    } else if (receiver_.end.mine) {
        PostedPieces posted;  // the slot says what a peer wants
        known = receiver_.end.own_pool->posted(claimed_ - 1, posted) &&
                receiver_.keys.scatter(posted.count, max_sges, posted.sges.data(), pieces.data(),
                                       count, room);
    } else {
        known = receiver_.keys.scatter(receive.slot->sges, receiver_.end.pool.sges(),
                                       receive.slot + 1, pieces.data(), count, room);
    }
    if (!known) {
        because<Steps>([&] { return receiver_.keys.reason(); });
        return fail(IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
    }
    if (bytes > room) {
        because<Steps>([&] { return Reason{ReasonKind::receive_too_short, 0, bytes - room}; });
        return fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR);
    }
    return Progress::done;
}

CopyResult Executor::move(const Request& request, const Consumed& receive, const Piece* to,
                          std::uint32_t to_count, const Piece* from, std::uint32_t from_count,
                          std::uint64_t bytes) noexcept {
    const CopyResult result = copy(to, to_count, from, from_count, bytes);
    if (result != CopyResult::denied) [[likely]]
        return result;
    AskedCopy right;
    right.key = request.remote_key;
    right.receive = receive.pooled ? claimed_ - 1 : receive.position;
    right.purpose = request.opcode == IBV_WR_RDMA_READ ? CopyPurpose::read
                    : is_placed(request.opcode)        ? CopyPurpose::write
                                                       : CopyPurpose::receive;
    return copy_by_owner(right, to, to_count, from, from_count, bytes);
}

Progress Executor::move_failed(const Request& request, const Consumed& receive,
                               CopyResult result) noexcept {
    // Whoever does not execute is the one whose memory was not there.
    if (!sender_.end.mine) {
        if (receive.pooled) receiver_.end.own_pool->offer_again_one(std::exchange(claimed_, 0) - 1);
        return copy_failed(result, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    }
    return is_placed(request.opcode)
               ? copy_failed(result, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR)
               : copy_failed(result, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
}

void Executor::tell(const Request& request, const Consumed& receive, std::uint32_t bytes,
                    std::atomic<std::uint64_t>* window) noexcept {
    counters_->add(count_of(request.opcode));
    if (sends_to_receive(request.opcode)) {
        std::uint32_t flags = completion_flags(request);
        if (window != nullptr) [[unlikely]] {
            // Nobody else executes for this connection now; before the receiver can know of it.
            window->store(0, std::memory_order_release);
            flags = (flags & ~completion_immediate) | completion_invalidated;
        }
        if (receive.pooled) flags |= std::exchange(claimed_, 0) - 1;
        receiver_.completions.write(receive.position, bytes, request.immediate, flags);
    }
    if ((request.flags & IBV_SEND_SIGNALED) != 0) complete_send(request.slot, bytes);
}

/// Locate, move, tell.
template <class Steps>
Progress Executor::attempt(const Request& request) noexcept {
    if (!receiver_ready()) [[unlikely]]
        return put_off<Steps>(request, Progress::no_peer);
    std::atomic<std::uint64_t>* window = nullptr;
    if (request.opcode > IBV_WR_RDMA_READ) [[unlikely]] {
        if (request.opcode != IBV_WR_SEND_WITH_INV) return attempt_atomic<Steps>(request);
        window = window_word(request.immediate);
    }
    Consumed receive;
    const bool consumes = sends_to_receive(request.opcode);
    receive.pooled = consumes && receiver_.end.pool;
    if (consumes && !receive.pooled && !receive_available(receive.position)) [[unlikely]]
        return put_off<Steps>(request, Progress::no_receive);
    if (request.opcode == IBV_WR_SEND_WITH_INV && window == nullptr) [[unlikely]] {
        because<Steps>([&] { return Reason{ReasonKind::no_window, request.immediate}; });
        return fail(IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    }

    Pieces local;
    std::uint32_t local_count = 0;
    std::uint64_t total = 0;
    const bool reads = request.opcode == IBV_WR_RDMA_READ;
    if (gather_message<Steps>(request, reads ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U, local,
                              local_count, total) != Progress::done) [[unlikely]] {
        return reads ? judge_read<Steps>(request) : Progress::failed;
    }
    if (total > longest_) [[unlikely]] {
        because<Steps>([&] { return way(); });
        return reads ? fail(IBV_WC_BAD_RESP_ERR, IBV_WC_SUCCESS)
                     : fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    if (receive.pooled && !claim_receive(receive.position, receive.slot)) {
        return Progress::no_receive;
    }
    Pieces remote;
    std::uint32_t remote_count = 0;
    Progress found = Progress::done;
    if (is_placed(request.opcode)) {
        found = find_target<Steps>(request, total, remote[0]);
        remote_count = total > 0 ? 1 : 0;
    } else {
        found = find_receive<Steps>(receive, total, remote, remote_count);
    }
    if (found != Progress::done) return found;

    std::uint64_t part = total;
    [[maybe_unused]] typename Steps::Place place;
    if constexpr (Steps::in_pieces) {
        // A pool's receive is claimed for good or not at all: it is filled at once.
        if (!receive.pooled && remote_count > 0) {
            const StrictPlan plan{plan_, total, address_of(remote[0].at), *sender_.end.strict};
            place.step = sender_.end.block.pending->step.load(std::memory_order_relaxed);
            place.steps = plan.steps();
            place.pause = plan.pause_after(place.step);
            const StrictPlan::Range range = plan.range(place.step);
            cut(local.data(), local_count, range.offset, range.bytes);
            cut(remote.data(), remote_count, range.offset, range.bytes);
            part = range.bytes;
        }
    }
    name_regions(local.data(), local_count, remote.data(), remote_count);
    // A READ sees memory as it is after the WRITEs before it have been placed: on this processor
    // they are stores and it is loads, which only a fence keeps in order.
    if (reads) full_fence();
    const CopyResult result =
        reads
            ? move(request, receive, local.data(), local_count, remote.data(), remote_count, part)
            : move(request, receive, remote.data(), remote_count, local.data(), local_count, part);
    if (result != CopyResult::ok) {
        because<Steps>([] { return Reason{ReasonKind::unmapped}; });
        return move_failed(request, receive, result);
    }
    if constexpr (Steps::in_pieces) {
        if (place.step + 1 < place.steps) return go_on_in(place.pause, place.step + 1);
        if (consumes && !receive.pooled && window == nullptr && (plan_ & plan_tells_late) != 0) {
            return go_on_in(place.pause, step_landed);
        }
    }
    tell(request, receive, static_cast<std::uint32_t>(total), window);
    return Progress::done;
}

/// Where the bytes of a READ come to is looked at when they come, so the peer judges first.
template <class Steps>
Progress Executor::judge_read(const Request& request) noexcept {
    if (failure_ == IBV_WC_LOC_PROT_ERR) {
        std::uint64_t wanted = 0;
        for (int i = 0; i < request.sge_count; ++i) wanted += request.sges[i].length;
        Piece unused;
        static_cast<void>(find_target<Steps>(request, wanted, unused));
    }
    return Progress::failed;
}

bool Executor::send_at_once(const ibv_send_wr& wr, std::uint32_t flags,
                            std::uint32_t slot) noexcept {
    if (receiver_state_->load(std::memory_order_acquire) - receiver_word_ > receiving_states)
        [[unlikely]] {
        return false;
    }
    const BlockView& block = receiver_.end.block;
    const std::uint32_t position = block.consumed->position.load(std::memory_order_relaxed);
    // Our own receives and those of a pool are found otherwise; none, as far as we have seen.
    if (receiver_.end.mine || receiver_.end.pool ||
        receive_tail_ - position - 1 > block.receive_mask)
        return false;
    const ReceiveEntry* const entry = block.receive_entry(position);
    if (load_once(entry->sges) != 1) return false;
    ibv_sge room;
    load_sges(entry + 1, 1, &room);
    const ibv_sge& piece = *wr.sg_list;
    const std::uint64_t length = piece.length;
    const std::uint32_t ours = (flags & IBV_SEND_INLINE) == 0 ? piece.lkey : 0;
    hazard_->name(ours, room.lkey);
    light_fence(asymmetric_);  // the scope began with no name
    const KeyCache::Region& target = receiver_.keys.at(room.lkey);
    const std::uint64_t to = room.addr - target.iova;
    if (length == 0 || length > longest_ || length > room.length ||
        !target.is_valid_as(room.lkey) ||
        !KeyCache::lies_within(to, room.length, target.receivable_length)) {
        return false;
    }
    Way way{target.receive_to + to, reinterpret_cast<const std::byte*>(piece.addr), length};
    if ((flags & IBV_SEND_INLINE) == 0) {
        const KeyCache::Region& source = sender_.keys.at(ours);
        const std::uint64_t at = piece.addr - source.iova;
        if (!source.is_valid_as(ours) || !KeyCache::lies_within(at, length, source.readable_length))
            return false;
        way.from = source.read_from + at;
    }
    if (way.overlaps()) return false;
    if (way.to != way.from) copy_in_order(way.to, way.from, length);
    counters_->add(Count::send);
    const bool immediate = wr.opcode == IBV_WR_SEND_WITH_IMM;
    receiver_.completions.write(
        position, piece.length, immediate ? wr.imm_data : 0,
        (immediate ? completion_immediate : 0U) |
            ((flags & IBV_SEND_SOLICITED) != 0 ? completion_solicited : 0U));
    if ((flags & IBV_SEND_SIGNALED) != 0) complete_send(slot, piece.length);
    // The peer wrote it long ago. By the time of the next SEND it is here.
    __builtin_prefetch(block.receive_entry(position + 1));
    return true;
}

std::atomic<std::uint64_t>* Executor::window_word(std::uint32_t key) noexcept {
    const KeyCache::Region* const region = receiver_.keys.look_up(key, false);
    if (region == nullptr || (region->pd & pd_is_queue_pair) == 0) return nullptr;
    return &receiver_.end.block.windows[slot_of_window_pd(region->pd)];
}

}  // namespace millrace::soft
