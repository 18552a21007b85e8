// See numbers.hpp.
#include "numbers.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace millrace::tools {
namespace {

constexpr std::string_view units = "kmgtpe";  ///< each 1024 times the one before

/// All of `digits`, and nothing else: no sign, no blank, no base.
std::optional<std::uint64_t> whole_number(std::string_view digits) {
    std::uint64_t number = 0;
    const char* const end = digits.data() + digits.size();
    const auto [behind, error] = std::from_chars(digits.data(), end, number);
    if (error != std::errc{} || behind != end) return std::nullopt;
    return number;
}

/// By how many bits the unit moves a number. "": 0.
std::optional<unsigned> shift_of(std::string_view unit) {
    if (unit.empty() || unit == "b") return 0;
    const std::size_t at = units.find(unit.front());
    const std::string_view rest = unit.substr(1);
    if (at == units.npos || !(rest.empty() || rest == "b" || rest == "i" || rest == "ib")) {
        return std::nullopt;
    }
    return static_cast<unsigned>(10 * (at + 1));
}

std::optional<std::uint64_t> number_of_bytes(std::string_view text) {
    const std::size_t behind = std::min(text.find_first_not_of("0123456789"), text.size());
    const auto number = whole_number(text.substr(0, behind));
    const auto shift = shift_of(CLI::detail::to_lower(std::string{text.substr(behind)}));
    if (!number || !shift || *number > std::numeric_limits<std::uint64_t>::max() >> *shift) {
        return std::nullopt;
    }
    return *number << *shift;
}

/// As short as it can be said: "8m".
std::string said_short(std::uint64_t bytes) {
    std::string unit;
    for (const char next : units) {
        if (bytes == 0 || bytes % 1024 != 0) break;
        bytes /= 1024;
        unit = next;
    }
    return std::to_string(bytes) + unit;
}

/// Of what `read` makes a number, if that is in the range.
template <class Number, class Read>
CLI::Validator between(Number least, Number most, std::string range, std::string kind, Read read) {
    return {[=](std::string& text) -> std::string {
                const std::optional<Number> number = read(text);
                if (!number || !(*number >= least && *number <= most)) {
                    return fmt::format("'{}' is not a {}, {}", text, kind, range);
                }
                text = fmt::format("{}", *number);
                return {};
            },
            range};
}

}  // namespace

CLI::Validator whole_between(std::uint64_t least, std::uint64_t most) {
    return between(least, most, fmt::format("from {} to {}", least, most), "whole number",
                   whole_number);
}

CLI::Validator bytes_between(std::uint64_t least, std::uint64_t most) {
    return between(least, most, fmt::format("from {} to {}", said_short(least), said_short(most)),
                   "number of bytes", number_of_bytes);
}

CLI::Validator fraction_between(double least, double most) {
    return between(least, most, fmt::format("from {:.15g} to {:.15g}", least, most), "number",
                   [](const std::string& text) -> std::optional<double> {
                       double number = 0;
                       if (!CLI::detail::lexical_cast(text, number) || !std::isfinite(number)) {
                           return std::nullopt;
                       }
                       return number;
                   });
}

}  // namespace millrace::tools
