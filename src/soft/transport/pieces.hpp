// The pieces that a message is made of, or goes to: checked memory and how it is reached. Used by
// whoever gathers and scatters: executors, and senders of datagrams.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "fabric/fabric.hpp"
#include "layout/block_layout.hpp"

namespace millrace::soft {

struct Piece {
    Reach at;
    std::uint64_t length;
    std::uint32_t key;  ///< 0: of no region
};

/// Room for the pieces of a request, of which only those that it has are ever set: 30 of them would
/// take longer than most requests do.
class Pieces {
  public:
    [[nodiscard]] Piece* data() noexcept { return reinterpret_cast<Piece*>(room_); }
    [[nodiscard]] const Piece* data() const noexcept {
        return reinterpret_cast<const Piece*>(room_);
    }
    [[nodiscard]] Piece& operator[](std::size_t at) noexcept { return data()[at]; }
    [[nodiscard]] const Piece& operator[](std::size_t at) const noexcept { return data()[at]; }

  private:
    static_assert(std::is_trivially_copyable_v<Piece> && std::is_trivially_destructible_v<Piece>);
    alignas(Piece) std::byte room_[max_sges * sizeof(Piece)];
};

[[nodiscard]] inline std::uint64_t bytes_of(const ibv_sge* sges, int count) noexcept {
    std::uint64_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += sges[i].length;
    return bytes;
}

/// The sge at `index` of a list in shared memory that its owner may be changing.
[[nodiscard]] inline ibv_sge load_sge(const void* list, std::uint32_t index) noexcept {
    const auto* const words = static_cast<const std::uint64_t*>(list) + std::size_t{2} * index;
    return std::bit_cast<ibv_sge>(
        std::array<std::uint64_t, 2>{load_once(words[0]), load_once(words[1])});
}
inline void load_sges(const void* list, std::uint32_t count, ibv_sge* sges) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) sges[i] = load_sge(list, i);
}

/// Calls `copy_run` for each run of bytes that lies in one piece at both ends, in order, with where
/// it lies and how long it is; until one fails or `total` bytes are done.
template <class CopyRun>
[[nodiscard]] CopyResult for_each_run(const Piece* to, std::uint32_t to_count, const Piece* from,
                                      std::uint32_t from_count, std::uint64_t total,
                                      CopyRun&& copy_run) noexcept {
    std::uint32_t t = 0;
    std::uint32_t f = 0;
    std::uint64_t to_done = 0;
    std::uint64_t from_done = 0;
    while (total > 0 && t < to_count && f < from_count) {
        std::uint64_t bytes = to[t].length - to_done;
        if (from[f].length - from_done < bytes) bytes = from[f].length - from_done;
        if (total < bytes) bytes = total;
        const CopyResult result =
            copy_run(advance(to[t].at, to_done), advance(from[f].at, from_done), bytes);
        if (result != CopyResult::ok) return result;
        total -= bytes;
        to_done += bytes;
        from_done += bytes;
        if (to_done == to[t].length) {
            ++t;
            to_done = 0;
        }
        if (from_done == from[f].length) {
            ++f;
            from_done = 0;
        }
    }
    return CopyResult::ok;
}

/// Leaves of the pieces what lies in [offset, offset + bytes).
inline void cut(Piece* pieces, std::uint32_t& count, std::uint64_t offset,
                std::uint64_t bytes) noexcept {
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        Piece piece = pieces[i];
        const std::uint64_t skipped = offset < piece.length ? offset : piece.length;
        offset -= skipped;
        piece.at = advance(piece.at, skipped);
        piece.length -= skipped;
        if (bytes < piece.length) piece.length = bytes;
        bytes -= piece.length;
        if (piece.length != 0) pieces[kept++] = piece;
    }
    count = kept;
}

}  // namespace millrace::soft
