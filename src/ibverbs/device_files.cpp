// See device_files.hpp.
#include "device_files.hpp"

#include <endian.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/cm/choice.hpp"
#include "millrace/soft/device.hpp"

namespace millrace::ibverbs {
namespace {

/// "MR" in the domain and as vendor: neither is anybody's.
constexpr std::string_view pci_root = "/sys/devices/pci4d52:00";
constexpr std::string_view pci_name = "4d52:00:00.0";
constexpr std::string_view pci_folder = "/sys/devices/pci4d52:00/4d52:00:00.0";

std::string guid_text(std::uint64_t guid) {
    return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff,
                       guid >> 16 & 0xffff, guid & 0xffff);
}

std::string gid_text(const ibv_gid& gid) {
    std::string text;
    for (int i = 0; i < 16; i += 2) {
        text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
    }
    return text;
}

/// All processors, as sysfs writes them: a mask of 32 bits each, the highest first.
std::string processor_mask(unsigned count) {
    std::string text;
    for (unsigned word = (count + 31) / 32; word-- > 0;) {
        const unsigned bits = std::min(count - word * 32, 32U);
        text += fmt::format("{:08x}{}", bits == 32 ? ~0U : (1U << bits) - 1, word == 0 ? "" : ",");
    }
    return text;
}

/// What is where, as it is at this moment.
class Tree {
  public:
    struct Node {
        FileKind kind = FileKind::folder;
        std::string text;  ///< of a file, with its newline; of a link: its target
    };
    using Nodes = std::map<std::string, Node, std::less<>>;

    Tree() {
        for (const char* folder :
             {"/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"}) {
            nodes_[folder] = {FileKind::shared_folder, {}};
        }
        nodes_[std::string{pci_root}];
        if (cm::chosen_server() == cm::Server::soft) add_connection_manager();
        int count = 0;
        ibv_device** devices = soft::device_list(&count);
        for (int i = 0; i < count; ++i) add(devices[i]);
    }

    [[nodiscard]] const Node* find(std::string_view path) const {
        const auto found = nodes_.find(path);
        return found == nodes_.end() ? nullptr : &found->second;
    }
    [[nodiscard]] const Nodes& nodes() const { return nodes_; }

  private:
    void folder(std::string_view path) { nodes_[std::string{path}]; }
    void file(std::string_view folder, std::string_view name, std::string text) {
        nodes_[fmt::format("{}/{}", folder, name)] = {FileKind::file, std::move(text) + "\n"};
    }
    void link(std::string path, std::string target) {
        nodes_[std::move(path)] = {FileKind::link, std::move(target)};
    }

    /// What librdmacm opens is answered by connection_manager.cpp; these are for who looks first.
    void add_connection_manager() {
        nodes_["/sys/class/misc"] = {FileKind::shared_folder, {}};
        nodes_[cm::kernel_file] = {FileKind::character_device, {}};
        folder("/sys/class/misc/rdma_cm");
        file("/sys/class/misc/rdma_cm", "abi_version", "4");
    }

    void add(ibv_device* device) {
        const std::string_view name = device->name;
        const std::string_view verbs_name = device->dev_name;
        ibv_port_attr port{};
        ibv_device_attr attributes{};
        static_cast<void>(soft::query_port(nullptr, 1, &port));
        static_cast<void>(soft::query_device(nullptr, &attributes));

        nodes_[fmt::format("/dev/infiniband/{}", verbs_name)] = {FileKind::character_device, {}};
        link(fmt::format("/sys/class/infiniband/{}", name),
             fmt::format("../../devices/pci4d52:00/{}/infiniband/{}", pci_name, name));
        link(fmt::format("/sys/class/infiniband_verbs/{}", verbs_name),
             fmt::format("../../devices/pci4d52:00/{}/infiniband_verbs/{}", pci_name, verbs_name));
        link(fmt::format("/sys/bus/pci/devices/{}", pci_name),
             fmt::format("../../../devices/pci4d52:00/{}", pci_name));
        add_pci_function(port.link_layer == IBV_LINK_LAYER_ETHERNET);

        const std::string verbs_parent = fmt::format("{}/infiniband_verbs", pci_folder);
        const std::string verbs = fmt::format("{}/{}", verbs_parent, verbs_name);
        folder(verbs_parent);
        folder(verbs);
        file(verbs, "ibdev", std::string{name});
        file(verbs, "abi_version", "1");
        link(verbs + "/device", fmt::format("../../../{}", pci_name));
        link(verbs + "/subsystem", "../../../../../class/infiniband_verbs");

        const std::string parent = fmt::format("{}/infiniband", pci_folder);
        const std::string own = fmt::format("{}/{}", parent, name);
        const std::string guid = guid_text(be64toh(soft::get_device_guid(device)));
        folder(parent);
        folder(own);
        file(own, "node_type", "1: CA");
        file(own, "node_guid", guid);
        file(own, "sys_image_guid", guid);
        file(own, "node_desc", soft::describe_mode(device));
        file(own, "fw_ver", attributes.fw_ver);
        file(own, "hw_rev", fmt::format("{:#x}", attributes.hw_ver));
        file(own, "hca_type", "millrace-soft");
        file(own, "board_id", "millrace-soft");
        file(own, "uevent", fmt::format("NAME={}", name));
        link(own + "/device", fmt::format("../../../{}", pci_name));
        link(own + "/subsystem", "../../../../../class/infiniband");
        folder(own + "/ports");
        add_port(own + "/ports/1", port);
    }

