#include "transport/receiver.hpp"

#include <atomic>
#include <cstdint>
#include <utility>

#include "fabric/node.hpp"
#include "receives/receive_pool.hpp"

namespace millrace::soft {

void Side::ring_async(PeerNode* peer, Counters& counters) noexcept {
    const int bell =
        end.mine ? end.bell_async
                 : bell_async.descriptor(
                       *peer, end.block.control->bell_async.load(std::memory_order_relaxed));
    if (bell < 0) return;
    counters.add(Count::bell);
    ring_bell(bell);
}

void Receiver::open(Node* node, PeerNode* peer, bool asymmetric, Counters& counters) noexcept {
    node_ = node;
    peer_ = peer;
    counters_ = &counters;
    keys.open(end, node, peer);
    completions.open(end.block, CompletionRing::Of::receives,
                     {end.bell_receive, end.news_receive, end.mine ? nullptr : peer}, asymmetric,
                     counters);
    access_ = end.mine ? end.access : &end.block.control->access;
    look_at_receives();
}

void Receiver::close() noexcept {
    end = End{};
    keys.close();
    completions.close();
    bell_async = PeerBell{};
    claimed_ = 0;
    node_ = nullptr;
    peer_ = nullptr;
}

bool Receiver::receive_available(std::uint32_t& position) noexcept {
    const BlockView& block = end.block;
    position = block.consumed->position.load(std::memory_order_relaxed);
    if (end.mine) [[unlikely]] {
        // The peer may have written any number there.
        const std::uint32_t head = end.receive_head->load(std::memory_order_acquire);
        if (end.pool) return position - head <= block.receive_mask;
        return position - head < end.receive_tail->load(std::memory_order_acquire) - head;
    }
    if (!receive_seen(position)) {  // none, or the other executor went past what we saw
        receive_tail_ = block.receive->tail.load(std::memory_order_acquire);
        if (!receive_seen(position)) return false;
    }
    return true;
}

bool Receiver::claim(std::uint32_t& position, const PoolSlot*& slot) noexcept {
    if (claimed_ != 0) [[unlikely]] {  // by a request that the receiver's owner did not copy yet
        slot = &end.pool.slot(claimed_ - 1);
        position = end.block.consumed->position.load(std::memory_order_relaxed);
        return true;
    }
    // A queue that has grown has more receives than the queue pair has room for completions.
    if (!receive_available(position)) [[unlikely]]
        return false;
    const ClaimedReceive next =
        end.pool.claim_or_wait(index_of_qpn(end.qpn), node_->number());
    if (next.slot == nullptr) return false;
    slot = next.slot;
    claimed_ = next.number + 1;
    if (end.pool.below_limit(next.position)) [[unlikely]]
        ring_async();
    return true;
}

void Receiver::give_claimed_back() noexcept {
    end.own_pool->offer_again_one(std::exchange(claimed_, 0) - 1);
}

bool Receiver::find_target(ibv_wr_opcode opcode, std::uint32_t key, std::uint64_t address,
                           std::uint64_t bytes, Piece& target) noexcept {
    const std::uint32_t needed =
        opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if (!grants(needed)) {
        return refuse(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR,
                      {ReasonKind::queue_pair_access, 0, needed});
    }
    target.length = bytes;
    target.key = key;
    if (bytes == 0 || keys.find(key, address, bytes, needed, target.at)) return true;
    // The receive that it would have completed was to say so.
    return refuse(
        IBV_WC_REM_ACCESS_ERR,
        opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR,
        keys.reason());
}

bool Receiver::find_receive(const Consumed& receive, std::uint64_t bytes, Piece* pieces,
                            std::uint32_t& count) noexcept {
    const BlockView& block = end.block;
    std::uint64_t room = 0;
    const auto scatter = [&](const std::uint32_t& written, std::uint32_t most, const void* list) {
        return keys.scatter(written, most, list, pieces, count, room);
    };
    bool known = false;
    if (!receive.pooled) [[likely]] {
        const ReceiveEntry* const entry = block.receive_entry(receive.position);
        known = scatter(entry->sges, block.receive_sges, entry + 1);
    } else if (end.mine) {
        PostedPieces posted;  // the slot says what a peer wants
        known = end.own_pool->posted(claimed_ - 1, posted) &&
                scatter(posted.count, max_sges, posted.sges.data());
    } else {
        known = scatter(receive.slot->sges, end.pool.sges(), receive.slot + 1);
    }
    if (!known) return refuse(IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, keys.reason());
    if (bytes > room) {
        return refuse(IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
                      {ReasonKind::receive_too_short, 0, bytes - room});
    }
    return true;
}

const KeyCache::Region* Receiver::find_word(std::uint32_t key, std::uint64_t address,
                                            Piece& target) noexcept {
    constexpr std::uint64_t size = sizeof(std::uint64_t);
    const auto invalid = [&](const Reason& why) -> const KeyCache::Region* {
        static_cast<void>(refuse(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR, why));
        return nullptr;
    };
    if (address % size != 0) return invalid({ReasonKind::unaligned, 0, address});
    if (!grants(IBV_ACCESS_REMOTE_ATOMIC)) {
        return invalid({ReasonKind::queue_pair_access, 0, IBV_ACCESS_REMOTE_ATOMIC});
    }
    target.length = size;
    target.key = key;
    const KeyCache::Region* const region =
        keys.find_region(key, address, size, IBV_ACCESS_REMOTE_ATOMIC, target.at);
    if (region == nullptr) {
        static_cast<void>(refuse(IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, keys.reason()));
        return nullptr;
    }
    const std::uint64_t here = target.at.direct != nullptr
                                   ? reinterpret_cast<std::uint64_t>(target.at.direct)
                                   : target.at.remote;
    // The memory behind an aligned address need not be aligned: the program chose both.
    return here % size == 0 ? region : invalid({ReasonKind::unaligned, 0, here});
}

std::uint64_t Receiver::change_word(std::byte* at, ibv_wr_opcode opcode,
                                    std::uint64_t compare_or_add, std::uint64_t swap) noexcept {
    const std::atomic_ref<std::uint64_t> word{*reinterpret_cast<std::uint64_t*>(at)};
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return word.fetch_add(compare_or_add);
    std::uint64_t original = compare_or_add;
    word.compare_exchange_strong(original, swap);
    return original;
}

std::atomic<std::uint64_t>* Receiver::window_word(std::uint32_t key) noexcept {
    const KeyCache::Region* const region = keys.look_up(key, false);
    if (region == nullptr || (region->pd & pd_is_queue_pair) == 0) return nullptr;
    return &end.block.windows[slot_of_window_pd(region->pd)];
}

void Receiver::fail(ibv_wc_status status, const Reason& why) noexcept {
    FaultLine& fault = *end.block.fault;
    fault.receive_slot.store(std::exchange(claimed_, 0), std::memory_order_relaxed);
    fault.receive_reason.store(why.word(), std::memory_order_relaxed);
    fault.receive_amount.store(why.amount, std::memory_order_relaxed);
    fault.receive.store(1U + static_cast<std::uint32_t>(status), std::memory_order_release);
    full_fence();
    completions.ring(true);
    ring_async();
}

}  // namespace millrace::soft
