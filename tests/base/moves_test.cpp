// Whether waits move their threads: only where the program asks for it.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/contention.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"

namespace {

/// While it is set, each offer of the processor seems to have been taken.
std::atomic<bool> offers_are_taken{false};
std::atomic<int> offers{0};
std::atomic<int> affinities_set{0};

}  // namespace

/// In place of the C library's, for this program.
extern "C" int sched_yield() noexcept {
    if (!offers_are_taken) return static_cast<int>(syscall(SYS_sched_yield));
    ++offers;
    usleep(10);
    return 0;
}
extern "C" int sched_setaffinity(pid_t thread, std::size_t size, const cpu_set_t* set) noexcept {
    ++affinities_set;
    return static_cast<int>(syscall(SYS_sched_setaffinity, thread, size, set));
}

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

/// This process has all its processors.
ProcessorUse all_of_them() noexcept {
    static std::chrono::nanoseconds time = 1s;
    time += 1s;
    return {.time = time, .used = time, .processors = 1};
}

/// While it lives, each offer seems to have been taken, by a crowd of this process.
class OffersTakenByCrowd {
  public:
    OffersTakenByCrowd() {
        std::construct_at(&contention_of_process, all_of_them);
        // Found so long ahead that no wait asks again.
        const std::uint64_t later = ticks() + ticks_in(1h);
        const char threads[2] = {};
        (void)contention_of_process.came_back(later, 0, &threads[0]);
        EXPECT_EQ(
            contention_of_process.came_back(later + ticks_in(Contention::window), 0, &threads[1]),
            Taken::by_crowd);
        offers_are_taken = true;
    }
    ~OffersTakenByCrowd() {
        offers_are_taken = false;
        std::construct_at(&contention_of_process);
    }
};

/// Waits of which each ends behind an offer, with nothing in between: until one has moved its
/// thread, or there were so many.
bool is_moved(const WaitPolicy& policy, int waits, const Deadline& deadline) {
    NapParker parker;
    const int before = affinities_set;
    for (int wait = 0; wait != waits && affinities_set == before && !deadline.expired(); ++wait) {
        const int offered = offers;
        EXPECT_EQ(wait_until([&] { return offers != offered; }, Deadline::never(), policy, parker),
                  Status::ok);
    }
    return affinities_set != before;
}

TEST(WaitsThatMove, AreThoseThatWereAskedToAlone) {
    if (available_cores().size() < 2) GTEST_SKIP() << "one core";
    const OffersTakenByCrowd taken;
    WaitPolicy policy;
    EXPECT_FALSE(policy.moves);
    EXPECT_FALSE(is_moved(policy, 100, Deadline::never()));
    policy.moves = true;
    EXPECT_TRUE(is_moved(policy, -1, Deadline::after(40s)));
}

}  // namespace
}  // namespace millrace::base
