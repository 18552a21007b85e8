#include "datagram/datagram_target.hpp"

#include <chrono>
#include <cstdint>
#include <cstring>

#include "fabric/node.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::soft {
namespace {

/// How long a datagram waits for its receiver to serve copies; and where it did not.
constexpr std::chrono::milliseconds patience_for_a_box{250};
constexpr std::chrono::milliseconds patience_with_silent{2};

}  // namespace

DatagramTarget::DatagramTarget(Node& node, std::shared_ptr<PeerNode> peer) noexcept
    : node_{node}, peer_{std::move(peer)} {
    asymmetric_ = node.membarrier() && peer_->asymmetric_fences();
}

DatagramTarget::~DatagramTarget() {
    if (pool_block_) peer_->unmap_block(*pool_block_);
    if (block_) peer_->unmap_block(*block_);
}

std::shared_ptr<DatagramTarget> DatagramTarget::make(Node& node, Counters& counters,
                                                     std::uint32_t qpn) {
    auto peer = node.peer(node_of_qpn(qpn));
    if (peer == nullptr) return nullptr;
    const std::shared_ptr<DatagramTarget> target{new DatagramTarget{node, std::move(peer)}};
    return target->map(counters, index_of_qpn(qpn)) ? target : nullptr;
}

bool DatagramTarget::map(Counters& counters, std::uint32_t index) {
    block_ = peer_->map_block(index, 0);
    if (!block_) return false;
    const auto geometry = BlockView::geometry_of_peer(block_->memory, block_->size);
    if (!geometry) return false;
    const BlockView view{block_->memory, *geometry};
    if (load_once(view.receive->type) != IBV_QPT_UD ||
        block_->size < geometry->block_size() + SenderTable::size) {
        return false;
    }
    pool_block_ = peer_->map_block(load_once(view.receive->pool_index),
                                   load_once(view.receive->pool_generation));
    if (!pool_block_) return false;
    const auto pool = PoolView::of_peer(pool_block_->memory, pool_block_->size);
    if (!pool) return false;
    pool_ = *pool;
    index_ = index;
    receiver_.block = view;
    receiver_.qpn = make_qpn(peer_->number(), index);
    keys_.open(receiver_, nullptr, peer_.get());
    arrivals_.open(view, CompletionRing::Of::receives, {.peer = peer_.get()}, asymmetric_,
                   counters);
    who_ = static_cast<std::uint32_t>(
        make_state_word(block_->generation, index, 0, IBV_QPS_RESET) >> 32);
    senders_ = SenderTable{block_->memory + geometry->block_size()};
    senders_.enter(node_.number(), node_.identity());
    hazard_ = &senders_.hazard(node_.number());
    return true;
}

CopyResult DatagramTarget::put(const DatagramMessage& message, Pieces& pieces, std::uint32_t count,
                               std::uint32_t receive) noexcept {
    const auto copy = [&](const Reach& to, const Reach& from, std::uint64_t bytes) {
        return put_run(to, from, bytes, receive);
    };
    if (message.grh != nullptr) {
        const Piece header{
            {reinterpret_cast<std::byte*>(const_cast<ibv_grh*>(message.grh)), 0, 0}, grh_bytes, 0};
        const CopyResult result = for_each_run(pieces.data(), count, &header, 1, grh_bytes, copy);
        if (result != CopyResult::ok) return result;
    }
    cut(pieces.data(), count, grh_bytes, message.bytes);  // its room stays as it is without
    return for_each_run(pieces.data(), count, message.pieces.data(), message.count, message.bytes,
                        copy);
}

CopyResult DatagramTarget::put_run(const Reach& to, const Reach& from, std::uint64_t bytes,
                                   std::uint32_t receive) noexcept {
    if (to.direct != nullptr && from.direct != nullptr && to.direct < from.direct + bytes &&
        from.direct < to.direct + bytes) [[unlikely]] {
        std::memmove(to.direct, from.direct, bytes);
        return CopyResult::ok;
    }
    const CopyResult result = transfer(to, from, bytes, *peer_);
    return result == CopyResult::denied ? put_by_owner(to, from, bytes, receive) : result;
}

CopyResult DatagramTarget::put_by_owner(const Reach& to, const Reach& from, std::uint64_t bytes,
                                        std::uint32_t receive) noexcept {
    peer_->note_copies_refused();
    if (!has_box()) return CopyResult::denied;
    AskedCopy wanted;
    wanted.box = senders_.copy_box(node_.number()).load(std::memory_order_acquire);
    wanted.queue_pair = index_;
    wanted.purpose = CopyPurpose::receive;
    wanted.receive = receive;
    wanted.address = to.remote;
    wanted.local = from.direct;
    wanted.bytes = bytes;
    return peer_->ask_for_copy(wanted);
}

