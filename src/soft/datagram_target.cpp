// Implementation of datagram_target.hpp.
#include "datagram_target.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "fences.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/system_calls.hpp"
#include "millrace/base/wait.hpp"
#include "node.hpp"
#include "region_facts.hpp"

namespace millrace::soft {
namespace {

/// "This node executes on the queue pair" while it lives; see SenderTable.
class SenderScope {
  public:
    SenderScope(Hazard& hazard, bool asymmetric) noexcept
        : word_{hazard.word}, odd_{word_.load(std::memory_order_relaxed) | 1} {
        hazard.named[0].store(names_any, std::memory_order_release);
        word_.store(odd_, std::memory_order_release);
        light_fence(asymmetric);
    }
    ~SenderScope() {
        if (!kept_)
            word_.store((odd_ & ~std::uint64_t{1}) + SenderTable::one_step,
                        std::memory_order_release);
    }
    /// The hazard outlives this, and there is none after it.
    void keep() noexcept { kept_ = true; }
    SenderScope(const SenderScope&) = delete;
    SenderScope& operator=(const SenderScope&) = delete;

  private:
    std::atomic<std::uint64_t>& word_;
    std::uint64_t odd_;
    bool kept_ = false;
};

/// How long a datagram waits for its receiver to serve copies; and where it did not.
constexpr std::chrono::milliseconds patience_for_a_box{250};
constexpr std::chrono::milliseconds patience_with_silent{2};

[[nodiscard]] std::size_t sender_table_offset(const Geometry& geometry) noexcept {
    return geometry.block_size();  // page aligned
}

}  // namespace

DatagramTarget::DatagramTarget(Node& node, std::shared_ptr<PeerNode> peer) noexcept
    : node_{node}, peer_{std::move(peer)} {
    asymmetric_ = node.membarrier() && peer_->asymmetric_fences();
}

DatagramTarget::~DatagramTarget() {
    if (pool_block_) peer_->unmap_block(*pool_block_);
    if (block_) peer_->unmap_block(*block_);
}

std::shared_ptr<DatagramTarget> DatagramTarget::make(Node& node, std::uint32_t qpn) {
    auto peer = node.peer(node_of_qpn(qpn));
    if (peer == nullptr) return nullptr;
    const std::shared_ptr<DatagramTarget> target{new DatagramTarget{node, std::move(peer)}};
    return target->map(index_of_qpn(qpn)) ? target : nullptr;
}

bool DatagramTarget::map(std::uint32_t index) {
    block_ = peer_->map_block(index, 0);
    if (!block_) return false;
    const auto geometry = BlockView::geometry_of_peer(block_->memory, block_->size);
    if (!geometry) return false;
    view_ = BlockView{block_->memory, *geometry};
    if (load_once(view_.receive->type) != IBV_QPT_UD ||
        block_->size < sender_table_offset(*geometry) + SenderTable::size) {
        return false;
    }
    pool_block_ = peer_->map_block(load_once(view_.receive->pool_index),
                                   load_once(view_.receive->pool_generation));
    if (!pool_block_) return false;
    const auto pool = PoolView::of_peer(pool_block_->memory, pool_block_->size);
    if (!pool) return false;
    pool_ = *pool;
    index_ = index;
    who_ = static_cast<std::uint32_t>(
        make_state_word(block_->generation, index, 0, IBV_QPS_RESET) >> 32);
    senders_ = SenderTable{block_->memory + sender_table_offset(*geometry)};
    senders_.enter(node_.number(), node_.identity());
    hazard_ = &senders_.hazard(node_.number());
    return true;
}

bool DatagramTarget::find(std::uint32_t key, std::uint64_t address, std::uint64_t length,
                          Reach& reach) noexcept {
    Region& region = regions_[index_of_key(key) % regions_.size()];
    if (region.entry == nullptr || region.key != key ||
        region.entry->key_word.load(std::memory_order_acquire) != key_word_of(key)) [[unlikely]] {
        region.entry = nullptr;
        const RegionEntry* const entry = peer_->region(key);
        if (entry == nullptr) return false;
        // Read once: what is checked must be what is mapped, whatever the owner does meanwhile.
        const auto facts = read_region(*entry, key);
        if (!facts) return false;
        Region found{key, entry, facts->iova, facts->length, {}};
        if (static_cast<RegionKind>(facts->kind) == RegionKind::nothing) {
            found.base.pid = nowhere;
        } else {
            try {
                const auto base = peer_->reach(*facts, key, true);
                if (!base) return false;
                found.base = *base;
            } catch (...) {  // no memory to map it: this datagram is lost
                return false;
            }
        }
        // A key of another protection domain is no key.
        if (entry->key_word.load(std::memory_order_acquire) != key_word_of(key) ||
            facts->pd != load_once(view_.receive->pd) ||
            (facts->access & IBV_ACCESS_LOCAL_WRITE) == 0 || (facts->access & access_window) != 0) {
            return false;
        }
        region = found;
    }
    const std::uint64_t offset = address - region.iova;
    if (offset > region.length || length > region.length - offset) return false;
    reach = advance(region.base, offset);
    return true;
}

bool DatagramTarget::scatter(const PoolSlot& slot, DatagramMessage::Piece* pieces,
                             std::uint32_t& count, std::uint64_t& room) noexcept {
    const std::uint32_t posted = load_once(slot.sges);
    if (posted > pool_.sges()) return false;
    const auto* words = reinterpret_cast<const std::uint64_t*>(&slot + 1);
    count = 0;
    room = 0;
    for (std::uint32_t i = 0; i < posted; ++i) {
        const auto sge = std::bit_cast<ibv_sge>(
            std::array<std::uint64_t, 2>{load_once(words[2 * i]), load_once(words[2 * i + 1])});
        if (sge.length == 0) continue;
        if (!find(sge.lkey, sge.addr, sge.length, pieces[count].at)) return false;
        pieces[count].key = sge.lkey;
        pieces[count++].length = sge.length;
        room += sge.length;
    }
    return true;
}

CopyResult DatagramTarget::put(const DatagramMessage& message, const DatagramMessage::Piece* pieces,
                               std::uint32_t count, std::uint32_t receive) noexcept {
    std::uint32_t piece = 0;
    std::uint64_t used = 0;  // of that piece
    const auto store = [&](const Reach& from, std::uint64_t bytes) {
        std::uint64_t done = 0;
        while (done < bytes && piece < count) {
            const std::uint64_t part = std::min(bytes - done, pieces[piece].length - used);
            if (from.direct != nullptr || from.pid == nowhere) {
                const Reach to = advance(pieces[piece].at, used);
                const Reach source = advance(from, done);
                if (to.direct != nullptr && source.direct != nullptr &&
                    to.direct < source.direct + part && source.direct < to.direct + part)
                    [[unlikely]] {
                    std::memmove(to.direct, source.direct, part);
                } else {
                    CopyResult result = transfer(to, source, part, *peer_);
                    if (result == CopyResult::denied) [[unlikely]]
                        result = put_by_owner(to, source, part, receive);
                    if (result != CopyResult::ok) return result;
                }
            }
            done += part;
            used += part;
            if (used == pieces[piece].length) {
                ++piece;
                used = 0;
            }
        }
        return CopyResult::ok;
    };
    Reach from;  // nothing: the room is left as it is
    if (message.grh != nullptr) {
        from.direct = reinterpret_cast<std::byte*>(const_cast<ibv_grh*>(message.grh));
    }
    CopyResult result = store(from, grh_bytes);
    for (std::uint32_t i = 0; result == CopyResult::ok && i < message.count; ++i) {
        result = store(message.pieces[i].at, message.pieces[i].length);
    }
    return result;
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
    view_.fault->wishes.fetch_or(wish_copies, std::memory_order_release);
    ring_bell(
        bell_async_.descriptor(*peer_, view_.control->bell_async.load(std::memory_order_relaxed)));
    ring_bell(bell_receive_.descriptor(
        *peer_, view_.control->bell_receive.load(std::memory_order_relaxed)));
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
    const std::uint32_t before = view_.control->armed_receive.load(std::memory_order_acquire);
    slot.byte_len = message.bytes + grh_bytes;
    slot.immediate = message.immediate;
    slot.source = message.source;
    slot.flags = flags;
    slot.stamp = (before & armed_stamps) != 0 ? static_cast<std::uint64_t>(cable_now()) : 0;
    slot.arrived.store(sequence_of(receive.position), std::memory_order_release);
    light_fence(asymmetric_);
    const std::uint32_t armed = view_.control->armed_receive.load(std::memory_order_relaxed);
    const bool solicited = (flags & (completion_solicited | completion_protection)) != 0;
    if (rung_.must_ring(armed, before, solicited)) [[unlikely]] {
        ring_bell(bell_receive_.descriptor(
            *peer_, view_.control->bell_receive.load(std::memory_order_relaxed)));
    }
    if (pool_.below_limit(receive.position)) [[unlikely]] {
        ring_bell(bell_async_.descriptor(
            *peer_, view_.control->bell_async.load(std::memory_order_relaxed)));
    }
}

DatagramTarget::Result DatagramTarget::deliver(const DatagramMessage& message) noexcept {
    if (!peer_->alive()) return Result::stale;
    const std::lock_guard guard{lock_};
    if (abandoned_) return Result::dropped;
    SenderScope scope{*hazard_, asymmetric_};
    const std::uint64_t word = view_.control->state_word.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(word >> 32) != who_) return Result::stale;
    const std::uint64_t state = word & state_mask;
    if (state < IBV_QPS_RTR || state > IBV_QPS_SQE) return Result::dropped;
    if (view_.receive->qkey.load(std::memory_order_relaxed) != message.qkey) return Result::dropped;

