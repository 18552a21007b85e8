// How an end proves that it knows the secret: HMAC-SHA-256 (libnettle) over who proves it, when,
// and all that was said before. Used by the handshake.
//
// What is authenticated is a sequence of parts, each behind its length, so that no two sequences
// have the same bytes:
//   label            which proof of which protocol this is: no proof serves as another one
//   connecting Hello   with the nonce of the side that connects, as it lay on the wire
//   challenge          the nonce of the side that accepts
//   accepting Hello    and the Ready's own words, in the proofs that Ready messages carry
// Either end's nonce is new for each handshake, so none of another handshake serves, either.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "millrace/connect/admission.hpp"
#include "wire.hpp"

namespace millrace::connect {

/// What answers a challenge.
inline constexpr std::string_view answer_label = "millrace 2 answer";
/// What the Ready of either side carries.
inline constexpr std::string_view connecting_label = "millrace 2 connecting";
inline constexpr std::string_view accepting_label = "millrace 2 accepting";

/// Throws Error (system): the kernel has no random bytes to give.
[[nodiscard]] Nonce random_nonce();

[[nodiscard]] Digest prove(const Secret& secret, std::string_view label,
                           std::initializer_list<std::span<const std::byte>> parts);

/// Takes as long wherever the two differ.
[[nodiscard]] bool equal(const Digest& one, const Digest& other) noexcept;

}  // namespace millrace::connect
