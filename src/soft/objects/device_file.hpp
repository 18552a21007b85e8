// The file behind a context's cmd_fd: what another process that is handed the descriptor has to
// know to import from it. Written by opened_device.cpp through its mapping, which is the only one
// that can write: the file is sealed. Read by lender.cpp.
//
//     offset     content
//     0          DeviceFacts
//     4 KiB      protection domains: u32 x 65536, by handle: the domain's number, 0: none
//     260 KiB    device memory: MemoryPlace x 4096, by handle
//
// (Regions are found in the node's region table: a region's handle is its index there.) The file is
// sparse.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "layout/layout.hpp"
#include "system/descriptor.hpp"
#include "system/mapping.hpp"

namespace millrace::soft {

inline constexpr std::uint64_t device_file_magic = 0x656369766564726d;  // "mrdevice"
inline constexpr std::uint32_t domain_handles = 65536;                  ///< 0 is none
inline constexpr std::uint32_t memory_handles = 4096;

struct DeviceFacts {
    std::uint64_t magic;
    std::uint32_t version;  ///< layout_version
    std::uint32_t node_number;
    NodeIdentity identity;
    std::uint32_t mode_length;
    char mode[1024];  ///< as MILLRACE_SOFT_MODE says it
};

/// Where device memory lies: in which file, open as which descriptor of the owner.
struct MemoryPlace {
    std::uint64_t inode;  ///< 0: no such memory
    std::uint64_t device;
    std::uint64_t length;
    std::uint32_t descriptor;
    std::uint32_t reserved;
};
static_assert(sizeof(MemoryPlace) == 32);

inline constexpr std::uint64_t domain_table_offset = page_size;
inline constexpr std::uint64_t memory_table_offset =
    domain_table_offset + domain_handles * sizeof(std::uint32_t);
inline constexpr std::uint64_t device_file_size =
    memory_table_offset + memory_handles * sizeof(MemoryPlace);
static_assert(sizeof(DeviceFacts) <= page_size);

/// The owner's side. Its calls are made with the owner's lock.
class DeviceFile {
  public:
    /// Throws base::Error.
    DeviceFile(std::uint32_t node_number, const NodeIdentity& identity, std::string_view mode);

    [[nodiscard]] const Descriptor& descriptor() const noexcept { return file_; }
    void show_domain(std::uint32_t handle, std::uint32_t number) noexcept;
    void show_memory(std::uint32_t handle, const MemoryPlace& place) noexcept;

  private:
    Descriptor file_;
    Mapping mapping_;
};

// The reader's side: system calls, because a descriptor that is handed over may lead to anything.

/// nullopt: it is no such file, or one of another version.
[[nodiscard]] std::optional<DeviceFacts> read_device_facts(int file) noexcept;
/// The number of the protection domain; 0: there is none.
[[nodiscard]] std::uint32_t read_domain(int file, std::uint32_t handle) noexcept;
/// The handle of the protection domain with that number; 0: there is none.
[[nodiscard]] std::uint32_t find_domain(int file, std::uint32_t number) noexcept;
[[nodiscard]] std::optional<MemoryPlace> read_memory(int file, std::uint32_t handle) noexcept;

}  // namespace millrace::soft
