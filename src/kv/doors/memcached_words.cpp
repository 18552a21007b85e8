#include "doors/memcached_words.hpp"

#include <nettle/base64.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <limits>

namespace millrace::kv::memcached {
namespace {

/// As much of a word as may be a number, for functions of C.
class EndedWord {
  public:
    explicit EndedWord(std::string_view word) noexcept {
        *std::copy_n(word.data(), std::min(word.size(), sizeof letters_ - 1), letters_) = '\0';
    }
    [[nodiscard]] const char* get() const noexcept { return letters_; }
    [[nodiscard]] bool has_minus() const noexcept {
        return std::string_view{letters_}.find('-') != std::string_view::npos;
    }

  private:
    char letters_[64];
};

bool is_end_of_number(const char* begin, const char* end) noexcept {
    return errno != ERANGE && end != begin &&
           (*end == '\0' || std::isspace(static_cast<unsigned char>(*end)) != 0);
}

constexpr std::int64_t longest_delay = std::int64_t{60} * 60 * 24 * 30;

}  // namespace

std::optional<std::uint64_t> parse_unsigned(std::string_view word) noexcept {
    const EndedWord ended{word};
    char* end = nullptr;
    errno = 0;
    const std::uint64_t number = std::strtoull(ended.get(), &end, 10);
    if (!is_end_of_number(ended.get(), end)) return std::nullopt;
    constexpr std::uint64_t negative = std::uint64_t{1} << 63;
    if (number >= negative && ended.has_minus()) return std::nullopt;
    return number;
}

std::optional<std::int64_t> parse_signed(std::string_view word) noexcept {
    const EndedWord ended{word};
    char* end = nullptr;
    errno = 0;
    const std::int64_t number = std::strtoll(ended.get(), &end, 10);
    if (!is_end_of_number(ended.get(), end)) return std::nullopt;
    return number;
}

std::optional<std::uint32_t> parse_flags(std::string_view word) noexcept {
    const auto number = parse_unsigned(word);
    if (!number || *number > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    return static_cast<std::uint32_t>(*number);
}

bool is_key(std::string_view word) noexcept {
    if (word.empty() || word.size() > longest_key_word) return false;
    return std::ranges::none_of(word, [](char letter) {
        const auto value = static_cast<unsigned char>(letter);
        return value <= ' ' || value == 0x7f;
    });
}

bool DecodedKey::decode(std::string_view word) noexcept {
    size_ = 0;
    if (word.size() > longest_key_word) return false;
    base64_decode_ctx context;
    base64_decode_init(&context);
    std::array<std::uint8_t, BASE64_DECODE_LENGTH(longest_key_word)> decoded;
    std::size_t size = decoded.size();
    if (base64_decode_update(&context, &size, decoded.data(), word.size(), word.data()) == 0 ||
        base64_decode_final(&context) == 0) {
        return false;
    }
    std::copy_n(decoded.data(), size, bytes_.data());
    size_ = size;
    return size != 0;
}

std::string_view encode_key(std::string_view key, EncodedKey& to) noexcept {
    base64_encode_raw(to.data(), key.size(), reinterpret_cast<const std::uint8_t*>(key.data()));
    return {to.data(), BASE64_ENCODE_RAW_LENGTH(key.size())};
}

Time time_of(const DoorService& service, std::int64_t number) noexcept {
    if (number == 0) return std::nullopt;
    if (number < 0) return base::Clock::now() - std::chrono::seconds{1};
    if (number <= longest_delay) return base::Clock::now() + std::chrono::seconds{number};
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 1000;
    return service.of_unix(std::min(number, most) * 1000);
}

}  // namespace millrace::kv::memcached
