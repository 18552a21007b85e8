// A key-value store in the memory of one process: bounded, with expiry and versions. It knows
// nothing of connections; service.hpp joins it to them.
//
//     kv::Store store{{.memory_bytes = std::uint64_t{4} << 30, .when_full = kv::WhenFull::evict}};
//     store.set(key, value);
//     store.get(key, [](const kv::Entry& entry) { use(entry.value); });
//
// Every call is atomic: calls on one key are linearizable. Source: work 002, section 3.1.3 (its
// table is TableKind::thesis).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/kv/detail/function_ref.hpp"

namespace millrace::kv {

inline constexpr std::size_t longest_key = std::size_t{1} << 16;    ///< bytes; the shortest has 1
inline constexpr std::size_t longest_value = std::size_t{1} << 20;  ///< 0 is legal
inline constexpr std::uint64_t least_memory = std::uint64_t{8} << 20;
/// A century: an item that is to be there for longer is there for ever.
inline constexpr std::chrono::hours longest_time{100 * 366 * 24};

/// Of an item: greater with every change that the store makes, of whichever key. 0: no item.
using Version = std::uint64_t;

enum class Outcome : std::uint8_t {
    ok,
    not_found,  ///< the key is not there (any more)
    conflict,   ///< the item is not of the version that was asked for
    full,       ///< no memory, and WhenFull::refuse (or nothing that could go)
    bad_key,    ///< empty, or longer than longest_key
    bad_value,  ///< longer than longest_value
};
[[nodiscard]] constexpr std::string_view name_of(Outcome outcome) noexcept {
    switch (outcome) {
        case Outcome::ok: return "ok";
        case Outcome::not_found: return "not found";
        case Outcome::conflict: return "conflict";
        case Outcome::full: return "full";
        case Outcome::bad_key: return "bad key";
        case Outcome::bad_value: return "bad value";
    }
    return "unknown";
}

/// What happens to a new item when the memory is used up.
enum class WhenFull : std::uint8_t {
    refuse,  ///< it is not taken: Outcome::full
    evict,   ///< items that have not been used for long go, about the least recently used first
};

enum class TableKind : std::uint8_t {
    cuckoo,  ///< libcuckoo's concurrent table
    thesis,  ///< the work's: 1,024 buckets, each a list with a lock
};

struct StoreOptions {
    /// For items and the table: `least_memory` to 1 TiB. Not reserved before it is used; of
    /// addresses the process needs 110 times as much.
    std::uint64_t memory_bytes = std::uint64_t{1} << 30;
    WhenFull when_full = WhenFull::refuse;
    TableKind table = TableKind::cuckoo;
};

/// Where a walk over the items is that is made in pieces. It grows from piece to piece; any number
/// is one, so it may travel.
enum class Cursor : std::uint64_t { begin = 0, end = ~std::uint64_t{0} };

/// An item, as it lies in the store. Valid within the call that it is handed to.
struct Entry {
    std::span<const std::byte> key;
    std::span<const std::byte> value;
    Version version = 0;
    /// None: it does not expire.
    std::optional<std::chrono::nanoseconds> expires_after{};
    /// The same as a time.
    std::optional<base::Clock::time_point> expires_at{};
    /// What set_until() was given with it; 0: nothing.
    std::uint64_t note = 0;
};

struct SetOptions {
    /// Only if the item has this version; 0: only if there is none. Otherwise `conflict`.
    std::optional<Version> if_version{};
    /// How long the item is there, from now on. Not given, or more than longest_time: for ever. 0
    /// or less: not at all; it is set, so that the former one is gone, and nobody finds it. The
    /// same wherever it is said: here, by a client (which rounds up to microseconds), by a command.
    std::optional<std::chrono::nanoseconds> expires_after{};
};

struct SetResult {
    Outcome outcome = Outcome::ok;
    /// ok: the new one. conflict: the one it has.
    Version version = 0;
};

struct StoreStats {
    std::uint64_t items = 0;
    std::uint64_t item_bytes = 0;    ///< of keys and values
    std::uint64_t memory_bytes = 0;  ///< taken from the system, for items and the table
    std::uint64_t gets = 0;
    std::uint64_t hits = 0;
    std::uint64_t sets = 0;
    std::uint64_t erased = 0;  ///< by erase() and clear()
    std::uint64_t evicted = 0;
    std::uint64_t expired = 0;
    std::uint64_t refused = 0;  ///< for want of memory
};

/// Any number of threads. Nothing but making it throws; nothing waits but for short locks.
class Store {
  public:
    /// Throws Error (invalid_argument: memory out of range; resource_exhausted).
    explicit Store(const StoreOptions& options);
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;
    ~Store();

