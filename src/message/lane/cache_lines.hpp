// What a lane of rings asks of the processor's caches: which lines are fetched before they are
// read, and which are taken before the peer is to write to them. Changes nothing but time; which of
// it is worth how much stands in docs/performance.md. Used by ring_lane.hpp alone.
//
// Only where the peer stores into the ring: what a device writes is nobody's line.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "millrace/base/detail/prefetch.hpp"
#include "millrace/base/detail/shared_lines.hpp"
#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/frame_writer.hpp"
#include "millrace/ring/watermark.hpp"

namespace millrace::message {

/// One thread. Nothing throws.
class CacheLines {
  public:
    explicit CacheLines(bool stores) noexcept
        : stores_{stores}, takes_{stores && base::readers_take_lines()} {}

    /// Of a message that was read, before its space returns: its first and last line, which are all
    /// that a short one has, are this end's alone then. So the peer's stores to them, one lap
    /// later, do not wait for one line after the other. For an end that has nothing to send that
    /// would have to wait for it.
    [[gnu::always_inline]] void take_ends(const FrameReader& reader,
                                          std::size_t length) const noexcept {
        if (!takes_) return;
        std::byte* const payload = const_cast<std::byte*>(reader.payload());
        ring::store_word(payload - word_bytes, 0);
        ring::store_word(payload + padded(length), 0);
    }
    /// The same of all lines of a long one.
    [[gnu::always_inline]] void take_all(const FrameReader& reader,
                                         std::size_t length) const noexcept {
        if (!takes_) return;
        std::byte* const frame = const_cast<std::byte*>(reader.payload()) - word_bytes;
#pragma GCC unroll 4
        for (std::size_t at = 0; at < wire_bytes(length); at += frame_alignment) {
            ring::store_word(frame + at, 0);
        }
    }
    /// Fetches those of the frame in front, of a payload of `length`: once for each message, before
    /// what is at their end is looked at.
    [[gnu::always_inline]] void ask_for_frame(const FrameReader& reader,
                                              std::uint64_t length) noexcept {
        if (!stores_ || reader.position() == asked_at_) return;
        asked_at_ = reader.position();
        const std::byte* const second = reader.awaited().place + frame_alignment;
        const std::uint64_t bytes = std::min(wire_bytes(length), most_asked_bytes);
        if (bytes <= frame_alignment) return;
        if (takes_) [[likely]] {
            ask_to_write(second, bytes - frame_alignment);
        } else {
            for (std::uint64_t at = 0; at < bytes - frame_alignment; at += frame_alignment) {
                __builtin_prefetch(second + at);
            }
        }
    }
    /// For an end that comes back to look: fetches the header in front; when that has had the time
    /// to come, the lines after it, if it is one.
    void ask_ahead(const FrameReader& reader) noexcept {
        if (std::exchange(header_asked_at_, reader.position()) != reader.position()) {
            __builtin_prefetch(reader.awaited().place);
            return;
        }
        const std::uint64_t facts = reader.front_facts();
        if (facts <= facts_mask) ask_for_frame(reader, header_length(facts));
    }
    /// Fetches those that a message of so many bytes is laid in next. Not while one is awaited that
    /// is read first: a processor waits for some 20 lines at a time.
    [[gnu::always_inline]] void ask_for_place(const FrameWriter& writer,
                                              std::uint64_t bytes) const noexcept {
        if (!stores_) return;
        ask_to_write(writer.payload(0).data() - word_bytes,
                     std::min({bytes, writer.to_the_end(), most_asked_bytes}));
    }

  private:
    /// Of one message, whatever its header says.
    static constexpr std::uint64_t most_asked_bytes = frame_block;

    [[gnu::always_inline]] static void ask_to_write(const std::byte* begin,
                                                    std::uint64_t bytes) noexcept {
        const std::uint64_t lines = (bytes + frame_alignment - 1) / frame_alignment;
#pragma GCC unroll 4
        for (std::uint64_t line = 0; line != lines; ++line) {
            base::fetch_to_write(begin + line * frame_alignment);
        }
    }

    std::uint64_t asked_at_ = ~std::uint64_t{0};         ///< of the frame that was asked for
    std::uint64_t header_asked_at_ = ~std::uint64_t{0};  ///< … whose header was
    bool stores_;
    bool takes_;  ///< this is a processor where that helps the end that stores
};

}  // namespace millrace::message
