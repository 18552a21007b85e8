// Several requests, or several answers, in one message of a session: how they lie there, who lays
// them and who takes them. Used by the client and the server, each of which lays the one and takes
// the other. session.hpp has the two kinds, docs/messaging.md what they mean for a session.
//
//   offset 0             16           24                            and so on
//   | session head       | entry head | payload, padded to 8 bytes | entry head | payload … |
//
//   session head   of a request_batch: `id` of its first request, those behind it have the numbers
//                  that follow; `procedure` says how many there are; `behind` is the first one's.
//                  Of an answer_batch: `id` of any request, from which its entries count. Of both:
//                  `limit_us` is how far the sender has read its own ring
//                  (Channel::Core::say_position), so that it need not tell of that otherwise.
//   entry head     63..32  request: limit_us; answer: its number less that of the head, signed
//                  31..16  request: procedure; answer: outcome
//                  15..0   length of the payload in bytes
//
// A batch is laid where it is sent from, entry by entry, and becomes a message when it is
// committed. What is taken was written by the peer, who may write still: an entry head is loaded
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/message/detail/entries.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// One thread. Never blocks, allocates or throws. Validates whatever the peer wrote.
class BatchReader {
  public:
    BatchReader() noexcept = default;
    /// `entries`: the message without its head.
    explicit BatchReader(std::span<const std::byte> entries) noexcept
        : begin_{entries.data()}, at_{entries.data()}, end_{entries.data() + entries.size()} {}

    [[nodiscard]] bool is_open() const noexcept { return begin_ != nullptr; }
    [[nodiscard]] bool is_empty() const noexcept { return at_ == end_; }
    /// The next entry, until pass(), in steps, for who keeps what it reads in registers: the head's
    /// word, the place of its payload, and whether an entry of that length lies there.
    /// Precondition: not is_empty(), and a multiple of 8 bytes in all.
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
    [[nodiscard]] const std::byte* front_entry() const noexcept { return at_; }
    [[nodiscard]] const std::byte* end() const noexcept { return end_; }
    /// Goes on behind what step_over() found.
    [[gnu::always_inline]] void pass() noexcept { at_ += step_; }
    void close() noexcept { begin_ = at_ = end_ = nullptr; }

  private:
    const std::byte* begin_ = nullptr;
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
    std::size_t step_ = 0;
};

}  // namespace millrace::message
