// Which file lies behind memory that this library itself has mapped, without asking the kernel:
// told by who maps it (verbs/), asked by the soft device when it is registered, which for any other
// memory has to read /proc/self/maps and to look at descriptors. Thread-safe, and usable after
// fork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Within one shared mapping of a file, readable and writable.
struct OwnMapping {
    int descriptor = -1;            ///< of the file, open as long as the mapping stands here
    std::uint64_t file_offset = 0;  ///< of the first byte that was asked about
};

/// The mapping [data, data + size) of the file from `file_offset` on. Where there is no memory to
/// note it, it is as any other memory.
void add_own_mapping(const void* data, std::size_t size, int descriptor,
                     std::uint64_t file_offset) noexcept;
/// Before it is unmapped.
void remove_own_mapping(const void* data) noexcept;
/// nullopt: not all of [data, data + size) lies in one mapping that was added.
[[nodiscard]] std::optional<OwnMapping> find_own_mapping(const void* data,
                                                         std::size_t size) noexcept;

}  // namespace millrace::base
