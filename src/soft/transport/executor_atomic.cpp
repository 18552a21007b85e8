// The executor's atomics: by the processor's own where everybody maps the memory, else read,
// changed and written under a lock of the region's owner. docs/soft/execution.md.
#include <sched.h>

#include <cstdint>

#include "fabric/node.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/log.hpp"
#include "system/cable_time.hpp"
#include "transport/executor.hpp"

namespace millrace::soft {

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
        const std::int64_t until = cable_now() + pause;
        while (cable_now() < until) {
            sched_yield();
            base::count_system_call();
        }
    }
    return copy_word(request, CopyPurpose::atomic_write, at,
                     Reach{reinterpret_cast<std::byte*>(&next), 0, 0});
}

template <class Steps>
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
        return fail(IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS, {ReasonKind::not_eight, 0, total});
    }
    Piece target;
    const KeyCache::Region* const region =
        receiver_.find_word(request.remote_key, request.remote_address, target);
    if (region == nullptr) return refused();

    name_regions(local.data(), local_count, &target, 1);
    full_fence();  // as for a READ
    std::uint64_t original = 0;
    CopyResult result = CopyResult::ok;
    if (Steps::by_processor && region->kind == RegionKind::shared_file) {
        // Everybody maps it, and everybody uses the processor's atomics. Who cannot, must not.
        if (target.at.direct == nullptr) {
            if (!receiver_.end.mine && !receiver_.peer()->still_there()) return Progress::gone;
            base::log_line(
                base::LogLevel::error, "soft",
                "atomic: the peer's shared memory cannot be mapped here, and the system's "
                "copies are not atomic to its processors; raise the limits on open files "
                "and memory (ulimit -n, -v)");
            return fail(IBV_WC_REM_OP_ERR, IBV_WC_WR_FLUSH_ERR);
        }
        original = Receiver::change_word(target.at.direct, request.opcode, request.compare_or_add,
                                         request.swap);
    } else {
        const std::uint64_t at_owner =
            receiver_.keys.address_at_owner(request.remote_key, request.remote_address);
        AtomicLocks& locks = receiver_.end.mine ? receiver_.node()->atomic_locks()
                                                : receiver_.peer()->atomic_locks();
        if (!locks.lock(at_owner)) return Progress::busy;
        result = change(request, target.at, original, Steps::pause_within(plan()));
        locks.unlock(at_owner);
    }
    if (result != CopyResult::ok) {
        return copy_failed(result, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    }
    if (!has_room) return fail(IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS, sender_.keys.reason());
    target.at = Reach{reinterpret_cast<std::byte*>(&original), 0, 0};
    result = copy(local.data(), local_count, &target, 1, size);
    if (result != CopyResult::ok) {
        return copy_failed(result, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
    }
    receiver_.counters().add(Count::atomic);
    if ((request.flags & IBV_SEND_SIGNALED) != 0) complete_send(request.slot, size);
    return Progress::done;
}

template Progress Executor::attempt_atomic<AtOnce>(const Request&) noexcept;
template Progress Executor::attempt_atomic<InPieces>(const Request&) noexcept;

}  // namespace millrace::soft
