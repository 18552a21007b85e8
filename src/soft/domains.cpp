// Protection domains, thread domains and parent domains.
#include "domains.hpp"

#include <cerrno>
#include <cstdint>
#include <new>

#include "context.hpp"
#include "millrace/soft/device.hpp"

namespace millrace::soft {

ibv_pd* alloc_pd(ibv_context* context) noexcept {
    auto* pd = new (std::nothrow) ProtectionDomain{};
    if (pd == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    Context* const owner = context_of(context);
    pd->context = context;
    pd->number = owner->process->new_pd();
    pd->handle = pd->number;
    owner->users.fetch_add(1);
    return pd;
}

int dealloc_pd(ibv_pd* public_pd) noexcept {
    auto* pd = static_cast<ProtectionDomain*>(public_pd);
    if (pd->users.load() != 0) return EBUSY;
    if (pd->parent_of != nullptr) pd->parent_of->users.fetch_sub(1);
    if (pd->thread_domain != nullptr) pd->thread_domain->users.fetch_sub(1);
    release(context_of(pd->context));
    delete pd;
    return 0;
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept {
    if (attributes->comp_mask != 0) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    auto* domain = new (std::nothrow) ThreadDomain{};
    if (domain == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    domain->context = context;
    context_of(context)->users.fetch_add(1);
    return domain;
}

int dealloc_td(ibv_td* public_domain) noexcept {
    auto* domain = static_cast<ThreadDomain*>(public_domain);
    if (domain->users.load() != 0) return EBUSY;
    release(context_of(domain->context));
    delete domain;
    return 0;
}

ibv_pd* alloc_parent_domain(ibv_context* context,
                            ibv_parent_domain_init_attr* attributes) noexcept {
    // The context is the allocators' argument: alone it says nothing.
    if ((attributes->comp_mask & ~std::uint32_t{IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT}) != 0) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    auto* const pd = static_cast<ProtectionDomain*>(attributes->pd);
    auto* const thread = static_cast<ThreadDomain*>(attributes->td);
    if (pd == nullptr || pd->context != context || pd->parent_of != nullptr ||
        (thread != nullptr && thread->context != context)) {
        errno = EINVAL;
        return nullptr;
    }
    auto* const parent = new (std::nothrow) ProtectionDomain{};
    if (parent == nullptr) {
        errno = ENOMEM;
        return nullptr;
    }
    parent->context = context;
    parent->number = pd->number;  // what is made from it protects as the protection domain does
    parent->handle = pd->handle;
    parent->parent_of = pd;
    parent->thread_domain = thread;
    pd->users.fetch_add(1);
    if (thread != nullptr) thread->users.fetch_add(1);
    context_of(context)->users.fetch_add(1);
    return parent;
}

}  // namespace millrace::soft
