// Several requests, or several answers, in one message of a session: how they lie there, who lays
// them and who takes them. Used by the client and the server, each of which lays the one and takes
// the other. session.hpp has the two kinds, docs/messaging.md what they mean for a session.
//
//   offset 0             16           24                            and so on
//   | session head       | entry head | payload, padded to 8 bytes | entry head | payload … |
//
//   session head   of a request_batch: `id` of its first request, those behind it have the numbers
//                  that follow; `procedure` says how many there are; `behind` is the first one's.
//                  Of an answer_batch: `id` of any request, from which its entries count.
//   entry head     63..32  request: limit_us; answer: its number less that of the head, signed
//                  31..16  request: procedure; answer: outcome
//                  15..0   length of the payload in bytes
//
// A batch is laid where it is sent from, entry by entry, and becomes a message when it is
// committed. What is taken was written by the peer, who may write still: an entry head is loaded
// once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "millrace/message/copy.hpp"
#include "millrace/message/frame.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// The first word of an entry, of whichever kind.
struct EntryHead {
    std::uint16_t length = 0;  ///< bytes of the payload
    std::uint16_t what = 0;    ///< procedure, or outcome
    std::uint32_t number = 0;  ///< limit_us, or how far from the head's id

    [[nodiscard]] constexpr std::uint64_t word() const noexcept {
        return std::uint64_t{length} | std::uint64_t{what} << 16 | std::uint64_t{number} << 32;
    }
    [[nodiscard]] static constexpr EntryHead of(std::uint64_t word) noexcept {
        return {static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16),
                static_cast<std::uint32_t>(word >> 32)};
    }
};
inline constexpr std::size_t entry_head_bytes = sizeof(std::uint64_t);
inline constexpr std::size_t longest_entry = 0xffff;  ///< bytes of payload
/// Bytes that an entry takes.
[[nodiscard]] constexpr std::size_t entry_bytes(std::size_t length) noexcept {
    return entry_head_bytes + padded(length);
}
/// Bytes of a message with one entry.
[[nodiscard]] constexpr std::size_t batch_bytes(std::size_t length) noexcept {
    return session_head_bytes + entry_bytes(length);
}

/// One thread. Never blocks, allocates or throws.
class BatchWriter {
  public:
    [[nodiscard]] bool is_open() const noexcept { return begin_ != nullptr; }
    [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
    [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
    /// Of the first request, or of the request whose answer was laid first.
    [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
    /// Bytes of the message, its head included.
    [[nodiscard]] std::size_t bytes() const noexcept {
        return static_cast<std::size_t>(at_ - begin_);
    }

    /// `room`: for the message, a multiple of 8 bytes. `quick`: the longest payload for which
    /// takes_quickly() may say so; none: it never does.
    void open(std::span<std::byte> room, std::uint64_t first,
              std::optional<std::size_t> quick) noexcept {
        begin_ = room.data();
        at_ = begin_ + session_head_bytes;
        end_ = begin_ + room.size();
        first_ = first;
        count_ = 0;
        longest_quick_ = std::min(quick.value_or(0), longest_short);
        const bool has_some = quick.has_value() && room.size() > batch_bytes(longest_short);
        quick_end_ = has_some ? end_ - entry_bytes(longest_short) + 1 : begin_;
    }
    /// A short payload, which certainly fits; false says nothing.
    [[nodiscard, gnu::always_inline]] bool takes_quickly(std::size_t length) const noexcept {
        return length <= longest_quick_ && at_ < quick_end_;
    }
    /// Lays what takes_quickly(), and calls nobody.
    [[gnu::always_inline]] void lay(const EntryHead& head, const std::byte* payload) noexcept {
        copy_short(at_ + entry_head_bytes, payload, head.length);
        add(head);
    }
    /// Where the payload of the next entry goes; null: it does not fit, or nothing is open.
    [[nodiscard, gnu::always_inline]] std::byte* place_for(std::size_t length) const noexcept {
        if (length > longest_entry || entry_bytes(length) > static_cast<std::size_t>(end_ - at_))
            [[unlikely]]
            return nullptr;
        return at_ + entry_head_bytes;
    }
    /// Its payload lies there.
    [[gnu::always_inline]] void add(const EntryHead& head) noexcept {
        const std::uint64_t word = head.word();
        std::memcpy(at_, &word, sizeof word);
        at_ += entry_bytes(head.length);
        ++count_;
    }
    /// What is to be committed, `head` before it. Nothing is open behind it.
    [[nodiscard]] std::size_t close(const SessionHeader& header) noexcept {
        const SessionHead head = pack(header);
        std::memcpy(begin_, &head, sizeof head);
        const std::size_t size = bytes();
        drop();
        return size;
    }
    /// What was laid is no message.
    void drop() noexcept { begin_ = at_ = end_ = quick_end_ = nullptr; }

  private:
    std::byte* begin_ = nullptr;
    std::byte* at_ = nullptr;
    std::byte* end_ = nullptr;
    std::byte* quick_end_ = nullptr;  ///< before it any short entry fits
    std::size_t longest_quick_ = 0;
    std::uint64_t first_ = 0;
    std::uint32_t count_ = 0;
};

/// One thread. Never blocks, allocates or throws. Validates whatever the peer wrote.
class BatchReader {
  public:
    BatchReader() noexcept = default;
    /// `entries`: the message without its head. `at`: behind so many bytes of them, at most all.
    explicit BatchReader(std::span<const std::byte> entries, std::size_t at = 0) noexcept
        : begin_{entries.data()}, at_{entries.data() + at}, end_{entries.data() + entries.size()} {}

    [[nodiscard]] bool is_open() const noexcept { return begin_ != nullptr; }
    [[nodiscard]] bool is_empty() const noexcept { return at_ == end_; }
    [[nodiscard]] std::size_t at() const noexcept { return static_cast<std::size_t>(at_ - begin_); }
    /// The next entry, until pass(). False: what lies there is none.
    [[nodiscard, gnu::always_inline]] bool front(EntryHead& head,
                                                 std::span<const std::byte>& payload) noexcept {
        const auto left = static_cast<std::size_t>(end_ - at_);
        if (left < entry_head_bytes) [[unlikely]]
            return false;
        head = EntryHead::of(load_frame_word(at_));
        step_ = entry_bytes(head.length);
        payload = {at_ + entry_head_bytes, head.length};
        return step_ <= left;
    }
    /// The same in steps, for who keeps what it reads in registers: the head's word, the place of
    /// its payload, and whether an entry of that length lies there. Precondition: not is_empty(),
    /// and a multiple of 8 bytes in all.
    [[nodiscard, gnu::always_inline]] std::uint64_t front_word() const noexcept {
        return load_frame_word(at_);
    }
    [[nodiscard, gnu::always_inline]] const std::byte* front_payload() const noexcept {
        return at_ + entry_head_bytes;
    }
    [[nodiscard, gnu::always_inline]] bool step_over(std::size_t length) noexcept {
        step_ = entry_bytes(length);
        return step_ <= static_cast<std::size_t>(end_ - at_);
    }
    /// Goes on behind what front() found.
    [[gnu::always_inline]] void pass() noexcept { at_ += step_; }
    void close() noexcept { begin_ = at_ = end_ = nullptr; }

  private:
    const std::byte* begin_ = nullptr;
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
    std::size_t step_ = 0;
};

}  // namespace millrace::message
