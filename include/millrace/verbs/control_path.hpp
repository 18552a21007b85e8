// The control path as a table: the functions that libibverbs exports as symbols, once for the
// system's library and once for the soft device, so that one process can use both side by side.
// The data path needs no table: <infiniband/verbs.h> dispatches it per context.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::verbs {

/// Signatures and conventions are libibverbs'. Every pointer is set.
struct ControlPath {
    std::string_view name;  ///< "system" or "soft"
    ibv_device** (*get_device_list)(int* count);
    void (*free_device_list)(ibv_device** list);
    __be64 (*get_device_guid)(ibv_device* device);
    ibv_context* (*open_device)(ibv_device* device);
    int (*close_device)(ibv_context* context);
    int (*query_device)(ibv_context* context, ibv_device_attr* attributes);
    int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes);
    int (*query_gid)(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid);
    /// ENODATA for an empty entry; EOPNOTSUPP where the system's library is older than the call.
    int (*query_gid_entry)(ibv_context* context, std::uint32_t port, std::uint32_t index,
                           ibv_gid_entry* entry);
    ibv_pd* (*alloc_pd)(ibv_context* context);
    int (*dealloc_pd)(ibv_pd* pd);
    ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                      unsigned access);
    int (*dereg_mr)(ibv_mr* mr);
    ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
    int (*destroy_comp_channel)(ibv_comp_channel* channel);
    ibv_cq* (*create_cq)(ibv_context* context, int entries, void* cq_context,
                         ibv_comp_channel* channel, int vector);
    int (*destroy_cq)(ibv_cq* cq);
    int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
    void (*ack_cq_events)(ibv_cq* cq, unsigned count);
    ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes);
    int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
    int (*query_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init);
    int (*destroy_qp)(ibv_qp* qp);
    ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attributes);
    int (*modify_srq)(ibv_srq* srq, ibv_srq_attr* attributes, int mask);
    int (*query_srq)(ibv_srq* srq, ibv_srq_attr* attributes);
    int (*destroy_srq)(ibv_srq* srq);
    ibv_ah* (*create_ah)(ibv_pd* pd, ibv_ah_attr* attributes);
    int (*destroy_ah)(ibv_ah* ah);
    int (*attach_mcast)(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid);
    int (*detach_mcast)(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid);
    int (*get_async_event)(ibv_context* context, ibv_async_event* event);
    void (*ack_async_event)(ibv_async_event* event);
    /// 0 where the system's library is older than the call: order is then not guaranteed.
    int (*query_qp_data_in_order)(ibv_qp* qp, ibv_wr_opcode opcode, std::uint32_t flags);
    /// Of the soft device (soft/device.hpp); null for others.
    void (*leave_peers_to_program)(ibv_comp_channel* channel) noexcept;
    void (*tell_events_only)(ibv_comp_channel* channel) noexcept;
    std::chrono::nanoseconds (*next_alarm)(const ibv_comp_channel* channel) noexcept;
    std::shared_ptr<std::byte> (*map_remote)(ibv_qp* qp, std::uint64_t address, std::uint32_t rkey,
                                             std::size_t length) noexcept;
    bool (*maps_remote)(ibv_context* context) noexcept;
    bool (*shares_memory)(ibv_qp* qp) noexcept;
};

/// The soft device's control path. Always there.
[[nodiscard]] const ControlPath& soft_control_path() noexcept;
/// The system's libibverbs, loaded at the first call; nullptr where it is not installed.
[[nodiscard]] const ControlPath* system_control_path() noexcept;
/// True if the system's library is the soft device's drop-in, which lists soft0, too.
[[nodiscard]] bool system_library_is_soft_drop_in() noexcept;

}  // namespace millrace::verbs