    void add_pci_function(bool ethernet) {
        const auto processors = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
        folder(pci_folder);
        file(pci_folder, "vendor", "0x4d52");
        file(pci_folder, "device", "0x0001");
        file(pci_folder, "subsystem_vendor", "0x4d52");
        file(pci_folder, "subsystem_device", "0x0001");
        file(pci_folder, "revision", "0x00");
        file(pci_folder, "class", ethernet ? "0x020000" : "0x020700");
        file(pci_folder, "uevent",
             fmt::format("PCI_CLASS={}\nPCI_ID=4D52:0001\nPCI_SLOT_NAME={}",
                         ethernet ? "20000" : "20700", pci_name));
        // Memory is near to whoever uses it: there is no node to name.
        file(pci_folder, "numa_node", "-1");
        file(pci_folder, "local_cpus", processor_mask(processors));
        file(pci_folder, "local_cpulist",
             processors == 1 ? std::string{"0"} : fmt::format("0-{}", processors - 1));
        for (const char* which : {"current", "max"}) {
            file(pci_folder, fmt::format("{}_link_speed", which), "16.0 GT/s PCIe");
            file(pci_folder, fmt::format("{}_link_width", which), "16");
        }
        link(fmt::format("{}/subsystem", pci_folder), "../../../bus/pci");
    }

