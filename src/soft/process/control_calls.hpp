// Calls of the device that <millrace/soft/device.hpp> does not declare: those that a trace tells
// of, without the trace (traced_calls.cpp puts the public ones in front of them), and those that
// are put into a context's operations when the device is opened. Each is built beside what it is
// about.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace millrace::soft {

ibv_qp* make_queue_pair(ibv_pd* pd, ibv_qp_init_attr* attributes) noexcept;
int end_queue_pair(ibv_qp* qp) noexcept;
int modify_queue_pair(ibv_qp* qp, ibv_qp_attr* attributes, int mask) noexcept;
ibv_mr* register_memory(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                        unsigned access) noexcept;
int deregister_memory(ibv_mr* mr) noexcept;

/// As the libibverbs functions of the same names. Allocators of the program's own are refused with
/// EOPNOTSUPP: nothing here is allocated for a device.
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept;
int dealloc_td(ibv_td* domain) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attributes) noexcept;

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept;
/// EBUSY while a request that binds it waits in a send queue, or a stopped process may be using it.
int dealloc_mw(ibv_mw* window) noexcept;
int bind_mw(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* bind) noexcept;

/// As ibv_create_cq_ex.
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) noexcept;
/// As ibv_query_rt_values_ex: the clock in `raw_clock.tv_nsec` alone, so that it compares with the
/// time stamps as it stands: nanoseconds (CLOCK_MONOTONIC).
int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept;
inline constexpr std::uint64_t device_clock_kilohertz = 1'000'000;

/// As ibv_create_qp_ex and ibv_qp_to_qp_ex (device.hpp declares the latter).
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes) noexcept;

}  // namespace millrace::soft
