// Implementation of receive_pool.hpp: its memory, posting, what becomes of receives, the limit.
// What datagrams do with them: receive_pool_collect.cpp.
#include "receives/receive_pool.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "fabric/node.hpp"
#include "receives/datagram.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

/// By words: a sender that has not claimed the receive yet may be looking at it.
void write_sges(PoolSlot& slot, const ibv_recv_wr& wr) noexcept {
    const auto store = [](auto& word, auto value) {
        std::atomic_ref{word}.store(value, std::memory_order_relaxed);
    };
    store(slot.sges, static_cast<std::uint32_t>(wr.num_sge));
    auto* const words = reinterpret_cast<std::uint64_t*>(&slot + 1);
    for (int i = 0; i < wr.num_sge; ++i) {
        const auto pair = std::bit_cast<std::array<std::uint64_t, 2>>(wr.sg_list[i]);
        store(words[2 * i], pair[0]);
        store(words[2 * i + 1], pair[1]);
    }
}

/// The same as of whole blocks (node_memory.cpp).
constexpr std::size_t largest_backed = std::size_t{128} << 10;

}  // namespace

std::unique_ptr<ReceivePool> ReceivePool::make(Node& node, std::uint32_t entries,
                                               std::uint32_t sges, Growth growth) {
    entries = std::bit_ceil(entries == 0 ? 1U : entries);
    PoolGeometry room;
    room.entries = growth == Growth::resizable ? max_queue_entries : entries;
    room.sges = sges == 0 ? 1 : sges;
    auto block = node.allocate_block(room.block_size(), BlockUse::other);
    if (!block && growth == Growth::resizable) {
        room.entries = entries;  // it cannot grow
        block = node.allocate_block(room.block_size(), BlockUse::other);
    }
    if (!block) return nullptr;
    try {
        std::unique_ptr<ReceivePool> pool{new ReceivePool{node, *block, room, entries}};
        const int error = pool->back(entries);
        if (error == 0) return pool;
        pool->give_back();
        return refused(error);
    } catch (...) {
        node.free_block(*block, false);
        throw;
    }
}

ReceivePool::ReceivePool(Node& node, const Block& block, const PoolGeometry& room,
                         std::uint32_t entries)
    : node_{node},
      block_{block},
      view_{block.memory, room},
      asymmetric_{node.membarrier()},
      entries_{entries},
      mask_{entries - 1},
      receives_(entries),
      pieces_{std::make_unique_for_overwrite<ibv_sge[]>(std::size_t{entries} * room.sges)},
      free_(entries, 0),
      order_(entries, 0) {
    strays_.reserve(entries);
    reset_free();
    PoolFacts& facts = view_.facts();
    facts.entries = room.entries;
    facts.sges = room.sges;
    view_.bounds().mask.store(mask_, std::memory_order_relaxed);
    view_.head().position.store(first_position, std::memory_order_relaxed);
    view_.tail().position.store(first_position, std::memory_order_relaxed);
    facts.magic = pool_magic;
}

/// Memory for the first `slots` of them, where that is little: a lack of it is an error here and
/// not a SIGBUS in a peer. (That of many is used as they are, like all large blocks.) 0, or errno.
int ReceivePool::back(std::uint32_t slots) noexcept {
    const PoolGeometry room{view_.room_mask() + 1, view_.sges()};
    if (room.entries == slots) return 0;  // the block as a whole goes by that
    const FilePlace place = node_.place_of(block_);
    const auto get = [&](std::size_t begin, std::size_t bytes) {
        const bool got = bytes > largest_backed ||
                         ::fallocate(place.file, 0, static_cast<off_t>(place.offset + begin),
                                     static_cast<off_t>(bytes)) == 0;
        return got ? 0 : errno;
    };
    const int error = get(PoolGeometry::order_offset, std::size_t{slots} * sizeof(std::uint64_t));
    return error != 0 ? error : get(room.slots_offset(), slots * room.stride());
}

void ReceivePool::give_back() noexcept {
    node_.free_block(block_, quarantined_.load(std::memory_order_relaxed));
}

void ReceivePool::reset_free() noexcept {
    free_begin_ = free_end_ = 0;
    for (std::uint32_t number = 0; number < receives_.size(); ++number) set_free(number);
}

// --- its size -----------------------------------------------------------------------------------

