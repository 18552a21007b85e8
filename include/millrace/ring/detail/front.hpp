// Where a consumer is in its ring. Receiver moves on in it item by item; the Intake says how far
// there are items; the SpaceGiver notes what was given back. All is the calling thread's.
//
//   own ring   --+----------+------------+----
//             returned   consumed     arrived      returned <= consumed <= arrived
//
// With pull data the space that is returned is that of the producer's ring: there,
// consumed <= returned <= arrived. With marks in the own ring there is no `arrived`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::ring::detail {

struct Front {
    const std::byte* ring = nullptr;  ///< until the producer's last word, one that stays empty
    std::uint64_t offset = 0;         ///< of `consumed` in the ring
    std::uint64_t consumed = 0;
    std::uint64_t arrived = 0;
    std::uint64_t initial = 0;
    std::uint64_t ring_bytes = 0;
    std::uint64_t returned = 0;  ///< what the producer was last told
    std::uint64_t step = 0;      ///< consumed bytes that are worth to be returned

    void pass(std::uint64_t bytes) noexcept {
        consumed += bytes;
        offset += bytes;
        if (offset == ring_bytes) [[unlikely]]
            offset = 0;
    }
    /// Items have arrived up to `position`; it never goes back.
    void arrive(std::uint64_t position) noexcept {
        if (static_cast<std::int64_t>(position - arrived) > 0) arrived = position;
    }
};
static_assert(sizeof(Front) == 64, "a cache line: every dequeue reads most of it");

}  // namespace millrace::ring::detail
