#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "checks.hpp"
#include "millrace/base/error.hpp"

namespace millrace::tools::doctor {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

std::string size_text(std::uint64_t bytes) {
    return bytes < mib ? fmt::format("{} KiB", bytes / 1024) : fmt::format("{} MiB", bytes / mib);
}

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
    std::ifstream file{path};
    std::uint64_t value;
    if (file >> value) return value;
    return std::nullopt;
}

Finding memlock() {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    Finding finding{.name = "memlock"};
    if (limit.rlim_cur == RLIM_INFINITY) {
        finding.found = "unlimited";
    } else {
        finding.found = size_text(limit.rlim_cur);
        if (limit.rlim_cur < 64 * mib) {
            finding.verdict = Verdict::warn;
            finding.means =
                "a NIC cannot register more memory than that; the soft device locks none";
            finding.remedy =
                "ulimit -l unlimited (or memlock in /etc/security/limits.conf, LimitMEMLOCK= of "
                "the service, docker run --ulimit memlock=-1)";
        }
    }
    return finding;
}

Finding open_files() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    Finding finding{.name = "open files", .found = fmt::format("{}", limit.rlim_cur)};
    if (limit.rlim_cur < 1024) {
        finding.verdict = limit.rlim_cur < 32 ? Verdict::fail : Verdict::warn;
        finding.means = "each connection takes some 5 descriptors, and opening the device about 15";
        finding.remedy =
            fmt::format("ulimit -n 1024 or more (the hard limit here is {})", limit.rlim_max);
    }
    return finding;
}

/// All memory of connections lies in such files.
Finding memory_files() {
    Finding finding{.name = "memory files", .found = "memfd with seals works"};
    const int file = ::memfd_create("millrace-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int error = file < 0 ? errno : 0;
    if (error == 0) error = ::posix_fallocate(file, 0, 65536);
    if (error == 0 && ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) != 0) error = errno;
    if (error == 0) {
        void* memory = ::mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) {
            error = errno;
        } else {
            ::munmap(memory, 65536);
        }
    }
    if (file >= 0) ::close(file);
    if (error != 0) {
        finding.verdict = Verdict::fail;
        finding.found = "memfd with seals: " + base::describe_errno(error);
        finding.means = "no program can allocate memory for a connection";
        finding.remedy = "free memory, or let the container's seccomp profile allow memfd_create";
    }
    return finding;
}

Finding shared_memory_folder() {
    Finding finding{.name = "/dev/shm"};
    struct statvfs status {};
    if (::statvfs("/dev/shm", &status) != 0) {
        finding.found = base::describe_errno(errno);
    } else {
        finding.found = fmt::format("{} free of {}", size_text(status.f_bavail * status.f_frsize),
                                    size_text(status.f_blocks * status.f_frsize));
    }
    if (::access("/dev/shm", W_OK) != 0 || status.f_bavail * status.f_frsize < 64 * mib) {
        finding.verdict = Verdict::warn;
        finding.means = "Millrace does not use it; other communication libraries do";
        finding.remedy = "mount a larger one (docker run --shm-size=1g)";
    }
    return finding;
}

Finding huge_pages() {
    Finding finding{.name = "huge pages"};
    const auto reserved = number_in("/proc/sys/vm/nr_hugepages").value_or(0);
    std::string shared;
    std::ifstream file{"/sys/kernel/mm/transparent_hugepage/shmem_enabled"};
    std::getline(file, shared);
    const auto open = shared.find('['), close = shared.find(']');
    if (open != shared.npos && close != shared.npos) {
        shared = shared.substr(open + 1, close - open - 1);
    }
    finding.found = fmt::format("{} reserved, transparent ones for shared memory: {}", reserved,
                                shared.empty() ? "not there" : shared);
    if (reserved == 0 && (shared.empty() || shared == "never" || shared == "deny")) {
        finding.verdict = Verdict::warn;
        finding.means = "large rings use 4 KiB pages: more misses of the address cache";
        finding.remedy =
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, if rings are large";
    }
    return finding;
}

/// The group's folder, of version 2 or 1; a container usually sees its own as the root.
Finding container_memory() {
    Finding finding{.name = "container memory", .found = "no limit"};
    std::string group = "/";
    std::ifstream groups{"/proc/self/cgroup"};
    for (std::string line; std::getline(groups, line);) {
        if (line.starts_with("0::")) group = line.substr(3);
    }
    const std::filesystem::path root = "/sys/fs/cgroup";
    for (std::filesystem::path folder = root / group.substr(1);; folder = folder.parent_path()) {
        auto most = number_in(folder / "memory.max");
        auto used = number_in(folder / "memory.current");
        if (!most && folder == root) {
            most = number_in(root / "memory/memory.limit_in_bytes");
            used = number_in(root / "memory/memory.usage_in_bytes");
        }
        if (most && used && *most < (std::uint64_t{1} << 60)) {
            const std::uint64_t left = *most > *used ? *most - *used : 0;
            finding.found = fmt::format("{} used of {}", size_text(*used), size_text(*most));
            if (left < 256 * mib) {
                finding.verdict = Verdict::warn;
                finding.means = "the kernel kills a program whose rings do not fit";
                finding.remedy = "raise the limit (docker run --memory), or make rings smaller";
            }
            return finding;
        }
        if (folder == root || !folder.has_relative_path()) return finding;
    }
}

}  // namespace

std::vector<Finding> check_limits() {
    return {memlock(),    open_files(),      memory_files(), shared_memory_folder(),
            huge_pages(), container_memory()};
}

}  // namespace millrace::tools::doctor
