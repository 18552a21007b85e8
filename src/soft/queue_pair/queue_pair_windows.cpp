// What a queue pair's work requests do to memory windows: binding and invalidating.
#include <cstdint>
#include <new>

#include "fabric/node.hpp"
#include "millrace/base/log.hpp"
#include "process/context.hpp"
#include "process/domains.hpp"
#include "process/memory_window.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/fences.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint32_t writing = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// What can be said of a binding by looking at the window, the region and the queue pair. The
/// specification's rules for "Bind Memory Window".
[[nodiscard]] bool may_bind(WindowsHeld held, const QueuePair& qp,
                            const LocalOperation& operation) noexcept {
    const MemoryWindow& window = *operation.window;
    const Registration& region = *operation.region;
    if (region.invalid || region.domain->number != qp.end.pd) {
        return false;
    }
    if (window.type == IBV_MW_TYPE_2 && (window.bound(held) || operation.length == 0)) return false;
    if ((region.access & IBV_ACCESS_MW_BIND) == 0) return false;
    if (!understood(operation.access)) return false;
    if ((operation.access & writing) != 0 && (region.access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        return false;
    }
    const std::uint64_t offset = operation.address - region.iova;
    const std::uint64_t length = region.length;
    return offset <= length && operation.length <= length - offset;
}

}  // namespace

ibv_wc_status QueuePair::change_window(SendHeld, const LocalOperation& operation) noexcept {
    Process& process = *owner->process;
    if (operation.opcode == IBV_WR_BIND_MW) {
        MemoryWindow& window = *operation.window;
        const auto windows = process.windows().hold();
        WindowBinding& binding = window.binding(windows);
        // A parent domain has the number of the domain that it stands for.
        if (static_cast<ProtectionDomain*>(window.pd)->number != end.pd)
            return IBV_WC_MW_BIND_ERR;
        if (operation.region != nullptr) {
            if (!may_bind(windows, *this, operation)) return IBV_WC_MW_BIND_ERR;
            const RegionEntry* const parent = process.node().regions().valid(operation.region->key);
            if (parent == nullptr) return IBV_WC_MW_BIND_ERR;
            WindowFacts facts;
            facts.address = operation.address;
            facts.iova = (operation.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : operation.address;
            facts.length = operation.length;
            facts.access = operation.access & window_access;
            if ((operation.access & writing) != 0) facts.access |= IBV_ACCESS_LOCAL_WRITE;
            facts.pd = end.pd;
            if (window.type == IBV_MW_TYPE_2) {
                if (binding.words != block.windows) {
                    const int free = process.windows().free_slot(windows, block.windows);
                    if (free < 0) {
                        base::log_line(base::LogLevel::error, "soft",
                                       "bind a memory window: 256 of them are bound through this "
                                       "queue pair; invalidate and free some, or use another one");
                        return IBV_WC_MW_BIND_ERR;
                    }
                    binding.words = block.windows;
                    binding.slot = free;
                }
                facts.pd = make_window_pd(static_cast<std::uint32_t>(binding.slot), memory.index);
                window.rkey = operation.key;
            }
            binding.region = operation.region;
            binding.key = operation.key;
            binding.registration = process.next_registration();
            const std::uint64_t word =
                process.node().regions().bind_window(operation.key, *parent, facts);
            if (window.type == IBV_MW_TYPE_2) {
                block.windows[binding.slot].store(word, std::memory_order_release);
            }
        }
    } else {
        {
            const auto windows = process.windows().hold();
            MemoryWindow* const window =
                process.windows().find(windows, index_of_key(operation.key));
            if (window == nullptr) return IBV_WC_LOC_QP_OP_ERR;
            WindowBinding& binding = window->binding(windows);
            if (binding.words != block.windows || binding.key != operation.key ||
                !window->bound(windows)) {
                return IBV_WC_LOC_QP_OP_ERR;
            }
            block.windows[binding.slot].store(0);
            process.node().regions().invalidate(operation.key);
            binding.key = 0;
        }
        // Complete means: nobody is in it any more.
        heavy_fence();
        counters.add(Count::heavy_fence);
        const FencedKey region{process.node(), operation.key};
        if (!wait_for_executors(&region)) return IBV_WC_RETRY_EXC_ERR;
    }
    return IBV_WC_SUCCESS;
}

Progress QueuePair::run_local(SendHeld held, const LocalOperation& operation) noexcept {
    Executor& own = sends(held).own;
    const ibv_wc_status status = change_window(held, operation);
    if (status != IBV_WC_SUCCESS) {
        own.fail_local(status);
        return Progress::failed;
    }
    if ((operation.flags & IBV_SEND_SIGNALED) != 0) own.complete_local(operation.slot);
    return Progress::done;
}

ibv_wc_status QueuePair::run_kept_local(SendHeld held) noexcept {
    std::list<LocalOperation>& kept = sends(held).deferred_local;
    const ibv_wc_status status = change_window(held, kept.front());
    kept.front().window_done();
    kept.pop_front();
    return status;
}

bool QueuePair::defer_local(SendHeld held, const LocalOperation& operation) noexcept {
    SendSide& my = sends(held);
    try {
        my.deferred_local.push_back(operation);
    } catch (const std::bad_alloc&) {
        return false;
    }
    my.deferred_local.back().position = my.pending.tail();
    if (operation.window != nullptr) operation.window->waiting.fetch_add(1);
    return true;
}

void QueuePair::forget_local(SendHeld held) noexcept {
    std::list<LocalOperation>& deferred = sends(held).deferred_local;
    for (const LocalOperation& operation : deferred) operation.window_done();
    deferred.clear();
}

}  // namespace millrace::soft
