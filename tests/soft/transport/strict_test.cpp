// Mode strict: what the rules of verbs leave open happens, by seed; what they promise is kept; what
// a program does against them is said (strict_lines_test.cpp).
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "queue_pair/queue_pair.hpp"
#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "soft/remote_endpoint.hpp"
#include "system/cable_time.hpp"

namespace millrace::test {
namespace {

[[nodiscard]] std::string strict(std::uint64_t seed, const std::string& more = "") {
    return "strict:seed=" + std::to_string(seed) + more;
}
[[nodiscard]] std::uint64_t load_word(const Endpoint& end, std::size_t offset) {
    return std::atomic_ref{end.word(offset)}.load(std::memory_order_acquire);
}
void fill_words(const Endpoint& end, std::size_t bytes, std::uint64_t value) {
    for (std::size_t at = 0; at < bytes; at += 8) end.word(at) = value;
}

TEST(Strict, DeliversEverythingWholeAndInTheOrderOfPosting) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        const ModeScope mode{strict(seed)};
        Pair pair;
        for (std::uint64_t i = 0; i < 60; ++i) {
            const std::size_t length = 1 + (i * 397) % 3000;
            for (std::size_t at = 0; at < length; ++at) {
                pair.left.memory[at] = static_cast<std::byte>(at + i);
            }
            ASSERT_EQ(pair.right.receive(i, 8192, 4096), 0);
            ASSERT_EQ(pair.left.write(1, 0, length, pair.right.address(3), pair.right.mr->rkey), 0);
            ASSERT_EQ(pair.left.send(2, 0, length), 0);
            ASSERT_EQ(pair.left.post(IBV_WR_RDMA_READ, 3, {pair.left.sge(20'000, length)},
                                     IBV_SEND_SIGNALED, pair.right.address(3), pair.right.mr->rkey),
                      0);
            for (std::uint64_t id = 1; id <= 3; ++id) {
                const auto wc = pair.left.complete();
                ASSERT_TRUE(wc);
                EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
                EXPECT_EQ(wc->wr_id, id);
            }
            const auto received = pair.right.complete();
            ASSERT_TRUE(received);
            EXPECT_EQ(received->wr_id, i);
            EXPECT_EQ(received->byte_len, length);
            for (const std::byte* copy :
                 {pair.right.memory + 3, pair.right.memory + 8192, pair.left.memory + 20'000}) {
                ASSERT_EQ(std::memcmp(copy, pair.left.memory, length), 0) << seed << ' ' << i;
            }
        }
    }
}

TEST(Strict, DeliversBetweenProcessesThatMapOneAnotherOrDoNot) {
    for (const bool shared : {true, false}) {
        const ModeScope mode{strict(3)};
        EndpointOptions options;
        options.shared_memory = shared;
        RemotePair pair{options,
                        shared ? std::vector<std::string>{} : std::vector<std::string>{"private"}};
        for (std::uint64_t i = 0; i < 40; ++i) {
            const std::string at = std::to_string(i * 32);
            const std::string value = std::to_string(i + 1);
            std::memset(pair.left.memory, static_cast<int>(i + 1), 1000);
            ASSERT_EQ(pair.right.ask("receive " + value + " 4096 2000"), "0");
            ASSERT_EQ(pair.left.write(1, 0, 1000, pair.right.address, pair.right.rkey), 0);
            ASSERT_EQ(pair.left.send(2, 0, 1000), 0);
            ASSERT_TRUE(pair.left.complete());
            ASSERT_TRUE(pair.left.complete());
            ASSERT_EQ(pair.right.ask("complete"), value + " 0 1000");
            EXPECT_EQ(pair.right.ask("check 0 1000 " + value), "same");
            EXPECT_EQ(pair.right.ask("check 4096 1000 " + value), "same");
            ASSERT_EQ(pair.left.receive(3, 8192, 2000), 0);
            ASSERT_EQ(pair.right.ask("send 9 4096 1000"), "0");
            const auto wc = pair.left.complete();
            ASSERT_TRUE(wc);
            EXPECT_EQ(wc->byte_len, 1000U);
            ASSERT_EQ(pair.right.ask("complete"), "9 0 1000");
        }
    }
}

/// Rounds of a WRITE whose last word is polled, until the first word is older than the last one.
/// How many of `rounds` it took; 0: all.
[[nodiscard]] int rounds_until_tail_comes_first(const std::string& mode_text, int rounds) {
    constexpr std::size_t bytes = 4096;
    const ModeScope mode{mode_text};
    Pair pair;
    for (int round = 1; round <= rounds; ++round) {
        const auto value = static_cast<std::uint64_t>(round);
        fill_words(pair.left, bytes, value);
        EXPECT_EQ(pair.left.write(1, 0, bytes, pair.right.address(), pair.right.mr->rkey), 0);
        std::uint64_t tail = 0;
        std::uint64_t head = 0;
        const std::int64_t end = soft::cable_now() + 10'000'000'000;
        do {  // a poller of memory, which also moves the link
            static_cast<void>(pair.right.poll_once());
            tail = load_word(pair.right, bytes - 8);
            head = load_word(pair.right, 0);
        } while (tail != value && soft::cable_now() < end);
        if (head != value) return round;
        const auto wc = pair.left.complete();
        if (!wc || wc->status != IBV_WC_SUCCESS) return -1;
    }
    return 0;
}

TEST(Strict, ShowsTheTailOfAWriteBeforeItsHead) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        EXPECT_GT(rounds_until_tail_comes_first(strict(seed), 1000), 0);
    }
}

TEST(Strict, KeepsTheOrderOfBytesWhereItIsAskedTo) {
    EXPECT_EQ(rounds_until_tail_comes_first(strict(1, ",order=increasing"), 300), 0);
}

TEST(Strict, SaysWhetherBytesLandInOrder) {
    for (const auto& [text, answer] : {std::pair{"strict", 0}, {"strict:order=any", 0}}) {
        const ModeScope mode{text};
        const Endpoint end;
        EXPECT_EQ(soft::query_qp_data_in_order(end.qp, IBV_WR_RDMA_WRITE, 0), answer);
    }
    int usual = 0;
    {
        const ModeScope mode{"fast"};
        const Endpoint end;
        usual = soft::query_qp_data_in_order(end.qp, IBV_WR_RDMA_WRITE, 0);
    }
    const ModeScope mode{"strict:order=increasing"};
    const Endpoint end;
    EXPECT_EQ(soft::query_qp_data_in_order(end.qp, IBV_WR_RDMA_WRITE, 0), usual);
}

TEST(Strict, CompletesAtTheSenderBeforeOrAfterTheReceiver) {
    bool sender_first = false;
    bool receiver_first = false;
    for (std::uint64_t seed = 1; seed <= 100 && !(sender_first && receiver_first); ++seed) {
        const ModeScope mode{strict(seed)};
        Pair pair;
        for (std::uint64_t i = 0; i < 8; ++i) {
            ASSERT_EQ(pair.right.receive(i, 0, 64), 0);
            ASSERT_EQ(pair.left.send(i, 64, 64), 0);
            bool sent = false;
            bool received = false;
            const std::int64_t end = soft::cable_now() + 10'000'000'000;
            while (!(sent && received) && soft::cable_now() < end) {
                // What is found one after the other was so long apart that neither can be luck.
                if (!received && !sent) {
                    received = pair.right.poll_once().has_value();
                    sent = pair.left.poll_once().has_value();
                    if (received && !sent) receiver_first = true;
                    if (sent && !received) {
                        sender_first = !pair.right.poll_once().has_value() || sender_first;
                        if (!sender_first) received = true;
                    }
                } else if (!received) {
                    received = pair.right.poll_once().has_value();
                } else {
                    sent = pair.left.poll_once().has_value();
                }
            }
            if (!(sent && received)) break;
        }
    }
    EXPECT_TRUE(sender_first);
    EXPECT_TRUE(receiver_first);
}

TEST(Strict, AnUnsignaledRequestHoldsItsSlotUntilALaterOneCompletes) {
    const ModeScope mode{strict(2)};
    EndpointOptions options;
    options.send_wr = 4;
    Pair pair{options};
    for (int round = 0; round < 50; ++round) {
        for (std::uint64_t i = 0; i < 4; ++i) {
            ASSERT_EQ(pair.left.write(i, 0, 8, pair.right.address(), pair.right.mr->rkey,
                                      i == 3 ? IBV_SEND_SIGNALED : 0),
                      0);
        }
        EXPECT_EQ(pair.left.write(9, 0, 8, pair.right.address(), pair.right.mr->rkey), ENOMEM);
        const auto wc = pair.left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->wr_id, 3U);
    }
}

