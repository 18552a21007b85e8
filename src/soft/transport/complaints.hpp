// How much mode `strict` says of a program's mistakes: not more lines than can be read. Called by
// failure_lines.cpp, which has the sentences.
#pragma once

#include <cstdint>
#include <string_view>

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

}  // namespace millrace::soft
