// Asking for a cache line early. Used by who stores to memory that another processor read last: the
// soft device's WRITEs and the ring's stores.
#pragma once

#include <cstddef>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Asks for the line of `at`, which need not be mapped, to store to it soon.
inline void fetch_to_write(const std::byte* at) noexcept {
#if defined(__x86_64__)
    // Not the builtin: for processors of unknown kind it is the fetch of a reader.
    asm volatile("prefetchw %0" : : "m"(*at));
#else
    __builtin_prefetch(at, 1);
#endif
}

}  // namespace millrace::base
