// What a process is beyond its number: readers of /proc. Called when a node is made and when a peer
// is connected.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "system/descriptor.hpp"

namespace millrace::soft {

/// A thread of the process through which the kernel lets it be looked into and copied: the first
/// one, whose number is the process's, unless that has ended before the others (pthread_exit in
/// `main`): it has neither memory nor descriptors then. 0: no thread has.
[[nodiscard]] pid_t living_thread_of(pid_t pid) noexcept;

/// Inode of this process's pid namespace; 0 if it cannot be found out.
[[nodiscard]] std::uint64_t own_pid_namespace() noexcept;

/// A descriptor that becomes readable when the process ends. Empty (errno) if there is none.
[[nodiscard]] Descriptor open_process(pid_t pid) noexcept;

}  // namespace millrace::soft
