// How datagrams that have arrived leave a receive pool: in order, past those whose claimants are
// out or dead.
#include <atomic>
#include <chrono>
#include <cstdint>

#include "millrace/base/clock.hpp"
#include "receives/datagram.hpp"
#include "receives/receive_pool.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

[[nodiscard]] bool has_room(const PoolUser& user) noexcept {
    return user.datagram->has_room(user.polled->load(std::memory_order_acquire));
}

constexpr auto abandoned_after = 1ms;  ///< when to ask whether a claimant is out, and how often
constexpr auto passed_after = 10ms;    ///< when one that is has to let others pass

}  // namespace

bool ReceivePool::collect(bool patiently) noexcept {
    lock_.lock_often();
    while (first_ != tail_ && pass_first(patiently)) {
    }
    if (!strays_.empty()) [[unlikely]]
        look_at_strays(patiently && may_ask(base::ticks()) ? Strays::all : Strays::arrived);
    const bool again = stuck_ || !strays_.empty();
    lock_.unlock();
    return again;
}

bool ReceivePool::pass_first(bool patiently) noexcept {
    const std::uint32_t number = order_[first_ & mask_];
    PoolSlot& slot = view_.slot(number);
    const std::uint64_t claim = slot.claim.load(std::memory_order_acquire);
    if (sequence_of_claim(claim) == sequence_of(first_)) {
        if (state_of_claim(claim) == claim_offered) return false;
        const PoolUser* const receiver = user(queue_pair_of_claim(claim));
        if (receiver != nullptr && receiver->datagram != nullptr) {
            if (slot.arrived.load(std::memory_order_acquire) == sequence_of(first_)) {
                // A straggler's next message must not overtake it: where that one has arrived, the
                // one before has, too.
                if (!strays_.empty()) [[unlikely]]
                    look_at_strays(Strays::arrived);
                if (receives_[number].held == Held::posted) {
                    if (has_room(*receiver)) [[likely]] {
                        receives_[number].held = Held::done;
                        receiver->datagram->push(slot, number);
                    } else {
                        strays_.push_back({number, first_});  // when it is polled
                    }
                }
            } else if (!patiently || !give_up_first(*receiver->datagram, claim)) {
                return false;
            }
        }
    }
    ++first_;
    stuck_ = false;
    return true;
}

bool ReceivePool::may_ask(std::uint64_t now) noexcept {
    if (now - asked_at_ < base::ticks_in(abandoned_after)) return false;
    asked_at_ = now;
    return true;
}

bool ReceivePool::give_up_first(const Datagram& datagram, std::uint64_t claim) noexcept {
    const std::uint32_t sender = node_of_claim(claim);
    const std::uint64_t now = base::ticks();
    if (!stuck_ || stuck_position_ != first_) {
        stuck_ = true;
        stuck_position_ = first_;
        stuck_since_ = asked_at_ = now;
        stuck_word_ = datagram.senders().word(sender).load(std::memory_order_acquire);
        return false;
    }
    const std::uint32_t number = order_[first_ & mask_];
    if (may_ask(now) && datagram.sender_out(sender, stuck_word_)) {
        if (view_.slot(number).arrived.load(std::memory_order_acquire) == sequence_of(first_)) {
            return false;  // just so; the next look takes it
        }
        // Not `place`: it would look at the first again.
        if (tail_ - first_ > mask_) {
            strays_.push_back({number, first_});
        } else {
            place(number);
        }
        return true;
    }
    if (now - stuck_since_ < base::ticks_in(passed_after)) return false;
    strays_.push_back({number, first_});
    return true;
}

void ReceivePool::look_at_strays(Strays which) noexcept {
    for (std::size_t i = 0; i < strays_.size();) {
        const Stray stray = strays_[i];
        PoolSlot& slot = view_.slot(stray.number);
        const std::uint64_t claim = slot.claim.load(std::memory_order_acquire);
        const PoolUser* const receiver = user(queue_pair_of_claim(claim));
        const auto arrived = [&] {
            return slot.arrived.load(std::memory_order_acquire) == sequence_of(stray.position);
        };
        bool settled = true;
        bool place_again = false;
        if (which == Strays::arrived && (receiver == nullptr || !arrived())) {
            settled = false;
        } else if (sequence_of_claim(claim) != sequence_of(stray.position) ||
                   receives_[stray.number].held != Held::posted) {
            // It has become another receive.
        } else if (receiver == nullptr || receiver->datagram == nullptr) {
            place_again = true;
        } else if (arrived()) {
            settled = has_room(*receiver);
            if (settled) {
                receives_[stray.number].held = Held::done;
                receiver->datagram->push(slot, stray.number);
            }
        } else {
            const std::uint32_t sender = node_of_claim(claim);
            const Datagram& datagram = *receiver->datagram;
            const std::uint64_t word =
                datagram.senders().word(sender).load(std::memory_order_acquire);
            // Even: the claimant is out. Odd: it may be this claim, if its process lives.
            if (!datagram.sender_out(sender, word) || arrived()) {
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
        first_ == tail_ ? free_[free_begin_ & mask_] : order_[first_ & mask_];
    const auto* word = &view_.slot(number).arrived;
    lock_.unlock();
    return word;
}

}  // namespace millrace::soft
