// What a lock guards, and the lock: nobody reaches the one without holding the other. Who holds it
// has proof of it, a Held, which is handed on at no cost where a comment would say "with the lock".
#pragma once

#include <cassert>
#include <mutex>

namespace millrace::soft {

template <class State, class Lock>
class Guarded;

/// Proof that the lock of a `State` is held.
template <class State>
class Held {
    template <class, class>
    friend class Guarded;
    constexpr Held() noexcept = default;
};

template <class State, class Lock = std::mutex>
class Guarded {
  public:
    /// Holds the lock while it lives.
    class [[nodiscard]] Guard {
      public:
        ~Guard() {
            if (of_ != nullptr) of_->lock_.unlock();
        }
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

        /// False: it is another's, for all that was tried.
        explicit operator bool() const noexcept { return of_ != nullptr; }
        operator Held<State>() const noexcept {
            assert(of_ != nullptr);
            return {};
        }
        State* operator->() const noexcept { return &of_->state_; }
        State& operator*() const noexcept { return of_->state_; }

      private:
        friend class Guarded;
        explicit Guard(Guarded* of) noexcept : of_{of} {}

        Guarded* const of_;
    };

    Guarded() = default;
    template <class Argument>
    explicit Guarded(const Argument& of) : state_{of} {}

    [[nodiscard]] Guard hold() noexcept {
        lock_.lock();
        return Guard{this};
    }
    [[nodiscard]] Guard try_hold() noexcept { return Guard{lock_.try_lock() ? this : nullptr}; }
    [[nodiscard]] State& operator()(Held<State>) noexcept { return state_; }
    [[nodiscard]] const State& operator()(Held<State>) const noexcept { return state_; }

    /// For who takes it in a way of its own, and says so.
    [[nodiscard]] Lock& lock() noexcept { return lock_; }
    [[nodiscard]] static constexpr Held<State> held_by_hand() noexcept { return {}; }

  private:
    Lock lock_;
    State state_;
};

}  // namespace millrace::soft
