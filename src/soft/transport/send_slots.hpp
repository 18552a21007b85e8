// The slots of a send queue: what was posted in each, and which are free. Part of the queue pair.
// Who holds the send side changes it; pollers read what lies before `tail`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "layout/block_layout.hpp"
#include "system/guarded.hpp"
#include "transport/request.hpp"

namespace millrace::soft {

struct SendSide;
using SendHeld = Held<SendSide>;

class SendSlots {
  public:
    /// Once: so many places, a power of two, of which `capacity` may be in use.
    void set_size(SendHeld, std::uint32_t places, std::uint32_t capacity) noexcept {
        mask_ = places - 1;
        capacity_ = capacity;
    }

    [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::uint32_t mask() const noexcept { return mask_; }
    /// The next one.
    [[nodiscard]] std::uint32_t tail() const noexcept {
        return tail_.load(std::memory_order_relaxed);
    }
    /// Are there places?
    [[nodiscard]] bool made() const noexcept { return posted_ != nullptr; }
    /// Was anything posted since the beginning? Until then no place says anything.
    [[nodiscard]] bool used() const noexcept { return made() && tail() != first_position; }
    [[nodiscard]] const SentSlot& at(std::uint32_t position) const noexcept {
        return posted_[position & mask_];
    }

    /// Is the slot at `tail`, the next one, free? Looks where the poller is, at `head`, only when
    /// it must.
    [[nodiscard]] bool is_free(SendHeld, std::uint32_t tail,
                               const std::atomic<std::uint32_t>& head) noexcept {
        if (tail != end_) [[likely]]
            return true;
        end_ = head.load(std::memory_order_acquire) + free_;
        return tail != end_;
    }
    /// The same by who may take the time to make the places.
    [[nodiscard]] bool find_free(SendHeld held, std::uint32_t tail,
                                 const std::atomic<std::uint32_t>& head) noexcept {
        return is_free(held, tail, head) || (!made() && make(held) && is_free(held, tail, head));
    }
    /// Makes the places now. False: there is no memory for them.
    [[gnu::noinline]] bool make(SendHeld) noexcept {
        posted_.reset(new (std::nothrow) SentSlot[std::size_t{mask_} + 1]);
        if (made()) free_ = capacity_;
        return made();
    }
    [[nodiscard]] SentSlot& at(SendHeld, std::uint32_t position) noexcept {
        return posted_[position & mask_];
    }
    /// What lies before it may be polled.
    void advance(SendHeld, std::uint32_t tail) noexcept {
        tail_.store(tail, std::memory_order_release);
    }
    /// As at the beginning.
    void restart(SendHeld held) noexcept { advance(held, end_ = first_position); }

  private:
    std::atomic<std::uint32_t> tail_{first_position};
    std::uint32_t end_ = first_position;  ///< up to there slots are known to be free
    std::uint32_t free_ = 0;              ///< with none in use; none before they are made
    std::uint32_t mask_ = 0;
    std::unique_ptr<SentSlot[]> posted_;  ///< made by the first request, or before it
    std::uint32_t capacity_ = 0;
};

}  // namespace millrace::soft
