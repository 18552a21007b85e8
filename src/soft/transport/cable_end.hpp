// A queue pair's end of a modelled link. Implemented by CableQueue (connected queue pairs) and
// DatagramFlights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "transport/cable.hpp"
#include "transport/cable_member.hpp"

namespace millrace::soft {

class CableEnd : public CableMember {
  public:
    CableEnd(std::function<void()> serve, std::shared_ptr<Cable> cable) noexcept
        : CableMember{std::move(serve)}, cable_{std::move(cable)}, number_{cable_->next_queue()} {}

    /// In and out of the engine's care. `enlist` throws as CableEngine::add.
    void enlist() { cable_->engine.add(*this); }
    void withdraw() noexcept { cable_->engine.remove(*this); }

    /// Has everything arrived that was completed when it left? With send_lock.
    [[nodiscard]] virtual bool completed_has_landed() const noexcept = 0;

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
