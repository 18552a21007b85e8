#include "fabric/copy_asker.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "fabric/copy_in_order.hpp"
#include "layout/block_layout.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/wait.hpp"
#include "system/fences.hpp"
#include "system/shared_futex.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

constexpr auto answer_patience = 250ms;
constexpr auto patience_after_none = 2ms;
constexpr auto longest_copying = 1s;
/// How often it is asked whether the peer still lives.
constexpr auto waiting_slice = 5ms;
/// The service thread may be awake: then it answers about as fast as one falls asleep.
constexpr int spins = 100;

template <class Word>
void put(Word& word, Word value) noexcept {
    std::atomic_ref{word}.store(value, std::memory_order_relaxed);
}

}  // namespace

CopyAsker::~CopyAsker() {
    if (block_.memory != nullptr) ::munmap(block_.memory, block_.size);
}

bool CopyAsker::map(PeerNode& peer, int file, std::uint64_t word) noexcept {
    if (word == 0) return false;
    if (word == word_) return true;
    try {
        if (bell_ == nullptr) {
            bell_page_ = Mapping{file, membership_offset, page_size, PROT_READ | PROT_WRITE};
            if (!bell_page_) return false;
            bell_ = &reinterpret_cast<Membership*>(bell_page_.memory())->copy_bell;
        }
        const auto block = peer.map_block(static_cast<std::uint32_t>(word),
                                          static_cast<std::uint32_t>(word >> 32));
        if (!block) return false;
        if (block->size < copy_box_size) {
            peer.unmap_block(*block);
            return false;
        }
        if (block_.memory != nullptr) peer.unmap_block(block_);
        block_ = *block;
    } catch (...) {
        return false;
    }
    box_ = reinterpret_cast<CopyBox*>(block_.memory);
    word_ = word;
    return true;
}

CopyResult CopyAsker::ask(PeerNode& peer, int file, const AskedCopy& wanted) noexcept {
    // Other threads of this process ask, too; with a large message for some time.
    base::NapParker parker;
    const auto locked = [&] { return mutex_.try_lock(); };
    if (base::wait_until(locked, base::Deadline::after(answer_patience), base::WaitPolicy{},
                         parker) != base::Status::ok) {
        return CopyResult::busy;
    }
    const std::lock_guard guard{mutex_, std::adopt_lock};
    if (!map(peer, file, wanted.box)) return CopyResult::busy;
    for (std::size_t done = 0; done < wanted.bytes;) {
        const std::size_t part = std::min(wanted.bytes - done, largest_copy);
        const CopyResult result = ask_for(peer, wanted, done, part);
        if (result != CopyResult::ok) return result;
        done += part;
    }
    return CopyResult::ok;
}

CopyResult CopyAsker::ask_for(PeerNode& peer, const AskedCopy& wanted, std::size_t offset,
                              std::size_t bytes) noexcept {
    const std::uint32_t before = box_->state.load(std::memory_order_acquire);
    if (before == copy_taken) return CopyResult::busy;  // one that was given up
    std::byte* const bounce = block_.memory + copy_bytes_offset;
    const bool in = copies_in(wanted.purpose);
    if (in && wanted.local != nullptr) std::memcpy(bounce, wanted.local + offset, bytes);
    if (in && wanted.local == nullptr) std::memset(bounce, 0, bytes);
    CopyQuestion& question = box_->question;
    put(question.queue_pair, wanted.queue_pair);
    put(question.purpose, static_cast<std::uint32_t>(wanted.purpose));
    put(question.key, wanted.key);
    put(question.receive, wanted.receive);
    put(question.address, wanted.address + offset);
    put(question.bytes, static_cast<std::uint32_t>(bytes));
    box_->waiting.store(0, std::memory_order_relaxed);
    box_->state.store(copy_posted, std::memory_order_release);
    // Published, then looked: the service thread does it the other way round.
    bell_->rung.fetch_add(1, std::memory_order_seq_cst);
    full_fence();
    if (bell_->sleeps.load(std::memory_order_relaxed) != 0) wake_sleepers(bell_->rung);

    const CopyResult result = await(peer);
    unanswered_ = result == CopyResult::busy || result == CopyResult::no_answer;
    if (result != CopyResult::ok) return result;
    const auto outcome = static_cast<CopyOutcome>(box_->outcome.load(std::memory_order_relaxed));
    if (outcome == CopyOutcome::ok && !in && wanted.local != nullptr) {
        copy_in_order(wanted.local + offset, bounce, bytes);
    }
    box_->state.store(copy_free, std::memory_order_release);
    switch (outcome) {
        case CopyOutcome::ok: return CopyResult::ok;
        case CopyOutcome::not_connected: return CopyResult::busy;
        default: return CopyResult::bad_address;
    }
}

CopyResult CopyAsker::await(PeerNode& peer) noexcept {
    std::atomic<std::uint32_t>& state = box_->state;
    for (int i = 0; i < spins; ++i) {
        if (state.load(std::memory_order_acquire) == copy_done) return CopyResult::ok;
        base::pause();
    }
    const auto begin = base::Clock::now();
    const auto limit = unanswered_ ? base::Clock::duration{patience_after_none}
                                   : base::Clock::duration{answer_patience};
    for (;;) {
        box_->waiting.store(1, std::memory_order_seq_cst);
        const std::uint32_t now = state.load(std::memory_order_seq_cst);
        if (now == copy_done) return CopyResult::ok;
        sleep_on(state, now, std::min<std::chrono::nanoseconds>(limit, waiting_slice));
        if (state.load(std::memory_order_acquire) == copy_done) return CopyResult::ok;
        const auto waited = base::Clock::now() - begin;
        if (waited < std::min<base::Clock::duration>(limit, waiting_slice)) continue;
        if (!peer.still_there()) return CopyResult::peer_gone;
        if (waited < limit) continue;
        std::uint32_t posted = copy_posted;
        if (state.compare_exchange_strong(posted, copy_free, std::memory_order_acq_rel)) {
            return CopyResult::busy;
        }
        // What is being copied cannot be taken back.
        if (waited > limit + longest_copying) return CopyResult::no_answer;
    }
}

}  // namespace millrace::soft
