#include "executor.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "link_time.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/system_calls.hpp"
#include "millrace/base/uncancelled.hpp"
#include "path.hpp"
#include "receive_pool.hpp"
#include "region_facts.hpp"
#include "strict_plan.hpp"

namespace millrace::soft {
namespace {

/// What a cache slot points to while it holds nothing: never valid.
const std::atomic<std::uint64_t> no_region{0};

[[nodiscard]] std::uint64_t address_of(const Reach& reach) noexcept {
    return reach.direct != nullptr ? reinterpret_cast<std::uint64_t>(reach.direct) : reach.remote;
}

[[nodiscard]] bool sends_to_receive(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
           opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}

[[nodiscard]] bool is_atomic(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

void load_sges(const std::uint64_t* words, std::uint32_t count, ibv_sge* sges) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
        sges[i] = std::bit_cast<ibv_sge>(
            std::array<std::uint64_t, 2>{load_once(words[2 * i]), load_once(words[2 * i + 1])});
    }
}

/// The longest time between the two halves of an atomic, during which others wait for its lock.
constexpr std::int64_t longest_atomic = 20'000;

/// False: the program has unmapped it (a device would go on with the pages that it has pinned).
[[nodiscard]] bool is_mapped(const std::byte* memory, std::uint64_t bytes) noexcept {
    const base::Uncancelled held;
    if (bytes == 0) return true;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory) & ~(page_size - 1);
    const std::size_t length = reinterpret_cast<std::uintptr_t>(memory) + bytes - begin;
    base::count_system_call();
    return msync(reinterpret_cast<void*>(begin), length, MS_ASYNC) == 0 || errno != ENOMEM;
}

[[nodiscard]] Count count_of(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE: return Count::write;
        case IBV_WR_RDMA_WRITE_WITH_IMM: return Count::write_immediate;
        case IBV_WR_RDMA_READ: return Count::read;
        default: return Count::send;
    }
}

}  // namespace

Executor::Executor() noexcept { disconnect(); }

void Executor::connect(Node* node, PeerNode* peer, const End& sender, const End& receiver,
                       bool asymmetric, Counters* counters) noexcept {
    disconnect();
    node_ = node;
    peer_ = peer;
    connected_ = true;
    reliable_ = sender.type == IBV_QPT_RC;
    sender_.end = sender;
    receiver_.end = receiver;
    asymmetric_ = asymmetric;
    copies_refused_ = peer != nullptr && peer->copies_refused();
    counters_ = counters;
    hazard_ = sender.mine ? &sender.block.hazard->send : &receiver.block.hazard->run;
    own_access_.store(receiver.access, std::memory_order_relaxed);
    access_ = receiver.mine ? &own_access_ : &receiver.block.control->access;
    receiver_state_ = receiver.mine ? receiver.state_word : &receiver.block.control->state_word;
    receive_tail_ = receiver.block.consumed->position.load(std::memory_order_relaxed);
}

void Executor::disconnect() noexcept {
    for (Side* side : {&receiver_, &sender_}) {
        side->end = End{};
        side->bell_send = PeerBell{};
        side->bell_receive = PeerBell{};
        side->bell_async = PeerBell{};
        side->news_send = Announcement{};
        side->news_receive = Announcement{};
        forget(*side);
    }
    receiver_word_ = no_word;
    sender_word_ = no_word;
    limit_messages(max_message_bytes);
    claimed_ = 0;
    abandoned_ = false;
    rung_send_ = RungEpoch{};
    rung_receive_ = RungEpoch{};
    hazard_ = nullptr;
    node_ = nullptr;
    peer_ = nullptr;
    connected_ = false;
}

void Executor::limit_messages(std::uint32_t longest) noexcept {
    longest_ = longest;
    longest_inline_ = std::min(longest, sender_.end.block.inline_bytes);
}

void Executor::forget(Side& side) noexcept {
    for (CachedRegion& cached : side.cache) {
        cached = CachedRegion{.live = &no_region};
    }
    side.receiving = CachedRegion{.live = &no_region};
}

void Executor::forget_regions() noexcept {
    for (Side* side : {&receiver_, &sender_}) {
        if (!side->end.mine) forget(*side);
    }
}

// --- who is connected to whom -----------------------------------------------------------------

bool Executor::verify(const Side& peer, const Side& other, std::uint64_t word) noexcept {
    const End& end = peer.end;
    const std::uint64_t mine =
        make_state_word(end.generation, index_of_qpn(end.qpn), 0, IBV_QPS_RESET);
    constexpr std::uint64_t who = ~std::uint64_t{0} << 32;
    if ((word & who) != (mine & who)) return false;  // the block is another queue pair's now
    if (load_once(end.block.control->type) != static_cast<std::uint16_t>(other.end.type))
        return false;
    const std::uint64_t destination =
        end.block.control->destination.load(std::memory_order_acquire);
    // Only a peer that has mapped our block can wait for our hazards: until then, it is not ready.
    return destination == make_destination(other.end.generation, other.end.qpn);
}

bool Executor::receiver_changed(std::uint64_t word) noexcept {
    const std::uint64_t state = word & state_mask;
    if (state < IBV_QPS_RTR || state > IBV_QPS_SQE) return false;
    if (!verify(receiver_, sender_, word)) return false;
    const Reason way = compare_paths(path_of(sender_), path_of(receiver_), reliable_);
    if (way.kind != ReasonKind::none && way.kind != ReasonKind::other_mtu) return false;
    limit_messages(way.kind == ReasonKind::none ? max_message_bytes : longest_message(way));
    receiver_word_ = (word & ~state_mask) | IBV_QPS_RTR;
    receive_tail_ = receiver_.end.block.consumed->position.load(std::memory_order_relaxed);
    if (state == IBV_QPS_RTR) {
        receiver_.end.block.fault->wishes.fetch_or(wish_established, std::memory_order_release);
        ring_receiver_async();
    }
    return true;
}

