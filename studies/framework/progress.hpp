// What is being measured, how long it will take, and what was found so far, on standard error: a
// line that changes where that is a terminal, else a line for each tenth; and a line for each
// figure.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"

namespace millrace::bench {

class Progress {
  public:
    /// `costs`: what each step is guessed to take, in seconds.
    explicit Progress(std::vector<double> costs);
    /// Step `index` begins, the steps in their order.
    void before(std::size_t index, const std::string& what);
    /// A figure that was found.
    void told(const std::string& line) const;
    void over() const;

  private:
    bool terminal_;
    std::vector<double> costs_;
    double all_ = 0;
    double done_ = 0;
    std::size_t tenth_ = 0;
    base::Clock::time_point start_ = base::Clock::now();
};

}  // namespace millrace::bench
