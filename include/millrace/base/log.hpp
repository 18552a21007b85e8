// The library's own log: how its floors write a line. Levelled, to standard error, through a
// background queue so that no caller waits for a terminal; or to what the program put in its place
// (log_output.hpp). Off the hot path only; the hot path counts instead of logging. Not installed:
// it needs fmt, and programs have logs of their own.
//
// The queue's thread starts with the first line that is really written, so a process that never
// logs never has the thread.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/log_output.hpp"

namespace millrace::base {

/// Writes one line. `component` is the floor ("soft", "connect"). Thread-safe; never throws.
void log_line(LogLevel level, std::string_view component, std::string_view text) noexcept;

template <class... Args>
void log(LogLevel level, std::string_view component, fmt::format_string<Args...> format,
         Args&&... args) noexcept {
    if (!log_enabled(level)) return;
    try {
        log_line(level, component, fmt::format(format, std::forward<Args>(args)...));
    } catch (...) {  // there is no memory for the line: what it would have said, without whom
        const fmt::string_view text = format;
        log_line(level, component, {text.data(), text.size()});
    }
}

}  // namespace millrace::base
