// The bell between two threads of one process, by its descriptor.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "millrace/base/detail/thread_bell.hpp"
#include "millrace/base/wait.hpp"
#include "support/readable.hpp"

namespace millrace::base {
namespace {

using millrace::test::is_readable;

TEST(ThreadBell, LeavesNothingReadableBehindARingThatCameLate) {
    ThreadBell bell;
    const int descriptor = bell.descriptor();
    constexpr int rounds = 5000;
    std::atomic<int> asked{0};
    std::atomic<int> rung{0};
    std::thread other{[&] {
        for (int round = 1; round <= rounds; ++round) {
            while (asked.load() != round) base::pause();
            bell.ring();
            rung.store(round);
        }
    }};
    int stuck = 0;
    for (int round = 1; round <= rounds; ++round) {
        bell.announce();
        asked.store(round);
        // Awake again while the other thread is about to ring, at another point of it each time.
        for (int i = 0; i < round % 200; ++i) base::pause();
        bell.retract();
        while (rung.load() != round) base::pause();
        // A ring that came late may wake once for nothing, and not for ever.
        bell.announce();
        bell.retract();
        bell.announce();
        if (is_readable(descriptor)) ++stuck;
        bell.retract();
    }
    other.join();
    EXPECT_EQ(stuck, 0);
}

}  // namespace
}  // namespace millrace::base
