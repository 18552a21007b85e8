// Clock: the processor's counter, kept on CLOCK_MONOTONIC's time line by short straight pieces.
//
// The time line is a chain of straight lines over the counter. Each is valid until a tick at which
// the next one begins exactly where it ended, so time never goes backwards in any thread, however
// long a thread is held up between reading the line and reading the counter. Whoever reads the
// clock first after a line's end compares the counter with CLOCK_MONOTONIC, aims the next line at
// the true time, and installs it with one compare-and-swap. The first line comes from a
// calibration of 200 µs (good to some 100 ppm) and lasts 10 ms; each next one lasts twice as long,
// up to 4 s, so the error settles below a microsecond and follows the kernel's adjustments.
//
// The counter is not used when the processor does not call it invariant, when the kernel itself
// distrusts it (its clock source is another one), or when a comparison shows a rate that differs
// from the former by more than 0.1 % (suspended, migrated): then CLOCK_MONOTONIC is read instead.
#include "millrace/base/clock.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>

#include <fcntl.h>
#include <unistd.h>

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "millrace/base/standard_streams.hpp"

namespace millrace::base {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::int64_t first_line_ns = 10'000'000;
constexpr std::int64_t longest_line_ns = 4'000'000'000;
constexpr std::int64_t calibration_ns = 200'000;

std::int64_t system_now() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

/// The counter, not read before earlier instructions are done (comparisons need it; `now` does
/// without, because the fence costs as much as the system clock).
std::uint64_t ordered_ticks() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_lfence();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
    return ticks();
}

bool processor_counter_is_invariant() noexcept {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(0x80000007U, &eax, &ebx, &ecx, &edx) == 0) return false;
    return (edx & (1U << 8)) != 0;
#elif defined(__aarch64__)
    return true;
#else
    return false;
#endif
}

/// False if the kernel chose a clock source that does not read the counter (hpet, acpi_pm), as it
/// does when it has found the counters of the processors to differ.
bool kernel_trusts_counter() noexcept {
    const int file = above_standard_streams(::open(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC));
    if (file < 0) return true;  // not told; the comparison with CLOCK_MONOTONIC decides
    std::array<char, 64> text{};
    const ssize_t length = ::read(file, text.data(), text.size());
    ::close(file);
    if (length <= 0) return true;
    const std::string_view name{text.data(), static_cast<std::size_t>(length)};
    for (const std::string_view good :
         {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}) {
        if (name.starts_with(good) && !name.starts_with("tsc-early")) return true;
    }
    return false;
}

/// One simultaneous reading of both clocks; `width` is how many ticks it may be off.
struct Sample {
    std::uint64_t tick = 0;
    std::int64_t ns = 0;
    std::uint64_t width = std::numeric_limits<std::uint64_t>::max();
};

Sample take_sample() noexcept {
    Sample best;
    for (int i = 0; i < 5; ++i) {
        const std::uint64_t before = ordered_ticks();
        const std::int64_t ns = system_now();
        const std::uint64_t after = ordered_ticks();
        if (after - before < best.width) best = {before + (after - before) / 2, ns, after - before};
    }
    return best;
}

/// One straight piece of the time line. `rate` is nanoseconds per tick, times 2^32.
struct Line {
    std::uint64_t start_tick;
    std::int64_t start_ns;
    std::uint64_t rate;
    std::uint64_t end_tick;
    std::uint64_t sample_tick;  // the last comparison, from which the next rate is taken
    std::int64_t sample_ns;
    std::uint64_t true_rate;  // as measured; `rate` also steers an error away

    [[nodiscard]] std::int64_t at(std::uint64_t tick) const noexcept {
        // A counter a few ticks behind another core's start of the line reads as its start.
        const std::uint64_t elapsed = tick > start_tick ? tick - start_tick : 0;
        return start_ns + static_cast<std::int64_t>((Wide{elapsed} * rate) >> 32);
    }
};

/// A place for a line. All fields are atomic, because a reader may look while the slot is reused;
/// it notices by `current_` having moved on.
struct Slot {
    std::atomic<std::uint64_t> start_tick, rate, end_tick, sample_tick, true_rate;
    std::atomic<std::int64_t> start_ns, sample_ns;

    void store(const Line& line) noexcept {
        start_tick.store(line.start_tick, std::memory_order_release);
        start_ns.store(line.start_ns, std::memory_order_release);
        rate.store(line.rate, std::memory_order_release);
        end_tick.store(line.end_tick, std::memory_order_release);
        sample_tick.store(line.sample_tick, std::memory_order_release);
        sample_ns.store(line.sample_ns, std::memory_order_release);
        true_rate.store(line.true_rate, std::memory_order_release);
    }
    [[nodiscard]] Line load() const noexcept {
        return {
            start_tick.load(std::memory_order_acquire),  start_ns.load(std::memory_order_acquire),
            rate.load(std::memory_order_acquire),        end_tick.load(std::memory_order_acquire),
            sample_tick.load(std::memory_order_acquire), sample_ns.load(std::memory_order_acquire),
            true_rate.load(std::memory_order_acquire)};
    }
};

std::uint64_t rate_between(const Sample& from, const Sample& to) noexcept {
    const std::uint64_t elapsed = to.tick > from.tick ? to.tick - from.tick : 1;
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(to.ns - from.ns, 1));
    return static_cast<std::uint64_t>((Wide{ns} << 32) / elapsed);
}

std::uint64_t ticks_of(std::int64_t ns, std::uint64_t rate) noexcept {
    return static_cast<std::uint64_t>((Wide{static_cast<std::uint64_t>(ns)} << 32) /
                                      std::max<std::uint64_t>(rate, 1));
}

