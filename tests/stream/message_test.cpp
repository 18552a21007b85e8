// Sockets of type seqpacket: what one send sends, one receive takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/error.hpp"
#include "pair.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

SocketOptions messages_in(Mode mode, std::size_t ring_bytes = 64 << 10) {
    SocketOptions options = in_mode(mode, ring_bytes);
    options.type = Type::seqpacket;
    return options;
}

class StreamMessages : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamMessages,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

/// Empty ones, short ones, and some that are longer than the ring.
std::size_t length_of(std::uint64_t number) {
    return number % 5 == 0 ? 0 : number % 7 == 3 ? 40'000 + number : (number * 7919) % 3000;
}

TEST_P(StreamMessages, AreWhatOneSendHasSent) {
    Pair pair{messages_in(GetParam(), 16 << 10)};
    constexpr std::uint64_t count = 200;
    constexpr std::size_t longest = 48 << 10;
    std::thread sender{[&] {
        Buffer memory{4 * longest};
        Bytes plain(longest);
        for (std::uint64_t number = 0; number < count; ++number) {
            const std::size_t length = length_of(number);
            if (number % 3 == 0) {
                fill(std::span{plain}.first(length), 0, number);
                ASSERT_EQ(pair.near->send(std::span{plain}.first(length), number), Status::ok);
            } else {
                const Slice slice = memory.slice(number % 4 * longest, length);
                fill(slice.bytes(), 0, number);
                ASSERT_EQ(pair.near->send(slice, number), Status::ok);
            }
            const Completion done = next(*pair.near, number);
            ASSERT_EQ(done.status, Status::ok) << pair.near->failure();
            ASSERT_EQ(done.bytes, length);
        }
        EXPECT_EQ(pair.near->close(patience()), Status::ok) << pair.near->failure();
    }};
    Buffer memory{4 * longest};
    std::uint64_t started = 0;
    for (std::uint64_t number = 0; number <= count; ++number) {
        for (; started < number + 4; ++started) {
            ASSERT_EQ(pair.far->receive(memory.slice(started % 4 * longest, longest), started,
                                        ReceiveFlags::wait_all),
                      Status::ok);
        }
        const Completion done = next(*pair.far, number);
        if (number == count) {
            EXPECT_EQ(done.status, Status::closed);
            break;
        }
        ASSERT_EQ(done.status, Status::ok) << pair.far->failure();
        ASSERT_EQ(done.bytes, length_of(number));
        ASSERT_TRUE(is_right(memory.bytes().subspan(number % 4 * longest, done.bytes), 0, number));
    }
    sender.join();
    EXPECT_EQ(pair.far->close(patience()), Status::ok);
}

