// The random numbers of a link: jitter and faults. Each seed another sequence, the same each time.
#pragma once

#include <cstdint>

namespace millrace::soft {

/// The last step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators): neighbouring numbers become unrelated ones.
[[nodiscard]] constexpr std::uint64_t scatter_bits(std::uint64_t value) noexcept {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9U;
    value = (value ^ value >> 27) * 0x94d049bb133111ebU;
    return value ^ value >> 31;
}

/// splitmix64: each call a new number.
[[nodiscard]] constexpr std::uint64_t next_random(std::uint64_t& state) noexcept {
    state += 0x9e3779b97f4a7c15U;
    return scatter_bits(state);
}

/// Where a queue pair's sequence begins.
[[nodiscard]] constexpr std::uint64_t first_random(std::uint64_t seed,
                                                   std::uint64_t queue) noexcept {
    return seed * 0x2545f4914f6cdd1dU + queue;
}

}  // namespace millrace::soft
