// The library's log: levelled lines to standard error, written by a background queue so that no
// caller waits for a terminal. Off the hot path only; the hot path counts instead of logging.
//
// MILLRACE_LOG=trace|debug|info|warn|error|off (default warn). The queue's thread starts with the
// first line that is really written, so a process that never logs never has the thread.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace millrace::base {

enum class LogLevel : int { trace, debug, info, warn, error, off };

/// True if lines of `level` are written. Cheap (one relaxed load).
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;
/// Overrides MILLRACE_LOG.
void set_log_level(LogLevel level) noexcept;
/// Writes one line. `component` is the floor ("soft", "connect"). Thread-safe; never throws.
void log_line(LogLevel level, std::string_view component, std::string_view text) noexcept;
/// Waits (at most a second) until everything queued is written.
void flush_log() noexcept;

template <class... Args>
void log(LogLevel level, std::string_view component, fmt::format_string<Args...> format,
         Args&&... args) {
    if (log_enabled(level)) {
        log_line(level, component, fmt::format(format, std::forward<Args>(args)...));
    }
}

}  // namespace millrace::base
