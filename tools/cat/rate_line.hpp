// "1.52 GB  2.31 GB/s" on standard error, while a stream of unknown length flows.
#pragma once

#include <cstdint>

#include "millrace/base/clock.hpp"

namespace millrace::tools {

class RateLine {
  public:
    explicit RateLine(bool shown) noexcept;
    /// Redraws at most four times a second (on a terminal in place, else line by line every two
    /// seconds). Cheap enough for every chunk.
    void update(std::uint64_t bytes);
    /// The last line: total and mean rate.
    void finish(std::uint64_t bytes);

  private:
    bool shown_;
    bool terminal_;
    base::Clock::time_point start_;
    base::Clock::time_point last_;
    std::uint64_t last_bytes_ = 0;
};

}  // namespace millrace::tools
