// What a client and a key-value server say to each other: how a request and its answer lie in the
// payload of a message. Which request answers which, and what is lost, is the session's matter
// (message/session.hpp); the command travels as its procedure number.
//
//   request   u8 flags | u24 key bytes | u32 value bytes
//             [u64 version]      if request_has_version
//             [u64 microseconds] if request_expires: SetOptions::expires_after; 0: no time at all
//             key, value
//   answer    u8 code | 56 bits of version, then what the code and the command say
//
// All integers are little-endian. A request whose parts do not add up to its length is a
// parsing_error, and nothing is done.
//
//   get      key                       value
//   set      key, value, conditions    -; conflict: the version that the item has
//   del      key, version              -
//   exists   key                       -
//   ping     any value                 the same
//   stats    -                         lines "name value"
//   dump     value: u64 cursor,        u64 the next page's cursor, then items: u32 key bytes |
//            u32 bytes of the page     u32 value bytes | u64 version | key, value. Needs permission
//   rst      -                         -. Removes every item. Needs permission
//   exit     -                         -. The server drains and ends. Needs permission
//   setopt   key: name, value: text    -
//   mget     value: u32 bytes of the   of each key, in their order: u64 code and version, as an
//            items | keys: u32 bytes   answer begins | u32 bytes of the value, and the highest bit
//            | key                     if it is left out | value, unless it is left out
//
// An mget asks for 1 to most_keys keys. All of them are in its answer, each as a get would find it
// at some moment meanwhile. A value is left out where the items, with it, would take more bytes
// than were asked for: the client asks for it once more. A server from before there was mget
// answers unknown_error, and the client asks for each key by get.
//
// A dump goes by pages: the first one's cursor is 0, and after the last one it is all ones. A page
// has the bytes that were asked for at most, and never more than dump_page_bytes, unless its one
// item has. In between the server serves others.
//
// Source: work 002, section 3.1, whose requests and answers have a constant size and arrays for key
// and value.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "millrace/kv/store.hpp"

