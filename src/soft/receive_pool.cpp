// Implementation of receive_pool.hpp.
#include "receive_pool.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "datagram.hpp"
#include "millrace/base/clock.hpp"
#include "queue_pair.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

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

constexpr auto abandoned_after = 1ms;  ///< when a claimant that is not executing is given up
constexpr auto passed_after = 10ms;    ///< when one that is has to let others pass

}  // namespace

std::unique_ptr<ReceivePool> ReceivePool::make(Node& node, std::uint32_t entries,
                                               std::uint32_t sges) {
    PoolGeometry geometry;
    geometry.entries = std::bit_ceil(entries == 0 ? 1U : entries);
    geometry.sges = sges == 0 ? 1 : sges;
    const auto block = node.allocate_block(geometry.block_size(), BlockUse::other);
    if (!block) return nullptr;
    try {
        return std::unique_ptr<ReceivePool>{new ReceivePool{node, *block, geometry}};
    } catch (...) {
        node.free_block(*block, false);
        throw;
    }
}

ReceivePool::ReceivePool(Node& node, const Block& block, const PoolGeometry& geometry)
    : node_{node},
      block_{block},
      view_{block.memory, geometry},
      asymmetric_{node.membarrier()},
      receives_(geometry.entries),
      pieces_{
          std::make_unique_for_overwrite<ibv_sge[]>(std::size_t{geometry.entries} * geometry.sges)},
      free_(geometry.entries, 0),
      order_(geometry.entries, 0) {
    strays_.reserve(geometry.entries);
    reset_free();
    PoolFacts& facts = view_.facts();
    facts.entries = geometry.entries;
    facts.sges = geometry.sges;
    view_.head().position.store(first_position, std::memory_order_relaxed);
    view_.tail().position.store(first_position, std::memory_order_relaxed);
    facts.magic = pool_magic;
}

void ReceivePool::give_back() noexcept {
    node_.free_block(block_, quarantined_.load(std::memory_order_relaxed));
}

void ReceivePool::reset_free() noexcept {
    free_begin_ = free_end_ = 0;
    for (std::uint32_t number = 0; number < entries(); ++number) set_free(number);
}

// --- who receives from it -----------------------------------------------------------------------

void ReceivePool::attach(QueuePair& qp) {
    const std::lock_guard users{users_mutex_};
    const std::lock_guard guard{lock_};
    users_.push_back(&qp);
    if (qp.datagram == nullptr || collects_) return;
    collects_ = true;
    // What was claimed before is RC's.
    first_ = view_.head().position.load(std::memory_order_acquire);
    if (tail_ - first_ > entries()) first_ = tail_;
}

void ReceivePool::detach(QueuePair& qp) noexcept {
    const std::lock_guard users{users_mutex_};
    const std::lock_guard guard{lock_};
    std::erase(users_, &qp);
}

bool ReceivePool::used() noexcept {
    const std::lock_guard users{users_mutex_};
    return !users_.empty();
}

QueuePair* ReceivePool::user(std::uint32_t index) noexcept {
    for (QueuePair* qp : users_) {
        if (qp->memory.index == index) return qp;
    }
    return nullptr;
}

// --- posting ------------------------------------------------------------------------------------

void ReceivePool::place(std::uint32_t number) noexcept {
    const std::uint32_t position = tail_;
    if (position - head_seen_ >= entries()) {
        head_seen_ = view_.head().position.load(std::memory_order_acquire);
        if (position - head_seen_ >= entries()) {
            // The receive there is claimed, by somebody who did not come to advance the head:
            // there are as many receives as positions, and one is in our hands.
            view_.advance_head(head_seen_);
        }
    }
    if (collects_ && position - first_ >= entries() && !pass_first(false)) {
        strays_.push_back({order_[first_ & view_.mask()], first_});
        ++first_;
    }
    order_[position & view_.mask()] = number;
    receives_[number].held = Held::posted;
    PoolSlot& slot = view_.slot(number);
    slot.claim.store(make_claim(position, 0, 0, claim_offered), std::memory_order_release);
    view_.order(position).store(std::uint64_t{sequence_of(position)} << 32 | number,
                                std::memory_order_release);
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
        const std::uint32_t number = free_[free_begin_++ & view_.mask()];
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
    for (QueuePair* qp : users_) {
        if (qp->datagram == nullptr) qp->run_peer_pending_if_any();
    }
}

// --- what becomes of receives -------------------------------------------------------------------

bool ReceivePool::take_back(std::uint32_t number, std::uint64_t& wr_id) noexcept {
    if (number >= entries()) return false;
    lock_.lock_often();
    Receive& receive = receives_[number];
    const bool known = receive.held != Held::free;
    if (known) {
        wr_id = receive.wr_id;
        set_free(number);
    }
    lock_.unlock();
    check_limit();
    return known;
}

bool ReceivePool::posted(std::uint32_t number, PostedPieces& pieces) noexcept {
    if (number >= entries()) return false;
    const std::lock_guard guard{lock_};
    if (receives_[number].held != Held::posted) return false;
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
        const std::uint32_t number = order_[first_ & view_.mask()];
        ++first_;
        if (take(number)) return true;
    }
    return false;
}

void ReceivePool::mark_done(std::uint32_t number) noexcept {
    if (number >= entries()) return;
    const std::lock_guard guard{lock_};
    if (receives_[number].held == Held::posted) receives_[number].held = Held::done;
}

