// Devices and contexts: finding, describing and opening them. Called by connect/ and the tools.
#include "millrace/verbs/device.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "failure.hpp"
#include "gid_text.hpp"
#include "kept.hpp"
#include "memory_file.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "millrace/soft/device.hpp"
#include "millrace/soft/wire.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/memory.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {
namespace {

bool is_soft_path(const ControlPath& path) noexcept { return &path == &soft_control_path(); }

/// The drop-in's, which lacks what this copy of the device has beyond verbs.
bool is_of_drop_in(const ibv_device* device) noexcept {
    return system_library_is_soft_drop_in() && std::string_view{device->name}.starts_with("soft");
}

// The system's devices. A device object lives while a list that names it is not freed, so the
// first list that shows a device is kept for ever, and lists without news are given back.
struct ShownDevices {
    std::mutex mutex;
    std::set<ibv_device*> known;
    std::vector<ibv_device**> kept;
};

/// Never destroyed. Its mutex is held over fork, and so no thread is within libibverbs' listing
/// then: that has a lock of its own, which would stay taken in the child.
ShownDevices& shown_devices() {
    static ShownDevices& all = *[] {
        auto* const made = new ShownDevices;
        pthread_atfork([] { shown_devices().mutex.lock(); }, [] { shown_devices().mutex.unlock(); },
                       [] { shown_devices().mutex.unlock(); });
        return made;
    }();
    return all;
}

std::vector<ibv_device*> system_devices(const ControlPath& path) {
    auto& [mutex, known, kept] = shown_devices();
    const std::scoped_lock lock{mutex};
    int count = 0;
    ibv_device** list = path.get_device_list(&count);
    if (list == nullptr) return {};  // ENOSYS: this kernel has no RDMA support
    std::vector<ibv_device*> found(list, list + count);
    bool news = false;
    for (ibv_device* device : found) news = known.insert(device).second || news;
    if (news) {
        kept.push_back(list);
    } else {
        path.free_device_list(list);
    }
    return found;
}

bool is_zero(const ibv_gid& gid) noexcept {
    return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](auto byte) { return byte == 0; });
}

bool is_ipv4_mapped(const ibv_gid& gid) noexcept {
    return std::all_of(gid.raw, gid.raw + 10, [](auto byte) { return byte == 0; }) &&
           gid.raw[10] == 0xff && gid.raw[11] == 0xff;
}

std::string_view link_layer_name(std::uint8_t layer) noexcept {
    switch (layer) {
        case IBV_LINK_LAYER_ETHERNET: return "Ethernet";
        // Old drivers leave it unspecified, which has always meant InfiniBand.
        case IBV_LINK_LAYER_INFINIBAND:
        case IBV_LINK_LAYER_UNSPECIFIED: return "InfiniBand";
        default: return "unknown";
    }
}

std::string_view node_type_name(const ibv_device* device) noexcept {
    switch (device->node_type) {
        case IBV_NODE_CA: return "channel adapter";
        case IBV_NODE_SWITCH: return "switch";
        case IBV_NODE_ROUTER: return "router";
        case IBV_NODE_RNIC: return "iWARP adapter";
        default: return "adapter";
    }
}

std::string names_of(const std::vector<Device>& list) {
    std::string text;
    for (const Device& device : list) {
        text += fmt::format("{}{}", text.empty() ? "" : ", ", device.name());
    }
    return text.empty() ? "none" : text;
}

bool has_active_port(const Device& device) {
    try {
        const Context context = device.open();
        return context.port(context.usable_port()).state == IBV_PORT_ACTIVE;
    } catch (const base::Error& error) {
        base::log(base::LogLevel::info, "verbs", "passing over {}: {}", device.name(),
                  error.what());
        return false;
    }
}

}  // namespace

std::vector<Device> devices() {
    std::vector<Device> list;
    if (const ControlPath* path = system_control_path()) {
        for (ibv_device* device : system_devices(*path)) {
            if (!is_of_drop_in(device)) list.push_back(Device{device, *path});
        }
    }
    const ControlPath& path = soft_control_path();
    int count = 0;
    ibv_device** soft = path.get_device_list(&count);
    for (int i = 0; i < count; ++i) list.push_back(Device{soft[i], path});
    return list;
}

Device find_device(std::string_view name) {
    const std::vector<Device> list = devices();
    const char* wish = nullptr;
    if (name.empty() && (wish = std::getenv("MILLRACE_DEVICE")) != nullptr) name = wish;
    if (name.empty()) {
        for (const Device& device : list) {
            if (!device.is_soft() && has_active_port(device)) return device;
        }
        name = "soft0";
    }
    for (const Device& device : list) {
        if (device.name() == name) return device;
    }
    throw base::Error(base::ErrorCode::not_found, "find the RDMA device",
                      fmt::format("'{}'{}", name, wish != nullptr ? " (from MILLRACE_DEVICE)" : ""),
                      fmt::format("there is no device of that name; there are: {}", names_of(list)),
                      "name one of these; soft0 needs no hardware");
}

std::string soft_mode() { return soft::mode_in_words(); }
std::string soft_wire() { return soft::wire_in_words(); }
bool turn_soft_wire_on(const ibv_gid& at) { return soft::turn_wire_on(at); }

bool Device::is_soft() const noexcept { return is_soft_path(*path_); }

Context Device::open() const {
    base::check_log_setting();
    // The soft device itself says better than an errno value why it cannot be opened.
    if (is_soft()) {
        Context opened{soft::open_or_throw(raw_), *path_};
        note_opened(opened.raw());
        return opened;
    }
    errno = 0;
    ibv_context* raw = path_->open_device(raw_);
    if (raw == nullptr) {
        throw_call_failed("open the RDMA device", std::string{name()},
                          "check the rights on /dev/infiniband/uverbs* and that the driver's "
                          "provider library (ibverbs-providers) is installed");
    }
    Context opened{raw, *path_};
    note_opened(opened.raw());
    return opened;
}

