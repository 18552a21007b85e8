// What the items of a ring are, as far as its two ends compare it. Code that makes an end knows it
// of the item type: flow/item_name.hpp.
#pragma once

#include <cstddef>
#include <string_view>

#include "millrace/base/language.hpp"
#include "millrace/ring/filter_terms.hpp"

namespace millrace::ring {

/// What an end tells the other of its items.
struct ItemFacts {
    std::size_t size = 0;  ///< 0: frames
    std::size_t alignment = 1;
    /// What an item is called: both ends must say the same. Must outlive the ring. Of more than 160
    /// characters the beginning is shown in errors, and all of it compared (by a hash).
    std::string_view name{};
    /// A consumer's: what the producer is to make of its items, so that they become these. Null:
    /// they are the producer's as they are. Only until the two have agreed.
    const FilterAsked* filter = nullptr;
    /// A producer's: the function that answers that. Null: nothing is made of them.
    FilterOffer* offer = nullptr;
};

}  // namespace millrace::ring
