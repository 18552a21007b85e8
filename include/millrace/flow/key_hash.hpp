// A number for a key of any type, by which it finds its place in a table and its consumer among
// those of a FanOut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "millrace/base/language.hpp"

namespace millrace::flow {

namespace detail {

/// The finaliser of MurmurHash3: every bit of a key has a say in every bit of the answer.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t key) noexcept {
    key = (key ^ key >> 33) * 0xff51afd7ed558ccd;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53;
    return key ^ key >> 33;
}

}  // namespace detail

/// A number for a key. An integer or enumeration is its own; of other types without padding all
/// bytes count, and the number is the same in every process of one kind of machine; for the rest
/// std::hash is asked. Specialise it for a key that has none of these.
template <class Key>
struct KeyHash {
    [[nodiscard]] std::uint64_t operator()(const Key& key) const noexcept {
        if constexpr (std::is_integral_v<Key> || std::is_enum_v<Key>) {
            return static_cast<std::uint64_t>(key);
        } else if constexpr (std::has_unique_object_representations_v<Key>) {
            const auto* const bytes = reinterpret_cast<const std::byte*>(&key);
            std::uint64_t number = sizeof(Key);
            for (std::size_t at = 0; at < sizeof(Key); at += sizeof number) {
                std::uint64_t word = 0;
                std::memcpy(&word, bytes + at, std::min(sizeof word, sizeof(Key) - at));
                number = detail::mixed(number ^ word);
            }
            return number;
        } else {
            return std::hash<Key>{}(key);
        }
    }
};

}  // namespace millrace::flow