DeviceFacts Device::facts() const {
    const Context context = open();
    const ibv_device_attr attributes = context.attributes();
    DeviceFacts facts;
    facts.name = name();
    facts.provider = is_soft() ? "soft" : "system";
    facts.firmware =
        std::string(attributes.fw_ver, strnlen(attributes.fw_ver, sizeof attributes.fw_ver));
    facts.guid = be64toh(path_->get_device_guid(raw_));
    facts.port = context.usable_port();
    const ibv_port_attr port = context.port(facts.port);
    facts.port_active = port.state == IBV_PORT_ACTIVE;
    facts.link_layer = link_layer_name(port.link_layer);
    facts.lid = port.lid;
    facts.active_mtu = 128 << port.active_mtu;
    facts.max_queue_pairs = attributes.max_qp;
    facts.max_work_requests = attributes.max_qp_wr;
    facts.max_sge = attributes.max_sge;
    facts.max_completion_entries = attributes.max_cqe;
    facts.max_region_size = attributes.max_mr_size;
    if (is_soft()) {
        facts.description = soft::describe_mode(raw_);
    } else {
        facts.description = fmt::format("{}, {}", node_type_name(raw_), facts.link_layer);
    }
    try {
        facts.gid_index = context.choose_gid_index(facts.port);
        if (facts.gid_index >= 0) {
            facts.gid = text_of(context.gid(facts.port, facts.gid_index));
        }
    } catch (const base::Error&) {
        facts.gid_index = -1;  // Ethernet without an address: nothing to show
    }
    return facts;
}

Context::Context(Context&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)}, path_{other.path_} {}

Context& Context::operator=(Context&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(path_, other.path_);
    return *this;
}

Context::~Context() {
    if (raw_ == nullptr || is_parents(raw_)) return;
    note_closed(raw_);
    forget_kept(raw_);
    if (path_->close_device(raw_) != 0) {
        base::log(base::LogLevel::warn, "verbs", "close a device: {}", base::describe_errno(errno));
    }
}

bool Context::is_soft() const noexcept { return is_soft_path(*path_); }

std::optional<WireAddress> Context::wire() const noexcept {
    if (!is_soft()) return std::nullopt;
    const auto address = soft::wire_at(raw_, {});
    if (!address) return std::nullopt;
    return WireAddress{address->gid, address->gid_index, address->port};
}

void Context::take_arrivals(bool all) const noexcept {
    if (is_soft()) soft::take_arrivals(raw_, all);
}

bool Context::maps_remote() const noexcept {
    return path_->maps_remote != nullptr && path_->maps_remote(raw_);
}

ProtectionDomain Context::allocate_protection_domain() {
    auto slabs = std::make_shared<Slabs>();
    errno = 0;
    ibv_pd* pd = path_->alloc_pd(raw_);
    if (pd == nullptr) throw_call_failed("allocate a protection domain", std::string{name()});
    return ProtectionDomain{pd, *path_, std::move(slabs)};
}

ibv_device_attr Context::attributes() const {
    ibv_device_attr attributes{};
    if (const int error = path_->query_device(raw_, &attributes); error != 0) {
        base::throw_errno(error, "query the device", std::string{name()});
    }
    return attributes;
}

ibv_port_attr Context::port(std::uint8_t number) const {
    ibv_port_attr attributes{};
    if (const int error = path_->query_port(raw_, number, &attributes); error != 0) {
        base::throw_errno(error > 0 ? error : errno, "query a port",
                          fmt::format("port {} of {}", number, name()));
    }
    return attributes;
}

ibv_gid Context::gid(std::uint8_t port, int index) const {
    ibv_gid gid{};
    errno = 0;
    if (path_->query_gid(raw_, port, index, &gid) != 0) {
        throw_call_failed("query a GID",
                          fmt::format("index {} of port {} of {}", index, port, name()));
    }
    return gid;
}

std::uint8_t Context::usable_port() const {
    const int count = attributes().phys_port_cnt;
    for (int number = 1; number <= count; ++number) {
        const auto candidate = static_cast<std::uint8_t>(number);
        if (port(candidate).state == IBV_PORT_ACTIVE) return candidate;
    }
    return 1;
}

int Context::choose_gid_index(std::uint8_t number) const {
    const ibv_port_attr attributes = port(number);
    if (attributes.link_layer != IBV_LINK_LAYER_ETHERNET && attributes.lid != 0) return -1;
    std::optional<int> version_2, any;
    for (int index = 0; index < attributes.gid_tbl_len; ++index) {
        ibv_gid_entry entry{};
        const int error =
            path_->query_gid_entry(raw_, number, static_cast<std::uint32_t>(index), &entry);
        if (error == EOPNOTSUPP) {
            if (path_->query_gid(raw_, number, index, &entry.gid) != 0) continue;
            entry.gid_type = IBV_GID_TYPE_ROCE_V1;  // not known: the weakest guess
        } else if (error != 0) {
            continue;
        }
        if (is_zero(entry.gid)) continue;
        if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) {
            if (is_ipv4_mapped(entry.gid)) return index;
            if (!version_2) version_2 = index;
        }
        if (!any) any = index;
    }
    if (version_2) return *version_2;
    if (any) return *any;
    throw base::Error(base::ErrorCode::not_found, "choose a GID",
                      fmt::format("port {} of {}", number, name()),
                      "its GID table is empty, so peers cannot address it",
                      "give the network interface of the device an IP address and set it up");
}

}  // namespace millrace::verbs
