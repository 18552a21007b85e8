// Devices and contexts: what RDMA devices this machine has, and how to open one.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/verbs/control_path.hpp"

namespace millrace::verbs {

class ProtectionDomain;
class CompletionChannel;
class CompletionQueue;

/// What a person wants to know of a device and its first usable port.
struct DeviceFacts {
    std::string name;
    std::string provider;     ///< "system" or "soft"
    std::string description;  ///< soft: mode and what it means; else node type and link layer
    std::string firmware;
    std::uint64_t guid = 0;  ///< host byte order
    std::uint8_t port = 0;   ///< first active port, or 1
    bool port_active = false;
    std::string link_layer;  ///< "InfiniBand", "Ethernet"
    std::uint16_t lid = 0;
    int active_mtu = 0;  ///< bytes
    int max_queue_pairs = 0;
    int max_work_requests = 0;
    int max_sge = 0;
    int max_completion_entries = 0;
    std::uint64_t max_region_size = 0;
    int gid_index = -1;  ///< the one connect/ would use; -1: none is needed or none there
    std::string gid;
};

/// The mode that the soft device runs in now, as far as both ends of a connection have to be in the
/// same, in words: "fast", "shaped, 10 Gb/s, 1 us one way", "strict". Any thread.
[[nodiscard]] std::string soft_mode();

/// How hosts elsewhere reach queue pairs of the soft device: over its wire, RoCEv2 in UDP.
struct WireAddress {
    ibv_gid gid{};
    int gid_index = -1;
    std::uint16_t port = 0;  ///< UDP
};
/// What is said of the soft device's wire: "" (it is off), "auto", or the address that is the only
/// one of this process's there. Any thread.
[[nodiscard]] std::string soft_wire();
/// Turns it on, as MILLRACE_WIRE=auto does, at this host's address `at` (IPv4-mapped; all zeros: at
/// one that is chosen), also where the device is open. False: MILLRACE_WIRE is "off". Throws Error.
/// Any thread.
bool turn_soft_wire_on(const ibv_gid& at);

class Context;

/// A device of this machine. A cheap value: devices live as long as the process.
class Device {
  public:
    [[nodiscard]] std::string_view name() const noexcept { return raw_->name; }
    [[nodiscard]] bool is_soft() const noexcept;
    /// Opens it. Throws Error (permission, system, resource_exhausted).
    [[nodiscard]] Context open() const;
    /// Opens it for a moment and asks. Throws as `open`.
    [[nodiscard]] DeviceFacts facts() const;
    [[nodiscard]] ibv_device* raw() const noexcept { return raw_; }
    [[nodiscard]] const ControlPath& control_path() const noexcept { return *path_; }

  private:
    friend std::vector<Device> devices();
    Device(ibv_device* raw, const ControlPath& path) noexcept : raw_{raw}, path_{&path} {}
    ibv_device* raw_;
    const ControlPath* path_;
};

/// All devices: the system's first, then the soft ones. Where the system's library is the soft
/// device's drop-in, that one's are left out: this program has its own.
[[nodiscard]] std::vector<Device> devices();

/// The device called `name`. Empty: MILLRACE_DEVICE if set, else the first system device with an
/// active port, else "soft0". Throws Error (not_found) listing what there is.
[[nodiscard]] Device find_device(std::string_view name = {});

/// An open device. Move-only; everything made from it must be destroyed before it.
class Context {
  public:
    Context(Context&& other) noexcept;
    Context& operator=(Context&& other) noexcept;
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
    ~Context();

    [[nodiscard]] ProtectionDomain allocate_protection_domain();
    [[nodiscard]] CompletionChannel create_completion_channel();
    /// At least `entries` entries. With a channel, the queue can be armed and slept on. Both must
    /// outlive the queue. Throws Error (resource_exhausted, invalid_argument).
    [[nodiscard]] CompletionQueue create_completion_queue(int entries,
                                                          CompletionChannel* channel = nullptr);

    [[nodiscard]] ibv_device_attr attributes() const;
    [[nodiscard]] ibv_port_attr port(std::uint8_t number) const;
    [[nodiscard]] ibv_gid gid(std::uint8_t port, int index) const;
    /// The first active port, or 1 when none is.
    [[nodiscard]] std::uint8_t usable_port() const;
    /// The GID index a connection through `port` should use: -1 where LIDs do (InfiniBand), else
    /// the first RoCE v2 IPv4-mapped entry, else the first RoCE v2 one, else the first non-zero
    /// one. Throws Error (not_found) when Ethernet has no GID.
    [[nodiscard]] int choose_gid_index(std::uint8_t port) const;

    [[nodiscard]] std::string_view name() const noexcept { return raw_->device->name; }
    [[nodiscard]] bool is_soft() const noexcept;
    /// How hosts elsewhere reach queue pairs of the soft device. Nothing: it has no wire.
    [[nodiscard]] std::optional<WireAddress> wire() const noexcept;
    /// Over the soft device's wire, requests arrive when somebody looks: who polls a completion
    /// queue, or a thread of the device, if nobody does. This looks, too: for who polls memory.
    /// With `all` what had come before the call is in memory when it returns. Elsewhere it does
    /// nothing.
    void take_arrivals(bool all) const noexcept;
    /// False: QueuePair::map_remote gives nothing here, whatever it is asked for.
    [[nodiscard]] bool maps_remote() const noexcept;
    [[nodiscard]] ibv_context* raw() const noexcept { return raw_; }
    [[nodiscard]] const ControlPath& control_path() const noexcept { return *path_; }

  private:
    friend class Device;
    Context(ibv_context* raw, const ControlPath& path) noexcept : raw_{raw}, path_{&path} {}
    ibv_context* raw_;
    const ControlPath* path_;
};

}  // namespace millrace::verbs
