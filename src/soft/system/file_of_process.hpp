// What another process of this user has open, by way of /proc. Nothing that it says is believed
// that is not checked.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "system/descriptor.hpp"

namespace millrace::soft {

/// Where /proc shows it, as long as any thread of the process lives.
[[nodiscard]] std::string descriptor_path(pid_t pid, int descriptor);
/// The folder of all. Allocates nothing, as a bell is opened when it is rung.
[[nodiscard]] std::array<char, 32> folder_of_descriptors(pid_t pid) noexcept;
/// Whether /proc says that the descriptor leads there.
[[nodiscard]] bool leads_to(pid_t pid, int descriptor, std::string_view wanted);
/// Opens the file behind another process's descriptor if it is the regular file expected. Looks at
/// it before opening: opening may have effects when it is something else.
[[nodiscard]] Descriptor open_file_of(pid_t pid, int descriptor, dev_t device, ino_t inode,
                                      int flags);
/// How large the file is, now and for ever; 0: it may shrink, or is none.
[[nodiscard]] std::uint64_t sealed_size(int file) noexcept;

}  // namespace millrace::soft
