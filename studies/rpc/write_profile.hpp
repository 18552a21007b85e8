// `millrace bench rpc --profile FILE`: what each design of calls does on a device, as a profile
// (millrace/rpc/profile.hpp) by which a client may choose one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace millrace::bench {

struct ProfileOptions {
    std::string file;
    std::string device = "soft0";
    std::vector<std::string> modes{};  ///< of the soft device; empty: fast and a link
    std::vector<std::size_t> response_bytes{64, 1024, 4096, 16384};
    std::vector<std::size_t> clients{1, 8, 24};
    int repeats = 3;  ///< runs of each point, of which the median counts
};

/// Throws Error. Exit status 0.
int write_profile(const ProfileOptions& options);

}  // namespace millrace::bench
