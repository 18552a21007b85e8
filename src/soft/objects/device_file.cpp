#include "objects/device_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "millrace/base/error.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace millrace::soft {
namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

template <class Value>
[[nodiscard]] bool read_at(int file, std::uint64_t offset, Value& value) noexcept {
    return ::pread(file, &value, sizeof value, static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(sizeof value);
}

}  // namespace

DeviceFile::DeviceFile(std::uint32_t node_number, const NodeIdentity& identity,
                       std::string_view mode)
    : file_{::memfd_create("millrace-device", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
    if (file_ && ::ftruncate(file_.get(), static_cast<off_t>(device_file_size)) == 0) {
        mapping_ = Mapping{file_.get(), 0, device_file_size, PROT_READ | PROT_WRITE};
    }
    // Before Linux 5.1 those who are handed it can write to it.
    if (!mapping_ || (::fcntl(file_.get(), F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) != 0 &&
                      ::fcntl(file_.get(), F_ADD_SEALS, seals) != 0)) {
        base::throw_errno(errno, "open the soft device", "the file of its command descriptor");
    }
    DeviceFacts facts{};
    facts.version = layout_version;
    facts.node_number = node_number;
    facts.identity = identity;
    // A mode that is too long to be told is told as none: nothing is imported from it.
    facts.mode_length = static_cast<std::uint32_t>(mode.size());
    if (mode.size() <= sizeof facts.mode) std::memcpy(facts.mode, mode.data(), mode.size());
    facts.magic = device_file_magic;
    std::memcpy(mapping_.memory(), &facts, sizeof facts);
}

void DeviceFile::show_domain(std::uint32_t handle, std::uint32_t number) noexcept {
    auto* const table = reinterpret_cast<std::uint32_t*>(mapping_.memory() + domain_table_offset);
    std::atomic_ref{table[handle]}.store(number, std::memory_order_relaxed);
}

void DeviceFile::show_memory(std::uint32_t handle, const MemoryPlace& place) noexcept {
    auto* const table = reinterpret_cast<MemoryPlace*>(mapping_.memory() + memory_table_offset);
    table[handle] = place;
}

std::optional<DeviceFacts> read_device_facts(int file) noexcept {
    struct stat status {};
    DeviceFacts facts;
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || !read_at(file, 0, facts) ||
        facts.magic != device_file_magic || facts.version != layout_version ||
        facts.mode_length > sizeof facts.mode) {
        return std::nullopt;
    }
    return facts;
}

std::uint32_t read_domain(int file, std::uint32_t handle) noexcept {
    std::uint32_t number = 0;
    if (handle == 0 || handle >= domain_handles ||
        !read_at(file, domain_table_offset + handle * sizeof number, number)) {
        return 0;
    }
    return number;
}

std::uint32_t find_domain(int file, std::uint32_t number) noexcept {
    std::array<std::uint32_t, 1024> numbers;
    for (std::uint32_t first = 0; first < domain_handles && number != 0;
         first += static_cast<std::uint32_t>(numbers.size())) {
        if (!read_at(file, domain_table_offset + first * sizeof(std::uint32_t), numbers)) break;
        for (std::uint32_t i = 0; i < numbers.size(); ++i) {
            if (numbers[i] == number) return first + i;
        }
    }
    return 0;
}

std::optional<MemoryPlace> read_memory(int file, std::uint32_t handle) noexcept {
    MemoryPlace place{};
    if (handle == 0 || handle >= memory_handles ||
        !read_at(file, memory_table_offset + handle * sizeof place, place) || place.inode == 0) {
        return std::nullopt;
    }
    return place;
}

}  // namespace millrace::soft
