// What a program's callable made of the room that it was given. Used by whatever sends in place.
//
//     const std::size_t used = message::detail::filled(room, fill);   // then used bytes are sent
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "millrace/base/language.hpp"

namespace millrace::message::detail {

/// How many bytes of `room` are used after `fill(room)`, which says it, or fills all.
template <class Fill>
std::size_t filled(std::span<std::byte> room, Fill& fill) {
    if constexpr (std::is_void_v<std::invoke_result_t<Fill&, std::span<std::byte>>>) {
        fill(room);
        return room.size();
    } else {
        return std::min<std::size_t>(room.size(), fill(room));
    }
}

}  // namespace millrace::message::detail
