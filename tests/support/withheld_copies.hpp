// Takes from this process, and from all that it starts, the right to copy from and to other
// processes' memory, as a container's filter or Yama does it.
#pragma once

namespace millrace::test {

/// False: the kernel has no filters here. Cannot be taken back.
[[nodiscard]] bool withhold_copies() noexcept;

/// The same of membarrier(2), as of a program that puts itself into a sandbox when it has begun.
[[nodiscard]] bool withhold_membarrier() noexcept;

/// The same of pidfd_open(2), which valgrind 3.19 and Linux before 5.3 do not have either.
[[nodiscard]] bool withhold_pidfd() noexcept;

/// The environment variable that makes every test program begin with it.
inline constexpr const char* withhold_copies_setting = "MILLRACE_TEST_WITHHOLD_COPIES";

}  // namespace millrace::test
