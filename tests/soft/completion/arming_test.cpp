// Arming a completion queue while somebody completes: either the look that arming ends with finds
// the completion, or the bell is rung for it. Each writes and then looks at what the other has
// written, so a fence that is missing shows where both do so within some nanoseconds.
// models/arming.pml is the proof.
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "millrace/base/placement.hpp"
#include "soft/events.hpp"

namespace millrace::test {
namespace {

/// Some nanoseconds, up to some hundred.
void linger(std::minstd_rand& random) {
    std::atomic<unsigned> left{static_cast<unsigned>(random() % 64)};
    while (left.load(std::memory_order_relaxed) != 0) {
        left.store(left.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    }
}

class Arming : public testing::Test {
  protected:
    Arming() {
        if (cores_.size() < 2) return;
        do_not_block(pair_.right.channel->fd);
        sender_ = std::thread{[this] { send(); }};
        base::pin_this_thread(cores_[0]);
    }
    ~Arming() override {
        over_ = true;
        if (sender_.joinable()) sender_.join();
        for (const int core : cores_) CPU_SET(static_cast<std::size_t>(core), &all_);
        (void)sched_setaffinity(0, sizeof all_, &all_);
    }
    void SetUp() override {
        if (cores_.size() < 2) GTEST_SKIP() << "nobody completes meanwhile on one processor";
    }

    /// Arms while a message comes. For `most` rounds, or as many as there are in a second: others
    /// may have our processors.
    template <class Between>
    void race(int most, Between&& between) {
        const base::Deadline deadline = base::Deadline::after(std::chrono::seconds{1});
        std::minstd_rand random{1};
        for (int round = 1; round <= most && !deadline.expired(); ++round) {
            ASSERT_EQ(pair_.right.receive(1, 0, 64), 0);
            begun_.store(round);
            linger(random);
            ASSERT_EQ(ibv_req_notify_cq(pair_.right.cq, 0), 0);
            const bool found = pair_.right.poll_once().has_value();
            while (done_.load() != round) std::this_thread::yield();
            ASSERT_TRUE(is_readable(pair_.right.channel->fd))
                << "a wake-up is lost, in round " << round;
            if (!found) {
                ASSERT_TRUE(pair_.right.complete());
            }
            ASSERT_TRUE(take_event(pair_.right)) << "in round " << round;
            between();
        }
    }
    void bring_one() {
        ASSERT_EQ(pair_.right.receive(1, 0, 64), 0);
        ASSERT_EQ(pair_.left.send(1, 0, 8), 0);
        ASSERT_TRUE(pair_.left.complete());
        ASSERT_TRUE(pair_.right.complete());
    }

    Pair pair_{{}, with_events()};

  private:
    void send() {
        base::pin_this_thread(cores_[1]);
        std::minstd_rand random{2};
        for (int round = 1; !over_; ++round) {
            while (begun_.load() != round) {
                if (over_) return;
            }
            linger(random);
            EXPECT_EQ(pair_.left.send(1, 0, 8), 0);
            EXPECT_TRUE(pair_.left.complete());
            done_.store(round);
        }
    }
    std::vector<int> cores_ = base::available_cores();
    cpu_set_t all_{};
    std::atomic<int> begun_{0};
    std::atomic<int> done_{0};
    std::atomic<bool> over_{false};
    std::thread sender_;
};

TEST_F(Arming, RingsForWhatComesMeanwhile) {
    race(50'000, [] {});
}

// Who arms seldom makes everybody's fence, and asks them to make their own when it does so again.
TEST_F(Arming, RingsForWhatComesWhileItAsksForFences) {
    const auto arm_seldom = [this] {
        for (int i = 0; i < 5 * 64; ++i) bring_one();
        ASSERT_EQ(ibv_req_notify_cq(pair_.right.cq, 0), 0);
        bring_one();
        ASSERT_TRUE(take_event(pair_.right));
    };
    race(3'000, arm_seldom);
}

}  // namespace
}  // namespace millrace::test
