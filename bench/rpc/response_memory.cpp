#include "response_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <linux/mman.h>
#include <sys/mman.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Of the mapping that begins there: bytes that lie on huge pages that the system put together.
std::size_t huge_bytes_at(const void* begin) {
    std::ifstream maps{"/proc/self/smaps"};
    const std::string place = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(begin));
    bool is_here = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.find(" kB") == std::string::npos && line.find('-') != std::string::npos) {
            is_here = line.starts_with(place);
        } else if (is_here && line.starts_with("AnonHugePages:")) {
            std::istringstream number{line.substr(line.find(':') + 1)};
            std::size_t kilobytes = 0;
            number >> kilobytes;
            return kilobytes << 10;
        }
    }
    return 0;
}

}  // namespace

ResponseMemory::ResponseMemory(std::size_t bytes, Pages pages)
    : size_{bytes}, mapped_{(bytes + huge_page - 1) / huge_page * huge_page} {
    const auto map = [&](int more) {
        void* const at = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
        return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    };
    // Those that were set aside, or else those that the system puts together where it is asked to.
    if (pages == Pages::huge) memory_ = map(MAP_HUGETLB | MAP_HUGE_2MB | MAP_POPULATE);
    const bool are_set_aside = memory_ != nullptr;
    if (memory_ == nullptr) memory_ = map(0);
    if (memory_ == nullptr) {
        base::throw_errno(errno, "take memory for responses", fmt::format("{} bytes", bytes),
                          "choose less (--response-memory)");
    }
    if (pages != Pages::as_they_come && !are_set_aside) {
        (void)::madvise(memory_, mapped_, pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    std::memset(memory_, 1, mapped_);
    if (pages == Pages::huge && !are_set_aside && huge_bytes_at(memory_) < mapped_ / 4 * 3) {
        ::munmap(memory_, mapped_);
        throw base::Error{base::ErrorCode::unsupported, "take memory for responses",
                          fmt::format("{} bytes on huge pages", bytes),
                          "not offered: none are set aside, and the system puts none together",
                          "write to /proc/sys/vm/nr_hugepages, or madvise into "
                          "/sys/kernel/mm/transparent_hugepage/enabled"};
    }
}

ResponseMemory::~ResponseMemory() {
    if (memory_ != nullptr) ::munmap(memory_, mapped_);
}

std::size_t response_bytes_here(std::size_t wanted) {
    std::ifstream facts{"/proc/meminfo"};
    std::size_t available = 0;
    for (std::string word; facts >> word;) {
        if (word == "MemAvailable:") {
            facts >> available;
            break;
        }
    }
    return std::max(std::min(wanted, (available << 10) / 2), std::size_t{64} << 20);
}

}  // namespace millrace::bench
