// What stands in front of a request's payload where there is something to say of the call: a head,
// which the highest bit of the procedure's number announces. A call without a deadline, a trace or
// a priority has none.
//
//   word 0   | words (8 bits, this one included) | facts (8) | priority (8) | trace flags (8) | 0 |
//   word 1   sent_at       if facts says so: the client's monotonic clock, in ns
//   word 2…  trace         if facts says so: 16 bytes of trace id, 8 of the parent's id
//   …        stream        if facts says so: the number by which parts are asked for (stream.hpp)
//
// A reader skips what it does not know: further facts stand after these.
//
// How long a client waits is told by the session's header, from when the request was sent. The
// server finds how long it lay unread by sent_at: the least difference of the two clocks that it
// has seen of this client, which stands for no delay at all, is taken off (late.hpp).
//
// The payload of Outcome::failed is an error:
//
//   | code (8 bits) | 0 (8) | bytes of text (16) | number (32) | text … | detail … |
//
// Everything here may have been written by a hostile peer: parse_…() tells.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "millrace/base/language.hpp"
#include "millrace/rpc/result.hpp"
#include "millrace/rpc/trace.hpp"

namespace millrace::rpc {

/// The server serves what waits in this order, of all its clients: one of low priority is put off,
/// and handed to its handler once no other one is there, and at the latest after 16 others
/// (message::detail::PuttingOff). Requests of one priority are handed to handlers in the order in
/// which they were sent, and clients take turns. Under overload, low ones are refused first: when
/// half of what the server allows is under way.
enum class Priority : std::uint8_t { normal = 0, low = 1 };

struct Head {
    std::optional<std::uint64_t> sent_at{};
    std::optional<Trace> trace{};
    std::optional<std::uint64_t> stream{};
    Priority priority = Priority::normal;
    /// The server said `late` before the deadline had passed: it is to compare the clocks anew.
    bool clocks_parted = false;

    [[nodiscard]] bool is_empty() const noexcept {
        return !sent_at.has_value() && !trace.has_value() && !stream.has_value() &&
               priority == Priority::normal;
    }
};

inline constexpr std::uint16_t head_bit = 0x8000;
inline constexpr std::size_t longest_head = 48;
/// Of the procedures that every server has; those of the program follow.
inline constexpr std::uint16_t table_number = 0;
inline constexpr std::uint16_t report_number = 1;
inline constexpr std::uint16_t pull_number = 2;
inline constexpr std::uint16_t first_number = 16;
inline constexpr std::size_t most_procedures = 4096;

namespace detail {
enum Fact : std::uint8_t {
    fact_sent_at = 1,
    fact_trace = 2,
    fact_clocks_parted = 4,
    fact_stream = 8
};
}

/// Bytes of the head, 0 if it is empty.
[[nodiscard]] inline std::size_t size_of(const Head& head) noexcept {
    if (head.is_empty()) return 0;
    return 8 + (head.sent_at.has_value() ? 8 : 0) + (head.trace.has_value() ? 24 : 0) +
           (head.stream.has_value() ? 8 : 0);
}
/// `into` has size_of(head) bytes.
inline void write(const Head& head, std::byte* into) noexcept {
    std::uint64_t words = 1;
    std::uint64_t facts = 0;
    if (head.sent_at.has_value()) {
        facts |= detail::fact_sent_at;
        std::memcpy(into + 8 * words, &*head.sent_at, 8);
        words += 1;
    }
    std::uint64_t trace_flags = 0;
    if (head.trace.has_value()) {
        facts |= detail::fact_trace;
        std::memcpy(into + 8 * words, head.trace->trace_id.data(), 16);
        std::memcpy(into + 8 * words + 16, head.trace->parent_id.data(), 8);
        trace_flags = head.trace->flags;
        words += 3;
    }
    if (head.stream.has_value()) {
        facts |= detail::fact_stream;
        std::memcpy(into + 8 * words, &*head.stream, 8);
        words += 1;
    }
    if (head.clocks_parted) facts |= detail::fact_clocks_parted;
    const std::uint64_t first = words | facts << 8 |
                                std::uint64_t{static_cast<std::uint8_t>(head.priority)} << 16 |
                                trace_flags << 24;
    std::memcpy(into, &first, sizeof first);
}
/// The head, and what follows it; false: no peer that keeps to the protocol sends this.
[[nodiscard]] inline bool parse_head(std::span<const std::byte> request, Head& head,
                                     std::span<const std::byte>& payload) noexcept {
    std::uint64_t first = 0;
    if (request.size() < sizeof first) return false;
    std::memcpy(&first, request.data(), sizeof first);
    const std::size_t size = (first & 0xff) * 8;
    const auto facts = static_cast<std::uint8_t>(first >> 8);
    std::size_t needed = 8;
    if ((facts & detail::fact_sent_at) != 0) needed += 8;
    if ((facts & detail::fact_trace) != 0) needed += 24;
    if ((facts & detail::fact_stream) != 0) needed += 8;
    const auto priority = static_cast<std::uint8_t>(first >> 16);
    if (size < needed || size > request.size()) return false;
    if (priority > static_cast<std::uint8_t>(Priority::low)) return false;
    const std::byte* at = request.data() + 8;
    if ((facts & detail::fact_sent_at) != 0) {
        std::uint64_t stamp = 0;
        std::memcpy(&stamp, at, sizeof stamp);
        head.sent_at = stamp;
        at += sizeof stamp;
    }
    if ((facts & detail::fact_trace) != 0) {
        Trace& trace = head.trace.emplace();
        std::memcpy(trace.trace_id.data(), at, 16);
        std::memcpy(trace.parent_id.data(), at + 16, 8);
        trace.flags = static_cast<std::uint8_t>(first >> 24);
        at += 24;
    }
    if ((facts & detail::fact_stream) != 0) {
        std::uint64_t number = 0;
        std::memcpy(&number, at, sizeof number);
        head.stream = number;
    }
    head.priority = static_cast<Priority>(priority);
    head.clocks_parted = (facts & detail::fact_clocks_parted) != 0;
    payload = request.subspan(size);
    return true;
}

/// At most longest_error bytes of text and detail. `into`: as many and 8.
using ErrorRoom = std::array<std::byte, 8 + longest_error>;
[[nodiscard]] std::span<const std::byte> write(const Error& error, ErrorRoom& into) noexcept;
/// What it says, or, where it is none: `failed`, with what there is for a text.
[[nodiscard]] Error parse_error(std::span<const std::byte> payload);

}  // namespace millrace::rpc
