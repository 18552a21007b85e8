// Who answers librdmacm in programs that run on the drop-in: the kernel's rdma_cm where it has one,
// else the soft device's own. Called by the drop-in and by `millrace doctor`.
#pragma once

#include "millrace/base/language.hpp"

namespace millrace::cm {

enum class Server {
    kernel,
    soft,
};

/// What the kernel's is called.
inline constexpr const char* kernel_file = "/dev/infiniband/rdma_cm";

/// True if the kernel has it, whatever is preloaded here. A system call.
[[nodiscard]] bool kernel_has_rdma_cm() noexcept;

/// As MILLRACE_CM says: "soft" or "kernel"; without it, soft unless the kernel has rdma_cm. What
/// MILLRACE_CM says wrongly is logged, and as without it. Any thread.
[[nodiscard]] Server chosen_server() noexcept;

}  // namespace millrace::cm
