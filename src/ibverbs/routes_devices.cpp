// libibverbs' exports that concern devices, contexts and their events: the soft device's go to
// soft/, all others to the system's library.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "connection_manager.hpp"
#include "device_files.hpp"
#include "millrace/soft/device.hpp"
#include "routes.hpp"

namespace soft = millrace::soft;
using namespace millrace::ibverbs;

namespace {

// A list handed out is ours, as malloc gave it, because programs free() it (qperf). Behind its end
// follow the system's list, whose devices live as long as it does, and the list's own address: a
// program may have ended it sooner by a null pointer.
struct ListEnd {
    ibv_device* null;
    ibv_device** system;
    ibv_device** list;
};

// While the system's library is looking for a device of its own, it must not be given ours: it
// would look for its private parts behind it.
thread_local bool system_devices_only = false;

// What programs older than port_cap_flags2 have room for.
constexpr std::size_t old_port_attributes_size = offsetof(ibv_port_attr, port_cap_flags2);

}  // namespace

// What forwarders.S does for functions that are forwarded: private_NAME in every private version.
#define IN_PRIVATE_VERSION(name, at, number)                                                      \
    extern "C" __attribute__((alias("private_" #name))) decltype(name) private_##number##_##name; \
    __asm__(".symver private_" #number "_" #name ", " #name at "IBVERBS_PRIVATE_" #number);
#define IN_PRIVATE_VERSIONS(name)      \
    IN_PRIVATE_VERSION(name, "@@", 34) \
    IN_PRIVATE_VERSION(name, "@", 57)  \
    IN_PRIVATE_VERSION(name, "@", 59)  \
    IN_PRIVATE_VERSION(name, "@", 64)  \
    IN_PRIVATE_VERSION(name, "@", 65)

extern "C" {

/// Tells whoever looks it up that this libibverbs is the drop-in.
extern const int millrace_soft_drop_in = 1;

/// Written by drivers that can lose their device, read by the system's library. It finds this one.
extern bool verbs_allow_disassociate_destroy __asm__("private_verbs_allow_disassociate_destroy");
bool verbs_allow_disassociate_destroy = false;

ibv_device** ibv_get_device_list(int* count) {
    int system_count = 0;
    ibv_device** system = system_ibv_get_device_list(&system_count);
    if (system == nullptr) system_count = 0;
    int soft_count = 0;
    ibv_device** soft_devices = system_devices_only ? nullptr : soft::device_list(&soft_count);
    if (!system_devices_only) bind_connection_manager();

    const auto total =
        static_cast<std::size_t>(system_count) + static_cast<std::size_t>(soft_count);
    void* const memory = std::malloc(total * sizeof(ibv_device*) + sizeof(ListEnd));
    if (memory == nullptr) {
        if (system != nullptr) system_ibv_free_device_list(system);
        errno = ENOMEM;
        return nullptr;
    }
    auto** const list = static_cast<ibv_device**>(memory);
    ibv_device** next = list;
    for (int i = 0; i < system_count; ++i) *next++ = system[i];
    for (int i = 0; i < soft_count; ++i) *next++ = soft_devices[i];
    new (next) ListEnd{nullptr, system, list};
    if (count != nullptr) *count = static_cast<int>(total);
    return list;
}

void ibv_free_device_list(ibv_device** list) {
    if (list == nullptr) return;
    ibv_device** next = list;
    while (*next != nullptr) ++next;
    const auto* const end = reinterpret_cast<const ListEnd*>(next);
    if (end->list == list && end->system != nullptr) system_ibv_free_device_list(end->system);
    std::free(list);
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

__be64 ibv_get_device_guid(ibv_device* device) {
    return soft::owns(device) ? soft::get_device_guid(device) : system_ibv_get_device_guid(device);
}

int ibv_get_device_index(ibv_device* device) {
    return soft::owns(device) ? soft::get_device_index(device)
                              : system_ibv_get_device_index(device);
}

ibv_context* ibv_open_device(ibv_device* device) {
    return soft::owns(device) ? soft::open_device(device) : system_ibv_open_device(device);
}

int ibv_close_device(ibv_context* context) {
    return soft::owns(context) ? told(soft::close_device(context))
                               : system_ibv_close_device(context);
}

ibv_context* ibv_import_device(int command_descriptor) {
    if (soft::owns_descriptor(command_descriptor)) return soft::import_device(command_descriptor);
    system_devices_only = true;
    ibv_context* context = system_ibv_import_device(command_descriptor);
    system_devices_only = false;
    return context;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
    return soft::owns(context) ? told(soft::query_device(context, attributes))
                               : system_ibv_query_device(context, attributes);
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) {
    if (!soft::owns(context)) return system_ibv_query_port(context, port, attributes);
    ibv_port_attr full{};
    const int error = soft::query_port(context, port, &full);
    if (error == 0) std::memcpy(attributes, &full, old_port_attributes_size);
    return told(error);
}

int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
    return soft::owns(context) ? soft::query_gid(context, port, index, gid)
                               : system_ibv_query_gid(context, port, index, gid);
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_size) {
    if (!soft::owns(context)) {
        return system__ibv_query_gid_ex(context, port, index, entry, flags, entry_size);
    }
    if (flags != 0) return refuse();
    if (entry_size < sizeof(ibv_gid_entry)) return told(EINVAL);
    return told(soft::query_gid_entry(context, port, index, entry));
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries,
                             std::uint32_t flags, std::size_t entry_size) {
    if (!soft::owns(context)) {
        return system__ibv_query_gid_table(context, entries, max_entries, flags, entry_size);
    }
    // This function returns negated errno values.
    if (flags != 0) return -EOPNOTSUPP;
    if (entry_size < sizeof(ibv_gid_entry)) return -EINVAL;
    ibv_device_attr device{};
    if (const int error = soft::query_device(context, &device)) return -error;
    std::size_t found = 0;
    for (std::uint32_t port = 1; port <= device.phys_port_cnt; ++port) {
        ibv_port_attr attributes{};
        if (const int error =
                soft::query_port(context, static_cast<std::uint8_t>(port), &attributes)) {
            return -error;
        }
        for (int index = 0; index < attributes.gid_tbl_len; ++index) {
            ibv_gid_entry entry{};
            if (soft::query_gid_entry(context, port, static_cast<std::uint32_t>(index), &entry)) {
                continue;  // an empty place of the table
            }
            if (found == max_entries) return -EINVAL;
            std::memcpy(reinterpret_cast<char*>(entries) + found * entry_size, &entry,
                        sizeof entry);
            ++found;
        }
    }
    return static_cast<ssize_t>(found);
}

int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type) {
    if (!soft::owns(context)) return system_ibv_query_gid_type(context, port, index, type);
    ibv_gid_entry entry{};
    if (const int error = soft::query_gid_entry(context, port, index, &entry)) return fail(error);
    // The type as sysfs tells it: InfiniBand and RoCE version 1 are one there.
    *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
    return 0;
}

int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
    return soft::owns(context) ? soft::query_pkey(context, port, index, pkey)
                               : system_ibv_query_pkey(context, port, index, pkey);
}

int ibv_get_pkey_index(ibv_context* context, std::uint8_t port, __be16 pkey) {
    if (!soft::owns(context)) return system_ibv_get_pkey_index(context, port, pkey);
    __be16 found = 0;
    for (int index = 0; soft::query_pkey(context, port, index, &found) == 0; ++index) {
        if (found == pkey) return index;
    }
    return fail(EINVAL);
}

int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size) {
    if (is_device_folder(directory)) return read_device_file(directory, file, buffer, size);
    return system_ibv_read_sysfs_file(directory, file, buffer, size);
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    return soft::owns(context) ? soft::get_async_event(context, event)
                               : system_ibv_get_async_event(context, event);
}

void ibv_ack_async_event(ibv_async_event* event) {
    const ibv_context* context = nullptr;
    switch (event->event_type) {
        case IBV_EVENT_CQ_ERR: context = event->element.cq->context; break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED: context = event->element.qp->context; break;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED: context = event->element.srq->context; break;
        case IBV_EVENT_WQ_FATAL: context = event->element.wq->context; break;
        default: return;  // events of a port or a device are not counted
    }
    if (soft::owns(context)) {
        soft::ack_async_event(event);
    } else {
        system_ibv_ack_async_event(event);
    }
}
}

IN_PRIVATE_VERSIONS(ibv_query_gid_type)
IN_PRIVATE_VERSIONS(verbs_allow_disassociate_destroy)
