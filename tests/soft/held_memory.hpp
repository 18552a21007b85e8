// Memory that this process holds now. Used by the tests of many queue pairs.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace millrace::test {

/// Bytes that this process's node memory takes.
[[nodiscard]] inline std::uint64_t node_bytes() {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        std::error_code error;
        const auto target = std::filesystem::read_symlink(entry.path(), error).string();
        struct stat status {};
        const bool of_node = target.find("millrace-node:") != std::string::npos ||
                             target.find("millrace-blocks:") != std::string::npos;
        if (of_node && stat(entry.path().c_str(), &status) == 0) {
            bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
        }
    }
    return bytes;
}

/// Bytes of private memory that it takes.
[[nodiscard]] inline std::uint64_t private_bytes() {
    std::ifstream status{"/proc/self/status"};
    std::string word;
    while (status >> word) {
        if (word != "RssAnon:") continue;
        std::uint64_t kilobytes = 0;
        status >> kilobytes;
        return kilobytes * 1024;
    }
    return 0;
}

}  // namespace millrace::test
