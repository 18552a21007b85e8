// A message that is longer than a piece may be. Used by a channel and by its sending half.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "channel/channel_core.hpp"
#include "millrace/base/status.hpp"

namespace millrace::message {

/// Sends a message that is longer than a piece may be: `claim(size, room)`, `commit(size, flags)`.
template <class Claim, class Commit>
base::Status send_in_pieces(const Channel::Core& core, std::span<const std::byte> message,
                            Claim&& claim, Commit&& commit) {
    // Of an eighth of the ring: the receiver takes one while the next ones travel.
    const std::size_t piece = frame_bytes(core.writer.size() / 8) - 2 * word_bytes;
    std::uint8_t flags = frame_more;
    while (!message.empty()) {
        const std::size_t length = std::min(piece, message.size());
        if (length == message.size()) flags &= static_cast<std::uint8_t>(~frame_more);
        std::span<std::byte> room;
        base::Status status = claim(length, room);
        if (status != base::Status::ok) return status;
        std::memcpy(room.data(), message.data(), length);
        status = commit(length, flags);
        if (status != base::Status::ok) return status;
        message = message.subspan(length);
        flags |= frame_continues;
    }
    return base::Status::ok;
}

}  // namespace millrace::message
