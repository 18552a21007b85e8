// The two control paths: the system's libibverbs, loaded when present, and the soft device's own
// functions. Nothing here links libibverbs: <infiniband/verbs.h> gives the types, dlsym the code.
#include "millrace/verbs/control_path.hpp"

#include <dlfcn.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "millrace/base/log.hpp"
#include "millrace/soft/device.hpp"

namespace millrace::verbs {
namespace {

// The exported functions whose signature differs from the table's, or which may be missing.
struct Exported {
    int (*query_port)(ibv_context*, std::uint8_t, _compat_ibv_port_attr*) = nullptr;
    ibv_mr* (*reg_mr)(ibv_pd*, void*, std::size_t, int) = nullptr;
    ibv_mr* (*reg_mr_iova)(ibv_pd*, void*, std::size_t, std::uint64_t, int) = nullptr;
    ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) = nullptr;
    int (*query_gid_ex)(ibv_context*, std::uint32_t, std::uint32_t, ibv_gid_entry*, std::uint32_t,
                        std::size_t) = nullptr;
    int (*query_qp_data_in_order)(ibv_qp*, ibv_wr_opcode, std::uint32_t) = nullptr;
    bool soft_drop_in = false;
};
Exported exported;  // written once, before the system's table is handed out

// A context of a current driver answers itself; only very old ones need the exported function,
// which fills the shorter structure of its time.
int system_query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) {
    const verbs_context* extended = verbs_get_ctx(context);
    if (extended != nullptr && vext_field_avail(verbs_context, query_port, extended->sz) &&
        extended->query_port != nullptr) {
        return extended->query_port(context, port, attributes, sizeof(*attributes));
    }
    std::memset(attributes, 0, sizeof(*attributes));
    return exported.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

// Optional access flags (relaxed ordering and the like) need the newest function; the others are
// understood by all of them.
ibv_mr* system_reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                      unsigned access) {
    if (exported.reg_mr_iova2 != nullptr) {
        return exported.reg_mr_iova2(pd, address, length, iova, access);
    }
    const int plain = static_cast<int>(access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE));
    if (iova == reinterpret_cast<std::uint64_t>(address)) {
        return exported.reg_mr(pd, address, length, plain);
    }
    if (exported.reg_mr_iova != nullptr) {
        return exported.reg_mr_iova(pd, address, length, iova, plain);
    }
    errno = EOPNOTSUPP;
    return nullptr;
}

int system_query_gid_entry(ibv_context* context, std::uint32_t port, std::uint32_t index,
                           ibv_gid_entry* entry) {
    if (exported.query_gid_ex == nullptr) return EOPNOTSUPP;
    return exported.query_gid_ex(context, port, index, entry, 0, sizeof(*entry));
}

int system_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode opcode, std::uint32_t flags) {
    if (exported.query_qp_data_in_order == nullptr) return 0;
    return exported.query_qp_data_in_order(qp, opcode, flags);
}

template <class Function>
bool find(void* library, const char* symbol, Function*& function) noexcept {
    function = reinterpret_cast<Function*>(dlsym(library, symbol));
    return function != nullptr;
}

