// What the two ends of a log say to each other, as bytes. No I/O: see subscription.hpp and
// follower.hpp for what each end makes of it.
//
//   reader → log   a flow queue of LogRequest
//                    join         where it begins, and what it takes items for
//                    acknowledge  everything before `position` is done
//                    skip         it goes on where retention has passed it by
//                    filter       before join: which filter; the object stands in `name`
//   log → reader   a flow queue of Bytes: a word, and what belongs to it
//                    items        word: position of the first; then the items
//                    joined       word: where it begins; then LogFacts
//                    refused      word: what could be had; then why (LogRefusal)
//                    passed       word: the first position that is kept
//                    begins       word: where it goes on after a skip
//                    displaced    another one came by the same name
//                    chosen       instead of items, to a reader with a filter: LogChosenHead, then
//                    a
//                                 record for each item that passed
//                    threw        word: the item for which the filter threw; then LogFacts, of
//                    which
//                                 `sequence` is 1 if nothing follows; then what it said
//
// Items of one type lie side by side, as in memory. Those of Bytes are records:
//   u32 length | u32 checksum, of files | the bytes, up to the next multiple of 8
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "millrace/flow/item_name.hpp"

namespace millrace::flow::detail {

/// Of a consumer's name.
inline constexpr std::size_t longest_log_name = 64;

enum class LogAsk : std::uint32_t { join = 1, acknowledge = 2, skip = 3, filter = 4 };

struct LogRequest {
    std::uint32_t ask = 0;
    std::uint32_t from = 0;  ///< join: LogStart::At; filter: WhenThrown
    std::uint64_t position = 0;
    std::uint64_t acknowledged = 0;  ///< join: what the log may have missed
    std::uint64_t sequence = 0;      ///< join: of `position`, and of `acknowledged`; 0: any
    std::uint32_t epoch = 0;
    std::uint32_t item_size = 0;
    std::uint32_t item_alignment = 0;
    std::uint32_t name_length = 0;
    std::uint64_t item_name = 0;  ///< a hash of it
    char name[longest_log_name] = {};
};
static_assert(sizeof(LogRequest) == 120 && std::is_trivially_copyable_v<LogRequest>);

enum class LogSay : std::uint8_t {
    items = 1,
    joined = 2,
    refused = 3,
    passed = 4,
    begins = 5,
    displaced = 6,
    chosen = 7,
    threw = 8,
};

/// Kind and position of a frame, its first 8 bytes.
struct LogWord {
    LogSay say{};
    std::uint64_t position = 0;

    static constexpr std::uint64_t most_position = (std::uint64_t{1} << 56) - 1;
    [[nodiscard]] std::uint64_t pack() const noexcept {
        return std::uint64_t{static_cast<std::uint8_t>(say)} << 56 | (position & most_position);
    }
    [[nodiscard]] static LogWord unpack(std::uint64_t word) noexcept {
        return {static_cast<LogSay>(word >> 56), word & most_position};
    }
};
inline constexpr std::size_t log_word_bytes = sizeof(std::uint64_t);

/// With `joined`.
struct LogFacts {
    std::uint64_t sequence = 0;
    std::uint64_t epoch = 0;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
};
static_assert(sizeof(LogFacts) == 32);

/// With `refused`.
enum class LogRefusal : std::uint64_t {
    none = 0,
    other_items = 1,     ///< size, alignment or name of the item type
    other_sequence = 2,  ///< the log has begun anew since
    lost_items = 3,      ///< the log lacks items before the position, since its last restart
    beyond_end = 4,      ///< the position was never reached
    small_ring = 5,      ///< the log's longest item does not fit in this reader's ring
    full_book = 6,       ///< no room for one more name
    other_filter = 7,    ///< which ones there are follows the facts
};
/// Of what follows the facts.
inline constexpr std::size_t longest_log_text = 1024;

/// With `chosen`.
struct LogChosenHead {
    std::uint64_t next = 0;   ///< everything before it was looked at
    std::uint64_t threw = 0;  ///< items so far for which the filter threw
};
static_assert(sizeof(LogChosenHead) == 16);
/// Before an item that passed, which takes as many bytes as a record of Bytes.
struct LogChosenRecord {
    std::uint32_t length = 0;
    std::uint32_t after = 0;  ///< its position, less the word's
};
static_assert(sizeof(LogChosenRecord) == 8);

/// What an item is to a log.
struct LogShape {
    std::uint32_t item_size = 0;  ///< 0: Bytes
    std::uint32_t item_alignment = 1;
    std::uint64_t item_name = 0;

    [[nodiscard]] bool is_framed() const noexcept { return item_size == 0; }
    friend bool operator==(const LogShape&, const LogShape&) = default;
};
[[nodiscard]] LogShape log_shape_of(const ItemFacts& item) noexcept;

// ---- records of Bytes

inline constexpr std::size_t log_record_head = 8;

[[nodiscard]] constexpr std::uint64_t log_record_bytes(std::uint64_t length) noexcept {
    return log_record_head + ((length + 7) & ~std::uint64_t{7});
}
/// The payload of the record that `rest` begins with; false: it does not lie within `rest`.
[[nodiscard]] inline bool log_record_at(std::span<const std::byte> rest,
                                        std::span<const std::byte>& payload) noexcept {
    std::uint32_t length = 0;
    if (rest.size() < log_record_head) return false;
    std::memcpy(&length, rest.data(), sizeof length);
    if (log_record_bytes(length) > rest.size()) return false;
    payload = rest.subspan(log_record_head, length);
    return true;
}

}  // namespace millrace::flow::detail

/// Changes with the layout of a request.
template <>
struct millrace::flow::ItemName<millrace::flow::detail::LogRequest> {
    static constexpr std::string_view value = "millrace.log.request/1";
};
