// What the clients of a server make it hold: messages of which a part has come, answers that wait
// or are kept, memory to READ into. Each is bounded for a client by an option of its own; this
// bounds all of them together (ServerOptions::max_held_bytes). Used by message/ and rpc/, whatever
// holds something for a peer; a client's own end has no such bound. Not for use by itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "millrace/base/language.hpp"

namespace millrace::message {

/// Of one server, or of all servers of a group. Any thread.
class HeldBytes {
  public:
    explicit HeldBytes(std::size_t most) noexcept : most_{most} {}

    /// False: there is no room for so many more.
    [[nodiscard]] bool take(std::size_t bytes) noexcept {
        std::size_t now = held_.load(std::memory_order_relaxed);
        do {
            if (now > most_ || bytes > most_ - now) return false;
        } while (!held_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
        return true;
    }
    /// What cannot be refused any more.
    void add(std::size_t bytes) noexcept { held_.fetch_add(bytes, std::memory_order_relaxed); }
    void give_back(std::size_t bytes) noexcept {
        held_.fetch_sub(bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] std::size_t now() const noexcept { return held_.load(std::memory_order_relaxed); }
    /// There is no room for what is long.
    [[nodiscard]] bool is_full() const noexcept { return now() > most_ - std::min(most_, least); }

  private:
    static constexpr std::size_t least = std::size_t{64} << 10;

    const std::size_t most_;
    std::atomic<std::size_t> held_{0};
};

/// The part of it that one holder has, which goes with the holder. One thread at a time.
class HeldPart {
  public:
    /// Without bound.
    HeldPart() noexcept = default;
    explicit HeldPart(std::shared_ptr<HeldBytes> whole) noexcept : whole_{std::move(whole)} {}
    HeldPart(HeldPart&& other) noexcept
        : whole_{std::move(other.whole_)}, bytes_{std::exchange(other.bytes_, 0)} {}
    HeldPart& operator=(HeldPart&& other) noexcept {
        std::swap(whole_, other.whole_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~HeldPart() { set_anyhow(0); }

    /// It is to be so many. False: there is no room, and it stays what it was.
    [[nodiscard]] bool set(std::size_t bytes) noexcept {
        if (bytes > bytes_ && whole_ != nullptr && !whole_->take(bytes - bytes_)) return false;
        if (bytes < bytes_ && whole_ != nullptr) whole_->give_back(bytes_ - bytes);
        bytes_ = bytes;
        return true;
    }
    /// It is so many.
    void set_anyhow(std::size_t bytes) noexcept {
        if (bytes > bytes_ && whole_ != nullptr) whole_->add(bytes - bytes_);
        if (bytes < bytes_ && whole_ != nullptr) whole_->give_back(bytes_ - bytes);
        bytes_ = bytes;
    }
    [[nodiscard]] const std::shared_ptr<HeldBytes>& whole() const noexcept { return whole_; }

  private:
    std::shared_ptr<HeldBytes> whole_;
    std::size_t bytes_ = 0;
};

}  // namespace millrace::message
