#include "system/file_of_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "system/process_identity.hpp"

namespace millrace::soft {

std::string descriptor_path(pid_t pid, int descriptor) {
    return fmt::format("/proc/{}/fd/{}", living_thread_of(pid), descriptor);
}

std::array<char, 32> folder_of_descriptors(pid_t pid) noexcept {
    std::array<char, 32> path;
    std::snprintf(path.data(), path.size(), "/proc/%d/fd", living_thread_of(pid));
    return path;
}

bool leads_to(pid_t pid, int descriptor, std::string_view wanted) {
    char target[320];
    const ssize_t length =
        ::readlink(descriptor_path(pid, descriptor).c_str(), target, sizeof target);
    return length >= 0 && std::string_view{target, static_cast<std::size_t>(length)} == wanted;
}

Descriptor open_file_of(pid_t pid, int descriptor, dev_t device, ino_t inode, int flags) {
    const Descriptor look{::open(descriptor_path(pid, descriptor).c_str(), O_PATH | O_CLOEXEC)};
    struct stat status {};
    if (!look || ::fstat(look.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_dev != device || status.st_ino != inode) {
        return {};
    }
    return Descriptor{
        ::open(fmt::format("/proc/thread-self/fd/{}", look.get()).c_str(), flags | O_CLOEXEC)};
}

std::uint64_t sealed_size(int file) noexcept {
    struct stat status {};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
    const int seals = ::fcntl(file, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return 0;
    return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace millrace::soft
