// SIGINT and SIGTERM as a cancellation, and blocking system calls that cannot outlast them. For
// commands that copy between descriptors and channels.
#pragma once

#include "millrace/base/deadline.hpp"

namespace millrace::tools {

/// From its making on, SIGINT and SIGTERM request the cancellation, SIGPIPE is ignored (writes say
/// EPIPE), and a timer interrupts the making thread's blocking system calls with EINTR every
/// 250 ms, so that a loop around them can look at the cancellation and the peer. One at a time.
class Interruption {
  public:
    Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;
    ~Interruption();

  private:
    void* timer_ = nullptr;
};

/// Requested by SIGINT and SIGTERM.
[[nodiscard]] const base::Cancellation& interruption() noexcept;
/// The signal that came; 0: none.
[[nodiscard]] int interrupting_signal() noexcept;

}  // namespace millrace::tools