bool Executor::receiver_stands() const noexcept {
    const std::uint64_t word = receiver_state_->load(std::memory_order_acquire);
    const std::uint64_t state = word & state_mask;
    return state >= IBV_QPS_RTR && state <= IBV_QPS_SQE && verify(receiver_, sender_, word);
}

Reason Executor::way() const noexcept {
    if (!connected_ || peer_ == nullptr || !receiver_stands()) return {};
    const std::uint64_t word =
        sender_.end.mine ? sender_.end.state_word->load(std::memory_order_acquire)
                         : sender_.end.block.control->state_word.load(std::memory_order_acquire);
    const std::uint64_t state = word & state_mask;
    if (state < IBV_QPS_RTS || state > IBV_QPS_SQE || !verify(sender_, receiver_, word)) return {};
    return compare_paths(path_of(sender_), path_of(receiver_), reliable_);
}

bool Executor::sender_ready() noexcept {
    const std::uint64_t word =
        sender_.end.block.control->state_word.load(std::memory_order_acquire);
    if (word == sender_word_) [[likely]]
        return true;
    const std::uint64_t state = word & state_mask;
    // In SQD it shows only what it had posted before.
    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return false;
    if (!verify(sender_, receiver_, word)) return false;
    sender_word_ = word;
    look_at_way_again();  // it is connected anew
    return true;
}

bool Executor::could_go_on(Progress progress) noexcept {
    std::uint32_t position = 0;
    switch (progress) {
        case Progress::done: return true;
        case Progress::no_receive:
            if (!receiver_ready()) return false;
            return receive_available(position) &&
                   (!receiver_.end.pool || receiver_.end.pool.peek().slot != nullptr);
        case Progress::no_peer: return receiver_ready();
        case Progress::not_due: return link_now() >= due_;
        case Progress::gone:
        case Progress::owners:
        case Progress::busy:
        case Progress::held:
        case Progress::failed: return false;
    }
    return false;
}

// --- keys ---------------------------------------------------------------------------------------

const Executor::CachedRegion* Executor::look_up(Side& side, std::uint32_t key,
                                                bool write) noexcept {
    CachedRegion& region = cached(side, key);
    if (valid(region, key) && (region.writable || !write)) [[likely]]
        return &region;
    return look_up_slowly(side, region, key, write, pd_of(side));
}

const Executor::CachedRegion* Executor::look_up_slowly(Side& side, CachedRegion& slot,
                                                       std::uint32_t key, bool write,
                                                       std::uint32_t domain) noexcept {
    const base::Uncancelled held;
    slot.key = 0;
    slot.live = &no_region;
    const RegionEntry* entry = side.end.mine ? node_->local_region(key) : peer_->region(key);
    if (entry == nullptr) return nullptr;
    // Read once: what is checked must be what is mapped, whatever the owner does meanwhile.
    const auto facts = read_region(*entry, key);
    if (!facts) return nullptr;
    CachedRegion found{.key = key,
                       .access = facts->access,
                       .live = &entry->key_word,
                       .word = key_word_of(key),
                       .iova = facts->iova,
                       .length = facts->length,
                       .pd = facts->pd,
                       .writable = write,
                       .kind = static_cast<RegionKind>(facts->kind)};
    if (found.kind == RegionKind::nothing) {
        found.base.pid = nowhere;
        found.writable = true;
    } else if (side.end.mine) {
        found.base.direct = reinterpret_cast<std::byte*>(facts->address);
        found.writable = true;
    } else {
        // A failing map is not fatal to anybody but this request: it never throws through here.
        try {
            const auto reach = peer_->reach(*facts, key, write);
            if (!reach) return nullptr;
            found.base = *reach;
        } catch (...) {
            return nullptr;
        }
    }
    if (entry->key_word.load(std::memory_order_acquire) != key_word_of(key)) return nullptr;
    if ((found.pd & pd_is_queue_pair) != 0) {
        // A window of one queue pair. Valid is what its block says: there the peer can end it.
        if ((found.pd & 0xfff) != index_of_qpn(side.end.qpn)) return nullptr;
        found.live = &side.end.block.windows[slot_of_window_pd(found.pd)];
        found.word = found.live->load(std::memory_order_acquire);
        if (!is_word_of_window(found.word, key)) return nullptr;
    } else if (found.pd != domain) {
        return nullptr;  // a key of another protection domain is no key
    }
    if ((found.access & access_window) == 0) {
        found.access |= access_local;
        found.read_from = found.base.direct;
        if (found.read_from != nullptr) found.readable_length = found.length;
        if (found.writable && (found.access & IBV_ACCESS_LOCAL_WRITE) != 0) {
            found.receive_to = found.base.direct;
            found.receivable_length = found.readable_length;
        }
    }
    if (found.writable && (found.access & IBV_ACCESS_REMOTE_WRITE) != 0) {
        found.write_to = found.base.direct;
        if (found.write_to != nullptr) found.writable_length = found.length;
    }
    slot = found;
    return &slot;
}

const Executor::CachedRegion* Executor::find_region(Side& side, std::uint32_t key,
                                                    std::uint64_t address, std::uint64_t length,
                                                    std::uint32_t access, Reach& reach) noexcept {
    constexpr std::uint32_t writing =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const CachedRegion* region = look_up(side, key, (access & writing) != 0);
    return reach_within(region, address, length, access, reach) ? region : nullptr;
}

bool Executor::reach_within(const CachedRegion* region, std::uint64_t address, std::uint64_t length,
                            std::uint32_t access, Reach& reach) noexcept {
    if (region == nullptr || (region->access & access) != access) return false;
    const std::uint64_t offset = address - region->iova;
    if (offset > region->length || length > region->length - offset) return false;
    reach = advance(region->base, offset);
    return true;
}

