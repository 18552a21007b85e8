// Several requests, or several answers, in one message of a session. Used by the calls for several
// of a Client (client.hpp) and by a Server that hands them to its handler (server.hpp), whose loops
// are compiled where they are called: in the program. session.hpp has the two kinds of message,
// docs/messaging.md what they mean for a session.
//
//   offset 0             16           24                            and so on
//   | session head       | entry head | payload, padded to 8 bytes | entry head | payload … |
//
//   session head   of a request_batch: `id` of its first request, those after it have the numbers
//                  that follow; `procedure` says how many there are; `behind` is the first one's.
//                  Of an answer_batch: `id` of any request, from which its entries count. Of both:
//                  `limit_us` is how far the sender has read its own ring
//                  (Channel::Core::say_position), so that it need not tell of that otherwise.
//   entry head     63..32  request: limit_us; answer: its number less that of the head, signed
//                  31..16  request: procedure; answer: outcome
//                  15..0   length of the payload in bytes
//
// The message is laid where it is sent from, entry by entry, and is one when it is committed. What
// is taken was written by the peer, which may write still: an entry head is loaded once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "millrace/base/status.hpp"
#include "millrace/message/detail/copy.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/message/requester.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// The first word of an entry.
struct EntryHead {
    std::uint16_t length = 0;  ///< bytes of the payload
    std::uint16_t what = 0;    ///< procedure, or outcome
    std::uint32_t number = 0;  ///< limit_us, or how far from the message's id

    [[nodiscard]] constexpr std::uint64_t word() const noexcept {
        return std::uint64_t{length} | std::uint64_t{what} << 16 | std::uint64_t{number} << 32;
    }
    [[nodiscard]] static constexpr EntryHead of(std::uint64_t word) noexcept {
        return {static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16),
                static_cast<std::uint32_t>(word >> 32)};
    }
    /// Of an answer: the number of its request.
    [[nodiscard]] constexpr std::uint64_t counted_from(std::uint64_t id) const noexcept {
        return id + static_cast<std::uint64_t>(static_cast<std::int32_t>(number));
    }
};
inline constexpr std::size_t entry_head_bytes = sizeof(std::uint64_t);
inline constexpr std::size_t longest_entry = 0xffff;  ///< bytes of payload
/// Bytes that an entry takes.
[[nodiscard]] constexpr std::size_t entry_bytes(std::size_t length) noexcept {
    return entry_head_bytes + padded(length);
}

/// What a call for several requests, or answers, has come to.
struct BatchResult {
    base::Status status = base::Status::ok;  ///< `ok`, or why there were not more
    std::size_t count = 0;                   ///< how many there were
};

/// Bytes of a message with one entry.
[[nodiscard]] constexpr std::size_t batch_bytes(std::size_t length) noexcept {
    return session_head_bytes + entry_bytes(length);
}

inline void lay_entry_head(std::byte* at, const EntryHead& head) noexcept {
    const std::uint64_t word = head.word();
    std::memcpy(at, &word, sizeof word);
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
        std::byte* const place = at_;
        lay_entry_head(place, head);
        at_ = place + entry_bytes(head.length);
        ++count_;
    }
    /// How many entries of so many bytes of payload fit, up to `most`, which is not above 2^16.
    [[nodiscard]] std::size_t fits(std::size_t length, std::size_t most) const noexcept {
        const auto left = static_cast<std::size_t>(end_ - at_);
        const std::size_t each = entry_bytes(length);
        return most * each <= left ? most : left / each;  // no division in most cases
    }
    /// So many entries lie there, up to `end`.
    void add_several(std::byte* end, std::size_t count) noexcept {
        at_ = end;
        count_ += static_cast<std::uint32_t>(count);
    }
    /// What is to be committed, `head` before it. After that nothing is open.
    [[nodiscard]] std::size_t close(const SessionHeader& header) noexcept {
        copy_two_words(begin_, pack(header));
        const std::size_t size = bytes();
        drop();
        return size;
    }
    /// What was laid does not become a message.
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

namespace detail {

/// What a client knows of a request.
enum class CallState : std::uint8_t {
    none,
    wanted,    ///< its answer will be handed out
    unwanted,  ///< it was given up, and its answer is still to come
};

/// Where several requests of a client go.
struct RequestRoom {
    std::byte* at = nullptr;  ///< the first entry; null: each goes by itself
    std::size_t count = 0;    ///< so many entries have room, one at least
    std::uint64_t first = 0;  ///< number of the first one
    std::uint64_t head = 0;   ///< of each, but for the length
};

/// Several answers that lie in a client's ring. The code that takes them has a copy of it, which
/// the compiler can keep in registers.
struct AnswerRun {
    const std::byte* at = nullptr;  ///< the next one; null: there are none
    const std::byte* end = nullptr;
    std::uint64_t from = 0;    ///< the number from which they count
    std::uint64_t lowest = 0;  ///< of requests without an answer …
    std::uint64_t open = 0;    ///< … and of so many from there on
    std::uint64_t mask = 0;    ///< of a number, for its place in:
    CallState* calls = nullptr;
    std::size_t count = 0;  ///< passed
    std::size_t bytes = 0;  ///< … of their payload

    /// The next one, until pass(). False: there is none, or what lies there is to be looked at
    /// otherwise. The server may write there still, so its head is loaded once.
    [[nodiscard, gnu::always_inline]] bool front(Answer& answer) const noexcept {
        if (at == end) return false;
        const EntryHead head = EntryHead::of(load_frame_word(at));
        const std::uint64_t id = head.counted_from(from);
        if (entry_bytes(head.length) > static_cast<std::size_t>(end - at) ||
            head.what > static_cast<std::uint16_t>(last_outcome_sent) || id - lowest >= open ||
            calls[id & mask] != CallState::wanted) [[unlikely]]
            return false;
        answer = {id, static_cast<Outcome>(head.what), {at + entry_head_bytes, head.length}};
        return true;
    }
    [[gnu::always_inline]] void pass(const Answer& answer) noexcept {
        calls[answer.id & mask] = CallState::none;
        at += entry_bytes(answer.payload.size());
        bytes += answer.payload.size();
        ++count;
    }
};

/// Several requests of one client, as they came in one message.
struct RequestRun {
    const std::byte* at = nullptr;  ///< the next one
    const std::byte* end = nullptr;
    std::uint64_t taken = 0;  ///< the number of the last one that was taken
    std::uint64_t until = 0;  ///< … and of the one after which others have their turn
    const bool* is_paused = nullptr;
    std::size_t most_pending = 0;
    bool is_sound = true;  ///< what lay there were requests

    /// The next one. False: what lies there is none. Its client may write there still, so its head
    /// is loaded once.
    [[nodiscard, gnu::always_inline]] bool take(EntryHead& head,
                                                std::span<const std::byte>& payload) noexcept {
        const auto left = static_cast<std::size_t>(end - at);
        if (left < entry_head_bytes) [[unlikely]]
            return is_sound = false;
        head = EntryHead::of(load_frame_word(at));
        const std::size_t step = entry_bytes(head.length);
        if (step > left) [[unlikely]]
            return is_sound = false;
        payload = {at + entry_head_bytes, head.length};
        at += step;
        ++taken;
        return true;
    }
};

}  // namespace detail
}  // namespace millrace::message
