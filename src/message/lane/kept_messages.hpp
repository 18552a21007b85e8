// Messages that wait to be sent, and are sent piece by piece as there is room. Used by lanes that
// cut messages up: over rings (ring_lane.hpp) and over packets (packet_stream.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <span>
#include <utility>
#include <vector>

namespace millrace::message {

/// In their order. One thread. Nothing throws but keep(), bad_alloc, and then nothing has changed.
class KeptMessages {
  public:
    [[nodiscard]] bool empty() const noexcept { return messages_.empty(); }
    /// Of messages of which a part is kept still.
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// That are not kept any more, all in all.
    [[nodiscard]] std::uint64_t flushed_bytes() const noexcept { return flushed_bytes_; }

    /// A copy of both, which are one message.
    void keep(std::span<const std::byte> head, std::span<const std::byte> payload) {
        std::vector<std::byte> message(head.size() + payload.size());
        if (!head.empty()) std::memcpy(message.data(), head.data(), head.size());
        if (!payload.empty()) {
            std::memcpy(message.data() + head.size(), payload.data(), payload.size());
        }
        const std::size_t size = message.size();
        messages_.push_back(std::move(message));
        bytes_ += size;
    }

    /// The first one, whole, and how much of it was taken.
    [[nodiscard]] std::span<const std::byte> front() const noexcept { return messages_.front(); }
    [[nodiscard]] std::size_t begun() const noexcept { return begun_; }
    /// So many more bytes of it are on their way. True: these were the last.
    bool take(std::size_t bytes) noexcept {
        begun_ += bytes;
        flushed_bytes_ += bytes;
        if (begun_ != messages_.front().size()) return false;
        bytes_ -= std::exchange(begun_, 0);
        messages_.pop_front();
        return true;
    }
    /// The first one, of which nothing was taken, goes otherwise, and this one in its place.
    void replace_front(std::vector<std::byte> message) noexcept {
        std::vector<std::byte>& front = messages_.front();
        bytes_ += message.size() - front.size();
        flushed_bytes_ += front.size();
        front = std::move(message);
    }

  private:
    std::list<std::vector<std::byte>> messages_;  ///< an end that keeps none has no memory for it
    std::size_t begun_ = 0;
    std::size_t bytes_ = 0;
    std::uint64_t flushed_bytes_ = 0;
};

}  // namespace millrace::message
