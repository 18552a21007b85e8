#include "transport/executor.hpp"

#include <cstdint>
#include <utility>

#include "fabric/node.hpp"
#include "receives/receive_pool.hpp"

namespace millrace::soft {

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
    if (to.pid != nowhere && from.pid != nowhere) receiver_.counters().add(Count::system_copy);
    return transfer(to, from, bytes, *receiver_.peer());
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

template <class Steps>
Progress Executor::run_by(const Request& request) noexcept {
    const Progress progress = attempt<Steps>(request);
    if (reliable_ || progress == Progress::done) [[likely]]
        return progress;
    if (progress == Progress::not_due || progress == Progress::owners || abandoned_)
        return progress;
    return drop(request, progress);
}

Progress Executor::run(const Request& request) noexcept { return run_by<AtOnce>(request); }
Progress Executor::run_in_pieces(const Request& request) noexcept {
    return run_by<InPieces>(request);
}

template <class Steps>
Progress Executor::attempt(const Request& request) noexcept {
    if (!receiver_ready()) [[unlikely]]
        return put_off(request, Progress::no_peer);
    if (is_atomic(request.opcode)) [[unlikely]]
        return attempt_atomic<Steps>(request);
    Located it;
    const Progress found = locate(request, it);
    if (found != Progress::done) [[unlikely]]
        return found;
    const Steps steps{plan(), request, it};
    name_regions(it.local.data(), it.local_count, it.remote.data(), it.remote_count);
    const CopyResult result = move(request, it, steps.bytes());
    if (result != CopyResult::ok) [[unlikely]]
        return move_failed(request, it.receive, result);
    if (const std::int64_t due = steps.rest_due(); due != 0) {
        due_ = due;
        return Progress::not_due;
    }
    tell(request, it);
    return Progress::done;
}

Progress Executor::locate(const Request& request, Located& it) noexcept {
    const bool invalidates = request.opcode == IBV_WR_SEND_WITH_INV;
    if (invalidates) [[unlikely]]
        it.window = receiver_.window_word(request.immediate);
    Consumed& receive = it.receive;
    const bool consumes = sends_to_receive(request.opcode);
    receive.pooled = consumes && receiver_.end.pool;
    if (consumes && !receive.pooled && !receiver_.receive_available(receive.position)) [[unlikely]]
        return put_off(request, Progress::no_receive);
    if (invalidates && it.window == nullptr) [[unlikely]] {
        return fail(IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR,
                    {ReasonKind::no_window, request.immediate});
    }
    const bool reads = request.opcode == IBV_WR_RDMA_READ;
    if (locate_message(request, reads ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U, it) !=
        Progress::done) [[unlikely]] {
        return reads ? judge_read(request) : Progress::failed;
    }
    if (it.total > longest_) [[unlikely]] {
        return reads ? fail(IBV_WC_BAD_RESP_ERR, IBV_WC_SUCCESS, way())
                     : fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR, way());
    }
    if (receive.pooled && !receiver_.claim(receive.position, receive.slot)) {
        return Progress::no_receive;
    }
    if (!is_placed(request.opcode)) {
        return receiver_.find_receive(receive, it.total, it.remote.data(), it.remote_count)
                   ? Progress::done
                   : refused();
    }
    it.remote_count = it.total > 0 ? 1 : 0;
    return receiver_.find_target(request.opcode, request.remote_key, request.remote_address,
                                 it.total, it.remote[0])
               ? Progress::done
               : refused();
}

Progress Executor::locate_message(const Request& request, std::uint32_t access,
                                  Located& it) noexcept {
    if (!gather(request, access, it.local.data(), it.local_count, it.total)) [[unlikely]]
        return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS, sender_.keys.reason());
    if (it.total > max_message_bytes) [[unlikely]] {
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS,
                    {ReasonKind::message_too_long, 0, it.total - max_message_bytes});
    }
    return Progress::done;
}

[[gnu::noinline]] Progress Executor::put_off(const Request& request, Progress progress) noexcept {
    // What a READ or an atomic brings is written here when it comes.
    if (request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode)) return progress;
    Located it;
    const Progress found = locate_message(request, 0, it);
    return found == Progress::done ? progress : found;
}

/// Where the bytes of a READ come to is looked at when they come, so the peer judges first.
Progress Executor::judge_read(const Request& request) noexcept {
    if (failure() == IBV_WC_LOC_PROT_ERR) {
        Piece unused;
        if (!receiver_.find_target(request.opcode, request.remote_key, request.remote_address,
                                   bytes_of(request.sges, request.sge_count), unused)) {
            return refused();
        }
    }
    return Progress::failed;
}

CopyResult Executor::move(const Request& request, const Located& it, std::uint64_t bytes) noexcept {
    const Piece* to = it.remote.data();
    const Piece* from = it.local.data();
    std::uint32_t to_count = it.remote_count;
    std::uint32_t from_count = it.local_count;
    if (request.opcode == IBV_WR_RDMA_READ) {
        std::swap(to, from);
        std::swap(to_count, from_count);
        // It sees memory as it is after the WRITEs before it have been placed: on this processor
        // they are stores and it is loads, which only a fence keeps in order.
        full_fence();
    }
    const CopyResult result = copy(to, to_count, from, from_count, bytes);
    if (result != CopyResult::denied) [[likely]]
        return result;
    AskedCopy right;
    right.key = request.remote_key;
    right.receive = it.receive.pooled ? receiver_.claimed() - 1 : it.receive.position;
    right.purpose = request.opcode == IBV_WR_RDMA_READ ? CopyPurpose::read
                    : is_placed(request.opcode)        ? CopyPurpose::write
                                                       : CopyPurpose::receive;
    return copy_by_owner(right, to, to_count, from, from_count, bytes);
}

Progress Executor::move_failed(const Request& request, const Consumed& receive,
                               CopyResult result) noexcept {
    // Whoever does not execute is the one whose memory was not there.
    if (!sender_.end.mine) {
        if (receive.pooled) receiver_.give_claimed_back();
        return copy_failed(result, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    }
    return is_placed(request.opcode)
               ? copy_failed(result, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR)
               : copy_failed(result, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
}

void Executor::tell(const Request& request, const Located& it) noexcept {
    const auto bytes = static_cast<std::uint32_t>(it.total);
    receiver_.counters().add(count_of(request.opcode));
    if (sends_to_receive(request.opcode)) {
        receiver_.complete(it.receive, bytes, request.immediate, completion_flags(request),
                           it.window);
    }
    if ((request.flags & IBV_SEND_SIGNALED) != 0) complete_send(request.slot, bytes);
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
    if (receiver_.end.mine || receiver_.end.pool || !receiver_.receive_seen(position))
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
    receiver_.counters().add(Count::send);
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

}  // namespace millrace::soft
