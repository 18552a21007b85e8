// Queue pairs: transitions, every typed work request, failures that explain themselves.
#include "millrace/verbs/queue_pair.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "loopback.hpp"
#include "millrace/base/error.hpp"
#include "millrace/soft/device.hpp"

namespace millrace::verbs {
namespace {

using test::Loopback;
using test::next;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void fill(RegisteredBuffer& memory, int seed) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory.data()[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
    }
}

TEST(QueuePair, WritesIntoThePeersMemory) {
    Loopback pair;
    fill(pair.a.memory, 1);
    const ibv_sge from = pair.a.memory.slice(100, 5000);
    ASSERT_EQ(pair.a.queue_pair.post(Write{.id = 42,
                                           .from = {&from, 1},
                                           .to = pair.b.memory.region().remote(200),
                                           .flags = SendFlags::signaled}),
              0);
    const Completion done = next(pair.a.sends);
    EXPECT_TRUE(done.ok()) << done.explain();
    EXPECT_EQ(done.id(), 42U);
    EXPECT_FALSE(done.is_receive());
    EXPECT_EQ(std::memcmp(pair.b.memory.data() + 200, pair.a.memory.data() + 100, 5000), 0);
    EXPECT_EQ(pair.b.memory.data()[199], std::byte{0});
    EXPECT_EQ(pair.b.memory.data()[5200], std::byte{0});
}

TEST(QueuePair, WritesInlineDataThatChangesAfterThePost) {
    Loopback pair;
    std::uint64_t value = 0x1122334455667788;
    const ibv_sge from{reinterpret_cast<std::uint64_t>(&value), sizeof value, 0};
    ASSERT_EQ(pair.a.queue_pair.post(Write{.from = {&from, 1},
                                           .to = pair.b.memory.region().remote(),
                                           .flags = SendFlags::signaled | SendFlags::inlined}),
              0);
    value = 0;
    ASSERT_TRUE(next(pair.a.sends).ok());
    std::uint64_t seen = 0;
    std::memcpy(&seen, pair.b.memory.data(), sizeof seen);
    EXPECT_EQ(seen, 0x1122334455667788U);
}

TEST(QueuePair, GathersSeveralSlices) {
    Loopback pair;
    fill(pair.a.memory, 3);
    const std::array<ibv_sge, 2> from{pair.a.memory.slice(0, 10), pair.a.memory.slice(1000, 20)};
    ASSERT_EQ(
        pair.a.queue_pair.post(Write{
            .from = from, .to = pair.b.memory.region().remote(), .flags = SendFlags::signaled}),
        0);
    ASSERT_TRUE(next(pair.a.sends).ok());
    EXPECT_EQ(std::memcmp(pair.b.memory.data(), pair.a.memory.data(), 10), 0);
    EXPECT_EQ(std::memcmp(pair.b.memory.data() + 10, pair.a.memory.data() + 1000, 20), 0);
}

TEST(QueuePair, ReadsThePeersMemory) {
    Loopback pair;
    fill(pair.b.memory, 5);
    const ibv_sge into = pair.a.memory.slice(0, 3000);
    ASSERT_EQ(pair.a.queue_pair.post(Read{.id = 7,
                                          .into = {&into, 1},
                                          .from = pair.b.memory.region().remote(64),
                                          .flags = SendFlags::signaled}),
              0);
    const Completion done = next(pair.a.sends);
    EXPECT_TRUE(done.ok()) << done.explain();
    EXPECT_EQ(done.id(), 7U);
    EXPECT_EQ(std::memcmp(pair.a.memory.data(), pair.b.memory.data() + 64, 3000), 0);
}

TEST(QueuePair, MapsMemoryOfThePeerWhereTheDeviceCan) {
    std::shared_ptr<std::byte> place;
    {
        Loopback loop;
        auto& writer = loop.a.queue_pair;
        auto& target = loop.b.memory;
        place = writer.map_remote(target.remote(16), 1000);
        EXPECT_EQ(loop.context.maps_remote(), place != nullptr);
        if (place == nullptr) GTEST_SKIP() << "not this device, or not in this mode";
        EXPECT_EQ(writer.map_remote(target.remote(16), target.size()), nullptr);  // beyond its end
        EXPECT_EQ(writer.map_remote({target.remote().address, target.remote().rkey ^ 1}, 8),
                  nullptr);
        auto read_only = loop.domain.allocate(64, Access::remote_read);
        EXPECT_EQ(writer.map_remote(read_only.remote(), 8), nullptr);
        std::vector<std::byte> plain(64);  // not of a file that can be shared
        auto region = loop.domain.register_memory(plain, Access::remote_write);
        EXPECT_EQ(writer.map_remote(region.remote(), 8), nullptr);

        std::memset(place.get(), 0x5a, 1000);
        EXPECT_EQ(target.data()[16], std::byte{0x5a});
        EXPECT_EQ(target.data()[1015], std::byte{0x5a});
        EXPECT_EQ(target.data()[1016], std::byte{0});
        // A WRITE from there to where it belongs changes nothing, and completes.
        auto own = loop.domain.register_memory({place.get(), 1000}, Access::none);
        const ibv_sge slice = own.slice(0, 1000);
        ASSERT_EQ(writer.post(Write{
                      .from = {&slice, 1}, .to = target.remote(16), .flags = SendFlags::signaled}),
                  0);
        EXPECT_TRUE(next(loop.a.sends).ok());
        EXPECT_EQ(target.data()[1015], std::byte{0x5a});
    }
    // Whatever became of its owner, who has given back what was there.
    EXPECT_EQ(place.get()[0], std::byte{0});
    std::memset(place.get(), 1, 1000);
    EXPECT_EQ(place.get()[999], std::byte{1});
}

TEST(QueuePair, SendsIntoPostedReceives) {
    Loopback pair;
    fill(pair.a.memory, 9);
    const ibv_sge into = pair.b.memory.slice(0, 4096), from = pair.a.memory.slice(0, 1500);
    ASSERT_EQ(pair.b.queue_pair.post(Receive{.id = 1, .into = {&into, 1}}), 0);
    ASSERT_EQ(pair.a.queue_pair.post(Send{.from = {&from, 1}, .flags = SendFlags::signaled}), 0);
    const Completion received = next(pair.b.receives);
    ASSERT_TRUE(received.ok()) << received.explain();
    EXPECT_EQ(received.id(), 1U);
    EXPECT_TRUE(received.is_receive());
    EXPECT_EQ(received.bytes(), 1500U);
    EXPECT_FALSE(received.has_immediate());
    EXPECT_TRUE(next(pair.a.sends).ok());
    EXPECT_EQ(std::memcmp(pair.b.memory.data(), pair.a.memory.data(), 1500), 0);
}

TEST(QueuePair, CarriesImmediatesInHostByteOrder) {
    Loopback pair;
    const ibv_sge into = pair.b.memory.slice(0, 64), from = pair.a.memory.slice(0, 8);
    ASSERT_EQ(pair.b.queue_pair.post(Receive{.id = 1, .into = {&into, 1}}), 0);
    ASSERT_EQ(pair.b.queue_pair.post(Receive{.id = 2, .into = {&into, 1}}), 0);
    ASSERT_EQ(pair.a.queue_pair.post(WriteWithImmediate{.from = {&from, 1},
                                                        .to = pair.b.memory.region().remote(128),
                                                        .immediate = 0x01020304,
                                                        .flags = SendFlags::signaled}),
              0);
    const Completion written = next(pair.b.receives);
    ASSERT_TRUE(written.ok()) << written.explain();
    EXPECT_TRUE(written.has_immediate());
    EXPECT_TRUE(written.is_receive());
    EXPECT_EQ(written.immediate(), 0x01020304U);
    ASSERT_EQ(pair.a.queue_pair.post(SendWithImmediate{
                  .from = {&from, 1}, .immediate = 0xfffefdfc, .flags = SendFlags::signaled}),
              0);
    const Completion sent = next(pair.b.receives);
    ASSERT_TRUE(sent.ok()) << sent.explain();
    EXPECT_EQ(sent.immediate(), 0xfffefdfcU);
    EXPECT_EQ(sent.id(), 2U);
}

TEST(QueuePair, TakesZeroLengthWritesWithImmediate) {
    Loopback pair;
    ASSERT_EQ(pair.b.queue_pair.post(Receive{.id = 5, .into = {}}), 0);
    ASSERT_EQ(pair.a.queue_pair.post(WriteWithImmediate{
                  .from = {}, .to = pair.b.memory.region().remote(), .immediate = 77}),
              0);
    const Completion event = next(pair.b.receives);
    ASSERT_TRUE(event.ok()) << event.explain();
    EXPECT_EQ(event.immediate(), 77U);
}

TEST(QueuePair, PostsABatchWithOneDoorbell) {
    Loopback pair;
    fill(pair.a.memory, 2);
    Batch<4> batch;
    std::array<ibv_sge, 4> slices;
    for (std::size_t i = 0; i < 4; ++i) {
        slices[i] = pair.a.memory.slice(i * 100, 100);
        EXPECT_TRUE(batch.add(Write{.id = i,
                                    .from = {&slices[i], 1},
                                    .to = pair.b.memory.region().remote(i * 100),
                                    .flags = i == 3 ? SendFlags::signaled : SendFlags::none}));
    }
    EXPECT_FALSE(batch.add(Write{})) << "it is full";
    std::size_t posted = 0;
    ASSERT_EQ(pair.a.queue_pair.post(batch, &posted), 0);
    EXPECT_EQ(posted, 4U);
    const Completion done = next(pair.a.sends);
    EXPECT_TRUE(done.ok()) << done.explain();
    EXPECT_EQ(done.id(), 3U) << "only the last was signaled";
    EXPECT_EQ(std::memcmp(pair.b.memory.data(), pair.a.memory.data(), 400), 0);
    batch.clear();
    EXPECT_EQ(pair.a.queue_pair.post(batch, &posted), 0);
    EXPECT_EQ(posted, 0U);
}

TEST(QueuePair, TellsHowFarABatchCame) {
    Loopback pair;
    std::array<ibv_sge, 3> bad{pair.a.memory.slice(0, 8), pair.a.memory.slice(8, 8),
                               pair.a.memory.slice(16, 8)};
    Batch<2> batch;
    EXPECT_TRUE(batch.add(Write{.from = {bad.data(), 1},
                                .to = pair.b.memory.region().remote(),
                                .flags = SendFlags::signaled}));
    // One slice more than the queue pair has room for (as granted, which may exceed the request).
    std::vector<ibv_sge> many(pair.a.queue_pair.capacity().max_send_sge + 1, bad[0]);
    EXPECT_TRUE(batch.add(Write{.from = many, .to = pair.b.memory.region().remote()}));
    std::size_t posted = 99;
    EXPECT_NE(pair.a.queue_pair.post(batch, &posted), 0);
    EXPECT_EQ(posted, 1U);
}

TEST(QueuePair, SaysWhenNoSlotIsLeft) {
    Loopback pair;
    constexpr std::size_t many = 1024;
    const std::uint32_t slots = pair.a.queue_pair.capacity().max_send_wr;
    ASSERT_LT(slots, many);
    const ibv_sge from = pair.a.memory.slice(0, 8);
    // In one doorbell: some devices free the slots of unsignaled requests as they execute them.
    const auto batch = std::make_unique<Batch<many>>();
    while (batch->add(Write{.from = {&from, 1}, .to = pair.b.memory.region().remote()})) {
    }
    std::size_t posted = 0;
    EXPECT_EQ(pair.a.queue_pair.post(*batch, &posted), ENOMEM);
    EXPECT_GE(posted, slots);
    EXPECT_LT(posted, many);
}

TEST(QueuePair, ExplainsAWrongKey) {
    Loopback pair;
    const ibv_sge from = pair.a.memory.slice(0, 8);
    RemoteAddress wrong = pair.b.memory.region().remote();
    wrong.rkey ^= 0x55aa;
    ASSERT_EQ(pair.a.queue_pair.post(
                  Write{.from = {&from, 1}, .to = wrong, .flags = SendFlags::signaled}),
              0);
    const Completion done = next(pair.a.sends);
    EXPECT_EQ(done.status(), IBV_WC_REM_ACCESS_ERR);
    EXPECT_THAT(done.explain(), HasSubstr("rkey"));
    EXPECT_EQ(pair.a.queue_pair.state(), IBV_QPS_ERR);
}

// On one host there is no network between that could be broken.
TEST(Completion, OfTheSoftDeviceSaysWhetherThePeersProcessHasEnded) {
    Completion failed;
    failed.raw.status = IBV_WC_RETRY_EXC_ERR;
    EXPECT_THAT(failed.explain(), HasSubstr("UDP port"));
    failed.raw.vendor_err = soft::vendor_peer_ended;
    EXPECT_THAT(failed.explain(), AllOf(HasSubstr("its process has ended"), Not(HasSubstr("UDP"))));
    failed.raw.vendor_err = soft::vendor_no_answer;
    EXPECT_THAT(failed.explain(), AllOf(HasSubstr("does not answer"), Not(HasSubstr("ended, or")),
                                        Not(HasSubstr("UDP"))));
}

TEST(QueuePair, RefusesWritesBeyondTheRegion) {
    Loopback pair;
    const ibv_sge from = pair.a.memory.slice(0, 16);
    ASSERT_EQ(
        pair.a.queue_pair.post(Write{.from = {&from, 1},
                                     .to = pair.b.memory.region().remote(pair.b.memory.size() - 8),
                                     .flags = SendFlags::signaled}),
        0);
    EXPECT_EQ(next(pair.a.sends).status(), IBV_WC_REM_ACCESS_ERR);
}

TEST(QueuePair, RefusesReadsWhereOnlyWritesWereGranted) {
    Loopback pair{true, test::everything, Access::remote_write};
    const ibv_sge into = pair.a.memory.slice(0, 16);
    ASSERT_EQ(pair.a.queue_pair.post(Read{.into = {&into, 1},
                                          .from = pair.b.memory.region().remote(),
                                          .flags = SendFlags::signaled}),
              0);
    EXPECT_EQ(next(pair.a.sends).status(), IBV_WC_REM_ACCESS_ERR);
}

TEST(QueuePair, FlushesWhatIsPostedWhenItFails) {
    Loopback pair;
    const ibv_sge into = pair.b.memory.slice(0, 64);
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.b.queue_pair.post(Receive{.id = id, .into = {&into, 1}}), 0);
    }
    pair.b.queue_pair.fail();
    EXPECT_EQ(pair.b.queue_pair.state(), IBV_QPS_ERR);
    for (std::uint64_t id = 0; id < 3; ++id) {
        const Completion flushed = next(pair.b.receives);
        EXPECT_EQ(flushed.status(), IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(flushed.id(), id);
    }
}

