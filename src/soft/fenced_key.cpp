// Implementation of fenced_key.hpp.
#include "fenced_key.hpp"

#include <cstddef>

#include "layout.hpp"
#include "node.hpp"

namespace millrace::soft {
namespace {

/// Of what a peer may have written there, too.
[[nodiscard]] std::uint32_t index_of_named(std::uint32_t key) noexcept {
    return index_of_key(key) % regions_per_node;
}

}  // namespace

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
