// Messages that a program's callable writes or reads in place: claim, fill and commit; look, take
// and release. Shared by a channel and its halves.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "millrace/base/status.hpp"
#include "millrace/message/detail/filled.hpp"
#include "millrace/message/detail/frame_reader.hpp"

namespace millrace::message::detail {

/// Throws the Error (invalid_argument) of a call whose callable has used the end itself, so that
/// the place that it wrote to, or read from, is gone.
[[noreturn]] void refuse_nested_use(const char* attempted, const std::string& peer);

/// Gets room by `claim(room)`, lets `fill(room)` write to it, and sends what that used by
/// `commit(bytes)`. If `fill` throws, what was claimed is not sent, and is claimed again.
template <class Claim, class Fill, class Commit>
base::Status send_in_place(Claim&& claim, Fill& fill, Commit&& commit) {
    std::span<std::byte> room;
    const base::Status status = claim(room);
    return status == base::Status::ok ? commit(filled(room, fill)) : status;
}

/// Finds a message by `look(piece)`, hands it to `take(piece)`, and gives its room back by
/// `release()`. If `take` throws, the message stays the next.
template <class Look, class Take, class Release>
base::Status receive_in_place(Look&& look, Take&& take, Release&& release) {
    Piece piece;
    const base::Status status = look(piece);
    if (status != base::Status::ok) return status;
    take(piece);
    release();
    return status;
}

}  // namespace millrace::message::detail
