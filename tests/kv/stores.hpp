// What the tests of the store share: keys, values that tell whether they are whole, and stores with
// a hash that is as bad as one likes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

inline View view(std::string_view text) { return std::as_bytes(std::span{text}); }
inline std::string text(View bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// `length` bytes that follow from the seed; a short one is a prefix of a long one.
inline Bytes derived(std::uint64_t seed, std::size_t length) {
    Bytes bytes(length);
    std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
    for (std::size_t at = 0; at < length; at += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(bytes.data() + at, &state, std::min(sizeof state, length - at));
    }
    return bytes;
}

/// A value that begins with its seed, or, shorter than that, is zeros.
inline Bytes sealed(std::uint64_t seed, std::size_t length) {
    if (length < sizeof seed) return Bytes(length);
    Bytes bytes = derived(seed, length);
    std::memcpy(bytes.data(), &seed, sizeof seed);
    return bytes;
}
inline std::uint64_t seed_of(View value) {
    std::uint64_t seed = 0;
    if (value.size() >= sizeof seed) std::memcpy(&seed, value.data(), sizeof seed);
    return seed;
}
inline bool is_whole(View value) {
    const Bytes expected = sealed(seed_of(value), value.size());
    // Not byte by byte, as tests are not optimised.
    return value.empty() || std::memcmp(value.data(), expected.data(), value.size()) == 0;
}

/// Seven hashes for all keys: long chains, and others of the same hash everywhere.
inline std::uint64_t weak_hash(View key, std::uint64_t) noexcept {
    return hash_of(key, 1) % 7 * 0x9e3779b97f4a7c15;
}

inline StoreOptions options_of(TableKind table, std::uint64_t memory = least_memory,
                               WhenFull when_full = WhenFull::refuse) {
    return {.memory_bytes = memory, .when_full = when_full, .table = table};
}

inline std::optional<std::string> value_in(Store& store, View key) {
    std::optional<std::string> value;
    store.get(key, [&](const Entry& entry) { value = text(entry.value); });
    return value;
}

inline std::string name_of_table(const testing::TestParamInfo<TableKind>& info) {
    return info.param == TableKind::cuckoo ? "cuckoo" : "thesis";
}
inline constexpr auto long_time = std::chrono::hours{1};
/// Over before the call returns.
inline constexpr auto no_time = std::chrono::nanoseconds{1};

}  // namespace millrace::kv
