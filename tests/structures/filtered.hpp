// What the tests of filters share: rows, filters that are objects with parameters, and generated
// sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "millrace/flow/filter.hpp"

namespace millrace::flow::test {

struct Row {
    std::uint64_t key = 0;
    std::uint32_t value = 0;
    std::uint32_t rest[11] = {};

    friend bool operator==(const Row&, const Row&) = default;
};
struct Key {
    std::uint64_t key = 0;

    friend bool operator==(const Key&, const Key&) = default;
};

/// Keeps rows.
struct Above {
    std::uint32_t limit = 0;
    bool operator()(const Row& row) const noexcept { return row.value > limit; }
};
struct Below {
    std::uint32_t limit = 0;
    bool operator()(const Row& row) const noexcept { return row.value < limit; }
};
/// Makes something smaller of each.
struct KeyOf {
    Key operator()(const Row& row) const noexcept { return {row.key}; }
};
/// Both.
struct KeyAbove {
    std::uint32_t limit = 0;
    std::optional<Key> operator()(const Row& row) const noexcept {
        if (row.value <= limit) return std::nullopt;
        return Key{row.key};
    }
};
/// Keeps every row, but throws for some.
struct ThrowsAt {
    std::uint32_t value = 0;
    bool operator()(const Row& row) const {
        if (row.value == value) throw std::runtime_error{"no such\nvalue"};
        return true;
    }
};
/// A producer's filter that none of these tests' consumers names by its right type.
struct Other {
    bool operator()(const Row& row) const noexcept { return row.key != 0; }
};

using Rows = Filtered<Row, Above, Below, KeyOf, KeyAbove, ThrowsAt>;

/// Items of Bytes by their length, and the front of each.
struct Longer {
    std::size_t size = 0;
    bool operator()(std::span<const std::byte> item) const noexcept { return item.size() > size; }
};
struct Front {
    std::size_t size = 0;
    std::optional<std::span<const std::byte>> operator()(
        std::span<const std::byte> item) const noexcept {
        if (item.size() < size) return std::nullopt;
        return item.first(size);
    }
};
using Frames = Filtered<Bytes, Longer, Front>;

/// Values below 100.
inline std::vector<Row> some_rows(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random{seed};
    std::vector<Row> rows(count);
    for (Row& row : rows) {
        row = {.key = random(), .value = static_cast<std::uint32_t>(random() % 100)};
        row.rest[10] = static_cast<std::uint32_t>(row.key);
    }
    return rows;
}

/// Filtering where items have come already.
template <class U, class F>
std::vector<U> kept_by(const std::vector<Row>& rows, const F& filter) {
    std::vector<U> kept;
    for (const Row& row : rows) {
        detail::put_made<F, Row>(filter, row, [&](const U& made) { kept.push_back(made); });
    }
    return kept;
}

}  // namespace millrace::flow::test
