// What the two ends of a link tell each other behind the handshake: a plain structure of numbers,
// which travels as it lies in memory. Used by the set-up of floor 5.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "millrace/base/error.hpp"

namespace millrace::connect {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

namespace detail {
/// Throws Error (protocol) that names both sizes, unless they are equal.
void require_size(std::size_t told, std::size_t expected, const char* attempted,
                  const std::string& peer);
}  // namespace detail

/// Their bytes, for Link::exchange and Link::say.
template <class Facts>
[[nodiscard]] std::span<const std::byte> bytes_of(const Facts& facts) noexcept {
    static_assert(std::has_unique_object_representations_v<Facts>, "padding would travel");
    return std::as_bytes(std::span{&facts, 1});
}

/// What `peer` has told. What the numbers mean, and whether they can be so, is for the caller to
/// judge. `attempted`: what fails if they are of another size. Throws Error (protocol).
template <class Facts>
[[nodiscard]] Facts facts_in(std::span<const std::byte> told, const char* attempted,
                             const std::string& peer) {
    static_assert(std::has_unique_object_representations_v<Facts>, "padding would travel");
    detail::require_size(told.size(), sizeof(Facts), attempted, peer);
    Facts facts;
    std::memcpy(&facts, told.data(), sizeof facts);
    return facts;
}

}  // namespace millrace::connect
