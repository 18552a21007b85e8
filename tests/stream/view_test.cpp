// What is read where it lies: views of a socket, in every mode, type and carrier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <tuple>

#include "millrace/connect/hub.hpp"
#include "millrace/stream/coroutine.hpp"
#include "pair.hpp"
#include "support/readable.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

class StreamViews : public testing::TestWithParam<std::tuple<Mode, Type, ring::Carrier>> {
  protected:
    [[nodiscard]] static SocketOptions options(std::size_t ring_bytes = 16 << 10) {
        SocketOptions options = in_mode(std::get<0>(GetParam()), ring_bytes);
        options.type = std::get<1>(GetParam());
        options.carrier = std::get<2>(GetParam());
        return options;
    }
    [[nodiscard]] static bool keeps_messages() {
        return std::get<1>(GetParam()) == Type::seqpacket;
    }
    [[nodiscard]] static bool has_ring() { return std::get<0>(GetParam()) != Mode::direct; }
};
INSTANTIATE_TEST_SUITE_P(
    Of, StreamViews,
    testing::Combine(testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                     testing::Values(Type::stream, Type::seqpacket),
                     testing::Values(ring::Carrier::automatic, ring::Carrier::post)),
    [](const auto& chosen) {
        return std::string{name_of(std::get<0>(chosen.param))} + "_" +
               std::string{name_of(std::get<1>(chosen.param))} +
               (std::get<2>(chosen.param) == ring::Carrier::post ? "_post" : "_automatic");
    });

/// Empty ones where there may be, and some that are longer than the ring.
std::size_t length_of(std::uint64_t number, bool may_be_empty) {
    if (number % 9 == 0) return may_be_empty ? 0 : 1;
    return number % 13 == 5 ? 20'000 + number : 1 + (number * 7919) % 3000;
}

TEST_P(StreamViews, HaveEveryByteInOrder) {
    Pair pair{options()};
    constexpr std::uint64_t count = 300;
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < count; ++i) total += length_of(i, keeps_messages());
    std::thread sender{[&] {
        Bytes bytes(32 << 10);
        std::uint64_t sent = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            const auto part = std::span{bytes}.first(length_of(i, keeps_messages()));
            fill(part, sent, 1);
            ASSERT_EQ(pair.near->send(part, i), Status::ok) << pair.near->failure();
            ASSERT_EQ(next(*pair.near, i).status, Status::ok) << pair.near->failure();
            sent += part.size();
        }
        EXPECT_EQ(pair.near->close(patience()), Status::ok) << pair.near->failure();
    }};
    std::uint64_t read = 0;
    std::uint64_t messages = 0;
    std::uint64_t of_message = 0;
    for (std::uint64_t turn = 0;; ++turn) {
        View view;
        const Status status = pair.far->read_zero_copy(view, patience());
        if (status == Status::closed) break;
        ASSERT_EQ(status, Status::ok) << pair.far->failure();
        ASSERT_TRUE(!view.bytes.empty() || view.ends_message);
        ASSERT_TRUE(is_right(view.bytes, read, 1)) << "at " << read;
        // All of it, a part, or none yet.
        const std::size_t taken = turn % 3 == 0   ? view.bytes.size()
                                  : turn % 3 == 1 ? (view.bytes.size() + 1) / 2
                                                  : std::min<std::size_t>(view.bytes.size(), 700);
        const bool is_end = view.ends_message && taken == view.bytes.size();
        ASSERT_EQ(pair.far->release(taken), Status::ok);
        read += taken;
        of_message += taken;
        if (is_end) {
            ASSERT_EQ(of_message, length_of(messages, true)) << "message " << messages;
            ++messages;
            of_message = 0;
        }
    }
    sender.join();
    EXPECT_EQ(read, total);
    EXPECT_EQ(messages, keeps_messages() ? count : 0);
    EXPECT_EQ(pair.far->stats().copies, 0U);
    EXPECT_EQ(pair.far->stats().lent_bytes, has_ring() ? total : 0);
    EXPECT_EQ(pair.far->close(patience()), Status::ok) << pair.far->failure();
}