void ReceivePool::offer_again(std::uint32_t index, bool completed, Datagram* arrived) noexcept {
    {
        const std::lock_guard guard{lock_};
        if (arrived != nullptr) arrived->clear();
        std::erase_if(strays_, [&](const Stray& stray) {
            return queue_pair_of_claim(
                       view_.slot(stray.number).claim.load(std::memory_order_acquire)) == index;
        });
        for (std::uint32_t number = 0; number < entries(); ++number) {
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
    if (number >= entries()) return;
    const std::lock_guard guard{lock_};
    if (receives_[number].held == Held::posted) place(number);
}

void ReceivePool::clear(Datagram& arrived) noexcept {
    const std::lock_guard guard{lock_};
    arrived.clear();
    for (std::uint32_t number = 0; number < entries(); ++number) {
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

// --- datagrams ----------------------------------------------------------------------------------

bool ReceivePool::collect(bool patiently) noexcept {
    lock_.lock_often();
    while (first_ != tail_ && pass_first(patiently)) {
    }
    if (patiently && !strays_.empty()) [[unlikely]]
        look_at_strays(Strays::all);
    const bool again = stuck_ || !strays_.empty();
    lock_.unlock();
    return again;
}

bool ReceivePool::pass_first(bool patiently) noexcept {
    const std::uint32_t number = order_[first_ & view_.mask()];
    PoolSlot& slot = view_.slot(number);
    const std::uint64_t claim = slot.claim.load(std::memory_order_acquire);
    if (sequence_of_claim(claim) == sequence_of(first_)) {
        if (state_of_claim(claim) == claim_offered) return false;
        QueuePair* const qp = user(queue_pair_of_claim(claim));
        if (qp != nullptr && qp->datagram != nullptr) {
            if (slot.arrived.load(std::memory_order_acquire) == sequence_of(first_)) {
                // A straggler's next message must not overtake it: where that one has arrived, the
                // one before has, too.
                if (!strays_.empty()) [[unlikely]]
                    look_at_strays(Strays::arrived);
                if (receives_[number].held == Held::posted) {
                    receives_[number].held = Held::done;
                    qp->datagram->push(slot, number);
                }
            } else if (!patiently || !give_up_first(*qp, claim)) {
                return false;
            }
        }
    }
    ++first_;
    stuck_ = false;
    return true;
}

bool ReceivePool::give_up_first(QueuePair& qp, std::uint64_t claim) noexcept {
    const std::uint32_t sender = node_of_claim(claim);
    const std::uint64_t now = base::ticks();
    if (!stuck_ || stuck_position_ != first_) {
        stuck_ = true;
        stuck_position_ = first_;
        stuck_since_ = now;
        stuck_word_ = qp.datagram->senders().word(sender).load(std::memory_order_acquire);
        return false;
    }
    static const std::uint64_t abandoned = base::ticks_in(abandoned_after);
    static const std::uint64_t passed = base::ticks_in(passed_after);
    if (now - stuck_since_ < abandoned) return false;
    const std::uint32_t number = order_[first_ & view_.mask()];
    if (qp.datagram->sender_out(sender, stuck_word_)) {
        if (view_.slot(number).arrived.load(std::memory_order_acquire) == sequence_of(first_)) {
            return false;  // just so; the next look takes it
        }
        // Not `place`: it would look at the first again.
        if (tail_ - first_ >= entries()) {
            strays_.push_back({number, first_});
        } else {
            place(number);
        }
        return true;
    }
    if (now - stuck_since_ < passed) return false;
    strays_.push_back({number, first_});
    return true;
}

void ReceivePool::look_at_strays(Strays which) noexcept {
    for (std::size_t i = 0; i < strays_.size();) {
        const Stray stray = strays_[i];
        PoolSlot& slot = view_.slot(stray.number);
        const std::uint64_t claim = slot.claim.load(std::memory_order_acquire);
        QueuePair* const qp = user(queue_pair_of_claim(claim));
        const auto arrived = [&] {
            return slot.arrived.load(std::memory_order_acquire) == sequence_of(stray.position);
        };
        bool settled = true;
        bool place_again = false;
        if (which == Strays::arrived && (qp == nullptr || !arrived())) {
            settled = false;
        } else if (sequence_of_claim(claim) != sequence_of(stray.position) ||
                   receives_[stray.number].held != Held::posted) {
            // It has become another receive.
        } else if (qp == nullptr || qp->datagram == nullptr) {
            place_again = true;
        } else if (arrived()) {
            receives_[stray.number].held = Held::done;
            qp->datagram->push(slot, stray.number);
        } else {
            const std::uint32_t sender = node_of_claim(claim);
            const std::uint64_t word =
                qp->datagram->senders().word(sender).load(std::memory_order_acquire);
            // Even: the claimant is out. Odd: it may be this claim, if its process lives.
            if (!qp->datagram->sender_out(sender, word) || arrived()) {
                settled = false;
            } else {
                place_again = true;
            }
        }
        if (!settled) {
            ++i;
            continue;
        }
        strays_.erase(strays_.begin() + static_cast<std::ptrdiff_t>(i));
        if (place_again) place(stray.number);
    }
}

const std::atomic<std::uint32_t>* ReceivePool::next_arrival(std::uint32_t& expected) noexcept {
    lock_.lock_often();
    expected = sequence_of(first_);
    // Not posted yet: it will be the one that was freed first.
    const std::uint32_t number =
        first_ == tail_ ? free_[free_begin_ & view_.mask()] : order_[first_ & view_.mask()];
    const auto* word = &view_.slot(number).arrived;
    lock_.unlock();
    return word;
}

// --- the limit ----------------------------------------------------------------------------------

void ReceivePool::set_limit(std::uint32_t limit) noexcept {
    limit_.store(limit, std::memory_order_relaxed);
    view_.limit().limit.store(limit, std::memory_order_relaxed);
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
    view_.limit().limit.store(0, std::memory_order_relaxed);
    if (reached) reached();
}

}  // namespace millrace::soft
