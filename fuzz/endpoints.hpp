// What the fuzzers of queues and channels have in common: both ends in this process, on a fabric of
// its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "fuzz/target.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::fuzz {

inline constexpr unsigned most_steps = 120;

/// Of the soft device.
[[nodiscard]] inline std::shared_ptr<connect::Endpoint> open_on_own_fabric() {
    use_own_fabric();
    return connect::Endpoint::open("soft0");
}

/// An address at which nobody listens yet.
[[nodiscard]] inline std::string unused_address() {
    static std::atomic<std::uint64_t> number{0};
    return "unix:@fuzz-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

}  // namespace millrace::fuzz
