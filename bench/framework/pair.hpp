// Two processes, pinned to two cores, that run the two sides of one measurement.
//
//     const double ns = run_pair({}, [](Pair& pair) {          // this process
//         pair.meet();                                         // both are there, pinned, mapped
//         ...
//         return nanoseconds_per_round_trip;
//     }, [](Pair& pair) { pair.meet(); ... });                 // a forked child
//
// Waits spin (each side owns its core) and end: at the run's deadline, or when the other side has
// failed or died, they throw base::Error. A child that hangs is killed and reported.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::bench {

/// Two cores that share no execution units, as far as the system tells; close to each other.
struct Cores {
    int first = 0;
    int second = 1;
};
/// Throws base::Error (unsupported) if this process has a single core.
[[nodiscard]] Cores two_cores();

/// Where the threads of one side run, if a side has several: half of the processors that this
/// process may use, or one of two_cores() where these are fewer than four. Throws as two_cores().
[[nodiscard]] std::vector<int> cores_of_side(bool is_second);

/// From here on this thread, and those that it makes, run where they like of the two.
void share_two_cores();

struct PairOptions {
    std::size_t shared_bytes = 0;  ///< zeroed, shared between both sides, page-aligned
    std::chrono::milliseconds deadline{20'000};
};

struct PairControl;

/// One side's view of the run.
class Pair {
  public:
    Pair(PairControl* control, std::byte* shared, int side, int other_pid,
         std::uint64_t end_ticks) noexcept
        : control_{control},
          shared_{shared},
          side_{side},
          other_pid_{other_pid},
          end_ticks_{end_ticks} {}

    [[nodiscard]] std::byte* shared() const noexcept { return shared_; }
    /// The shared memory at `offset`, as a T that the zero bytes there make valid.
    template <class T>
    [[nodiscard]] T* shared_at(std::size_t offset) const noexcept {
        return reinterpret_cast<T*>(shared_ + offset);
    }
    [[nodiscard]] int other_pid() const noexcept { return other_pid_; }

    /// Waits until the other side meets too. Any number of times.
    void meet();
    /// Leaves a value that the other side reads with `value` after the next `meet`.
    void set_value(int index, std::uint64_t value) noexcept;
    [[nodiscard]] std::uint64_t value(int index) const noexcept;

    /// Spins with pause until `ready()`. Throws when the wait must end.
    template <class Ready>
    void spin_until(Ready&& ready) {
        for (std::uint32_t turn = 1; !ready(); ++turn) {
            base::pause();
            if ((turn & 1023U) == 0) [[unlikely]]
                check(turn);
        }
    }
    /// Throws base::Error if the run must end (deadline, other side failed or dead). For loops
    /// that wait in their own way; call it now and then with a growing count.
    void check(std::uint32_t turn);

  private:
    PairControl* control_;
    std::byte* shared_;
    int side_;
    int other_pid_;
    std::uint64_t end_ticks_;
    std::uint32_t met_ = 0;
};

using FirstSide = std::function<double(Pair&)>;
using SecondSide = std::function<void(Pair&)>;

/// Runs both sides and returns what the first measured. Throws base::Error if either fails, dies,
/// or is not done by the deadline. The calling thread is pinned for the run and released after.
double run_pair(const PairOptions& options, const FirstSide& first, const SecondSide& second);

/// Runs `body` with the calling thread pinned to the first core.
double run_alone(const std::function<double()>& body);

/// Nanoseconds between two readings of base::Clock.
[[nodiscard]] inline double nanoseconds_since(base::Clock::time_point start) noexcept {
    return static_cast<double>((base::Clock::now() - start).count());
}

}  // namespace millrace::bench
