// Scanning a dense array of mailboxes, one byte each, for the next one that is not empty. A server
// of thousands of clients does that all day, so there is a kernel for each set of vector
// instructions; all of them give the same answers. Used by the server's polling
// (src/message/server/mailboxes.hpp) and by the benchmarks.
//
// Devices and other processes write to the mailboxes while they are scanned. A kernel loads each
// byte at least once within the call; the next scan finds a byte that was set after that load.
//
//     const message::Scan scan = message::scan_by(message::best_scan_kernel());
//     for (std::size_t i = 0; (i = scan(boxes, i, count)) != count; ++i) …
//
// Source: work 001, section 4.2.3 and listings A.2 to A.5.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::message {

enum class ScanKernel : std::uint8_t {
    scalar,     ///< byte by byte, as listing A.2
    sse2,       ///< 16 bytes at a time, as listing A.3
    pcmpestri,  ///< 16 bytes by a string comparison (SSE4.2), as listing A.4
    avx2,       ///< 32 bytes, four times
    neon,       ///< 16 bytes, four times
};
inline constexpr std::array every_scan_kernel{ScanKernel::scalar, ScanKernel::sse2,
                                              ScanKernel::pcmpestri, ScanKernel::avx2,
                                              ScanKernel::neon};
[[nodiscard]] std::string_view name_of(ScanKernel kernel) noexcept;

/// The first index in [from, count) whose byte is not zero; `count` if there is none, and if `from`
/// is not below it. `boxes`: any alignment; nothing outside [boxes, boxes + count) is touched.
using Scan = std::size_t (*)(const std::byte* boxes, std::size_t from, std::size_t count) noexcept;

/// True if this build has the kernel and this processor can run it. `scalar`: always.
[[nodiscard]] bool is_available(ScanKernel kernel) noexcept;
/// The fastest of those that are available, decided at the first call. Any thread.
[[nodiscard]] ScanKernel best_scan_kernel() noexcept;
/// Precondition: is_available.
[[nodiscard]] Scan scan_by(ScanKernel kernel) noexcept;

}  // namespace millrace::message
