#include "doors/text.hpp"

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace millrace::kv {

std::string lowered(std::string_view text) {
    std::string small{text};
    for (char& letter : small) letter = lower(letter);
    return small;
}

std::optional<std::int64_t> parse_integer(std::string_view text) noexcept {
    const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
    if (digits.empty() || digits[0] < '0' || digits[0] > '9') return std::nullopt;
    if (digits[0] == '0' && text.size() != 1) return std::nullopt;
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

std::optional<long double> parse_float(std::string_view text) {
    constexpr std::size_t longest = 5 * 1024;
    if (text.empty() || text.size() >= longest) return std::nullopt;
    if (std::isspace(static_cast<unsigned char>(text[0])) != 0) return std::nullopt;
    const std::string ended{text};
    char* end = nullptr;
    errno = 0;
    const long double number = std::strtold(ended.c_str(), &end);
    if (end != ended.c_str() + ended.size()) return std::nullopt;
    if (errno == ERANGE && (std::isinf(number) || number == 0)) return std::nullopt;
    if (std::isnan(number)) return std::nullopt;
    return number;
}

std::string text_of_float(long double number) {
    constexpr std::size_t longest = 5 * 1024;  // 4,933 digits before the point
    std::string text(longest, '\0');
    const int length = std::snprintf(text.data(), text.size(), "%.17Lf", number);
    text.resize(static_cast<std::size_t>(length));
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
    return text == "-0" ? "0" : text;
}

namespace {

/// Of the class behind a bracket, which `pattern` is behind of then.
bool is_in_class(std::string_view& pattern, char letter) noexcept {
    const bool is_not = pattern.starts_with('^');
    if (is_not) pattern.remove_prefix(1);
    const auto value = static_cast<unsigned char>(letter);
    bool is_in = false;
    while (!pattern.empty() && pattern[0] != ']') {
        if (pattern[0] == '\\' && pattern.size() >= 2) {
            is_in |= pattern[1] == letter;
            pattern.remove_prefix(2);
        } else if (pattern.size() >= 3 && pattern[1] == '-') {
            auto first = static_cast<unsigned char>(pattern[0]);
            auto last = static_cast<unsigned char>(pattern[2]);
            if (first > last) std::swap(first, last);
            is_in |= first <= value && value <= last;
            pattern.remove_prefix(3);
        } else {
            is_in |= pattern[0] == letter;
            pattern.remove_prefix(1);
        }
    }
    if (!pattern.empty()) pattern.remove_prefix(1);
    return is_in != is_not;
}

/// One letter of the text, by what is at the front of the pattern; which is removed.
bool takes_letter(std::string_view& pattern, char letter) noexcept {
    if (pattern[0] == '\\' && pattern.size() >= 2)
        pattern.remove_prefix(1);
    else if (pattern[0] == '?') {
        pattern.remove_prefix(1);
        return true;
    } else if (pattern[0] == '[') {
        pattern.remove_prefix(1);
        return is_in_class(pattern, letter);
    }
    const bool is_same = pattern[0] == letter;
    pattern.remove_prefix(1);
    return is_same;
}

}  // namespace

bool matches_glob(std::string_view pattern, std::string_view text) noexcept {
    // The last star takes one letter more whenever what is behind it does not fit: an earlier one
    // need not, as the last one can take whatever lies between.
    std::optional<std::string_view> behind_star;
    std::string_view star_text;
    for (;;) {
        if (pattern.starts_with('*')) {
            while (pattern.starts_with('*')) pattern.remove_prefix(1);
            if (pattern.empty()) return true;
            behind_star = pattern;
            star_text = text;
            continue;
        }
        if (text.empty() && pattern.empty()) return true;
        if (!text.empty() && !pattern.empty() && takes_letter(pattern, text[0])) {
            text.remove_prefix(1);
            continue;
        }
        if (!behind_star || star_text.empty()) return false;
        star_text.remove_prefix(1);
        text = star_text;
        pattern = *behind_star;
    }
}

namespace {

bool is_blank(char letter) noexcept {
    return std::isspace(static_cast<unsigned char>(letter)) != 0;
}
int hex_digit(char letter) noexcept {
    const char small = lower(letter);
    if (small >= '0' && small <= '9') return small - '0';
    return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

/// The quoted part of a word at the front of `line`, behind its quote, to `letters`.
bool take_quoted(std::string_view& line, char quote, std::string& letters) {
    while (!line.empty()) {
        const char letter = line[0];
        line.remove_prefix(1);
        if (letter == quote) return line.empty() || is_blank(line[0]) || line[0] == '\0';
        if (letter != '\\' || line.empty() || (quote == '\'' && line[0] != '\'')) {
            letters += letter;
            continue;
        }
        const char escaped = line[0];
        if (quote == '"' && escaped == 'x' && line.size() >= 3 && hex_digit(line[1]) >= 0 &&
            hex_digit(line[2]) >= 0) {
            letters += static_cast<char>(hex_digit(line[1]) * 16 + hex_digit(line[2]));
            line.remove_prefix(3);
            continue;
        }
        line.remove_prefix(1);
        switch (quote == '"' ? escaped : '\0') {
            case 'n': letters += '\n'; break;
            case 'r': letters += '\r'; break;
            case 't': letters += '\t'; break;
            case 'b': letters += '\b'; break;
            case 'a': letters += '\a'; break;
            default: letters += escaped;
        }
    }
    return false;
}

}  // namespace

bool split_words(std::string_view line, std::string& letters,
                 std::vector<std::pair<std::uint32_t, std::uint32_t>>& words) {
    letters.clear();
    words.clear();
    line = line.substr(0, line.find('\0'));
    for (;;) {
        while (!line.empty() && is_blank(line[0])) line.remove_prefix(1);
        if (line.empty()) return true;
        const auto begin = static_cast<std::uint32_t>(letters.size());
        while (!line.empty() && !is_blank(line[0])) {
            const char letter = line[0];
            line.remove_prefix(1);
            if (letter != '"' && letter != '\'') {
                letters += letter;
            } else if (!take_quoted(line, letter, letters)) {
                return false;
            }
        }
        words.emplace_back(begin, static_cast<std::uint32_t>(letters.size()) - begin);
    }
}

}  // namespace millrace::kv
