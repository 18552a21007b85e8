// See withheld_copies.hpp.
#include "withheld_copies.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

namespace millrace::test {

namespace {

[[nodiscard]] bool withhold(unsigned one_call, unsigned other_call) noexcept {
    sock_filter program[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 2, 0, one_call},
        {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, other_call},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
    };
    const sock_fprog filter{sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

bool withhold_copies() noexcept { return withhold(SYS_process_vm_readv, SYS_process_vm_writev); }

bool withhold_membarrier() noexcept { return withhold(SYS_membarrier, SYS_membarrier); }

bool withhold_pidfd() noexcept { return withhold(SYS_pidfd_open, SYS_pidfd_open); }

}  // namespace millrace::test
