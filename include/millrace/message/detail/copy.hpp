// Copies of message payloads, without a call for the sizes of short messages. Used where frames are
// laid and taken.
//
//     message::copy_any(place.data(), payload.data(), payload.size());
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "millrace/base/language.hpp"

namespace millrace::message {

namespace detail {
template <class Word>
[[gnu::always_inline]] inline void copy_word(std::byte* into, const std::byte* from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof word);
    std::memcpy(into, &word, sizeof word);
}
using Lane [[gnu::vector_size(16)]] = std::uint64_t;
}  // namespace detail

/// One by one: both were just made, and one load of the two would wait for their stores.
[[gnu::always_inline]] inline void copy_two_words(
    std::byte* into, const std::array<std::uint64_t, 2>& words) noexcept {
    using detail::copy_word;
    copy_word<std::uint64_t>(into, reinterpret_cast<const std::byte*>(&words[0]));
    copy_word<std::uint64_t>(into + 8, reinterpret_cast<const std::byte*>(&words[1]));
}

inline constexpr std::size_t longest_short = 64;
/// At most that: from both ends, so that the parts overlap.
[[gnu::always_inline]] inline void copy_short(std::byte* into, const std::byte* from,
                                              std::size_t size) noexcept {
    using detail::copy_word;
    using detail::Lane;
    if (size >= 32) {
        copy_word<Lane>(into, from);
        copy_word<Lane>(into + 16, from + 16);
        copy_word<Lane>(into + size - 32, from + size - 32);
        copy_word<Lane>(into + size - 16, from + size - 16);
    } else if (size >= 16) {
        copy_word<Lane>(into, from);
        copy_word<Lane>(into + size - 16, from + size - 16);
    } else if (size >= 8) {
        copy_word<std::uint64_t>(into, from);
        copy_word<std::uint64_t>(into + size - 8, from + size - 8);
    } else if (size >= 4) {
        copy_word<std::uint32_t>(into, from);
        copy_word<std::uint32_t>(into + size - 4, from + size - 4);
    } else if (size >= 2) {
        copy_word<std::uint16_t>(into, from);
        copy_word<std::uint16_t>(into + size - 2, from + size - 2);
    } else if (size == 1) {
        into[0] = from[0];
    }
}

/// Any number of bytes.
[[gnu::always_inline]] inline void copy_any(std::byte* into, const std::byte* from,
                                            std::size_t size) noexcept {
    if (size <= longest_short) {
        copy_short(into, from, size);
    } else {
        std::memcpy(into, from, size);
    }
}

}  // namespace millrace::message
