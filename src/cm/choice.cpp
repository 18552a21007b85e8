#include "millrace/cm/choice.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "millrace/base/log.hpp"

namespace millrace::cm {

// The C library's own function may have been replaced by one that knows the soft device's files.
bool kernel_has_rdma_cm() noexcept {
    const int error = errno;
    const bool there = ::syscall(SYS_faccessat, AT_FDCWD, kernel_file, F_OK) == 0;
    errno = error;
    return there;
}

Server chosen_server() noexcept {
    const char* const set = std::getenv("MILLRACE_CM");
    const std::string_view said = set == nullptr ? "" : set;
    if (said == "soft") return Server::soft;
    if (said == "kernel") return Server::kernel;
    if (!said.empty()) {
        base::log(base::LogLevel::error, "cm",
                  "choose who answers librdmacm: MILLRACE_CM={}: there is none of that name; set "
                  "it to soft or kernel, or unset it",
                  said);
    }
    return kernel_has_rdma_cm() ? Server::kernel : Server::soft;
}

}  // namespace millrace::cm
