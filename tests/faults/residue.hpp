// What processes may leave behind in the system, and what this one holds. Used by the tests that
// kill and repeat.
#pragma once

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/resources.hpp"

namespace millrace::faults {

/// Names of nodes of the soft device that are bound now, of one fabric.
[[nodiscard]] inline std::vector<std::string> nodes_of(std::string_view fabric) {
    std::vector<std::string> names;
    std::ifstream sockets{"/proc/net/unix"};
    const std::string part = "/" + std::string{fabric} + "/";
    for (std::string line; std::getline(sockets, line);) {
        const auto at = line.find("@millrace/");
        if (at == std::string::npos || line.find(part, at) == std::string::npos) continue;
        // A bound name, not a connection to it: flag 0x10000 says that it listens.
        if (line.find(" 00010000 ") != std::string::npos) names.push_back(line.substr(at));
    }
    return names;
}

[[nodiscard]] inline std::vector<std::string> entries_of(const char* folder) {
    std::vector<std::string> names;
    DIR* const handle = opendir(folder);
    if (handle == nullptr) return names;
    while (const dirent* entry = readdir(handle)) names.emplace_back(entry->d_name);
    closedir(handle);
    return names;
}

/// Files in /dev/shm with our name.
[[nodiscard]] inline std::vector<std::string> shared_memory_files() {
    std::vector<std::string> names = entries_of("/dev/shm");
    std::erase_if(
        names, [](const std::string& name) { return name.find("millrace") == std::string::npos; });
    return names;
}

using test::open_descriptors;
using test::shared_mappings;

/// In KiB: a field of /proc/self/status.
[[nodiscard]] inline std::size_t status_field(std::string_view name) {
    std::ifstream status{"/proc/self/status"};
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name)) return std::stoul(line.substr(name.size() + 1));
    }
    return 0;
}

}  // namespace millrace::faults
