// Implementation of hazard.hpp.
#include "hazard.hpp"

#include <algorithm>
#include <utility>

#include "fabric.hpp"

namespace millrace::soft {
namespace {

/// Of what a peer may have written there, too.
[[nodiscard]] std::uint32_t index_of_named(std::uint32_t key) noexcept {
    return index_of_key(key) % regions_per_node;
}

}  // namespace

void Hazard::forget(NamedBy mine) noexcept {
    if (named[0].load(std::memory_order_relaxed) == names_any) return;
    for (std::atomic<std::uint64_t>& pair : named) {
        const std::uint64_t names = pair.load(std::memory_order_relaxed);
        std::uint64_t others = names & names_more;
        if ((mine & named_by_sender) == 0) others |= names >> 32 << 32;
        if ((mine & named_by_receiver) == 0) others |= static_cast<std::uint32_t>(names);
        pair.store(others, std::memory_order_release);
    }
}

void RegionNames::add(Keys& keys, std::uint32_t key) noexcept {
    if (key == 0) return;
    const auto* const end = keys.keys.data() + keys.count;
    if (std::find(std::as_const(keys.keys).data(), end, key) != end) return;
    if (keys.count == keys.keys.size()) {
        too_many_ = true;
    } else {
        keys.keys[keys.count++] = key;
    }
}

void RegionNames::publish(Hazard& hazard) const noexcept {
    if (too_many_) return;
    const std::size_t count = std::max(senders_.count, receivers_.count);
    for (std::size_t i = 1; i < count; ++i) {
        hazard.named[i].store(name_pair(senders_.keys[i], receivers_.keys[i]),
                              std::memory_order_release);
    }
    for (std::size_t i = std::max<std::size_t>(count, 1); count > 1 && i < named_pairs; ++i) {
        hazard.named[i].store(0, std::memory_order_release);
    }
    hazard.named[0].store(
        name_pair(senders_.keys[0], receivers_.keys[0]) | (count > 1 ? names_more : 0),
        std::memory_order_release);
}

FencedKey::FencedKey(const Node& node, std::uint32_t key) noexcept
    : node_{node}, index_{index_of_named(key)}, window_{node.is_window(key)} {}

bool FencedKey::is(std::uint32_t named) const noexcept {
    if (named == 0) return false;
    if (index_of_named(named) == index_) return true;
    // A window's key says nothing of the region that it shows.
    return !window_ && node_.is_window(named);
}

bool FencedKey::in_pair(std::uint64_t pair, unsigned mine) const noexcept {
    const auto sender = static_cast<std::uint32_t>((pair & ~names_more) >> 32);
    const auto receiver = static_cast<std::uint32_t>(pair);
    return ((mine & named_by_sender) != 0 && is(sender)) ||
           ((mine & named_by_receiver) != 0 && is(receiver));
}

bool FencedKey::may_be_in(const Hazard& hazard, unsigned mine) const noexcept {
    const std::uint64_t first = hazard.named[0].load(std::memory_order_acquire);
    if (first == names_any || in_pair(first, mine)) return true;
    if ((first & names_more) == 0) return false;
    for (std::size_t i = 1; i < named_pairs; ++i) {
        if (in_pair(hazard.named[i].load(std::memory_order_acquire), mine)) return true;
    }
    return false;
}

}  // namespace millrace::soft
