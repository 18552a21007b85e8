// The files that a NIC's driver would have put under /sys and /dev, for the soft device: the kernel
// knows nothing of it, so what programs look for there is answered here. Called by
// routes_devices.cpp (ibv_read_sysfs_file) and, through `millrace_soft_device_files`, by the
// library that answers the C library's calls (preloaded/).
//
//   /dev/infiniband/uverbs_soft0                        a character device
//   /dev/infiniband/rdma_cm                             another (not where the kernel answers)
//   /sys/class/misc/rdma_cm/abi_version                 what librdmacm and that one speak
//   /sys/class/infiniband/soft0               -> the device's folder
//   /sys/class/infiniband_verbs/uverbs_soft0  -> its folder of verbs
//   /sys/bus/pci/devices/4d52:00:00.0         -> the PCI function
//   /sys/devices/pci4d52:00/4d52:00:00.0/     the PCI function: vendor, class, numa_node, …
//       infiniband/soft0/                     the device: node_guid, ports/1/…, device -> the
//       function infiniband_verbs/uverbs_soft0/        ibdev, abi_version, device -> the function
//       net/NAME                              -> the network interfaces that the GIDs belong to
//
// Four folders are shared with what the machine has itself: /dev/infiniband and three of /sys/class.
#pragma once

#include <cstddef>

#include "preloaded/answers.hpp"

namespace millrace::ibverbs {

/// True if `directory` is a folder of the soft device.
[[nodiscard]] bool is_device_folder(const char* directory) noexcept;

/// As ibv_read_sysfs_file: writes the file's text, zero terminated and without its newline, and
/// returns its length, or -1 with errno (ENOENT: there is no such file).
int read_device_file(const char* directory, const char* file, char* buffer,
                     std::size_t size) noexcept;

}  // namespace millrace::ibverbs