bool DatagramTarget::has_box() noexcept {
    std::atomic<std::uint64_t>& box = senders_.copy_box(node_.number());
    if (box.load(std::memory_order_acquire) != 0) return true;
    // It hears of it when it next looks after the queue pair, as pollers do.
    senders_.wants_box(node_.number()).store(1, std::memory_order_release);
    receiver_.block.fault->wishes.fetch_or(wish_copies, std::memory_order_release);
    ring_bell(bell_async_.descriptor(
        *peer_, receiver_.block.control->bell_async.load(std::memory_order_relaxed)));
    arrivals_.wake();
    base::NapParker parker;
    const auto served = [&] { return box.load(std::memory_order_acquire) != 0; };
    const auto patience = asked_in_vain_ ? patience_with_silent : patience_for_a_box;
    const bool has = base::wait_until(served, base::Deadline::after(patience), base::WaitPolicy{},
                                      parker) == base::Status::ok;
    asked_in_vain_ = !has;
    return has;
}

void DatagramTarget::arrive(const ClaimedReceive& receive, const DatagramMessage& message,
                            std::uint32_t flags) noexcept {
    PoolSlot& slot = *receive.slot;
    const std::uint32_t before = arrivals_.armed();
    slot.byte_len = message.bytes + grh_bytes;
    slot.immediate = message.immediate;
    slot.source = message.source;
    slot.flags = flags;
    slot.stamp = (before & armed_stamps) != 0 ? static_cast<std::uint64_t>(cable_now()) : 0;
    slot.arrived.store(sequence_of(receive.position), std::memory_order_release);
    arrivals_.told((flags & (completion_solicited | completion_protection)) != 0, before);
    if (pool_.below_limit(receive.position)) [[unlikely]] {
        ring_bell(bell_async_.descriptor(
            *peer_, receiver_.block.control->bell_async.load(std::memory_order_relaxed)));
    }
}

DatagramTarget::Result DatagramTarget::deliver(const DatagramMessage& message) noexcept {
    if (!peer_->alive()) return Result::stale;
    const std::lock_guard guard{lock_};
    if (abandoned_) return Result::dropped;
    HazardScope scope{*hazard_, asymmetric_, names_any, SenderTable::one_step};
    const std::uint64_t word = receiver_.block.control->state_word.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(word >> 32) != who_) return Result::stale;
    const std::uint64_t state = word & state_mask;
    if (state < IBV_QPS_RTR || state > IBV_QPS_SQE) return Result::dropped;
    if (receiver_.block.receive->qkey.load(std::memory_order_relaxed) != message.qkey)
        return Result::dropped;

    Pieces pieces;
    std::uint32_t count = 0;
    for (std::uint32_t rounds = pool_.most_rounds(); rounds > 0; --rounds) {
        const ClaimedReceive next = pool_.peek(rounds);
        if (next.slot == nullptr) return Result::dropped;
        std::uint64_t room = 0;
        const bool known =
            keys_.scatter(next.slot->sges, pool_.sges(), next.slot + 1, pieces.data(), count, room);
        // Too short for it: the receive stays for another one.
        if (known && room < grh_bytes + std::uint64_t{message.bytes}) return Result::dropped;
        // What was read is what was posted if it is still to be had now.
        if (!pool_.take(next, index_, node_.number())) continue;
        RegionNames names;
        for (std::uint32_t i = 0; known && i < count; ++i) names.add_receiver(pieces[i].key);
        names.publish(*hazard_);
        CopyResult result = CopyResult::bad_address;
        if (known) result = put(message, pieces, count, next.number);
        if (result == CopyResult::peer_gone) return Result::stale;
        if (result == CopyResult::abandoned) {
            abandoned_ = true;
            scope.keep();
            return Result::dropped;
        }
        // Its owner, asked, does not copy now: lost, and the owner offers the receive again.
        if (result == CopyResult::busy) return Result::dropped;
        if (result == CopyResult::denied) tell_copies_denied(peer_->pid());
        arrive(next, message,
               message.flags | (result == CopyResult::ok ? 0U : unsigned{completion_protection}));
        return Result::delivered;
    }
    return Result::dropped;
}

bool DatagramTarget::gone() const noexcept {
    return !peer_->alive() ||
           static_cast<std::uint32_t>(
               receiver_.block.control->state_word.load(std::memory_order_acquire) >> 32) != who_;
}

bool DatagramTarget::forget_regions() noexcept {
    if (!lock_.try_lock()) return false;
    keys_.forget();
    lock_.unlock();
    return true;
}

std::vector<std::shared_ptr<DatagramTarget>> DatagramTargets::all() {
    const std::lock_guard guard{mutex_};
    std::vector<std::shared_ptr<DatagramTarget>> living;
    for (const auto& [qpn, known] : known_) {
        if (auto target = known.lock()) living.push_back(std::move(target));
    }
    return living;
}

std::shared_ptr<DatagramTarget> DatagramTargets::find(Node& node, std::uint32_t qpn,
                                                      const DatagramTarget* instead_of) {
    const std::lock_guard guard{mutex_};
    if (const auto known = known_.find(qpn); known != known_.end()) {
        auto target = known->second.lock();
        if (target != nullptr && target.get() != instead_of) return target;
    }
    auto made = DatagramTarget::make(node, counters_, qpn);
    if (made == nullptr) return nullptr;
    if (known_.size() >= prune_at_) {
        std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
        prune_at_ = known_.size() * 2 + 64;
    }
    known_[qpn] = made;
    return made;
}

}  // namespace millrace::soft
