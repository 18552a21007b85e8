// The device under test: MILLRACE_DEVICE, else the first one with an active port. Whatever
// libibverbs.so.1 the program was started with lists it: the system's or the drop-in.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "objects.hpp"

namespace millrace::conformance {

class Device {
  public:
    Device() {
        int count = 0;
        ibv_device** const list = made(ibv_get_device_list(&count), "ibv_get_device_list");
        const char* const wanted = std::getenv("MILLRACE_DEVICE");
        for (int i = 0; i < count && !context_; ++i) {
            if (wanted != nullptr && std::strcmp(wanted, ibv_get_device_name(list[i])) != 0) {
                continue;
            }
            Context opened{ibv_open_device(list[i])};
            if (opened && choose_port(opened.get())) context_ = std::move(opened);
        }
        ibv_free_device_list(list);
        if (!context_) {
            throw std::runtime_error(wanted == nullptr
                                         ? "no verbs device with an active port"
                                         : std::string{"no active verbs device "} + wanted);
        }
        done(ibv_query_device(context_.get(), &attributes_), "ibv_query_device");
        choose_gid();
    }

    [[nodiscard]] ibv_context* context() const noexcept { return context_.get(); }
    [[nodiscard]] const ibv_device_attr& attributes() const noexcept { return attributes_; }
    [[nodiscard]] bool can(ibv_device_cap_flags flag) const noexcept {
        return (attributes_.device_cap_flags & static_cast<unsigned>(flag)) != 0;
    }
    [[nodiscard]] std::uint8_t port() const noexcept { return port_; }
    [[nodiscard]] const ibv_port_attr& port_attributes() const noexcept { return port_attributes_; }
    [[nodiscard]] ibv_mtu mtu() const noexcept { return port_attributes_.active_mtu; }
    [[nodiscard]] std::uint32_t mtu_bytes() const noexcept { return 128U << mtu(); }
    [[nodiscard]] bool global() const noexcept { return gid_index_ >= 0; }
    [[nodiscard]] const ibv_gid& gid() const noexcept { return gid_; }

    /// The path from the port under test to `lid` / `gid`.
    [[nodiscard]] ibv_ah_attr path(std::uint16_t lid, const ibv_gid& gid) const noexcept {
        ibv_ah_attr path{};
        path.dlid = lid;
        path.port_num = port_;
        if (global()) {
            path.is_global = 1;
            path.grh.dgid = gid;
            path.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
            path.grh.hop_limit = 64;
        }
        return path;
    }
    /// The path to ourselves.
    [[nodiscard]] ibv_ah_attr loopback() const noexcept { return path(port_attributes_.lid, gid_); }

  private:
    bool choose_port(ibv_context* context) {
        ibv_device_attr device{};
        if (ibv_query_device(context, &device) != 0) return false;
        for (std::uint8_t port = 1; port <= device.phys_port_cnt; ++port) {
            if (ibv_query_port(context, port, &port_attributes_) != 0) continue;
            if (port_attributes_.state != IBV_PORT_ACTIVE) continue;
            port_ = port;
            return true;
        }
        return false;
    }
    // Ethernet needs a GID: the first one that maps an IPv4 address, else the first that is set.
    void choose_gid() {
        if (port_attributes_.link_layer != IBV_LINK_LAYER_ETHERNET) return;
        constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        for (int i = 0; i < port_attributes_.gid_tbl_len; ++i) {
            ibv_gid gid{};
            if (ibv_query_gid(context_.get(), port_, i, &gid) != 0) continue;
            if (gid.global.interface_id == 0 && gid.global.subnet_prefix == 0) continue;
            const bool ipv4 = std::memcmp(gid.raw, mapped, sizeof mapped) == 0;
            if (gid_index_ >= 0 && !ipv4) continue;
            gid_index_ = i;
            gid_ = gid;
            if (ipv4) return;
        }
    }

    Context context_;
    ibv_device_attr attributes_{};
    std::uint8_t port_ = 0;
    ibv_port_attr port_attributes_{};
    int gid_index_ = -1;
    ibv_gid gid_{};
};

/// What a device may lack. Where MILLRACE_MUST_SUPPORT names it ("uc,ud", or "all"), lacking it is
/// a failure and not a skip: a device that is said to have something cannot lose it unseen.
[[nodiscard]] inline bool must_support(std::string_view feature) {
    const char* const list = std::getenv("MILLRACE_MUST_SUPPORT");
    if (list == nullptr) return false;
    std::string_view rest{list};
    while (!rest.empty()) {
        const std::string_view entry = rest.substr(0, rest.find(','));
        if (entry == feature || entry == "all") return true;
        rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    }
    return false;
}

}  // namespace millrace::conformance

/// Ends the test because the device does not have `feature`; `why` names the query or the answer.
#define CONFORMANCE_LACKS(feature, why)                                               \
    do {                                                                              \
        if (::millrace::conformance::must_support(feature)) {                         \
            FAIL() << "this device must support " << (feature) << ", but: " << (why); \
        }                                                                             \
        GTEST_SKIP() << "no " << (feature) << ": " << (why);                          \
    } while (false)
