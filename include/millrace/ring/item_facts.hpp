// What the items of a ring are, as far as its two ends compare it. Whoever makes an end knows it of
// the item type: flow/item_name.hpp.
#pragma once

#include <cstddef>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::ring {

/// What an end tells the other of its items.
struct ItemFacts {
    std::size_t size = 0;  ///< 0: frames
    std::size_t alignment = 1;
    /// What an item is called: both ends must say the same. Must outlive the ring. Of more than 160
    /// characters the beginning is shown in errors, and all of it compared (by a hash).
    std::string_view name{};
};

}  // namespace millrace::ring
