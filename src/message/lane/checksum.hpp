// CRC-32C (Castagnoli) of a packet: what tells a packet in memory that several clients write into
// from what their writes have made of it. Used by both ends of a shared buffer (shared_buffer.hpp).
//
// Source: RFC 3720, appendix B.4 (the polynomial, and values to test it by); work 001, section
// 4.2.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/base/language.hpp"

namespace millrace::message {

/// By the processor's own instructions, where it has them; by a table elsewhere. `so_far`: what it
/// was of the bytes before; 0: there were none. Any thread.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes,
                                   std::uint32_t so_far = 0) noexcept;
/// The one by a table, for tests.
[[nodiscard]] std::uint32_t crc32c_by_table(std::span<const std::byte> bytes,
                                            std::uint32_t so_far = 0) noexcept;

}  // namespace millrace::message