    DatagramPieces pieces;
    std::uint32_t count = 0;
    for (std::uint32_t rounds = pool_.most_rounds(); rounds > 0; --rounds) {
        const ClaimedReceive next = pool_.peek(rounds);
        if (next.slot == nullptr) return Result::dropped;
        std::uint64_t room = 0;
        const bool known = scatter(*next.slot, pieces.data(), count, room);
        // Too short for it: the receive stays for another one.
        if (known && room < grh_bytes + std::uint64_t{message.bytes}) return Result::dropped;
        // What was read is what was posted if it is still to be had now.
        if (!pool_.take(next, index_, node_.number())) continue;
        RegionNames names;
        for (std::uint32_t i = 0; known && i < count; ++i) names.add_receiver(pieces[i].key);
        names.publish(*hazard_);
        CopyResult result = CopyResult::bad_address;
        if (known) result = put(message, pieces.data(), count, next.number);
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
           static_cast<std::uint32_t>(view_.control->state_word.load(std::memory_order_acquire) >>
                                      32) != who_;
}

bool DatagramTarget::forget_regions() noexcept {
    if (!lock_.try_lock()) return false;
    regions_.fill(Region{});
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
    auto made = DatagramTarget::make(node, qpn);
    if (made == nullptr) return nullptr;
    if (known_.size() >= prune_at_) {
        std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
        prune_at_ = known_.size() * 2 + 64;
    }
    known_[qpn] = made;
    return made;
}

}  // namespace millrace::soft
