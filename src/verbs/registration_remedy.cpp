// Registered memory is locked into RAM by most drivers, which is what fails first.
#include "registration_remedy.hpp"

#include <sys/resource.h>

#include <cerrno>

#include <fmt/format.h>

namespace millrace::verbs {

std::string registration_remedy(int error) {
    if (error == ENOMEM || error == EAGAIN || error == EPERM) {
        rlimit limit{};
        if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
            return fmt::format(
                "this process may lock {} KiB of memory (RLIMIT_MEMLOCK): raise it with "
                "'ulimit -l unlimited' or in /etc/security/limits.conf, or register less",
                limit.rlim_cur / 1024);
        }
        return "the memory lock limit is not the cause (it is unlimited): register less memory";
    }
    if (error == EFAULT) return "the whole range must be mapped, and writable where written to";
    return {};
}

}  // namespace millrace::verbs
