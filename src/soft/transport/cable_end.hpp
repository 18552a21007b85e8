// A queue pair's end of a modelled link. Implemented by CableQueue (connected queue pairs) and
// DatagramFlights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "transport/cable.hpp"
#include "transport/cable_member.hpp"
#include "transport/fault_plan.hpp"

namespace millrace::soft {

class CableEnd : public CableMember {
  public:
    CableEnd(std::function<void()> serve, std::shared_ptr<Cable> cable)
        : CableMember{std::move(serve)}, cable_{std::move(cable)}, number_{cable_->next_queue()} {
        if (cable_->mode.kind == ModeKind::faulty) {
            faults_.emplace(cable_->mode.faults, cable_->mode.cable.seed, number_);
        }
        begin_random();
    }

    /// In and out of the engine's care. `enlist` throws as CableEngine::add.
    void enlist() { cable_->engine.add(*this); }
    void withdraw() noexcept { cable_->engine.remove(*this); }

    /// Has everything arrived that was completed when it left? By who holds the send side.
    [[nodiscard]] virtual bool completed_has_landed() const noexcept = 0;

  protected:
    /// Publishes that the next thing is due then, and sees to it that the engine knows.
    void publish_due(std::int64_t due) noexcept {
        if (due == next_due.load(std::memory_order_relaxed)) return;
        next_due.store(due, std::memory_order_release);
        if (due != cable_never) cable_->engine.expect(due);
    }

    /// What is drawn is drawn as at the beginning.
    void begin_random() noexcept { random_ = first_random(cable_->mode.cable.seed, number_); }

    const std::shared_ptr<Cable> cable_;
    const std::uint64_t number_;       ///< in the order of creation
    std::optional<FaultPlan> faults_;  ///< in mode `faulty`
    std::uint64_t random_ = 0;
};

}  // namespace millrace::soft
