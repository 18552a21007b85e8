// What a program decides about the library's log: from which level on, and where the lines go. They
// go to standard error unless it takes them itself.
//
// MILLRACE_LOG=trace|debug|info|warn|error|off (default warn).
#pragma once

#include <functional>
#include <string_view>

#include "millrace/base/error.hpp"

namespace millrace::base {

enum class LogLevel : int { trace, debug, info, warn, error, off };

/// The name of a level, as in MILLRACE_LOG ("warn").
[[nodiscard]] std::string_view name_of(LogLevel level) noexcept;

/// True if lines of `level` are written. Cheap (one relaxed load).
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;
/// Throws Error (invalid_argument) if MILLRACE_LOG names no level, unless set_log_level overrides
/// it. Opening a device asks.
void check_log_setting();
/// Overrides MILLRACE_LOG.
void set_log_level(LogLevel level) noexcept;

/// Takes one line: its level, the floor it comes from ("soft", "connect"), and its text without
/// time and line end. Called at once by the thread that has something to say, by several at a time,
/// so it should be quick; it must not call the library. What it throws is dropped.
using LogSink =
    std::function<void(LogLevel level, std::string_view component, std::string_view text)>;
/// From now on lines go to `sink` alone; empty: to standard error again. A call of the former one
/// may still be under way in another thread when this returns: what it uses must live on.
void set_log_sink(LogSink sink);

/// Waits (at most a second) until everything queued for standard error is written.
void flush_log() noexcept;

}  // namespace millrace::base
