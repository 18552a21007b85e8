// How an engine finds the item of a key and hands it to a reader, who has it without a lock; the
// items of several keys; and those that a walk comes to.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine.hpp"

namespace millrace::kv {
namespace {

/// Of an item that is about to be copied. Longer ones the processor fetches ahead by itself.
void prefetch_item(const Item& item) noexcept {
    constexpr std::size_t line = 64;
    constexpr std::size_t most = 16 * line;
    const auto* const bytes = reinterpret_cast<const std::byte*>(&item);
    const std::size_t size = std::min(sizeof item + item.key_length() + item.value_length, most);
    for (std::size_t at = line; at < size; at += line) __builtin_prefetch(bytes + at);
}

}  // namespace

Entry Engine::entry_of(const Item& item) const noexcept {
    Entry entry{item.key(), item.value(), item.version, {}, {}, item.note()};
    if (item.expires) {
        entry.expires_at = base::Clock::time_point{std::chrono::nanoseconds{item.expiry()}};
        entry.expires_after =
            std::chrono::nanoseconds{std::max<std::int64_t>(item.expiry() - now(), 0)};
    }
    return entry;
}

template <std::size_t Count>
struct Engine::Pins {
    Engine* engine;
    std::array<Item*, Count> items{};
    ~Pins() {
        for (Item* const item : items) {
            if (item != nullptr && item->marks.unpin()) [[unlikely]]
                engine->slabs_.free(item);
        }
    }
};

template <bool Uses, class Find, class Otherwise>
inline Item* Engine::pin(std::uint64_t hash, Find find, Otherwise otherwise) {
    Item* pinned = nullptr;
    table_->look(hash, [this, find, &pinned, &otherwise](Item* head) {
        Item* const item = find(head);
        if (item == nullptr || gone(*item, cleared()) != Gone::not_at_all) return;
        if (item->marks.pin(Uses)) [[likely]] {
            pinned = item;
        } else {
            otherwise(*item);
        }
    });
    return pinned;
}

/// Whatever `take` does with the item, which may be to send a megabyte, nobody waits for its lock.
template <bool Uses, class Find>
bool Engine::hand_out(std::uint64_t hash, Find find, TakeEntry take) {
    Pins<1> pins{this};
    bool found_by_lock = false;
    pins.items[0] = pin<Uses>(hash, find, [&](const Item& item) {
        found_by_lock = true;
        take(entry_of(item));  // many have it: for this one the lock keeps it
    });
    if (pins.items[0] == nullptr) return found_by_lock;
    take(entry_of(*pins.items[0]));
    return true;
}

Outcome Engine::find(std::span<const std::byte> key, TakeEntry take) {
    if (is_bad(key)) return Outcome::bad_key;
    const bool found = hand_out<true>(
        hash(key), [key](Item* head) { return find_in(head, key); }, take);
    counters_.add(found ? Count::hits : Count::misses);
    return found ? Outcome::ok : Outcome::not_found;
}

void Engine::find_several(std::span<const std::span<const std::byte>> keys, TakeOneEntry take) {
    constexpr std::size_t at_once = 8;
    std::array<std::uint64_t, at_once> hashes{};
    for (std::size_t begin = 0; begin < keys.size(); begin += at_once) {
        const auto some = keys.subspan(begin, std::min(at_once, keys.size() - begin));
        for (std::size_t i = 0; i != some.size(); ++i) {
            hashes[i] = hash(some[i]);
            table_->prefetch(hashes[i]);
        }
        Pins<at_once> pins{this};
        std::array<bool, at_once> is_wanted_by_many{};
        for (std::size_t i = 0; i != some.size(); ++i) {
            if (is_bad(some[i])) continue;
            pins.items[i] = pin<true>(
                hashes[i], [key = some[i]](Item* head) { return find_in(head, key); },
                [&](const Item&) { is_wanted_by_many[i] = true; });
            if (pins.items[i] != nullptr) prefetch_item(*pins.items[i]);
        }
        for (std::size_t i = 0; i != some.size(); ++i) {
            const std::size_t index = begin + i;
            if (const Item* const item = pins.items[i]) {
                counters_.add(Count::hits);
                take(index, Outcome::ok, entry_of(*item));
                continue;
            }
            Outcome outcome = is_bad(some[i]) ? Outcome::bad_key : Outcome::not_found;
            if (is_wanted_by_many[i]) [[unlikely]] {
                const auto take_it = [&](const Entry& entry) { take(index, Outcome::ok, entry); };
                outcome = find(some[i], take_it);
                if (outcome == Outcome::ok) continue;
            } else if (outcome == Outcome::not_found) {
                counters_.add(Count::misses);
            }
            take(index, outcome, Entry{});
        }
    }
}

bool Engine::exists(std::span<const std::byte> key) const noexcept {
    bool found = false;
    if (is_bad(key)) return found;
    table_->look(hash(key), [&](Item* head) {
        const Item* item = find_in(head, key);
        found = item != nullptr && gone(*item, cleared()) == Gone::not_at_all;
    });
    return found;
}

void Engine::prefetch(std::span<const std::byte> key) const noexcept {
    if (!is_bad(key)) table_->prefetch(hash(key));
}

Cursor Engine::visit_from(Cursor from, VisitEntry visit) {
    // Of 64 KiB and more each, of which all places are looked at.
    constexpr std::uint64_t most_extents = 128;
    const auto hash_key = [this](std::span<const std::byte> key) { return hash(key); };
    std::array<Slabs::Found, Slabs::most_found> found;
    Slabs::Position position = Slabs::Position::of(from);
    for (std::uint64_t extents = 0; extents < most_extents;) {
        const Slabs::Position before = position;
        const std::size_t count = slabs_.walk(position, found.size(), hash_key, found);
        if (count == 0) return Cursor::end;
        for (std::size_t i = 0; i < count; ++i) {
            bool goes_on = true;
            const auto same = [item = found[i].item](Item* head) {
                while (head != nullptr && head != item) head = head->next;
                return head;
            };
            hand_out<false>(found[i].hash, same,
                            [&](const Entry& entry) { goes_on = visit(entry); });
            if (!goes_on) return slabs_.position_of(found[i].item).cursor();
        }
        extents += position.size_class == before.size_class ? position.extent - before.extent
                                                            : std::uint64_t{position.extent} + 1;
    }
    return position.cursor();
}

}  // namespace millrace::kv
