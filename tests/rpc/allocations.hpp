// How often the tests' threads have allocated; and memory that is short.
#pragma once

#include <cstdint>

namespace millrace::rpc {

/// By the calling thread.
[[nodiscard]] std::uint64_t allocations() noexcept;

/// While it lives, one allocation of the calling thread throws std::bad_alloc: the one behind
/// `others`.
class FailingAllocation {
  public:
    explicit FailingAllocation(std::uint64_t others) noexcept;
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;
    /// It has thrown.
    [[nodiscard]] bool has_failed() const noexcept;
};

}  // namespace millrace::rpc