namespace millrace::kv {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

/// What the server says that it is (message::Tuning::service).
inline constexpr std::string_view server_service = "key-value store";

enum class Command : std::uint16_t {
    unknown,
    set,
    get,
    del,
    ping,
    dump,
    rst,
    exit,
    setopt,
    exists,
    stats,
    mget
};
inline constexpr std::size_t commands = 12;
[[nodiscard]] constexpr std::string_view name_of(Command command) noexcept {
    constexpr std::string_view names[commands] = {"unknown", "set",    "get",   "del",
                                                  "ping",    "dump",   "rst",   "exit",
                                                  "setopt",  "exists", "stats", "mget"};
    const auto index = static_cast<std::size_t>(command);
    return names[index < commands ? index : 0];
}

/// What became of a request.
enum class Code : std::uint8_t {
    ok,
    key_error,      ///< the key is not there, or cannot be a key
    parsing_error,  ///< the request cannot be read
    store_error,    ///< no memory for the item, or a value cannot be so long
    setopt_error,   ///< an unknown option, or a value that it does not take
    unknown_error,  ///< an unknown command
    // Not in the work:
    conflict,  ///< the item is not of the version that was asked for
    denied,    ///< the server does not permit it
    /// Never sent: there is no answer, and message::Outcome says why.
    unanswered,
};
[[nodiscard]] constexpr std::string_view name_of(Code code) noexcept {
    switch (code) {
        case Code::ok: return "OK";
        case Code::key_error: return "KEY_ERROR";
        case Code::parsing_error: return "PARSING_ERROR";
        case Code::store_error: return "STORE_ERROR";
        case Code::setopt_error: return "SETOPT_ERROR";
        case Code::unknown_error: return "UNK_ERROR";
        case Code::conflict: return "CONFLICT";
        case Code::denied: return "DENIED";
        case Code::unanswered: return "UNANSWERED";
    }
    return "unknown";
}

inline constexpr std::uint8_t request_has_version = 1;
inline constexpr std::uint8_t request_expires = 2;

/// A request's parts. `key` and `value` are not the request's own.
struct RequestParts {
    std::span<const std::byte> key{};
    std::span<const std::byte> value{};
    SetOptions options{};
};

inline constexpr std::size_t request_head_bytes = 8;
inline constexpr std::size_t answer_head_bytes = 8;
/// The longest there is.
inline constexpr std::size_t longest_request =
    request_head_bytes + 16 + longest_key + longest_value;

/// Bytes of the request.
[[nodiscard]] constexpr std::size_t size_of(const RequestParts& parts) noexcept {
    return request_head_bytes + (parts.options.if_version ? 8 : 0) +
           (parts.options.expires_after ? 8 : 0) + parts.key.size() + parts.value.size();
}
/// Writes it to `room`, of size_of(parts) bytes. Requires a key and a value that are not too long.
inline void write(const RequestParts& parts, std::span<std::byte> room) noexcept {
    std::byte* at = room.data();
    const auto put = [&at](const void* from, std::size_t bytes) {
        if (bytes != 0) std::memcpy(at, from, bytes);
        at += bytes;
    };
    const std::uint64_t head = (parts.options.if_version ? request_has_version : 0U) |
                               (parts.options.expires_after ? request_expires : 0U) |
                               std::uint64_t{parts.key.size() & 0xffffff} << 8 |
                               std::uint64_t{static_cast<std::uint32_t>(parts.value.size())} << 32;
    put(&head, sizeof head);
    if (parts.options.if_version) put(&*parts.options.if_version, 8);
    if (parts.options.expires_after) {
        const std::int64_t asked =
            std::chrono::ceil<std::chrono::microseconds>(*parts.options.expires_after).count();
        const std::uint64_t microseconds = asked > 0 ? static_cast<std::uint64_t>(asked) : 0;
        put(&microseconds, 8);
    }
    put(parts.key.data(), parts.key.size());
    put(parts.value.data(), parts.value.size());
}
/// None: it cannot be read as a request.
[[nodiscard]] std::optional<RequestParts> parse_request(
    std::span<const std::byte> payload) noexcept;

/// How an answer begins.
struct AnswerHead {
    Code code = Code::ok;
    Version version = 0;  ///< of the item, or 0
};
inline constexpr Version largest_version = (Version{1} << 56) - 1;

[[nodiscard]] constexpr std::uint64_t pack(const AnswerHead& head) noexcept {
    return static_cast<std::uint8_t>(head.code) | head.version << 8;
}
/// None: no server sends this. `rest`: what follows it.
[[nodiscard]] std::optional<AnswerHead> parse_answer(std::span<const std::byte> payload,
                                                     std::span<const std::byte>& rest) noexcept;

/// Of items, those of a page of a dump have at most.
inline constexpr std::uint32_t dump_page_bytes = std::uint32_t{1} << 20;

/// Which page of a dump is asked for: a request's value.
struct DumpRequest {
    Cursor from = Cursor::begin;
    std::uint32_t bytes = dump_page_bytes;  ///< of its items, at most; one is there in any case
};
inline constexpr std::size_t dump_request_bytes = 12;
[[nodiscard]] inline std::array<std::byte, dump_request_bytes> pack(
    const DumpRequest& request) noexcept {
    std::array<std::byte, dump_request_bytes> packed{};
    std::memcpy(packed.data(), &request.from, sizeof request.from);
    std::memcpy(packed.data() + sizeof request.from, &request.bytes, sizeof request.bytes);
    return packed;
}
/// None: it is none.
[[nodiscard]] std::optional<DumpRequest> parse_dump_request(
    std::span<const std::byte> value) noexcept;

/// A page, as it lies after the answer's head.
struct DumpPage {
    Cursor next = Cursor::end;           ///< where the next one begins
    std::span<const std::byte> items{};  ///< see next_of_dump()
};
/// None: it is none.
[[nodiscard]] std::optional<DumpPage> parse_dump_page(std::span<const std::byte> rest) noexcept;

/// What an item takes in a page, apart from its bytes.
inline constexpr std::size_t dumped_head_bytes = 16;
/// One item of a dump, and what follows it. None: at the end, or if it is not a dump (then `dump`
/// is not empty).
[[nodiscard]] std::optional<Entry> next_of_dump(std::span<const std::byte>& dump) noexcept;

/// Keys that one mget asks for at most, so that other clients do not wait for long.
inline constexpr std::size_t most_keys = 128;
/// Of the items of its answer. More is not answered, whatever was asked for.
inline constexpr std::uint32_t most_mget_bytes = std::uint32_t{1} << 20;
/// What an item takes in the answer to an mget, apart from its value.
inline constexpr std::size_t mget_item_head_bytes = 12;

/// What an mget asks for: a request's value.
struct MgetRequest {
    std::uint32_t bytes = 0;            ///< of the answer's items, at most
    std::span<const std::byte> keys{};  ///< see next_of_keys()
    std::size_t count = 0;              ///< of them
};
/// What a key takes in it, and all keys together.
inline constexpr std::size_t mget_key_head_bytes = 4;
inline constexpr std::size_t mget_request_head_bytes = 4;
/// None: it is none, has no keys or too many, or its items have no room without their values.
[[nodiscard]] std::optional<MgetRequest> parse_mget_request(
    std::span<const std::byte> value) noexcept;
/// The next key, and what follows it. None: at the end.
[[nodiscard]] std::optional<std::span<const std::byte>> next_of_keys(
    std::span<const std::byte>& keys) noexcept;

/// What the answer to an mget says of one key.
struct MgetItem {
    AnswerHead head{};
    std::uint32_t bytes = 0;  ///< of the value
    bool is_left_out = false;
    std::span<const std::byte> value{};
};
[[nodiscard]] constexpr std::size_t size_of(const MgetItem& item) noexcept {
    return mget_item_head_bytes + (item.is_left_out ? 0 : item.bytes);
}
/// Writes it to `room`, of size_of(item) bytes.
inline void write(const MgetItem& item, std::byte* room) noexcept {
    const std::uint64_t word = pack(item.head);
    const std::uint32_t length = item.bytes | (item.is_left_out ? std::uint32_t{1} << 31 : 0);
    std::memcpy(room, &word, sizeof word);
    std::memcpy(room + sizeof word, &length, sizeof length);
    if (!item.is_left_out && item.bytes != 0) {
        std::memcpy(room + mget_item_head_bytes, item.value.data(), item.bytes);
    }
}
/// One item of the answer, and what follows it. None: at the end, or if it is not such an answer
/// (then `items` is not empty).
[[nodiscard]] std::optional<MgetItem> next_of_mget(std::span<const std::byte>& items) noexcept;

}  // namespace millrace::kv
