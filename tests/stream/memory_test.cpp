// Memory that lacks for the first operations of a socket: they answer so by value, nothing is lost,
// and the next try goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "bounded_queue.hpp"
#include "pair.hpp"
#include "rpc/allocations.hpp"

namespace millrace::stream {
namespace {

using base::Status;

/// Takes what `id` named, of whatever is outstanding besides.
void wait_for(Socket& socket, std::uint64_t id) {
    for (;;) {
        Completion done;
        ASSERT_EQ(socket.wait(done, patience()), Status::ok) << socket.failure();
        if (done.id != id) continue;
        EXPECT_EQ(done.status, Status::ok);
        return;
    }
}

/// `first` is tried with each of its allocations failing in turn, and `goes_on` behind it. `first`
/// answers `lacking` where it lacked memory, or what it answers with enough.
void lack_each(const SocketOptions& options, Status lacking,
               const std::function<Status(Pair&)>& first,
               const std::function<void(Pair&)>& goes_on) {
    for (std::uint64_t others = 0; others < 100; ++others) {
        Pair pair{options};
        bool has_failed = false;
        {
            const rpc::FailingAllocation failing{others};
            const Status status = first(pair);
            has_failed = failing.has_failed();
            EXPECT_EQ(status, has_failed ? lacking : Status::ok) << others;
        }
        if (has_failed && lacking == Status::full) {
            EXPECT_EQ(first(pair), Status::ok) << others;
        }
        goes_on(pair);
        if (!has_failed) {
            EXPECT_GT(others, 0U) << "it has allocated nothing, and nothing was tried";
            return;
        }
    }
    FAIL() << "it allocates without an end";
}

TEST(StreamQueue, SaysThatThereIsNoMemoryForIt) {
    BoundedQueue<std::uint64_t> queue{4};
    {
        const rpc::FailingAllocation failing{0};
        EXPECT_FALSE(queue.prepare());
    }
    ASSERT_TRUE(queue.prepare());
    queue.push(7);
    EXPECT_EQ(queue.front(), 7U);
}

TEST(StreamMemory, ThatAFirstSendLacksIsToldAndTheNextOneGoes) {
    Buffer from{4096};
    Bytes into(4096);
    fill(from.slice().bytes(), 0, 1);
    lack_each(
        in_mode(Mode::dynamic), Status::full,
        [&](Pair& pair) { return pair.near->send(from.slice(), 1); },
        [&](Pair& pair) {
            wait_for(*pair.near, 1);
            std::size_t size = 0;
            ASSERT_EQ(pair.far->read_some(into, size, patience()), Status::ok);
            EXPECT_EQ(size, into.size());
            EXPECT_TRUE(is_right(into, 0, 1));
        });
}

// Where nothing can be stored, the first one registers memory to copy to as well, and throws where
// that cannot be.
TEST(StreamMemory, ThatAFirstWriteLacksIsToldAndTheNextOneGoes) {
    if (Pair{}.near->explain().find("carrier: store") == std::string::npos) {
        GTEST_SKIP() << "the ring is written by requests";
    }
    const Bytes bytes = pattern(100, 2);
    Bytes into(100);
    std::size_t size = 0;
    lack_each(
        in_mode(Mode::dynamic), Status::full,
        [&](Pair& pair) { return pair.near->try_write_some(bytes, size); },
        [&](Pair& pair) {
            ASSERT_EQ(pair.far->read_some(into, size, patience()), Status::ok);
            EXPECT_EQ(size, into.size());
            EXPECT_EQ(into, bytes);
        });
}

TEST(StreamMemory, ThatAFirstReceiveLacksIsToldAndTheNextOneGoes) {
    Buffer into{64 << 10};
    lack_each(
        in_mode(Mode::dynamic), Status::full,
        [&](Pair& pair) { return pair.near->receive(into.slice(), 3); },
        [&](Pair& pair) {
            const Bytes bytes = pattern(1000, 3);
            ASSERT_EQ(pair.far->write_all(bytes, patience()), Status::ok);
            wait_for(*pair.near, 3);
            EXPECT_TRUE(is_right(into.slice().bytes().first(1000), 0, 3));
        });
}

TEST(StreamMemory, ThatAReaderOfMessagesLacksLosesNoMessage) {
    SocketOptions options = in_mode(Mode::dynamic);
    options.type = Type::seqpacket;
    for (std::uint64_t others = 0; others < 4; ++others) {
        Pair pair{options};
        Bytes into(100);
        std::size_t size = 0;
        {
            const rpc::FailingAllocation failing{others};
            EXPECT_EQ(pair.near->try_read_some(into, size), Status::empty);
            EXPECT_TRUE(failing.has_failed()) << others;
        }
        const Bytes bytes = pattern(100, 4);
        ASSERT_EQ(pair.far->write_all(bytes, patience()), Status::ok);
        ASSERT_EQ(pair.near->read_some(into, size, patience()), Status::ok);
        EXPECT_EQ(into, bytes);
    }
}

/// A reader that gives up behind the beginning of a message, which has to be kept.
TEST(StreamMemory, ThatTheBeginningOfAMessageLacksEndsTheStream) {
    SocketOptions options = in_mode(Mode::indirect, 1024);
    options.type = Type::seqpacket;
    Pair pair{options};
    const Bytes message = pattern(1500, 9);
    Bytes into(4000);
    std::size_t size = 0;
    Completion done;
    // The reader's first operation makes its memory.
    ASSERT_EQ(pair.far->receive(std::span{into}.first(1), 5), Status::ok);
    ASSERT_EQ(pair.far->cancel(5), Status::ok);
    ASSERT_EQ(pair.far->wait(done, patience()), Status::ok);
    EXPECT_EQ(done.status, Status::cancelled);
    ASSERT_EQ(pair.near->send(message, 1), Status::ok);
    {
        const rpc::FailingAllocation failing{0};
        const base::Deadline deadline = patience();
        while (!failing.has_failed() && !deadline.expired()) {
            (void)pair.far->read_some(into, size, base::Deadline::now());
        }
        EXPECT_TRUE(failing.has_failed());
    }
    std::ranges::fill(into, std::byte{0xdd});
    EXPECT_EQ(pair.far->read_some(into, size, patience()), Status::peer_lost);
    EXPECT_EQ(std::ranges::count(into, std::byte{0xdd}), 4000);
    EXPECT_THAT(pair.far->failure(), testing::HasSubstr("no memory"));
}

/// What the peer says takes memory, too: of its first advertisement.
TEST(StreamMemory, ThatAnAdvertisementLacksEndsTheStreamAndSaysWhy) {
    Pair pair{in_mode(Mode::dynamic)};
    Buffer into{128 << 10};
    ASSERT_EQ(pair.far->receive(into.slice(), 1), Status::ok);
    Completion done;
    {
        const rpc::FailingAllocation failing{0};
        const base::Deadline deadline = patience();
        // There are devices over which it comes later.
        while (!failing.has_failed() && !deadline.expired()) (void)pair.near->poll(done);
        ASSERT_TRUE(failing.has_failed());
    }
    EXPECT_EQ(pair.near->write_all(pattern(8, 5), patience()), Status::peer_lost);
    EXPECT_THAT(pair.near->failure(), testing::HasSubstr("no memory"));
    ASSERT_EQ(pair.far->wait(done, patience()), Status::ok);
    EXPECT_EQ(done.status, Status::peer_lost);
}

}  // namespace
}  // namespace millrace::stream