bool Executor::find_room(const ibv_sge& sge, Reach& reach) noexcept {
    constexpr std::uint32_t needed = IBV_ACCESS_LOCAL_WRITE | access_local;
    const std::uint32_t domain = receive_pd_of(receiver_);
    if (domain == pd_of(receiver_)) [[likely]]
        return find(receiver_, sge.lkey, sge.addr, sge.length, needed, reach);
    CachedRegion& last = receiver_.receiving;
    const bool known = valid(last, sge.lkey) && last.pd == domain && last.writable;
    return reach_within(known ? &last : look_up_slowly(receiver_, last, sge.lkey, true, domain),
                        sge.addr, sge.length, needed, reach);
}

bool Executor::find(Side& side, std::uint32_t key, std::uint64_t address, std::uint64_t length,
                    std::uint32_t access, Reach& reach) noexcept {
    return find_region(side, key, address, length, access, reach) != nullptr;
}

bool Executor::gather(const Request& request, std::uint32_t access, Piece* pieces,
                      std::uint32_t& count, std::uint64_t& total) noexcept {
    const bool in_line = (request.flags & IBV_SEND_INLINE) != 0;
    count = 0;
    total = 0;
    for (int i = 0; i < request.sge_count; ++i) {
        const ibv_sge& sge = request.sges[i];
        if (sge.length == 0) continue;
        Piece& piece = pieces[count];
        piece.length = sge.length;
        piece.key = in_line ? 0 : sge.lkey;
        if (in_line) {
            piece.at = Reach{reinterpret_cast<std::byte*>(sge.addr), 0, 0};
        } else if (!find(sender_, sge.lkey, sge.addr, sge.length, access | access_local,
                         piece.at)) {
            return false;
        }
        total += sge.length;
        ++count;
    }
    return true;
}

bool Executor::scatter_of(const std::uint32_t& written, std::uint32_t most, const void* list,
                          Piece* pieces, std::uint32_t& count, std::uint64_t& total) noexcept {
    const auto* sges = static_cast<const std::uint64_t*>(list);
    const std::uint32_t posted = load_once(written);
    if (posted > most) return false;
    count = 0;
    total = 0;
    for (std::uint32_t i = 0; i < posted; ++i) {
        const std::uint64_t address = load_once(sges[2 * i]);
        const std::uint64_t word = load_once(sges[2 * i + 1]);
        const auto sge = std::bit_cast<ibv_sge>(std::array<std::uint64_t, 2>{address, word});
        if (sge.length == 0) continue;
        Piece& piece = pieces[count];
        piece.length = sge.length;
        piece.key = sge.lkey;
        if (!find_room(sge, piece.at)) return false;
        total += sge.length;
        ++count;
    }
    return true;
}

Reason Executor::reason_of_range(const Side& side, std::uint32_t key, std::uint64_t address,
                                 std::uint64_t length, std::uint32_t access) const noexcept {
    const RegionEntry* const entry = side.end.mine ? node_->local_region(key) : peer_->region(key);
    if (entry == nullptr) return {ReasonKind::no_key, key};
    if (entry->key_word.load(std::memory_order_acquire) != key_word_of(key)) {
        return {load_once(entry->length) == 0 ? ReasonKind::no_key : ReasonKind::ended_key, key};
    }
    const std::uint32_t pd = load_once(entry->pd);
    const std::uint32_t rights = load_once(entry->access);
    const std::uint64_t begin = load_once(entry->iova);
    const std::uint64_t end = begin + load_once(entry->length);
    const std::uint32_t missing = access & ~access_local & ~rights;
    if ((access & access_local) != 0 && (rights & access_window) != 0) {
        return {ReasonKind::window_key, key};
    }
    if ((pd & pd_is_queue_pair) == 0 && pd != pd_of(side)) return {ReasonKind::other_domain, key};
    if (missing != 0) return {ReasonKind::region_access, key, missing};
    if (address < begin) return {ReasonKind::before, key, begin - address};
    if (address > end || length > end - address) {
        return {ReasonKind::beyond, key, address - end + length};
    }
    return {(pd & pd_is_queue_pair) != 0 ? ReasonKind::no_window : ReasonKind::cannot_map, key};
}

Reason Executor::reason_of_sges(Side& side, const ibv_sge* sges, std::uint32_t count,
                                std::uint32_t access) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
        const ibv_sge& sge = sges[i];
        Reach unused;
        if (sge.length != 0 && !find(side, sge.lkey, sge.addr, sge.length, access, unused)) {
            return reason_of_range(side, sge.lkey, sge.addr, sge.length, access);
        }
    }
    return {ReasonKind::malformed};
}

// --- bytes --------------------------------------------------------------------------------------

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

void Executor::cut(Piece* pieces, std::uint32_t& count, std::uint64_t offset,
                   std::uint64_t bytes) noexcept {
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        Piece piece = pieces[i];
        const std::uint64_t skipped = offset < piece.length ? offset : piece.length;
        offset -= skipped;
        piece.at = advance(piece.at, skipped);
        piece.length -= skipped;
        if (bytes < piece.length) piece.length = bytes;
        bytes -= piece.length;
        if (piece.length != 0) pieces[kept++] = piece;
    }
    count = kept;
}

// --- completions --------------------------------------------------------------------------------

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
        ring_receiver_async();
    return true;
}

