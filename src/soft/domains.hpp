// Thread domains and parent domains: a program's promise that only one thread at a time uses what
// is made from them. Put into the context's operations by open_device.
#pragma once

#include <infiniband/verbs.h>

namespace millrace::soft {

/// As the libibverbs functions of the same names. Allocators of the program's own are refused with
/// EOPNOTSUPP: nothing here is allocated for a device.
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept;
int dealloc_td(ibv_td* domain) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attributes) noexcept;

}  // namespace millrace::soft
