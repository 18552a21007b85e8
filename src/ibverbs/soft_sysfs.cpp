// See soft_sysfs.hpp.
#include "soft_sysfs.hpp"

#include <endian.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/soft/device.hpp"

namespace millrace::ibverbs {
namespace {

struct Place {
    ibv_device* device = nullptr;
    std::string_view below;  ///< the path below the device's directory, without leading slash
};

Place find(std::string_view directory) {
    constexpr std::string_view parent = "/infiniband/";
    const auto at = directory.rfind(parent);
    if (at == std::string_view::npos) return {};
    std::string_view rest = directory.substr(at + parent.size());
    const auto end = std::min(rest.find('/'), rest.size());
    int count = 0;
    ibv_device** devices = soft::device_list(&count);
    for (int i = 0; i < count; ++i) {
        if (rest.substr(0, end) == devices[i]->name) {
            rest.remove_prefix(std::min(end + 1, rest.size()));
            return {devices[i], rest};
        }
    }
    return {};
}

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

/// Takes a number off the front of "1/lid". nullopt: there is none.
std::optional<unsigned> take_number(std::string_view& path) {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), number);
    if (error != std::errc{}) return std::nullopt;
    path.remove_prefix(static_cast<std::size_t>(end - path.data()));
    if (!path.empty() && path.front() == '/') path.remove_prefix(1);
    return number;
}

bool take(std::string_view& path, std::string_view prefix) {
    if (!path.starts_with(prefix)) return false;
    path.remove_prefix(prefix.size());
    return true;
}

std::optional<std::string> port_file(ibv_context* context, std::uint8_t port,
                                     std::string_view path) {
    ibv_port_attr attributes{};
    if (soft::query_port(context, port, &attributes) != 0) return std::nullopt;
    if (path == "lid") return fmt::format("{:#x}", attributes.lid);
    if (path == "sm_lid") return fmt::format("{:#x}", attributes.sm_lid);
    if (path == "state") {
        return attributes.state == IBV_PORT_ACTIVE ? "4: ACTIVE" : "1: DOWN";
    }
    if (path == "phys_state") {
        return attributes.state == IBV_PORT_ACTIVE ? "5: LinkUp" : "3: Disabled";
    }
    if (path == "link_layer") {
        return attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
    }
    if (take(path, "pkeys/")) {
        __be16 pkey = 0;
        const auto index = take_number(path);
        if (!index || soft::query_pkey(context, port, static_cast<int>(*index), &pkey) != 0) {
            return std::nullopt;
        }
        return fmt::format("{:#06x}", be16toh(pkey));
    }
    const bool type = take(path, "gid_attrs/types/");
    if (type || take(path, "gids/")) {
        ibv_gid_entry entry{};
        const auto index = take_number(path);
        if (!index || soft::query_gid_entry(context, port, *index, &entry) != 0) {
            return std::nullopt;
        }
        if (!type) return gid_text(entry.gid);
        return entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1";
    }
    return std::nullopt;
}

std::optional<std::string> device_file(ibv_device* device, std::string_view path) {
    if (path == "node_type") return "1: CA";
    if (path == "node_guid" || path == "sys_image_guid") {
        return guid_text(be64toh(soft::get_device_guid(device)));
    }
    if (path == "hca_type" || path == "board_id") return "millrace-soft";
    if (path == "node_desc") return soft::describe_mode(device);

    ibv_context* context = soft::open_device(device);
    if (context == nullptr) return std::nullopt;
    std::optional<std::string> text;
    if (path == "fw_ver") {
        ibv_device_attr attributes{};
        if (soft::query_device(context, &attributes) == 0) text = attributes.fw_ver;
    } else if (take(path, "ports/")) {
        if (const auto port = take_number(path); port && *port >= 1 && *port <= 255) {
            text = port_file(context, static_cast<std::uint8_t>(*port), path);
        }
    }
    soft::close_device(context);
    return text;
}

}  // namespace

bool is_soft_sysfs(const char* directory) noexcept {
    return directory != nullptr && find(directory).device != nullptr;
}

int read_soft_sysfs(const char* directory, const char* file, char* buffer,
                    std::size_t size) noexcept {
    const Place place = find(directory);
    std::string path{place.below};
    if (!path.empty() && path.back() != '/') path += '/';
    path += file;
    const auto text = device_file(place.device, path);
    if (!text) {
        errno = ENOENT;
        return -1;
    }
    if (size == 0) return 0;
    const std::size_t length = std::min(text->size(), size - 1);
    std::memcpy(buffer, text->data(), length);
    buffer[length] = '\0';
    return static_cast<int>(length);
}

}  // namespace millrace::ibverbs
