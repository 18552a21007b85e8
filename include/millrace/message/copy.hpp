// Copies of message payloads, without a call for the sizes of short messages. Used where frames are
// laid and taken.
#pragma once

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

/// At most 64 bytes: from both ends, so that the parts overlap.
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
    } else {
        for (std::size_t i = 0; i < size; ++i) into[i] = from[i];
    }
}

/// Any number of bytes.
[[gnu::always_inline]] inline void copy_any(std::byte* into, const std::byte* from,
                                            std::size_t size) noexcept {
    if (size <= 64) {
        copy_short(into, from, size);
    } else {
        std::memcpy(into, from, size);
    }
}

}  // namespace millrace::message
