// What an engine does with all of its items: to remove them, to visit them, to count them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "engine.hpp"

namespace millrace::kv {

void Engine::clear() noexcept {
    {
        const std::lock_guard lock{clearing_};
        is_clearing_.store(true, std::memory_order_seq_cst);
        cleared_.store(version_.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
        is_clearing_.store(false, std::memory_order_seq_cst);
    }
    const auto hash_key = [this](std::span<const std::byte> key) { return hash(key); };
    std::array<Slabs::Found, Slabs::most_found> found;
    Slabs::Position position;
    while (const std::size_t count = slabs_.walk(position, found.size(), hash_key, found)) {
        for (std::size_t i = 0; i < count; ++i) remove_if_gone(found[i]);
    }
    slabs_.trim();
}

void Engine::for_each(TakeEntry visit) {
    Cursor at = Cursor::begin;
    while (at != Cursor::end) {
        at = visit_from(at, [&](const Entry& entry) {
            visit(entry);
            return true;
        });
    }
}

bool Engine::pick(std::uint64_t random, TakeEntry take) {
    bool found = false;
    const auto visit = [&](const Entry& entry) {
        take(entry);
        found = true;
        return false;
    };
    // From a place that chance picks to the end, and then what is before it.
    Cursor at = slabs_.position_by(random).cursor();
    while (!found && at != Cursor::end) at = visit_from(at, visit);
    at = Cursor::begin;
    while (!found && at != Cursor::end) at = visit_from(at, visit);
    return found;
}

Store::Moment Engine::moment() const noexcept {
    const std::uint64_t moved = moved_.load(std::memory_order_acquire);
    const std::uint64_t relocated = relocated_.load(std::memory_order_acquire);
    return {version_.load(std::memory_order_acquire), moved, relocated};
}

std::size_t Engine::sweep(std::size_t budget) noexcept {
    const auto hash_key = [this](std::span<const std::byte> key) { return hash(key); };
    const std::lock_guard lock{sweeping_};
    std::array<Slabs::Found, Slabs::most_found> found;
    std::size_t removed = 0;
    // Once round at most, and no item twice.
    budget = std::min<std::uint64_t>(budget, items_.load(std::memory_order_relaxed));
    for (int rounds = 0; budget != 0 && rounds < 2;) {
        const std::size_t count = slabs_.walk(swept_, budget, hash_key, found);
        if (count == 0) {
            swept_ = {};
            ++rounds;
        }
        budget -= count;
        for (std::size_t i = 0; i < count; ++i) removed += remove_if_gone(found[i]) ? 1 : 0;
    }
    return removed;
}

StoreStats Engine::stats() const noexcept {
    StoreStats stats;
    stats.items = items_.load(std::memory_order_relaxed);
    stats.item_bytes = counters_.sum(Count::bytes);
    stats.memory_bytes = budget_.taken();
    stats.hits = counters_.sum(Count::hits);
    stats.gets = stats.hits + counters_.sum(Count::misses);
    stats.sets = counters_.sum(Count::sets);
    stats.erased = counters_.sum(Count::erased);
    stats.evicted = counters_.sum(Count::evicted);
    stats.expired = counters_.sum(Count::expired);
    stats.refused = counters_.sum(Count::refused);
    return stats;
}

}  // namespace millrace::kv
