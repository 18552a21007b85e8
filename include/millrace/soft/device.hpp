// The soft device's entry points: libibverbs' control path under our own names.
//
// verbs/ calls them when a context belongs to the soft device, ibverbs/ exports them to unmodified
// programs. The data path needs no entry: <infiniband/verbs.h> dispatches it through the
// function pointers that the objects made here carry.
//
// Each function has exactly the signature, return convention (0 / errno value, or pointer / NULL
// with errno) and thread-safety of the libibverbs function of the same name. Only those that wait
// for events are cancellation points.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/error.hpp"

namespace millrace::soft {

/// True if `context` / `device` was made by the soft device.
[[nodiscard]] bool owns(const ibv_context* context) noexcept;
[[nodiscard]] bool owns(const ibv_device* device) noexcept;

/// Vendor codes (ibv_wc::vendor_err) that say of RETRY_EXC_ERR whether the peer's process is gone.
/// All other completions have 0. No other vendor's begin with "MR".
inline constexpr std::uint32_t vendor_peer_ended = 0x4d520001;
inline constexpr std::uint32_t vendor_no_answer = 0x4d520002;

/// The soft devices of this process: today one, "soft0". A static, NULL-terminated array.
[[nodiscard]] ibv_device** device_list(int* count) noexcept;

/// How the device behaves if it is opened now, as MILLRACE_SOFT_MODE says:
/// "soft device, fast: within this host memory, not a network".
[[nodiscard]] std::string describe_mode(const ibv_device* device);
/// Throws base::Error (invalid_argument) unless `mode` is one that MILLRACE_SOFT_MODE may name:
/// docs/modes.md.
void check_mode(std::string_view mode);

__be64 get_device_guid(ibv_device* device) noexcept;
int get_device_index(ibv_device* device) noexcept;
/// The mode is chosen here, by MILLRACE_SOFT_MODE; one that cannot be understood is EINVAL
/// (logged).
ibv_context* open_device(ibv_device* device) noexcept;
/// open_device for callers who can take more than an errno value: throws base::Error, with the
/// cause and a remedy. Precondition: owns(device).
[[nodiscard]] ibv_context* open_or_throw(ibv_device* device);
/// A context of the device that was opened with the context whose cmd_fd `command_descriptor`
/// duplicates; it belongs to that context from then on. The two share their protection domains,
/// regions and device memory, by import_*; queues and events are each one's own. NULL with EINVAL:
/// no such descriptor; or ENODEV: this process does not have it open. It stays the caller's.
ibv_context* import_device(int command_descriptor) noexcept;
/// True if `import_device` knows it.
[[nodiscard]] bool owns_descriptor(int command_descriptor) noexcept;
int close_device(ibv_context* context) noexcept;
/// The queries say the same of every context, and may be asked with none (null).
int query_device(ibv_context* context, ibv_device_attr* attributes) noexcept;
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) noexcept;
int query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) noexcept;
int query_gid_entry(ibv_context* context, std::uint32_t port, std::uint32_t index,
                    ibv_gid_entry* entry) noexcept;
int query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) noexcept;

ibv_pd* alloc_pd(ibv_context* context) noexcept;
/// ENOENT: it was deallocated through another of its handles; only `unimport_pd` is left then.
int dealloc_pd(ibv_pd* pd) noexcept;
/// Another handle of the protection domain that is ibv_pd::handle `handle` in `context` or where
/// that was imported from; NULL with ENOENT. Objects made with either are of one domain.
ibv_pd* import_pd(ibv_context* context, std::uint32_t handle) noexcept;
/// Gives the handle back and leaves the domain as it is. Objects made with the handle may outlive
/// it.
void unimport_pd(ibv_pd* pd) noexcept;
ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
               unsigned access) noexcept;
/// As ibv_rereg_mr: on success the region has new keys. IBV_REREG_MR_ERR_INPUT: it is as it was;
/// IBV_REREG_MR_ERR_CMD (EBUSY, as dereg_mr): it is no longer valid and can only be deregistered.
int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t length,
             unsigned access) noexcept;
/// A region without memory, for local use: reads as zero, keeps nothing, has every address.
ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept;
/// A region of device memory. `access` must contain IBV_ACCESS_ZERO_BASED.
ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* memory, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept;
/// Returns EBUSY, with the region already invalid for new requests, if a stopped executor was
/// still copying after a second: its memory must then never be reused (see "Fences").
/// ENOENT: it was deregistered through another of its handles; only `unimport_mr` is left then.
int dereg_mr(ibv_mr* mr) noexcept;
/// Another handle of the region that is ibv_mr::handle `handle` where `pd` is: the same keys and
/// length, no address. It protects as the original does, whatever `pd`. NULL with ENOENT. (After
/// rereg_mr through another handle, this one's keys are no longer true.)
ibv_mr* import_mr(ibv_pd* pd, std::uint32_t handle) noexcept;
/// Gives the handle back and leaves the region as it is. A region without handles ends with the
/// last context of the opened device.
void unimport_mr(ibv_mr* mr) noexcept;
/// Another handle of device memory; likewise.
ibv_dm* import_dm(ibv_context* context, std::uint32_t handle) noexcept;
void unimport_dm(ibv_dm* memory) noexcept;

