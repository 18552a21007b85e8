// Tells the thread sanitizer what it cannot see: what another process writes follows from what this
// one told it before. Without it, a thread of ours that executes a peer's request seems to race
// with the thread that gave the memory back. Called where requests are posted and where a peer's
// are run; costs nothing elsewhere.
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
#endif

namespace millrace::soft {

#if defined(MILLRACE_TELL_THREAD_SANITIZER)
inline char the_other_processes = 0;
inline void telling_peers() noexcept { __tsan_release(&the_other_processes); }
inline void heard_from_peers() noexcept { __tsan_acquire(&the_other_processes); }
#else
inline void telling_peers() noexcept {}
inline void heard_from_peers() noexcept {}
#endif

}  // namespace millrace::soft