    /// Hands the item to `take(const Entry&)`, which must not use the store: the item stays as it
    /// is, and where it is, meanwhile, whatever others do. Nobody waits for it but a thread that
    /// finds a full store and can only write there; and, of an item that more than 63 threads have
    /// at once, one that needs the lock. `ok`, `not_found`, `bad_key`.
    Outcome get(std::span<const std::byte> key, FunctionRef<void(const Entry&)> take);
    /// As get() of each key, in their order, and so at a moment of its own: while one is handed out
    /// the next ones are fetched from memory. `take(std::size_t index, Outcome, const Entry&)`; the
    /// entry is empty if it is not `ok`.
    void get_several(std::span<const std::span<const std::byte>> keys,
                     FunctionRef<void(std::size_t, Outcome, const Entry&)> take);
    /// Replaces the item, or makes one. The old one stays if it is not `ok`.
    SetResult set(std::span<const std::byte> key, std::span<const std::byte> value,
                  const SetOptions& options = {}) noexcept;
    /// As set(), of an item that is over at a time, or never. For a program that reads an item,
    /// makes another one of it and keeps its time: Entry::expires_at comes back as it was. `note`
    /// lies next to the value, which is the same with any: 64 bits of the program's own, which cost
    /// 8 bytes if they are not 0. An item that set() has made has none.
    SetResult set_until(std::span<const std::byte> key, std::span<const std::byte> value,
                        std::optional<base::Clock::time_point> expires_at,
                        std::optional<Version> if_version = {}, std::uint64_t note = 0) noexcept;
    /// `ok`, `not_found`, `conflict`, `bad_key`.
    Outcome erase(std::span<const std::byte> key, std::optional<Version> if_version = {}) noexcept;
    [[nodiscard]] bool exists(std::span<const std::byte> key) const noexcept;
    /// Loads what a get() of the key will look at first into the processor's cache.
    void prefetch(std::span<const std::byte> key) const noexcept;
    /// Removes all items, at once for all who look; then frees them.
    void clear() noexcept;
    /// Each item that is there all the while, once; of those that come and go meanwhile, any. What
    /// is set anew meanwhile, or is in use where others are evicted, may lie elsewhere then: it is
    /// met once, twice or not. As get(): without the store.
    void for_each(const std::function<void(const Entry&)>& visit) const;
    /// A piece of for_each, from `from` on: until `visit` returns false, which leaves the item that
    /// it was handed to the next piece, or until many places were passed that hold nothing. Where
    /// it has ended; Cursor::end: there are no more. What changes between two pieces counts as what
    /// changes meanwhile.
    [[nodiscard]] Cursor visit_from(Cursor from,
                                    const std::function<bool(const Entry&)>& visit) const;

    /// An item that chance picks, by 64 random bits: about each as often, if all are of one size.
    /// As get(). False: there is none, or chance met none that is not over.
    [[nodiscard]] bool pick(std::uint64_t random,
                            const std::function<void(const Entry&)>& take) const;

    /// What has happened so far.
    struct Moment {
        Version newest = 0;  ///< every item that changes from now on has a greater one
        /// Items that went on at another place, so that a walk may have missed them.
        std::uint64_t moved = 0;
        /// Those of them that have the version they had: eviction moved them.
        std::uint64_t relocated = 0;
    };
    [[nodiscard]] Moment moment() const noexcept;

    /// Removes items whose time is over, looking at `budget` items at most, and goes on there next
    /// time. Items that are over are not found even if nobody sweeps, but they take memory. How
    /// many went.
    std::size_t sweep(std::size_t budget) noexcept;

    [[nodiscard]] StoreStats stats() const noexcept;
    [[nodiscard]] const StoreOptions& options() const noexcept;

  private:
    struct State;

    std::unique_ptr<State> state_;
};

}  // namespace millrace::kv
