// How many system calls this library made on data and waiting paths, per thread: the figure
// "system calls per item" of the demo and the benchmarks. Counted where they are made, because no
// interface of the kernel counts them without slowing the program down.
#pragma once

#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::base {

namespace detail {
inline thread_local std::uint64_t system_calls = 0;
}

/// Called beside every system call on a data or waiting path. Costs an increment.
inline void count_system_call(std::uint64_t n = 1) noexcept { detail::system_calls += n; }

/// System calls counted in the calling thread so far.
[[nodiscard]] inline std::uint64_t system_calls_of_this_thread() noexcept {
    return detail::system_calls;
}

}  // namespace millrace::base
