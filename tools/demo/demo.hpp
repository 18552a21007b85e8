// `millrace demo`: real files as records through Millrace and through the kernel, side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line/json_output.hpp"

namespace millrace::tools {

struct DemoOptions {
    std::string path;  ///< empty: /usr/lib, at most 256 MiB of it
    std::optional<std::uint64_t>
        limit;                         ///< bytes; else 256 MiB of the default path, 1 GiB of others
    std::uint32_t record_size = 1024;  ///< bytes, at most
    std::uint32_t rounds = 3;
    std::size_t ring_bytes = 4u << 20;  ///< per side
    JsonOutput json;
    std::string only;                 ///< a transport's key; empty: all
    bool hosts = false;               ///< between two hosts, see demo/hosts.hpp
    bool network_namespaces = false;  ///< these
};

/// The keys that `only` may be.
[[nodiscard]] std::vector<std::string> demo_transports();

/// Throws Error for options that cannot be had together.
void check_demo(const DemoOptions& options);

/// Returns the exit status: 0 when every record of every run arrived as it was sent. Throws Error.
int run_demo(const DemoOptions& options);

}  // namespace millrace::tools
