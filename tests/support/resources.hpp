// What this process holds, counted: tests compare before and after. Used by the tests that repeat.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace millrace::test {

[[nodiscard]] inline std::size_t open_descriptors() {
    const std::filesystem::directory_iterator all{"/proc/self/fd"};
    return static_cast<std::size_t>(std::distance(all, std::filesystem::directory_iterator{}));
}

/// Mappings of files in memory, which is what is shared with peers. (Others come and go with the
/// allocator, and with sanitizers.)
[[nodiscard]] inline std::size_t shared_mappings() {
    std::ifstream maps{"/proc/self/maps"};
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) {
        if (line.find("/memfd:") != std::string::npos) ++count;
    }
    return count;
}

}  // namespace millrace::test
