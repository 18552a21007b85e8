// `millrace demo`: real files as records through Millrace and through the kernel, side by side.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::tools {

struct DemoOptions {
    std::string path;         ///< empty: /usr/lib, at most 256 MiB of it
    std::uint64_t limit = 0;  ///< bytes; 0: 256 MiB of the default path, 1 GiB of any other
    std::uint32_t record_size = 1024;  ///< bytes, at most
    std::uint32_t rounds = 3;
    std::size_t ring_bytes = 4u << 20;  ///< per side
    std::string json_file;              ///< empty: none
    std::string only;                   ///< a transport's key; empty: all
};

/// Returns the exit status: 0 when every record of every run arrived as it was sent. Throws Error.
int run_demo(const DemoOptions& options);

}  // namespace millrace::tools
