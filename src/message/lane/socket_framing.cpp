// Messages in a stream of bytes, see the header.
#include "lane/socket_framing.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace millrace::message {

namespace {
constexpr std::size_t head_bytes = sizeof(SocketFrame);
constexpr std::size_t goodbye_bytes = sizeof(std::uint64_t);
/// Below that, what is here is moved to the front rather than that a gulp is cut short.
constexpr std::size_t smallest_gulp = 1024;

[[nodiscard]] SocketFrame frame_at(const std::byte* place) noexcept {
    SocketFrame frame;
    std::memcpy(&frame, place, sizeof frame);
    return frame;
}
}  // namespace

// --- ByteQueue

std::size_t ByteQueue::capacity_for(std::size_t bytes, std::size_t more) const noexcept {
    // Payloads stay aligned.
    const std::size_t odd = begin_ % SocketFrame::alignment;
    const std::size_t held = size();
    const bool fits = begin_ - odd >= held && capacity_ >= odd + held + bytes;
    if (room() >= bytes || fits) return capacity_;
    return std::max(smallest, odd + held + std::max(bytes, more));
}

void ByteQueue::make_room(std::size_t bytes, std::size_t more) {
    if (room() >= bytes) return;
    const std::size_t odd = begin_ % SocketFrame::alignment;
    const std::size_t held = size();
    const std::size_t wanted = capacity_for(bytes, more);
    if (wanted == capacity_) {
        if (held != 0) std::memmove(memory_.get() + odd, memory_.get() + begin_, held);
    } else {
        std::unique_ptr<std::byte[]> memory{new std::byte[wanted]};
        if (held != 0) std::memcpy(memory.get() + odd, memory_.get() + begin_, held);
        memory_ = std::move(memory);
        capacity_ = wanted;
    }
    begin_ = odd;
    end_ = odd + held;
}

void ByteQueue::shrink() noexcept {
    if (capacity_ <= smallest) return;
    memory_.reset(new (std::nothrow) std::byte[capacity_ / 2]);
    capacity_ = memory_ == nullptr ? 0 : capacity_ / 2;
}

void ByteQueue::became_empty() noexcept {
    // It may be in the middle of a frame that is passed over.
    begin_ = end_ = begin_ % SocketFrame::alignment;
    if (capacity_ <= usual) return;
    memory_.reset();
    capacity_ = 0;
}

// --- SocketInbox

std::span<std::byte> SocketInbox::room() {
    const std::size_t held = bytes_.size();
    std::size_t needed = smallest_gulp;
    std::size_t more = 0;
    bool is_long = false;
    if (held >= head_bytes && skip_ == 0) {
        const SocketFrame frame = frame_at(bytes_.begin());
        const std::uint64_t whole = SocketFrame::size_of(frame.bytes);
        if (frame.bytes <= max_message_bytes_ && whole > held && !is_refused_) {
            is_long = whole > ByteQueue::usual;
            // The rest of a message, but for no more than as much again as has come of it.
            needed = static_cast<std::size_t>(std::min<std::uint64_t>(whole - held, needed));
            more = static_cast<std::size_t>(
                std::min<std::uint64_t>(whole - held, std::max(held, ByteQueue::smallest)));
        }
    }
    if (std::exchange(was_filled_, false) && bytes_.capacity() < ByteQueue::usual) {
        needed = std::max(needed, 2 * bytes_.capacity() - held);
    }
    const std::size_t wanted = bytes_.capacity_for(needed, more);
    if (is_long && wanted > ByteQueue::usual && wanted > bytes_.capacity() && !part_.set(wanted)) {
        // Its head, which is here, says whose it is; the rest is passed over.
        is_refused_ = true;
        return {};
    }
    try {
        bytes_.make_room(needed, more);
    } catch (...) {
        note();
        throw;
    }
    return {bytes_.end(), bytes_.room()};
}

void SocketInbox::took(std::size_t bytes) noexcept {
    was_filled_ = bytes == bytes_.room();
    small_gulps_ = bytes * 4 < bytes_.capacity() ? small_gulps_ + 1 : 0;
    bytes_.filled(bytes);
    if (skip_ == 0) return;
    const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes_.size()));
    skip_ -= skipped;
    bytes_.drop(skipped);
    note();
}

SocketInbox::Found SocketInbox::front(std::span<const std::byte>& message) const noexcept {
    const std::size_t held = bytes_.size();
    if (skip_ != 0 || held < head_bytes) return Found::nothing;
    const SocketFrame frame = frame_at(bytes_.begin());
    const std::byte* const payload = bytes_.begin() + head_bytes;
    switch (frame.kind) {
        case SocketFrame::Kind::message:
            if (frame.bytes > max_message_bytes_ || is_refused_) {
                if (held < head_bytes + session_head_bytes) return Found::nothing;
                message = {payload, session_head_bytes};
                return Found::too_large;
            }
            if (held < SocketFrame::size_of(frame.bytes)) return Found::nothing;
            message = {payload, frame.bytes};
            return Found::message;
        case SocketFrame::Kind::goodbye:
            if (frame.bytes != goodbye_bytes) return Found::garbage;
            return held < SocketFrame::size_of(goodbye_bytes) ? Found::nothing : Found::goodbye;
    }
    return Found::garbage;
}

void SocketInbox::pass() noexcept {
    const std::uint64_t whole = SocketFrame::size_of(frame_at(bytes_.begin()).bytes);
    const auto here = static_cast<std::size_t>(std::min<std::uint64_t>(whole, bytes_.size()));
    passed_ += whole;
    skip_ = whole - here;
    is_refused_ = false;
    bytes_.drop(here);
    note();
    if (bytes_.empty() && small_gulps_ >= small_gulps) {
        small_gulps_ = 0;
        bytes_.shrink();
    }
}

std::uint64_t SocketInbox::passed_by_peer() const noexcept {
    std::uint64_t passed = 0;
    std::memcpy(&passed, bytes_.begin() + head_bytes, sizeof passed);
    return passed;
}

// --- SocketOutbox

std::span<std::byte> SocketOutbox::claim(std::size_t size) {
    bytes_.make_room(SocketFrame::size_of(size), bytes_.size());
    return {bytes_.end() + head_bytes, size};
}

void SocketOutbox::lay(SocketFrame::Kind kind, std::size_t size) noexcept {
    const SocketFrame frame{static_cast<std::uint32_t>(size), kind};
    std::memcpy(bytes_.end(), &frame, sizeof frame);
    const std::size_t whole = SocketFrame::size_of(size);
    std::memset(bytes_.end() + head_bytes + size, 0, whole - head_bytes - size);
    bytes_.filled(whole);
}

void SocketOutbox::commit(std::size_t size) noexcept {
    lay(SocketFrame::Kind::message, size);
    laid_ += SocketFrame::size_of(size);
}

void SocketOutbox::append(const SessionHead& head, std::span<const std::byte> payload) {
    const std::span<std::byte> place = claim(sizeof head + payload.size());
    std::memcpy(place.data(), &head, sizeof head);
    if (!payload.empty()) std::memcpy(place.data() + sizeof head, payload.data(), payload.size());
    commit(place.size());
}

void SocketOutbox::append_goodbye(std::uint64_t passed) {
    const std::span<std::byte> place = claim(sizeof passed);
    std::memcpy(place.data(), &passed, sizeof passed);
    lay(SocketFrame::Kind::goodbye, sizeof passed);
}

}  // namespace millrace::message
