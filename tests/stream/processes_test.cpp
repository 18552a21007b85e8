// Sockets between two processes: everything that one process does for two is not there to help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "pair.hpp"
#include "slot.hpp"
#include "support/child_process.hpp"
#include "wire.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::hear;
using test::say;
using namespace std::chrono_literals;

Mode mode_of(const std::string& name) {
    for (const Mode mode : {Mode::dynamic, Mode::direct, Mode::indirect}) {
        if (name == name_of(mode)) return mode;
    }
    throw std::runtime_error{"no mode " + name};
}

SocketOptions options_of(const std::string& mode) {
    SocketOptions options;
    options.mode = mode_of(mode);
    options.ring_bytes = 64 << 10;
    return options;
}

/// For children: listens in the mode of the first argument, says where, and accepts one socket.
Socket accept_one(const std::vector<std::string>& arguments) {
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"),
                                         options_of(arguments.empty() ? "dynamic" : arguments[0]));
    say(listener.address().to_string());
    return listener.accept(patience());
}

/// A child that listens, and the socket to it. The child's first line is its address.
struct Remote {
    ChildProcess child;
    Socket socket;

    static Remote start(std::string_view name, Mode mode, std::vector<std::string> more = {}) {
        std::vector<std::string> arguments{std::string{name_of(mode)}};
        arguments.insert(arguments.end(), more.begin(), more.end());
        ChildProcess process = ChildProcess::start(name, std::move(arguments));
        const auto address = process.read_line();
        if (!address) throw std::runtime_error{"the child did not listen"};
        Socket made = connect(connect::Address::parse(*address),
                              options_of(std::string{name_of(mode)}), patience());
        return {std::move(process), std::move(made)};
    }
};

class StreamBetweenProcesses : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Of, StreamBetweenProcesses,
                         testing::Values(Mode::dynamic, Mode::direct, Mode::indirect),
                         [](const auto& mode) { return std::string{name_of(mode.param)}; });

// Sends back what comes, as it comes, through receives of 100,000 bytes, until the end.
MILLRACE_CHILD(stream_echo) {
    Socket socket = accept_one(arguments);
    constexpr std::size_t size = 100'000;
    constexpr std::uint64_t places = 4;
    Buffer memory{size * places};
    const auto place = [&](std::uint64_t number, std::size_t length) {
        return memory.slice(number % places * size, length);
    };
    // A place is received into, then sent from, then received into again.
    std::uint64_t receiving = 0;
    std::uint64_t sent = 0;
    bool is_open = true;
    for (; receiving < places; ++receiving) {
        if (socket.receive(place(receiving, size), receiving) != Status::ok) return 2;
    }
    std::uint64_t sending = 0;
    while (is_open || sent < sending) {
        Completion done;
        if (socket.wait(done, patience()) != Status::ok) return 3;
        if (done.kind == Completion::Kind::receive) {
            if (done.status == Status::closed) {
                is_open = false;
                continue;
            }
            if (done.status != Status::ok) return 4;
            if (socket.send(place(done.id, done.bytes), done.id) != Status::ok) return 5;
            ++sending;
        } else {
            if (done.status != Status::ok) return 6;
            ++sent;
            if (is_open && socket.receive(place(receiving, size), receiving) != Status::ok) {
                return 7;
            }
            ++receiving;
        }
    }
    return socket.close(patience()) == Status::ok ? 0 : 8;
}

