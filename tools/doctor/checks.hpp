// What `millrace doctor` looks at. Each check tries the thing itself where it can, and reads a
// setting where it cannot.
#pragma once

#include <string>
#include <vector>

namespace millrace::tools::doctor {

enum class Verdict { ok, warn, fail };

struct Finding {
    std::string name{};  ///< "memlock"
    Verdict verdict = Verdict::ok;
    std::string found{};   ///< what is there
    std::string means{};   ///< what follows for programs; empty if all is well
    std::string remedy{};  ///< what to do; empty if nothing
};

/// Limits and memory of this process: memlock, open files, memory files, huge pages, cgroup.
[[nodiscard]] std::vector<Finding> check_limits();
/// What processes may do to each other: process_vm, pid namespace, membarrier; cores,
/// and whether other programs leave them free.
[[nodiscard]] std::vector<Finding> check_processes();
/// The network as the soft device's wire needs it: MTU, UDP port, buffers.
[[nodiscard]] std::vector<Finding> check_wire();
/// Kernel modules, devices and their GID tables.
[[nodiscard]] std::vector<Finding> check_devices();

}  // namespace millrace::tools::doctor