void Executor::complete_receive(std::uint32_t position, std::uint32_t bytes,
                                std::uint32_t immediate, std::uint32_t flags) noexcept {
    const BlockView& block = receiver_.end.block;
    const std::uint32_t before = block.control->armed_receive.load(std::memory_order_acquire);
    CompletionEntry& entry = block.receive_ring[position & block.receive_mask];
    entry.byte_len = bytes;
    entry.immediate = immediate;
    entry.slot_and_flags = flags;
    block.consumed->position.store(position + 1, std::memory_order_relaxed);
    entry.sequence.store(sequence_of(position), std::memory_order_release);
    light_fence(asymmetric_);
    if ((block.control->armed_receive.load(std::memory_order_relaxed) & armed_attention_mask) != 0)
        [[unlikely]] {
        attend_receiver((flags & completion_solicited) != 0, before);
    }
}

void Executor::complete_send(std::uint32_t slot, std::uint32_t bytes) noexcept {
    const BlockView& block = sender_.end.block;
    const std::uint32_t before = block.control->armed_send.load(std::memory_order_acquire);
    const std::uint32_t position = block.send->completions.load(std::memory_order_relaxed);
    CompletionEntry& entry = block.send_ring[position & block.send_mask];
    entry.byte_len = bytes;
    entry.immediate = 0;
    entry.slot_and_flags = slot;
    block.send->completions.store(position + 1, std::memory_order_relaxed);
    entry.sequence.store(sequence_of(position), std::memory_order_release);
    light_fence(asymmetric_);
    if ((block.control->armed_send.load(std::memory_order_relaxed) & armed_attention_mask) != 0)
        [[unlikely]] {
        attend_sender(before);
    }
}

void Executor::attend_sender(std::uint32_t before) noexcept {
    const BlockView& block = sender_.end.block;
    if ((before & armed_stamps) != 0 && block.send_stamps != nullptr) {
        const std::uint32_t position = block.send->completions.load(std::memory_order_relaxed) - 1;
        put_stamp(block.send_stamps[position & block.send_mask], position);
    }
    ring_sender(false, before);
}

void Executor::attend_receiver(bool solicited, std::uint32_t before) noexcept {
    const BlockView& block = receiver_.end.block;
    if ((before & armed_stamps) != 0 && block.receive_stamps != nullptr) {
        const std::uint32_t position = block.consumed->position.load(std::memory_order_relaxed) - 1;
        put_stamp(block.receive_stamps[position & block.receive_mask], position);
    }
    ring_receiver(solicited, before);
}

void Executor::ring_sender(bool solicited, std::uint32_t before) noexcept {
    const BlockView& block = sender_.end.block;
    const std::uint32_t armed = block.control->armed_send.load(std::memory_order_acquire);
    if ((armed & armed_news) != 0) announce(sender_, true);
    if (!rung_send_.must_ring(armed, before, solicited)) return;
    ring(sender_, sender_.bell_send, block.control->bell_send.load(std::memory_order_relaxed),
         sender_.end.bell_send);
}

void Executor::ring_receiver(bool solicited, std::uint32_t before) noexcept {
    const BlockView& block = receiver_.end.block;
    const std::uint32_t armed = block.control->armed_receive.load(std::memory_order_acquire);
    if ((armed & armed_news) != 0) announce(receiver_, false);
    if (!rung_receive_.must_ring(armed, before, solicited)) return;
    ring(receiver_, receiver_.bell_receive,
         block.control->bell_receive.load(std::memory_order_relaxed), receiver_.end.bell_receive);
}

void Executor::announce(Side& side, bool send) noexcept {
    if (side.end.mine) {
        const NewsPlace& place = send ? *side.end.news_send : *side.end.news_receive;
        NewsPage* const page = place.page.load(std::memory_order_acquire);
        if (page != nullptr) page->tell(place.bit);
        return;
    }
    const NewsLine& line = *side.end.block.news;
    const std::uint64_t word = (send ? line.send : line.receive).load(std::memory_order_relaxed);
    Announcement& news = send ? side.news_send : side.news_receive;
    if (news.word != word) {
        news = Announcement{word, nullptr};
        try {
            news.page = peer_->news_page(index_of_news(word), generation_of_news(word));
        } catch (...) {  // no memory for it: the poller finds the completion all the same, later
        }
    }
    if (news.page != nullptr) news.page->tell(bit_of_news(word));
}

void Executor::ring_receiver_async() noexcept {
    ring(receiver_, receiver_.bell_async,
         receiver_.end.block.control->bell_async.load(std::memory_order_relaxed),
         receiver_.end.bell_async);
}

void Executor::ring_sender_async() noexcept {
    ring(sender_, sender_.bell_async,
         sender_.end.block.control->bell_async.load(std::memory_order_relaxed),
         sender_.end.bell_async);
}

void Executor::ring(const Side& side, PeerBell& bell, int number, int own_bell) noexcept {
    const int descriptor = side.end.mine ? own_bell : bell.descriptor(*peer_, number);
    if (descriptor < 0) return;
    counters_->add(Count::bell);
    ring_bell(descriptor);
}

Progress Executor::fail(ibv_wc_status sender, ibv_wc_status receiver) noexcept {
    failure_ = sender;
    // An unreliable receiver's queue pair only fails for what is wrong with its own memory.
    if (receiver != IBV_WC_SUCCESS && (reliable_ || receiver == IBV_WC_LOC_PROT_ERR)) {
        FaultLine& fault = *receiver_.end.block.fault;
        fault.receive_slot.store(std::exchange(claimed_, 0), std::memory_order_relaxed);
        fault.receive_reason.store(reason_.word(), std::memory_order_relaxed);
        fault.receive_amount.store(reason_.amount, std::memory_order_relaxed);
        receiver_.end.block.fault->receive.store(1U + static_cast<std::uint32_t>(receiver),
                                                 std::memory_order_release);
        full_fence();
        ring_receiver(true);
        ring_receiver_async();
    }
    return Progress::failed;
}

