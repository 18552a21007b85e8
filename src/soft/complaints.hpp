// What mode `strict` says about a program's mistakes: a line of the log each, and not more than
// can be read. Called where the mistake is found; in mode `fast` only when a connection is made.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>

namespace millrace::soft {

/// Each kind has its own allowance of lines.
enum class Mistake : std::uint8_t {
    buffer_changed,
    memory_gone,
    remote_key,
    local_key,
    receive,
    state,
    way,
    count
};

/// True if a line about this kind may be said now: the first eight, then one a second.
[[nodiscard]] bool may_complain(Mistake kind) noexcept;
/// Says it at level error. `text` is completed by how many like it were left out.
void say_complaint(Mistake kind, std::string_view text) noexcept;

template <class... Args>
void complain(Mistake kind, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (!may_complain(kind)) return;
    try {
        say_complaint(kind, fmt::format(format, std::forward<Args>(args)...));
    } catch (const std::exception&) {  // a message less
    }
}

}  // namespace millrace::soft
