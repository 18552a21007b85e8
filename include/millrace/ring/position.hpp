// Positions that one end tells the other in 8 bytes of memory: how much of a ring it has consumed.
// PositionWord is how a position travels, PeerPosition what the other end believes of it. Used by
// Sender and Receiver, and by message/ for the counters of its own page.
//
// Why a word needs a check. A position that is believed frees ring memory for new items, so half
// of a new one and half of an old one must never pass for a third. Verbs promise no such thing:
// the InfiniBand specification gives the memory of an RDMA WRITE no defined content before its
// completion is seen (nobody completes anything at the reader of a counter), makes only its own
// atomics atomic, and those only to each other; ibv_query_qp_data_in_order is a promise about
// order (of bytes, or of 128 aligned ones), and most devices do not make it. A NIC moves 8 aligned
// bytes at once in practice. The kernel's soft device calls memcpy, which on most x86 processors
// is `rep movsb`: byte after byte.
//  - WRITE: the reader can load a word that is half landed.
//  - READ: the device can take half of the word before the owner's store and half after it. From
//    0x00f0 to 0x0110 that is 0x01f0, which is more than was ever consumed.
//
// So 32 bits of position travel with a bijective hash of themselves. A word of which one half is
// whole passes only if it is the old or the new one, in whatever order its bytes came: the hash
// of two different numbers differs. A word that is torn in both halves (several new values during
// one copy) passes with 2^-32. Fresh memory, 0, does not pass.
#pragma once

#include <cstdint>

#include "millrace/base/language.hpp"

namespace millrace::ring {

/// A position in a stream, a multiple of 8 bytes, as 8 bytes that two ends may share unlocked.
struct PositionWord {
    static constexpr std::uint64_t unit = 8;

    [[nodiscard]] static constexpr std::uint64_t pack(std::uint64_t position) noexcept {
        const auto units = static_cast<std::uint32_t>(position / unit);
        return std::uint64_t{hash(units)} << 32 | units;
    }
    /// False: the word is torn, or was never written. The next look finds it whole.
    [[nodiscard]] static constexpr bool whole(std::uint64_t word) noexcept {
        return static_cast<std::uint32_t>(word >> 32) == hash(static_cast<std::uint32_t>(word));
    }
    /// How far a whole word is ahead of a position within 16 GiB of it; negative: how far it lags.
    [[nodiscard]] static constexpr std::int64_t ahead(std::uint64_t word,
                                                      std::uint64_t position) noexcept {
        const std::uint32_t units =
            static_cast<std::uint32_t>(word) - static_cast<std::uint32_t>(position / unit);
        return std::int64_t{static_cast<std::int32_t>(units)} * std::int64_t{unit};
    }

  private:
    /// The bytes turned round between, so that each byte of the hash depends on all of `units`.
    [[nodiscard]] static constexpr std::uint32_t hash(std::uint32_t units) noexcept {
        return ~(__builtin_bswap32(units * 0x9e3779b1U) * 0x85ebca6bU);
    }
};
static_assert(!PositionWord::whole(0));

/// What a word of the peer's said.
enum class News : std::uint8_t {
    none,        ///< what is known, something older, or a torn word
    newer,       ///< it is further now
    impossible,  ///< it claims to be where it cannot be: it lies, or its memory is damaged
};

/// How far the peer is, as far as is known. One thread; nothing blocks, throws or allocates.
class PeerPosition {
  public:
    constexpr PeerPosition() noexcept = default;
    constexpr explicit PeerPosition(std::uint64_t position) noexcept : position_{position} {}

    [[nodiscard]] constexpr std::uint64_t value() const noexcept { return position_; }
    /// Takes a word of the peer's. `limit`, at most 16 GiB ahead: what it cannot have passed; a
    /// word beyond is not believed.
    constexpr News take(std::uint64_t word, std::uint64_t limit) noexcept {
        if (!PositionWord::whole(word)) return News::none;
        return go_on(PositionWord::ahead(word, position_), limit);
    }
    /// As take(), of a peer that said by how many bytes it is further, in what came whole.
    constexpr News go_on(std::int64_t bytes, std::uint64_t limit) noexcept {
        if (bytes <= 0) return News::none;
        if (static_cast<std::uint64_t>(bytes) > limit - position_) return News::impossible;
        position_ += static_cast<std::uint64_t>(bytes);
        return News::newer;
    }

  private:
    std::uint64_t position_ = 0;
};

}  // namespace millrace::ring
