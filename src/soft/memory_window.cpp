// Implementation of memory_window.hpp, and the queue pair's work requests on windows.
#include "memory_window.hpp"

#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "domains.hpp"
#include "fences.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/uncancelled.hpp"
#include "queue_pair.hpp"

namespace millrace::soft {
namespace {

/// In ibv_send_wr::send_flags, by ibv_bind_mw: the window may be of type 1.
constexpr unsigned from_bind_mw = 1U << 31;

constexpr std::uint32_t window_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;
/// What a region's flags may be, but a window has no such right to give: no mistake, and nothing.
constexpr std::uint32_t regions_own_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_OPTIONAL_RANGE;
constexpr std::uint32_t writing = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

[[nodiscard]] bool understood(std::uint32_t access) noexcept {
    return (access & ~(window_access | regions_own_access)) == 0;
}

/// A parent domain has the number of the domain that it stands for.
[[nodiscard]] bool same_domain(const ibv_pd* one, const ibv_pd* other) noexcept {
    return static_cast<const ProtectionDomain*>(one)->number ==
           static_cast<const ProtectionDomain*>(other)->number;
}

/// What can be said of a binding by looking at the window, the region and the queue pair. The
/// specification's rules for "Bind Memory Window".
[[nodiscard]] bool may_bind(const QueuePair& qp, const LocalOperation& operation) noexcept {
    const MemoryWindow& window = *operation.window;
    const Registration& region = *operation.region;
    if (region.invalid ||
        region.domain->number != static_cast<const ProtectionDomain*>(qp.pd)->number) {
        return false;
    }
    if (window.type == IBV_MW_TYPE_2 && (window.bound() || operation.length == 0)) return false;
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

bool MemoryWindow::bound() const noexcept {
    if (bound_key == 0) return false;
    if (type == IBV_MW_TYPE_1) return true;
    return is_word_of_window(qp->block.windows[slot].load(std::memory_order_acquire), bound_key);
}

void LocalOperation::window_done() const noexcept {
    if (window != nullptr) window->waiting.fetch_sub(1);
}

bool may_be_posted(const ibv_send_wr& wr) noexcept {
    const ibv_mw* const window = wr.bind_mw.mw;
    if (window == nullptr) return false;
    if ((wr.send_flags & from_bind_mw) != 0) return true;
    return window->type == IBV_MW_TYPE_2 && wr.bind_mw.bind_info.mr != nullptr;
}

LocalOperation local_operation_of(const ibv_send_wr& wr, std::uint32_t flags,
                                  std::uint32_t slot) noexcept {
    LocalOperation operation;
    operation.opcode = wr.opcode;
    operation.flags = flags;
    operation.slot = slot;
    if (wr.opcode == IBV_WR_LOCAL_INV) {
        operation.key = wr.invalidate_rkey;
        return operation;
    }
    const ibv_mw_bind_info& info = wr.bind_mw.bind_info;
    operation.window = static_cast<MemoryWindow*>(wr.bind_mw.mw);
    // Whatever else the program gave: the index is the window's.
    operation.key = make_key(operation.window->index, static_cast<std::uint8_t>(wr.bind_mw.rkey));
    if (info.mr != nullptr) {
        operation.region = static_cast<MemoryRegion*>(info.mr)->registration.get();
    }
    operation.address = info.addr;
    operation.length = info.length;
    operation.access = info.mw_access_flags;
    return operation;
}

// --- life
// -----------------------------------------------------------------------------------------

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept {
    const base::Uncancelled held;
    if (!usable(pd) || (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)) {
        errno = EINVAL;
        return nullptr;
    }
    Context* const owner = context_of(pd->context);
    Process& process = *owner->process;
    try {
        auto window = std::make_unique<MemoryWindow>();
        window->rkey = process.node().add_window();
        if (window->rkey == 0) {
            errno = ENOMEM;
            return nullptr;
        }
        window->context = pd->context;
        window->pd = pd;
        window->handle = window->index = index_of_key(window->rkey);
        window->type = type;
        window->owner = owner;
        process.windows().add(*window);
        enter(pd);
        owner->users.fetch_add(1);
        return window.release();
    } catch (const std::exception&) {
        errno = ENOMEM;
        return nullptr;
    }
}

int dealloc_mw(ibv_mw* public_window) noexcept {
    const base::Uncancelled held;
    auto* window = static_cast<MemoryWindow*>(public_window);
    if (window->waiting.load() != 0) return EBUSY;
    Context* const owner = window->owner;
    Process& process = *owner->process;
    std::uint32_t key = 0;
    {
        const std::lock_guard guard{process.windows().mutex()};
        key = window->bound_key;
        if (key != 0 && window->qp != nullptr) {
            window->qp->block.windows[window->slot].store(0);
        }
    }
    if (key != 0) {
        process.node().invalidate_region(key);
        bool free = false;
        try {
            free = process.fence_region(key, window->registration);
        } catch (const std::bad_alloc&) {
            return ENOMEM;
        }
        if (!free) return EBUSY;  // a stopped executor may be in it: to be asked again
    }
    process.windows().remove(*window);
    process.node().release_window(window->rkey);
    leave(window->pd);
    delete window;
    release(owner);
    return 0;
}

int bind_mw(ibv_qp* qp, ibv_mw* public_window, ibv_mw_bind* bind) noexcept {
    const base::Uncancelled held;
    auto* window = static_cast<MemoryWindow*>(public_window);
    const ibv_mw_bind_info& info = bind->bind_info;
    // The header has looked at the type, and that there is a region where there is a length.
    if (!understood(info.mw_access_flags) ||
        (info.mr != nullptr && !opened_together(info.mr->context, qp->context))) {
        return EINVAL;
    }
    if (window->waiting.load() != 0) return EBUSY;
    const auto& queue = *static_cast<const QueuePair*>(qp);
    if (queue.send_tail.load() - queue.send_head.load() >= queue.send_capacity) return ENOMEM;
    // What it showed until now ends here; that takes other locks than a send queue's.
    Process& process = *window->owner->process;
    std::uint32_t old = 0;
    {
        const std::lock_guard guard{process.windows().mutex()};
        old = std::exchange(window->bound_key, 0U);
    }
    if (old != 0) {
        process.node().invalidate_region(old);
        bool free = false;
        try {
            free = process.fence_region(old, window->registration);
        } catch (const std::bad_alloc&) {
        }
        if (!free) return EBUSY;
    }
    ibv_send_wr wr{};
    wr.wr_id = bind->wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = bind->send_flags | from_bind_mw;
    wr.bind_mw.mw = window;
    wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    wr.bind_mw.bind_info = info;
    if (info.length == 0) wr.bind_mw.bind_info.mr = nullptr;
    ibv_send_wr* bad = nullptr;
    const int error = post_send(qp, &wr, &bad);
    if (error == 0) window->rkey = wr.bind_mw.rkey;
    return error;
}

// --- work requests
// ----------------------------------------------------------------------------------

Progress QueuePair::run_local(const LocalOperation& operation) noexcept {
    Process& process = *owner->process;
    const auto failed = [&](ibv_wc_status status) {
        own.fail_local(status);
        return Progress::failed;
    };
    if (operation.opcode == IBV_WR_BIND_MW) {
        MemoryWindow& window = *operation.window;
        const std::lock_guard guard{process.windows().mutex()};
        if (!same_domain(window.pd, pd)) return failed(IBV_WC_MW_BIND_ERR);
        if (operation.region != nullptr) {
            if (!may_bind(*this, operation)) return failed(IBV_WC_MW_BIND_ERR);
            const RegionEntry* const parent = process.node().local_region(operation.region->key);
            if (parent == nullptr) return failed(IBV_WC_MW_BIND_ERR);
            WindowFacts facts;
            facts.address = operation.address;
            facts.iova = (operation.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : operation.address;
            facts.length = operation.length;
            facts.access = operation.access & window_access;
            if ((operation.access & writing) != 0) facts.access |= IBV_ACCESS_LOCAL_WRITE;
            facts.pd = static_cast<ProtectionDomain*>(pd)->number;
            if (window.type == IBV_MW_TYPE_2) {
                if (window.qp != this) {
                    const int free = process.windows().free_slot(*this);
                    if (free < 0) {
                        base::log_line(base::LogLevel::error, "soft",
                                       "bind a memory window: 256 of them are bound through this "
                                       "queue pair; invalidate and free some, or use another one");
                        return failed(IBV_WC_MW_BIND_ERR);
                    }
                    window.qp = this;
                    window.slot = free;
                }
                facts.pd = make_window_pd(static_cast<std::uint32_t>(window.slot), memory.index);
                window.rkey = operation.key;
            }
            window.region = operation.region;
            window.bound_key = operation.key;
            window.registration = process.next_registration();
            process.node().bind_window(operation.key, *parent, facts);
            if (window.type == IBV_MW_TYPE_2) {
                block.windows[window.slot].store(
                    make_window_word(operation.key, window.registration),
                    std::memory_order_release);
            }
        }
    } else {
        {
            const std::lock_guard guard{process.windows().mutex()};
            MemoryWindow* const window = process.windows().find(index_of_key(operation.key));
            if (window == nullptr || window->qp != this || window->bound_key != operation.key ||
                !window->bound()) {
                return failed(IBV_WC_LOC_QP_OP_ERR);
            }
            block.windows[window->slot].store(0);
            process.node().invalidate_region(operation.key);
            window->bound_key = 0;
        }
        // Complete means: nobody is in it any more.
        heavy_fence();
        counters.add(Count::heavy_fence);
        const FencedKey region{process.node(), operation.key};
        if (!wait_for_executors(&region)) return failed(IBV_WC_RETRY_EXC_ERR);
    }
    if ((operation.flags & IBV_SEND_SIGNALED) != 0) own.complete_local(operation.slot);
    return Progress::done;
}

bool QueuePair::defer_local(const LocalOperation& operation) noexcept {
    try {
        deferred_local.push_back(operation);
    } catch (const std::bad_alloc&) {
        return false;
    }
    deferred_local.back().position = pending_tail;
    if (operation.window != nullptr) operation.window->waiting.fetch_add(1);
    return true;
}

void QueuePair::forget_local() noexcept {
    for (const LocalOperation& operation : deferred_local) operation.window_done();
    deferred_local.clear();
}

}  // namespace millrace::soft
