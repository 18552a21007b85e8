// The calls of <millrace/soft/device.hpp> that a trace tells of, without the trace. Each is built
// beside what it is about; control_calls.cpp puts the public ones in front of them.
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

}  // namespace millrace::soft
