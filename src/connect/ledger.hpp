// What listeners that share an address have given away of their budget, and which of them has how
// many peers. Used by listeners and links, whose threads may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/connect/admission.hpp"

namespace millrace::connect {

class Ledger {
  public:
    explicit Ledger(const Budget& budget, std::size_t listeners = 1)
        : budget_{budget}, listeners_(listeners) {}

    /// Throws Failure (refused), and takes nothing, where `more` would exceed the budget.
    void take(const Given& more);
    void give_back(const Given& taken) noexcept;
    [[nodiscard]] Given given() const noexcept;

    /// The listener for a peer that asked for `wanted`, or has no choice: one more is its peer.
    /// Among those with equally few it is the one behind the last that was chosen.
    [[nodiscard]] std::uint32_t choose(std::uint32_t wanted) noexcept;
    void leave(std::uint32_t listener) noexcept;
    /// It is chosen no more.
    void close(std::uint32_t listener) noexcept;

  private:
    struct Listening {
        std::uint64_t peers = 0;
        bool is_closed = false;
    };
    Budget budget_;
    mutable std::mutex mutex_;  ///< of all that follows
    Given given_;
    std::vector<Listening> listeners_;
    std::size_t last_ = 0;  ///< behind the one that was chosen last without being asked for
};

/// One client's part, given back with it. Move-only.
class Place {
  public:
    /// That of a link which no budget concerns.
    Place() noexcept = default;
    explicit Place(std::shared_ptr<Ledger> ledger) noexcept : ledger_{std::move(ledger)} {}
    Place(Place&& other) noexcept
        : ledger_{std::move(other.ledger_)},
          taken_{std::exchange(other.taken_, {})},
          listener_{std::exchange(other.listener_, {})} {}
    Place& operator=(Place&& other) noexcept {
        std::swap(ledger_, other.ledger_);
        std::swap(taken_, other.taken_);
        std::swap(listener_, other.listener_);
        return *this;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() {
        if (ledger_ == nullptr) return;
        ledger_->give_back(taken_);
        if (listener_.has_value()) ledger_->leave(*listener_);
    }

    /// As Ledger::choose. Once.
    [[nodiscard]] std::uint32_t choose_listener(std::uint32_t wanted) noexcept {
        listener_ = ledger_->choose(wanted);
        return *listener_;
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
    std::optional<std::uint32_t> listener_;
};

}  // namespace millrace::connect
