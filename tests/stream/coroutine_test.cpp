// Sockets driven by coroutines in one thread: reading, writing and completions side by side, in
// every mode, and what becomes of them at the deadline, when a task is ended, and at the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/connect/hub.hpp"
#include "millrace/stream/coroutine.hpp"
#include "pair.hpp"
#include "support/readable.hpp"

namespace millrace::stream {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::Task;

/// Without a spin, nothing but news keeps a descriptor readable.
SocketOptions waiting_in(Mode mode, base::WaitPolicy wait = base::WaitPolicy::blocking()) {
    SocketOptions options = in_mode(mode, 4096);
    options.wait = wait;
    return options;
}

Task<> write_pattern(Socket& socket, std::uint64_t total, std::uint64_t seed) {
    Bytes bytes(3000);
    for (std::uint64_t sent = 0; sent < total;) {
        const std::size_t length =
            std::min<std::uint64_t>(1 + sent * 37 % bytes.size(), total - sent);
        fill(std::span{bytes}.first(length), sent, seed);
        const Status status =
            co_await write_all(socket, std::span{bytes}.first(length), patience());
        EXPECT_EQ(status, Status::ok) << socket.failure();
        if (status != Status::ok) co_return;
        sent += length;
    }
    socket.shut_down();
}

Task<> read_pattern(Socket& socket, std::uint64_t total, std::uint64_t seed) {
    Bytes bytes(2000);
    std::uint64_t received = 0;
    for (std::uint64_t pauses = 0;;) {
        std::size_t size = 0;
        const Status status = co_await read_some(socket, bytes, size, patience());
        if (status == Status::closed) break;
        EXPECT_EQ(status, Status::ok) << socket.failure();
        if (status != Status::ok) co_return;
        EXPECT_TRUE(is_right(std::span{bytes}.first(size), received, seed)) << received;
        received += size;
        // A reader that is slow at times: bytes lie there while the writer waits for room.
        if (received / 50'000 != pauses) {
            pauses = received / 50'000;
            co_await base::sleep_for(2ms);
        }
    }
    EXPECT_EQ(received, total);
}

Task<> read_to_the_end(Socket& socket, std::uint64_t total, std::uint64_t seed, int& running,
                       connect::Hub& hub) {
    co_await read_pattern(socket, total, seed);
    if (--running == 0) hub.stop();
}

class StreamCoroutines : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamCoroutines,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

TEST_P(StreamCoroutines, WriteInOneTaskAndReadInAnotherAtBothEnds) {
    constexpr std::uint64_t total = 300'000;
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    int running = 2;
    base::spawn(hub, write_pattern(*pair.near, total, 1));
    base::spawn(hub, write_pattern(*pair.far, total, 2));
    base::spawn(hub, read_to_the_end(*pair.near, total, 2, running, hub));
    base::spawn(hub, read_to_the_end(*pair.far, total, 1, running, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(hub.size(), 0U);
}

Task<> lend(Socket& socket, std::uint64_t total, std::uint64_t seed, connect::Hub& hub) {
    Buffer memory{64 << 10};
    std::uint64_t received = 0;
    Completion done;
    EXPECT_EQ(co_await wait(socket, done, patience()), Status::empty);
    for (;;) {
        EXPECT_EQ(socket.receive(memory.slice(), received), Status::ok);
        EXPECT_EQ(co_await wait(socket, done, patience()), Status::ok);
        EXPECT_EQ(done.id, received);
        if (done.status != Status::ok) break;
        EXPECT_TRUE(is_right(memory.bytes().first(done.bytes), received, seed));
        received += done.bytes;
    }
    EXPECT_EQ(done.status, Status::closed) << socket.failure();
    EXPECT_EQ(received, total);
    EXPECT_EQ(co_await close(socket, patience()), Status::ok);
    hub.stop();
}

TEST_P(StreamCoroutines, TakeCompletionsAndCloseBothEnds) {
    constexpr std::uint64_t total = 400'000;
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    base::spawn(hub, [](Socket& socket) -> Task<> {
        constexpr std::size_t length = 50'000;
        Buffer memory{length};
        Completion done;
        for (std::uint64_t sent = 0; sent < total; sent += length) {
            fill(memory.slice(0, length).bytes(), sent, 3);
            EXPECT_EQ(socket.send(memory.slice(0, length), sent), Status::ok);
            EXPECT_EQ(co_await wait(socket, done, patience()), Status::ok);
            EXPECT_EQ(done.status, Status::ok) << socket.failure();
        }
        EXPECT_EQ(co_await close(socket, patience()), Status::ok);
    }(*pair.near));
    base::spawn(hub, lend(*pair.far, total, 3, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST_P(StreamCoroutines, ReadWhileAnotherTaskWaitsForCompletions) {
    // Each takes in what comes for the other one: sends complete by what the reader reads with.
    constexpr std::uint64_t total = 100'000;
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    int running = 2;
    base::spawn(hub, [](Socket& socket, int& left, connect::Hub& in) -> Task<> {
        Bytes bytes(10'000);
        Completion done;
        for (std::uint64_t sent = 0; sent < total; sent += bytes.size()) {
            fill(bytes, sent, 4);
            EXPECT_EQ(socket.send(bytes, sent), Status::ok);
            EXPECT_EQ(co_await wait(socket, done, patience()), Status::ok);
            EXPECT_EQ(done.bytes, bytes.size());
        }
        socket.shut_down();
        if (--left == 0) in.stop();
    }(*pair.near, running, hub));
    base::spawn(hub, [](Socket& socket) -> Task<> {
        Bytes bytes(500);
        Status status = Status::ok;
        while (status == Status::ok) {
            std::size_t size = 0;
            status = co_await read_some(socket, bytes, size, patience());
            if (status != Status::ok) break;
            EXPECT_EQ(co_await write_all(socket, std::span{bytes}.first(size), patience()),
                      Status::ok);
        }
        EXPECT_EQ(status, Status::closed) << socket.failure();
        socket.shut_down();
    }(*pair.far));
    base::spawn(hub, read_to_the_end(*pair.near, total, 4, running, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST_P(StreamCoroutines, AnswerAtTheDeadlineAndWhenTheyAreCancelled) {
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    base::spawn(hub, [](Pair& both, connect::Hub& in) -> Task<> {
        Completion done;
        EXPECT_EQ(co_await wait(*both.near, done, patience()), Status::empty);
        Bytes lent(100);
        EXPECT_EQ(both.near->receive(lent, 1), Status::ok);
        EXPECT_EQ(co_await wait(*both.near, done, Deadline::after(5ms)), Status::timed_out);
        Bytes bytes(1000);
        std::size_t size = 1;
        EXPECT_EQ(co_await read_some(*both.near, bytes, size, Deadline::after(5ms)),
                  Status::timed_out);
        EXPECT_EQ(size, 0U);
        base::Cancellation cancellation;
        cancellation.request();
        EXPECT_EQ(co_await read_some(*both.near, bytes, size,
                                     Deadline::never().cancelled_by(cancellation)),
                  Status::cancelled);
        // Nothing to do is done at once, and said as the waiting calls say it.
        const std::span<std::byte> nothing;
        EXPECT_EQ(co_await read_some(*both.near, nothing, size, patience()), Status::empty);
        EXPECT_EQ(co_await write_some(*both.near, nothing, size, patience()), Status::empty);
        EXPECT_EQ(co_await write_all(*both.near, nothing, patience()), Status::ok);
        // Until nothing goes any more, as nobody reads.
        Status status = Status::ok;
        while (status == Status::ok) {
            status = co_await write_some(*both.near, bytes, size, Deadline::after(5ms));
        }
        EXPECT_EQ(status, Status::timed_out);
        in.stop();
    }(pair, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST_P(StreamCoroutines, ATaskThatIsEndedLosesNoByte) {
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    std::size_t size = 0;
    {
        Bytes gone(100);
        const auto id =
            base::spawn(hub, [](Socket& socket, Bytes& into, std::size_t& read) -> Task<> {
                (void)co_await read_some(socket, into, read, patience());
                ADD_FAILURE() << "it was taken back";
            }(*pair.near, gone, size));
        while (hub.turn() != 0) {
        }
        EXPECT_TRUE(hub.remove(id));
        EXPECT_EQ(hub.size(), 0U);
    }
    const Bytes message = pattern(100, 5);
    ASSERT_EQ(pair.far->write_all(message, patience()), Status::ok);
    Bytes got(100);
    ASSERT_EQ(pair.near->read_some(got, size, patience()), Status::ok);
    ASSERT_EQ(size, message.size());
    EXPECT_EQ(got, message);
    // And another task waits as if there had been none.
    base::spawn(hub,
                [](Socket& socket, Bytes& into, std::size_t& read, connect::Hub& in) -> Task<> {
                    EXPECT_EQ(co_await read_some(socket, into, read, patience()), Status::ok);
                    in.stop();
                }(*pair.near, got, size, hub));
    while (hub.turn() != 0) {
    }
    ASSERT_EQ(pair.far->write_all(message, patience()), Status::ok);
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(size, message.size());
}

TEST_P(StreamCoroutines, CloseWaitsForAPeerThatReadsLate) {
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    const Bytes message = pattern(60'000, 6);
    bool is_wanted = false;
    base::spawn(hub, [](Socket& socket, const Bytes& bytes, const bool& wanted) -> Task<> {
        Completion done;
        EXPECT_EQ(socket.send(bytes, 1), Status::ok);
        EXPECT_EQ(co_await close(socket, patience()), Status::ok) << socket.failure();
        EXPECT_TRUE(wanted);
        EXPECT_EQ(co_await wait(socket, done, patience()), Status::ok);
        EXPECT_EQ(done.status, Status::ok);
    }(*pair.near, message, is_wanted));
    base::spawn(hub,
                [](Socket& socket, const Bytes& bytes, bool& wanted, connect::Hub& in) -> Task<> {
                    co_await base::sleep_for(5ms);
                    wanted = true;
                    Bytes got;
                    Bytes part(7000);
                    std::size_t size = 0;
                    while (got.size() < bytes.size() &&
                           co_await read_some(socket, part, size, patience()) == Status::ok) {
                        got.insert(got.end(), part.begin(),
                                   part.begin() + static_cast<std::ptrdiff_t>(size));
                    }
                    EXPECT_TRUE(got == bytes);
                    EXPECT_EQ(co_await read_some(socket, part, size, patience()), Status::closed);
                    EXPECT_EQ(co_await close(socket, patience()), Status::ok);
                    in.stop();
                }(*pair.far, message, is_wanted, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    while (hub.turn() != 0) {
    }
}

TEST_P(StreamCoroutines, CloseEndsTheConnectionAtItsDeadline) {
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    const Bytes message = pattern(60'000, 7);
    base::spawn(hub, [](Socket& socket, const Bytes& bytes, connect::Hub& in) -> Task<> {
        EXPECT_EQ(socket.send(bytes, 1), Status::ok);
        EXPECT_EQ(co_await close(socket, Deadline::after(5ms)), Status::timed_out);
        EXPECT_EQ(socket.send(bytes, 2), Status::closed);
        in.stop();
    }(*pair.near, message, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST_P(StreamCoroutines, TellThatThePeerIsLost) {
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    int running = 2;
    base::spawn(hub, [](Socket& socket, int& left, connect::Hub& in) -> Task<> {
        Bytes bytes(10);
        std::size_t size = 0;
        EXPECT_EQ(co_await read_some(socket, bytes, size, patience()), Status::peer_lost);
        if (--left == 0) in.stop();
    }(*pair.near, running, hub));
    base::spawn(hub, [](Socket& socket, int& left, connect::Hub& in) -> Task<> {
        const Bytes bytes(5000);
        Status status = Status::ok;
        while (status == Status::ok) status = co_await write_all(socket, bytes, patience());
        EXPECT_EQ(status, Status::peer_lost);
        if (--left == 0) in.stop();
    }(*pair.near, running, hub));
    while (hub.turn() != 0) {
    }
    pair.far.reset();
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST_P(StreamCoroutines, AreQuietWhileNothingHappens) {
    Pair pair{waiting_in(GetParam())};
    Socket& socket = *pair.near;
    const int descriptor = socket.descriptor();
    Bytes lent(100);
    Bytes bytes(100);
    ASSERT_EQ(socket.receive(lent, 1), Status::ok);
    Completion done;
    std::size_t size = 0;
    EXPECT_TRUE(test::goes_quiet(descriptor, [&] {
        EXPECT_EQ(socket.poll(done), Status::empty);
        EXPECT_EQ(socket.try_read_some(bytes, size), Status::empty);
    }));
    // The receive takes what comes first, and the read what comes behind it.
    ASSERT_EQ(pair.far->write_all(pattern(100, 8), patience()), Status::ok);
    ASSERT_EQ(pair.far->write_all(pattern(100, 9), patience()), Status::ok);
    bool has_completed = false;
    std::size_t read = 0;
    for (int turn = 0; !has_completed || read < 100; ++turn) {
        ASSERT_TRUE(test::becomes_readable(descriptor, 20s));
        if (turn % 2 == 0) {
            if (!has_completed) has_completed = socket.poll(done) == Status::ok;
        } else if (read < 100 &&
                   socket.try_read_some(std::span{bytes}.subspan(read), size) == Status::ok) {
            read += size;
        }
    }
    EXPECT_EQ(done.bytes, 100U);
    EXPECT_TRUE(is_right(lent, 0, 8));
    EXPECT_TRUE(is_right(bytes, 0, 9));
}

TEST_P(StreamCoroutines, AreToldOfWhatAnotherOneCameUpon) {
    Pair pair{waiting_in(GetParam())};
    Socket& socket = *pair.near;
    const int descriptor = socket.descriptor();
    Bytes bytes(1000);
    std::size_t size = 0;
    Completion done;
    Status status = Status::ok;
    while (status == Status::ok) status = socket.try_write_some(bytes, size);
    ASSERT_EQ(status, Status::full);
    const auto all_look = [&] {
        EXPECT_EQ(socket.poll(done), Status::empty);
        EXPECT_EQ(socket.try_read_some(bytes, size), Status::empty);
        EXPECT_EQ(socket.try_write_some(bytes, size), Status::full);
    };
    // Who looks for completions comes first, takes in what the others wait for, and sees nothing
    // of it; and yet the descriptor tells them.
    const auto comes_for = [&](auto&& other) {
        do {
            ASSERT_TRUE(test::becomes_readable(descriptor, 20s));
            ASSERT_EQ(socket.poll(done), Status::empty);
            ASSERT_TRUE(test::becomes_readable(descriptor, 20s));
        } while (!other());
    };
    ASSERT_TRUE(test::goes_quiet(descriptor, all_look));
    ASSERT_EQ(pair.far->write_all(pattern(10, 1), patience()), Status::ok);
    comes_for([&] { return socket.try_read_some(bytes, size) == Status::ok; });
    EXPECT_TRUE(is_right(std::span{bytes}.first(size), 0, 1));
    ASSERT_TRUE(test::goes_quiet(descriptor, all_look));
    std::thread reader{[&] {
        Bytes into(1000);
        std::size_t read = 0;
        while (pair.far->read_some(into, read, patience()) == Status::ok) {
        }
    }};
    comes_for([&] { return socket.try_write_some(bytes, size) == Status::ok; });
    socket.shut_down();
    reader.join();
}

TEST_P(StreamCoroutines, AWriterLearnsThatItsOwnSideHasShutDown) {
    Pair pair{waiting_in(GetParam())};
    connect::Hub hub;
    base::spawn(hub, [](Socket& socket, connect::Hub& in) -> Task<> {
        const Bytes bytes(100'000);
        EXPECT_EQ(co_await write_all(socket, bytes, patience()), Status::closed);
        in.stop();
    }(*pair.near, hub));
    base::spawn(hub, [](Socket& socket) -> Task<> {
        // By now the other one waits, and nothing is under way; if not, it learns so all the same.
        co_await base::sleep_for(20ms);
        socket.shut_down();
    }(*pair.near));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST(StreamCoroutine, KeepsMessagesApart) {
    SocketOptions options = waiting_in(Mode::dynamic);
    options.type = Type::seqpacket;
    Pair pair{options};
    connect::Hub hub;
    base::spawn(hub, [](Socket& socket) -> Task<> {
        const Bytes bytes = pattern(3000, 1);
        for (std::size_t length = 0; length < 3000; length += 7) {
            EXPECT_EQ(co_await write_all(socket, std::span{bytes}.first(length), patience()),
                      Status::ok);
        }
        EXPECT_EQ(co_await close(socket, patience()), Status::ok);
    }(*pair.near));
    base::spawn(hub, [](Socket& socket, connect::Hub& in) -> Task<> {
        Bytes bytes(3000);
        std::size_t size = 0;
        std::size_t length = 0;
        Status status = Status::ok;
        for (;; length += 7) {
            status = co_await read_some(socket, bytes, size, patience());
            if (status != Status::ok) break;
            EXPECT_EQ(size, length);
            EXPECT_TRUE(is_right(std::span{bytes}.first(size), 0, 1));
        }
        EXPECT_EQ(status, Status::closed);
        EXPECT_EQ(length, 3003U);
        in.stop();
    }(*pair.far, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST(StreamCoroutine, AcceptsSocketsAndServesEachInATask) {
    constexpr int clients = 4;
    Listener listener = Listener::listen(unused_address());
    connect::Hub hub;
    const auto serve = [](Socket socket) -> Task<> {
        Bytes bytes(1000);
        std::size_t size = 0;
        while (co_await read_some(socket, bytes, size, patience()) == Status::ok) {
            EXPECT_EQ(co_await write_all(socket, std::span{bytes}.first(size), patience()),
                      Status::ok);
        }
        EXPECT_EQ(co_await close(socket, patience()), Status::ok) << socket.failure();
    };
    base::spawn(hub, [](Listener& from, connect::Hub& in, const auto& serve_one) -> Task<> {
        for (int i = 0; i < clients; ++i) {
            auto accepted = co_await accept(from, patience());
            EXPECT_EQ(accepted.status, Status::ok);
            if (accepted.end.has_value()) base::spawn(in, serve_one(std::move(*accepted.end)));
        }
    }(listener, hub, serve));
    std::thread others{[&] {
        std::vector<Socket> sockets;
        for (int i = 0; i < clients; ++i) {
            sockets.push_back(stream::connect(listener.address(), SocketOptions{}, patience()));
        }
        for (std::uint64_t i = 0; i < 20; ++i) {
            for (Socket& socket : sockets) {
                const Bytes message = pattern(1 + i * 37, i);
                Bytes got(message.size());
                EXPECT_EQ(socket.write_all(message, patience()), Status::ok);
                for (std::size_t read = 0, size = 0; read < got.size(); read += size) {
                    if (socket.read_some(std::span{got}.subspan(read), size, patience()) !=
                        Status::ok) {
                        ADD_FAILURE() << socket.failure();
                        break;
                    }
                }
                EXPECT_EQ(got, message);
            }
        }
        for (Socket& socket : sockets) EXPECT_EQ(socket.close(patience()), Status::ok);
        hub.stop();
    }};
    EXPECT_EQ(hub.run(patience()), Status::closed);
    others.join();
}

}  // namespace
}  // namespace millrace::stream