Progress Executor::copy_failed(CopyResult result, ibv_wc_status sender,
                               ibv_wc_status receiver) noexcept {
    switch (result) {
        case CopyResult::peer_gone: return Progress::gone;
        case CopyResult::denied:  // the operating system's refusal is nobody's bad key
            tell_copies_denied(peer_->pid());
            return fail(IBV_WC_REM_OP_ERR, IBV_WC_WR_FLUSH_ERR);
        case CopyResult::busy: return Progress::busy;
        case CopyResult::no_answer: return fail(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR);
        case CopyResult::owners: return Progress::owners;
        case CopyResult::abandoned:
            abandoned_ = true;
            // The thread is not in our memory.
            hazard_->forget(sender_.end.mine ? named_by_sender : named_by_receiver);
            return fail(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR);
        default: return fail(sender, receiver);
    }
}

// --- requests -----------------------------------------------------------------------------------

template <bool in_steps>
Progress Executor::run_as(const Request& request) noexcept {
    const Progress progress = attempt<in_steps>(request);
    if (reliable_ || progress == Progress::done) [[likely]]
        return progress;
    if (in_steps && progress == Progress::not_due) return progress;
    if (progress == Progress::owners || abandoned_) return progress;
    return drop(request, progress);
}

Progress Executor::run(const Request& request) noexcept { return run_as<false>(request); }

Progress Executor::drop(const Request& request, Progress progress) noexcept {
    Pieces local;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    if (progress == Progress::failed) {
        if (failure_ == IBV_WC_LOC_PROT_ERR || failure_ == IBV_WC_LOC_LEN_ERR ||
            failure_ == IBV_WC_LOC_QP_OP_ERR) {
            return progress;
        }
    } else if (!gather(request, 0, local.data(), count, total)) {
        // Nobody to hear it, and still the sender's mistake.
        return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    } else if (total > max_message_bytes) {
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
    }
    counters_->add(Count::dropped);
    if ((request.flags & IBV_SEND_SIGNALED) != 0) {
        complete_send(request.slot, static_cast<std::uint32_t>(total));
    }
    return Progress::done;
}

Progress Executor::lose(const Request& request, std::uint64_t landing) noexcept {
    constexpr std::uint32_t needed = IBV_ACCESS_REMOTE_WRITE;
    Pieces local;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    Piece remote;
    const bool writes =
        request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (writes && receiver_ready() && gather(request, 0, local.data(), count, total) &&
        landing < total && total <= max_message_bytes &&
        (access_->load(std::memory_order_relaxed) & needed) != 0 &&
        find(receiver_, request.remote_key, request.remote_address, total, needed, remote.at)) {
        remote.length = landing;
        static_cast<void>(copy(&remote, 1, local.data(), count, landing));
    }
    return drop(request, Progress::no_peer);  // also says what is wrong with it here
}

template <bool in_steps>
[[gnu::noinline]] Progress Executor::put_off(const Request& request, Progress progress) noexcept {
    // What a READ or an atomic brings is written here when it comes.
    if (request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode)) return progress;
    Pieces local;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    if (!gather(request, 0, local.data(), count, total)) {
        if constexpr (in_steps) {
            reason_ = reason_of_sges(sender_, request.sges,
                                     static_cast<std::uint32_t>(request.sge_count), access_local);
        }
        return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    }
    if (total > max_message_bytes) {
        if constexpr (in_steps) {
            reason_ = {ReasonKind::message_too_long, 0, total - max_message_bytes};
        }
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
    }
    return progress;
}

