#include "wire/departures.hpp"

#include <cstddef>
#include <cstring>
#include <new>

#include "fabric/copy_in_order.hpp"
#include "layout/hazard.hpp"
#include "transport/request.hpp"
#include "wire/wire_owner.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] roce::Operation operation_of(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE: return roce::Operation::write;
        case IBV_WR_RDMA_WRITE_WITH_IMM: return roce::Operation::write_immediate;
        case IBV_WR_SEND: return roce::Operation::send;
        case IBV_WR_SEND_WITH_IMM: return roce::Operation::send_immediate;
        case IBV_WR_SEND_WITH_INV: return roce::Operation::send_invalidate;
        case IBV_WR_RDMA_READ: return roce::Operation::read;
        case IBV_WR_ATOMIC_CMP_AND_SWP: return roce::Operation::compare_swap;
        case IBV_WR_ATOMIC_FETCH_AND_ADD: return roce::Operation::fetch_add;
        default: return roce::Operation::local;
    }
}

}  // namespace

Departures::Departures(const Of& of, WireOwner& owner)
    : of_{of}, owner_{owner}, posted_{std::make_unique<Posted[]>(of.block.send_mask + 1)} {
    if (!of.pending.make()) throw std::bad_alloc{};
    keys_.open(of.end, &of.node, nullptr);
    completions_.open(of.block, CompletionRing::Of::sends, {of.end.bell_send, of.end.news_send},
                      of.asymmetric, of.counters);
}

roce::Request Departures::take(const ibv_send_wr& wr, std::uint32_t flags,
                               std::uint32_t slot) noexcept {
    of_.pending.fill(slot, wr, flags, slot);
    const PendingEntry& entry = of_.pending.entry(slot);
    roce::Request request{};
    request.operation = operation_of(wr.opcode);
    request.fence = (flags & IBV_SEND_FENCE) != 0;
    request.solicited = (flags & IBV_SEND_SOLICITED) != 0;
    request.slot = slot;
    request.remote_key = entry.remote_key;
    request.remote_address = entry.remote_address;
    request.immediate = entry.immediate;
    request.compare_or_add = entry.compare_or_add;
    request.swap = entry.swap;
    Posted& posted = posted_[slot];
    posted = {};
    if (request.operation == roce::Operation::local) return request;
    const std::uint64_t bytes = bytes_of(wr.sg_list, wr.num_sge);
    const bool fits = is_atomic(wr.opcode) ? bytes == sizeof(std::uint64_t)
                                           : bytes <= max_message_bytes;
    if (!fits) {
        // It fails in its turn, and nothing of it leaves.
        posted.doom = IBV_WC_LOC_LEN_ERR;
        request.operation = roce::Operation::local;
        return request;
    }
    request.length = posted.length = static_cast<std::uint32_t>(bytes);
    return request;
}

template <class Action>
bool Departures::for_each_piece(std::uint32_t slot, std::uint64_t offset, std::uint64_t bytes,
                                std::uint32_t access, Action&& action) noexcept {
    const PendingEntry& entry = of_.pending.entry(slot);
    const HazardScope scope{of_.block.hazard->send, of_.asymmetric};
    const bool in_line = (entry.flags & IBV_SEND_INLINE) != 0;
    const ibv_sge whole{reinterpret_cast<std::uint64_t>(&entry + 1), entry.inline_length, 0};
    const ibv_sge* const sges = in_line ? &whole : reinterpret_cast<const ibv_sge*>(&entry + 1);
    Pieces pieces;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    if (!keys_.gather(sges, in_line ? 1 : static_cast<int>(entry.sges), in_line, access,
                      pieces.data(), count, total)) {
        return false;
    }
    cut(pieces.data(), count, offset, bytes);
    for (std::uint32_t i = 0; i < count; ++i) action(pieces[i].at.direct, pieces[i].length);
    return true;
}

roce::Status Departures::gather(std::uint32_t slot, std::uint32_t offset,
                                std::span<std::uint8_t> to) noexcept {
    auto* at = reinterpret_cast<std::byte*>(to.data());
    const bool allowed = for_each_piece(
        slot, offset, to.size(), 0, [&](const std::byte* from, std::uint64_t bytes) {
            if (from == nullptr) {
                std::memset(at, 0, bytes);
            } else {
                copy_in_order(at, from, bytes);
            }
            at += bytes;
        });
    return allowed ? roce::Status::success : roce::Status::local_protection;
}

roce::Status Departures::scatter(std::uint32_t slot, std::uint32_t offset,
                                 std::span<const std::uint8_t> from) noexcept {
    const auto* at = reinterpret_cast<const std::byte*>(from.data());
    const bool allowed = for_each_piece(slot, offset, from.size(), IBV_ACCESS_LOCAL_WRITE,
                                        [&](std::byte* to, std::uint64_t bytes) {
                                            if (to != nullptr) copy_in_order(to, at, bytes);
                                            at += bytes;
                                        });
    return allowed ? roce::Status::success : roce::Status::local_protection;
}

roce::Status Departures::run_local(std::uint32_t slot) noexcept {
    const ibv_wc_status doom = posted_[slot].doom;
    return static_cast<roce::Status>(doom != IBV_WC_SUCCESS ? doom : owner_.run_local());
}

void Departures::complete(std::uint32_t slot) noexcept {
    const PendingEntry& entry = of_.pending.entry(slot);
    const auto opcode = static_cast<ibv_wr_opcode>(entry.opcode);
    if (opcode != IBV_WR_BIND_MW && opcode != IBV_WR_LOCAL_INV)
        of_.counters.add(is_atomic(opcode) ? Count::atomic : count_of(opcode));
    if ((entry.flags & IBV_SEND_SIGNALED) == 0) return;
    completions_.write(completions_.position(), posted_[slot].length, 0, slot);
}

}  // namespace millrace::soft
