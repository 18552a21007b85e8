#include "copy_service/copy_service.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "fabric/node.hpp"
#include "layout/block_layout.hpp"
#include "millrace/base/detail/own_threads.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/signals.hpp"
#include "millrace/base/wait.hpp"
#include "receives/datagram.hpp"
#include "receives/receive_pool.hpp"
#include "regions/region_facts.hpp"
#include "system/copy_rights.hpp"
#include "system/fences.hpp"
#include "system/shared_futex.hpp"
#include "transport/pieces.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;

/// After an answer, for so many looks the next question is awaited awake.
constexpr int looks_awake = 50;
/// It is woken when something is asked for. A peer that scribbles on the page with the bell might
/// take that from the others: then they wait for so long.
constexpr auto longest_sleep = 100ms;

[[nodiscard]] CopyQuestion read_once(const CopyQuestion& question) noexcept {
    return {load_once(question.queue_pair), load_once(question.purpose), load_once(question.key),
            load_once(question.receive),    load_once(question.address), load_once(question.bytes)};
}

/// Is [address, address + bytes) within [begin, begin + length)?
[[nodiscard]] bool within(std::uint64_t address, std::uint64_t bytes, std::uint64_t begin,
                          std::uint64_t length) noexcept {
    const std::uint64_t offset = address - begin;
    return offset <= length && bytes <= length - offset;
}

[[nodiscard]] std::uint32_t needed_access(CopyPurpose purpose) noexcept {
    switch (purpose) {
        case CopyPurpose::write: return IBV_ACCESS_REMOTE_WRITE;
        case CopyPurpose::read: return IBV_ACCESS_REMOTE_READ;
        default: return IBV_ACCESS_REMOTE_ATOMIC;
    }
}

}  // namespace

bool CopyService::likely_needed(PeerNode& peer) noexcept {
    return !peer.is_self() &&
           (peer.copies_refused() || peer.cannot_copy() || others_may_not_copy());
}

void CopyService::stop() noexcept {
    if (thread_ == nullptr) return;
    if (process_ != getpid()) {
        static_cast<void>(thread_.release());  // made by fork: the thread is the parent's
        return;
    }
    stop_.store(true, std::memory_order_release);
    CopyBell& bell = node_.copy_bell();
    bell.rung.fetch_add(1, std::memory_order_release);
    wake_sleepers(bell.rung);
    // Or it is the one that ends the process.
    thread_->get_id() == std::this_thread::get_id() ? thread_->detach() : thread_->join();
    thread_.reset();
}

// --- who is served ------------------------------------------------------------------------------

template <class Match>
bool CopyService::dismiss(Match&& match) noexcept {
    Served ended{};  // without the mutex
    const std::lock_guard guard{mutex_};
    const auto found = std::find_if(served_.begin(), served_.end(), match);
    if (found == served_.end()) return false;
    ended = std::move(*found);
    served_.erase(found);
    // The sender's number may be another process's by now, which then asks again.
    std::atomic<std::uint64_t>& word =
        ended.sender != nullptr ? ended.granter.datagram->senders().copy_box(ended.sender->number())
                                : ended.granter.end->block.news->copy_box;
    word.store(0, std::memory_order_release);
    if (ended.granter.broken->load(std::memory_order_relaxed) != 0) ended.box->quarantine = true;
    if (--ended.box->users == 0) std::erase(boxes_, ended.box);
    return true;
}

void CopyService::serve(QueuePairsHeld, const CopyGranter& granter, PeerNode& peer,
                        bool at_once) noexcept {
    const std::lock_guard guard{mutex_};
    const auto known = std::find_if(served_.begin(), served_.end(), [&](const Served& one) {
        return one.granter.end == granter.end;
    });
    if (at_once) asked_for_ = true;
    if (known != served_.end()) return start();
    const std::uint64_t word = admit(granter, peer, nullptr);
    if (word != 0) granter.end->block.news->copy_box.store(word, std::memory_order_release);
}

void CopyService::forget_dead() noexcept {
    while (
        dismiss([](const Served& one) { return one.sender != nullptr && !one.sender->alive(); })) {
    }
}

void CopyService::serve_sender(QueuePairsHeld, const CopyGranter& granter,
                               std::shared_ptr<PeerNode> sender) noexcept {
    forget_dead();
    const std::lock_guard guard{mutex_};
    const auto known = std::find_if(served_.begin(), served_.end(), [&](const Served& one) {
        return one.granter.end == granter.end && one.box->peer == sender->identity();
    });
    asked_for_ = true;
    const std::uint32_t number = sender->number();
    std::uint64_t word = 0;
    if (known != served_.end()) {
        word = make_copy_box_word(known->box->block.generation, known->box->block.index);
        start();
    } else {
        PeerNode& peer = *sender;
        word = admit(granter, peer, std::move(sender));
    }
    granter.datagram->senders().copy_box(number).store(word, std::memory_order_release);
}

