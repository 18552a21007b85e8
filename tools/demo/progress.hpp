// A progress line on a terminal: share, rate, time left. Silent where output is not a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::tools {

class ProgressLine {
  public:
    /// `what` stands at the left; `total` in `unit`s of `scale` (1e6 and "MB", 1 and "items").
    ProgressLine(std::string what, std::uint64_t total, std::string unit, double scale);
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;
    /// Clears the line.
    ~ProgressLine();
    /// Redraws at most ten times a second.
    void update(std::uint64_t done);

  private:
    std::string what_;
    std::uint64_t total_;
    std::string unit_;
    double scale_;
    bool terminal_;
    bool drawn_ = false;
    std::int64_t start_ns_;
    std::int64_t last_ns_ = 0;
};

}  // namespace millrace::tools
