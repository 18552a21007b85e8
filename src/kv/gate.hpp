// What makes a command over several keys one step for all clients of a server. A thread is inside
// while it carries out a command; one that wants to be alone waits until all others are outside,
// and keeps them there. Whoever is inside pays for it with a line of its own that nobody else
// writes; a server of one thread pays nothing. Used by the desks and by the doors.
//
//   place[t]   1: thread t is inside            written by t alone
//   alone      1: some thread is, or waits to   written with the mutex
//
// A thread sets its place, and then looks at `alone`; who wants to be alone sets that, and then
// looks at all places: so one of both sees the other. Order of those who want to be alone: the
// mutex's. Threads of the program that use the store beside the server are not held up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::kv {

class Gate {
  public:
    explicit Gate(std::size_t threads) : places_(threads) {}
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    [[nodiscard]] std::size_t threads() const noexcept { return places_.size(); }

    void enter(std::size_t thread) noexcept {
        if (places_.size() == 1) return;
        auto& inside = places_[thread].inside;
        for (;;) {
            inside.store(1, std::memory_order_seq_cst);
            if (alone_.load(std::memory_order_seq_cst) == 0) [[likely]]
                return;
            inside.store(0, std::memory_order_release);
            while (alone_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
        }
    }
    void leave(std::size_t thread) noexcept {
        if (places_.size() != 1) places_[thread].inside.store(0, std::memory_order_release);
    }

    /// A thread that is inside, in one command.
    class Inside {
      public:
        Inside(Gate& gate, std::size_t thread) noexcept : gate_{&gate}, thread_{thread} {
            gate_->enter(thread_);
        }
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;
        ~Inside() { gate_->leave(thread_); }

      private:
        Gate* gate_;
        std::size_t thread_;
    };
    /// A thread that was inside, and is the only one for a while; or it was already.
    class Alone {
      public:
        Alone(Gate& gate, std::size_t thread) : gate_{&gate}, thread_{thread} {
            auto& place = gate_->places_[thread_];
            if (place.depth++ != 0 || gate_->places_.size() == 1) return;
            place.inside.store(0, std::memory_order_release);
            gate_->mutex_.lock();
            gate_->alone_.store(1, std::memory_order_seq_cst);
            for (auto& other : gate_->places_) {
                while (other.inside.load(std::memory_order_seq_cst) != 0) {
                    std::this_thread::yield();
                }
            }
        }
        Alone(const Alone&) = delete;
        Alone& operator=(const Alone&) = delete;
        ~Alone() {
            if (--gate_->places_[thread_].depth != 0 || gate_->places_.size() == 1) return;
            gate_->alone_.store(0, std::memory_order_release);
            gate_->mutex_.unlock();
            gate_->enter(thread_);
        }

      private:
        Gate* gate_;
        std::size_t thread_;
    };

  private:
    struct alignas(64) Place {
        std::atomic<std::uint32_t> inside{0};
        std::uint32_t depth = 0;  ///< of Alone; its thread's
    };
    std::vector<Place> places_;  ///< by thread
    alignas(64) std::atomic<std::uint32_t> alone_{0};
    std::mutex mutex_;
};

}  // namespace millrace::kv