TEST_P(StreamViews, StayAsTheyAreWhileThePeerSendsAndStallItAlone) {
    Pair pair{options(1024)};
    const Bytes bytes = pattern(1000, 4);
    ASSERT_EQ(pair.near->send(bytes, 1), Status::ok);
    View view;
    Completion done;
    std::uint64_t sent = 0;
    while (pair.far->try_read_zero_copy(view) == Status::empty) {
        if (pair.near->poll(done) == Status::ok) ++sent;
    }
    const std::size_t first = view.bytes.size();
    ASSERT_NE(first, 0U) << pair.far->failure();
    ASSERT_TRUE(is_right(view.bytes, 0, 4));
    // As many as nobody has room for.
    for (std::uint64_t id = 2; id < 12; ++id) {
        ASSERT_EQ(pair.near->send(bytes, id), Status::ok);
    }
    while (pair.near->wait(done, Deadline::after(5ms)) == Status::ok) ++sent;
    EXPECT_LT(sent, 11U);
    EXPECT_TRUE(is_right(view.bytes.first(first), 0, 4));
    ASSERT_EQ(pair.far->read_zero_copy(view, patience()), Status::ok) << "asked again";
    EXPECT_GE(view.bytes.size(), first);
    EXPECT_TRUE(is_right(view.bytes.first(first), 0, 4));
    Bytes into(2000);
    std::size_t size = 0;
    EXPECT_EQ(pair.far->read_some(into, size, patience()), Status::full);
    EXPECT_EQ(pair.far->release(view.bytes.size() + 1), Status::too_large);
    // The other direction goes on.
    ASSERT_EQ(pair.far->send(bytes, 50), Status::ok);
    std::thread other{[&] {
        ASSERT_EQ(pair.near->read_some(into, size, patience()), Status::ok) << pair.near->failure();
        while (sent < 11) {
            ASSERT_EQ(pair.near->wait(done, patience()), Status::ok) << pair.near->failure();
            ++sent;
        }
        EXPECT_EQ(pair.near->close(patience()), Status::ok);
    }};
    EXPECT_EQ(next(*pair.far, 50).status, Status::ok);
    std::uint64_t read = view.bytes.size();
    ASSERT_EQ(pair.far->release(view.bytes.size()), Status::ok);
    EXPECT_EQ(pair.far->release(0), Status::empty);
    Status status = Status::ok;
    while ((status = pair.far->read_zero_copy(view, patience())) == Status::ok) {
        read += view.bytes.size();
        ASSERT_EQ(pair.far->release(view.bytes.size()), Status::ok);
    }
    other.join();
    EXPECT_EQ(status, Status::closed) << pair.far->failure();
    EXPECT_EQ(read, 11U * bytes.size());
}

TEST_P(StreamViews, AreReadInTurnWithCopiesAndReceives) {
    Pair pair{options()};
    constexpr std::size_t length = 900;
    constexpr std::uint64_t count = 60;
    std::thread sender{[&] {
        for (std::uint64_t i = 0; i < count; ++i) {
            Bytes bytes(length);
            fill(bytes, i * length, 6);
            ASSERT_EQ(pair.near->write_all(bytes, patience()), Status::ok) << pair.near->failure();
        }
        EXPECT_EQ(pair.near->close(patience()), Status::ok);
    }};
    std::uint64_t read = 0;
    Bytes into(length);
    Status status = Status::ok;
    for (std::uint64_t turn = 0; status == Status::ok; ++turn) {
        // In mode direct a view that was asked for comes before receives behind it.
        const std::uint64_t kind = turn % (has_ring() ? 3 : 2);
        if (kind == 0) {
            View view;
            status = pair.far->read_zero_copy(view, patience());
            if (status != Status::ok) break;
            ASSERT_TRUE(is_right(view.bytes, read, 6)) << "at " << read;
            const std::size_t taken = std::max<std::size_t>(view.bytes.size() / 2, 1);
            read += std::min(taken, view.bytes.size());
            ASSERT_EQ(pair.far->release(std::min(taken, view.bytes.size())), Status::ok);
        } else if (kind == 1) {
            std::size_t size = 0;
            status = pair.far->read_some(into, size, patience());
            ASSERT_TRUE(is_right(std::span{into}.first(size), read, 6)) << "at " << read;
            read += size;
        } else {
            // Lent while the receive comes behind it.
            View view;
            const bool is_lent = pair.far->try_read_zero_copy(view) == Status::ok;
            ASSERT_EQ(pair.far->receive(into, turn), Status::ok);
            if (is_lent) {
                ASSERT_TRUE(is_right(view.bytes, read, 6)) << "at " << read;
                ASSERT_EQ(pair.far->release(0), Status::ok);
            }
            const Completion done = next(*pair.far, turn);
            status = done.status;
            ASSERT_TRUE(is_right(std::span{into}.first(done.bytes), read, 6)) << "at " << read;
            read += done.bytes;
        }
    }
    EXPECT_EQ(status, Status::closed) << pair.far->failure();
    EXPECT_EQ(read, count * length);
    sender.join();
}

