// Whether the operating system lets processes copy from and to each other's memory
// (process_vm_readv and process_vm_writev: ptrace rights, seccomp filters). Called when nodes meet.
#pragma once

#include <sys/types.h>

namespace millrace::soft {

/// May this process copy from the memory of process `pid`? Asks the kernel; copies nothing.
[[nodiscard]] bool may_copy(pid_t pid) noexcept;

/// Is it likely that processes of our user, which ask at some other time, may not copy ours? Not
/// dumpable, or Yama lets only ancestors look into a process.
[[nodiscard]] bool others_may_not_copy() noexcept;

/// Where the setting MILLRACE_PTRACER asks for it: tells Yama that every process of our user may
/// copy from and to our memory (and trace us). Throws `base::Error` if it is set to anything else
/// than 0 or 1. Called when a node is made.
void let_others_copy_if_asked();

}  // namespace millrace::soft