ibv_comp_channel* create_comp_channel(ibv_context* context) noexcept;
int destroy_comp_channel(ibv_comp_channel* channel) noexcept;
ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                  int vector) noexcept;
int resize_cq(ibv_cq* cq, int entries) noexcept;
int destroy_cq(ibv_cq* cq) noexcept;
/// A cancellation point, as libibverbs' is: pthread_cancel unwinds it. -1 with EINTR: a signal came
/// whose handler was set without SA_RESTART.
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
void ack_cq_events(ibv_cq* cq, unsigned count) noexcept;

/// Not of libibverbs: the ends of peers do not make the channel's descriptor readable. For programs
/// that hear of them otherwise: a peer's life is one file in every channel that watches it, and the
/// kernel allows a file few ways through nested epolls (500 through two, 100 through three). Before
/// queue pairs are connected.
void leave_peers_to_program(ibv_comp_channel* channel) noexcept;
/// Not of libibverbs: as above, and nor do times at which the device has to act (a request that ran
/// out of time, a receive that was claimed in vain). The channel is one descriptor then, that of
/// its events. The program asks for the next such time before each sleep, and for an event by then:
/// an earlier one that comes up meanwhile makes the descriptor readable. Before completion queues
/// are made with the channel, or its descriptor is watched.
void tell_events_only(ibv_comp_channel* channel) noexcept;
/// How long until the device has to act: 0, at once; nanoseconds::max(): it need not, or the
/// descriptor tells. Any thread; makes no system call.
[[nodiscard]] std::chrono::nanoseconds next_alarm(const ibv_comp_channel* channel) noexcept;

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) noexcept;
/// NULL with EOPNOTSUPP for a queue pair made without `send_ops_flags`. The extended objects are
/// made by ibv_create_qp_ex and ibv_create_cq_ex, which dispatch through the context.
ibv_qp_ex* qp_to_qp_ex(ibv_qp* qp) noexcept;
int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) noexcept;
int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) noexcept;
int destroy_qp(ibv_qp* qp) noexcept;
int query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode opcode, std::uint32_t flags) noexcept;

/// Not of libibverbs: `length` bytes of the peer's memory at `address`, of its region `rkey` as a
/// WRITE of `qp` would reach it, mapped into this process for as long as the pointer lives,
/// whatever becomes of the owner. A WRITE from there to where it belongs has nothing to copy. The
/// owner may look at (and change) the bytes at any time, and give them back: then they are 0. Null:
/// not in this mode, `qp` is not connected, the memory is not shared or not to be written.
[[nodiscard]] std::shared_ptr<std::byte> map_remote(ibv_qp* qp, std::uint64_t address,
                                                    std::uint32_t rkey,
                                                    std::size_t length) noexcept;
/// False: map_remote answers null for every queue pair of this context, which has a link.
[[nodiscard]] bool maps_remote(ibv_context* context) noexcept;
/// Not of libibverbs: `qp` is connected to a queue pair of this machine.
[[nodiscard]] bool shares_memory(ibv_qp* qp) noexcept;

/// At most 32768 receives, rounded up to a power of two. IBV_SRQ_MAX_WR of modify_srq resizes while
/// others post and peers take: EINVAL where more are outstanding, or than the limit; ENOMEM.
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) noexcept;
int modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) noexcept;
int query_srq(ibv_srq* srq, ibv_srq_attr* attributes) noexcept;
/// EBUSY while a queue pair uses it.
int destroy_srq(ibv_srq* srq) noexcept;

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) noexcept;
int init_ah_from_wc(ibv_context* context, std::uint8_t port, ibv_wc* completion, ibv_grh* grh,
                    ibv_ah_attr* attributes) noexcept;
ibv_ah* create_ah_from_wc(ibv_pd* pd, ibv_wc* completion, ibv_grh* grh, std::uint8_t port) noexcept;
int destroy_ah(ibv_ah* ah) noexcept;

/// The GID names the group; the LID does not matter. destroy_qp says EBUSY while one is attached.
int attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) noexcept;
int detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) noexcept;

/// A cancellation point, and ended by signals, as get_cq_event.
int get_async_event(ibv_context* context, ibv_async_event* event);
void ack_async_event(ibv_async_event* event) noexcept;

}  // namespace millrace::soft
