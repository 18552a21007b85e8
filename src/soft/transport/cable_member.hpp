// What a queue pair on a shaped link shows to those who move the link without knowing what it
// sends: the engine and pollers. Implemented by CableQueue (connected queue pairs) and
// DatagramFlights.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "system/cable_time.hpp"
#include "transport/cable.hpp"

namespace millrace::soft {

class CableMember {
  public:
    /// `serve`: does what is due, as QueuePair::service.
    CableMember(std::function<void()> serve, std::shared_ptr<Cable> cable) noexcept
        : serve_{std::move(serve)}, cable_{std::move(cable)}, number_{cable_->next_queue()} {}
    virtual ~CableMember() = default;
    CableMember(const CableMember&) = delete;
    CableMember& operator=(const CableMember&) = delete;

    /// In and out of the engine's care. `enlist` throws as CableEngine::add.
    void enlist() { cable_->engine.add(*this); }
    void withdraw() noexcept { cable_->engine.remove(*this); }

    void serve() noexcept { serve_(); }

    /// What is due first has been due before `now`, and still has not happened. Without locks.
    [[nodiscard]] virtual bool waits_for(std::int64_t now) const noexcept = 0;

    /// Has everything arrived that was completed when it left? With send_lock.
    [[nodiscard]] virtual bool completed_has_landed() const noexcept = 0;

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

  protected:
    /// Publishes that the next thing is due then, and sees to it that the engine knows.
    void publish_due(std::int64_t due) noexcept {
        if (due == next_due.load(std::memory_order_relaxed)) return;
        next_due.store(due, std::memory_order_release);
        if (due != cable_never) cable_->engine.expect(due);
    }

    const std::shared_ptr<Cable> cable_;
    const std::uint64_t number_;  ///< in the order of creation
};

}  // namespace millrace::soft