int ReceivePool::resize(std::uint32_t entries, bool with_new_limit) noexcept {
    const std::lock_guard resizing{resize_mutex_};
    const std::uint32_t before = entries_.load(std::memory_order_relaxed);
    const std::uint32_t after = std::bit_ceil(entries == 0 ? 1U : entries);
    if (!with_new_limit && after < limit()) return EINVAL;
    if (after > view_.room_mask() + 1) return ENOMEM;
    // Nothing else changes the numbers of slots: what is needed is made before the lock.
    const auto known = static_cast<std::uint32_t>(receives_.size());
    const std::uint32_t places = std::max(after, known);
    std::vector<Receive> receives;
    std::unique_ptr<ibv_sge[]> pieces;
    std::vector<std::uint32_t> free;
    std::vector<std::uint32_t> order;
    std::vector<std::uint32_t> retired;
    std::vector<Stray> strays;
    try {
        retired.reserve(places);
        if (places > known) {
            if (const int error = back(places); error != 0) return error;
            receives.resize(places);
            pieces = std::make_unique_for_overwrite<ibv_sge[]>(std::size_t{places} * sges());
            free.resize(places);
            order.resize(places);
            strays.reserve(places);
        }
    } catch (const std::bad_alloc&) {
        return ENOMEM;
    }
    const std::lock_guard guard{lock_};
    const std::uint32_t idle = free_end_ - free_begin_;
    if (after + idle < before) return EINVAL;  // more than so many are outstanding
    retired.assign(retired_.begin(), retired_.end());
    retired_.swap(retired);
    if (places > known) {
        std::copy(receives_.begin(), receives_.end(), receives.begin());
        receives_.swap(receives);
        std::copy_n(pieces_.get(), std::size_t{known} * sges(), pieces.get());
        pieces_.swap(pieces);
        strays.assign(strays_.begin(), strays_.end());
        strays_.swap(strays);
        widen(places, order, free);
        for (std::uint32_t number = known; number < places; ++number) retired_.push_back(number);
    }
    for (std::uint32_t slots = before; slots < after; ++slots) {
        set_free(retired_.back());
        retired_.pop_back();
    }
    for (std::uint32_t slots = before; slots > after; --slots) {
        retired_.push_back(free_[--free_end_ & mask_]);
    }
    entries_.store(after, std::memory_order_relaxed);
    return 0;
}

void ReceivePool::widen(std::uint32_t places, std::vector<std::uint32_t>& order,
                        std::vector<std::uint32_t>& free) noexcept {
    const std::uint32_t mask = places - 1;
    // A position's new place is its old one, or one that was never used.
    for (std::uint32_t position = tail_ - (mask_ + 1); position != tail_; ++position) {
        order[position & mask] = order_[position & mask_];
        if ((position & mask) == (position & mask_)) continue;
        view_.order(position & mask)
            .store(view_.order(position & mask_).load(std::memory_order_relaxed),
                   std::memory_order_relaxed);
    }
    for (std::uint32_t at = free_begin_; at != free_end_; ++at) free[at & mask] = free_[at & mask_];
    order_.swap(order);
    free_.swap(free);
    mask_ = mask;
    // Before any word that only the larger ring has a place for, or that takes another's place.
    view_.bounds().mask.store(mask, std::memory_order_release);
}

// --- who receives from it -----------------------------------------------------------------------

void ReceivePool::attach(PoolUser user) {
    const std::lock_guard users{users_mutex_};
    const std::lock_guard guard{lock_};
    users_.push_back(std::move(user));
    if (users_.back().datagram == nullptr || collects_) return;
    collects_ = true;
    // What was claimed before is RC's.
    first_ = view_.head().position.load(std::memory_order_acquire);
    if (tail_ - first_ > mask_ + 1) first_ = tail_;
}

void ReceivePool::detach(std::uint32_t index) noexcept {
    const std::lock_guard users{users_mutex_};
    const std::lock_guard guard{lock_};
    std::erase_if(users_, [index](const PoolUser& user) { return user.index == index; });
}

bool ReceivePool::used() noexcept {
    const std::lock_guard users{users_mutex_};
    return !users_.empty();
}

const PoolUser* ReceivePool::user(std::uint32_t index) const noexcept {
    for (const PoolUser& user : users_) {
        if (user.index == index) return &user;
    }
    return nullptr;
}

// --- posting ------------------------------------------------------------------------------------

void ReceivePool::place(std::uint32_t number) noexcept {
    const std::uint32_t position = tail_;
    if (position - head_seen_ > mask_) {
        head_seen_ = view_.head().position.load(std::memory_order_acquire);
        if (position - head_seen_ > mask_) {
            // The receive there is claimed, by somebody who did not come to advance the head:
            // there are no more receives than places, and one is in our hands.
            view_.advance_head(head_seen_);
        }
    }
    if (collects_ && position - first_ > mask_ && !pass_first(false)) {
        strays_.push_back({order_[first_ & mask_], first_});
        ++first_;
    }
    order_[position & mask_] = number;
    receives_[number].held = Held::posted;
    PoolSlot& slot = view_.slot(number);
    slot.claim.store(make_claim(position, 0, 0, claim_offered), std::memory_order_release);
    view_.order(position & mask_)
        .store(std::uint64_t{sequence_of(position)} << 32 | number, std::memory_order_release);
    tail_ = position + 1;
    view_.tail().position.store(tail_, std::memory_order_relaxed);
}

int ReceivePool::post(ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    int error = 0;
    lock_.lock_often();
    for (; wr != nullptr; wr = wr->next) {
        if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > sges()) [[unlikely]] {
            error = EINVAL;
            break;
        }
        if (free_begin_ == free_end_) [[unlikely]] {
            error = ENOMEM;
            break;
        }
        const std::uint32_t number = free_[free_begin_++ & mask_];
        receives_[number].wr_id = wr->wr_id;
        receives_[number].sges = static_cast<std::uint8_t>(wr->num_sge);
        std::copy_n(wr->sg_list, wr->num_sge, &pieces_[std::size_t{number} * sges()]);
        PoolSlot& slot = view_.slot(number);
        write_sges(slot, *wr);
        place(number);
    }
    lock_.unlock();
    if (error != 0) *bad = wr;
    return error;
}

