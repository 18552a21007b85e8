// A link's second queue pair: made by both ends at once, used beside the first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <thread>

#include "millrace/connect/link.hpp"
#include "peers.hpp"

namespace millrace::connect {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::error_of;
using test::Pair;
using test::soon;
using test::within;
using testing::HasSubstr;

/// Both ends of `pair` open it.
void open_second_queues(Pair& pair) {
    auto other = std::async(std::launch::async, [&] { pair.b->open_second_queue(16, soon()); });
    pair.a->open_second_queue(16, soon());
    other.get();
}

std::uint64_t load_word(std::byte* memory) {
    return std::atomic_ref<std::uint64_t>{*reinterpret_cast<std::uint64_t*>(memory)}.load(
        std::memory_order_acquire);
}

TEST(SecondQueue, WritesAndReadsBesideTheFirstAndWakesASleeper) {
    Pair pair;
    EXPECT_FALSE(pair.a->has_second_queue());
    open_second_queues(pair);
    ASSERT_TRUE(pair.a->has_second_queue());
    ASSERT_TRUE(pair.b->has_second_queue());
    EXPECT_NE(pair.a->second_queue_pair().number(), pair.a->queue_pair().number());
    auto near = pair.a->protection_domain().allocate(4096, verbs::Access::local_write);
    auto far = pair.b->protection_domain().allocate(
        4096, verbs::Access::remote_write | verbs::Access::remote_read);
    const std::uint64_t word = 0x1234567;
    const ibv_sge from{reinterpret_cast<std::uint64_t>(&word), sizeof word, 0};
    LinkParker parker{*pair.a};
    const auto completion_of = [&](auto request) {
        verbs::Completion completion;
        EXPECT_EQ(pair.a->second_queue_pair().post(request), 0);
        const auto status = base::wait_until(
            [&] {
                return pair.a->second_send_queue().poll({&completion, 1}) == 1;
            },
            soon(), base::WaitPolicy::blocking(), parker);
        EXPECT_EQ(status, base::Status::ok);
        return completion;
    };
    EXPECT_TRUE(
        completion_of(verbs::Write{.from = {&from, 1},
                                   .to = far.remote(),
                                   .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled})
            .ok());
    EXPECT_EQ(load_word(far.data()), word);
    const ibv_sge into = near.slice(0, sizeof word);
    EXPECT_TRUE(completion_of(verbs::Read{.into = {&into, 1},
                                          .from = far.remote(),
                                          .flags = verbs::SendFlags::signaled})
                    .ok());
    EXPECT_EQ(load_word(near.data()), word);
    // The first serves as before.
    EXPECT_EQ(pair.a->queue_pair().post(
                  verbs::Write{.from = {&from, 1},
                               .to = far.remote() + 8,
                               .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled}),
              0);
    EXPECT_TRUE(test::eventually([&] { return load_word(far.data() + 8) == word; }));
}

TEST(SecondQueue, IsOnlyOne) {
    Pair pair;
    open_second_queues(pair);
    const base::Error error = error_of([&] { pair.a->open_second_queue(16, soon()); });
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("has one already"));
}

TEST(SecondQueue, NeedsThePeer) {
    Pair pair;
    EXPECT_EQ(error_of([&] { pair.a->open_second_queue(16, within(50ms)); }).code(),
              base::ErrorCode::timed_out);
    Pair other;
    auto answer =
        std::async(std::launch::async, [&] { (void)other.b->exchange(bytes("hello"), soon()); });
    const base::Error error = error_of([&] { other.a->open_second_queue(16, soon()); });
    answer.get();
    EXPECT_EQ(error.code(), base::ErrorCode::protocol);
    EXPECT_FALSE(other.a->has_second_queue());
}

}  // namespace
}  // namespace millrace::connect