/// The word is the peer's to write, and places for what was posted are made by the first request.
TEST(Strict, BearsAPeerThatRefusesWhatWasNeverPosted) {
    const ModeScope mode{strict(3)};
    Pair pair;
    const auto& block = static_cast<soft::QueuePair*>(pair.left.qp)->block;
    block.fault->send.store(1U + IBV_WC_REM_ACCESS_ERR, std::memory_order_release);
    const std::int64_t end = soft::cable_now() + 10'000'000'000;
    while (state_of(pair.left.qp) != IBV_QPS_ERR && soft::cable_now() < end) {
        EXPECT_FALSE(pair.left.poll_once());
    }
    EXPECT_EQ(state_of(pair.left.qp), IBV_QPS_ERR);
}

TEST(Strict, MakesTheSameDecisionsForTheSameSeed) {
    const auto decisions = [](std::uint64_t seed) {
        const ModeScope mode{strict(seed)};
        Pair pair;
        std::vector<std::uint32_t> plans;
        const auto& block = static_cast<soft::QueuePair*>(pair.left.qp)->block;
        for (std::uint32_t i = 0; i < 20; ++i) {
            EXPECT_EQ(pair.left.write(i, 0, 512, pair.right.address(), pair.right.mr->rkey), 0);
            EXPECT_TRUE(pair.left.complete());
            plans.push_back(block.pending_entry(soft::first_position + i)->plan);
        }
        return plans;
    };
    const auto first = decisions(11);
    EXPECT_EQ(decisions(11), first);
    EXPECT_NE(decisions(12), first);
}

}  // namespace
}  // namespace millrace::test
