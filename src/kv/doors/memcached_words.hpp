// Numbers, keys and times as memcached reads them in commands. Used by the memcached door.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "doors/door_service.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::kv::memcached {

inline constexpr std::size_t longest_key_word = 250;

/// As strtoull reads it, up to a blank: "+5", "007" and "12 apples" are numbers. None: it is no
/// number, or has more than 64 bits.
[[nodiscard]] std::optional<std::uint64_t> parse_unsigned(std::string_view word) noexcept;
/// Likewise, by strtoll.
[[nodiscard]] std::optional<std::int64_t> parse_signed(std::string_view word) noexcept;
/// Up to 32 bits.
[[nodiscard]] std::optional<std::uint32_t> parse_flags(std::string_view word) noexcept;

/// 1 to 250 bytes, none of which is a blank or a control character.
[[nodiscard]] bool is_key(std::string_view word) noexcept;

/// A key that was written in base64.
class DecodedKey {
  public:
    /// False: it is none.
    [[nodiscard]] bool decode(std::string_view word) noexcept;
    [[nodiscard]] std::string_view get() const noexcept { return {bytes_.data(), size_}; }

  private:
    std::array<char, longest_key_word> bytes_;
    std::size_t size_ = 0;
};
/// At most 4 bytes for 3.
using EncodedKey = std::array<char, 4 * ((longest_key_word + 2) / 3)>;
[[nodiscard]] std::string_view encode_key(std::string_view key, EncodedKey& to) noexcept;

using Time = std::optional<base::Clock::time_point>;

/// When an item is over: of a number up to 30 days, so many seconds from now on; of a greater one,
/// that second of Unix time; of a negative one, already. None: 0, never.
[[nodiscard]] Time time_of(const DoorService& service, std::int64_t number) noexcept;

}  // namespace millrace::kv::memcached
