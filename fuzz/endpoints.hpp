// What the fuzzers of queues and channels have in common: both ends in this process, on a fabric of
// its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "millrace/connect/link.hpp"

namespace millrace::fuzz {

inline constexpr unsigned most_steps = 120;

/// Of the soft device, quiet unless MILLRACE_LOG says something else.
[[nodiscard]] inline std::shared_ptr<connect::Endpoint> open_on_own_fabric() {
    ::setenv("MILLRACE_FABRIC", ("fuzz-" + std::to_string(::getpid())).c_str(), 1);
    if (std::getenv("MILLRACE_LOG") == nullptr) ::setenv("MILLRACE_LOG", "off", 1);
    return connect::Endpoint::open("soft0");
}

/// An address at which nobody listens yet.
[[nodiscard]] inline std::string unused_address() {
    static std::atomic<std::uint64_t> number{0};
    return "unix:@fuzz-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

}  // namespace millrace::fuzz
