// Threads of the library do not keep a process that its program has left: after pthread_exit in
// `main`, the C library ends a process with its last thread, which would be one of ours. Called by
// those that the soft device starts, and by the log's.
#pragma once

#include "millrace/base/language.hpp"

namespace millrace::base {

/// While it lives, the thread that made it counts as the library's own.
class OwnThread {
  public:
    OwnThread() noexcept;
    ~OwnThread();
    OwnThread(const OwnThread&) = delete;
    OwnThread& operator=(const OwnThread&) = delete;
};

/// For an own thread, some times in a second, without a lock: ends the process by exit(0), as the C
/// library does, if the program has no thread any more. A system call while it has its first one.
void end_with_program() noexcept;

}  // namespace millrace::base