template <bool in_steps>
Progress Executor::find_target(const Request& request, std::uint64_t bytes,
                               Piece& target) noexcept {
    const std::uint32_t needed =
        request.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if ((access_->load(std::memory_order_relaxed) & needed) == 0) {
        if constexpr (in_steps) reason_ = {ReasonKind::queue_pair_access, 0, needed};
        return fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    target.length = bytes;
    target.key = request.remote_key;
    if (bytes == 0 ||
        find(receiver_, request.remote_key, request.remote_address, bytes, needed, target.at)) {
        return Progress::done;
    }
    if constexpr (in_steps) {
        reason_ =
            reason_of_range(receiver_, request.remote_key, request.remote_address, bytes, needed);
    }
    // The receive that it would have completed was to say so.
    return fail(IBV_WC_REM_ACCESS_ERR, request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                                           ? IBV_WC_LOC_ACCESS_ERR
                                           : IBV_WC_WR_FLUSH_ERR);
}

template <bool in_steps>
Progress Executor::attempt(const Request& request) noexcept {
    if (!receiver_ready()) [[unlikely]]
        return put_off<in_steps>(request, Progress::no_peer);
    std::atomic<std::uint64_t>* window = nullptr;
    if (request.opcode > IBV_WR_RDMA_READ) [[unlikely]] {
        if (request.opcode != IBV_WR_SEND_WITH_INV) return attempt_atomic<in_steps>(request);
        window = window_word(request.immediate);
    }
    std::uint32_t receive = 0;
    const bool consumes = sends_to_receive(request.opcode);
    const bool pooled = consumes && receiver_.end.pool;
    if (consumes && !pooled && !receive_available(receive)) [[unlikely]]
        return put_off<in_steps>(request, Progress::no_receive);
    if (request.opcode == IBV_WR_SEND_WITH_INV && window == nullptr) [[unlikely]] {
        if constexpr (in_steps) reason_ = {ReasonKind::no_window, request.immediate};
        return fail(IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    }

    Pieces local;
    std::uint32_t local_count = 0;
    std::uint64_t total = 0;
    const bool reads = request.opcode == IBV_WR_RDMA_READ;
    if (!gather(request, reads ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U, local.data(),
                local_count, total)) {
        if (reads) {
            // Where the bytes come to is looked at when they come, so the peer judges first.
            std::uint64_t wanted = 0;
            for (int i = 0; i < request.sge_count; ++i) wanted += request.sges[i].length;
            Piece unused;
            if (find_target<in_steps>(request, wanted, unused) == Progress::failed) {
                return Progress::failed;
            }
        }
        if constexpr (in_steps) {
            reason_ =
                reason_of_sges(sender_, request.sges, static_cast<std::uint32_t>(request.sge_count),
                               access_local | (reads ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U));
        }
        return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    }
    if (total > max_message_bytes) {
        if constexpr (in_steps) {
            reason_ = {ReasonKind::message_too_long, 0, total - max_message_bytes};
        }
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
    }
    if (total > longest_) [[unlikely]] {
        if constexpr (in_steps) reason_ = way();
        return reads ? fail(IBV_WC_BAD_RESP_ERR, IBV_WC_SUCCESS)
                     : fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    const auto bytes = static_cast<std::uint32_t>(total);

    const PoolSlot* slot = nullptr;
    if (pooled && !claim_receive(receive, slot)) return Progress::no_receive;

    Pieces remote;
    std::uint32_t remote_count = 0;
    if (consumes && request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
        std::uint64_t room = 0;
        const BlockView& block = receiver_.end.block;
        bool known = false;
        if (!pooled) [[likely]] {
            const ReceiveEntry* const entry = block.receive_entry(receive);
            known = scatter_of(entry->sges, block.receive_sges, entry + 1, remote.data(),
                               remote_count, room);
        } else if (receiver_.end.mine) {
            PostedPieces posted;  // the slot says what a peer wants
            known = receiver_.end.own_pool->posted(claimed_ - 1, posted) &&
                    scatter_of(posted.count, max_sges, posted.sges.data(), remote.data(),
                               remote_count, room);
        } else {
            known = scatter_of(slot->sges, receiver_.end.pool.sges(), slot + 1, remote.data(),
                               remote_count, room);
        }
        if (!known) {
            if constexpr (in_steps) {
                EntrySges sges;
                // Of ours, a pool's queue pair has no receive queue to point into.
                const ReceiveEntry* const entry = pooled ? nullptr : block.receive_entry(receive);
                const auto* const list = pooled ? static_cast<const void*>(slot + 1)
                                                : static_cast<const void*>(entry + 1);
                const std::uint32_t most = pooled ? receiver_.end.pool.sges() : block.receive_sges;
                const std::uint32_t count =
                    std::min(load_once(pooled ? slot->sges : entry->sges), most);
                load_sges(static_cast<const std::uint64_t*>(list), count, sges.data());
                reason_ = reason_of_sges(receiver_, sges.data(), count,
                                         IBV_ACCESS_LOCAL_WRITE | access_local);
            }
            return fail(IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
        }
        if (total > room) {
            if constexpr (in_steps) reason_ = {ReasonKind::receive_too_short, 0, total - room};
            return fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR);
        }
    } else {
        if (find_target<in_steps>(request, total, remote[0]) == Progress::failed) {
            return Progress::failed;
        }
        remote_count = total > 0 ? 1 : 0;
    }

    std::uint64_t part = total;
    [[maybe_unused]] std::uint32_t step = 0;
    [[maybe_unused]] std::uint32_t steps = 1;
    [[maybe_unused]] std::int64_t pause = 0;
    if constexpr (in_steps) {
        // A pool's receive is claimed for good or not at all: it is filled at once.
        if (!pooled && remote_count > 0) {
            const StrictPlan plan{plan_, total, address_of(remote[0].at), *sender_.end.strict};
            step = sender_.end.block.pending->step.load(std::memory_order_relaxed);
            steps = plan.steps();
            pause = plan.pause_after(step);
            const StrictPlan::Range range = plan.range(step);
            cut(local.data(), local_count, range.offset, range.bytes);
            cut(remote.data(), remote_count, range.offset, range.bytes);
            part = range.bytes;
        }
    }

    name_regions(local.data(), local_count, remote.data(), remote_count);
    // A READ sees memory as it is after the WRITEs before it have been placed: on this processor
    // they are stores and it is loads, which only a fence keeps in order.
    if (reads) full_fence();
    CopyResult result = reads ? copy(local.data(), local_count, remote.data(), remote_count, part)
                              : copy(remote.data(), remote_count, local.data(), local_count, part);
    if (result == CopyResult::denied) [[unlikely]] {
        AskedCopy right;
        right.key = request.remote_key;
        right.receive = pooled ? claimed_ - 1 : receive;
        right.purpose = reads ? CopyPurpose::read : CopyPurpose::write;
        if (consumes && request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
            right.purpose = CopyPurpose::receive;
        }
        result = reads ? copy_by_owner(right, local.data(), local_count, remote.data(),
                                       remote_count, part)
                       : copy_by_owner(right, remote.data(), remote_count, local.data(),
                                       local_count, part);
    }
    if (result != CopyResult::ok) {
        if constexpr (in_steps) reason_ = {ReasonKind::unmapped};
        // Whoever does not execute is the one whose memory was not there.
        if (!sender_.end.mine) {
            if (pooled) receiver_.end.own_pool->offer_again_one(std::exchange(claimed_, 0) - 1);
            return copy_failed(result, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
        }
        return consumes && request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM
                   ? copy_failed(result, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR)
                   : copy_failed(result, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    }

    if constexpr (in_steps) {
        if (step + 1 < steps) return go_on_in(pause, step + 1);
        if (consumes && !pooled && window == nullptr && (plan_ & plan_tells_late) != 0) {
            return go_on_in(pause, step_landed);
        }
    }
    counters_->add(count_of(request.opcode));
    if (consumes) {
        std::uint32_t flags = 0;
        if ((request.flags & IBV_SEND_SOLICITED) != 0) flags |= completion_solicited;
        if (window != nullptr) [[unlikely]] {
            // Nobody else executes for this connection now; before the receiver can know of it.
            window->store(0, std::memory_order_release);
            flags |= completion_invalidated;
        } else if (request.opcode != IBV_WR_SEND) {
            flags |= completion_immediate;
        }
        if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= completion_write;
        if (pooled) flags |= std::exchange(claimed_, 0) - 1;
        complete_receive(receive, bytes, request.immediate, flags);
    }
    if ((request.flags & IBV_SEND_SIGNALED) != 0) complete_send(request.slot, bytes);
    return Progress::done;
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
    load_sges(reinterpret_cast<const std::uint64_t*>(entry + 1), 1, &room);
    const ibv_sge& piece = *wr.sg_list;
    const std::uint64_t length = piece.length;
    const std::uint32_t ours = (flags & IBV_SEND_INLINE) == 0 ? piece.lkey : 0;
    hazard_->name(ours, room.lkey);
    light_fence(asymmetric_);  // the scope began with no name
    const CachedRegion& target = cached(receiver_, room.lkey);
    const std::uint64_t to = room.addr - target.iova;
    if (length == 0 || length > longest_ || length > room.length || !valid(target, room.lkey) ||
        !lies_within(to, room.length, target.receivable_length)) {
        return false;
    }
    Way way{target.receive_to + to, reinterpret_cast<const std::byte*>(piece.addr), length};
    if ((flags & IBV_SEND_INLINE) == 0) {
        const CachedRegion& source = cached(sender_, ours);
        const std::uint64_t at = piece.addr - source.iova;
        if (!valid(source, ours) || !lies_within(at, length, source.readable_length)) return false;
        way.from = source.read_from + at;
    }
    if (way.overlaps()) return false;
    if (way.to != way.from) copy_in_order(way.to, way.from, length);
    counters_->add(Count::send);
    const bool immediate = wr.opcode == IBV_WR_SEND_WITH_IMM;
    complete_receive(position, piece.length, immediate ? wr.imm_data : 0,
                     (immediate ? completion_immediate : 0U) |
                         ((flags & IBV_SEND_SOLICITED) != 0 ? completion_solicited : 0U));
    if ((flags & IBV_SEND_SIGNALED) != 0) complete_send(slot, piece.length);
    // The peer wrote it long ago. By the time of the next SEND it is here.
    __builtin_prefetch(block.receive_entry(position + 1));
    return true;
}

// --- windows ------------------------------------------------------------------------------------

std::atomic<std::uint64_t>* Executor::window_word(std::uint32_t key) noexcept {
    const CachedRegion* const region = look_up(receiver_, key, false);
    if (region == nullptr || (region->pd & pd_is_queue_pair) == 0) return nullptr;
    return &receiver_.end.block.windows[slot_of_window_pd(region->pd)];
}

// --- atomics ------------------------------------------------------------------------------------

CopyResult Executor::change(const Request& request, const Reach& at, std::uint64_t& original,
                            std::int64_t pause) noexcept {
    const Reach here{reinterpret_cast<std::byte*>(&original), 0, 0};
    if (const CopyResult result = copy_word(request, CopyPurpose::atomic_read, here, at);
        result != CopyResult::ok) {
        return result;
    }
    std::uint64_t next = request.swap;
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        next = original + request.compare_or_add;
    } else if (original != request.compare_or_add) {
        return CopyResult::ok;
    }
    if (pause != 0) {
        const std::int64_t until = link_now() + pause;
        while (link_now() < until) {
            sched_yield();
            base::count_system_call();
        }
    }
    return copy_word(request, CopyPurpose::atomic_write, at,
                     Reach{reinterpret_cast<std::byte*>(&next), 0, 0});
}

/// The address in the region's own process, which is the same for whoever executes.
std::uint64_t Executor::address_at_owner(const Side& side, std::uint32_t key,
                                         std::uint64_t address) const noexcept {
    const RegionEntry* const entry = side.end.mine ? node_->local_region(key) : peer_->region(key);
    if (entry == nullptr) return address;
    return load_once(entry->address) + (address - load_once(entry->iova));
}

template <bool in_steps>
Progress Executor::attempt_atomic(const Request& request) noexcept {
    constexpr std::uint64_t size = sizeof(std::uint64_t);
    Pieces local;
    std::uint32_t local_count = 0;
    std::uint64_t total = 0;
    // Where the old value comes to is looked at when it comes: the peer judges, and executes,
    // first.
    const bool has_room = gather(request, IBV_ACCESS_LOCAL_WRITE, local.data(), local_count, total);
    if (!has_room) local_count = 0;
    if (has_room && total != size) {
        if constexpr (in_steps) reason_ = {ReasonKind::not_eight, 0, total};
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
    }
    if ((access_->load(std::memory_order_relaxed) & IBV_ACCESS_REMOTE_ATOMIC) == 0 ||
        request.remote_address % size != 0) {
        if constexpr (in_steps) {
            reason_ = request.remote_address % size != 0
                          ? Reason{ReasonKind::unaligned, 0, request.remote_address}
                          : Reason{ReasonKind::queue_pair_access, 0, IBV_ACCESS_REMOTE_ATOMIC};
        }
        return fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    Piece target;
    target.length = size;
    target.key = request.remote_key;
    const CachedRegion* const region =
        find_region(receiver_, request.remote_key, request.remote_address, size,
                    IBV_ACCESS_REMOTE_ATOMIC, target.at);
    if (region == nullptr) {
        if constexpr (in_steps) {
            reason_ = reason_of_range(receiver_, request.remote_key, request.remote_address, size,
                                      IBV_ACCESS_REMOTE_ATOMIC);
        }
        return fail(IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    const std::uint64_t address = target.at.direct != nullptr
                                      ? reinterpret_cast<std::uint64_t>(target.at.direct)
                                      : target.at.remote;
    // The memory behind an aligned address need not be aligned: the program chose both.
    if (address % size != 0) {
        if constexpr (in_steps) reason_ = {ReasonKind::unaligned, 0, address};
        return fail(IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    }

    name_regions(local.data(), local_count, &target, 1);
    full_fence();  // as for a READ
    std::uint64_t original = request.compare_or_add;
    CopyResult result = CopyResult::ok;
    if constexpr (in_steps) {
        // Read, pause, written: atomic to other requests, and not to the processor.
        const std::uint64_t at_owner =
            address_at_owner(receiver_, request.remote_key, request.remote_address);
        AtomicLocks& locks = receiver_.end.mine ? node_->atomic_locks() : peer_->atomic_locks();
        if (!locks.lock(at_owner)) return Progress::busy;
        result = change(request, target.at, original,
                        draw_delay(scatter_bits(plan_),
                                   std::min(sender_.end.strict->delay_ns, longest_atomic)));
        locks.unlock(at_owner);
    } else if (region->kind == RegionKind::shared_file) {
        // Everybody maps it, and everybody uses the processor's atomics. Who cannot, must not.
        if (target.at.direct == nullptr) {
            if (!receiver_.end.mine && !peer_->still_there()) return Progress::gone;
            base::log_line(
                base::LogLevel::error, "soft",
                "atomic: the peer's shared memory cannot be mapped here, and the system's "
                "copies are not atomic to its processors; raise the limits on open files "
                "and memory (ulimit -n, -v)");
            return fail(IBV_WC_REM_OP_ERR, IBV_WC_WR_FLUSH_ERR);
        }
        std::atomic_ref<std::uint64_t> cell{*reinterpret_cast<std::uint64_t*>(target.at.direct)};
        if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            original = cell.fetch_add(request.compare_or_add);
        } else {
            cell.compare_exchange_strong(original, request.swap);
        }
    } else {
        AtomicLocks& locks = receiver_.end.mine ? node_->atomic_locks() : peer_->atomic_locks();
        if (!locks.lock(address)) return Progress::busy;
        result = change(request, target.at, original, 0);
        locks.unlock(address);
    }
    if (result == CopyResult::ok) {
        if (!has_room) {
            if constexpr (in_steps) {
                reason_ = reason_of_sges(sender_, request.sges,
                                         static_cast<std::uint32_t>(request.sge_count),
                                         IBV_ACCESS_LOCAL_WRITE | access_local);
            }
            return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
        }
        target.at = Reach{reinterpret_cast<std::byte*>(&original), 0, 0};
        result = copy(local.data(), local_count, &target, 1, size);
        if (result != CopyResult::ok) {
            return copy_failed(result, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
        }
    } else {
        return copy_failed(result, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    counters_->add(Count::atomic);
    if ((request.flags & IBV_SEND_SIGNALED) != 0) complete_send(request.slot, size);
    return Progress::done;
}

Progress Executor::go_on_in(std::int64_t pause, std::uint32_t step) noexcept {
    PendingLine& pending = *sender_.end.block.pending;
    due_ = link_now() + pause;
    pending.step_due.store(due_, std::memory_order_relaxed);
    pending.step.store(step, std::memory_order_release);
    return Progress::not_due;
}

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
    load_sges(reinterpret_cast<const std::uint64_t*>(&entry + 1), count, sges.data());
    request.sge_count = static_cast<int>(count);
    return true;
}

/// The rest of a request whose bytes are there: from here on nothing of the sender's counts.
Progress Executor::tell_receiver(const Request& request) noexcept {
    std::uint32_t receive = 0;
    if (!receiver_ready()) return Progress::no_peer;
    if (!receive_available(receive)) return Progress::no_receive;
    std::uint32_t flags = 0;
    if ((request.flags & IBV_SEND_SOLICITED) != 0) flags |= completion_solicited;
    if (request.opcode != IBV_WR_SEND) flags |= completion_immediate;
    if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= completion_write;
    std::uint32_t bytes = 0;
    for (int i = 0; i < request.sge_count; ++i) bytes += request.sges[i].length;
    counters_->add(count_of(request.opcode));
    complete_receive(receive, bytes, request.immediate, flags);
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
    } else if (receiver_ready() && receive_available(receive)) {
        const BlockView& block = receiver_.end.block;
        const ReceiveEntry* const entry = block.receive_entry(receive);
        EntrySges sges;
        const std::uint32_t count = std::min(load_once(entry->sges), block.receive_sges);
        load_sges(reinterpret_cast<const std::uint64_t*>(entry + 1), count, sges.data());
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
    if (due_ != 0 && link_now() < due_) return Progress::not_due;
    const std::uint32_t opcode = load_once(entry.opcode);
    if (opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV) return Progress::owners;
    Request request{};
    EntrySges sges;
    reason_ = {ReasonKind::malformed};
    if (!unpack(entry, request, sges)) return fail(IBV_WC_LOC_QP_OP_ERR, IBV_WC_SUCCESS);
    reason_ = {};
    announce_regions(request);
    if ((load_once(entry.flags) & pending_lost) != 0 && !reliable_) [[unlikely]]
        return lose(request, request.swap);
    const bool landed = step == step_landed && sends_to_receive(request.opcode);
    if (copies_refused_ && !landed && !sender_.end.mine && is_peers_alone(request)) [[unlikely]]
        return Progress::owners;
    if (plan_ == 0) return run(request);
    Progress progress = landed ? tell_receiver(request) : run_as<true>(request);
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
        !gather(request, 0, pieces.data(), count, total)) {
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
