// Words and numbers as Redis reads them in commands. Used by the RESP door.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::kv {

[[nodiscard]] inline std::span<const std::byte> bytes_of_word(std::string_view word) noexcept {
    return std::as_bytes(std::span{word.data(), word.size()});
}
[[nodiscard]] inline std::string_view word_of(std::span<const std::byte> bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
[[nodiscard]] constexpr char lower(char letter) noexcept {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}
/// Words of commands have no case; `word` is in small letters.
[[nodiscard]] constexpr bool is_word(std::string_view given, std::string_view word) noexcept {
    if (given.size() != word.size()) return false;
    for (std::size_t i = 0; i < word.size(); ++i) {
        if (lower(given[i]) != word[i]) return false;
    }
    return true;
}
/// As much of a word as Redis repeats in an error, where it takes it for text of C.
[[nodiscard]] constexpr std::string_view repeated(
    std::string_view word, std::size_t most = std::string_view::npos) noexcept {
    return word.substr(0, word.find('\0')).substr(0, most);
}
[[nodiscard]] std::string lowered(std::string_view text);

/// Digits alone, without a leading zero, a plus, or a space; perhaps a minus. As Redis writes them.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text) noexcept;
/// What strtold reads, to the end and without a space before it.
[[nodiscard]] std::optional<long double> parse_float(std::string_view text);
/// 17 decimals at most, without zeros behind the last one that counts.
[[nodiscard]] std::string text_of_float(long double number);

/// Whether `text` matches a pattern of KEYS and SCAN: * ? [abc] [^a-c] and \ before what is meant
/// as it is. Takes time in proportion to both lengths' product at most.
[[nodiscard]] bool matches_glob(std::string_view pattern, std::string_view text) noexcept;

/// The words of an inline command, with quotes as in a shell: "\x41\n" and 'it\'s'. None: a quote
/// has no end, or something follows it at once.
[[nodiscard]] bool split_words(std::string_view line, std::string& letters,
                               std::vector<std::pair<std::uint32_t, std::uint32_t>>& words);

}  // namespace millrace::kv
