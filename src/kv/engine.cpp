#include "engine.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <thread>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"

namespace millrace::kv {
namespace {

/// A value up to this length is copied over the old one while the chain is locked; a longer one is
/// written elsewhere beforehand.
constexpr std::size_t short_value = 4096;

const StoreOptions& checked(const StoreOptions& options) {
    if (options.memory_bytes < least_memory || options.memory_bytes > most_memory) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a key-value store",
                          "of " + std::to_string(options.memory_bytes) + " bytes",
                          options.memory_bytes < least_memory ? "that is too little memory"
                                                              : "that is too much memory",
                          "give it 8 MiB to 1 TiB"};
    }
    return options;
}

std::unique_ptr<Table> make_table(TableKind kind, Budget& budget) {
    try {
        return kind == TableKind::thesis ? make_thesis_table(budget) : make_cuckoo_table(budget);
    } catch (const std::bad_alloc&) {
        throw base::Error{base::ErrorCode::resource_exhausted, "make a key-value store",
                          "with memory for its table", "the system has none",
                          "stop what takes the memory"};
    }
}

/// The link in the chain that leads to the item of the key, or to the chain's end.
Item** link_to(Item*& head, std::span<const std::byte> key) noexcept {
    Item** link = &head;
    while (*link != nullptr && !(*link)->has(key)) link = &(*link)->next;
    return link;
}

/// The clock's hand reads the key of live items without the lock of the chain.
void unlink(Item** link) noexcept {
    Item* item = *link;
    *link = item->next;
    item->phase.store(Phase::busy, std::memory_order_relaxed);
}

std::size_t bytes_of(const Item& item) noexcept { return item.key_length() + item.value_length; }

}  // namespace