TEST_P(StreamBetweenProcesses, EverythingComesBack) {
    Remote remote = Remote::start("stream_echo", GetParam());
    constexpr std::uint64_t total = 20 << 20;
    constexpr std::size_t most = 1 << 20;
    Buffer out{2 * most};
    Buffer in{2 * most};
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t sends = 0;
    std::uint64_t sends_done = 0;
    std::uint64_t receives = 0;
    while (received < total) {
        while (sends - sends_done < 2 && sent < total) {
            const std::size_t length =
                std::min<std::uint64_t>(1 + (sent * 2'654'435'761U) % most, total - sent);
            const std::size_t offset = sends % 2 * most;
            fill(out.bytes().subspan(offset, length), sent, 11);
            ASSERT_EQ(remote.socket.send(out.slice(offset, length), sends), Status::ok);
            sent += length;
            ++sends;
            if (sent == total) remote.socket.shut_down();
        }
        if (receives == 0) {
            ASSERT_EQ(remote.socket.receive(in.slice(), 1), Status::ok);
            ++receives;
        }
        Completion done;
        ASSERT_EQ(remote.socket.wait(done, patience()), Status::ok) << remote.socket.failure();
        ASSERT_EQ(done.status, Status::ok) << remote.socket.failure();
        if (done.kind == Completion::Kind::send) {
            ++sends_done;
        } else {
            --receives;
            ASSERT_TRUE(is_right(in.bytes().first(done.bytes), received, 11)) << received;
            received += done.bytes;
        }
    }
    EXPECT_EQ(received, total);
    EXPECT_EQ(remote.socket.close(patience()), Status::ok) << remote.socket.failure();
    EXPECT_EQ(remote.child.wait(), (test::Exit{test::Exit::How::exited, 0}));
}

// Lends a buffer and waits until it is killed.
MILLRACE_CHILD(stream_idle) {
    Socket socket = accept_one(arguments);
    Buffer memory{1 << 20};
    for (std::uint64_t id = 0; id < 4; ++id) {
        if (socket.receive(memory.slice(id << 18, 1 << 18), id) != Status::ok) return 1;
    }
    say("waiting");
    for (Completion done;;) (void)socket.wait(done, patience());
}

TEST_P(StreamBetweenProcesses, AKilledPeerGivesEveryBufferBack) {
    Remote remote = Remote::start("stream_idle", GetParam());
    ASSERT_EQ(remote.child.read_line(), "waiting");
    Buffer memory{8 << 20};
    for (std::uint64_t id = 0; id < 4; ++id) {
        ASSERT_EQ(remote.socket.receive(memory.slice(id << 20, 1 << 20), id), Status::ok);
        ASSERT_EQ(remote.socket.send(memory.slice((4 + id) << 20, 1 << 20), 4 + id), Status::ok);
    }
    remote.child.kill();
    Completion done;
    int lost = 0;
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(remote.socket.wait(done, patience()), Status::ok);
        if (done.kind == Completion::Kind::receive) {
            EXPECT_EQ(done.status, Status::peer_lost);
        }
        if (done.status == Status::peer_lost) ++lost;
    }
    EXPECT_GE(lost, 4);
    EXPECT_NE(remote.socket.failure(), "");
    EXPECT_EQ(remote.socket.wait(done, patience()), Status::empty);
}

TEST_P(StreamBetweenProcesses, AStoppedPeerHoldsUpNobodyBeyondTheDeadline) {
    Remote remote = Remote::start("stream_idle", GetParam());
    ASSERT_EQ(remote.child.read_line(), "waiting");
    ASSERT_TRUE(remote.child.stop());
    Buffer memory{4 << 20};
    ASSERT_EQ(remote.socket.receive(memory.slice(0, 1 << 20), 1), Status::ok);
    Completion done;
    EXPECT_EQ(remote.socket.wait(done, Deadline::after(20ms)), Status::timed_out);
    ASSERT_EQ(remote.socket.cancel(1), Status::ok);
    // An advertised buffer comes back when the peer says so, or when the connection ends.
    const Bytes much = pattern(3 << 20, 1);
    EXPECT_EQ(remote.socket.write_all(much, Deadline::after(20ms)), Status::timed_out);
    ASSERT_EQ(remote.socket.send(memory.slice(1 << 20, 3 << 20), 2), Status::ok);
    EXPECT_EQ(remote.socket.close(Deadline::after(20ms)), Status::timed_out);
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(remote.socket.wait(done, patience()), Status::ok);
        EXPECT_NE(done.status, Status::ok);
    }
    EXPECT_EQ(remote.socket.wait(done, patience()), Status::empty);
    remote.child.resume();
}

TEST_P(StreamBetweenProcesses, AResumedPeerGoesOn) {
    Remote remote = Remote::start("stream_echo", GetParam());
    ASSERT_TRUE(remote.child.stop());
    Buffer memory{2 << 16};
    ASSERT_EQ(remote.socket.receive(memory.slice(0, 1 << 16), 1, ReceiveFlags::wait_all),
              Status::ok);
    fill(memory.bytes().subspan(1 << 16, 1 << 16), 0, 4);
    ASSERT_EQ(remote.socket.send(memory.slice(1 << 16, 1 << 16), 2), Status::ok);
    Completion done;
    while (remote.socket.wait(done, Deadline::after(20ms)) == Status::ok) {
        ASSERT_EQ(done.id, 2U);
    }
    remote.child.resume();
    do {
        ASSERT_EQ(remote.socket.wait(done, patience()), Status::ok) << remote.socket.failure();
        ASSERT_EQ(done.status, Status::ok);
    } while (done.id != 1);
    EXPECT_TRUE(is_right(memory.bytes().first(1 << 16), 0, 4));
    EXPECT_EQ(remote.socket.close(patience()), Status::ok);
}

// --- a peer that lies: it makes the link and its facts by hand, and writes what it likes

