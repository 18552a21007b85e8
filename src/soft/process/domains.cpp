#include "process/domains.hpp"

#include "process/context.hpp"

namespace millrace::soft {

void hold(ibv_pd* pd) noexcept { static_cast<ProtectionDomain*>(pd)->holders.fetch_add(1); }

void drop(ibv_pd* public_pd) noexcept {
    auto* const pd = static_cast<ProtectionDomain*>(public_pd);
    if (pd->holders.fetch_sub(1) != 1) return;
    Context* const owner = context_of(pd->context);
    delete pd;
    release(owner);
}

void enter(ibv_pd* pd) noexcept {
    static_cast<ProtectionDomain*>(pd)->domain->users.enter();
    hold(pd);
}

void leave(ibv_pd* pd) noexcept {
    static_cast<ProtectionDomain*>(pd)->domain->users.leave();
    drop(pd);
}

bool usable(const ibv_pd* pd) noexcept {
    return !static_cast<const ProtectionDomain*>(pd)->domain->users.ended();
}

}  // namespace millrace::soft