void ReceivePool::run_waiting() noexcept {
    view_.waiting().flag.exchange(0, std::memory_order_seq_cst);
    full_fence();
    const std::lock_guard users{users_mutex_};
    for (const PoolUser& user : users_) {
        if (user.run_waiting) user.run_waiting();
    }
}

// --- what becomes of receives -------------------------------------------------------------------

bool ReceivePool::take_back(std::uint32_t number, std::uint64_t& wr_id) noexcept {
    lock_.lock_often();
    const bool known = number < receives_.size() && receives_[number].held != Held::free;
    if (known) {
        wr_id = receives_[number].wr_id;
        set_free(number);
    }
    lock_.unlock();
    check_limit();
    return known;
}

bool ReceivePool::posted(std::uint32_t number, PostedPieces& pieces) noexcept {
    const std::lock_guard guard{lock_};
    if (number >= receives_.size() || receives_[number].held != Held::posted) return false;
    pieces.count = receives_[number].sges;
    std::copy_n(&pieces_[std::size_t{number} * sges()], pieces.count, pieces.sges.begin());
    return true;
}

bool ReceivePool::take_oldest(std::uint64_t& wr_id) noexcept {
    const std::lock_guard guard{lock_};
    const auto take = [&](std::uint32_t number) {
        Receive& receive = receives_[number];
        if (receive.held != Held::posted) return false;
        wr_id = receive.wr_id;
        set_free(number);
        return true;
    };
    while (!strays_.empty()) {
        const std::uint32_t number = strays_.front().number;
        strays_.erase(strays_.begin());
        if (take(number)) return true;
    }
    while (first_ != tail_) {
        const std::uint32_t number = order_[first_ & mask_];
        ++first_;
        if (take(number)) return true;
    }
    return false;
}

void ReceivePool::mark_done(std::uint32_t number) noexcept {
    const std::lock_guard guard{lock_};
    if (number < receives_.size() && receives_[number].held == Held::posted)
        receives_[number].held = Held::done;
}

void ReceivePool::offer_again(std::uint32_t index, bool completed, Datagram* arrived) noexcept {
    {
        const std::lock_guard guard{lock_};
        if (arrived != nullptr) arrived->clear();
        std::erase_if(strays_, [&](const Stray& stray) {
            return queue_pair_of_claim(
                       view_.slot(stray.number).claim.load(std::memory_order_acquire)) == index;
        });
        for (std::uint32_t number = 0; number < receives_.size(); ++number) {
            const Held held = receives_[number].held;
            if (held == Held::free || (held == Held::done && !completed)) continue;
            const std::uint64_t claim = view_.slot(number).claim.load(std::memory_order_acquire);
            if (state_of_claim(claim) == claim_taken && queue_pair_of_claim(claim) == index) {
                place(number);
            }
        }
    }
    serve_waiting();
}

void ReceivePool::offer_again_one(std::uint32_t number) noexcept {
    const std::lock_guard guard{lock_};
    if (number < receives_.size() && receives_[number].held == Held::posted) place(number);
}

void ReceivePool::clear(Datagram& arrived) noexcept {
    const std::lock_guard guard{lock_};
    arrived.clear();
    for (std::uint32_t number = 0; number < receives_.size(); ++number) {
        view_.slot(number).claim.store(0, std::memory_order_relaxed);
        view_.slot(number).arrived.store(0, std::memory_order_relaxed);
        view_.order(number).store(0, std::memory_order_relaxed);
    }
    reset_free();
    strays_.clear();
    stuck_ = false;
    tail_ = first_ = head_seen_ = first_position;
    view_.waiting().flag.store(0, std::memory_order_relaxed);
    view_.tail().position.store(first_position, std::memory_order_relaxed);
    view_.head().position.store(first_position, std::memory_order_release);
}

// --- the limit ----------------------------------------------------------------------------------

void ReceivePool::set_limit(std::uint32_t limit) noexcept {
    limit_.store(limit, std::memory_order_relaxed);
    view_.bounds().limit.store(limit, std::memory_order_relaxed);
    heavy_fence();  // a claimant has seen it, or we see its claim
    check_limit();
}

void ReceivePool::look_at_limit() noexcept {
    std::uint32_t limit = limit_.load(std::memory_order_relaxed);
    std::uint32_t posted = 0;
    {
        const std::lock_guard guard{lock_};
        posted = tail_ - view_.head().position.load(std::memory_order_acquire);
    }
    if (posted >= limit) return;
    if (!limit_.compare_exchange_strong(limit, 0, std::memory_order_relaxed)) return;
    view_.bounds().limit.store(0, std::memory_order_relaxed);
    if (reached) reached();
}

}  // namespace millrace::soft
