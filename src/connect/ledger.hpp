// What a listener has given away of its budget, and to whom. Used by listeners and links, whose
// threads may differ.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "millrace/connect/admission.hpp"

namespace millrace::connect {

class Ledger {
  public:
    explicit Ledger(const Budget& budget) noexcept : budget_{budget} {}

    /// Throws Failure (refused), and takes nothing, where `more` would exceed the budget.
    void take(const Given& more);
    void give_back(const Given& taken) noexcept;
    [[nodiscard]] Given given() const noexcept;

  private:
    Budget budget_;
    mutable std::mutex mutex_;  ///< of given_
    Given given_;
};

/// One client's part, given back with it. Move-only.
class Place {
  public:
    /// That of a link which no budget concerns.
    Place() noexcept = default;
    explicit Place(std::shared_ptr<Ledger> ledger) noexcept : ledger_{std::move(ledger)} {}
    Place(Place&& other) noexcept
        : ledger_{std::move(other.ledger_)}, taken_{std::exchange(other.taken_, {})} {}
    Place& operator=(Place&& other) noexcept {
        std::swap(ledger_, other.ledger_);
        std::swap(taken_, other.taken_);
        return *this;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() {
        if (ledger_ != nullptr) ledger_->give_back(taken_);
    }

    /// Throws Failure as Ledger::take.
    void take(const Given& more) {
        if (ledger_ == nullptr) return;
        ledger_->take(more);
        taken_.clients += more.clients;
        taken_.queue_pairs += more.queue_pairs;
        taken_.registered_bytes += more.registered_bytes;
    }

  private:
    std::shared_ptr<Ledger> ledger_;
    Given taken_;
};

}  // namespace millrace::connect
