#include "system/process_identity.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "millrace/base/detail/uncancelled.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {

pid_t living_thread_of(pid_t pid) noexcept {
    const base::Uncancelled held;
    char path[64];
    const auto has_memory = [&path] {
        char target[1];
        return ::readlink(path, target, sizeof target) >= 0 || errno != ENOENT;
    };
    std::snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (has_memory()) return pid;
    std::snprintf(path, sizeof path, "/proc/%d/task", pid);
    const std::unique_ptr<DIR, int (*)(DIR*)> threads{::opendir(path), &::closedir};
    while (const dirent* const entry = threads ? ::readdir(threads.get()) : nullptr) {
        const auto thread = number_of<pid_t>(entry->d_name);
        if (!thread || *thread == pid) continue;
        std::snprintf(path, sizeof path, "/proc/%d/task/%d/exe", pid, *thread);
        if (has_memory()) return *thread;
    }
    return 0;
}

std::uint64_t own_pid_namespace() noexcept {
    struct stat status {};
    return ::stat("/proc/thread-self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

Descriptor open_process(pid_t pid) noexcept {
    return Descriptor{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
}

}  // namespace millrace::soft