    void add_port(const std::string& own, const ibv_port_attr& port) {
        const bool active = port.state == IBV_PORT_ACTIVE;
        folder(own);
        file(own, "lid", fmt::format("{:#x}", port.lid));
        file(own, "lid_mask_count", fmt::format("{}", port.lmc));
        file(own, "sm_lid", fmt::format("{:#x}", port.sm_lid));
        file(own, "sm_sl", fmt::format("{}", port.sm_sl));
        file(own, "cap_mask", fmt::format("{:#010x}", port.port_cap_flags));
        file(own, "state", active ? "4: ACTIVE" : "1: DOWN");
        file(own, "phys_state", active ? "5: LinkUp" : "3: Disabled");
        file(own, "rate", "100 Gb/sec (4X EDR)");
        file(own, "link_layer",
             port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
        folder(own + "/pkeys");
        for (int index = 0; index < port.pkey_tbl_len; ++index) {
            __be16 pkey = 0;
            if (soft::query_pkey(nullptr, 1, index, &pkey) != 0) continue;
            file(own + "/pkeys", fmt::format("{}", index), fmt::format("{:#06x}", be16toh(pkey)));
        }
        folder(own + "/gids");
        folder(own + "/gid_attrs");
        folder(own + "/gid_attrs/types");
        folder(own + "/gid_attrs/ndevs");
        for (int index = 0; index < port.gid_tbl_len; ++index) add_gid(own, index);
    }

    void add_gid(const std::string& port, int index) {
        const std::string number = fmt::format("{}", index);
        ibv_gid_entry entry{};
        const bool there =
            soft::query_gid_entry(nullptr, 1, static_cast<std::uint32_t>(index), &entry) == 0;
        file(port + "/gids", number, gid_text(entry.gid));  // an empty place reads as zeros
        if (!there) return;
        file(port + "/gid_attrs/types", number,
             entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
        char interface[IF_NAMESIZE] = {};
        if (entry.ndev_ifindex == 0 || if_indextoname(entry.ndev_ifindex, interface) == nullptr) {
            return;
        }
        file(port + "/gid_attrs/ndevs", number, interface);
        folder(fmt::format("{}/net", pci_folder));
        link(fmt::format("{}/net/{}", pci_folder, interface),
             fmt::format("/sys/class/net/{}", interface));
    }

    Nodes nodes_;
};

struct Found {
    FileKind kind = FileKind::elsewhere;
    std::string path;  ///< without links
    int error = 0;     ///< of `absent`
};

/// Walks as the kernel does, as far as the tree goes: outside it, names stand for themselves.
Found walk(const Tree& tree, std::string_view path, bool follow) {
    constexpr int most_links = 40;  // as the kernel
    if (path.empty() || path.front() != '/') return {};
    if (path.back() == '/') follow = true;
    std::string rest{path};
    std::string done;
    const Tree::Node* here = nullptr;
    bool entered = false;
    for (int links = 0; !rest.empty();) {
        const auto begin = rest.find_first_not_of('/');
        if (begin == std::string::npos) break;
        const auto end = std::min(rest.find('/', begin), rest.size());
        const std::string name = rest.substr(begin, end - begin);
        rest.erase(0, end);
        if (here != nullptr &&
            (here->kind == FileKind::file || here->kind == FileKind::character_device)) {
            return {FileKind::absent, {}, ENOTDIR};
        }
        if (name == ".") continue;
        if (name == "..") {
            if (here != nullptr) entered = true;  // the kernel may have no such folder to leave
            done.erase(std::min(done.rfind('/'), done.size()));
            here = tree.find(done);
            continue;
        }
        const std::string next = fmt::format("{}/{}", done, name);
        const Tree::Node* const node = tree.find(next);
        if (node == nullptr && here != nullptr && here->kind == FileKind::folder) {
            return {FileKind::absent, {}, ENOENT};
        }
        if (node != nullptr && node->kind != FileKind::shared_folder) entered = true;
        const bool last = rest.find_first_not_of('/') == std::string::npos;
        if (node != nullptr && node->kind == FileKind::link && (!last || follow)) {
            if (++links > most_links) return {FileKind::absent, {}, ELOOP};
            if (node->text.front() == '/') done.clear();
            rest = node->text + rest;
            here = tree.find(done);
            continue;
        }
        done = next;
        here = node;
    }
    if (done.empty()) done.push_back('/');
    if (here == nullptr) return {entered ? FileKind::moved : FileKind::elsewhere, done};
    return {here->kind, done};
}

FileKind find_file(const char* path, bool follow, char (&canonical)[PATH_MAX]) {
    try {
        const Found found = walk(Tree{}, path, follow);
        if (found.kind == FileKind::absent) errno = found.error;
        if (found.path.size() >= sizeof canonical) {
            errno = ENAMETOOLONG;
            return FileKind::absent;
        }
        std::memcpy(canonical, found.path.c_str(), found.path.size() + 1);
        return found.kind;
    } catch (const std::exception&) {
        errno = ENOMEM;
        return FileKind::absent;
    }
}

std::ptrdiff_t read_file(const char* canonical, char* buffer, std::size_t size) {
    try {
        const Tree tree;
        const Tree::Node* const node = tree.find(canonical);
        if (node == nullptr || (node->kind != FileKind::file && node->kind != FileKind::link)) {
            errno = EINVAL;
            return -1;
        }
        const std::size_t length = std::min(node->text.size(), size);
        std::memcpy(buffer, node->text.data(), length);
        return static_cast<std::ptrdiff_t>(length);
    } catch (const std::exception&) {
        errno = ENOMEM;
        return -1;
    }
}

bool folder_entry(const char* canonical, std::size_t index, char (&name)[NAME_MAX + 1],
                  FileKind* kind) {
    try {
        const Tree tree;
        const std::string prefix = std::string{canonical} + "/";
        for (auto at = tree.nodes().lower_bound(prefix);
             at != tree.nodes().end() && at->first.starts_with(prefix); ++at) {
            const std::string_view entry = std::string_view{at->first}.substr(prefix.size());
            if (entry.find('/') != std::string_view::npos || index-- > 0) continue;
            const std::size_t length = std::min<std::size_t>(entry.size(), NAME_MAX);
            std::memcpy(name, entry.data(), length);
            name[length] = '\0';
            *kind = at->second.kind;
            return true;
        }
    } catch (const std::exception&) {
        errno = ENOMEM;
    }
    return false;
}

}  // namespace

bool is_device_folder(const char* directory) noexcept {
    if (directory == nullptr) return false;
    char canonical[PATH_MAX];
    const int error = errno;
    const FileKind kind = find_file(directory, true, canonical);
    errno = error;
    return kind == FileKind::folder;
}

int read_device_file(const char* directory, const char* file, char* buffer,
                     std::size_t size) noexcept {
    char path[PATH_MAX];
    char canonical[PATH_MAX];
    char text[4096];
    const int length = std::snprintf(path, sizeof path, "%s/%s", directory, file);
    if (length < 0 || static_cast<std::size_t>(length) >= sizeof path ||
        find_file(path, true, canonical) != FileKind::file) {
        errno = ENOENT;
        return -1;
    }
    const std::ptrdiff_t all = read_file(canonical, text, sizeof text);
    if (all < 1) return -1;
    if (size == 0) return 0;
    const std::size_t shown = std::min(static_cast<std::size_t>(all) - 1, size - 1);
    std::memcpy(buffer, text, shown);
    buffer[shown] = '\0';
    return static_cast<int>(shown);
}

}  // namespace millrace::ibverbs

const millrace::ibverbs::DeviceFiles millrace_soft_device_files{
    millrace::ibverbs::find_file, millrace::ibverbs::read_file, millrace::ibverbs::folder_entry};
