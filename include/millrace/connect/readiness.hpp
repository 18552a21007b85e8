// A descriptor by which a program's own loop (poll, epoll, asio, libuv) learns that an end may have
// something to do: readable means, call it. Level-triggered: it stays readable until a call has
// found nothing, and by then whoever makes progress has been asked to raise an event. Used by the
// ends of floor 5, whose `descriptor()` it is; docs/loops.md.
//
//   awake      readable: it was just made, or something went on lately, or was found behind an
//              announcement
//   asleep     readable by news: announced, and a look behind that found nothing
//   napping    readable by a clock, too: the same, where nothing announces what is awaited
//
// It is what base::wait_until does with a parker, cut in two: the announcement stands while the
// program is elsewhere, and the next call that finds nothing takes it back and makes a new one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "millrace/base/detail/forks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::connect {

/// One thread at a time: that of the end it belongs to. Nothing but making it throws or allocates.
class Readiness {
  public:
    /// What makes it readable while it is awake: a socket among the sources that has room to write,
    /// which costs no descriptor and asks that next to nothing is written there; or a timer.
    enum class Alarm : std::uint8_t { quiet_socket, timer };

    /// `sources`: what becomes readable when the parker's events come; they must outlive it.
    /// `spin`: how long it stays awake behind the last that went on. Awake. Throws Error
    /// (resource_exhausted): no more descriptors.
    Readiness(std::span<const int> sources, std::chrono::nanoseconds spin,
              Alarm alarm = Alarm::quiet_socket);
    Readiness(const Readiness&) = delete;
    Readiness& operator=(const Readiness&) = delete;
    ~Readiness();

    /// Throws Error (invalid_argument) in a child made by fork, as making it does there.
    [[nodiscard]] int descriptor() const;

    /// No limit to a sleep: everything that is awaited raises an event.
    static constexpr std::chrono::nanoseconds until_woken = std::chrono::nanoseconds::max();

    /// Nothing was found. Announces that the program may sleep, asks `ready` once more, and falls
    /// asleep unless that says true; for `limit` at most.
    template <class Ready>
    void rest(base::StandingParker& parker, Ready&& ready,
              std::chrono::nanoseconds limit = until_woken) {
        end(parker);
        parker.prepare();
        announced_ = true;
        if (ready()) {
            wake_in(std::chrono::nanoseconds{0});
            return;
        }
        rest_ = parker.settle();
        switch (rest_) {
            case Rest::look: wake_in(std::chrono::nanoseconds{0}); break;
            case Rest::nap: wake_in(parker.next_nap()); break;
            case Rest::sleep:
                parker.end_naps();
                wake_in(std::min(limit, parker.longest_sleep()));
                break;
        }
    }
    /// Takes the announcement back, if one stands, before a look or a wait of another kind. Behind
    /// it rest() or wake() must follow: nobody raises an event now. False: none stood, so nothing
    /// was looked after.
    bool end(base::StandingParker& parker) {
        if (!announced_) return false;
        announced_ = false;
        parker.woken(rest_);
        parker.retract();
        rest_ = Rest::look;
        return true;
    }
    /// Nothing was found. True: something has gone on lately (then `progress` is another number),
    /// and more may follow at once: the descriptor stays readable for a while, as a wait spins
    /// before it sleeps. Asked behind end().
    [[nodiscard]] bool stays_awake(std::uint64_t progress) noexcept;
    /// Behind end(): the program looks by itself from now on, so the descriptor is readable by news
    /// of the sources alone.
    void hush() noexcept { wake_in(until_woken); }
    /// From now on others are watched in place of its sources; the descriptor stays the same, and
    /// is readable. Throws Error (resource_exhausted).
    void turn_to(std::span<const int> sources, std::span<const int> others);
    /// From now on the descriptor is readable.
    void wake() noexcept { wake_in(std::chrono::nanoseconds{0}); }

  private:
    using Rest = base::StandingParker::Rest;
    struct State;
    friend base::ForkWatch;
    /// In a child made by fork: what was announced is the parent's to take back.
    void become_copy() noexcept { announced_ = false; }

    void wake_in(std::chrono::nanoseconds delay) noexcept;

    std::unique_ptr<State> state_;
    std::chrono::nanoseconds clock_{0};  ///< when it is readable; until_woken: by news alone
    Rest rest_ = Rest::look;
    bool announced_ = false;
    std::uint64_t progress_ = 0;
    std::uint64_t spin_ticks_;
    std::uint64_t awake_since_ = 0;
    base::ForkWatch fork_watch_{*this};
};

/// Takes an end's Readiness, whose announcement has ended, out of its hands for as long as the end
/// waits otherwise: looks within the wait leave sleeping to it. Then the descriptor is awake.
class HeldReadiness {
  public:
    explicit HeldReadiness(std::unique_ptr<Readiness>& place) noexcept
        : place_{&place}, held_{std::move(place)} {}
    HeldReadiness(const HeldReadiness&) = delete;
    HeldReadiness& operator=(const HeldReadiness&) = delete;
    ~HeldReadiness() {
        if (held_ != nullptr) held_->wake();
        *place_ = std::move(held_);
    }

  private:
    std::unique_ptr<Readiness>* place_;
    std::unique_ptr<Readiness> held_;
};

}  // namespace millrace::connect
