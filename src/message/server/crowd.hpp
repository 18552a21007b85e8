// What the servers of a group share, or one that is alone has: how many clients they may have, and
// the memory that these make them hold. Used by the server's clients.cpp, and by everything that
// holds something for a client.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "millrace/message/held_bytes.hpp"

namespace millrace::message {

/// Any thread.
class Crowd {
  public:
    Crowd(std::uint32_t most, std::shared_ptr<HeldBytes> held) noexcept
        : most_{most}, held_{std::move(held)} {}
    [[nodiscard]] const std::shared_ptr<HeldBytes>& held() const noexcept { return held_; }
    /// False: there are `most` clients already.
    [[nodiscard]] bool enter() noexcept {
        std::uint32_t now = clients_.load(std::memory_order_relaxed);
        do {
            if (now >= most_) return false;
        } while (!clients_.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
        return true;
    }
    void leave() noexcept { clients_.fetch_sub(1, std::memory_order_relaxed); }

  private:
    const std::uint32_t most_;
    const std::shared_ptr<HeldBytes> held_;
    std::atomic<std::uint32_t> clients_{0};
};

}  // namespace millrace::message
