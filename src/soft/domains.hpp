// Who uses a protection domain; and thread domains and parent domains: a program's promise that
// only one thread at a time uses what is made from them (put into the context's operations when the
// device is opened).
#pragma once

#include <infiniband/verbs.h>

namespace millrace::soft {

/// What is made with a handle of a protection domain calls the one when it is there and the other
/// before it goes: until then the domain is in use, and the handle stays where it is even if the
/// program gives it back (ibv_unimport_pd).
void enter(ibv_pd* pd) noexcept;
void leave(ibv_pd* pd) noexcept;
/// The second half alone, for a further handle of what is in the domain already.
void hold(ibv_pd* pd) noexcept;
void drop(ibv_pd* pd) noexcept;
/// False: the domain was deallocated through another handle. Nothing can be made in it any more.
[[nodiscard]] bool usable(const ibv_pd* pd) noexcept;

/// As the libibverbs functions of the same names. Allocators of the program's own are refused with
/// EOPNOTSUPP: nothing here is allocated for a device.
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept;
int dealloc_td(ibv_td* domain) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attributes) noexcept;

}  // namespace millrace::soft
