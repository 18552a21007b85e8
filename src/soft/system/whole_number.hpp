// Whole numbers as the kernel and settings write them.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace millrace::soft {

/// The number that all of `text` is.
template <class Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view text) noexcept {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

}  // namespace millrace::soft
