// Whether waits move their threads: only where the program asks for it.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "millrace/base/crowd.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/base/wait.hpp"

namespace {

/// While it is set, each offer of the processor seems to have been taken.
std::atomic<bool> offers_are_taken{false};
std::atomic<int> offers{0};

}  // namespace

/// In place of the C library's, for this program.
extern "C" int sched_yield() noexcept {
    if (!offers_are_taken) return static_cast<int>(syscall(SYS_sched_yield));
    ++offers;
    usleep(10);
    return 0;
}

namespace millrace::base {
namespace {

using namespace std::chrono_literals;

class OffersTaken {
  public:
    OffersTaken() { offers_are_taken = true; }
    ~OffersTaken() { offers_are_taken = false; }
};

class EstimatingParker final : public Parker {
  public:
    void prepare() override {}
    void park(std::chrono::nanoseconds /*limit*/, const Cancellation* /*none*/) override {}
    void retract() override {}
    [[nodiscard]] WaitEstimate* estimate() noexcept override { return &waits; }

    WaitEstimate waits{5us};
};

/// Waits of which each ends behind an offer: as many as a wait asks for before it moves, and more.
std::uint64_t moves_of_waits(const WaitPolicy& policy) {
    const OffersTaken taken;
    EstimatingParker parker;
    for (int wait = 0; wait != 100; ++wait) {
        const int before = offers;
        EXPECT_EQ(wait_until([&] { return offers != before; }, Deadline::never(), policy, parker),
                  Status::ok);
    }
    return parker.waits.facts().moved;
}

TEST(WaitsThatMove, AreThoseThatWereAskedToAlone) {
    if (available_cores().size() < 2) GTEST_SKIP() << "one core";
    WaitPolicy policy = WaitPolicy::adaptive();
    EXPECT_FALSE(policy.moves);
    EXPECT_EQ(moves_of_waits(policy), 0U);
    policy.moves = true;
    EXPECT_GE(moves_of_waits(policy), 1U);
}

TEST(WaitsThatMove, AreNotByDefault) { EXPECT_FALSE(WaitPolicy{}.moves); }

}  // namespace
}  // namespace millrace::base
