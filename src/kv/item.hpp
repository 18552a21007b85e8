// An item as it lies in its slab: this header, the key, the value, when it is over if it ever is,
// and the note that it has if it has one. Used by the engine, the tables (which chain items) and
// the slabs.
//
//     | next 8 | version 8 | lengths 6 | phase 1 | marks 1 | key | value | expiry 8? | note 8? |
//
// `next`, `version`, value, expiry and note: under the lock of the item's chain (table.hpp). The
// key stays as it is while the item is `live`, so that the slabs' clock may read it under the lock
// of the size class, which everybody takes between unlinking an item and using its memory again.
//
// Who reads a value pins the item under that lock, and reads without it. While it is pinned an item
// stays as it is, but for `next`: nobody lays another value over it, and where it leaves the table,
// whoever has it last frees it.
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

/// What is known of an item without the lock of its chain.
class Marks {
  public:
    /// Of memory that is another item's from now on.
    void clear() noexcept { bits_.store(0, std::memory_order_relaxed); }

    /// Since the clock's hand passed, or now.
    [[nodiscard]] bool used() const noexcept { return bits_.load(std::memory_order_relaxed) != 0; }
    void mark_used() noexcept {
        // Only the first store since the hand passed: the line stays shared between readers.
        if ((bits_.load(std::memory_order_relaxed) & is_used) == 0) {
            bits_.fetch_or(is_used, std::memory_order_relaxed);
        }
    }
    void forget_use() noexcept {
        if ((bits_.load(std::memory_order_relaxed) & is_used) != 0) {
            bits_.fetch_and(static_cast<std::uint8_t>(~is_used), std::memory_order_relaxed);
        }
    }

    /// With the lock of the chain, where the item is. `uses`: it counts as used. False: as many
    /// have it as can be counted.
    [[nodiscard]] bool pin(bool uses) noexcept {
        const std::uint8_t bits = bits_.load(std::memory_order_relaxed);
        if (bits >= most_pins) [[unlikely]]
            return false;
        // Nobody else sets the bit, or pins, without the lock.
        const unsigned sets = uses ? ~bits & is_used : 0U;
        bits_.fetch_add(static_cast<std::uint8_t>(a_pin | sets), std::memory_order_relaxed);
        return true;
    }
    /// True: it has left the table, and is the caller's to free.
    [[nodiscard]] bool unpin() noexcept {
        return (bits_.fetch_sub(a_pin, std::memory_order_acq_rel) & ~is_used) == (a_pin | has_left);
    }
    /// With the lock, nobody pins it until that is released.
    [[nodiscard]] bool is_pinned() const noexcept {
        return bits_.load(std::memory_order_acquire) >= a_pin;
    }
    /// It is in the table no more. False: who has it last frees it.
    [[nodiscard]] bool leave() noexcept {
        return !is_pinned() || bits_.fetch_or(has_left, std::memory_order_acq_rel) < a_pin;
    }

  private:
    static constexpr std::uint8_t is_used = 1;
    static constexpr std::uint8_t has_left = 2;
    static constexpr std::uint8_t a_pin = 4;
    static constexpr std::uint8_t most_pins = 63 * a_pin;

    std::atomic<std::uint8_t> bits_;
};

struct Item {
    Item* next;       ///< in its chain; of a free one: the next free one
    Version version;  ///< with every change another
    std::uint32_t value_length : 30;
    std::uint32_t expires : 1;
    std::uint32_t noted : 1;
    std::uint16_t key_length_less_one;  ///< no key is empty
    std::atomic<Phase> phase;
    Marks marks;

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
    /// 0: none.
    [[nodiscard]] std::uint64_t note() const noexcept {
        std::uint64_t note = 0;
        if (noted != 0) std::memcpy(&note, bytes() + note_at(), sizeof note);
        return note;
    }
    [[nodiscard]] bool has(std::span<const std::byte> other) const noexcept {
        return key_length() == other.size() &&
               std::memcmp(bytes(), other.data(), other.size()) == 0;
    }
    /// What set() was given. The value may be laid over the one that is there.
    void lay(std::span<const std::byte> new_value, std::optional<std::int64_t> expiry,
             std::uint64_t note) noexcept {
        if (!new_value.empty()) {
            std::memcpy(bytes() + key_length(), new_value.data(), new_value.size());
        }
        value_length = static_cast<std::uint32_t>(new_value.size()) & 0x3fffffff;
        expires = expiry.has_value();
        noted = note != 0;
        if (expiry) std::memcpy(bytes() + key_length() + value_length, &*expiry, sizeof *expiry);
        if (note != 0) std::memcpy(bytes() + note_at(), &note, sizeof note);
    }

  private:
    [[nodiscard]] std::size_t note_at() const noexcept {
        return key_length() + value_length + (expires != 0 ? sizeof(std::int64_t) : 0);
    }
};
static_assert(sizeof(Item) == 24);

/// The item of that key in the chain that begins there. Null: there is none.
[[nodiscard]] inline Item* find_in(Item* head, std::span<const std::byte> key) noexcept {
    while (head != nullptr && !head->has(key)) head = head->next;
    return head;
}

[[nodiscard]] constexpr std::size_t bytes_of_item(std::size_t key, std::size_t value, bool expires,
                                                  bool noted) noexcept {
    return sizeof(Item) + key + value + (expires ? sizeof(std::int64_t) : 0) +
           (noted ? sizeof(std::uint64_t) : 0);
}
static_assert(longest_value < std::size_t{1} << 30);
static_assert(longest_key <= std::size_t{1} << 16);
inline constexpr std::size_t longest_item = bytes_of_item(longest_key, longest_value, true, true);

[[nodiscard]] inline std::int64_t now() noexcept {
    return base::Clock::now().time_since_epoch().count();
}

}  // namespace millrace::kv
