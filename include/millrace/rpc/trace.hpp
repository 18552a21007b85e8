// Which trace a call belongs to: W3C Trace Context, as it travels in a call's head, and as text for
// programs that speak to other systems.
//
//     const rpc::CallOptions options{.trace = rpc::parse_traceparent(http_header)};
//     const std::string header = rpc::to_traceparent(call.trace().value());
//
// Source: https://www.w3.org/TR/trace-context/, section 3.2 (the header traceparent).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::rpc {

/// W3C Trace Context, level 1: what the header `traceparent` carries, apart from its version.
struct Trace {
    std::array<std::byte, 16> trace_id{};
    std::array<std::byte, 8> parent_id{};
    std::uint8_t flags = 0;
    friend bool operator==(const Trace&, const Trace&) = default;

    /// The flag that the caller may have recorded it.
    [[nodiscard]] constexpr bool is_sampled() const noexcept { return (flags & 1) != 0; }
    /// Neither id is all zeroes, which stands for none. What travels is not looked at for that.
    [[nodiscard]] bool is_valid() const noexcept;
};

/// "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", of whatever is in it.
[[nodiscard]] std::string to_traceparent(const Trace& trace);

/// Reads it. Nothing, where a trace is to be begun anew: the text is not of that form (hexadecimal
/// digits are lower case ones), an id is all zeroes, or the version is ff. Of versions beyond 00
/// what level 1 knows is taken, and what follows another '-' is passed over.
[[nodiscard]] std::optional<Trace> parse_traceparent(std::string_view text) noexcept;

}  // namespace millrace::rpc
