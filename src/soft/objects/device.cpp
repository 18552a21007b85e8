// The device "soft0" and its contexts, and what the queries answer.
#include "millrace/soft/device.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "layout/block_layout.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "objects/device_memory.hpp"
#include "objects/opened_device.hpp"
#include "objects/polling.hpp"
#include "objects/shared_receive_queue.hpp"
#include "objects/tracing.hpp"
#include "process/asynchronous_events.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/port.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/refused.hpp"

namespace millrace::soft {
namespace {

struct Devices {
    ibv_device soft0{};
    ibv_device* list[2]{&soft0, nullptr};

    Devices() noexcept {
        soft0.node_type = IBV_NODE_CA;
        soft0.transport_type = IBV_TRANSPORT_IB;
        std::strcpy(soft0.name, "soft0");
        std::strcpy(soft0.dev_name, "uverbs_soft0");
        // No such folders exist; where the drop-in is used, they are answered for.
        std::strcpy(soft0.dev_path, "/sys/class/infiniband_verbs/uverbs_soft0");
        std::strcpy(soft0.ibdev_path, "/sys/class/infiniband/soft0");
    }
};

[[nodiscard]] Devices& devices() noexcept {
    static Devices instance;
    return instance;
}

int query_port_sized(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
                     std::size_t size) noexcept {
    ibv_port_attr all{};
    const int error = query_port(context, port, &all);
    if (error != 0) return error;
    std::memset(attributes, 0, size);
    std::memcpy(attributes, &all, std::min(size, sizeof all));
    return 0;
}

int query_device_extended(ibv_context* context, const ibv_query_device_ex_input* input,
                          ibv_device_attr_ex* attributes, std::size_t size) noexcept {
    if (input != nullptr && input->comp_mask != 0) return EINVAL;
    if (size < sizeof(ibv_device_attr)) return EINVAL;
    ibv_device_attr_ex all{};
    const int error = query_device(context, &all.orig_attr);
    if (error != 0) return error;
    all.completion_timestamp_mask = ~std::uint64_t{0};
    all.hca_core_clock = device_clock_kilohertz;
    all.device_cap_flags_ex = all.orig_attr.device_cap_flags;
    all.phys_port_cnt_ex = 1;
    all.max_dm_size = max_device_memory;
    all.cq_mod_caps.max_cq_count = std::numeric_limits<std::uint16_t>::max();
    all.cq_mod_caps.max_cq_period = std::numeric_limits<std::uint16_t>::max();
    std::memset(attributes, 0, size);
    std::memcpy(attributes, &all, std::min(size, sizeof all));
    return 0;
}

/// A call that answers an errno value, as programs reach it through a context: libibverbs'
/// functions set errno, too.
template <auto call>
struct Told;
template <class... Arguments, int (*call)(Arguments...) noexcept>
struct Told<call> {
    static int run(Arguments... arguments) noexcept {
        const int error = call(arguments...);
        if (error != 0) errno = error;
        return error;
    }
};
template <auto call>
constexpr auto told = &Told<call>::run;

// The operations that the header calls without looking whether they are there.
int refuse_domain_end(ibv_xrcd*) noexcept { return EOPNOTSUPP; }

}  // namespace

bool owns(const ibv_device* device) noexcept { return device == &devices().soft0; }
bool owns(const ibv_context* context) noexcept {
    return context != nullptr && owns(context->device);
}

ibv_device** device_list(int* count) noexcept {
    if (count != nullptr) *count = 1;
    return devices().list;
}

std::string describe_mode(const ibv_device*) {
    try {
        const Mode mode = mode_of_environment();
        return "soft device, " + describe(mode) +
               (mode.kind == ModeKind::shaped || mode.kind == ModeKind::faulty
                    ? ": this host's memory behind a model of a link, not a network"
                    : ": within this host memory, not a network");
    } catch (const base::Error& error) {
        return "soft device that cannot be opened: " + error.cause();
    }
}

void check_mode(std::string_view mode) { static_cast<void>(parse_mode(mode)); }

__be64 get_device_guid(ibv_device*) noexcept { return device_guid(); }
int get_device_index(ibv_device*) noexcept { return 0; }

namespace {

/// A context of an opened device. Takes `command` over if it succeeds.
[[nodiscard]] ibv_context* make_context(std::shared_ptr<OpenedDevice> opened, Descriptor& command) {
    auto context = std::make_unique<Context>();
    context->opened = std::move(opened);
    context->mode = context->opened->mode;
    context->yields = context->opened->yields;
    context->process = context->opened->process;
    context->cable = context->opened->cable;
    // It leaves the process's list with the context.
    context->events = {new AsynchronousEvents, [process = context->process](auto* events) {
                           process->remove(*events);
                           delete events;
                       }};
    context->process->add(*context->events);
    ibv_context& plain = context->context;
    plain.device = &devices().soft0;
    plain.cmd_fd = command.get();
    plain.async_fd = context->events->descriptor();
    // Programs spread their completion queues over them; here one is as good as another.
    plain.num_comp_vectors = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
    pthread_mutex_init(&plain.mutex, nullptr);
    plain.abi_compat = reinterpret_cast<void*>(~std::uintptr_t{0});  // a verbs_context
    plain.ops.alloc_mw = alloc_mw;
    plain.ops.bind_mw = told<bind_mw>;
    plain.ops.dealloc_mw = told<dealloc_mw>;
    plain.ops.poll_cq = poll_cq;
    plain.ops.req_notify_cq = req_notify_cq;
    plain.ops.post_srq_recv = post_srq_recv;
    plain.ops.post_send = post_send;
    plain.ops.post_recv = post_recv;
    context->sz = sizeof(verbs_context);
    context->query_port = told<query_port_sized>;
    context->query_device_ex = told<query_device_extended>;
    context->close_xrcd = refuse_domain_end;
    context->query_rt_values = told<query_rt_values>;
    context->create_cq_ex = create_cq_ex;
    context->create_qp_ex = create_qp_ex;
    context->alloc_td = alloc_td;
    context->dealloc_td = told<dealloc_td>;
    context->alloc_parent_domain = alloc_parent_domain;
    context->alloc_dm = alloc_dm;
    context->free_dm = told<free_dm>;
    context->modify_cq = told<modify_cq>;
    context->reg_dm_mr = reg_dm_mr;
    context->alloc_null_mr = alloc_null_mr;
    Tracing::install(*context);
    context->command = std::move(command);
    return &context.release()->context;
}

/// Null with errno instead of what `make` throws.
template <class Make>
[[nodiscard]] ibv_context* made_or_errno(const Make& make) noexcept {
    try {
        return make();
    } catch (const base::Error& error) {
        // An errno value says too little.
        base::log(base::LogLevel::error, "soft", "{}", error.what());
        switch (error.code()) {
            case base::ErrorCode::resource_exhausted: errno = ENOMEM; break;
            case base::ErrorCode::invalid_argument: errno = EINVAL; break;
            default: errno = ENODEV;
        }
    } catch (const std::exception&) {
        errno = ENOMEM;
    }
    return nullptr;
}

}  // namespace

ibv_context* open_or_throw(ibv_device*) {
    const base::Uncancelled held;
    check_port_link_layer();
    auto opened = OpenedDevice::open();
    Descriptor command = opened->descriptor();
    return make_context(std::move(opened), command);
}

ibv_context* open_device(ibv_device* device) noexcept {
    const base::Uncancelled held;
    if (!owns(device)) return refused(ENODEV);
    return made_or_errno([device] { return open_or_throw(device); });
}

bool owns_descriptor(int command_descriptor) noexcept {
    const base::Uncancelled held;
    return OpenedDevice::behind(command_descriptor) != nullptr ||
           OpenedDevice::leads_to_one(command_descriptor);
}

ibv_context* import_device(int command_descriptor) noexcept {
    const base::Uncancelled held;
    return made_or_errno([command_descriptor]() -> ibv_context* {
        auto opened = OpenedDevice::behind(command_descriptor);
        if (opened == nullptr) {
            return refused(OpenedDevice::leads_to_one(command_descriptor) ? ENODEV : EINVAL);
        }
        Descriptor command{command_descriptor};
        try {
            return make_context(std::move(opened), command);
        } catch (...) {
            command.release();  // it stays the program's
            throw;
        }
    });
}

int close_device(ibv_context* public_context) noexcept {
    const base::Uncancelled held;
    Context* const context = context_of(public_context);
    if (context->tracing != nullptr) context->tracing->closes();
    // Events of what is left have no reader any more.
    public_context->async_fd = -1;
    public_context->cmd_fd = -1;
    context->command.close();
    context->events->close();
    release(context);
    return 0;
}

int query_device(ibv_context*, ibv_device_attr* attributes) noexcept {
    *attributes = ibv_device_attr{};
    std::strcpy(attributes->fw_ver, "millrace 0.1.0");
    attributes->node_guid = device_guid();
    attributes->sys_image_guid = device_guid();
    attributes->max_mr_size = ~std::uint64_t{0};
    attributes->page_size_cap = 0xfffff000;
    attributes->vendor_id = 0x024d52;  // the first bytes of our locally administered GUID
    attributes->vendor_part_id = 1;
    attributes->hw_ver = 1;
    attributes->max_qp = static_cast<int>(queue_pairs_per_node);
    attributes->max_qp_wr = static_cast<int>(max_queue_entries);
    attributes->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE |
                                   IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attributes->max_sge = static_cast<int>(max_sges);
    attributes->max_sge_rd = static_cast<int>(max_sges);
    attributes->max_cq = max_completion_queues;
    attributes->max_cqe = 4 << 20;
    attributes->max_mr = static_cast<int>(regions_per_node);
    attributes->max_mw = static_cast<int>(regions_per_node);
    attributes->max_pd = domain_handles - 1;
    attributes->max_qp_rd_atom = max_reads;
    attributes->max_res_rd_atom = max_reads * static_cast<int>(queue_pairs_per_node);
    attributes->max_qp_init_rd_atom = max_reads;
    attributes->atomic_cap = IBV_ATOMIC_HCA;
    attributes->max_srq = max_shared_receive_queues;
    attributes->max_srq_wr = static_cast<int>(max_queue_entries);
    attributes->max_srq_sge = static_cast<int>(max_sges);
    attributes->max_ah = max_address_handles;
    attributes->max_mcast_grp = attributes->max_mcast_qp_attach =
        attributes->max_total_mcast_qp_attach = static_cast<int>(groups_per_node);
    attributes->max_pkeys = 1;
    attributes->local_ca_ack_delay = 15;
    attributes->phys_port_cnt = 1;
    return 0;
}

int query_port(ibv_context*, std::uint8_t port, ibv_port_attr* attributes) noexcept {
    if (port != 1) return EINVAL;
    *attributes = ibv_port_attr{};
    attributes->state = IBV_PORT_ACTIVE;
    attributes->max_mtu = IBV_MTU_4096;
    attributes->active_mtu = port_mtu();
    attributes->gid_tbl_len = count_gids();
    attributes->max_msg_sz = max_message_bytes;
    attributes->pkey_tbl_len = 1;
    attributes->lid = port_lid;
    attributes->sm_lid = port_lid;
    attributes->max_vl_num = 1;
    attributes->subnet_timeout = 18;
    attributes->active_width = 2;   // 4x
    attributes->active_speed = 32;  // EDR
    attributes->phys_state = 5;     // LinkUp
    attributes->link_layer = port_link_layer();
    return 0;
}

int query_gid(ibv_context*, std::uint8_t port, int index, ibv_gid* gid) noexcept {
    const auto entry =
        port == 1 && index >= 0 ? gid_at(static_cast<std::uint32_t>(index)) : std::nullopt;
    if (!entry) {
        errno = EINVAL;
        return -1;
    }
    *gid = entry->gid;
    return 0;
}

int query_gid_entry(ibv_context*, std::uint32_t port, std::uint32_t index,
                    ibv_gid_entry* entry) noexcept {
    if (port != 1) return EINVAL;
    const auto found = gid_at(index);
    if (!found || is_empty(found->gid)) return ENODATA;
    *entry = *found;
    return 0;
}

int query_pkey(ibv_context*, std::uint8_t port, int index, __be16* pkey) noexcept {
    if (port != 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = 0xffff;  // the default partition, the same in both byte orders
    return 0;
}

}  // namespace millrace::soft
