// An item as it lies in its slab: this header, the key, the value, and when it is over if it ever
// is. Used by the engine, the tables (which chain items) and the slabs.
//
//     | next 8 | version 8 | lengths 6 | phase 1 | used 1 | key | value | expiry 8, or nothing |
//
// `next`, `version`, value and expiry: under the lock of the item's chain (table.hpp). The key
// stays as it is while the item is `live`, so that the slabs' clock may read it under the lock of
// the size class, which everybody takes between unlinking an item and using its memory again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>

#include "millrace/base/clock.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

enum class Phase : std::uint8_t {
    free,  ///< no item
    busy,  ///< of one thread, not in the table: not yet, or no more
    live,  ///< in the table
};

struct Item {
    Item* next;       ///< in its chain; of a free one: the next free one
    Version version;  ///< with every change another
    std::uint32_t value_length : 31;
    std::uint32_t expires : 1;
    std::uint16_t key_length_less_one;  ///< no key is empty
    std::atomic<Phase> phase;
    std::atomic<bool> used;  ///< since the clock's hand passed

    [[nodiscard]] std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
    [[nodiscard]] const std::byte* bytes() const noexcept {
        return reinterpret_cast<const std::byte*>(this + 1);
    }
    [[nodiscard]] std::size_t key_length() const noexcept {
        return std::size_t{key_length_less_one} + 1;
    }
    void set_key_length(std::size_t length) noexcept {
        key_length_less_one = static_cast<std::uint16_t>(length - 1);
    }
    [[nodiscard]] std::span<const std::byte> key() const noexcept {
        return {bytes(), key_length()};
    }
    [[nodiscard]] std::span<const std::byte> value() const noexcept {
        return {bytes() + key_length(), value_length};
    }
    /// Of an item that `expires`.
    [[nodiscard]] std::int64_t expiry() const noexcept {
        std::int64_t time;
        std::memcpy(&time, bytes() + key_length() + value_length, sizeof time);
        return time;
    }
    [[nodiscard]] bool has(std::span<const std::byte> other) const noexcept {
        return key_length() == other.size() &&
               std::memcmp(bytes(), other.data(), other.size()) == 0;
    }
    /// What set() was given. The value may be laid over the one that is there.
    void lay(std::span<const std::byte> new_value, std::optional<std::int64_t> expiry) noexcept {
        if (!new_value.empty()) {
            std::memcpy(bytes() + key_length(), new_value.data(), new_value.size());
        }
        value_length = static_cast<std::uint32_t>(new_value.size()) & 0x7fffffff;
        expires = expiry.has_value();
        if (expiry) std::memcpy(bytes() + key_length() + value_length, &*expiry, sizeof *expiry);
    }
    void mark_used() noexcept {
        // Only the first store since the hand passed: the line stays shared between readers.
        if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
    }
};
static_assert(sizeof(Item) == 24);

[[nodiscard]] constexpr std::size_t bytes_of_item(std::size_t key, std::size_t value,
                                                  bool expires) noexcept {
    return sizeof(Item) + key + value + (expires ? sizeof(std::int64_t) : 0);
}
static_assert(longest_key <= std::size_t{1} << 16);
inline constexpr std::size_t longest_item = bytes_of_item(longest_key, longest_value, true);

[[nodiscard]] inline std::int64_t now() noexcept {
    return base::Clock::now().time_since_epoch().count();
}

}  // namespace millrace::kv
