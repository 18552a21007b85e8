// What messages and items carry in measurements: changed for every one, read in full.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"

namespace millrace::bench {

/// Changes a message: its number in the first and, from 16 bytes on, in the last eight bytes. Of
/// fewer than eight bytes, as much of the number as fits.
inline void stamp(std::byte* payload, std::size_t size, std::uint64_t number) noexcept {
    std::memcpy(payload, &number, std::min(size, sizeof(number)));
    if (size >= 2 * sizeof(number)) {
        std::memcpy(payload + size - sizeof(number), &number, sizeof(number));
    }
}

/// True if the message is the one with that number.
[[nodiscard]] inline bool stamped(const std::byte* payload, std::size_t size,
                                  std::uint64_t number) noexcept {
    if (size < sizeof(number)) return std::memcmp(payload, &number, size) == 0;
    std::uint64_t first = 0;
    std::memcpy(&first, payload, sizeof(first));
    std::uint64_t last = first;
    if (size >= 2 * sizeof(last)) std::memcpy(&last, payload + size - sizeof(last), sizeof(last));
    return first == number && last == number;
}

namespace detail {
inline constexpr std::size_t line_bytes = 64;
inline constexpr std::size_t least_of_many_lines = 1024;
/// Of whole lines. One function for the whole program, a line to each turn of its loop: with 16
/// bytes to a turn, inlined, a copy whose loop lay across two lines of code read half as fast as
/// others, and what one measurement read by it was compared with what another one did.
[[nodiscard, gnu::noinline]] inline std::uint64_t read_lines(const std::byte* payload,
                                                             std::size_t size) noexcept {
    using Part [[gnu::vector_size(16)]] = std::uint64_t;
    const auto part = [payload](std::size_t at) noexcept {
        Part loaded;
        std::memcpy(&loaded, payload + at, sizeof loaded);
        return loaded;
    };
    Part first{};
    Part second{};
    Part third{};
    Part fourth{};
    for (std::size_t at = 0; at != size; at += line_bytes) {
        first += part(at);
        second += part(at + 16);
        third += part(at + 32);
        fourth += part(at + 48);
    }
    const Part all = first + second + third + fourth;
    return all[0] + all[1];
}
}  // namespace detail

/// Reads every byte (rounded down to 8); for receivers that are handed the message in place.
[[nodiscard]] inline std::uint64_t read_all(const std::byte* payload, std::size_t size) noexcept {
    std::uint64_t sum = 0;
    std::size_t at = 0;
    if (size >= detail::least_of_many_lines) {
        at = size / detail::line_bytes * detail::line_bytes;
        sum = detail::read_lines(payload, at);
    }
    for (; at + 8 <= size; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, payload + at, sizeof(word));
        sum += word;
    }
    return sum;
}

/// Keeps the compiler from leaving out what made `value`.
template <class T>
inline void keep(const T& value) noexcept {
    asm volatile("" : : "g"(&value) : "memory");
}

namespace detail {
/// Out of line, so that a check which holds is a comparison: of 8-byte items some 100 million a
/// second are checked.
[[noreturn, gnu::cold, gnu::noinline]] inline void measurement_failed(const char* what,
                                                                      const char* why) {
    throw base::Error{base::ErrorCode::protocol, "measure", what, why, ""};
}
[[noreturn, gnu::cold, gnu::noinline]] inline void step_failed(base::Status status,
                                                               const char* what) {
    throw base::Error{
        base::ErrorCode::protocol, "measure", what,
        fmt::format("the answer is {}", base::name_of(status)),
        status == base::Status::timed_out ? "measure on a machine with less other load" : ""};
}
}  // namespace detail

/// Throws if what arrived is not what was sent: a wrong answer has no speed.
inline void require_intact(bool holds, const char* what) {
    if (!holds) [[unlikely]]
        detail::measurement_failed(what, "the data that arrived is not the data that was sent");
}

/// Throws if a step of the measurement failed.
inline void require(bool holds, const char* what) {
    if (!holds) [[unlikely]]
        detail::measurement_failed(what, "it failed");
}
inline void require(base::Status status, const char* what) {
    if (status != base::Status::ok) [[unlikely]]
        detail::step_failed(status, what);
}

}  // namespace millrace::bench