std::uint64_t CopyService::admit(const CopyGranter& granter, PeerNode& peer,
                                 std::shared_ptr<PeerNode> sender) noexcept {
    try {
        const NodeIdentity& identity = peer.identity();
        auto found = std::find_if(boxes_.begin(), boxes_.end(),
                                  [&](const auto& box) { return box->peer == identity; });
        if (found == boxes_.end()) {
            boxes_.reserve(boxes_.size() + 1);
            served_.reserve(served_.size() + 1);
            const auto block = node_.allocate_block(copy_box_size, BlockUse::other);
            if (!block) {
                base::log(base::LogLevel::warn, "soft", "cannot serve copies to process {}: {}",
                          peer.pid(), base::describe_errno(errno));
                return 0;
            }
            auto box = std::make_shared<Box>(node_, *block, identity);
            const FilePlace place = node_.place_of(*block);
            box->file = place.file;
            box->offset = place.offset;
            found = boxes_.insert(boxes_.end(), std::move(box));
        }
        served_.push_back({granter, *found, std::move(sender)});
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "cannot serve copies to process {}: {}", peer.pid(),
                  error.what());
        return 0;
    }
    Box& box = *served_.back().box;
    ++box.users;
    start();
    return make_copy_box_word(box.block.generation, box.block.index);
}

void CopyService::forget(QueuePairsHeld, const End& end) noexcept {
    if (!node_.usable()) return;  // made by fork: the thread may hold the mutex for ever
    while (dismiss([&](const Served& one) { return one.granter.end == &end; })) {
    }
}

void CopyService::need_thread() noexcept {
    if (!node_.usable()) return;
    const std::lock_guard guard{mutex_};
    private_memory_ = true;
    start();
}

void CopyService::start() noexcept {
    if (thread_ != nullptr || boxes_.empty() || !(private_memory_ || asked_for_)) return;
    process_ = getpid();
    const base::SignalsBlocked blocked;
    try {
        thread_ = std::make_unique<std::thread>([this] { run(); });
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "soft", "no thread to serve copies to peers: {}",
                  error.what());
    }
}

// --- the thread ---------------------------------------------------------------------------------

void CopyService::run() noexcept {
    pthread_setname_np(pthread_self(), "millrace-copy");
    const base::OwnThread own;
    CopyBell& bell = node_.copy_bell();
    int awake = 0;
    while (!stop_.load(std::memory_order_acquire)) {
        const std::uint32_t seen = bell.rung.load(std::memory_order_acquire);
        if (look()) {
            awake = looks_awake;
            continue;
        }
        if (awake > 0) {
            --awake;
            base::pause();
            continue;
        }
        bell.sleeps.store(1, std::memory_order_relaxed);
        full_fence();  // the asker rings, fences, and looks whether we sleep
        if (!stop_.load(std::memory_order_acquire)) sleep_on(bell.rung, seen, longest_sleep);
        bell.sleeps.store(0, std::memory_order_relaxed);
        base::end_with_program();
    }
}

bool CopyService::look() noexcept {
    bool any = false;
    for (std::size_t next = 0;; ++next) {
        std::shared_ptr<Box> box;
        CopyQuestion question{};
        CopyOutcome outcome = CopyOutcome::nothing;
        std::uint64_t odd = 0;
        {
            const std::lock_guard guard{mutex_};
            const auto posted = [](const auto& one) {
                return one->shared().state.load(std::memory_order_relaxed) == copy_posted;
            };
            if (next >= boxes_.size()) return any;
            const auto found = std::find_if(boxes_.begin() + static_cast<std::ptrdiff_t>(next),
                                            boxes_.end(), posted);
            if (found == boxes_.end()) return any;
            next = static_cast<std::size_t>(found - boxes_.begin());
            box = *found;
            // Before the first look at any right: whoever takes one back waits for this.
            odd = working_.begin(false, names_any);
            std::uint32_t expected = copy_posted;
            if (!box->shared().state.compare_exchange_strong(expected, copy_taken,
                                                             std::memory_order_acq_rel)) {
                working_.end(odd);  // it was taken back
                continue;
            }
            base::heard_from_peers();
            question = read_once(box->shared().question);
            outcome = check(*box, question);
        }
        if (outcome == CopyOutcome::ok) outcome = copy(*box, question);
        CopyBox& shared = box->shared();
        shared.outcome.store(static_cast<std::uint32_t>(outcome), std::memory_order_relaxed);
        working_.end(odd);
        base::telling_peers();
        shared.state.store(copy_done, std::memory_order_seq_cst);
        if (shared.waiting.load(std::memory_order_seq_cst) != 0) wake_sleepers(shared.state);
        any = true;
    }
}

// --- rights -------------------------------------------------------------------------------------

