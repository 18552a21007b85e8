// A full fence that stands alone, for who stores and then looks at what another one stores and
// looks at the other way round.
#pragma once

#include <atomic>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Everything before it is globally visible before anything after it.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"  // the sanitizer does not model it: it may only miss races
#endif
    __atomic_thread_fence(__ATOMIC_SEQ_CST);  // the builtin: a warning about it is then here
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
}

}  // namespace millrace::base