TEST_P(StreamViews, OutliveTheConnection) {
    Pair pair{options()};
    std::thread other{[&] {
        EXPECT_EQ(pair.near->write_all(pattern(500, 2), patience()), Status::ok);
        EXPECT_EQ(pair.near->close(patience()), Status::ok);
    }};
    View view;
    ASSERT_EQ(pair.far->read_zero_copy(view, patience()), Status::ok) << pair.far->failure();
    other.join();
    pair.near.reset();
    Bytes into(10);
    ASSERT_EQ(pair.far->receive(into, 1), Status::ok);
    EXPECT_TRUE(is_right(view.bytes, 0, 2));
    ASSERT_EQ(view.bytes.size(), 500U);
    ASSERT_EQ(pair.far->release(500), Status::ok);
    EXPECT_EQ(next(*pair.far, 1).status, Status::closed);
    EXPECT_EQ(pair.far->read_zero_copy(view, patience()), Status::closed);
    EXPECT_EQ(pair.far->close(patience()), Status::ok);
}

TEST_P(StreamViews, AreKeptWhileTheirOwnEndCloses) {
    Pair pair{options()};
    std::thread other{[&] {
        EXPECT_EQ(pair.near->write_all(pattern(500, 2), patience()), Status::ok);
        Bytes into(10);
        std::size_t size = 0;
        EXPECT_NE(pair.near->read_some(into, size, patience()), Status::ok);
        EXPECT_EQ(pair.near->close(patience()), Status::ok);
        pair.near.reset();
    }};
    View view;
    ASSERT_EQ(pair.far->read_zero_copy(view, patience()), Status::ok) << pair.far->failure();
    EXPECT_EQ(pair.far->close(patience()), Status::ok);
    EXPECT_TRUE(is_right(view.bytes, 0, 2));
    EXPECT_EQ(pair.far->release(view.bytes.size()), Status::ok);
    EXPECT_EQ(pair.far->read_zero_copy(view, patience()), Status::closed);
    other.join();
}

TEST_P(StreamViews, AReceiveBehindOneIsCancelledAtOnce) {
    if (!has_ring()) GTEST_SKIP() << "a receive waits for no view";
    Pair pair{options()};
    ASSERT_EQ(pair.near->write_all(pattern(500, 2), patience()), Status::ok);
    View view;
    ASSERT_EQ(pair.far->read_zero_copy(view, patience()), Status::ok);
    Buffer into{100'000};
    ASSERT_EQ(pair.far->receive(into.slice(), 1), Status::ok);
    Completion done;
    EXPECT_EQ(pair.far->poll(done), Status::empty);
    ASSERT_EQ(pair.far->cancel(1), Status::ok);
    EXPECT_EQ(next(*pair.far, 1).status, Status::cancelled);
    EXPECT_TRUE(is_right(view.bytes, 0, 2));
    EXPECT_EQ(pair.far->release(view.bytes.size()), Status::ok);
}

TEST_P(StreamViews, TimeOutAndAreReadByALoop) {
    SocketOptions waiting = options(4096);
    waiting.wait = base::WaitPolicy::blocking();
    Pair pair{waiting};
    View view;
    EXPECT_EQ(pair.far->read_zero_copy(view, Deadline::after(2ms)), Status::timed_out);
    EXPECT_TRUE(view.bytes.empty());
    connect::Hub hub;
    std::uint64_t read = 0;
    const auto reader = [&]() -> base::Task<> {
        for (;;) {
            const Status status = co_await read_zero_copy(*pair.far, view, patience());
            if (status == Status::closed) break;
            EXPECT_EQ(status, Status::ok) << pair.far->failure();
            if (status != Status::ok) break;
            EXPECT_TRUE(is_right(view.bytes, read, 3)) << "at " << read;
            read += view.bytes.size();
            EXPECT_EQ(pair.far->release(view.bytes.size()), Status::ok);
        }
        hub.stop();
    };
    const auto writer = [&]() -> base::Task<> {
        Bytes bytes(1500);
        for (std::uint64_t i = 0; i < 100; ++i) {
            fill(bytes, i * bytes.size(), 3);
            EXPECT_EQ(co_await write_all(*pair.near, bytes, patience()), Status::ok);
        }
        pair.near->shut_down();
    };
    base::spawn(hub, reader());
    base::spawn(hub, writer());
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(read, 150'000U);
}

}  // namespace
}  // namespace millrace::stream
