// Sockets: two ends in one process, on the device that MILLRACE_DEVICE names (or the default one).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "millrace/base/detail/shared_lines.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/hub.hpp"
#include "pair.hpp"
#include "support/extent.hpp"
#include "support/readable.hpp"
#include "support/setting_scope.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

/// Where operations take their memory from.
enum class Memory { buffers, plain };

/// How one direction of a stream is used.
struct Use {
    Mode mode = Mode::dynamic;
    Memory memory = Memory::buffers;
    std::size_t send_bytes = 0;
    std::size_t receive_bytes = 0;
    std::uint64_t total = 0;
    ReceiveFlags flags = ReceiveFlags::none;
    std::size_t shift = 0;  ///< of every operation's memory from its alignment
    unsigned outstanding = 4;
};

/// Memory for `count` operations of `bytes` bytes.
class Places {
  public:
    Places(Memory memory, unsigned count, std::size_t bytes, std::size_t shift)
        : stride_{bytes + shift + 64}, bytes_{bytes}, shift_{shift} {
        if (memory == Memory::buffers) {
            buffer_.emplace(stride_ * count);
        } else {
            plain_.resize(stride_ * count);
        }
    }
    [[nodiscard]] std::span<std::byte> at(std::uint64_t number, std::size_t count) {
        std::byte* const base = buffer_ ? buffer_->data() : plain_.data();
        return {base + number % count * stride_ + shift_, bytes_};
    }
    [[nodiscard]] Status send(Socket& socket, std::span<std::byte> bytes, std::uint64_t id) {
        if (!buffer_) return socket.send(bytes, id);
        return socket.send(slice_of(bytes), id);
    }
    [[nodiscard]] Status receive(Socket& socket, std::span<std::byte> bytes, std::uint64_t id,
                                 ReceiveFlags flags) {
        if (!buffer_) return socket.receive(bytes, id, flags);
        return socket.receive(slice_of(bytes), id, flags);
    }

  private:
    [[nodiscard]] Slice slice_of(std::span<std::byte> bytes) const {
        return buffer_->slice(static_cast<std::size_t>(bytes.data() - buffer_->data()),
                              bytes.size());
    }
    std::size_t stride_;
    std::size_t bytes_;
    std::size_t shift_;
    std::optional<Buffer> buffer_;
    Bytes plain_;
};

void send_all(Socket& socket, const Use& use) {
    Places places{use.memory, use.outstanding, use.send_bytes, use.shift};
    std::uint64_t sent = 0;
    std::uint64_t number = 0;
    std::uint64_t completed = 0;
    while (sent < use.total || completed < number) {
        while (sent < use.total && number - completed < use.outstanding) {
            const std::size_t length = std::min<std::uint64_t>(use.send_bytes, use.total - sent);
            const auto bytes = places.at(number, use.outstanding).first(length);
            fill(bytes, sent, 1);
            ASSERT_EQ(places.send(socket, bytes, number), Status::ok) << socket.failure();
            sent += length;
            ++number;
        }
        const Completion done = next(socket, completed);
        ASSERT_EQ(done.kind, Completion::Kind::send);
        ASSERT_EQ(done.status, Status::ok) << socket.failure();
        // Had anybody still needed it, it would be wrong now.
        const auto used = places.at(completed, use.outstanding);
        std::fill(used.begin(), used.end(), std::byte{0xee});
        ++completed;
    }
}

void receive_all(Socket& socket, const Use& use) {
    Places places{use.memory, use.outstanding, use.receive_bytes, use.shift};
    std::uint64_t received = 0;
    std::uint64_t number = 0;
    std::uint64_t completed = 0;
    for (;;) {
        while (number - completed < use.outstanding) {
            ASSERT_EQ(places.receive(socket, places.at(number, use.outstanding), number, use.flags),
                      Status::ok)
                << socket.failure();
            ++number;
        }
        const Completion done = next(socket, completed);
        ASSERT_EQ(done.kind, Completion::Kind::receive);
        if (done.status == Status::closed) break;
        ASSERT_EQ(done.status, Status::ok) << socket.failure();
        ASSERT_GT(done.bytes, 0U);
        if (use.flags == ReceiveFlags::wait_all && received + done.bytes < use.total) {
            ASSERT_EQ(done.bytes, use.receive_bytes);
        }
        ASSERT_TRUE(is_right(places.at(completed, use.outstanding).first(done.bytes), received, 1))
            << "at " << received;
        received += done.bytes;
        ++completed;
    }
    EXPECT_EQ(received, use.total);
}

void run(const Use& use) {
    Pair pair{in_mode(use.mode)};
    std::thread sender{[&] {
        send_all(*pair.near, use);
        if (!testing::Test::HasFatalFailure()) {
            EXPECT_EQ(pair.near->close(patience()), Status::ok) << pair.near->failure();
        } else {
            pair.near.reset();
        }
    }};
    receive_all(*pair.far, use);
    sender.join();
    if (!pair.near) return;
    const SocketStats sent = pair.near->stats();
    EXPECT_EQ(sent.direct_bytes_sent + sent.indirect_bytes_sent, use.total);
    if (use.mode == Mode::direct) {
        EXPECT_EQ(sent.indirect_bytes_sent, 0U);
    }
    if (use.mode == Mode::indirect) {
        EXPECT_EQ(sent.direct_bytes_sent, 0U);
    }
    EXPECT_EQ(pair.far->close(patience()), Status::ok) << pair.far->failure();
}

std::string name_of_use(Mode mode, Memory memory, std::size_t bytes) {
    return std::string{name_of(mode)} + (memory == Memory::plain ? "Plain" : "Buffers") +
           std::to_string(bytes);
}

