#include "system/process_identity.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

#include "millrace/base/uncancelled.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {

std::optional<std::uint64_t> start_time_of(pid_t pid) noexcept {
    const base::Uncancelled held;
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const Descriptor file{::open(path, O_RDONLY | O_CLOEXEC)};
    char text[1024];
    const ssize_t length = file ? ::read(file.get(), text, sizeof text) : -1;
    if (length <= 0) return std::nullopt;
    // The name in field 2 may hold anything, parentheses too: count from the last one.
    std::string_view rest{text, static_cast<std::size_t>(length)};
    const auto name_end = rest.rfind(')');
    if (name_end == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(name_end + 1);
    for (int field = 3; field <= 22; ++field) {
        const auto begin = rest.find_first_not_of(' ');
        if (begin == std::string_view::npos) return std::nullopt;
        rest.remove_prefix(begin);
        if (field < 22)
            rest.remove_prefix(rest.find(' ') == rest.npos ? rest.size() : rest.find(' '));
    }
    return number_of<std::uint64_t>(rest.substr(0, rest.find(' ')));
}

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
