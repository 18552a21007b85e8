// What programs find when they read the soft device's files in sysfs through libibverbs: the
// kernel knows nothing of the device, so the few files that programs ask for are answered here.
// Called by routes_devices.cpp.
#pragma once

#include <cstddef>

namespace millrace::ibverbs {

/// True if `directory` is …/infiniband/<a soft device's name> or below it.
[[nodiscard]] bool is_soft_sysfs(const char* directory) noexcept;

/// As ibv_read_sysfs_file: writes the file's text, zero terminated and without its newline, and
/// returns its length, or -1 with errno (ENOENT: there is no such file).
int read_soft_sysfs(const char* directory, const char* file, char* buffer,
                    std::size_t size) noexcept;

}  // namespace millrace::ibverbs
