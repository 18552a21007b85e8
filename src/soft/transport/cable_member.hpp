// What a queue pair on a modelled link shows to those who move the link without knowing what it
// sends: the engine and pollers. What holds the link: cable_end.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "system/cable_time.hpp"

namespace millrace::soft {

class CableMember {
  public:
    /// `serve`: does what is due, as QueuePair::service.
    explicit CableMember(std::function<void()> serve) noexcept : serve_{std::move(serve)} {}
    virtual ~CableMember() = default;
    CableMember(const CableMember&) = delete;
    CableMember& operator=(const CableMember&) = delete;

    void serve() noexcept { serve_(); }

    /// What is due first has been due before `now`, and still has not happened. Without locks.
    [[nodiscard]] virtual bool waits_for(std::int64_t now) const noexcept = 0;

    /// A completion queue was looked at on its behalf: `now` in ticks. Without locks.
    void note_poll(std::uint64_t now) noexcept { polled_.store(now, std::memory_order_relaxed); }
    [[nodiscard]] bool polled_since(std::uint64_t then) const noexcept {
        return static_cast<std::int64_t>(polled_.load(std::memory_order_relaxed) - then) > 0;
    }

    std::atomic<std::int64_t> next_due{cable_never};  ///< of ours: an arrival or a completion
    std::atomic<std::int64_t> peer_due{cable_never};  ///< of the peer's, as last seen

  private:
    const std::function<void()> serve_;
    std::atomic<std::uint64_t> polled_{0};
};

}  // namespace millrace::soft
