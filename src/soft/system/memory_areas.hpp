// What lies behind a range of this process's memory, as the kernel sees it.
// Called when a region is registered.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace millrace::soft {

struct MappedRange {
    bool readable = false;           ///< all of it
    bool writable = false;           ///< all of it
    bool private_anonymous = false;  ///< all of it is a program's plain memory, and no stack
    bool one_shared_file = false;    ///< all of it is one piece of one shared file mapping
    dev_t device = 0;
    ino_t inode = 0;
    std::uint64_t file_offset = 0;  ///< of the first byte
};

/// Looks at [address, address + length). nullopt: not all of it is mapped, or (errno) /proc cannot
/// be read. The answer is as old as the call.
[[nodiscard]] std::optional<MappedRange> look_behind(std::uintptr_t address,
                                                     std::size_t length) noexcept;

/// The same of memory that this library mapped (base/detail/own_mappings.hpp), and its descriptor,
/// at a cost that does not grow with what else is mapped or open. nullopt: it is no longer mapped.
[[nodiscard]] std::optional<MappedRange> look_behind_own(std::uintptr_t address, std::size_t length,
                                                         int& descriptor) noexcept;

/// The number of an open descriptor of that file in this process; -1 if there is none. `hint` is
/// tried first.
[[nodiscard]] int find_descriptor(dev_t device, ino_t inode, int hint) noexcept;

}  // namespace millrace::soft