std::uint64_t hash_of(std::span<const std::byte> key, std::uint64_t seed) noexcept {
    return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

/// What set() was asked for.
struct Engine::Wish {
    std::span<const std::byte> key;
    std::span<const std::byte> value;
    std::optional<Version> if_version;
    std::optional<std::int64_t> expiry;
    std::uint64_t hash;
    std::uint64_t note = 0;

    [[nodiscard]] std::size_t bytes() const noexcept {
        return bytes_of_item(key.size(), value.size(), expiry.has_value(), note != 0);
    }
};

Engine::Engine(const StoreOptions& options, HashFunction function)
    : options_{checked(options)},
      hash_{function},
      seed_{base::random_bits()},
      budget_{options.memory_bytes},
      table_{make_table(options.table, budget_)},
      slabs_{budget_} {}

Engine::Drawn Engine::draw() noexcept {
    while (true) {
        const Version version = version_.fetch_add(1, std::memory_order_seq_cst) + 1;
        // One that was drawn before clear() has begun is not above its mark; one that was drawn
        // meanwhile could be seen beside items that are about to go, and stay.
        const bool is_clearing = is_clearing_.load(std::memory_order_seq_cst);
        const Version mark = cleared();
        if (!is_clearing && version > mark) return {version, mark};
        std::this_thread::yield();
    }
}

void Engine::count_gone(Gone why) noexcept {
    if (why == Gone::expired) counters_.add(Count::expired);
    if (why == Gone::cleared) counters_.add(Count::erased);
}

/// An item that left the table.
void Engine::discard(Item* item) noexcept {
    items_.fetch_sub(1, std::memory_order_relaxed);
    counters_.add(Count::bytes, 0 - bytes_of(*item));
    give_back(item);
}

/// The memory of what left the table, at once or by whoever reads it last.
void Engine::give_back(Item* item) noexcept {
    if (item->marks.leave()) slabs_.free(item);
}

/// Whether the condition does not hold for what is there. `item` may be null.
bool Engine::refuses(const Wish& wish, const Item* item, Version cleared,
                     SetResult& result) noexcept {
    if (!wish.if_version) return false;
    const bool is_there = item != nullptr && gone(*item, cleared) == Gone::not_at_all;
    const Version version = is_there ? item->version : 0;
    if (version == *wish.if_version) return false;
    result = {Outcome::conflict, version};
    return true;
}

/// Writes into the item that is there, if there is one, it has the space and the value is no longer
/// than `most`. `done`: that is all, `result` tells.
Engine::Laid Engine::lay_over(const Wish& wish, std::size_t most, SetResult& result) noexcept {
    Laid laid = Laid::not_at_all;
    bool there = false;
    Gone was = Gone::not_at_all;
    table_->change(wish.hash, [&](Item*& head) {
        Item* item = find_in(head, wish.key);
        if (item == nullptr) return;
        there = true;
        const Drawn drawn = draw();
        if (refuses(wish, item, drawn.cleared, result)) {
            laid = Laid::done;
            return;
        }
        // Not into a chunk that is larger than it need be.
        if (wish.value.size() > most || class_of(wish.bytes()) != slabs_.class_of_item(item))
            return;
        if (item->marks.is_pinned()) [[unlikely]] {
            laid = Laid::pinned;
            return;
        }
        was = gone(*item, drawn.cleared);
        counters_.add(Count::bytes, wish.value.size() - item->value_length);
        item->lay(wish.value, wish.expiry, wish.note);
        item->version = drawn.version;
        item->marks.mark_used();
        result = {Outcome::ok, drawn.version};
        laid = Laid::done;
    });
    if (was != Gone::not_at_all) count_gone(was);
    if (there || !wish.if_version || *wish.if_version == 0) return laid;
    result = {Outcome::conflict, 0};
    return Laid::done;
}

/// Puts the item that was made of the wish into the table. False: the table cannot take it.
bool Engine::insert(const Wish& wish, Item* item, SetResult& result) noexcept {
    Item* old = nullptr;
    Gone was = Gone::not_at_all;
    const auto put = [&](Item*& head) {
        Item** link = link_to(head, wish.key);
        const Drawn drawn = draw();
        if (refuses(wish, *link, drawn.cleared, result)) return;
        if (*link != nullptr) {
            old = *link;
            was = gone(*old, drawn.cleared);
            unlink(link);
        }
        items_.fetch_add(1, std::memory_order_relaxed);
        counters_.add(Count::bytes, wish.key.size() + wish.value.size());
        item->version = drawn.version;
        item->next = head;
        head = item;
        // To be read by the next clear() and by the hand, both of which may come after the lock.
        item->phase.store(Phase::live, std::memory_order_release);
        result = {Outcome::ok, drawn.version};
    };
    // Into an empty chain insert() must put something.
    if (wish.if_version && *wish.if_version != 0) {
        result = {Outcome::conflict, 0};
        table_->change(wish.hash, put);
    } else if (!table_->insert(wish.hash, put)) {
        return false;
    }
    if (result.outcome != Outcome::ok) {
        slabs_.free(item);
        return true;
    }
    if (old != nullptr) {
        moved_.fetch_add(1, std::memory_order_release);
        count_gone(was);
        discard(old);
    }
    return true;
}

SetResult Engine::set(std::span<const std::byte> key, std::span<const std::byte> value,
                      const SetOptions& options) noexcept {
    if (is_bad(key)) return {Outcome::bad_key, 0};
    if (value.size() > longest_value) return {Outcome::bad_value, 0};
    Wish wish{key, value, options.if_version, {}, hash(key)};
    if (options.expires_after && *options.expires_after <= longest_time) {
        wish.expiry = now() + std::max<std::int64_t>(options.expires_after->count(), 0);
    }
    return put(wish);
}

SetResult Engine::set_until(std::span<const std::byte> key, std::span<const std::byte> value,
                            std::optional<base::Clock::time_point> expires_at,
                            std::optional<Version> if_version, std::uint64_t note) noexcept {
    if (is_bad(key)) return {Outcome::bad_key, 0};
    if (value.size() > longest_value) return {Outcome::bad_value, 0};
    Wish wish{key, value, if_version, {}, hash(key), note};
    if (expires_at && *expires_at <= base::Clock::now() + longest_time) {
        wish.expiry = expires_at->time_since_epoch().count();
    }
    return put(wish);
}

inline SetResult Engine::put(const Wish& wish) noexcept {
    const auto [key, value] = std::pair{wish.key, wish.value};
    counters_.add(Count::sets);
    SetResult result;
    if (lay_over(wish, short_value, result) == Laid::done) return result;
    if (make_room_in_table()) {
        if (Item* item = allocate(wish.bytes())) {
            item->set_key_length(key.size());
            std::copy(key.begin(), key.end(), item->bytes());
            item->lay(value, wish.expiry, wish.note);
            if (insert(wish, item, result)) return result;
            slabs_.free(item);
        }
    }
    // No memory for another; but the old one's will do if the new one has its size, once nobody
    // reads it: that takes no longer than a lock would be held for it.
    Laid laid = Laid::pinned;
    while ((laid = lay_over(wish, longest_value, result)) == Laid::pinned) {
        std::this_thread::yield();
    }
    if (laid == Laid::done) return result;
    counters_.add(Count::refused);
    return {Outcome::full, 0};
}

Outcome Engine::erase(std::span<const std::byte> key, std::optional<Version> if_version) noexcept {
    if (is_bad(key)) return Outcome::bad_key;
    Item* erased = nullptr;
    Gone was = Gone::not_at_all;
    Outcome outcome = Outcome::not_found;
    table_->change(hash(key), [&](Item*& head) {
        Item** link = link_to(head, key);
        Item* item = *link;
        if (item == nullptr) return;
        was = gone(*item, cleared());
        if (was == Gone::not_at_all) {
            outcome = if_version && *if_version != item->version ? Outcome::conflict : Outcome::ok;
        }
        if (outcome == Outcome::conflict) return;
        unlink(link);
        erased = item;
    });
    if (erased == nullptr) return outcome;
    if (outcome == Outcome::ok) counters_.add(Count::erased);
    count_gone(was);
    discard(erased);
    return outcome;
}

/// Removes what the clock's hand found, if it is still there.
void Engine::evict(const Slabs::Found& found, bool even_if_used) noexcept {
    bool evicted = false;
    Gone was = Gone::not_at_all;
    table_->change(found.hash, [&](Item*& head) {
        Item** link = &head;
        while (*link != nullptr && *link != found.item) link = &(*link)->next;
        if (*link == nullptr) return;
        if (!even_if_used && found.item->marks.used()) return;
        was = gone(*found.item, cleared());
        unlink(link);
        evicted = true;
    });
    if (!evicted) return;
    if (was == Gone::not_at_all) counters_.add(Count::evicted);
    count_gone(was);
    discard(found.item);
}

/// Of an extent that is to go: what was used moves to the place of one that was not.
void Engine::move_or_evict(const Slabs::Found& found) noexcept {
    if (!found.item->marks.used()) return evict(found, false);
    const auto hash_key = [this](std::span<const std::byte> key) { return hash(key); };
    const std::size_t size_class = slabs_.class_of_item(found.item);
    Item* place = slabs_.allocate(size_class);
    if (place == nullptr) {
        const Slabs::Found victim = slabs_.next_victim(size_class, hash_key);
        if (victim.item != nullptr) evict(victim, false);
        place = slabs_.allocate(size_class);
    }
    if (place == nullptr) return evict(found, true);
    bool moved = false;
    table_->change(found.hash, [&](Item*& head) {
        Item** link = &head;
        while (*link != nullptr && *link != found.item) link = &(*link)->next;
        if (*link == nullptr) return;
        const Item& item = *found.item;
        place->version = item.version;
        place->set_key_length(item.key_length());
        const auto value = item.value();
        std::copy_n(item.bytes(), item.key_length(), place->bytes());
        place->lay(value, item.expires ? std::optional{item.expiry()} : std::nullopt, item.note());
        unlink(link);
        place->next = *link;
        *link = place;
        relocated_.fetch_add(1, std::memory_order_relaxed);
        place->phase.store(Phase::live, std::memory_order_release);
        moved = true;
    });
    if (moved) {
        moved_.fetch_add(1, std::memory_order_release);
        give_back(found.item);
    } else {
        slabs_.free(place);
    }
}

Item* Engine::allocate(std::size_t bytes) noexcept {
    const std::size_t size_class = class_of(bytes);
    const auto hash_key = [this](std::span<const std::byte> key) { return hash(key); };
    const auto vacate = [this](const Slabs::Found& found) { move_or_evict(found); };
    // Others take what we freed, and hold for a moment what cannot be freed.
    constexpr int most_tries = 4096;
    constexpr int most_in_vain = 64;
    int in_vain = 0;
    for (int tries = 0; tries < most_tries; ++tries) {
        if (Item* item = slabs_.allocate(size_class)) return item;
        if (slabs_.trim()) continue;
        if (options_.when_full == WhenFull::refuse) {
            if (tries == 0 && sweep(256) != 0) continue;
            return nullptr;
        }
        if (slabs_.count_victim(size_class) &&
            slabs_.reclaim(size_class, false, hash_key, vacate)) {
            continue;
        }
        const Slabs::Found victim = slabs_.next_victim(size_class, hash_key);
        if (victim.item != nullptr) {
            evict(victim, tries > 16);
        } else if (!slabs_.reclaim(size_class, true, hash_key, vacate)) {
            if (++in_vain == most_in_vain) return nullptr;
            std::this_thread::yield();
        }
    }
    return nullptr;
}

bool Engine::make_room_in_table() noexcept {
    const bool evicts = options_.when_full == WhenFull::evict;
    const auto hash_key = [this](std::span<const std::byte> key) { return hash(key); };
    const auto vacate = [this](const Slabs::Found& found) { move_or_evict(found); };
    for (int tries = 0; tries < 64; ++tries) {
        const auto room = table_->make_room(items_.load(std::memory_order_relaxed), evicts);
        if (room == Table::Room::there) return true;
        if (!evicts) return false;
        const bool reclaimed = slabs_.trim() || slabs_.reclaim({}, false, hash_key, vacate) ||
                               slabs_.reclaim({}, true, hash_key, vacate);
        if (room == Table::Room::wanted) return true;
        if (!reclaimed) return false;
    }
    return false;
}

/// Frees an item that is absent already.
bool Engine::remove_if_gone(const Slabs::Found& found) noexcept {
    bool removed = false;
    Gone was = Gone::not_at_all;
    table_->change(found.hash, [&](Item*& head) {
        Item** link = &head;
        while (*link != nullptr && *link != found.item) link = &(*link)->next;
        if (*link == nullptr) return;
        was = gone(*found.item, cleared());
        if (was == Gone::not_at_all) return;
        unlink(link);
        removed = true;
    });
    if (!removed) return false;
    count_gone(was);
    discard(found.item);
    return true;
}

}  // namespace millrace::kv
