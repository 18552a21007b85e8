// What responders take their responses from: memory of one size, on small pages or on huge ones.
#pragma once

#include <cstddef>
#include <span>

namespace millrace::bench {

enum class Pages {
    as_they_come,  ///< what the system gives
    small,         ///< 4 KiB, whatever the system would do
    huge,          ///< 2 MiB
};

/// Move-only. Touched, so that no response pays for it.
class ResponseMemory {
  public:
    /// Throws Error: unsupported, huge pages were asked for and the system gives none;
    /// resource_exhausted, it has no such memory.
    ResponseMemory(std::size_t bytes, Pages pages);
    ResponseMemory(const ResponseMemory&) = delete;
    ResponseMemory& operator=(const ResponseMemory&) = delete;
    ~ResponseMemory();
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {memory_, size_}; }

  private:
    std::byte* memory_ = nullptr;
    std::size_t size_ = 0;
    std::size_t mapped_ = 0;
};

/// At most `wanted`, and at most half of the memory that this machine has free; of 64 MiB at least.
[[nodiscard]] std::size_t response_bytes_here(std::size_t wanted);

}  // namespace millrace::bench
