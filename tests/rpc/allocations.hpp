// How often the tests' threads have allocated.
#pragma once

#include <cstdint>

namespace millrace::rpc {

/// By the calling thread.
[[nodiscard]] std::uint64_t allocations() noexcept;

}  // namespace millrace::rpc
