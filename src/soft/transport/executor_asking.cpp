// The executor's part that asks the peer to copy, where the operating system does not let this
// process copy from and to the peer's memory itself. docs/soft/copy-service.md.

#include "transport/executor.hpp"

namespace millrace::soft {

CopyResult Executor::copy_by_owner(const AskedCopy& right, const Piece* to, std::uint32_t to_count,
                                   const Piece* from, std::uint32_t from_count,
                                   std::uint64_t total) noexcept {
    receiver_.peer()->note_copies_refused();
    // Its own memory is the peer's own affair: it can reach ours, or ask for it.
    if (!sender_.end.mine) return CopyResult::owners;
    AskedCopy wanted = right;
    wanted.box = receiver_.end.block.news->copy_box.load(std::memory_order_acquire);
    wanted.queue_pair = index_of_qpn(receiver_.end.qpn);
    if (wanted.box == 0) return call_for_copies();
    const bool in = copies_in(wanted.purpose);
    return for_each_run(to, to_count, from, from_count, total,
                        [&](const Reach& there, const Reach& here, std::uint64_t bytes) {
                            const Reach& theirs = in ? there : here;
                            if (theirs.direct != nullptr || theirs.pid == nowhere) {
                                return copy_one(there, here, bytes);
                            }
                            receiver_.counters().add(Count::asked_copy);
                            wanted.address = theirs.remote;
                            wanted.local = in ? here.direct : there.direct;
                            wanted.bytes = bytes;
                            return receiver_.peer()->ask_for_copy(wanted);
                        });
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
    const Piece into{to, sizeof(std::uint64_t), 0};
    const Piece out_of{from, sizeof(std::uint64_t), 0};
    return copy_by_owner(right, &into, 1, &out_of, 1, sizeof(std::uint64_t));
}

/// The peer does not serve us. If that was to be foreseen it may not know yet.
CopyResult Executor::call_for_copies() noexcept {
    if (!receiver_ready()) return CopyResult::busy;  // it has just gone: nobody is to be told
    std::atomic<std::uint32_t>& wishes = receiver_.end.block.fault->wishes;
    if ((wishes.fetch_or(wish_copies, std::memory_order_release) & wish_copies) == 0) {
        tell_copies_denied(receiver_.peer()->pid());
        receiver_.ring_async();
    }
    return copies_refused_ ? CopyResult::busy : CopyResult::denied;
}

bool Executor::is_peers_alone(const Request& request) noexcept {
    if ((request.flags & IBV_SEND_INLINE) != 0) return false;
    for (int i = 0; i < request.sge_count; ++i) {
        const ibv_sge& sge = request.sges[i];
        Reach reach;
        if (sge.length != 0 &&
            sender_.keys.find(sge.lkey, sge.addr, sge.length, KeyCache::access_local, reach) &&
            reach.direct == nullptr && reach.pid != nowhere) {
            return true;
        }
    }
    return false;
}

}  // namespace millrace::soft
