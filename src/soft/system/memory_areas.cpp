// Implementation of memory_areas.hpp: /proc/self/maps and /proc/self/fd.
#include "system/memory_areas.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "millrace/base/detail/own_mappings.hpp"
#include "system/descriptor.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

struct Area {
    std::uint64_t begin;
    std::uint64_t end;
    char permissions[5];
    std::uint64_t offset;
    unsigned major_number;
    unsigned minor_number;
    std::uint64_t inode;
};

bool parse(const char* line, Area& area) noexcept {
    return std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &area.begin,
                       &area.end, area.permissions, &area.offset, &area.major_number,
                       &area.minor_number, &area.inode) == 7;
}

struct CloseFile {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
    void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

bool is_open_file(int descriptor, dev_t device, ino_t inode) noexcept {
    // Any descriptor of the program is looked at, whoever owns it, and whatever becomes of it
    // meanwhile: peers check again what they open. (statx also because the thread sanitizer takes
    // an fstat of another thread's descriptor for a mistake.)
    struct statx status {};
    if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &status) != 0) return false;
    if (!S_ISREG(status.stx_mode) ||
        makedev(status.stx_dev_major, status.stx_dev_minor) != device || status.stx_ino != inode) {
        return false;
    }
    return (::fcntl(descriptor, F_GETFL) & O_PATH) == 0;  // those cannot be asked for their seals
}

}  // namespace

std::optional<MappedRange> look_behind(std::uintptr_t address, std::size_t length) noexcept {
    const std::unique_ptr<std::FILE, CloseFile> maps{std::fopen("/proc/thread-self/maps", "re")};
    if (!maps) return std::nullopt;
    const std::uint64_t end = address + length;
    std::uint64_t reached = address;
    MappedRange range{.readable = true, .writable = true, .private_anonymous = true};
    char line[512];
    bool at_line_start = true;
    while (reached < end && std::fgets(line, sizeof line, maps.get()) != nullptr) {
        const bool starts_a_line = at_line_start;
        at_line_start = std::strchr(line, '\n') != nullptr;  // paths may be longer than `line`
        Area area{};
        if (!starts_a_line || !parse(line, area) || area.end <= reached) continue;
        if (area.begin > reached) break;
        const std::uint64_t offset = area.offset + (reached - area.begin);
        const dev_t device = makedev(area.major_number, area.minor_number);
        const bool shared_file = area.permissions[3] == 's' && area.inode != 0;
        if (reached == address) {
            range.one_shared_file = shared_file;
            range.device = device;
            range.inode = area.inode;
            range.file_offset = offset;
        } else if (!shared_file || device != range.device || area.inode != range.inode ||
                   offset != range.file_offset + (reached - address)) {
            range.one_shared_file = false;
        }
        range.private_anonymous = range.private_anonymous && area.permissions[3] == 'p' &&
                                  area.inode == 0 && std::strstr(line, "[stack") == nullptr;
        range.readable = range.readable && area.permissions[0] == 'r';
        range.writable = range.writable && area.permissions[1] == 'w';
        reached = area.end;
    }
    errno = 0;
    if (reached < end) return std::nullopt;
    return range;
}

std::optional<MappedRange> look_behind_own(std::uintptr_t address, std::size_t length,
                                           int& descriptor) noexcept {
    const auto own = base::find_own_mapping(reinterpret_cast<const void*>(address), length);
    struct stat status {};
    // A program may have closed what it does not know: then the kernel is asked.
    if (!own || ::fstat(own->descriptor, &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<std::uint64_t>(status.st_size) < own->file_offset ||
        static_cast<std::uint64_t>(status.st_size) - own->file_offset < length) {
        return std::nullopt;
    }
    descriptor = own->descriptor;
    MappedRange range{.readable = true, .writable = true, .one_shared_file = true};
    range.device = status.st_dev;
    range.inode = status.st_ino;
    range.file_offset = own->file_offset;
    return range;
}

int find_descriptor(dev_t device, ino_t inode, int hint) noexcept {
    if (hint >= 0 && is_open_file(hint, device, inode)) return hint;
    const std::unique_ptr<DIR, CloseFile> directory{::opendir("/proc/thread-self/fd")};
    if (!directory) return -1;
    while (const dirent* entry = ::readdir(directory.get())) {
        const auto number = number_of<int>(entry->d_name);
        if (number && is_open_file(*number, device, inode)) return *number;
    }
    return -1;
}

}  // namespace millrace::soft
