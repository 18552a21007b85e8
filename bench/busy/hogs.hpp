// Programs that compute during a measurement, one on each of its two cores.
#pragma once

#include <chrono>
#include <vector>

#include <sys/types.h>

namespace millrace::bench {

/// Child processes that do nothing but use their core, until this goes or its process dies.
class Hogs {
  public:
    /// `on_and_off`: so long they compute, and so long they sleep, all at once. 0: they never
    /// sleep.
    explicit Hogs(std::chrono::nanoseconds on_and_off = std::chrono::nanoseconds::zero());
    ~Hogs();
    Hogs(const Hogs&) = delete;
    Hogs& operator=(const Hogs&) = delete;

  private:
    std::vector<pid_t> processes_;
};

}  // namespace millrace::bench
