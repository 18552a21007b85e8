// Asks /proc/meminfo and the control group files (version 2 and 1).
#include "available_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace millrace::verbs {
namespace {

constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();

/// The number behind `key` in lines of "key value".
std::optional<std::uint64_t> value_of(const std::string& file, const std::string& key) {
    std::ifstream stream{file};
    std::string word;
    while (stream >> word) {
        std::uint64_t value;
        if (word == key && stream >> value) return value;
        stream.clear();
        stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return std::nullopt;
}

/// The number in a file of its own; nullopt also for "max".
std::optional<std::uint64_t> number_in(const std::string& file) {
    std::ifstream stream{file};
    std::uint64_t value;
    if (stream >> value) return value;
    return std::nullopt;
}

/// What is left below a control group's limit; file pages count as free, as they can be dropped.
std::uint64_t left_in(std::optional<std::uint64_t> limit, std::optional<std::uint64_t> used,
                      std::uint64_t file_pages) {
    if (!limit || !used) return unknown;
    const std::uint64_t held = *used > file_pages ? *used - file_pages : 0;
    return *limit > held ? *limit - held : 0;
}

std::uint64_t left_in_version_2(const std::string& folder) {
    const std::string statistics = folder + "/memory.stat";
    return left_in(number_in(folder + "/memory.max"), number_in(folder + "/memory.current"),
                   value_of(statistics, "inactive_file").value_or(0) +
                       value_of(statistics, "active_file").value_or(0));
}

std::uint64_t left_in_version_1(const std::string& folder) {
    const std::string statistics = folder + "/memory.stat";
    return left_in(number_in(folder + "/memory.limit_in_bytes"),
                   number_in(folder + "/memory.usage_in_bytes"),
                   value_of(statistics, "total_inactive_file").value_or(0) +
                       value_of(statistics, "total_active_file").value_or(0));
}

std::uint64_t left_in_machine() {
    const auto memory = value_of("/proc/meminfo", "MemAvailable:");
    if (!memory) return unknown;
    return (*memory + value_of("/proc/meminfo", "SwapFree:").value_or(0)) * 1024;
}

std::uint64_t least() {
    std::uint64_t result = left_in_machine();
    std::ifstream groups{"/proc/self/cgroup"};
    std::string line;
    while (std::getline(groups, line)) {
        const bool version_2 = line.starts_with("0::");
        const bool version_1 = line.find(":memory:") != std::string::npos;
        if (!version_2 && !version_1) continue;
        const std::string root = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        // Every group above limits as well. In a container the path may not exist below the root
        // it sees; the root itself then has the limit.
        std::string path = line.substr(line.rfind(':') + 1);
        for (;;) {
            const std::string folder = root + (path == "/" ? "" : path);
            result =
                std::min(result, version_2 ? left_in_version_2(folder) : left_in_version_1(folder));
            if (path.empty() || path == "/") break;
            path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
        }
    }
    return result;
}

}  // namespace

std::uint64_t available_memory() noexcept {
    try {
        return least();
    } catch (const std::exception&) {
        return unknown;
    }
}

}  // namespace millrace::verbs
