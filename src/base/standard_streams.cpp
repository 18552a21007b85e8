// Descriptors above the standard streams, see the header.
#include "millrace/base/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace millrace::base {

int above_standard_streams(int number) noexcept {
    if (number < 0 || number > STDERR_FILENO) [[likely]]
        return number;
    const int copy = ::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    ::close(number);
    errno = error;
    return copy;
}

void open_standard_streams() noexcept {
    for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
        if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
        // The lowest that is free, so this one: those below it are open by now.
        if (::open("/dev/null", O_RDWR) < 0) return;
    }
}

}  // namespace millrace::base
