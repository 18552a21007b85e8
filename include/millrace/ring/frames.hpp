// What a frame looks like in the ring of each design. Used by Sender, Receiver and flow/.
//
//   with watermarks    header (tag, length) | payload, padding | trailer: see watermark.hpp
//   without            header (length)      | payload, padding
//
// Without watermarks the consumer knows from elsewhere how far frames have arrived, so a header is
// read only when it is there, and a length alone suffices. Over push2 a frame takes whole chunks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "millrace/ring/design.hpp"
#include "millrace/ring/watermark.hpp"

namespace millrace::ring {

template <Design D>
struct Frames {
    static constexpr std::uint64_t overhead = has_marks(D) ? frame_overhead : 8;

    /// What travels of a frame of `length`.
    [[nodiscard]] static constexpr std::uint64_t sent_bytes(std::uint64_t length) noexcept {
        return overhead + ((length + 7) & ~std::uint64_t{7});
    }
    /// What it takes in the ring. `chunk`: Terms::chunk_bytes.
    [[nodiscard]] static constexpr std::uint64_t bytes(std::uint64_t length,
                                                       std::uint64_t chunk) noexcept {
        if constexpr (D.data == DataFlow::push2) {
            return (sent_bytes(length) + chunk - 1) & ~(chunk - 1);
        } else {
            return sent_bytes(length);
        }
    }
    /// Writes the word after a payload, if there is one, and returns the one that belongs before
    /// it: over pull the consumer READs a header as soon as it is there, and then the rest. `at`:
    /// of the frame.
    [[nodiscard]] static std::uint64_t lay_end(std::byte* at, std::uint64_t position,
                                               std::uint64_t secret,
                                               std::uint32_t length) noexcept {
        if constexpr (has_marks(D)) {
            const std::uint64_t tag = frame_tag(position, secret);
            store_word(at + sent_bytes(length) - mark_bytes, frame_trailer(tag, length));
            return frame_header(tag, length);
        } else {
            return length;
        }
    }
    /// The word that sends the consumer to the beginning of the ring.
    [[nodiscard]] static constexpr std::uint64_t skip(std::uint64_t position,
                                                      std::uint64_t secret) noexcept {
        return has_marks(D) ? skip_word(frame_tag(position, secret)) : ~std::uint64_t{0};
    }
};

}  // namespace millrace::ring