class StreamSockets : public testing::TestWithParam<std::tuple<Mode, Memory, std::size_t>> {
  protected:
    [[nodiscard]] static Use use() {
        Use use;
        std::tie(use.mode, use.memory, use.send_bytes) = GetParam();
        use.receive_bytes = use.send_bytes;
        use.total =
            std::max<std::uint64_t>(use.send_bytes * 7, use.send_bytes < 64 ? 300 : 200'000);
        return use;
    }
};
INSTANTIATE_TEST_SUITE_P(Of, StreamSockets,
                         testing::Combine(testing::Values(Mode::dynamic, Mode::direct,
                                                          Mode::indirect),
                                          testing::Values(Memory::buffers, Memory::plain),
                                          testing::Values(1U, 63U, 4096U, 65'536U, 1'000'003U)),
                         [](const auto& chosen) {
                             return name_of_use(std::get<0>(chosen.param),
                                                std::get<1>(chosen.param),
                                                std::get<2>(chosen.param));
                         });

TEST_P(StreamSockets, CarryEveryByteInOrder) { run(use()); }

TEST_P(StreamSockets, FillWhatWaitsForAll) {
    Use chosen = use();
    chosen.receive_bytes = chosen.send_bytes * 2 + 1;
    chosen.flags = ReceiveFlags::wait_all;
    run(chosen);
}

TEST_P(StreamSockets, CarryWhatLiesAskew) {
    Use chosen = use();
    chosen.shift = 13;
    chosen.receive_bytes = chosen.send_bytes / 3 + 1;
    run(chosen);
}

class StreamModes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamModes,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

TEST_P(StreamModes, Carry16MiBAtOnce) {
    run({.mode = GetParam(),
         .send_bytes = 16 << 20,
         .receive_bytes = 16 << 20,
         .total = 48 << 20,
         .outstanding = 2});
}

TEST_P(StreamModes, CarryBothWaysAtOnce) {
    Pair pair{in_mode(GetParam(), 4096)};
    constexpr std::uint64_t total = 400'000;
    // One thread for each end: both send while their receives are outstanding.
    const auto talk = [&](Socket& socket, std::uint64_t seed, std::uint64_t other) {
        Buffer memory{4 * 16'384};
        std::uint64_t sent = 0;
        std::uint64_t received = 0;
        bool is_receiving = false;
        bool is_sending = false;
        std::size_t length = 0;
        bool is_open = true;
        while (is_open || sent < total) {
            if (!is_sending && sent < total) {
                length = 1 + (sent * 7919) % 16'384;
                length = std::min<std::uint64_t>(length, total - sent);
                fill(memory.bytes().first(length), sent, seed);
                ASSERT_EQ(socket.send(memory.slice(0, length), 1), Status::ok);
                is_sending = true;
            }
            if (!is_receiving && is_open) {
                ASSERT_EQ(socket.receive(memory.slice(16'384, 10'000), 2), Status::ok);
                is_receiving = true;
            }
            Completion done;
            ASSERT_EQ(socket.wait(done, patience()), Status::ok) << socket.failure();
            if (done.kind == Completion::Kind::send) {
                ASSERT_EQ(done.status, Status::ok);
                is_sending = false;
                sent += length;
                if (sent == total) socket.shut_down();
            } else {
                is_receiving = false;
                if (done.status == Status::closed) {
                    is_open = false;
                    continue;
                }
                ASSERT_EQ(done.status, Status::ok);
                ASSERT_TRUE(is_right(memory.bytes().subspan(16'384, done.bytes), received, other));
                received += done.bytes;
            }
        }
        EXPECT_EQ(received, total);
        EXPECT_EQ(socket.close(patience()), Status::ok) << socket.failure();
    };
    std::thread other{[&] { talk(*pair.near, 5, 9); }};
    talk(*pair.far, 9, 5);
    other.join();
}

TEST_P(StreamModes, ReadAndWriteWithADeadline) {
    Pair pair{in_mode(GetParam(), 4096)};
    const Bytes message = pattern(100'000, 3);
    std::thread writer{[&] {
        EXPECT_EQ(pair.near->write_all(message, patience()), Status::ok);
        EXPECT_EQ(pair.near->close(patience()), Status::ok);
    }};
    Bytes got;
    Bytes part(3000);
    for (;;) {
        std::size_t size = 0;
        const Status status = pair.far->read_some(part, size, patience());
        if (status == Status::closed) break;
        ASSERT_EQ(status, Status::ok) << pair.far->failure();
        ASSERT_GT(size, 0U);
        got.insert(got.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(size));
    }
    writer.join();
    EXPECT_TRUE(got == message);
    EXPECT_EQ(pair.far->close(patience()), Status::ok);
}

TEST_P(StreamModes, ACloseHearsTheGoodbyeOfAPeerWhoseQueuePairIsGone) {
    // By stores nothing is posted that would fail.
    SocketOptions options = in_mode(GetParam());
    options.carrier = ring::Carrier::post;
    Pair pair{options};
    pair.near->link().queue_pair().fail();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(pair.near->try_close(), Status::full) << "none has come";
    // As its close() would: with how many bytes had come, of none that were sent.
    pair.far->link().say_goodbye(std::array<std::byte, 8>{});
    Status status = Status::full;
    for (const Deadline deadline = patience(); status == Status::full && !deadline.expired();) {
        status = pair.near->try_close();
    }
    EXPECT_EQ(status, Status::ok) << pair.near->failure();
}

TEST_P(StreamModes, AReadThatTimesOutTakesNothing) {
    Pair pair{in_mode(GetParam())};
    Bytes part(100);
    std::size_t size = 1;
    EXPECT_EQ(pair.far->read_some(part, size, Deadline::after(2ms)), Status::timed_out);
    EXPECT_EQ(size, 0U);
    const Bytes message = pattern(10, 8);
    EXPECT_EQ(pair.near->write_all(message, patience()), Status::ok);
    ASSERT_EQ(pair.far->read_some(part, size, patience()), Status::ok);
    ASSERT_EQ(size, 10U);
    EXPECT_TRUE(is_right(std::span{part}.first(10), 0, 8));
}

TEST_P(StreamModes, AReceiveNeverOvertakesAReadThatHasAskedForBytes) {
    Pair pair{in_mode(GetParam())};
    Bytes into(100);
    Bytes part(4);
    std::size_t size = 0;
    std::uint64_t read = 0;
    const Bytes sent = pattern(30, 8);
    const auto send = [&](std::size_t from) {
        EXPECT_EQ(pair.near->write_all(std::span{sent}.subspan(from, 10), patience()), Status::ok);
    };
    // True: it was refused, which is for mode direct alone.
    const auto is_refused = [&] {
        try {
            EXPECT_EQ(pair.far->receive(into, read), Status::ok);
            return false;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_EQ(GetParam(), Mode::direct) << error.what();
            return true;
        }
    };
    const auto take = [&](std::span<const std::byte> bytes) {
        EXPECT_TRUE(is_right(bytes, read, 8)) << "at " << read;
        read += bytes.size();
    };
    EXPECT_EQ(pair.far->try_read_some(part, size), Status::empty);
    bool refused = is_refused();
    EXPECT_EQ(refused, GetParam() == Mode::direct);
    send(0);
    if (!refused) take(std::span{into}.first(next(*pair.far, 0).bytes));
    while (read < 10) {
        // What was left of what had come: a receive is behind it, too.
        ASSERT_EQ(pair.far->read_some(part, size, patience()), Status::ok);
        take(std::span{part}.first(size));
        if (read == 4) {
            EXPECT_TRUE(is_refused());
        }
    }
    // Nothing is left, and nothing asked for.
    ASSERT_FALSE(is_refused());
    send(10);
    take(std::span{into}.first(next(*pair.far, 10).bytes));
    EXPECT_EQ(read, 20U);
    // Nor does what a view leaves come behind a receive.
    View view;
    EXPECT_EQ(pair.far->try_read_zero_copy(view), Status::empty);
    send(20);
    ASSERT_EQ(pair.far->read_zero_copy(view, patience()), Status::ok);
    ASSERT_EQ(view.bytes.size(), 10U);
    ASSERT_FALSE(is_refused());
    if (GetParam() == Mode::direct) {
        EXPECT_EQ(pair.far->release(4), Status::full);
        take(view.bytes);
        EXPECT_EQ(pair.far->release(10), Status::ok);
    } else {
        take(view.bytes.first(4));
        EXPECT_EQ(pair.far->release(4), Status::ok);
        take(std::span{into}.first(next(*pair.far, 20).bytes));
    }
    EXPECT_EQ(read, 30U);
}

TEST_P(StreamModes, ASendGoesOnAfterTheOtherDirectionHasEnded) {
    Pair pair{in_mode(GetParam())};
    pair.near->shut_down();
    Bytes memory(64);
    EXPECT_EQ(pair.near->send(memory, 1), Status::closed);
    EXPECT_EQ(pair.far->receive(memory, 7), Status::ok);
    EXPECT_EQ(next(*pair.far, 7).status, Status::closed);
    Bytes into(64);
    EXPECT_EQ(pair.near->receive(into, 3), Status::ok);
    const Bytes message = pattern(64, 2);
    std::thread other{[&] {
        EXPECT_EQ(pair.far->send(message, 4), Status::ok);
        EXPECT_EQ(next(*pair.far, 4).status, Status::ok);
    }};
    const Completion done = next(*pair.near, 3);
    other.join();
    EXPECT_EQ(done.status, Status::ok);
    EXPECT_EQ(done.bytes, 64U);
    EXPECT_TRUE(is_right(into, 0, 2));
}

TEST_P(StreamModes, ACancelledReceiveGivesItsBufferBackAndLosesNoByte) {
    Pair pair{in_mode(GetParam())};
    std::thread other{[&] {
        // Answers the cancelling, and sends behind it.
        Bytes go(1);
        std::size_t size = 0;
        ASSERT_EQ(pair.far->read_some(go, size, patience()), Status::ok);
        ASSERT_EQ(pair.far->write_all(pattern(30'000, 4), patience()), Status::ok);
        ASSERT_EQ(pair.far->close(patience()), Status::ok);
    }};
    Buffer memory{3 * 10'000};
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.near->receive(memory.slice(id * 10'000, 10'000), id), Status::ok);
    }
    EXPECT_EQ(pair.near->cancel(1), Status::ok);
    EXPECT_EQ(pair.near->cancel(77), Status::empty);
    const Completion cancelled = next(*pair.near, 1);
    EXPECT_EQ(cancelled.status, Status::cancelled);
    EXPECT_EQ(cancelled.bytes, 0U);
    EXPECT_EQ(pair.near->write_all(pattern(1, 0), patience()), Status::ok);
    std::uint64_t received = 0;
    for (const std::uint64_t id : {0U, 2U}) {
        const Completion done = next(*pair.near, id);
        ASSERT_EQ(done.status, Status::ok);
        ASSERT_TRUE(is_right(memory.bytes().subspan(id * 10'000, done.bytes), received, 4));
        received += done.bytes;
    }
    Bytes rest(30'000);
    for (;;) {
        std::size_t size = 0;
        const Status status = pair.near->read_some(rest, size, patience());
        if (status == Status::closed) break;
        ASSERT_EQ(status, Status::ok);
        ASSERT_TRUE(is_right(std::span{rest}.first(size), received, 4));
        received += size;
    }
    EXPECT_EQ(received, 30'000U);
    other.join();
}

TEST_P(StreamModes, WhatLiesInTheRingIsReadAfterThePeerClosed) {
    if (GetParam() == Mode::direct) GTEST_SKIP() << "there is no ring";
    Pair pair{in_mode(GetParam())};
    EXPECT_EQ(pair.near->write_all(pattern(20'000, 6), patience()), Status::ok);
    EXPECT_EQ(pair.near->close(patience()), Status::ok);
    pair.near.reset();
    Bytes part(7000);
    std::uint64_t received = 0;
    for (;;) {
        std::size_t size = 0;
        const Status status = pair.far->read_some(part, size, patience());
        if (status == Status::closed) break;
        ASSERT_EQ(status, Status::ok) << pair.far->failure();
        ASSERT_TRUE(is_right(std::span{part}.first(size), received, 6));
        received += size;
    }
    EXPECT_EQ(received, 20'000U);
    EXPECT_EQ(pair.far->failure(), "");
}

TEST_P(StreamModes, ASocketThatIsDroppedCountsAsLost) {
    Pair pair{in_mode(GetParam())};
    Buffer memory{8192};
    ASSERT_EQ(pair.far->receive(memory.slice(), 1), Status::ok);
    pair.near.reset();
    EXPECT_EQ(next(*pair.far, 1).status, Status::peer_lost);
    EXPECT_NE(pair.far->failure(), "");
    EXPECT_EQ(pair.far->send(memory.slice(), 2), Status::peer_lost);
    EXPECT_EQ(pair.far->receive(memory.slice(), 3), Status::peer_lost);
    EXPECT_EQ(pair.far->close(patience()), Status::peer_lost);
}

TEST_P(StreamModes, IsClosedThoughThePeerLetGoOfItsEndWithTheLastByteRead) {
    Pair pair{in_mode(GetParam())};
    std::thread other{[&] {
        Bytes all(20'000);
        std::size_t size = 0;
        while (pair.far->read_some(all, size, patience()) == Status::ok) continue;
        pair.far.reset();
    }};
    EXPECT_EQ(pair.near->write_all(pattern(20'000, 6), patience()), Status::ok);
    pair.near->shut_down();
    Bytes none(1);
    std::size_t size = 0;
    EXPECT_EQ(pair.near->read_some(none, size, patience()), Status::peer_lost);
    other.join();
    EXPECT_EQ(pair.near->close(patience()), Status::ok) << "nothing was lost";
}

TEST_P(StreamModes, ClosingGivesEveryBufferBack) {
    Pair pair{in_mode(GetParam())};
    Buffer memory{4 * 8192};
    for (std::uint64_t id = 0; id < 3; ++id) {
        ASSERT_EQ(pair.far->receive(memory.slice(id * 8192, 8192), id), Status::ok);
    }
    EXPECT_EQ(pair.far->close(patience()), Status::ok);
    for (std::uint64_t id = 0; id < 3; ++id) {
        EXPECT_EQ(next(*pair.far, id).status, Status::closed);
    }
    Completion none;
    EXPECT_EQ(pair.far->wait(none, patience()), Status::empty);
    // And the peer's sends end.
    ASSERT_EQ(pair.near->receive(memory.slice(3 * 8192, 8192), 9), Status::ok);
    EXPECT_EQ(next(*pair.near, 9).status, Status::closed);
    EXPECT_EQ(pair.near->close(patience()), Status::ok);
}

TEST_P(StreamModes, AReceiveBehindTheEndCompletesAsOneBeforeIt) {
    Pair pair{in_mode(GetParam())};
    Buffer memory{8192};
    ASSERT_EQ(pair.near->receive(memory.slice(), 1), Status::ok);
    ASSERT_EQ(pair.far->close(patience()), Status::ok);
    EXPECT_EQ(next(*pair.near, 1).status, Status::closed);
    // Whether or not this side has learnt that the connection is over, too.
    for (std::uint64_t id = 2; id < 10; ++id) {
        ASSERT_EQ(pair.near->receive(memory.slice(), id), Status::ok);
        EXPECT_EQ(next(*pair.near, id).status, Status::closed);
        if (id != 5) continue;
        while (pair.near->link().peer_now() == connect::PeerState::alive) {
            std::this_thread::sleep_for(1ms);
        }
    }
    EXPECT_EQ(pair.near->close(patience()), Status::ok);
    EXPECT_EQ(pair.near->receive(memory.slice(), 10), Status::closed);
}

TEST(StreamSocket, RefusesWhatCannotBe) {
    Pair pair;
    Bytes memory(64);
    EXPECT_EQ(pair.near->send(std::span{memory}.first(0), 1), Status::empty);
    EXPECT_EQ(pair.near->receive(std::span{memory}.first(0), 1), Status::empty);
    std::size_t size = 0;
    EXPECT_EQ(pair.near->read_some({}, size, Deadline::now()), Status::empty);
    const std::span<std::byte> all{memory.data(), (std::size_t{1} << 40) + 1};
    EXPECT_EQ(pair.near->send(all, 1), Status::too_large);
    EXPECT_EQ(pair.near->receive(all, 1), Status::too_large);
    Buffer buffer{100};
    EXPECT_THROW((void)buffer.slice(1, buffer.size()), base::Error);
    EXPECT_THROW((void)buffer.slice(buffer.size() + 1, 0), base::Error);
    Completion none;
    EXPECT_EQ(pair.near->poll(none), Status::empty);
    EXPECT_EQ(pair.near->wait(none, patience()), Status::empty);
}

TEST(StreamSocket, RefusesOptionsThatCannotBe) {
    const auto refused = [](auto&& change) {
        SocketOptions options;
        change(options);
        EXPECT_THROW((void)Listener::listen(unused_address(), options), base::Error);
    };
    refused([](SocketOptions& options) { options.ring_bytes = 1000; });
    refused([](SocketOptions& options) { options.ring_bytes = 32; });
    refused([](SocketOptions& options) { options.adverts = (1U << 16) + 1; });
    refused([](SocketOptions& options) { options.sends = 0; });
    refused([](SocketOptions& options) { options.receives = 0; });
    refused([](SocketOptions& options) { options.receives = 0xffff'ffff; });
}

TEST(StreamSocket, TakesAsManyOperationsAsItWasMadeFor) {
    SocketOptions options;
    options.mode = Mode::direct;
    options.sends = 2;
    options.receives = 3;
    Pair pair{options};
    Buffer memory{4096};
    EXPECT_EQ(pair.near->send(memory.slice(), 0), Status::ok);
    EXPECT_EQ(pair.near->send(memory.slice(), 1), Status::ok);
    EXPECT_EQ(pair.near->send(memory.slice(), 2), Status::full);
    for (std::uint64_t id = 0; id < 3; ++id) {
        EXPECT_EQ(pair.far->receive(memory.slice(), id), Status::ok);
    }
    EXPECT_EQ(pair.far->receive(memory.slice(), 3), Status::full);
}

TEST(StreamSocket, ModesGiveWayOrExcludeEachOther) {
    Pair dynamic_and_direct{in_mode(Mode::dynamic), in_mode(Mode::direct)};
    EXPECT_THAT(dynamic_and_direct.near->explain(), testing::HasSubstr("mode direct"));
    Pair indirect_and_dynamic{in_mode(Mode::indirect), in_mode(Mode::dynamic)};
    EXPECT_THAT(indirect_and_dynamic.far->explain(), testing::HasSubstr("mode indirect"));
    const connect::Address address = unused_address();
    Listener listener = Listener::listen(address, in_mode(Mode::direct));
    std::thread other{[&] {
        EXPECT_THROW((void)connect(address, in_mode(Mode::indirect), patience()), base::Error);
    }};
    EXPECT_THROW((void)listener.accept(Deadline::after(500ms)), base::Error);
    other.join();
}

TEST(StreamSocket, ABufferOfAnotherEndpointCountsAsPlainMemory) {
    Pair pair{in_mode(Mode::direct)};
    Buffer from{10'000, connect::Endpoint::open()};
    Buffer into{10'000, connect::Endpoint::open()};
    fill(from.bytes(), 0, 3);
    ASSERT_EQ(pair.far->receive(into.slice(0, 10'000), 1), Status::ok);
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->send(from.slice(0, 10'000), 2), Status::ok);
        EXPECT_EQ(next(*pair.near, 2).status, Status::ok);
    }};
    const Completion done = next(*pair.far, 1);
    sender.join();
    EXPECT_EQ(done.status, Status::ok);
    EXPECT_TRUE(is_right(into.bytes().first(done.bytes), 0, 3));
    EXPECT_EQ(pair.far->stats().registrations, 1U);
}

/// Two plain sends, of 300,000 and of 100,000 bytes, into one receive that comes behind them, in
/// one thread. Returns the sender's statistics.
SocketStats send_plain_before_it_is_received(Pair& pair) {
    constexpr std::size_t first = 300'000;
    Bytes from = pattern(400'000, 5);
    Buffer into{400'000};
    EXPECT_EQ(pair.near->send(std::span<const std::byte>{from}.first(first), 1), Status::ok);
    EXPECT_EQ(pair.near->send(std::span<const std::byte>{from}.subspan(first), 2), Status::ok);
    EXPECT_EQ(pair.far->receive(into.slice(0, 400'000), 3, ReceiveFlags::wait_all), Status::ok);
    const Deadline deadline = patience();
    std::uint64_t sent = 0;
    bool is_received = false;
    while (!(is_received && sent == 2) && !deadline.expired()) {
        Completion done;
        if (pair.far->poll(done) == Status::ok) {
            EXPECT_EQ(done.status, Status::ok);
            EXPECT_EQ(done.bytes, 400'000U);
            is_received = true;
        }
        if (pair.near->poll(done) == Status::ok) {
            EXPECT_EQ(done.status, Status::ok);
            EXPECT_EQ(done.id, ++sent);
            // From now on its memory is the program's.
            const auto over =
                done.id == 1 ? std::span{from}.first(first) : std::span{from}.subspan(first);
            std::fill(over.begin(), over.end(), std::byte{0xee});
        }
    }
    EXPECT_TRUE(is_received);
    EXPECT_TRUE(is_right(into.bytes().first(400'000), 0, 5));
    return pair.near->stats();
}

TEST(StreamSocket, PlainMemoryThatIsStoredInTheRingIsNeitherCopiedNorRegistered) {
    Pair pair{in_mode(Mode::indirect)};
    if (pair.near->explain().find("carrier: store") == std::string::npos) {
        GTEST_SKIP() << "the ring is written by requests";
    }
    const SocketStats sent = send_plain_before_it_is_received(pair);
    EXPECT_EQ(sent.indirect_bytes_sent, 400'000U);
    EXPECT_EQ(sent.staged, 0U);
    EXPECT_EQ(sent.registrations, 0U);
}

TEST(StreamSocket, PlainMemoryIsLentToTheDeviceWhereAnAdvertisementComesBehindItsFirstBytes) {
    Pair pair{in_mode(Mode::dynamic)};
    const SocketStats sent = send_plain_before_it_is_received(pair);
    EXPECT_GT(sent.indirect_bytes_sent, 0U);
    EXPECT_GT(sent.direct_bytes_sent, 0U);
    EXPECT_EQ(sent.registrations, 1U) << "of the long one";
    EXPECT_EQ(sent.staged, 1U) << "of the short one";
}

/// Plain sends of any size, some of which expect more, against receives that come when they like,
/// in one thread. What a send has reported is overwritten at once.
void send_plain_at_random(Mode mode, std::uint64_t seed) {
    constexpr std::uint64_t total = 3'000'000;
    SocketOptions options = in_mode(mode);
    options.tuning.coalesced_bytes = 8192;
    Pair pair{options};
    std::mt19937_64 random{seed};
    std::map<std::uint64_t, Bytes> sends;
    std::map<std::uint64_t, Bytes> receives;
    std::uint64_t begun = 0, sent = 0, received = 0, next_send = 0, next_receive = 0;
    const Deadline deadline = patience();
    while (received < total && !deadline.expired()) {
        const std::uint64_t choice = random() % 8;
        if (choice < 3 && begun < total && sends.size() < 16) {
            const bool expects_more = choice == 0;
            const std::uint64_t most = expects_more ? 4096 : 120 << 10;
            Bytes piece(std::min(total - begun, 1 + random() % most));
            fill(piece, begun, seed);
            ASSERT_EQ(
                pair.near->send(piece, next_send,
                                expects_more && begun + piece.size() < total ? SendFlags::more
                                                                             : SendFlags::none),
                Status::ok);
            begun += piece.size();
            sends.emplace(next_send++, std::move(piece));
        } else if (choice == 3 && receives.size() < 4) {
            Bytes& room = receives[next_receive];
            room.resize(1 + random() % (200 << 10));
            ASSERT_EQ(
                pair.far->receive(room, next_receive++,
                                  random() % 2 == 0 ? ReceiveFlags::wait_all : ReceiveFlags::none),
                Status::ok);
            if (begun == total && received + room.size() > total) pair.near->shut_down();
        }
        Completion done;
        if (pair.near->poll(done) == Status::ok) {
            ASSERT_EQ(done.status, Status::ok) << pair.near->failure();
            Bytes& over = sends.at(done.id);
            sent += over.size();
            std::fill(over.begin(), over.end(), std::byte{0xee});
            sends.erase(done.id);
        }
        if (pair.far->poll(done) == Status::ok) {
            ASSERT_EQ(done.status, Status::ok) << pair.far->failure();
            ASSERT_TRUE(is_right(std::span{receives.at(done.id)}.first(done.bytes), received, seed))
                << "behind " << received << " bytes";
            received += done.bytes;
            receives.erase(done.id);
        }
        if (begun == total) pair.near->shut_down();
    }
    EXPECT_EQ(received, total) << sent << " bytes were reported as sent";
}

TEST(StreamSocket, PlainSendsOfEverySizeKeepTheirBytes) {
    for (std::uint64_t seed = 1; seed <= test::repetitions(16); ++seed) {
        SCOPED_TRACE(seed);
        send_plain_at_random(Mode::dynamic, seed);
        send_plain_at_random(Mode::direct, seed);
        if (HasFatalFailure()) return;
    }
}

TEST(StreamSocket, SmallSendsThatExpectMoreTravelTogether) {
    SocketOptions options = in_mode(Mode::indirect);
    Pair pair{options};
    const Bytes message = pattern(64, 0);
    // The first goes at once, and lies in the ring; those behind it wait for the last.
    for (std::uint64_t id = 0; id < 4; ++id) {
        ASSERT_EQ(pair.near->send(std::span{message}.subspan(id * 10, 10), id, SendFlags::more),
                  Status::ok);
    }
    EXPECT_EQ(pair.near->stats().indirect_transfers, 1U);
    for (std::uint64_t id = 0; id < 4; ++id) EXPECT_EQ(next(*pair.near, id).status, Status::ok);
    ASSERT_EQ(pair.near->send(std::span{message}.subspan(40, 24), 4), Status::ok);
    EXPECT_EQ(pair.near->stats().indirect_transfers, 2U);
    Bytes into(64);
    ASSERT_EQ(pair.far->receive(into, 1, ReceiveFlags::wait_all), Status::ok);
    EXPECT_EQ(next(*pair.far, 1).status, Status::ok);
    EXPECT_TRUE(into == message);
}

TEST(StreamSocket, AByteToAndFroIsTwoMessages) {
    for (const Mode mode : {Mode::dynamic, Mode::indirect}) {
        Pair pair{in_mode(mode)};
        constexpr std::uint64_t turns = 100;
        std::array<std::byte, 1> byte{};
        std::size_t size = 0;
        for (std::uint64_t turn = 0; turn < turns; ++turn) {
            for (auto [from, to] : {std::pair{&pair.near, &pair.far}, {&pair.far, &pair.near}}) {
                byte[0] = static_cast<std::byte>(turn);
                ASSERT_EQ((*from)->write_all(byte, patience()), Status::ok);
                byte[0] = std::byte{0xff};
                ASSERT_EQ((*to)->read_some(byte, size, patience()), Status::ok);
                ASSERT_EQ(byte[0], static_cast<std::byte>(turn));
            }
        }
        EXPECT_EQ(pair.near->stats().messages_sent, turns);
        EXPECT_EQ(pair.far->stats().messages_sent, turns);
        EXPECT_EQ(pair.far->stats().copies, turns);
    }
}

TEST(StreamSocket, ReadsWhatLiesInTheRingOverItsEnd) {
    Pair pair{in_mode(Mode::indirect, 64)};
    const Bytes message = pattern(64, 0);
    Bytes into(64);
    std::size_t size = 0;
    ASSERT_EQ(pair.near->write_all(std::span{message}.first(40), patience()), Status::ok);
    ASSERT_EQ(pair.far->read_some(into, size, patience()), Status::ok);
    ASSERT_EQ(size, 40U);
    // 24 bytes up to the end, and 40 behind it.
    ASSERT_EQ(pair.near->write_all(message, patience()), Status::ok);
    // Where requests take time, what lies behind the end comes later.
    for (std::size_t taken = 0; taken < 64; taken += size) {
        ASSERT_EQ(pair.far->read_some(std::span{into}.subspan(taken), size, patience()),
                  Status::ok);
    }
    EXPECT_TRUE(into == message);
}

TEST(StreamSocket, SmallReceivesAreNotAdvertised) {
    SocketOptions options;
    options.tuning.least_advertised = 1000;
    options.tuning.least_offered = 0;
    Pair pair{options};
    Buffer memory{2 * 4096};
    const auto all = ReceiveFlags::wait_all;
    ASSERT_EQ(pair.far->receive(memory.slice(0, 1000), 0, all), Status::ok);
    ASSERT_EQ(pair.far->receive(memory.slice(1000, 999), 1, all), Status::ok);
    // The one before it waits for the ring.
    ASSERT_EQ(pair.far->receive(memory.slice(1999, 1000), 2, all), Status::ok);
    EXPECT_EQ(pair.far->stats().adverts_sent, 1U);
    fill(memory.bytes().subspan(4096, 2999), 0, 3);
    std::thread sender{[&] {
        EXPECT_EQ(pair.near->send(memory.slice(4096, 2999), 7), Status::ok);
        EXPECT_EQ(next(*pair.near, 7).status, Status::ok);
    }};
    for (std::uint64_t id = 0; id < 3; ++id) EXPECT_EQ(next(*pair.far, id).status, Status::ok);
    sender.join();
    EXPECT_TRUE(is_right(memory.bytes().first(2999), 0, 3));
    EXPECT_GE(pair.near->stats().indirect_bytes_sent, 999U);
}

TEST(StreamSocket, EveryReceiveIsAdvertisedByThePublishedProtocolWhateverThePeerFollows) {
    constexpr std::size_t length = 64;
    constexpr std::uint64_t count = 32;
    SocketOptions published;
    published.tuning.protocol = Protocol::published;
    for (const Protocol of_peer : {Protocol::published, Protocol::extended}) {
        SocketOptions peer;
        peer.tuning.protocol = of_peer;
        Pair pair{peer, published};
        Buffer memory{2 * count * length};
        for (std::uint64_t id = 0; id < count; ++id) {
            ASSERT_EQ(
                pair.far->receive(memory.slice(id * length, length), id, ReceiveFlags::wait_all),
                Status::ok);
        }
        EXPECT_EQ(pair.far->stats().adverts_sent, count) << "short, and few bytes together";
        fill(memory.bytes().subspan(count * length), 0, 3);
        std::thread sender{[&] {
            for (std::uint64_t id = 0; id < count; ++id) {
                EXPECT_EQ(pair.near->send(memory.slice((count + id) * length, length), id),
                          Status::ok);
                EXPECT_EQ(next(*pair.near, id).status, Status::ok);
            }
        }};
        for (std::uint64_t id = 0; id < count; ++id) {
            EXPECT_EQ(next(*pair.far, id).bytes, length);
        }
        sender.join();
        EXPECT_TRUE(is_right(memory.bytes().first(count * length), 0, 3));
        if (of_peer == Protocol::published) {
            EXPECT_EQ(pair.near->stats().adverts_forgone, 0U) << "short sends take them";
        }
    }
}

TEST(StreamSocket, ReceivesOf16KiBAreAdvertisedWhereManyAreOffered) {
    constexpr std::size_t length = 16 << 10;
    Pair pair;
    Buffer memory{9 * length};
    const auto offer = [&](std::uint64_t id, std::size_t bytes) {
        return pair.far->receive(memory.slice(id * length, bytes), id, ReceiveFlags::wait_all);
    };
    for (std::uint64_t id = 0; id < 4; ++id) ASSERT_EQ(offer(id, length), Status::ok);
    EXPECT_EQ(pair.far->stats().adverts_sent, 0U) << "64 KiB are offered";
    ASSERT_EQ(offer(4, length), Status::ok);
    EXPECT_EQ(pair.far->stats().adverts_sent, 5U);
    ASSERT_EQ(offer(5, length - 1), Status::ok);
    EXPECT_EQ(pair.far->stats().adverts_sent, 5U) << "that one is too short";
    fill(memory.slice(8 * length, length).bytes(), 0, 5);
    ASSERT_EQ(pair.near->send(memory.slice(8 * length, length), 7), Status::ok);
    EXPECT_EQ(next(*pair.near, 7).status, Status::ok);
    EXPECT_EQ(next(*pair.far, 0).bytes, length);
    EXPECT_TRUE(is_right(memory.slice(0, length).bytes(), 0, 5));
    // Over a link the bytes may be under way before the advertisements are there.
    const auto sent = pair.near->stats();
    EXPECT_EQ(sent.direct_bytes_sent + sent.indirect_bytes_sent, length);
}

TEST(StreamSocket, AShortReceiveThatIsOfferedAloneTakesItsBytesFromTheRing) {
    constexpr std::size_t length = 64 << 10;
    Pair pair;
    Buffer memory{2 * length};
    ASSERT_EQ(pair.far->receive(memory.slice(0, length), 0), Status::ok);
    ASSERT_EQ(pair.near->send(memory.slice(length, length), 7), Status::ok);
    EXPECT_EQ(next(*pair.near, 7).status, Status::ok);
    EXPECT_EQ(next(*pair.far, 0).bytes, length);
    EXPECT_EQ(pair.near->stats().direct_bytes_sent, 0U);
    EXPECT_EQ(pair.far->stats().adverts_sent, 0U);
}

/// Whether ends take the lines of what they have read: the peer stores, and that pays here.
[[nodiscard]] bool takes_lines(const Socket& socket) {
    return base::readers_take_lines() &&
           socket.explain().find("carrier: store") != std::string::npos;
}

TEST(StreamSocket, TakesTheLinesOfReceivesThatFitIntoACache) {
    constexpr std::size_t length = 64 << 10;
    Pair pair;
    Buffer memory{4 * length};
    fill(memory.bytes(), 0, 3);
    for (std::uint64_t id = 0; id < 4; ++id) {
        ASSERT_EQ(pair.far->receive(memory.slice(id * length, length), id), Status::ok);
    }
    EXPECT_EQ(pair.far->stats().taken_bytes, takes_lines(*pair.far) ? 4 * length : 0);
    EXPECT_TRUE(is_right(memory.bytes(), 0, 3)) << "what stands there is the program's";

    Pair large;
    Buffer expanse{2 * base::most_taken_bytes()};
    ASSERT_EQ(large.far->receive(expanse.slice(), 0), Status::ok);
    ASSERT_EQ(large.far->receive(memory.slice(0, length), 1), Status::ok);
    EXPECT_EQ(large.far->stats().taken_bytes, 0U);
}

TEST(StreamSocket, TakesNoLinesOfReceivesThatHaveComeBeforeTheyAreTaken) {
    Pair pair;
    // Where the peer does not store, its sends may also wait for this end, which nobody calls.
    if (!takes_lines(*pair.far)) GTEST_SKIP() << "no lines are taken here";
    const std::size_t length = base::most_taken_bytes() / 2;
    Buffer memory{5 * length};
    const auto offer = [&](std::uint64_t id) {
        ASSERT_EQ(
            pair.far->receive(memory.slice(id % 4 * length, length), id, ReceiveFlags::wait_all),
            Status::ok);
    };
    const auto send = [&](std::uint64_t id) {
        ASSERT_EQ(pair.near->send(memory.slice(4 * length, length), id), Status::ok);
        EXPECT_EQ(next(*pair.near, id).status, Status::ok);
    };
    for (std::uint64_t id = 0; id < 4; ++id) offer(id);
    const std::uint64_t before = pair.far->stats().taken_bytes;
    const std::uint64_t ring_before = pair.far->stats().indirect_bytes_received;
    for (std::uint64_t id = 0; id < 4; ++id) send(id);
    // The peer is ahead: what is offered at a time is one receive, and four are in turns.
    for (std::uint64_t id = 0; id < 70; ++id) {
        EXPECT_EQ(next(*pair.far, id).bytes, length);
        offer(4 + id);
        send(4 + id);
    }
    const SocketStats stats = pair.far->stats();
    const std::uint64_t by_ring = stats.indirect_bytes_received - ring_before;
    EXPECT_EQ(stats.taken_bytes - before, by_ring);
}

TEST(StreamSocket, TakesNoLinesThatThePeerMayWriteToAlready) {
    constexpr std::size_t length = 64 << 10;
    Pair pair;
    Buffer memory{4 * length};
    ASSERT_EQ(pair.far->receive(memory.slice(0, 2 * length), 0), Status::ok);
    const std::uint64_t before = pair.far->stats().taken_bytes;
    ASSERT_EQ(pair.far->receive(memory.slice(2 * length - 1, length), 1), Status::ok);
    ASSERT_EQ(pair.far->receive(memory.slice(length, length), 2), Status::ok);
    EXPECT_EQ(pair.far->stats().taken_bytes, before);
}

TEST(StreamSocket, TakesTheLinesOfTheRingThatWereRead) {
    Pair pair;
    Bytes bytes(5000);
    std::uint64_t expected = 0;
    const auto expect_taken = [&](std::size_t size, const char* by) {
        if (takes_lines(*pair.far)) expected += size;
        EXPECT_EQ(pair.far->stats().taken_bytes, expected) << by;
    };
    ASSERT_EQ(pair.near->write_all(bytes, patience()), Status::ok);
    std::size_t size = 0;
    ASSERT_EQ(pair.far->read_some(bytes, size, patience()), Status::ok);
    expect_taken(size, "a read");
    View view;
    ASSERT_EQ(pair.near->write_all(bytes, patience()), Status::ok);
    ASSERT_EQ(pair.far->read_zero_copy(view, patience()), Status::ok);
    ASSERT_EQ(pair.far->release(1000), Status::ok);
    expect_taken(1000, "a view");
    ASSERT_EQ(pair.far->receive(std::span{bytes}.first(100), 0), Status::ok);
    EXPECT_EQ(next(*pair.far, 0).bytes, 100U);
    expect_taken(100, "a receive");
}

TEST(StreamSocket, CountsWhatItDid) {
    Pair pair{in_mode(Mode::direct)};
    Buffer memory{8192};
    ASSERT_EQ(pair.near->send(memory.slice(0, 5000), 0), Status::ok);
    EXPECT_EQ(pair.near->stats().stalls_advert, 1U);
    std::thread receiver{[&] {
        EXPECT_EQ(pair.far->receive(memory.slice(0, 5000), 0), Status::ok);
        EXPECT_EQ(next(*pair.far, 0).bytes, 5000U);
    }};
    EXPECT_EQ(next(*pair.near, 0).bytes, 5000U);
    receiver.join();
    const SocketStats sent = pair.near->stats();
    EXPECT_EQ(sent.direct_bytes_sent, 5000U);
    EXPECT_EQ(sent.direct_transfers, 1U);
    EXPECT_EQ(sent.adverts_used, 1U);
    EXPECT_EQ(sent.percent_direct(), 100.0);
    const SocketStats received = pair.far->stats();
    EXPECT_EQ(received.direct_bytes_received, 5000U);
    EXPECT_EQ(received.direct_transfers_received, 1U);
    EXPECT_EQ(received.indirect_transfers_received, 0U);
    EXPECT_EQ(received.adverts_sent, 1U);
    EXPECT_EQ(received.copies, 0U);
}

TEST(StreamSocket, CountsWhatCameThroughTheRingAndWhatCameBackOfCredits) {
    Pair pair{in_mode(Mode::indirect)};
    const Bytes words = pattern(100, 2);
    Bytes into(100);
    std::size_t size = 0;
    ASSERT_EQ(pair.near->write_all(words, patience()), Status::ok);
    ASSERT_EQ(pair.far->read_some(into, size, patience()), Status::ok);
    EXPECT_EQ(pair.near->stats().credits, 0U);
    // The answer takes the credit of the question along.
    ASSERT_EQ(pair.far->write_all(words, patience()), Status::ok);
    ASSERT_EQ(pair.near->read_some(into, size, patience()), Status::ok);
    EXPECT_GE(pair.near->stats().credits, 1U);
    EXPECT_LE(pair.near->stats().credits, pair.near->stats().messages_sent);
    const SocketStats received = pair.far->stats();
    EXPECT_EQ(received.indirect_transfers_received, 1U);
    EXPECT_EQ(received.indirect_bytes_received, 100U);
    EXPECT_EQ(received.direct_transfers_received, 0U);
}

TEST(StreamSocket, ShowsTheSharesOfItsTransfersToOtherProcesses) {
    Pair pair{in_mode(Mode::direct)};
    Buffer memory{8192};
    ASSERT_EQ(pair.far->receive(memory.slice(4096, 4096), 0), Status::ok);
    ASSERT_EQ(pair.near->send(memory.slice(0, 4096), 0), Status::ok);
    EXPECT_EQ(next(*pair.near, 0).status, Status::ok);
    EXPECT_EQ(next(*pair.far, 0).status, Status::ok);
    (void)pair.near->stats();
    (void)pair.far->stats();
    bool is_sender_shown = false;
    bool is_receiver_shown = false;
    for (const auto& page : base::StatisticsPage::of_process(getpid())) {
        const std::map<std::string, std::uint64_t> counters{page.counters.begin(),
                                                            page.counters.end()};
        if (page.title != "byte stream") continue;
        is_sender_shown = is_sender_shown || page.gauges.at(0).second == 100;
        is_receiver_shown = is_receiver_shown || counters.at("direct transfers received") == 1;
        EXPECT_EQ(counters.at("indirect transfers received"), 0U);
        EXPECT_LE(counters.at("credits"), counters.at("messages sent"));
    }
    EXPECT_TRUE(is_sender_shown);
    EXPECT_TRUE(is_receiver_shown);
}

TEST(StreamSocket, RefusesPlainMemoryInStrictUse) {
    SocketOptions options;
    options.registered_only = true;
    Pair pair{options};
    Bytes plain(100'000);
    Buffer foreign{100, connect::Endpoint::open()};
    const auto refusal = [&](auto&& operation) -> std::string {
        try {
            (void)operation();
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            return error.what();
        }
        return "";
    };
    EXPECT_THAT(refusal([&] { return pair.near->send(std::span<const std::byte>{plain}, 1); }),
                testing::HasSubstr("registered_only"));
    EXPECT_THAT(refusal([&] { return pair.near->receive(std::span{plain}, 1); }),
                testing::HasSubstr("registered_only"));
    EXPECT_THAT(refusal([&] { return pair.near->send(foreign.slice(), 1); }),
                testing::HasSubstr("endpoint"));
    EXPECT_THAT(refusal([&] { return pair.near->receive(foreign.slice(), 1); }),
                testing::HasSubstr("endpoint"));
    EXPECT_EQ(pair.near->outstanding(), 0U);
    // Buffers, and what copies by its nature, are welcome.
    Buffer memory{200};
    fill(memory.bytes().first(100), 0, 5);
    ASSERT_EQ(pair.far->receive(memory.slice(100, 100), 3, ReceiveFlags::wait_all), Status::ok);
    ASSERT_EQ(pair.near->send(memory.slice(0, 50), 2), Status::ok);
    ASSERT_EQ(pair.near->write_all(memory.bytes().subspan(50, 50), patience()), Status::ok);
    EXPECT_EQ(next(*pair.far, 3).bytes, 100U);
    EXPECT_TRUE(is_right(memory.bytes().subspan(100, 100), 0, 5));
    EXPECT_EQ(pair.near->stats().registrations + pair.far->stats().registrations, 0U);
}

TEST(StreamSocket, SaysWhatWasChosen) {
    Pair pair;
    const std::string text = pair.near->explain();
    EXPECT_THAT(text, testing::HasSubstr("mode dynamic"));
    EXPECT_THAT(text, testing::HasSubstr(" bytes of ring to receive into"));
    EXPECT_THAT(text, testing::HasSubstr("sizes not asked for are of "));
    EXPECT_THAT(text, testing::HasSubstr("carrier: "));
}

TEST(StreamListener, AcceptsInALoop) {
    const connect::Address address = unused_address();
    Listener listener = Listener::listen(address);
    std::thread other{[&] {
        Socket socket = stream::connect(address, SocketOptions{}, patience());
        EXPECT_EQ(socket.write_all(pattern(5, 0), patience()), Status::ok);
        EXPECT_EQ(socket.close(patience()), Status::ok);
    }};
    auto accepted = test::accept_in_loop(listener, [&] { return listener.try_accept(); });
    ASSERT_TRUE(accepted.has_value());
    Bytes into(5);
    ASSERT_EQ(accepted->receive(into, 1, ReceiveFlags::wait_all), Status::ok);
    EXPECT_EQ(next(*accepted, 1).bytes, 5U);
    other.join();
}

// --- descriptors

TEST(StreamDescriptor, BothEndsTalkByTheirDescriptorsAlone) {
    Pair pair{in_mode(Mode::dynamic, 4096)};
    constexpr std::uint64_t total = 3'000'000;
    std::thread sender{[&] {
        Buffer memory{20'000};
        Socket& socket = *pair.near;
        const int descriptor = socket.descriptor();
        std::minstd_rand random{5};
        std::uint64_t sent = 0;
        while (sent < total) {
            const std::size_t length =
                std::min<std::uint64_t>(1 + random() % memory.size(), total - sent);
            fill(memory.bytes().first(length), sent, 2);
            ASSERT_EQ(socket.send(memory.slice(0, length), sent), Status::ok);
            Completion done;
            for (;;) {
                ASSERT_TRUE(test::becomes_readable(descriptor, 20s)) << sent;
                if (socket.poll(done) == Status::ok) break;
            }
            ASSERT_EQ(done.status, Status::ok);
            sent += length;
            if (random() % 64 == 0) std::this_thread::sleep_for(300us);
        }
        ASSERT_EQ(socket.close(patience()), Status::ok);
    }};
    Buffer memory{16'384};
    Socket& socket = *pair.far;
    const int descriptor = socket.descriptor();
    std::minstd_rand random{9};
    std::uint64_t received = 0;
    ASSERT_EQ(socket.receive(memory.slice(), 0), Status::ok);
    for (;;) {
        ASSERT_TRUE(test::becomes_readable(descriptor, 20s)) << received;
        Completion done;
        if (socket.poll(done) != Status::ok) continue;
        if (done.status == Status::closed) break;
        ASSERT_EQ(done.status, Status::ok);
        ASSERT_TRUE(is_right(memory.bytes().first(done.bytes), received, 2));
        received += done.bytes;
        if (random() % 64 == 0) std::this_thread::sleep_for(300us);
        ASSERT_EQ(socket.receive(memory.slice(0, 1 + random() % memory.size()), 0), Status::ok);
    }
    EXPECT_EQ(received, total);
    sender.join();
}

TEST(StreamDescriptor, IsQuietWhileNothingHappensAndTellsOfLoss) {
    Pair pair;
    Bytes memory(100);
    ASSERT_EQ(pair.near->receive(memory, 1), Status::ok);
    const int descriptor = pair.near->descriptor();
    Completion done;
    ASSERT_TRUE(test::goes_quiet(descriptor, [&] { (void)pair.near->poll(done); }));
    pair.far.reset();
    for (;;) {
        ASSERT_TRUE(test::becomes_readable(descriptor, 20s));
        if (pair.near->poll(done) == Status::ok) break;
    }
    EXPECT_EQ(done.status, Status::peer_lost);
}

TEST(StreamDescriptor, OfBothEndsGoesQuietWhereNothingIsNew) {
    Pair pair;
    Bytes memory(100);
    Bytes others(100);
    ASSERT_EQ(pair.near->receive(memory, 1), Status::ok);
    ASSERT_EQ(pair.far->receive(others, 2), Status::ok);
    Completion done;
    const auto look_near = [&] { ASSERT_EQ(pair.near->poll(done), Status::empty); };
    const auto look_far = [&] { ASSERT_EQ(pair.far->poll(done), Status::empty); };
    ASSERT_TRUE(
        test::both_go_quiet(pair.near->descriptor(), look_near, pair.far->descriptor(), look_far));
    // An end that goes on looking, and finds nothing, leaves the other one alone, too.
    const std::uint64_t before = pair.near->stats().events_sent;
    for (int i = 0; i < 10'000; ++i) look_near();
    EXPECT_EQ(pair.near->stats().events_sent, before);
}

/// A send that awaits an advertisement gives up by the clock, though the descriptor was at rest
/// when it began and nothing else happens.
TEST(StreamDescriptor, WakesForASendThatAwaitsAnAdvertisementInVain) {
    SocketOptions options = in_mode(Mode::dynamic, 256 << 10);
    options.tuning.least_offered = 0;
    Pair pair{options};
    Buffer memory{64 << 10};
    Buffer into{64 << 10};
    Completion done;
    // A sender that has never seen an advertisement awaits none.
    ASSERT_EQ(pair.far->receive(into.slice(), 1, ReceiveFlags::wait_all), Status::ok);
    const Deadline deadline = patience();
    while (pair.near->stats().messages_received == 0) {
        ASSERT_FALSE(deadline.expired());
        ASSERT_EQ(pair.near->poll(done), Status::empty);
        ASSERT_EQ(pair.far->poll(done), Status::empty);
    }
    ASSERT_EQ(pair.near->send(memory.slice(), 1), Status::ok);
    EXPECT_EQ(next(*pair.far, 1).bytes, into.size());
    EXPECT_EQ(next(*pair.near, 1).status, Status::ok);
    ASSERT_EQ(pair.near->stats().direct_transfers, 1U);

    fill(memory.bytes(), 0, 1);
    const int descriptor = pair.near->descriptor();
    ASSERT_TRUE(test::goes_quiet(descriptor, [&] { (void)pair.near->poll(done); }));
    ASSERT_EQ(pair.near->send(memory.slice(), 2), Status::ok);
    do {
        ASSERT_TRUE(test::becomes_readable(descriptor, 20s));
    } while (pair.near->poll(done) != Status::ok);
    EXPECT_EQ(done.status, Status::ok);
    Bytes read(memory.size());
    std::size_t got = 0;
    while (got < read.size()) {
        std::size_t size = 0;
        ASSERT_EQ(pair.far->read_some(std::span{read}.subspan(got), size, patience()), Status::ok);
        got += size;
    }
    EXPECT_TRUE(is_right(read, 0, 1));
}

TEST(StreamDescriptor, WorksInAHub) {
    Pair pair;
    Bytes memory(64);
    connect::Hub hub;
    std::uint64_t received = 0;
    ASSERT_EQ(pair.near->receive(memory, 1), Status::ok);
    hub.add(pair.near->descriptor(), [&] {
        Completion done;
        while (pair.near->poll(done) == Status::ok) {
            if (done.status != Status::ok) {
                hub.stop();
                return;
            }
            received += done.bytes;
            ASSERT_EQ(pair.near->receive(memory, 1), Status::ok);
        }
    });
    std::thread other{[&] {
        for (int i = 0; i < 50; ++i) {
            EXPECT_EQ(pair.far->write_all(pattern(100, 0), patience()), Status::ok);
            if (i % 10 == 0) std::this_thread::sleep_for(2ms);
        }
        EXPECT_EQ(pair.far->close(patience()), Status::ok);
    }};
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(received, 5000U);
    other.join();
}

TEST(StreamSocket, EndsTheSendsOfBothEndsThatFitIntoTheirRingsBeforeAnythingIsReceived) {
    constexpr std::size_t length = 100 << 10;
    constexpr std::uint64_t count = 4;
    Pair pair{in_mode(Mode::dynamic, 512 << 10)};
    const std::array<Socket*, 2> ends{&*pair.near, &*pair.far};
    Buffer from{length};
    Buffer into{length};
    fill(from.bytes(), 0, 5);
    // Each knows that the other advertises.
    for (const int end : {0, 1}) {
        ASSERT_EQ(ends[1 - end]->receive(into.slice(), 1, ReceiveFlags::wait_all), Status::ok);
        ASSERT_EQ(ends[end]->send(from.slice(), 2), Status::ok);
        EXPECT_EQ(next(*ends[1 - end], 1).bytes, length);
        EXPECT_EQ(next(*ends[end], 2).status, Status::ok);
    }
    for (std::uint64_t number = 0; number < count; ++number) {
        for (Socket* const end : ends) ASSERT_EQ(end->send(from.slice(), number), Status::ok);
    }
    for (Socket* const end : ends) {
        for (std::uint64_t number = 0; number < count; ++number) {
            ASSERT_EQ(next(*end, number).status, Status::ok);
        }
    }
    for (Socket* const end : ends) {
        for (std::uint64_t number = 0; number < count; ++number) {
            ASSERT_EQ(end->receive(into.slice(), number, ReceiveFlags::wait_all), Status::ok);
            ASSERT_EQ(next(*end, number).bytes, length);
            EXPECT_TRUE(is_right(into.bytes(), 0, 5));
        }
    }
}

// Both ends announce that they sleep before they hear so of each other, and neither rings: the
// event for the receiver is the last request of the send then, and leaves no completion.
TEST(StreamLongWay, ASendEndsWhoseReceiverFellAsleepTogetherWithItsSender) {
    const test::SettingScope distance{"MILLRACE_SOFT_MODE", "shaped:100m,latency=20ms"};
    SocketOptions options = in_mode(Mode::direct);
    options.wait = base::WaitPolicy::blocking();
    Pair pair{options};
    Socket& sender = *pair.near;
    Socket& receiver = *pair.far;
    Buffer from{32 << 10};
    Buffer into{32 << 10};
    fill(from.bytes(), 0, 7);
    Buffer slow{1 << 20};  // is under way for 84 ms
    Buffer slowly{1 << 20};
    Completion done;
    ASSERT_EQ(receiver.receive(into.slice(), 1, ReceiveFlags::wait_all), Status::ok);
    ASSERT_EQ(sender.receive(slowly.slice(), 2, ReceiveFlags::wait_all), Status::ok);
    std::this_thread::sleep_for(60ms);
    ASSERT_EQ(sender.wait(done, Deadline::after(0ms)), Status::timed_out);
    // Behind those bytes the receiver's announcement is late.
    ASSERT_EQ(receiver.send(slow.slice(), 3), Status::ok);
    ASSERT_EQ(receiver.wait(done, Deadline::after(0ms)), Status::timed_out);
    std::this_thread::sleep_for(50ms);
    // The sender's has come: it asks for what is new, which answers before it is waited for.
    ASSERT_EQ(sender.wait(done, Deadline::after(0ms)), Status::timed_out);
    std::this_thread::sleep_for(150ms);
    ASSERT_EQ(sender.send(from.slice(), 4), Status::ok);
    EXPECT_EQ(next(sender, 2).bytes, slow.size());
    EXPECT_EQ(next(sender, 4).bytes, from.size());
    EXPECT_EQ(next(receiver, 1).bytes, into.size());
    EXPECT_EQ(next(receiver, 3).bytes, slow.size());
    EXPECT_TRUE(is_right(into.bytes(), 0, 7));
}

TEST(StreamSocket, NamesAThreadThatComesWhileAnotherWaits) {
    SocketOptions options;
    options.wait = base::WaitPolicy::blocking();
    Pair pair{options};
    Bytes into(5000);
    ASSERT_EQ(pair.near->receive(into, 1, ReceiveFlags::wait_all), Status::ok);
    Completion done;
    std::thread waiter{[&] { EXPECT_EQ(pair.near->wait(done, patience()), Status::ok); }};
    // It was asleep when it was rung for, and what came is not enough for it to come back.
    Bytes byte(1);
    std::size_t sent = 0;
    Completion nothing;
    const Deadline deadline = patience();
    while (pair.far->stats().events_sent == 0 && !deadline.expired()) {
        if (sent < into.size() - 1 && pair.far->write_all(byte, deadline) == Status::ok) ++sent;
        (void)pair.far->poll(nothing);
    }
    const auto expect_refused = [&](auto&& use) {
        try {
            use(*pair.near);
            ADD_FAILURE() << "two threads use it";
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_THAT(error.what(), testing::HasSubstr("a call of another thread is under way"));
        }
    };
    Completion other;
    std::size_t size = 0;
    expect_refused([&](Socket& socket) { (void)socket.send(byte, 1); });
    expect_refused([&](Socket& socket) { (void)socket.receive(byte, 1); });
    expect_refused([&](Socket& socket) { (void)socket.cancel(1); });
    expect_refused([&](Socket& socket) { (void)socket.poll(other); });
    expect_refused([&](Socket& socket) { (void)socket.wait(other, deadline); });
    expect_refused([&](Socket& socket) { (void)socket.descriptor(); });
    expect_refused([&](Socket& socket) { (void)socket.read_some(byte, size, deadline); });
    expect_refused([&](Socket& socket) { (void)socket.write_all(byte, deadline); });
    expect_refused([&](Socket& socket) { socket.shut_down(); });
    expect_refused([&](Socket& socket) { (void)socket.close(deadline); });
    expect_refused([&](Socket& socket) { (void)socket.stats(); });
    EXPECT_EQ(pair.far->write_all(Bytes(into.size() - sent), patience()), Status::ok);
    waiter.join();
    EXPECT_EQ(done.bytes, into.size());
    // And behind it the socket is anybody's.
    EXPECT_EQ(pair.near->poll(other), Status::empty);
}

}  // namespace
}  // namespace millrace::stream
