// How cache lines go between processors, as far as it decides what to do with them. Used by the
// receiving ends of rings and channels.
#pragma once

#include "millrace/base/language.hpp"

namespace millrace::base {

/// Whether a reader of lines that another processor fills should store to each when it is done with
/// it. On AMD's processors a line that was only read stays with its writer, too, shared; there a
/// fetch to write (prefetch.hpp) does nothing, and each store to it has to wait until the reader's
/// copy is gone, one line after the other. One that the reader has stored to is the reader's alone:
/// the writer fetches such lines ahead, many at once. Measured in docs/performance.md.
[[nodiscard]] inline bool readers_take_lines() noexcept {
#if defined(__x86_64__)
    static const bool amd = [] {
        __builtin_cpu_init();
        return __builtin_cpu_is("amd") != 0;
    }();
    return amd;
#else
    return false;
#endif
}

}  // namespace millrace::base
