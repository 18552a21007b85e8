// The lock of post_send and poll_cq: exclusive between its owner and everybody else, whatever the
// moment at which the privilege is taken away.
#include "system/thread_lock.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::soft {
namespace {

TEST(ThreadLock, ExcludesTheOwnerAndManyOthers) {
    for (int trial = 0; trial < 50; ++trial) {
        ThreadLock lock;
        std::uint64_t count = 0;  // plain: lost additions are what this looks for
        constexpr std::uint64_t each = 20'000;
        std::atomic<int> ready{0};
        const auto add = [&](bool often) {
            if (often) {  // owns it before the others come
                lock.lock_often();
                ++count;
                lock.unlock();
            }
            ready.fetch_add(1);
            while (ready.load() < 3) std::this_thread::yield();
            for (std::uint64_t i = often ? 1 : 0; i < each; ++i) {
                if (often) {
                    lock.lock_often();
                } else {
                    lock.lock();
                }
                ++count;
                lock.unlock();
            }
        };
        std::thread owner{add, true};
        std::vector<std::thread> others;
        for (int i = 0; i < 2; ++i) others.emplace_back(add, false);
        owner.join();
        for (std::thread& other : others) other.join();
        ASSERT_EQ(count, 3 * each);
    }
}

TEST(ThreadLock, ExcludesThreadsThatTry) {
    for (int trial = 0; trial < 50; ++trial) {
        ThreadLock lock;
        std::uint64_t count = 0;
        std::atomic<std::uint64_t> taken{0};
        std::atomic<bool> done{false};
        std::thread other{[&] {
            while (!done.load()) {
                if (!lock.try_lock()) continue;
                ++count;
                taken.fetch_add(1);
                lock.unlock();
            }
        }};
        constexpr std::uint64_t each = 20'000;
        for (std::uint64_t i = 0; i < each; ++i) {
            lock.lock_often();
            ++count;
            lock.unlock();
        }
        done.store(true);
        other.join();
        ASSERT_EQ(count, each + taken.load());
    }
}

TEST(ThreadLock, IsNotTakenTwiceByOneThreadThatTries) {
    ThreadLock lock;
    lock.lock_often();
    EXPECT_FALSE(lock.try_lock()) << "while it was becoming the owner";
    lock.unlock();
    lock.lock_often();
    EXPECT_FALSE(lock.try_lock()) << "as the owner";
    lock.unlock();
    EXPECT_TRUE(lock.try_lock());
    lock.unlock();
    lock.lock();
    EXPECT_FALSE(lock.try_lock());
    lock.unlock();
}

TEST(ThreadLock, IsNotTakenFromAnOwnerThatIsInside) {
    ThreadLock lock;
    lock.lock_often();
    std::thread{[&] { EXPECT_FALSE(lock.try_lock()); }}.join();
    lock.unlock();
    std::thread{[&] {
        EXPECT_TRUE(lock.try_lock()) << "the owner has left";
        lock.unlock();
    }}.join();
    lock.lock_often();
    std::thread{[&] {
        EXPECT_FALSE(lock.try_lock()) << "an owner no longer, but it holds it";
    }}.join();
    lock.unlock();
}

}  // namespace
}  // namespace millrace::soft
