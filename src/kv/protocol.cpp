#include "millrace/kv/protocol.hpp"

#include <utility>

namespace millrace::kv {
namespace {

/// Reads a number from the front of `bytes`; false if there are fewer.
template <class Number>
bool take(std::span<const std::byte>& bytes, Number& number) noexcept {
    if (bytes.size() < sizeof number) return false;
    std::memcpy(&number, bytes.data(), sizeof number);
    bytes = bytes.subspan(sizeof number);
    return true;
}

}  // namespace

std::optional<RequestParts> parse_request(std::span<const std::byte> payload) noexcept {
    std::uint64_t head = 0;
    if (!take(payload, head)) return std::nullopt;
    const auto flags = static_cast<std::uint8_t>(head);
    if ((flags & ~(request_has_version | request_expires)) != 0) {
        return std::nullopt;
    }
    RequestParts parts;
    if ((flags & request_has_version) != 0) {
        std::uint64_t version = 0;
        if (!take(payload, version)) return std::nullopt;
        parts.options.if_version = version;
    }
    if ((flags & request_expires) != 0) {
        std::uint64_t microseconds = 0;
        if (!take(payload, microseconds)) return std::nullopt;
        constexpr std::chrono::microseconds most = longest_time;
        if (microseconds <= static_cast<std::uint64_t>(most.count())) {
            parts.options.expires_after =
                std::chrono::microseconds{static_cast<std::int64_t>(microseconds)};
        }
    }
    const std::size_t key = head >> 8 & 0xffffff;
    const std::size_t value = head >> 32;
    if (payload.size() != key + value) return std::nullopt;
    parts.key = payload.first(key);
    parts.value = payload.subspan(key);
    return parts;
}

std::optional<AnswerHead> parse_answer(std::span<const std::byte> payload,
                                       std::span<const std::byte>& rest) noexcept {
    std::uint64_t head = 0;
    if (!take(payload, head)) return std::nullopt;
    const auto code = static_cast<std::uint8_t>(head);
    if (code >= static_cast<std::uint8_t>(Code::unanswered)) return std::nullopt;
    rest = payload;
    return AnswerHead{static_cast<Code>(code), head >> 8};
}

std::optional<DumpRequest> parse_dump_request(std::span<const std::byte> value) noexcept {
    DumpRequest request;
    if (!take(value, request.from) || !take(value, request.bytes) || !value.empty()) {
        return std::nullopt;
    }
    return request;
}

std::optional<DumpPage> parse_dump_page(std::span<const std::byte> rest) noexcept {
    DumpPage page;
    if (!take(rest, page.next)) return std::nullopt;
    page.items = rest;
    return page;
}

std::optional<Entry> next_of_dump(std::span<const std::byte>& dump) noexcept {
    std::span<const std::byte> rest = dump;
    std::uint64_t sizes = 0;
    Entry entry;
    if (!take(rest, sizes) || !take(rest, entry.version)) return std::nullopt;
    const std::size_t key = sizes & 0xffffffff;
    const std::size_t value = sizes >> 32;
    if (rest.size() < key + value) return std::nullopt;
    entry.key = rest.first(key);
    entry.value = rest.subspan(key, value);
    dump = rest.subspan(key + value);
    return entry;
}

std::optional<MgetRequest> parse_mget_request(std::span<const std::byte> value) noexcept {
    MgetRequest request;
    if (!take(value, request.bytes)) return std::nullopt;
    request.keys = value;
    while (next_of_keys(value)) ++request.count;
    if (!value.empty() || request.count == 0 || request.count > most_keys ||
        request.bytes < request.count * mget_item_head_bytes) {
        return std::nullopt;
    }
    return request;
}

std::optional<std::span<const std::byte>> next_of_keys(std::span<const std::byte>& keys) noexcept {
    std::span<const std::byte> rest = keys;
    std::uint32_t length = 0;
    if (!take(rest, length) || rest.size() < length) return std::nullopt;
    keys = rest.subspan(length);
    return rest.first(length);
}

std::optional<MgetItem> next_of_mget(std::span<const std::byte>& items) noexcept {
    constexpr std::uint32_t left_out = std::uint32_t{1} << 31;
    std::span<const std::byte> rest = items;
    MgetItem item;
    const std::optional<AnswerHead> head = parse_answer(rest, rest);
    if (!head || !take(rest, item.bytes)) return std::nullopt;
    item.head = *head;
    item.is_left_out = (item.bytes & left_out) != 0;
    item.bytes &= ~left_out;
    if (!item.is_left_out) {
        if (rest.size() < item.bytes) return std::nullopt;
        item.value = rest.first(item.bytes);
        rest = rest.subspan(item.bytes);
    }
    items = rest;
    return item;
}

}  // namespace millrace::kv
