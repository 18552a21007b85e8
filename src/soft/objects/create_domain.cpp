// The beginning and the end of handles of protection domains, of thread domains and of parent
// domains: a program's promise that only one thread at a time uses what is made from them. Entries
// of <millrace/soft/device.hpp>, and of contexts.
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/soft/device.hpp"
#include "objects/opened_device.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/domains.hpp"
#include "system/refused.hpp"

namespace millrace::soft {

namespace {

/// A handle of the domain, in `context`. Null with errno.
[[nodiscard]] ProtectionDomain* make_handle(ibv_context* context,
                                            std::shared_ptr<Domain> domain) noexcept {
    auto* const pd = new (std::nothrow) ProtectionDomain{};
    if (pd == nullptr) return refused(ENOMEM);
    pd->context = context;
    pd->domain = std::move(domain);
    pd->number = pd->domain->number;
    pd->handle = pd->domain->handle;
    context_of(context)->users.fetch_add(1);
    return pd;
}

}  // namespace

ibv_pd* alloc_pd(ibv_context* context) noexcept {
    const base::Uncancelled held;
    OpenedDevice& opened = *context_of(context)->opened;
    try {
        auto domain = std::make_shared<Domain>();
        domain->number = opened.process->new_pd();
        opened.domains.add(domain);
        ProtectionDomain* const pd = make_handle(context, domain);
        if (pd == nullptr) opened.domains.forget(*domain);
        return pd;
    } catch (const std::bad_alloc&) {
        return refused(ENOMEM);
    }
}

ibv_pd* import_pd(ibv_context* context, std::uint32_t handle) noexcept {
    const base::Uncancelled held;
    auto domain = context_of(context)->opened->domains.find(handle);
    if (domain == nullptr) return refused(ENOENT);
    return make_handle(context, std::move(domain));
}

int dealloc_pd(ibv_pd* public_pd) noexcept {
    const base::Uncancelled held;
    auto* const pd = static_cast<ProtectionDomain*>(public_pd);
    if (const int error = pd->domain->users.end(); error != 0) return error;
    if (pd->parent_of != nullptr) {
        leave(pd->parent_of);
        if (pd->thread_domain != nullptr) pd->thread_domain->users.fetch_sub(1);
    } else {
        context_of(pd->context)->opened->domains.forget(*pd->domain);
    }
    drop(pd);
    return 0;
}

void unimport_pd(ibv_pd* public_pd) noexcept {
    const base::Uncancelled held;
    auto* const pd = static_cast<ProtectionDomain*>(public_pd);
    // A parent domain has no other handle, and so would keep what it stands for for ever.
    if (pd->parent_of != nullptr && dealloc_pd(pd) == 0) return;
    drop(pd);
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept {
    const base::Uncancelled held;
    if (attributes->comp_mask != 0) return refused(EOPNOTSUPP);
    auto* domain = new (std::nothrow) ThreadDomain{};
    if (domain == nullptr) return refused(ENOMEM);
    domain->context = context;
    context_of(context)->users.fetch_add(1);
    return domain;
}

int dealloc_td(ibv_td* public_domain) noexcept {
    const base::Uncancelled held;
    auto* domain = static_cast<ThreadDomain*>(public_domain);
    if (domain->users.load() != 0) return EBUSY;
    release(context_of(domain->context));
    delete domain;
    return 0;
}

ibv_pd* alloc_parent_domain(ibv_context* context,
                            ibv_parent_domain_init_attr* attributes) noexcept {
    // The context is the allocators' argument: alone it says nothing.
    if ((attributes->comp_mask & ~std::uint32_t{IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT}) != 0)
        return refused(EOPNOTSUPP);
    auto* const pd = static_cast<ProtectionDomain*>(attributes->pd);
    auto* const thread = static_cast<ThreadDomain*>(attributes->td);
    if (pd == nullptr || !opened_together(pd->context, context) || pd->parent_of != nullptr ||
        (thread != nullptr && thread->context != context)) {
        return refused(EINVAL);
    }
    if (!usable(pd)) return refused(EINVAL);
    ProtectionDomain* parent = nullptr;
    try {
        auto domain = std::make_shared<Domain>();
        domain->number = pd->number;  // what is made from it protects as the protection domain does
        domain->handle = pd->handle;
        parent = make_handle(context, std::move(domain));
    } catch (const std::bad_alloc&) {
        errno = ENOMEM;
    }
    if (parent == nullptr) return nullptr;
    parent->parent_of = pd;
    parent->thread_domain = thread;
    enter(pd);
    if (thread != nullptr) thread->users.fetch_add(1);
    return parent;
}

}  // namespace millrace::soft
