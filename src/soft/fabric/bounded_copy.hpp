// A copy from or to another process whose pages may not come: by a thread of its own, so that the
// caller can give up. Called where RemotePages says that pages are missing; most of the time they
// are just cold. docs/soft/fences.md.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "fabric/fabric.hpp"

namespace millrace::soft {

/// Copies between `local` here and `remote` in process `pid`. `abandoned`: nothing moved for two
/// seconds, and the thread is still at it: it may yet write to, or read from, `remote`, at any time
/// until this process ends, but touches `local` no more. `busy`: no thread was to be had.
[[nodiscard]] CopyResult bounded_copy(std::byte* local, std::uint64_t remote, std::size_t bytes,
                                      bool writing, pid_t pid) noexcept;

/// The system calls alone, for as long as they take.
[[nodiscard]] CopyResult read_remote(std::byte* to, std::uint64_t from, std::size_t bytes,
                                     pid_t pid) noexcept;
[[nodiscard]] CopyResult write_remote(std::uint64_t to, const std::byte* from, std::size_t bytes,
                                      pid_t pid) noexcept;

}  // namespace millrace::soft