CopyOutcome CopyService::check(const Box& box, const CopyQuestion& question) noexcept {
    if (question.bytes == 0 || question.bytes > largest_copy ||
        question.purpose > static_cast<std::uint32_t>(CopyPurpose::receive)) {
        return CopyOutcome::refused;
    }
    const auto served = std::find_if(served_.begin(), served_.end(), [&](const Served& one) {
        return one.box.get() == &box && index_of_qpn(one.granter.end->qpn) == question.queue_pair;
    });
    if (served == served_.end()) return CopyOutcome::not_connected;
    const End& end = *served->granter.end;
    const std::uint64_t state = end.state_word->load(std::memory_order_acquire) & state_mask;
    if (state < IBV_QPS_RTR || state > IBV_QPS_SQE) return CopyOutcome::not_connected;
    std::uint32_t key = 0;
    if (question.purpose == static_cast<std::uint32_t>(CopyPurpose::receive)) {
        key = posted_key(end, question);
    } else if (served->granter.datagram == nullptr && may_use(end, question)) {
        key = question.key;
    }
    if (key == 0) return CopyOutcome::refused;
    working_.name(0, key);
    return CopyOutcome::ok;
}

bool CopyService::may_use(const End& end, const CopyQuestion& question) const noexcept {
    const auto purpose = static_cast<CopyPurpose>(question.purpose);
    const std::uint32_t needed = needed_access(purpose);
    if ((end.access->load(std::memory_order_relaxed) & needed) == 0) return false;
    if (needed == IBV_ACCESS_REMOTE_ATOMIC && (question.bytes != sizeof(std::uint64_t) ||
                                               question.address % sizeof(std::uint64_t) != 0)) {
        return false;
    }
    const auto facts = read_region(*node_.regions().entry(question.key), question.key);
    if (!facts || (facts->access & needed) == 0 ||
        static_cast<RegionKind>(facts->kind) == RegionKind::nothing) {
        return false;
    }
    if ((facts->pd & pd_is_queue_pair) != 0) {  // a window of one queue pair
        if ((facts->pd & 0xfff) != index_of_qpn(end.qpn)) return false;
        const std::uint64_t word =
            end.block.windows[slot_of_window_pd(facts->pd)].load(std::memory_order_acquire);
        if (word != facts->key_word) return false;
    } else if (facts->pd != end.pd) {
        return false;
    }
    return within(question.address, question.bytes, facts->address, facts->length);
}

std::uint32_t CopyService::posted_key(const End& end, const CopyQuestion& question) const noexcept {
    PostedPieces posted;
    if (end.own_pool != nullptr) {
        if (!end.own_pool->posted(question.receive, posted)) return 0;
    } else {
        const std::uint32_t head = end.receive_head->load(std::memory_order_acquire);
        const std::uint32_t tail = end.receive_tail->load(std::memory_order_acquire);
        if (question.receive - head >= tail - head) return 0;
        const ReceiveEntry* const entry = end.block.receive_entry(question.receive);
        posted.count = std::min(load_once(entry->sges), end.block.receive_sges);
        load_sges(entry + 1, posted.count, posted.sges.data());
    }
    for (std::uint32_t i = 0; i < posted.count; ++i) {
        const ibv_sge& sge = posted.sges[i];
        const auto facts = read_region(*node_.regions().entry(sge.lkey), sge.lkey);
        if (!facts || facts->pd != end.receive_pd ||
            (facts->access & IBV_ACCESS_LOCAL_WRITE) == 0 || (facts->access & access_window) != 0 ||
            static_cast<RegionKind>(facts->kind) == RegionKind::nothing ||
            !within(sge.addr, sge.length, facts->iova, facts->length)) {
            continue;
        }
        const std::uint64_t begin = facts->address + (sge.addr - facts->iova);
        if (within(question.address, question.bytes, begin, sge.length)) return sge.lkey;
    }
    return 0;
}

CopyOutcome CopyService::copy(const Box& box, const CopyQuestion& question) noexcept {
    const bool in = copies_in(static_cast<CopyPurpose>(question.purpose));
    std::uint64_t address = question.address;
    std::uint64_t offset = box.offset + copy_bytes_offset;
    std::uint64_t left = question.bytes;
    while (left > 0) {
        // The last word, up to the last 8-byte boundary, in a vector of its own: it lands last.
        const std::uint64_t end = address + left;
        const std::uint64_t tail = std::min(left, end - ((end - 1) & ~std::uint64_t{7}));
        auto* const memory = reinterpret_cast<std::byte*>(address);
        const iovec pieces[2] = {{memory, left - tail}, {memory + (left - tail), tail}};
        const std::size_t first = left == tail ? 1 : 0;
        base::count_system_call();
        const long moved = ::syscall(in ? SYS_preadv : SYS_pwritev, box.file, pieces + first,
                                     2 - first, static_cast<long>(offset), 0L);
        if (moved <= 0) return CopyOutcome::unmapped;
        address += static_cast<std::uint64_t>(moved);
        offset += static_cast<std::uint64_t>(moved);
        left -= static_cast<std::uint64_t>(moved);
    }
    return CopyOutcome::ok;
}

}  // namespace millrace::soft
