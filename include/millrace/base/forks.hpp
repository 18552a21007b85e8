// In which process one is: what a child made by fork must not share with its parent, descriptors
// above all, notes it when it is made, and compares.
#pragma once

#include <atomic>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

namespace detail {
inline std::atomic<std::uint32_t> forks{0};
}

/// From now on forks are counted. To be called before forks() is noted. Any thread.
void count_forks() noexcept;
/// How many forks that were counted lie between the first process and this one.
[[nodiscard]] inline std::uint32_t forks() noexcept {
    return detail::forks.load(std::memory_order_relaxed);
}

}  // namespace millrace::base
