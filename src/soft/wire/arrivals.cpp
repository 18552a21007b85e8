#include "wire/arrivals.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "fabric/copy_in_order.hpp"
#include "fabric/node.hpp"
#include "layout/hazard.hpp"
#include "system/fences.hpp"

namespace millrace::soft {

using roce::Outcome;

Arrivals::Arrivals(const Of& of) noexcept : of_{of} {
    receiver_.end = of.end;
    receiver_.open(&of.node, nullptr, of.asymmetric, of.counters);
}

Outcome Arrivals::refused() noexcept {
    const Refusal& refusal = receiver_.refusal();
    // Nobody else tells an unreliable queue pair what is wrong with its own memory.
    if (of_.end.type == IBV_QPT_UC && refusal.receiver == IBV_WC_LOC_PROT_ERR) {
        receiver_.fail(refusal.receiver, refusal.why);
    }
    switch (refusal.sender) {
        case IBV_WC_REM_INV_REQ_ERR: return Outcome::invalid_request;
        case IBV_WC_REM_OP_ERR: return Outcome::remote_operation;
        default: return Outcome::remote_access;
    }
}

Outcome Arrivals::claim() noexcept {
    receive_.pooled = static_cast<bool>(of_.end.pool);
    const bool there = receive_.pooled ? receiver_.claim(receive_.position, receive_.slot)
                                       : receiver_.receive_available(receive_.position);
    return there ? Outcome::done : Outcome::no_receive;
}

Outcome Arrivals::begin_write(std::uint32_t key, std::uint64_t address,
                              std::uint32_t length) noexcept {
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    Piece target;
    if (!receiver_.find_target(IBV_WR_RDMA_WRITE, key, address, length, target)) return refused();
    write_ = {key, address, true, false};
    return Outcome::done;
}

bool Arrivals::find(std::uint64_t offset, std::uint64_t bytes, Pieces& pieces,
                    std::uint32_t& count) noexcept {
    if (write_.is_current) {
        count = 1;
        return receiver_.find_target(IBV_WR_RDMA_WRITE, write_.key, write_.address + offset, bytes,
                                     pieces[0]);
    }
    if (!receiver_.find_receive(receive_, offset + bytes, pieces.data(), count)) return false;
    cut(pieces.data(), count, offset, bytes);
    return true;
}

Outcome Arrivals::place(std::uint32_t offset, std::span<const std::uint8_t> bytes) noexcept {
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    Pieces pieces;
    std::uint32_t count = 0;
    if (offset == 0) write_.is_current = std::exchange(write_.is_new, false);
    if (!find(offset, bytes.size(), pieces, count)) return refused();
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
    for (std::uint32_t i = 0; i < count; ++i) {
        const Piece& piece = pieces[i];
        if (piece.at.direct != nullptr) copy_in_order(piece.at.direct, from, piece.length);
        from += piece.length;
    }
    return Outcome::done;
}

Outcome Arrivals::finish(const roce::Arrival& arrival) noexcept {
    write_.is_current = false;
    if (arrival.is_write && !arrival.has_immediate) return Outcome::done;
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    std::atomic<std::uint64_t>* window = nullptr;
    std::uint32_t immediate = arrival.immediate;
    std::uint32_t flags = arrival.is_write ? unsigned{completion_write} : 0U;
    if (arrival.has_immediate) flags |= completion_immediate;
    if (arrival.solicited) flags |= completion_solicited;
    if (arrival.invalidates) {
        immediate = arrival.invalidate_key;
        window = receiver_.window_word(immediate);
        if (window == nullptr) return Outcome::remote_access;
    }
    Pieces pieces;
    std::uint32_t count = 0;
    // What nothing is placed in is looked at all the same.
    if (!arrival.is_write && arrival.length == 0 && !find(0, 0, pieces, count)) return refused();
    receiver_.complete(receive_, arrival.length, immediate, flags, window);
    return Outcome::done;
}

Outcome Arrivals::check_read(std::uint32_t key, std::uint64_t address,
                             std::uint32_t length) noexcept {
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    Piece target;
    return receiver_.find_target(IBV_WR_RDMA_READ, key, address, length, target) ? Outcome::done
                                                                                 : refused();
}

Outcome Arrivals::read(std::uint32_t key, std::uint64_t address,
                       std::span<std::uint8_t> to) noexcept {
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    Piece target;
    if (!receiver_.find_target(IBV_WR_RDMA_READ, key, address, to.size(), target)) {
        return refused();
    }
    auto* const here = reinterpret_cast<std::byte*>(to.data());
    full_fence();  // the WRITEs before it were stores of this processor, as in Executor::move
    if (target.at.direct == nullptr) {
        std::memset(here, 0, to.size());
    } else {
        copy_in_order(here, target.at.direct, to.size());
    }
    return Outcome::done;
}

bool Arrivals::lock_word(std::uint32_t key, std::uint64_t address) noexcept {
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    Piece target;
    const KeyCache::Region* const region = receiver_.find_word(key, address, target);
    // What is refused is refused in its turn.
    if (region == nullptr || region->kind == RegionKind::shared_file) return true;
    const std::uint64_t at_owner = receiver_.keys.address_at_owner(key, address);
    if (!of_.node.atomic_locks().lock(at_owner)) return false;
    locked_ = at_owner;
    return true;
}

void Arrivals::unlock_word() noexcept {
    if (locked_) of_.node.atomic_locks().unlock(*locked_);
    locked_.reset();
}

Outcome Arrivals::atomic(roce::Operation operation, std::uint32_t key, std::uint64_t address,
                         std::uint64_t compare_or_add, std::uint64_t swap,
                         std::uint64_t& original) noexcept {
    const HazardScope scope{of_.block.hazard->run, of_.asymmetric};
    Piece target;
    if (receiver_.find_word(key, address, target) == nullptr) return refused();
    original = 0;
    if (target.at.direct == nullptr) return Outcome::done;
    const ibv_wr_opcode opcode = operation == roce::Operation::fetch_add
                                     ? IBV_WR_ATOMIC_FETCH_AND_ADD
                                     : IBV_WR_ATOMIC_CMP_AND_SWP;
    original = Receiver::change_word(target.at.direct, opcode, compare_or_add, swap);
    return Outcome::done;
}

void Arrivals::failed(roce::Status) noexcept {
    const Refusal& refusal = receiver_.refusal();
    const ibv_wc_status status =
        refusal.receiver == IBV_WC_SUCCESS ? IBV_WC_WR_FLUSH_ERR : refusal.receiver;
    receiver_.fail(status, refusal.why);
}

}  // namespace millrace::soft
