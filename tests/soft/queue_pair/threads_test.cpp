// Several threads of one process on the same objects, as verbs allows.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "soft/endpoint.hpp"
#include "support/extent.hpp"

namespace millrace::test {
namespace {

/// How much each thread does. With others who want the processors, each message may wait for the
/// scheduler to come round.
std::uint64_t times_for_each_thread() {
    return std::getenv("MILLRACE_TEST_LONG") != nullptr ? 20000 : repetitions(4000);
}

TEST(Threads, PostOnOneQueuePairWhileAnotherPolls) {
    EndpointOptions options;
    options.send_wr = 64;
    Pair pair{options, {}};
    const std::uint64_t each = times_for_each_thread();
    std::atomic<bool> failed{false};
    const auto post = [&](std::uint64_t thread) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
        for (std::uint64_t i = 0; i < each && !failed;) {
            const int error = pair.left.write(thread << 32 | i, thread * 64, 8,
                                              pair.right.address(thread * 64), pair.right.mr->rkey);
            if (error == 0) {
                ++i;
            } else if (error != ENOMEM || std::chrono::steady_clock::now() > until) {
                failed = true;
            } else {
                std::this_thread::yield();
            }
        }
    };
    std::thread first{post, 0};
    std::thread second{post, 1};
    std::uint64_t next[2]{};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    while (next[0] + next[1] < 2 * each && !failed && std::chrono::steady_clock::now() < until) {
        if (const auto done = pair.left.poll_once()) {
            const std::uint64_t thread = done->wr_id >> 32;
            ASSERT_LT(thread, 2U);
            if (done->status != IBV_WC_SUCCESS || (done->wr_id & 0xffffffff) != next[thread]++) {
                failed = true;
            }
        }
    }
    first.join();
    second.join();
    EXPECT_FALSE(failed);
    EXPECT_EQ(next[0], each);
    EXPECT_EQ(next[1], each);
}

TEST(Threads, SendAndReceiveOnBothEndsAtOnce) {
    EndpointOptions options;
    options.receive_wr = 2;
    options.send_wr = 4;
    Pair pair{options, options};
    const std::uint64_t messages = times_for_each_thread();
    std::atomic<int> failures{0};
    const auto run = [&](Endpoint& end) {
        std::uint64_t posted = 0;
        std::uint64_t received = 0;
        std::uint64_t sent = 0;
        std::uint64_t completed = 0;
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
        while (received < messages || completed < messages) {
            if (posted < messages && end.receive(posted, 1024 + posted % 2 * 64, 64) == 0) ++posted;
            if (sent < messages && sent - completed < 4) {
                std::memcpy(end.memory + sent % 4 * 64, &sent, 8);
                if (end.send(sent, sent % 4 * 64, 8) != 0) return static_cast<void>(++failures);
                ++sent;
            }
            while (const auto wc = end.poll_once()) {
                if (wc->status != IBV_WC_SUCCESS) return static_cast<void>(++failures);
                if (wc->opcode == IBV_WC_RECV) {
                    std::uint64_t value = 0;
                    std::memcpy(&value, end.memory + 1024 + received % 2 * 64, 8);
                    if (value != received) return static_cast<void>(++failures);
                    ++received;
                } else if (wc->wr_id != completed++) {
                    return static_cast<void>(++failures);
                }
            }
            if (std::chrono::steady_clock::now() > until) return static_cast<void>(++failures);
        }
    };
    std::thread left{[&] { run(pair.left); }};
    std::thread right{[&] { run(pair.right); }};
    left.join();
    right.join();
    EXPECT_EQ(failures, 0);
}

// Two sends wait, and two threads post a receive for each at the same time: whoever finds the other
// at work on them must not rely on its looking again when it no longer does. Nobody polls, and the
// sender would wait for ever.
TEST(Threads, RunAllOfAPeersWaitingSendsWhenTwoPostReceivesAtOnce) {
    Pair pair;
    const std::uint64_t rounds = times_for_each_thread();
    std::atomic<std::uint64_t> round{0};
    std::atomic<std::uint64_t> posted{0};
    const auto pause = [](std::uint64_t times) {
        for (std::atomic<std::uint64_t> left{times}; left.load() > 0;) left.fetch_sub(1);
    };
    std::jthread second{[&](const std::stop_token& stop) {
        for (std::uint64_t seen = 0;;) {
            for (int looks = 0; round.load() == seen && !stop.stop_requested(); ++looks) {
                if (looks > 1000) std::this_thread::yield();
            }
            if (round.load() == seen) return;
            ++seen;
            pause(seen % 32);
            static_cast<void>(pair.right.receive(seen, 64, 8));
            posted = seen;
        }
    }};
    const auto arrived = [&](std::size_t offset) {
        return std::atomic_ref{pair.right.word(offset)}.load() != 0;
    };
    // Where it goes wrong, it does so within some thousand rounds.
    const base::Deadline end = base::Deadline::after(std::chrono::seconds{10});
    std::uint64_t done = 0;
    for (bool lost = false; done < rounds && !lost && !end.expired(); ++done) {
        pair.right.word(0) = pair.right.word(64) = 0;
        for (int i = 0; i < 2; ++i) {
            std::uint64_t one = 1;
            ASSERT_EQ(
                pair.left.post(IBV_WR_SEND, done, {{reinterpret_cast<std::uint64_t>(&one), 8, 0}},
                               IBV_SEND_SIGNALED | IBV_SEND_INLINE),
                0);
        }
        round = done + 1;
        pause(done / 32 % 32);
        ASSERT_EQ(pair.right.receive(done, 0, 8), 0);
        while (posted != done + 1) std::this_thread::yield();
        const base::Deadline until = base::Deadline::after(std::chrono::seconds{2});
        while (!(arrived(0) && arrived(64)) && !until.expired()) std::this_thread::yield();
        lost = !(arrived(0) && arrived(64));
        EXPECT_FALSE(lost) << "in round " << done << ": a send waits, and its receive is posted";
        for (int i = 0; i < 2 && !lost; ++i) {
            ASSERT_TRUE(pair.left.complete());
            ASSERT_TRUE(pair.right.complete());
        }
    }
}

TEST(Threads, ModifyToErrorWhileOthersPostAndPoll) {
    for (int round = 0; round < 50; ++round) {
        Pair pair;
        std::atomic<bool> stop{false};
        std::atomic<std::uint64_t> posted{0};
        std::thread poster{[&] {
            while (!stop) {
                if (pair.left.send(1, 0, 8, 0) == 0) ++posted;
                if (pair.left.write(1, 0, 8, pair.right.address(), pair.right.mr->rkey) == 0) {
                    ++posted;
                }
            }
        }};
        std::thread receiver{[&] {
            while (!stop) {
                static_cast<void>(pair.right.receive(1, 512, 64));
                while (pair.right.poll_once()) {
                }
            }
        }};
        std::thread poller{[&] {
            while (!stop) {
                while (pair.left.poll_once()) {
                }
            }
        }};
        std::this_thread::sleep_for(std::chrono::microseconds{200 * (round % 5)});
        EXPECT_EQ(pair.left.to_state(IBV_QPS_ERR), 0);
        stop = true;
        poster.join();
        receiver.join();
        poller.join();
        while (pair.left.poll_once()) {
        }
        // Everything was completed or flushed: all slots are free again.
        for (std::uint32_t i = 0; i < pair.left.capacity.max_send_wr; ++i) {
            ASSERT_EQ(pair.left.send(2, 0, 8, 0), 0) << i;
        }
    }
}

TEST(Threads, DeregisterWhileAnotherThreadWrites) {
    Pair pair;
    for (std::uint64_t round = 0; round < repetitions(100); ++round) {
        void* const memory = map_shareable(1 << 16);
        ibv_mr* const region =
            soft::reg_mr(pair.right.pd, memory, 1 << 16, reinterpret_cast<std::uint64_t>(memory),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        ASSERT_NE(region, nullptr);
        const std::uint32_t key = region->rkey;
        std::atomic<bool> writing{false};
        std::thread writer{[&] {
            for (;;) {
                static_cast<void>(
                    pair.left.write(1, 0, 1 << 16, reinterpret_cast<std::uint64_t>(memory), key));
                writing = true;
                if (const auto done = pair.left.poll_once()) {
                    if (done->status != IBV_WC_SUCCESS) return;
                }
            }
        }};
        while (!writing) std::this_thread::yield();
        EXPECT_EQ(soft::dereg_mr(region), 0);
        munmap(memory, 1 << 16);  // nobody may be in it any more
        writer.join();
        ASSERT_EQ(pair.left.to_state(IBV_QPS_RESET), 0);
        ASSERT_EQ(pair.right.to_state(IBV_QPS_RESET), 0);
        ASSERT_EQ(pair.left.connect(pair.right.qp->qp_num), 0);
        ASSERT_EQ(pair.right.connect(pair.left.qp->qp_num), 0);
    }
}

}  // namespace
}  // namespace millrace::test
