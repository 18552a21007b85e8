#include "system/bells.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "millrace/base/detail/uncancelled.hpp"
#include "system/file_of_process.hpp"

namespace millrace::soft {

std::shared_ptr<const Descriptor> Bells::open(pid_t pid, int descriptor) noexcept {
    const base::Uncancelled held;
    if (descriptor < 0) return nullptr;
    char name[16];
    std::snprintf(name, sizeof name, "%d", descriptor);
    struct stat now {};
    const auto is_there = [&] { return folder_ && ::fstatat(folder_.get(), name, &now, 0) == 0; };
    if (!is_there()) {
        // The first time, or its first thread has ended, by which the folder was found.
        folder_ = Descriptor{
            ::open(folder_of_descriptors(pid).data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
        if (!is_there()) return nullptr;
    }
    if (!S_ISFIFO(now.st_mode)) return nullptr;
    if (const auto known = bells_.find(descriptor); known != bells_.end()) {
        const Bell& bell = known->second;
        auto pipe = bell.pipe.lock();
        if (pipe && bell.device == now.st_dev && bell.inode == now.st_ino) return pipe;
    }
    if (bells_.size() >= sweep_at_) {
        std::erase_if(bells_, [](const auto& bell) { return bell.second.pipe.expired(); });
        sweep_at_ = std::max(fewest_swept, 2 * bells_.size());
    }

    // The number stands in memory that other processes write to. A bell is the only pipe that its
    // process has open for both reading and writing (new_bell): a wrong number must not lead to a
    // pipe of the program, whose reader would find our byte there (its standard output, say).
    struct stat link {};
    constexpr mode_t both = S_IRUSR | S_IWUSR;
    if (::fstatat(folder_.get(), name, &link, AT_SYMLINK_NOFOLLOW) != 0 ||
        (link.st_mode & both) != both) {
        return nullptr;
    }
    // For reading, too: then a write can never meet a pipe without a reader and raise SIGPIPE.
    Descriptor pipe{::openat(folder_.get(), name, O_RDWR | O_NONBLOCK | O_CLOEXEC)};
    struct stat opened {};
    if (!pipe || ::fstat(pipe.get(), &opened) != 0 || !S_ISFIFO(opened.st_mode)) return nullptr;
    try {
        auto& bell = bells_[descriptor];
        auto shared = std::make_shared<const Descriptor>(std::move(pipe));
        bell = Bell{shared, opened.st_dev, opened.st_ino};
        return shared;
    } catch (const std::bad_alloc&) {
        // The caller is about to ring it, and its owner may sleep until then.
        [[maybe_unused]] const ssize_t rung = ::write(pipe.get(), "", 1);
        return nullptr;
    }
}

}  // namespace millrace::soft
