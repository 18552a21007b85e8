// Between two processes: every size, a long way, and receives that are cancelled while bytes for
// them are under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "remote.hpp"
#include "support/extent.hpp"
#include "support/setting_scope.hpp"

namespace millrace::stream {
namespace {

using base::Status;
using test::ChildProcess;

/// Of bytes, by words.
std::uint64_t digest_of(std::span<const std::byte> bytes) noexcept {
    std::uint64_t digest = bytes.size();
    for (std::size_t at = 0; at < bytes.size(); at += sizeof digest) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
        digest = (digest ^ word) * 0x9e3779b97f4a7c15ULL;
        digest ^= digest >> 32;
    }
    return digest;
}

/// From one byte to 16 MiB: around every limit there is.
constexpr std::size_t swept[] = {1,
                                 2,
                                 7,
                                 8,
                                 63,
                                 64,
                                 65,
                                 127,
                                 129,
                                 1000,
                                 4095,
                                 4096,
                                 4097,
                                 (32 << 10) - 1,
                                 32 << 10,
                                 (64 << 10) - 1,
                                 64 << 10,
                                 (64 << 10) + 1,
                                 (128 << 10) + 1,
                                 512 << 10,
                                 (1 << 20) + 1,
                                 4 << 20,
                                 16 << 20};
constexpr std::size_t longest_swept = 16 << 20;

// Receives each of the sizes, by a Buffer and by plain memory, and answers each with its digest.
MILLRACE_CHILD(stream_digester) {
    Socket socket = accept_one(arguments);
    Buffer registered{longest_swept};
    Bytes plain(longest_swept);
    std::uint64_t number = 0;
    for (const std::size_t size : swept) {
        for (const bool is_plain : {false, true}) {
            const auto into =
                is_plain ? std::span{plain}.first(size) : registered.slice(0, size).bytes();
            const Status asked = is_plain ? socket.receive(into, ++number, ReceiveFlags::wait_all)
                                          : socket.receive(registered.slice(0, size), ++number,
                                                           ReceiveFlags::wait_all);
            if (asked != Status::ok) return 2;
            Completion done;
            if (socket.wait(done, patience()) != Status::ok) return 3;
            if (done.status != Status::ok || done.bytes != size) return 4;
            const std::uint64_t digest = digest_of(into);
            if (socket.write_all(std::as_bytes(std::span{&digest, 1}), patience()) != Status::ok) {
                return 5;
            }
        }
    }
    return socket.close(patience()) == Status::ok ? 0 : 6;
}

class StreamBetweenProcessesOfAllSizes : public testing::TestWithParam<std::tuple<Mode, Type>> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamBetweenProcessesOfAllSizes,
                         testing::Combine(testing::Values(Mode::dynamic, Mode::direct,
                                                          Mode::indirect),
                                          testing::Values(Type::stream, Type::seqpacket)),
                         [](const auto& chosen) {
                             return std::string{name_of(std::get<0>(chosen.param))} +
                                    (std::get<1>(chosen.param) == Type::seqpacket ? "_messages"
                                                                                  : "");
                         });

TEST_P(StreamBetweenProcessesOfAllSizes, EachArrivesAsItWasSent) {
    const auto [mode, type] = GetParam();
    Remote remote = Remote::start("stream_digester", mode, type);
    Buffer registered{longest_swept};
    Bytes plain(longest_swept);
    std::uint64_t number = 0;
    for (const std::size_t size : swept) {
        for (const bool is_plain : {true, false}) {
            const Slice slice = registered.slice(0, size);
            const auto from = is_plain ? std::span{plain}.first(size) : slice.bytes();
            fill(from, 0, ++number);
            ASSERT_EQ(is_plain ? remote.socket.send(std::span<const std::byte>{from}, number)
                               : remote.socket.send(slice, number),
                      Status::ok);
            const Completion done = next(remote.socket, number);
            ASSERT_EQ(done.status, Status::ok) << remote.socket.failure();
            ASSERT_EQ(done.bytes, size);
            std::uint64_t digest = 0;
            std::size_t have = 0;
            while (have < sizeof digest) {
                std::size_t got = 0;
                ASSERT_EQ(remote.socket.read_some(
                              std::as_writable_bytes(std::span{&digest, 1}).subspan(have), got,
                              patience()),
                          Status::ok)
                    << size << " bytes: " << remote.socket.failure();
                have += got;
            }
            ASSERT_EQ(digest, digest_of(from)) << size << " bytes";
        }
    }
    EXPECT_EQ(remote.socket.close(patience()), Status::ok) << remote.socket.failure();
    EXPECT_EQ(remote.child.wait(), (test::Exit{test::Exit::How::exited, 0}));
}

