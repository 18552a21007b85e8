#include "millrace/rpc/trace.hpp"

#include <algorithm>
#include <span>

namespace millrace::rpc {
namespace {

constexpr std::size_t version_at = 0;
constexpr std::size_t trace_id_at = 3;
constexpr std::size_t parent_id_at = 36;
constexpr std::size_t flags_at = 53;
constexpr std::size_t whole = 55;
constexpr std::string_view digits = "0123456789abcdef";

[[nodiscard]] bool is_none(std::span<const std::byte> id) noexcept {
    return std::ranges::all_of(id, [](std::byte each) { return each == std::byte{0}; });
}

void append(std::string& text, std::span<const std::byte> bytes) {
    for (const std::byte each : bytes) {
        text += digits[std::to_integer<unsigned>(each) >> 4];
        text += digits[std::to_integer<unsigned>(each) & 0xf];
    }
}

/// Two digits for each byte. False: some are none.
[[nodiscard]] bool read(std::string_view text, std::size_t at, std::span<std::byte> into) noexcept {
    for (std::byte& each : into) {
        const std::size_t high = digits.find(text[at]);
        const std::size_t low = digits.find(text[at + 1]);
        if (high == std::string_view::npos || low == std::string_view::npos) return false;
        each = static_cast<std::byte>(high << 4 | low);
        at += 2;
    }
    return true;
}

}  // namespace

bool Trace::is_valid() const noexcept { return !is_none(trace_id) && !is_none(parent_id); }

std::string to_traceparent(const Trace& trace) {
    std::string text = "00-";
    text.reserve(whole);
    append(text, trace.trace_id);
    text += '-';
    append(text, trace.parent_id);
    text += '-';
    append(text, std::array{static_cast<std::byte>(trace.flags)});
    return text;
}

std::optional<Trace> parse_traceparent(std::string_view text) noexcept {
    if (text.size() < whole) return std::nullopt;
    for (const std::size_t at : {trace_id_at, parent_id_at, flags_at}) {
        if (text[at - 1] != '-') return std::nullopt;
    }
    std::array<std::byte, 1> version{};
    std::array<std::byte, 1> flags{};
    Trace trace;
    if (!read(text, version_at, version) || !read(text, trace_id_at, trace.trace_id) ||
        !read(text, parent_id_at, trace.parent_id) || !read(text, flags_at, flags)) {
        return std::nullopt;
    }
    trace.flags = std::to_integer<std::uint8_t>(flags[0]);
    if (version[0] == std::byte{0xff} || !trace.is_valid()) return std::nullopt;
    const bool has_more = text.size() > whole;
    if (has_more && (version[0] == std::byte{0} || text[whole] != '-')) return std::nullopt;
    return trace;
}

}  // namespace millrace::rpc