/// True if the rates are further apart than `tolerance` (a fraction).
bool differ(std::uint64_t a, std::uint64_t b, double tolerance) noexcept {
    const auto x = static_cast<double>(a);
    const auto y = static_cast<double>(b);
    return std::abs(x - y) > tolerance * y;
}

/// The time line of the process. Survives fork: nothing in it is held by a thread.
class Timeline {
  public:
    Timeline() noexcept {
        const Sample first = take_sample();
        Sample middle = first;
        while (middle.ns - first.ns < calibration_ns / 2) middle = take_sample();
        Sample last = middle;
        while (last.ns - first.ns < calibration_ns) last = take_sample();
        initial_rate_ = rate_between(first, last);
        // Half against half: 1 % catches a counter that is not one, yet not a preemption.
        usable_ = processor_counter_is_invariant() && kernel_trusts_counter() &&
                  !differ(rate_between(first, middle), rate_between(middle, last), 0.01);
        slots_[0].store({last.tick, last.ns, initial_rate_,
                         last.tick + ticks_of(first_line_ns, initial_rate_), first.tick, first.ns,
                         initial_rate_});
        counter_ok_.store(usable_, std::memory_order_release);
    }

    [[nodiscard]] std::int64_t now() noexcept {
        for (;;) {
            if (!counter_ok_.load(std::memory_order_acquire)) {
                return std::max(system_now(), floor_ns_.load(std::memory_order_acquire));
            }
            const std::uint64_t current = current_.load(std::memory_order_acquire);
            const Slot& slot = slots_[current % slots_.size()];
            const std::uint64_t start_tick = slot.start_tick.load(std::memory_order_acquire);
            const std::int64_t start_ns = slot.start_ns.load(std::memory_order_acquire);
            const std::uint64_t rate = slot.rate.load(std::memory_order_acquire);
            const std::uint64_t end_tick = slot.end_tick.load(std::memory_order_acquire);
            if (current_.load(std::memory_order_relaxed) != current) continue;
            const std::uint64_t tick = ticks();
            if (tick < end_tick) [[likely]] {
                const std::uint64_t elapsed = tick > start_tick ? tick - start_tick : 0;
                return start_ns + static_cast<std::int64_t>((Wide{elapsed} * rate) >> 32);
            }
            extend(current);
        }
    }

    [[nodiscard]] bool uses_counter() const noexcept {
        return counter_ok_.load(std::memory_order_acquire);
    }
    [[nodiscard]] std::uint64_t initial_rate() const noexcept { return initial_rate_; }

  private:
    /// Installs the line that follows the one in `current`, unless another thread did.
    void extend(std::uint64_t current) noexcept {
        const Line old = slots_[current % slots_.size()].load();
        if (current_.load(std::memory_order_relaxed) != current) return;
        const Sample sample = take_sample();
        const std::int64_t end_ns = old.at(old.end_tick);
        const std::uint64_t true_rate = rate_between({old.sample_tick, old.sample_ns, 0}, sample);
        const std::uint64_t elapsed = sample.tick - old.sample_tick;
        const double uncertainty = static_cast<double>(sample.width) /
                                   static_cast<double>(std::max<std::uint64_t>(elapsed, 1));
        if (sample.tick < old.end_tick || differ(true_rate, old.true_rate, 0.001 + uncertainty)) {
            // The counter no longer keeps time. Nobody has seen a time beyond the line's end.
            floor_ns_.store(end_ns, std::memory_order_release);
            counter_ok_.store(false, std::memory_order_release);
            return;
        }
        const std::int64_t length_ns =
            std::clamp(2 * (end_ns - old.start_ns), first_line_ns, longest_line_ns);
        const std::uint64_t end_tick = sample.tick + ticks_of(length_ns, true_rate);
        const std::int64_t target_ns = sample.ns + length_ns;  // where the new line shall end
        const auto rise = static_cast<std::uint64_t>(std::max<std::int64_t>(target_ns - end_ns, 1));
        const auto rate =
            static_cast<std::uint64_t>((Wide{rise} << 32) / (end_tick - old.end_tick));

        // Claim a place that is not in use, fill it, and publish it.
        std::uint64_t next = claimed_.fetch_add(1, std::memory_order_relaxed) + 1;
        if (next % slots_.size() == current % slots_.size()) {
            next = claimed_.fetch_add(1, std::memory_order_relaxed) + 1;
        }
        slots_[next % slots_.size()].store(
            {old.end_tick, end_ns, rate, end_tick, sample.tick, sample.ns, true_rate});
        current_.compare_exchange_strong(current, next, std::memory_order_acq_rel);
    }

    std::array<Slot, 256> slots_{};
    std::atomic<std::uint64_t> current_{0};
    std::atomic<std::uint64_t> claimed_{0};
    std::atomic<bool> counter_ok_{false};
    std::atomic<std::int64_t> floor_ns_{0};
    std::uint64_t initial_rate_ = 0;
    bool usable_ = false;
};

Timeline& timeline() noexcept {
    static Timeline line;
    return line;
}

}  // namespace

Clock::time_point Clock::now() noexcept { return time_point{duration{timeline().now()}}; }

bool Clock::uses_processor_counter() noexcept { return timeline().uses_counter(); }

std::uint64_t ticks_in(std::chrono::nanoseconds duration) noexcept {
    if (duration.count() <= 0) return 1;
    const Wide ticks = (Wide{static_cast<std::uint64_t>(duration.count())} << 32) /
                       std::max<std::uint64_t>(timeline().initial_rate(), 1);
    constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
    return ticks >= most ? most : std::max<std::uint64_t>(static_cast<std::uint64_t>(ticks), 1);
}

}  // namespace millrace::base
