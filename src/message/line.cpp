// The rarer paths of a line: messages in pieces, and those that wait for room.
#include "line.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::message {

base::Status Line::put_together(Piece piece, std::span<const std::byte>& message) {
    taken_ = nothing;
    for (int i = 0; i < pieces_of_a_look; ++i) {
        const std::size_t size = piece.payload.size();
        if (piece.first) {
            // One that was begun before it was given up by its sender.
            assembled_.clear();
            assembling_ = true;
        }
        if (piece.first && piece.last) {
            assembling_ = false;
            taken_ = size;
            message = piece.payload;
            return base::Status::ok;
        }
        const bool fits = assembling_ && size <= max_message_bytes_ - assembled_.size();
        if (assembling_ && !fits) {
            assembling_ = false;
            // What the message begins with says whose it is.
            if (piece.first) assembled_.assign(piece.payload.begin(), piece.payload.end());
            assembled_.resize(std::min(assembled_.size(), session_head_bytes));
            core_->release(size, piece.last);
            whole_ = true;
            message = assembled_;
            return base::Status::too_large;
        }
        if (fits) assembled_.insert(assembled_.end(), piece.payload.begin(), piece.payload.end());
        core_->release(size, piece.last);
        if (piece.last && assembling_) {
            assembling_ = false;
            whole_ = true;
            message = assembled_;
            return base::Status::ok;
        }
        const base::Status status = core_->look(piece);
        if (status != base::Status::ok) return status;
    }
    return base::Status::empty;
}

void Line::pass_assembled() noexcept {
    whole_ = false;
    assembled_.clear();
    // One large message does not cost its memory for ever.
    if (assembled_.capacity() > std::size_t{1} << 20) assembled_ = {};
}

base::Status Line::keep(const SessionHead& head, std::span<const std::byte> payload) {
    std::vector<std::byte> message(sizeof head + payload.size());
    std::memcpy(message.data(), &head, sizeof head);
    if (!payload.empty()) std::memcpy(message.data() + sizeof head, payload.data(), payload.size());
    waiting_bytes_ += message.size();
    waiting_.push_back(std::move(message));
    const base::Status status = flush();
    return status == base::Status::full ? base::Status::ok : status;
}

base::Status Line::flush() noexcept {
    while (!waiting_.empty()) {
        const std::span<const std::byte> whole = waiting_.front();
        const std::size_t at_once = core_->max_piece();
        std::size_t length = whole.size() - begun_;
        std::uint8_t flags = begun_ == 0 ? frame_whole : frame_continues;
        if (whole.size() > at_once) {
            // Pieces of an eighth: the peer takes one while the next ones travel.
            const std::size_t piece =
                std::min(frame_bytes(core_->writer.size() / 8) - 2 * word_bytes, at_once);
            if (length > piece) flags |= frame_more;
            length = std::min(piece, length);
        }
        base::Status status = core_->reserve(length);
        if (status != base::Status::ok) return status;
        status = core_->send(whole.subspan(begun_, length), flags);
        if (status != base::Status::ok) return status;
        begun_ += length;
        flushed_bytes_ += length;
        if (begun_ == whole.size()) {
            waiting_bytes_ -= whole.size();
            waiting_.pop_front();
            begun_ = 0;
        }
    }
    return base::Status::ok;
}

}  // namespace millrace::message
