// The keys that a producer has something for: a hash table of bounded size, whose entries are also
// in a row, in the order in which their keys came. Used by the producers that fold by key
// (conflating.hpp, aggregating.hpp, windowed.hpp).
//
//   slots    [ . | 2 | . | . | 0 | 1 | . | . ]    2 x the keys or more: an entry's number, found by
//                                                 its hash and a walk to the right
//   entries  [ 0 ] ⇄ [ 1 ] ⇄ [ 2 ]    [ 3 free ]  key, value, and the neighbours in the row
//
// All memory is taken when it is made. No call allocates, unless copying an entry does.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/detail/holds_address.hpp"
#include "millrace/flow/key_hash.hpp"

namespace millrace::flow::detail {

/// `KeyOf` gives an entry's key: a function object or a pointer to a member. One thread at a time.
template <class Entry, class KeyOf>
class KeyTable {
  public:
    using Key = std::remove_cvref_t<std::invoke_result_t<const KeyOf&, const Entry&>>;
    static_assert(std::equality_comparable<Key>, "keys are compared by ==");
    static_assert(!base::holds_address<Key>, "a key must not refer to an item that goes away");
    static constexpr std::uint32_t none = ~std::uint32_t{0};

    /// `most` entries, 1 or more.
    KeyTable(std::uint32_t most, KeyOf key_of)
        : key_of_{std::move(key_of)},
          slots_(std::bit_ceil(std::size_t{most} * 2), none),
          nodes_(most) {
        for (std::uint32_t at = 0; at != most; ++at) nodes_[at].after = at + 1;
        nodes_.back().after = none;
        free_ = 0;
    }

    [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
    [[nodiscard]] bool is_empty() const noexcept { return size_ == 0; }
    [[nodiscard]] bool is_full() const noexcept { return free_ == none; }
    [[nodiscard]] decltype(auto) key_of(const Entry& entry) const {
        return std::invoke(key_of_, entry);
    }
    [[nodiscard]] static std::uint64_t hash_of(const Key& key) noexcept {
        return KeyHash<Key>{}(key);
    }

    [[nodiscard]] Entry& operator[](std::uint32_t at) noexcept { return nodes_[at].entry; }
    /// As hash_of() its key.
    [[nodiscard]] std::uint64_t hash_at(std::uint32_t at) const noexcept { return nodes_[at].hash; }
    /// The key that came first; `none`: there is none.
    [[nodiscard]] std::uint32_t front() const noexcept { return front_; }
    /// The one that came after it, or `none`.
    [[nodiscard]] std::uint32_t after(std::uint32_t at) const noexcept { return nodes_[at].after; }

    /// `hash`: of the key. `none`: it is not there.
    [[nodiscard]] std::uint32_t find(const Key& key, std::uint64_t hash) const {
        for (std::size_t slot = home_of(hash);; slot = next(slot)) {
            const std::uint32_t at = slots_[slot];
            if (at == none) return none;
            if (nodes_[at].hash == hash && key_of(nodes_[at].entry) == key) return at;
        }
    }
    /// Last in the row. Its key must not be there yet, and a place must be free.
    std::uint32_t add(const Entry& entry, std::uint64_t hash) {
        const std::uint32_t at = free_;
        Node& node = nodes_[at];
        node.entry = entry;
        free_ = node.after;
        node.hash = hash;
        node.before = back_;
        node.after = none;
        (back_ == none ? front_ : nodes_[back_].after) = at;
        back_ = at;
        std::size_t slot = home_of(hash);
        while (slots_[slot] != none) slot = next(slot);
        slots_[slot] = at;
        ++size_;
        return at;
    }
    void remove(std::uint32_t at) noexcept {
        Node& node = nodes_[at];
        empty_slot_of(at);
        (node.before == none ? front_ : nodes_[node.before].after) = node.after;
        (node.after == none ? back_ : nodes_[node.after].before) = node.before;
        node.after = free_;
        free_ = at;
        --size_;
    }

  private:
    struct Node {
        Entry entry{};
        std::uint64_t hash = 0;
        std::uint32_t before = none;
        std::uint32_t after = none;  ///< of a free one: the next that is free
    };

    [[nodiscard]] std::size_t home_of(std::uint64_t hash) const noexcept {
        return mixed(hash) & (slots_.size() - 1);
    }
    [[nodiscard]] std::size_t next(std::size_t slot) const noexcept {
        return (slot + 1) & (slots_.size() - 1);
    }
    /// What a walk would not find any more, as it came over this slot, moves there.
    void empty_slot_of(std::uint32_t at) noexcept {
        const std::size_t mask = slots_.size() - 1;
        std::size_t hole = home_of(nodes_[at].hash);
        while (slots_[hole] != at) hole = next(hole);
        for (std::size_t slot = next(hole); slots_[slot] != none; slot = next(slot)) {
            const std::size_t home = home_of(nodes_[slots_[slot]].hash);
            if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
            slots_[hole] = slots_[slot];
            hole = slot;
        }
        slots_[hole] = none;
    }

    KeyOf key_of_;
    std::vector<std::uint32_t> slots_;
    std::vector<Node> nodes_;
    std::uint32_t front_ = none;
    std::uint32_t back_ = none;
    std::uint32_t free_ = none;  ///< the first of those that are
    std::uint32_t size_ = 0;
};

}  // namespace millrace::flow::detail