TEST(QueuePair, GoesThroughItsStates) {
    Loopback pair{false};
    EXPECT_EQ(pair.a.queue_pair.state(), IBV_QPS_INIT);
    pair.a.queue_pair.connect(pair.address(pair.b), 77, pair.path());
    EXPECT_EQ(pair.a.queue_pair.state(), IBV_QPS_RTS);
}

TEST(QueuePair, ShowsTheAttributesOfATransitionThatFails) {
    Loopback pair{false};
    CompletionQueue sends = pair.context.create_completion_queue(4);
    CompletionQueue receives = pair.context.create_completion_queue(4);
    QueuePair fresh =
        pair.domain.create_queue_pair({.send_queue = &sends, .receive_queue = &receives});
    try {
        fresh.initialise(99, test::everything);
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("RESET to INIT"));
        EXPECT_THAT(error.what(), HasSubstr("port 99"));
    }
    try {
        fresh.connect(pair.address(pair.a), 1, pair.path());  // from RESET: not allowed
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("INIT to RTR"));
        EXPECT_THAT(error.what(), HasSubstr("MTU"));
    }
}

TEST(QueuePair, NamesTheLimitThatWasExceeded) {
    Context context = find_device().open();
    ProtectionDomain domain = context.allocate_protection_domain();
    CompletionQueue queue = context.create_completion_queue(16);
    const int limit = context.attributes().max_qp_wr;
    try {
        (void)domain.create_queue_pair(
            {.send_queue = &queue,
             .receive_queue = &queue,
             .max_send_requests = static_cast<std::uint32_t>(limit) + 1});
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(std::to_string(limit)));
    }
    try {
        (void)domain.create_queue_pair({});
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    }
}

