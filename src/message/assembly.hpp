// A message that comes in pieces, while it is put together. Used by channels (channel.cpp), lanes
// of rings (ring_lane.hpp) and packet streams (packet_stream.hpp).
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

/// A message of which a part has come.
struct Begun {
    std::uint64_t number = 0;  ///< which one of all that have begun
    std::size_t bytes = 0;     ///< that have come of it; 0: there is none
};

/// One thread. Nothing throws but bad_alloc, and then nothing has changed.
class Assembly {
  public:
    enum class Took : std::uint8_t {
        part,       ///< more of it is to come, or it is one that is passed over
        whole,      ///< bytes() is the message, until clear()
        too_large,  ///< bytes() is its head, until clear(), and the rest will be passed over
    };

    /// `most`: bytes of the longest message, its head included.
    explicit Assembly(std::size_t most, HeldPart part = HeldPart{}) noexcept
        : most_{most}, part_{std::move(part)} {}

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// A piece of a message, its first one or not, its last one or not. A first one after one that
    /// was not the last says that the message before was given up.
    Took take(std::span<const std::byte> piece, bool is_first, bool is_last) {
        if (is_first) begin();
        if (!is_assembling_) return Took::part;
        if (!append(piece)) {
            keep_head(piece);
            is_assembling_ = false;
            return Took::too_large;
        }
        is_assembling_ = !is_last;
        return is_last ? Took::whole : Took::part;
    }
    /// What has begun will not go on.
    void give_up() noexcept { is_assembling_ = false; }
    [[nodiscard]] bool is_assembling() const noexcept { return is_assembling_; }
    [[nodiscard]] Begun begun() const noexcept {
        return is_assembling_ ? Begun{begun_, bytes_.size()} : Begun{};
    }

    /// Another message begins.
    void begin() noexcept {
        ++begun_;
        is_assembling_ = true;
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
    /// It was handed out. Memory of more than `stays` bytes does not stay for the next one.
    void clear(std::size_t stays = most_kept) noexcept {
        clear_keeping(bytes_, stays);
        note();
    }
    /// The message goes there; clear() is to follow.
    void move_to(std::vector<std::byte>& into) noexcept { into.swap(bytes_); }

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
    bool is_assembling_ = false;
    bool exceeds_budget_ = false;
};

}  // namespace millrace::message
