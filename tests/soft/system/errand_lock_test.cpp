// The lock of an errand that nobody may wait for and nobody may forget.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "system/errand_lock.hpp"

namespace millrace::soft {
namespace {

TEST(ErrandLock, TellsItsHolderOfWhoCameMeanwhile) {
    ErrandLock lock;
    ASSERT_TRUE(lock.try_lock_or_tell());
    EXPECT_FALSE(lock.try_lock_or_tell());
    EXPECT_FALSE(lock.try_lock_or_tell()) << "the second to come has to be seen, too";
    EXPECT_TRUE(lock.unlock());
    ASSERT_TRUE(lock.try_lock_or_tell()) << "it is free, whatever was left word of";
    EXPECT_FALSE(lock.unlock()) << "word was left only once";
}

TEST(ErrandLock, TellsNobodyOfWhoHasNoNews) {
    ErrandLock lock;
    lock.lock();
    EXPECT_FALSE(lock.try_lock());
    EXPECT_FALSE(lock.unlock());
}

TEST(ErrandLock, TakenForSomethingElseStillTells) {
    ErrandLock lock;
    bool again = false;
    {
        const ErrandPause pause{lock, again};
        EXPECT_FALSE(lock.try_lock_or_tell());
    }
    EXPECT_TRUE(again);
    again = false;
    { const ErrandPause pause{lock, again}; }
    EXPECT_FALSE(again);
}

// News that is published before somebody leaves word is always seen by a run that begins later.
TEST(ErrandLock, LosesNoNewsOfTwoThreads) {
    constexpr int times = 100'000;
    ErrandLock lock;
    std::atomic<int> published{0};
    int seen = 0;  // under the lock
    const auto announce = [&] {
        for (int i = 0; i < times; ++i) {
            published.fetch_add(1);
            do {
                if (!lock.try_lock_or_tell()) break;
                seen = published.load();
            } while (lock.unlock());
        }
    };
    std::thread other{announce};
    announce();
    other.join();
    EXPECT_EQ(seen, 2 * times);
}

}  // namespace
}  // namespace millrace::soft
