// The executor's part that runs what was posted earlier and lies in the sender's block: requests on
// a modelled link, and those of a peer. docs/soft/waiting.md.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "system/cable_time.hpp"
#include "transport/executor.hpp"

namespace millrace::soft {
namespace {

/// False: the program has unmapped it (a device would go on with the pages that it has pinned).
[[nodiscard]] bool is_mapped(const std::byte* memory, std::uint64_t bytes) noexcept {
    const base::Uncancelled held;
    if (bytes == 0) return true;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory) & ~(page_size - 1);
    const std::size_t length = reinterpret_cast<std::uintptr_t>(memory) + bytes - begin;
    base::count_system_call();
    return msync(reinterpret_cast<void*>(begin), length, MS_ASYNC) == 0 || errno != ENOMEM;
}

}  // namespace

bool Executor::unpack(const PendingEntry& entry, Request& request, EntrySges& sges) const noexcept {
    const BlockView& block = sender_.end.block;
    const std::uint32_t opcode = load_once(entry.opcode);
    if (opcode > IBV_WR_ATOMIC_FETCH_AND_ADD && opcode != IBV_WR_SEND_WITH_INV) return false;
    request.opcode = static_cast<ibv_wr_opcode>(opcode);
    request.flags = load_once(entry.flags) & ~pending_lost;
    request.immediate = load_once(entry.immediate);
    request.remote_key = load_once(entry.remote_key);
    request.remote_address = load_once(entry.remote_address);
    request.compare_or_add = load_once(entry.compare_or_add);
    request.swap = load_once(entry.swap);
    request.slot = load_once(entry.slot) & completion_slot_mask;
    request.sges = sges.data();
    if ((request.flags & IBV_SEND_INLINE) != 0) {
        const std::uint32_t length = load_once(entry.inline_length);
        if (length > block.inline_bytes || request.opcode == IBV_WR_RDMA_READ ||
            is_atomic(request.opcode)) {
            return false;
        }
        sges[0] = ibv_sge{reinterpret_cast<std::uint64_t>(&entry + 1), length, 0};
        request.sge_count = 1;
        return true;
    }
    const std::uint32_t count = load_once(entry.sges);
    if (count > block.send_sges) return false;
    load_sges(&entry + 1, count, sges.data());
    request.sge_count = static_cast<int>(count);
    return true;
}

/// The rest of a request whose bytes are there: from here on nothing of the sender's counts.
Progress Executor::tell_receiver(const Request& request) noexcept {
    std::uint32_t receive = 0;
    if (!receiver_ready()) return Progress::no_peer;
    if (!receiver_.receive_available(receive)) return Progress::no_receive;
    const auto bytes = static_cast<std::uint32_t>(bytes_of(request.sges, request.sge_count));
    receiver_.counters().add(count_of(request.opcode));
    receiver_.completions.write(receive, bytes, request.immediate, completion_flags(request));
    return Progress::done;
}

/// Before they are looked at: who is stopped from here on holds up nobody whose regions are others.
/// An entry of a receive queue that changes after this is its owner's own lie.
void Executor::announce_regions(const Request& request) noexcept {
    RegionNames names;
    for (int i = 0; i < request.sge_count && (request.flags & IBV_SEND_INLINE) == 0; ++i) {
        names.add_sender(request.sges[i].lkey);
    }
    std::uint32_t receive = 0;
    if (!sends_to_receive(request.opcode) || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        names.add_receiver(request.remote_key);
    } else if (receiver_.end.pool) {
        names.add_unknown();  // nobody knows which receive it will be
    } else if (receiver_ready() && receiver_.receive_available(receive)) {
        const BlockView& block = receiver_.end.block;
        const ReceiveEntry* const entry = block.receive_entry(receive);
        EntrySges sges;
        const std::uint32_t count = std::min(load_once(entry->sges), block.receive_sges);
        load_sges(entry + 1, count, sges.data());
        for (std::uint32_t i = 0; i < count; ++i) names.add_receiver(sges[i].lkey);
    } else {
        names.add_unknown();  // it may be there in a moment
    }
    names.announce(*hazard_, asymmetric_);
}

Progress Executor::run_pending(const PendingEntry& entry) noexcept {
    PendingLine& pending = *sender_.end.block.pending;
    plan_ = sender_.end.strict == nullptr ? 0 : load_once(entry.plan);
    const std::uint32_t step = plan_ == 0 ? 0 : pending.step.load(std::memory_order_relaxed);
    due_ = step == 0 ? load_once(entry.due) : pending.step_due.load(std::memory_order_relaxed);
    if (hurry_ && step == step_landed) due_ = 0;
    if (due_ != 0 && cable_now() < due_) return Progress::not_due;
    const std::uint32_t opcode = load_once(entry.opcode);
    if (opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV) return Progress::owners;
    Request request{};
    EntrySges sges;
    if (!unpack(entry, request, sges)) {
        return fail(IBV_WC_LOC_QP_OP_ERR, IBV_WC_SUCCESS, {ReasonKind::malformed});
    }
    announce_regions(request);
    if ((load_once(entry.flags) & pending_lost) != 0 && !reliable_) [[unlikely]]
        return lose(request, request.swap);
    const bool landed = step == step_landed && sends_to_receive(request.opcode);
    if (copies_refused_ && !landed && !sender_.end.mine && is_peers_alone(request)) [[unlikely]]
        return Progress::owners;
    if (plan_ == 0) return run(request);
    Progress progress = landed ? tell_receiver(request) : run_in_pieces(request);
    // Nobody is there to be told, and an unreliable sender does not wait.
    if (landed && !reliable_) progress = Progress::done;
    // The next request at the head begins from the beginning.
    if (progress == Progress::done) pending.step.store(0, std::memory_order_relaxed);
    return progress;
}

std::optional<std::uint64_t> Executor::checksum_of_source(const PendingEntry& entry) noexcept {
    Request request{};
    EntrySges sges;
    Pieces pieces;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    if (!connected_ || !unpack(entry, request, sges) || (request.flags & IBV_SEND_INLINE) != 0 ||
        request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode) ||
        !gather(request, 0, pieces.data(), count, total) || total > max_message_bytes) {
        return std::nullopt;
    }
    std::uint64_t sum = total;
    for (std::uint32_t i = 0; i < count; ++i) {
        const Piece& piece = pieces[i];
        if (piece.at.direct == nullptr || !is_mapped(piece.at.direct, piece.length)) {
            return std::nullopt;
        }
        for (std::uint64_t at = 0; at < piece.length; at += sizeof sum) {
            std::uint64_t word = 0;
            std::memcpy(&word, piece.at.direct + at,
                        std::min<std::uint64_t>(sizeof word, piece.length - at));
            sum = (sum ^ word) * 0x9e3779b97f4a7c15U;
            sum ^= sum >> 29;
        }
    }
    return sum;
}

}  // namespace millrace::soft
