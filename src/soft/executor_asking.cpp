// The executor's part that asks the peer to copy, where the operating system does not let this
// process copy from and to the peer's memory itself. docs/soft-device.md, "The copy service".
#include <algorithm>
#include <array>

#include "executor.hpp"

namespace millrace::soft {

CopyResult Executor::copy_by_owner(const AskedCopy& right, const Piece* to, std::uint32_t to_count,
                                   const Piece* from, std::uint32_t from_count,
                                   std::uint64_t total) noexcept {
    peer_->note_copies_refused();
    // Its own memory is the peer's own affair: it can reach ours, or ask for it.
    if (!sender_.end.mine) return CopyResult::owners;
    AskedCopy wanted = right;
    wanted.box = receiver_.end.block.news->copy_box.load(std::memory_order_acquire);
    wanted.queue_pair = index_of_qpn(receiver_.end.qpn);
    if (wanted.box == 0) return call_for_copies();
    const bool in = copies_in(wanted.purpose);
    std::uint32_t t = 0;
    std::uint32_t f = 0;
    std::uint64_t to_done = 0;
    std::uint64_t from_done = 0;
    while (total > 0 && t < to_count && f < from_count) {
        const std::uint64_t bytes =
            std::min({to[t].length - to_done, from[f].length - from_done, total});
        const Piece& theirs = in ? to[t] : from[f];
        const Piece& ours = in ? from[f] : to[t];
        const std::uint64_t theirs_done = in ? to_done : from_done;
        const std::uint64_t ours_done = in ? from_done : to_done;
        CopyResult result = CopyResult::ok;
        if (theirs.at.direct != nullptr || theirs.at.pid == nowhere) {
            Reach there = theirs.at;
            if (there.direct != nullptr) there.direct += theirs_done;
            Reach here = ours.at;
            if (here.direct != nullptr) here.direct += ours_done;
            result = in ? copy_one(there, here, bytes) : copy_one(here, there, bytes);
        } else {
            counters_->add(Count::asked_copy);
            wanted.address = theirs.at.remote + theirs_done;
            wanted.local = ours.at.direct != nullptr ? ours.at.direct + ours_done : nullptr;
            wanted.bytes = bytes;
            result = peer_->ask_for_copy(wanted);
        }
        if (result != CopyResult::ok) return result;
        total -= bytes;
        to_done += bytes;
        from_done += bytes;
        if (to_done == to[t].length) {
            ++t;
            to_done = 0;
        }
        if (from_done == from[f].length) {
            ++f;
            from_done = 0;
        }
    }
    return CopyResult::ok;
}

/// One half of an atomic on memory that this process does not map.
CopyResult Executor::copy_word(const Request& request, CopyPurpose purpose, const Reach& to,
                               const Reach& from) noexcept {
    const CopyResult result = copy_one(to, from, sizeof(std::uint64_t));
    if (result != CopyResult::denied) [[likely]]
        return result;
    AskedCopy right;
    right.key = request.remote_key;
    right.purpose = purpose;
    const Piece into{to, sizeof(std::uint64_t)};
    const Piece out_of{from, sizeof(std::uint64_t)};
    return copy_by_owner(right, &into, 1, &out_of, 1, sizeof(std::uint64_t));
}

/// The peer does not serve us. If that was to be foreseen it may not know yet.
CopyResult Executor::call_for_copies() noexcept {
    if (!receiver_ready()) return CopyResult::busy;  // it has just gone: nobody is to be told
    std::atomic<std::uint32_t>& wishes = receiver_.end.block.fault->wishes;
    if ((wishes.fetch_or(wish_copies, std::memory_order_release) & wish_copies) == 0) {
        tell_copies_denied(peer_->pid());
        ring_receiver_async();
    }
    return copies_refused_ ? CopyResult::busy : CopyResult::denied;
}

bool Executor::is_peers_alone(const Request& request) noexcept {
    if ((request.flags & IBV_SEND_INLINE) != 0) return false;
    for (int i = 0; i < request.sge_count; ++i) {
        const ibv_sge& sge = request.sges[i];
        Reach reach;
        if (sge.length != 0 && find(sender_, sge.lkey, sge.addr, sge.length, access_local, reach) &&
            reach.direct == nullptr && reach.pid != nowhere) {
            return true;
        }
    }
    return false;
}

}  // namespace millrace::soft
