// The beginning and the end of a memory window, and ibv_bind_mw. Put into contexts' operations.
#include <cerrno>
#include <cstdint>
#include <memory>

#include "fabric/node.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "process/memory_window.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "queue_pair/queue_pairs.hpp"
#include "system/refused.hpp"

namespace millrace::soft {

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept {
    const base::Uncancelled held;
    if (!usable(pd) || (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)) return refused(EINVAL);
    Context* const owner = context_of(pd->context);
    Process& process = *owner->process;
    std::uint32_t key = 0;
    try {
        auto window = std::make_unique<MemoryWindow>();
        window->rkey = window->first_key = key = process.node().regions().add_window();
        if (key == 0) return refused(ENOMEM);
        window->context = pd->context;
        window->pd = pd;
        window->handle = index_of_key(key);
        window->type = type;
        process.windows().add(*window);
        enter(pd);
        owner->users.fetch_add(1);
        return window.release();
    } catch (const std::exception&) {
        if (key != 0) process.node().regions().release_window(key);
        return refused(ENOMEM);
    }
}

int dealloc_mw(ibv_mw* public_window) noexcept {
    const base::Uncancelled held;
    auto* window = static_cast<MemoryWindow*>(public_window);
    if (window->waiting.load() != 0) return EBUSY;
    Context* const owner = context_of(window->context);
    Process& process = *owner->process;
    WindowBinding binding;
    {
        const auto windows = process.windows().hold();
        binding = window->binding(windows);
        if (binding.key != 0 && binding.words != nullptr) binding.words[binding.slot].store(0);
    }
    if (binding.key != 0) {
        process.node().regions().invalidate(binding.key);
        const int error = process.queue_pairs().fence_region(binding.key, binding.registration);
        if (error != 0) return error;
    }
    process.windows().remove(*window);
    process.node().regions().release_window(window->rkey);
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
    if (queue.slots.tail() - queue.send_head.load() >= queue.slots.capacity()) return ENOMEM;
    // What it showed until now ends here; that takes other locks than a send queue's.
    Process& process = *context_of(window->context)->process;
    WindowBinding old;
    {
        const auto windows = process.windows().hold();
        old = window->binding(windows);
        window->binding(windows).key = 0;
    }
    if (old.key != 0) {
        process.node().regions().invalidate(old.key);
        const int error = process.queue_pairs().fence_region(old.key, old.registration);
        if (error != 0) return error;
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

}  // namespace millrace::soft
