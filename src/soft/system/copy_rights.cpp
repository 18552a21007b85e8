#include "system/copy_rights.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"

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

/// The process that has let all others of its user copy: a child made by fork has not.
std::atomic<pid_t> let_others_copy{0};

}  // namespace

void let_others_copy_if_asked() {
    const char* const set = std::getenv("MILLRACE_PTRACER");
    const std::string_view value = set != nullptr ? set : "";
    if (value.empty() || value == "0") return;
    if (value != "1") {
        throw base::Error{base::ErrorCode::invalid_argument, "join the soft device's fabric",
                          fmt::format("MILLRACE_PTRACER='{}'", value), "it is 0 or 1",
                          "set it to 1 to let all processes of this user copy from and to this "
                          "process's memory under Yama, or unset it"};
    }
    if (::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) == 0) {
        let_others_copy.store(::getpid(), std::memory_order_relaxed);
        if (const int scope = ptrace_scope(); scope > 1) {
            base::log(
                base::LogLevel::warn, "soft",
                "MILLRACE_PTRACER=1 changes nothing here: kernel.yama.ptrace_scope is {}, and "
                "only under 1 can a process let others copy",
                scope);
        }
    } else if (errno != EINVAL) {  // that says that there is no Yama, which refuses nothing then
        base::log(base::LogLevel::warn, "soft", "MILLRACE_PTRACER=1: the system refuses it: {}",
                  base::describe_errno(errno));
    }
}

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
    if (scope == 1 && let_others_copy.load(std::memory_order_relaxed) == ::getpid()) return false;
    return scope > 0 && ::geteuid() != 0;
}

}  // namespace millrace::soft
