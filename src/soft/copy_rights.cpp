// Implementation of copy_rights.hpp.
#include "copy_rights.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace millrace::soft {
namespace {

/// kernel.yama.ptrace_scope; 0 where there is no Yama.
[[nodiscard]] int ptrace_scope() noexcept {
    try {
        std::ifstream file{"/proc/sys/kernel/yama/ptrace_scope"};
        int scope = 0;
        return file >> scope ? scope : 0;
    } catch (...) {
        return 0;
    }
}

}  // namespace

bool may_copy(pid_t pid) noexcept {
    // The rights are looked at before the address, at which nothing is mapped.
    char byte = 0;
    const iovec here{&byte, 1};
    const iovec there{nullptr, 1};
    return ::process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 ||
           (errno != EPERM && errno != EACCES && errno != ENOSYS);
}

bool others_may_not_copy() noexcept {
    if (::prctl(PR_GET_DUMPABLE) != 1) return true;
    static const int scope = ptrace_scope();
    return scope > 0 && ::geteuid() != 0;
}

}  // namespace millrace::soft