TEST(CompletionQueue, OfTooManyEntriesNamesTheLimit) {
    Context context = find_device().open();
    const int limit = context.attributes().max_cqe;
    if (limit == INT32_MAX) GTEST_SKIP() << "the device knows no limit";
    try {
        (void)context.create_completion_queue(limit + 1);
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(std::to_string(limit)));
    }
}

TEST(CompletionChannel, WakesForAnArmedQueue) {
    Loopback pair;
    EXPECT_FALSE(pair.channel.wait(std::chrono::milliseconds{1})) << "nothing has happened yet";
    ASSERT_TRUE(pair.b.receives.arm());
    const ibv_sge into = pair.b.memory.slice(0, 64), from = pair.a.memory.slice(0, 8);
    ASSERT_EQ(pair.b.queue_pair.post(Receive{.into = {&into, 1}}), 0);
    ASSERT_EQ(pair.a.queue_pair.post(Send{.from = {&from, 1}, .flags = SendFlags::signaled}), 0);
    EXPECT_TRUE(pair.channel.wait(std::chrono::seconds{20}));
    EXPECT_TRUE(next(pair.b.receives).ok());
    EXPECT_EQ(pair.channel.drain(), 0) << "an armed queue raises one event";
}

TEST(Completion, ExplainsEveryStatusDifferently) {
    std::set<std::string> texts;
    for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
        Completion completion;
        completion.raw.status = static_cast<ibv_wc_status>(status);
        completion.raw.wr_id = 5;
        texts.insert(completion.explain());
    }
    EXPECT_EQ(texts.size(), IBV_WC_TM_RNDV_INCOMPLETE + 1U);
    for (const std::string& text : texts) EXPECT_THAT(text, Not(HasSubstr("does not know")));
    Completion unknown;
    unknown.raw.status = static_cast<ibv_wc_status>(31);  // the enumeration has 24
    EXPECT_THAT(unknown.explain(), HasSubstr("does not know"));
}

}  // namespace
}  // namespace millrace::verbs
