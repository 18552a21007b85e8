// Tells the thread sanitizer what it cannot see: that what another process does follows from what
// this one did before it, and the other way round. The soft device has threads of one process
// execute the requests of another; without these calls such a thread seems to race with the one
// that gave the memory to the peer, or with the one that takes what the peer says is there. Called
// where something is told to a peer and where something is heard from it. Costs nothing elsewhere.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define MILLRACE_TELL_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MILLRACE_TELL_THREAD_SANITIZER 1
#endif
#endif

#if defined(MILLRACE_TELL_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>

#include "millrace/base/language.hpp"
#endif

namespace millrace::base {

#if defined(MILLRACE_TELL_THREAD_SANITIZER)
inline char the_other_processes = 0;
inline void telling_peers() noexcept { __tsan_release(&the_other_processes); }
inline void heard_from_peers() noexcept { __tsan_acquire(&the_other_processes); }
#else
inline void telling_peers() noexcept {}
inline void heard_from_peers() noexcept {}
#endif

}  // namespace millrace::base