/// As setup.cpp says its facts; a peer of its own making, whose memory holds only zeros.
class Liar {
  public:
    explicit Liar(const connect::Address& address)
        : link_{connect::connect(
              address, {.service = "byte stream", .service_version = 1, .max_inline = 128},
              patience())},
          memory_{link_.protection_domain().allocate(
              ring_bytes + slots * sizeof(Slot) + 4096,
              verbs::Access::remote_write | verbs::Access::remote_read)} {
        std::vector<std::byte> facts;
        const auto put = [&](auto number) {
            const auto* const bytes = reinterpret_cast<const std::byte*>(&number);
            facts.insert(facts.end(), bytes, bytes + sizeof number);
        };
        const verbs::RemoteAddress all = memory_.remote();
        put(all.address);
        put(std::uint64_t{ring_bytes});
        put(all.address + ring_bytes + slots * sizeof(Slot));
        put(all.rkey);
        put(slots);
        put(std::uint32_t{8});  // advertisements
        put(std::uint32_t{0});  // mode dynamic
        put(std::uint64_t{0});  // no far fences
        const std::vector<std::byte> theirs = link_.exchange(facts, patience());
        std::memcpy(&victim_.address, theirs.data(), 8);
        std::memcpy(&victim_ring_, theirs.data() + 8, 8);
        std::memcpy(&victim_.rkey, theirs.data() + 24, 4);
    }

    /// Into the next slot, as a message of `size` bytes.
    void say(const EncodedMessage& message, std::uint64_t size) {
        Slot slot;
        stream::fill(slot, message, ++said_);
        slot.size = size;
        const ibv_sge slice{reinterpret_cast<std::uint64_t>(&slot), sizeof slot, 0};
        const auto to = victim_ + victim_ring_ + (said_ - 1) * sizeof(Slot);
        ASSERT_EQ(link_.queue_pair().post(verbs::Write{
                      .from = {&slice, 1}, .to = to, .flags = verbs::SendFlags::inlined}),
                  0);
    }
    void say(const EncodedMessage& message) { say(message, message.size); }

  private:
    static constexpr std::uint64_t ring_bytes = 4096;
    static constexpr std::uint32_t slots = 64;

    connect::Link link_;
    verbs::RegisteredBuffer memory_;
    verbs::RemoteAddress victim_;
    std::uint64_t victim_ring_ = 0;
    std::uint64_t said_ = 0;
};

/// What a victim makes of a lie: every operation ends, and it can say why.
template <class Lie>
void lie_to_a_victim(Lie&& lie, const std::string& cause) {
    const connect::Address address = unused_address();
    Listener listener = Listener::listen(address);
    std::optional<Liar> liar;
    std::thread other{[&] { liar.emplace(address); }};
    Socket victim = listener.accept(patience());
    other.join();
    Buffer memory{1 << 16};
    ASSERT_EQ(victim.receive(memory.slice(0, 1 << 15), 1), Status::ok);
    lie(*liar);
    // What goes by an advertisement of the liar fails there, and what has been told to it does not.
    const Status sent = victim.send(memory.slice(1 << 15, 1 << 15), 2);
    EXPECT_TRUE(sent == Status::ok || sent == Status::peer_lost);
    Completion done;
    bool receive_ended = false;
    while (!receive_ended) {
        ASSERT_EQ(victim.wait(done, patience()), Status::ok);
        receive_ended = done.kind == Completion::Kind::receive;
    }
    EXPECT_EQ(done.status, Status::peer_lost);
    EXPECT_THAT(victim.failure(), testing::HasSubstr(cause));
    EXPECT_EQ(victim.receive(memory.slice(), 3), Status::peer_lost);
    EXPECT_EQ(victim.close(Deadline::after(20ms)), Status::peer_lost);
}

TEST(StreamLiar, WhoWritesNoMessageLosesTheConnection) {
    EncodedMessage garbage = encode(CreditMessage{});
    garbage.bytes.fill(std::byte{0xa5});
    lie_to_a_victim([&](Liar& liar) { liar.say(garbage, 48); }, "malformed");
}

TEST(StreamLiar, WhoWritesAMessageOfAnImpossibleSizeLosesTheConnection) {
    lie_to_a_victim([](Liar& liar) { liar.say(encode(CreditMessage{}), ~std::uint64_t{0}); },
                    "malformed");
}

TEST(StreamLiar, WhoAcknowledgesWhatWasNeverSentLosesTheConnection) {
    AcknowledgementMessage message;
    message.taken = 4096;
    lie_to_a_victim([&](Liar& liar) { liar.say(encode(message)); }, "acknowledged_unsent");
}

TEST(StreamLiar, WhoTellsOfATransferBeyondABufferLosesTheConnection) {
    TransferMessage message;
    message.header.kind = MessageKind::direct;
    message.length = 1 << 20;
    lie_to_a_victim([&](Liar& liar) { liar.say(encode(message)); }, "direct_overrun");
}

TEST(StreamLiar, WhoAdvertisesMemoryThatItDoesNotOwnLosesTheConnection) {
    AdvertMessage message;
    message.address = 0x1000;
    message.length = 1 << 16;
    message.key = 0x1234567;
    lie_to_a_victim([&](Liar& liar) { liar.say(encode(message)); }, "remote access error");
}

}  // namespace
}  // namespace millrace::stream