/// What a source sends: bytes that tell their place, so many in all, by sends of up to so many.
struct SourcePlan {
    Mode mode;
    std::size_t ring_bytes;
    std::uint64_t total;
    std::size_t longest;
    unsigned sends;
    bool awaits_adverts = false;  ///< before it sends anything
    bool awaits_word = false;     ///< a byte, before it sends anything

    [[nodiscard]] std::vector<std::string> words() const {
        return {std::string{name_of(mode)}, std::to_string(ring_bytes), std::to_string(total),
                std::to_string(longest),    std::to_string(sends),      awaits_adverts ? "1" : "0",
                awaits_word ? "1" : "0"};
    }
    static SourcePlan of(const std::vector<std::string>& words) {
        return {mode_of(words.at(0)),
                std::stoull(words.at(1)),
                std::stoull(words.at(2)),
                std::stoull(words.at(3)),
                static_cast<unsigned>(std::stoul(words.at(4))),
                words.at(5) == "1",
                words.at(6) == "1"};
    }
    [[nodiscard]] SocketOptions options() const {
        SocketOptions chosen;
        chosen.mode = mode;
        chosen.ring_bytes = ring_bytes;
        return chosen;
    }
};

MILLRACE_CHILD(stream_source) {
    const SourcePlan plan = SourcePlan::of(arguments);
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"), plan.options());
    test::say(listener.address().to_string());
    Socket socket = listener.accept(patience());
    Buffer memory{plan.sends * plan.longest};
    std::uint64_t sent = 0;
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    for (Completion none; plan.awaits_adverts && socket.stats().messages_received == 0;) {
        if (socket.poll(none) != Status::empty) return 1;
    }
    if (plan.awaits_word) {
        std::byte word{};
        std::size_t size = 0;
        if (socket.read_some(std::span{&word, 1}, size, patience()) != Status::ok) return 6;
    }
    while (sent < plan.total || ended < begun) {
        if (sent < plan.total && begun - ended < plan.sends) {
            const std::size_t length = std::min<std::uint64_t>(
                1 + (begun * 2'654'435'761U) % plan.longest, plan.total - sent);
            const Slice slice = memory.slice(begun % plan.sends * plan.longest, length);
            fill(slice.bytes(), sent, 7);
            if (socket.send(slice, begun++) != Status::ok) return 2;
            sent += length;
            continue;
        }
        Completion done;
        if (socket.wait(done, patience()) != Status::ok) return 3;
        if (done.status != Status::ok) return 4;
        ++ended;
    }
    return socket.close(patience()) == Status::ok ? 0 : 5;
}

/// A child that sends as the plan says, and the socket to it.
Remote start_source(const SourcePlan& plan) {
    ChildProcess child = ChildProcess::start("stream_source", plan.words());
    const auto address = child.read_line();
    if (!address) throw std::runtime_error{"the child did not listen"};
    return {std::move(child),
            connect(connect::Address::parse(*address), plan.options(), patience())};
}

class StreamBetweenProcessesAndTheRest : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamBetweenProcessesAndTheRest,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

// Cancels some of its receives again and again while the peer sends without a pause, so that
// transfers cross the CANCEL. No byte is lost or comes twice, and what was given back is written by
// nobody.
TEST_P(StreamBetweenProcessesAndTheRest, CancelledReceivesCrossTransfersAndLoseNoByte) {
    constexpr std::size_t longest = 100'000;
    constexpr std::size_t places = 6;
    SourcePlan plan{GetParam(), 64 << 10, test::repetitions(24 << 20), longest, 4};
    plan.awaits_word = true;
    Remote remote = start_source(plan);
    Buffer memory{places * longest};
    std::vector<std::size_t> free;
    for (std::size_t place = 0; place < places; ++place) free.push_back(place);
    const auto bytes_of = [&](std::size_t place) {
        return memory.bytes().subspan(place * longest, longest);
    };
    std::ranges::fill(memory.bytes(), std::byte{0xee});
    std::mt19937_64 random{20'261};
    struct Lent {
        std::uint64_t id;
        std::size_t place;
    };
    std::deque<Lent> lent;
    std::uint64_t begun = 0;
    std::uint64_t received = 0;
    bool is_over = false;
    bool is_sent = false;
    while (!is_over || !lent.empty()) {
        while (!is_over && !free.empty()) {
            // The one that has rested longest.
            const std::size_t place = free.front();
            free.erase(free.begin());
            ASSERT_TRUE(std::ranges::all_of(bytes_of(place), [](std::byte byte) {
                return byte == std::byte{0xee};
            })) << "somebody wrote to what had been given back";
            const std::size_t length = 40'000 + random() % (longest - 40'000);
            const auto flags = random() % 4 == 0 ? ReceiveFlags::wait_all : ReceiveFlags::none;
            ASSERT_EQ(remote.socket.receive(memory.slice(place * longest, length), begun, flags),
                      Status::ok);
            lent.push_back({begun++, place});
        }
        if (!is_sent) {
            // Nothing is sent yet, so these come back as they are, each by a CANCEL of its own.
            while (!lent.empty()) {
                ASSERT_EQ(remote.socket.cancel(lent.front().id), Status::ok);
                const Completion none = next(remote.socket, lent.front().id);
                ASSERT_EQ(none.status, Status::cancelled);
                ASSERT_EQ(none.bytes, 0U);
                free.push_back(lent.front().place);
                lent.pop_front();
            }
            const std::byte word{};
            ASSERT_EQ(remote.socket.write_all(std::span{&word, 1}, patience()), Status::ok);
            is_sent = true;
            continue;
        }
        if (!lent.empty() && random() % 3 == 0) {
            const Status status = remote.socket.cancel(lent[random() % lent.size()].id);
            ASSERT_TRUE(status == Status::ok || status == Status::empty);
        }
        Completion done;
        ASSERT_EQ(remote.socket.wait(done, patience()), Status::ok) << remote.socket.failure();
        const auto of = std::ranges::find(lent, done.id, &Lent::id);
        ASSERT_NE(of, lent.end());
        const auto bytes = bytes_of(of->place);
        if (done.status == Status::closed) is_over = true;
        ASSERT_TRUE(done.status == Status::ok || done.status == Status::closed ||
                    done.status == Status::cancelled)
            << remote.socket.failure();
        ASSERT_TRUE(is_right(bytes.first(done.bytes), received, 7)) << "behind " << received;
        received += done.bytes;
        std::ranges::fill(bytes, std::byte{0xee});
        free.push_back(of->place);
        lent.erase(of);
    }
    EXPECT_EQ(received, plan.total);
    EXPECT_EQ(remote.socket.close(patience()), Status::ok) << remote.socket.failure();
    EXPECT_EQ(remote.child.wait(), (test::Exit{test::Exit::How::exited, 0}));
}

/// What is registered for one operation, and no longer than the program needs it.
constexpr std::uint64_t passing = 60;
constexpr std::size_t longest_passing = 300'000;
[[nodiscard]] constexpr std::size_t passing_bytes(std::uint64_t number) noexcept {
    return 1 + number * 48'271 % longest_passing;
}

// Sends from Buffers that go before their sends have completed.
MILLRACE_CHILD(stream_deregisters) {
    Socket socket = accept_one(arguments);
    std::uint64_t ended = 0;
    const auto wait = [&] {
        Completion done;
        return socket.wait(done, patience()) == Status::ok && done.status == Status::ok &&
               done.id == ended++;
    };
    for (std::uint64_t number = 0; number < passing; ++number) {
        const Buffer from{longest_passing};
        const Slice slice = from.slice(0, passing_bytes(number));
        fill(slice.bytes(), 0, number);
        if (socket.send(slice, number) != Status::ok) return 1;
        if (number - ended == 3 && !wait()) return 2;
    }
    while (ended < passing) {
        if (!wait()) return 3;
    }
    return socket.close(patience()) == Status::ok ? 0 : 4;
}

// And receives into memory whose Buffer goes while it is advertised.
TEST_P(StreamBetweenProcessesAndTheRest, RegistrationsThatTheProgramEndsEarlyLoseNoByte) {
    Remote remote = Remote::start("stream_deregisters", GetParam());
    constexpr std::uint64_t places = 3;
    std::vector<Bytes> memory(places, Bytes(longest_passing));
    const auto receive = [&](std::uint64_t number) {
        const Buffer into{std::span{memory[number % places]}};
        return remote.socket.receive(into.slice(0, passing_bytes(number)), number,
                                     ReceiveFlags::wait_all);
    };
    std::uint64_t begun = 0;
    for (; begun < places; ++begun) ASSERT_EQ(receive(begun), Status::ok);
    for (std::uint64_t number = 0; number < passing; ++number) {
        const Completion done = next(remote.socket, number);
        ASSERT_EQ(done.status, Status::ok) << remote.socket.failure();
        ASSERT_EQ(done.bytes, passing_bytes(number));
        ASSERT_TRUE(is_right(std::span{memory[number % places]}.first(done.bytes), 0, number))
            << number;
        if (begun < passing) {
            ASSERT_EQ(receive(begun++), Status::ok);
        }
    }
    EXPECT_EQ(remote.socket.close(patience()), Status::ok) << remote.socket.failure();
    EXPECT_EQ(remote.child.wait(), (test::Exit{test::Exit::How::exited, 0}));
}

class StreamAfar : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(In, StreamAfar,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

TEST_P(StreamAfar, EveryByteArrivesInOrderOver48Milliseconds) {
    const test::SettingScope distance{"MILLRACE_SOFT_MODE", "shaped:10g,latency=24ms"};
    constexpr std::size_t longest = 128 << 10;
    constexpr std::uint64_t places = 32;
    const SourcePlan plan{GetParam(), 4 << 20, 8 << 20, longest, 32, GetParam() == Mode::dynamic};
    Remote remote = start_source(plan);
    Buffer memory{places * longest};
    const auto receive = [&](std::uint64_t number) {
        return remote.socket.receive(memory.slice(number % places * longest, longest), number);
    };
    std::uint64_t begun = 0;
    for (; begun < places; ++begun) ASSERT_EQ(receive(begun), Status::ok);
    std::uint64_t received = 0;
    for (std::uint64_t number = 0;; ++number) {
        const Completion done = next(remote.socket, number);
        if (done.status == Status::closed) break;
        ASSERT_EQ(done.status, Status::ok) << remote.socket.failure();
        ASSERT_TRUE(
            is_right(memory.bytes().subspan(number % places * longest, done.bytes), received, 7))
            << "behind " << received;
        received += done.bytes;
        ASSERT_EQ(receive(begun++), Status::ok);
    }
    EXPECT_EQ(received, plan.total);
    const SocketStats stats = remote.socket.stats();
    if (GetParam() == Mode::direct) {
        EXPECT_EQ(stats.indirect_bytes_received, 0U);
    } else if (GetParam() == Mode::indirect) {
        EXPECT_EQ(stats.direct_bytes_received, 0U);
    } else {
        EXPECT_GT(stats.direct_bytes_received, 0U) << "the first of them";
    }
    EXPECT_EQ(remote.socket.close(patience()), Status::ok) << remote.socket.failure();
    EXPECT_EQ(remote.child.wait(), (test::Exit{test::Exit::How::exited, 0}));
}

}  // namespace
}  // namespace millrace::stream
