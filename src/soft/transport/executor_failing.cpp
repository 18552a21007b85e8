// What becomes of requests that do not arrive: both ends are told, or of an unreliable one the
// sender alone.
#include <cstdint>

#include "transport/executor.hpp"

namespace millrace::soft {

Progress Executor::fail(ibv_wc_status sender, ibv_wc_status receiver, const Reason& why) noexcept {
    static_cast<void>(receiver_.refuse(sender, receiver, why));
    // An unreliable receiver's queue pair only fails for what is wrong with its own memory.
    if (receiver != IBV_WC_SUCCESS && (reliable_ || receiver == IBV_WC_LOC_PROT_ERR)) {
        receiver_.fail(receiver, why);
    }
    return Progress::failed;
}

Progress Executor::refused() noexcept {
    const Refusal& refusal = receiver_.refusal();
    return fail(refusal.sender, refusal.receiver, refusal.why);
}

Progress Executor::copy_failed(CopyResult result, ibv_wc_status sender,
                               ibv_wc_status receiver) noexcept {
    switch (result) {
        case CopyResult::peer_gone: return Progress::gone;
        case CopyResult::denied:  // the operating system's refusal is nobody's bad key
            tell_copies_denied(receiver_.peer()->pid());
            return fail(IBV_WC_REM_OP_ERR, IBV_WC_WR_FLUSH_ERR);
        case CopyResult::busy: return Progress::busy;
        case CopyResult::no_answer: return fail(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR);
        case CopyResult::owners: return Progress::owners;
        case CopyResult::abandoned:
            abandoned_ = true;
            // The thread is not in our memory.
            hazard_->forget(sender_.end.mine ? named_by_sender : named_by_receiver);
            return fail(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR);
        default: return fail(sender, receiver, {ReasonKind::unmapped});
    }
}

Progress Executor::drop(const Request& request, Progress progress) noexcept {
    Pieces local;
    std::uint32_t count = 0;
    std::uint64_t total = 0;
    if (progress == Progress::failed) {
        if (failure() == IBV_WC_LOC_PROT_ERR || failure() == IBV_WC_LOC_LEN_ERR ||
            failure() == IBV_WC_LOC_QP_OP_ERR) {
            return progress;
        }
    } else if (!gather(request, 0, local.data(), count, total)) {
        // Nobody to hear it, and still the sender's mistake.
        return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    } else if (total > max_message_bytes) {
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS);
    }
    receiver_.counters().add(Count::dropped);
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
        receiver_.grants(needed) &&
        receiver_.keys.find(request.remote_key, request.remote_address, total, needed, remote.at)) {
        remote.length = landing;
        static_cast<void>(copy(&remote, 1, local.data(), count, landing));
    }
    return drop(request, Progress::no_peer);  // also says what is wrong with it here
}

}  // namespace millrace::soft
