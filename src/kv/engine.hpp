// What kv::Store is: items in slabs, found through a table. Apart from Store so that tests can give
// it a hash of theirs. Its functions are described in store.hpp.
//
// Who changes a key holds the lock of its chain from the look at the old item to the change, and
// draws the version there: so versions of a key grow, and conditions hold. An item that left its
// chain is freed after the lock. Readers pin the item under the lock and are called without it
// (item.hpp); nobody else keeps a pointer.
//
// Absent is also an item whose time is over, and one that clear() removed: clear() raises a
// watermark above all versions at once, and then frees what lies below it. Whoever changes an item
// draws its version first and then looks at the watermark, once: either it sees that the old item
// is gone, or its own new one goes with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "budget.hpp"
#include "counters.hpp"
#include "item.hpp"
#include "millrace/kv/store.hpp"
#include "slabs.hpp"
#include "table.hpp"

namespace millrace::kv {

/// Of a key, with the seed of the store.
using HashFunction = std::uint64_t (*)(std::span<const std::byte> key, std::uint64_t seed) noexcept;
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> key, std::uint64_t seed) noexcept;

class Engine {
  public:
    explicit Engine(const StoreOptions& options, HashFunction function = hash_of);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    ~Engine() = default;

    using TakeEntry = FunctionRef<void(const Entry&)>;
    Outcome find(std::span<const std::byte> key, TakeEntry take);
    using TakeOneEntry = FunctionRef<void(std::size_t, Outcome, const Entry&)>;
    void find_several(std::span<const std::span<const std::byte>> keys, TakeOneEntry take);
    SetResult set(std::span<const std::byte> key, std::span<const std::byte> value,
                  const SetOptions& options) noexcept;
    SetResult set_until(std::span<const std::byte> key, std::span<const std::byte> value,
                        std::optional<base::Clock::time_point> expires_at,
                        std::optional<Version> if_version, std::uint64_t note) noexcept;
    Outcome erase(std::span<const std::byte> key, std::optional<Version> if_version) noexcept;
    [[nodiscard]] bool exists(std::span<const std::byte> key) const noexcept;
    void prefetch(std::span<const std::byte> key) const noexcept;
    void clear() noexcept;
    void for_each(TakeEntry visit);
    using VisitEntry = FunctionRef<bool(const Entry&)>;
    [[nodiscard]] Cursor visit_from(Cursor from, VisitEntry visit);
    [[nodiscard]] bool pick(std::uint64_t random, TakeEntry take);
    [[nodiscard]] Store::Moment moment() const noexcept;
    std::size_t sweep(std::size_t budget) noexcept;
    [[nodiscard]] StoreStats stats() const noexcept;
    [[nodiscard]] const StoreOptions& options() const noexcept { return options_; }

  private:
    /// Why an item is absent that still lies there.
    enum class Gone : std::uint8_t { not_at_all, cleared, expired };
    enum class Laid : std::uint8_t { not_at_all, done, pinned };
    struct Wish;

    /// The version of a change, and the watermark it was drawn above: what is absent, for it.
    struct Drawn {
        Version version;
        Version cleared;
    };
    [[nodiscard]] Drawn draw() noexcept;
    [[nodiscard]] Version cleared() const noexcept {
        return cleared_.load(std::memory_order_seq_cst);
    }
    [[nodiscard]] static Gone gone(const Item& item, Version cleared) noexcept {
        if (item.version <= cleared) return Gone::cleared;
        return item.expires && item.expiry() <= now() ? Gone::expired : Gone::not_at_all;
    }
    [[nodiscard]] static bool is_bad(std::span<const std::byte> key) noexcept {
        return key.empty() || key.size() > longest_key;
    }
    [[nodiscard]] static bool refuses(const Wish& wish, const Item* item, Version cleared,
                                      SetResult& result) noexcept;
    SetResult put(const Wish& wish) noexcept;
    /// Items that a reader has: each is let go of, if not before, at the end.
    template <std::size_t Count>
    struct Pins;
    /// The item that `find(head of the chain)` gives, if it is there: pinned. `otherwise(item)`:
    /// with the lock, where so many have it that it cannot be.
    template <bool Uses, class Find, class Otherwise>
    Item* pin(std::uint64_t hash, Find find, Otherwise otherwise);
    template <bool Uses, class Find>
    bool hand_out(std::uint64_t hash, Find find, TakeEntry take);
    [[nodiscard]] Laid lay_over(const Wish& wish, std::size_t most, SetResult& result) noexcept;
    [[nodiscard]] bool insert(const Wish& wish, Item* item, SetResult& result) noexcept;
    [[nodiscard]] Item* allocate(std::size_t bytes) noexcept;
    [[nodiscard]] bool make_room_in_table() noexcept;
    void evict(const Slabs::Found& found, bool even_if_used) noexcept;
    void move_or_evict(const Slabs::Found& found) noexcept;
    bool remove_if_gone(const Slabs::Found& found) noexcept;
    void discard(Item* item) noexcept;
    void give_back(Item* item) noexcept;
    void count_gone(Gone why) noexcept;
    [[nodiscard]] Entry entry_of(const Item& item) const noexcept;
    [[nodiscard]] std::uint64_t hash(std::span<const std::byte> key) const noexcept {
        return hash_(key, seed_);
    }

    const StoreOptions options_;
    const HashFunction hash_;
    const std::uint64_t seed_;
    Budget budget_;
    std::unique_ptr<Table> table_;
    Slabs slabs_;
    Counters counters_;

    alignas(64) std::atomic<Version> version_{0};
    std::atomic<std::uint64_t> items_{0};
    std::atomic<std::uint64_t> moved_{0};          ///< items that went on at another place
    std::atomic<std::uint64_t> relocated_{0};      ///< of them, with their version
    alignas(64) std::atomic<Version> cleared_{0};  ///< no version up to this is there
    std::atomic<bool> is_clearing_{false};         ///< a version that is drawn now is drawn anew
    std::mutex clearing_;
    std::mutex sweeping_;
    Slabs::Position swept_;  ///< with `sweeping_`
};

}  // namespace millrace::kv