TEST_P(StreamMessages, AreCutOffWhereTheMemoryIsTooSmallAndItIsSaid) {
    Pair pair{messages_in(GetParam())};
    const Bytes message = pattern(50'000, 4);
    Bytes into(40'000, std::byte{0xee});
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->send(message, 1), Status::ok);
        EXPECT_EQ(pair.near->send(std::span{message}.first(10), 2), Status::ok);
        EXPECT_EQ(next(*pair.near, 1).status, Status::ok);
        EXPECT_EQ(next(*pair.near, 2).status, Status::ok);
    }};
    ASSERT_EQ(pair.far->receive(std::span{into}.first(39'000), 1), Status::ok);
    const Completion cut = next(*pair.far, 1);
    EXPECT_EQ(cut.status, Status::too_large);
    EXPECT_EQ(cut.bytes, 39'000U);
    EXPECT_TRUE(is_right(std::span{into}.first(39'000), 0, 4));
    EXPECT_EQ(into[39'000], std::byte{0xee});
    ASSERT_EQ(pair.far->receive(into, 2), Status::ok);
    const Completion whole = next(*pair.far, 2);
    EXPECT_EQ(whole.status, Status::ok);
    EXPECT_EQ(whole.bytes, 10U);
    EXPECT_TRUE(is_right(std::span{into}.first(10), 0, 4));
    sender.join();
}

TEST_P(StreamMessages, AreReadAndWrittenOneByOne) {
    Pair pair{messages_in(GetParam(), 4096)};
    std::thread writer{[&] {
        for (std::size_t length : {10U, 0U, 3000U, 1U, 3900U, 700U}) {
            EXPECT_EQ(pair.near->write_all(pattern(length, length), patience()), Status::ok);
        }
        EXPECT_EQ(pair.near->close(patience()), Status::ok) << pair.near->failure();
    }};
    Bytes into(3500);
    for (std::size_t length : {10U, 0U, 3000U, 1U, 3900U, 700U}) {
        std::size_t size = 77;
        const Status status = pair.far->read_some(into, size, patience());
        ASSERT_EQ(status, length > into.size() ? Status::too_large : Status::ok)
            << pair.far->failure();
        ASSERT_EQ(size, std::min(length, into.size()));
        ASSERT_TRUE(is_right(std::span{into}.first(size), 0, length));
    }
    std::size_t size = 77;
    EXPECT_EQ(pair.far->read_some(into, size, patience()), Status::closed);
    writer.join();
    EXPECT_EQ(pair.far->close(patience()), Status::ok);
}

TEST_P(StreamMessages, TooLongToBeCopiedAreRefusedByTheWriterAndTakenBySend) {
    Pair pair{messages_in(GetParam())};
    const Bytes message = pattern(100'000, 6);
    std::size_t size = 77;
    EXPECT_EQ(pair.near->write_some(message, size, patience()), Status::too_large);
    EXPECT_EQ(size, 0U);
    EXPECT_EQ(pair.near->write_all(message, patience()), Status::too_large);
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->send(message, 1), Status::ok);
        EXPECT_EQ(next(*pair.near, 1).status, Status::ok);
    }};
    Bytes into(message.size());
    ASSERT_EQ(pair.far->receive(into, 1), Status::ok);
    EXPECT_EQ(next(*pair.far, 1).bytes, message.size());
    EXPECT_TRUE(into == message);
    sender.join();
}

TEST_P(StreamMessages, OfNoBytesTakeAReceiveEach) {
    Pair pair{messages_in(GetParam())};
    std::thread sender{[&] {
        for (std::uint64_t id = 0; id < 3; ++id) {
            EXPECT_EQ(pair.near->send(std::span<const std::byte>{}, id), Status::ok);
            EXPECT_EQ(next(*pair.near, id).bytes, 0U);
        }
    }};
    Bytes into(1);
    EXPECT_EQ(pair.far->receive(std::span<std::byte>{}, 0), Status::empty);
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.far->receive(into, id), Status::ok);
        const Completion done = next(*pair.far, id);
        EXPECT_EQ(done.status, Status::ok);
        EXPECT_EQ(done.bytes, 0U);
    }
    sender.join();
}

// The ring has room for half of the message, and the sender makes progress in its own calls only:
// so the reader has its beginning, and no more, until the sender is called again.
TEST(StreamMessage, WhoseReaderHasGivenUpAfterItsBeginningComesWhole) {
    Pair pair{messages_in(Mode::indirect, 1024)};
    const Bytes message = pattern(1500, 9);
    ASSERT_EQ(pair.near->send(message, 1), Status::ok);
    Bytes into(4000, std::byte{0xee});
    std::size_t size = 0;
    const Deadline deadline = patience();
    while (pair.far->stats().copies == 0 && !deadline.expired()) {
        ASSERT_EQ(pair.far->read_some(into, size, Deadline::after(1ms)), Status::timed_out);
    }
    std::ranges::fill(into, std::byte{0xdd});
    EXPECT_EQ(next(*pair.near, 1).status, Status::ok);
    Bytes later(4000);
    ASSERT_EQ(pair.far->read_some(later, size, patience()), Status::ok);
    ASSERT_EQ(size, message.size());
    EXPECT_TRUE(is_right(std::span{later}.first(size), 0, 9));
    EXPECT_EQ(std::ranges::count(into, std::byte{0xdd}), 4000);
    // And the one behind it is one of its own.
    EXPECT_EQ(pair.near->write_all(pattern(5, 3), patience()), Status::ok);
    ASSERT_EQ(pair.far->read_some(later, size, patience()), Status::ok);
    EXPECT_EQ(size, 5U);
}

TEST(StreamMessage, ThatHasBegunIsNotCancelled) {
    Pair pair{messages_in(Mode::indirect, 1024)};
    const Bytes message = pattern(1500, 9);
    ASSERT_EQ(pair.near->send(message, 1), Status::ok);
    Bytes into(4000);
    ASSERT_EQ(pair.far->receive(into, 1), Status::ok);
    Completion done;
    const Deadline deadline = patience();
    while (pair.far->stats().copies == 0 && !deadline.expired()) {
        ASSERT_EQ(pair.far->wait(done, Deadline::after(1ms)), Status::timed_out);
    }
    EXPECT_EQ(pair.far->cancel(1), Status::ok);
    EXPECT_EQ(next(*pair.near, 1).status, Status::ok);
    done = next(*pair.far, 1);
    EXPECT_EQ(done.status, Status::ok);
    EXPECT_EQ(done.bytes, message.size());
    // One that has nothing is.
    ASSERT_EQ(pair.far->receive(into, 2), Status::ok);
    EXPECT_EQ(pair.far->cancel(2), Status::ok);
    EXPECT_EQ(next(*pair.far, 2).status, Status::cancelled);
}

TEST(StreamMessage, SocketsOfTwoTypesRefuseEachOther) {
    const connect::Address address = unused_address();
    Listener listener = Listener::listen(address, messages_in(Mode::dynamic));
    std::thread other{[&] {
        try {
            (void)connect(address, SocketOptions{}, patience());
            ADD_FAILURE() << "it is connected";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::refused);
            EXPECT_THAT(error.what(), testing::HasSubstr("its type is seqpacket"));
        }
        // Or the listener would wait for another one.
        (void)connect(address, messages_in(Mode::dynamic), patience());
    }};
    const Socket accepted = listener.accept(patience());
    other.join();
    EXPECT_THAT(accepted.explain(), testing::HasSubstr("byte stream of messages"));
}

}  // namespace
}  // namespace millrace::stream