std::optional<ControlPath> load_system() noexcept {
    // RTLD_LOCAL: its symbols must not satisfy anybody who did not ask for them.
    void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        base::log(base::LogLevel::debug, "verbs", "no system libibverbs: {}", dlerror());
        return std::nullopt;
    }
    ControlPath path{};
    path.name = "system";
    const char* missing = nullptr;
    const auto need = [&](const char* symbol, auto*& function) {
        if (!find(library, symbol, function) && missing == nullptr) missing = symbol;
    };
    need("ibv_get_device_list", path.get_device_list);
    need("ibv_free_device_list", path.free_device_list);
    need("ibv_get_device_guid", path.get_device_guid);
    need("ibv_open_device", path.open_device);
    need("ibv_close_device", path.close_device);
    need("ibv_query_device", path.query_device);
    need("ibv_query_port", exported.query_port);
    need("ibv_query_gid", path.query_gid);
    need("ibv_alloc_pd", path.alloc_pd);
    need("ibv_dealloc_pd", path.dealloc_pd);
    need("ibv_reg_mr", exported.reg_mr);
    need("ibv_dereg_mr", path.dereg_mr);
    need("ibv_create_comp_channel", path.create_comp_channel);
    need("ibv_destroy_comp_channel", path.destroy_comp_channel);
    need("ibv_create_cq", path.create_cq);
    need("ibv_destroy_cq", path.destroy_cq);
    need("ibv_get_cq_event", path.get_cq_event);
    need("ibv_ack_cq_events", path.ack_cq_events);
    need("ibv_create_qp", path.create_qp);
    need("ibv_modify_qp", path.modify_qp);
    need("ibv_query_qp", path.query_qp);
    need("ibv_destroy_qp", path.destroy_qp);
    need("ibv_create_srq", path.create_srq);
    need("ibv_modify_srq", path.modify_srq);
    need("ibv_query_srq", path.query_srq);
    need("ibv_destroy_srq", path.destroy_srq);
    need("ibv_create_ah", path.create_ah);
    need("ibv_destroy_ah", path.destroy_ah);
    need("ibv_attach_mcast", path.attach_mcast);
    need("ibv_detach_mcast", path.detach_mcast);
    need("ibv_get_async_event", path.get_async_event);
    need("ibv_ack_async_event", path.ack_async_event);
    if (missing != nullptr) {
        base::log(base::LogLevel::warn, "verbs",
                  "the system's libibverbs.so.1 lacks {} and is not used", missing);
        dlclose(library);
        return std::nullopt;
    }
    (void)find(library, "ibv_reg_mr_iova", exported.reg_mr_iova);
    (void)find(library, "ibv_reg_mr_iova2", exported.reg_mr_iova2);
    (void)find(library, "_ibv_query_gid_ex", exported.query_gid_ex);
    (void)find(library, "ibv_query_qp_data_in_order", exported.query_qp_data_in_order);
    exported.soft_drop_in = dlsym(library, "millrace_soft_drop_in") != nullptr;
    path.query_port = system_query_port;
    path.query_gid_entry = system_query_gid_entry;
    path.reg_mr = system_reg_mr;
    path.query_qp_data_in_order = system_query_qp_data_in_order;
    return path;  // the library stays loaded: devices and contexts live as long as the process
}

ibv_device** soft_device_list(int* count) { return soft::device_list(count); }
void soft_free_device_list(ibv_device**) {}  // a static array

}  // namespace

const ControlPath& soft_control_path() noexcept {
    static const ControlPath path{
        .name = "soft",
        .get_device_list = soft_device_list,
        .free_device_list = soft_free_device_list,
        .get_device_guid = soft::get_device_guid,
        .open_device = soft::open_device,
        .close_device = soft::close_device,
        .query_device = soft::query_device,
        .query_port = soft::query_port,
        .query_gid = soft::query_gid,
        .query_gid_entry = soft::query_gid_entry,
        .alloc_pd = soft::alloc_pd,
        .dealloc_pd = soft::dealloc_pd,
        .reg_mr = soft::reg_mr,
        .dereg_mr = soft::dereg_mr,
        .create_comp_channel = soft::create_comp_channel,
        .destroy_comp_channel = soft::destroy_comp_channel,
        .create_cq = soft::create_cq,
        .destroy_cq = soft::destroy_cq,
        .get_cq_event = soft::get_cq_event,
        .ack_cq_events = soft::ack_cq_events,
        .create_qp = soft::create_qp,
        .modify_qp = soft::modify_qp,
        .query_qp = soft::query_qp,
        .destroy_qp = soft::destroy_qp,
        .create_srq = soft::create_srq,
        .modify_srq = soft::modify_srq,
        .query_srq = soft::query_srq,
        .destroy_srq = soft::destroy_srq,
        .create_ah = soft::create_ah,
        .destroy_ah = soft::destroy_ah,
        .attach_mcast = soft::attach_mcast,
        .detach_mcast = soft::detach_mcast,
        .get_async_event = soft::get_async_event,
        .ack_async_event = soft::ack_async_event,
        .query_qp_data_in_order = soft::query_qp_data_in_order,
        .leave_peers_to_program = soft::leave_peers_to_program,
        .tell_events_only = soft::tell_events_only,
        .next_alarm = soft::next_alarm,
        .map_remote = soft::map_remote,
        .maps_remote = soft::maps_remote,
        .shares_memory = soft::shares_memory,
    };
    return path;
}

const ControlPath* system_control_path() noexcept {
    static const std::optional<ControlPath> path = load_system();
    return path ? &*path : nullptr;
}

bool system_library_is_soft_drop_in() noexcept {
    return system_control_path() != nullptr && exported.soft_drop_in;
}

}  // namespace millrace::verbs
