#include "fabric/node_owner.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

#include "fabric/fabric_names.hpp"
#include "layout/block_layout.hpp"
#include "millrace/base/clock.hpp"
#include "system/file_of_process.hpp"
#include "system/mapping.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {

bool may_complain_of_node(std::uint32_t number) noexcept {
    static std::array<std::atomic<std::uint64_t>, max_node_number + 1> said{};
    static const std::uint64_t interval = base::ticks_in(std::chrono::seconds{2});
    const std::uint64_t now = base::ticks();
    const std::uint64_t last = said[number].load(std::memory_order_relaxed);
    if (last != 0 && now - last < interval) return false;
    said[number].store(now, std::memory_order_relaxed);
    return true;
}

std::string link_to_tables(std::string_view fabric, std::uint32_t number) {
    return "/memfd:" + tables_name(fabric, number) + " (deleted)";
}

namespace {
/// Whether it is that process's own node, and not one that it holds for another's.
bool is_owner_of_tables(pid_t pid, int descriptor, std::uint32_t number) {
    const Descriptor file{::open(descriptor_path(pid, descriptor).c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file || sealed_size(file.get()) < tables_size) return false;
    const Mapping first{file.get(), 0, page_size, PROT_READ};
    if (!first) return false;
    const auto& facts = *reinterpret_cast<const NodeHeader*>(first.memory());
    return load_once(facts.magic) == node_magic && load_once(facts.node_number) == number &&
           load_once(facts.pid) == pid;
}
}  // namespace

pid_t find_owner(std::string_view fabric, std::uint32_t number) {
    static std::array<std::atomic<std::uint64_t>, max_node_number + 1> missed{};
    static const std::uint64_t interval = base::ticks_in(std::chrono::milliseconds{250});
    const std::uint64_t last = missed[number].load(std::memory_order_relaxed);
    if (last != 0 && base::ticks() - last < interval) return 0;
    const std::string wanted = link_to_tables(fabric, number);
    using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;
    const Folder processes{::opendir("/proc"), &::closedir};
    while (const dirent* process = processes ? ::readdir(processes.get()) : nullptr) {
        const pid_t pid = number_of<pid_t>(process->d_name).value_or(0);
        struct stat status {};
        if (pid <= 0 || ::fstatat(::dirfd(processes.get()), process->d_name, &status, 0) != 0 ||
            status.st_uid != ::geteuid()) {
            continue;
        }
        const auto folder = folder_of_descriptors(pid);
        const Folder descriptors{::opendir(folder.data()), &::closedir};
        while (const dirent* entry = descriptors ? ::readdir(descriptors.get()) : nullptr) {
            const auto descriptor = number_of<int>(entry->d_name);
            if (!descriptor || !leads_to(pid, *descriptor, wanted)) continue;
            if (is_owner_of_tables(pid, *descriptor, number)) return pid;
        }
    }
    missed[number].store(base::ticks(), std::memory_order_relaxed);
    return 0;
}

pid_t pid_of_owner(int connection, std::string_view fabric, std::uint32_t number) {
    ucred owner{};
    socklen_t length = sizeof owner;
    const bool known = ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &owner, &length) == 0;
    if (known && owner.uid == ::geteuid() && owner.pid <= 0) {
        complain_of_node(
            number, base::LogLevel::warn,
            "{} lives in another pid namespace, its process has no number here: cannot look "
            "into it; let both run in one (containers: --pid=host or --pid=container:NAME)",
            describe_node(fabric, number));
        return 0;
    }
    if (!known || owner.uid != ::geteuid()) {
        complain_of_node(number, base::LogLevel::warn,
                         "{} is held by user {} (process {}), we are user {}: not to be trusted",
                         describe_node(fabric, number), owner.uid, owner.pid, ::geteuid());
        return 0;
    }
    return owner.pid;
}

}  // namespace millrace::soft
