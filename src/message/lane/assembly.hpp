// A message that comes in pieces, while it is put together. Used by lanes of rings
// (ring_lane.hpp), and by packet streams (packet_stream.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "millrace/message/detail/held_bytes.hpp"
#include "millrace/message/session.hpp"

namespace millrace::message {

/// One thread. Nothing throws but bad_alloc, and then nothing has changed.
class Assembly {
  public:
    /// `most`: bytes of the longest message, its head included.
    explicit Assembly(std::size_t most, HeldPart part = HeldPart{}) noexcept
        : most_{most}, part_{std::move(part)} {}

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// Another message begins.
    void begin() noexcept {
        ++begun_;
        bytes_.clear();
        exceeds_budget_ = false;
    }
    /// False: the message becomes longer than any may be, or there is no room for it. Then
    /// keep_head() is to follow.
    [[nodiscard]] bool append(std::span<const std::byte> piece) {
        if (piece.size() > most_ - std::min(bytes_.size(), most_)) return false;
        const std::size_t size = bytes_.size() + piece.size();
        if (size > bytes_.capacity()) {
            const std::size_t room =
                std::min(most_, std::max({size, 2 * bytes_.capacity(), smallest}));
            if (room > uncounted && !part_.set(room)) {
                exceeds_budget_ = true;
                return false;
            }
            try {
                bytes_.reserve(room);
            } catch (...) {
                note();
                throw;
            }
        }
        bytes_.insert(bytes_.end(), piece.begin(), piece.end());
        return true;
    }
    /// Of a message that is not put together its head stays, which says whose it is: `piece` is its
    /// first one, if nothing of it was appended.
    void keep_head(std::span<const std::byte> piece) {
        if (bytes_.empty()) {
            const std::span<const std::byte> head =
                piece.first(std::min(piece.size(), session_head_bytes));
            bytes_.assign(head.begin(), head.end());
        }
        bytes_.resize(std::min(bytes_.size(), session_head_bytes));
        bytes_.shrink_to_fit();
        note();
    }
    /// That append() refused it was for want of room.
    [[nodiscard]] bool exceeds_budget() const noexcept { return exceeds_budget_; }
    /// It was handed out. The memory of a large one does not stay.
    void clear() noexcept {
        clear_keeping(bytes_, most_kept);
        note();
    }
    /// Another number, once another message has begun.
    [[nodiscard]] std::uint64_t begun() const noexcept { return begun_; }

  private:
    static constexpr std::size_t smallest = std::size_t{4} << 10;
    static constexpr std::size_t most_kept = std::size_t{64} << 10;
    /// What every client may have.
    static constexpr std::size_t uncounted = most_kept;

    void note() noexcept {
        part_.set_anyhow(bytes_.capacity() > uncounted ? bytes_.capacity() : 0);
    }

    std::size_t most_;
    HeldPart part_;
    std::vector<std::byte> bytes_;
    std::uint64_t begun_ = 0;
    bool exceeds_budget_ = false;
};

}  // namespace millrace::message
