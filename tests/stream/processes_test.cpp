// Sockets between two processes: everything that one process does for two is not there to help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace/stream/exs.h"
#include "pair.hpp"
#include "remote.hpp"
#include "slot.hpp"
#include "support/child_process.hpp"
#include "wire.hpp"

namespace millrace::stream {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::say;
using namespace std::chrono_literals;

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

void expect_buffers_back(Remote remote) {
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

TEST_P(StreamBetweenProcesses, AKilledPeerGivesEveryBufferBack) {
    expect_buffers_back(Remote::start("stream_idle", GetParam()));
}

TEST_P(StreamBetweenProcesses, AKilledPeerOfMessagesGivesEveryBufferBack) {
    expect_buffers_back(Remote::start("stream_idle", GetParam(), Type::seqpacket));
}

// Forks behind its accept. The child of that lives on, with a copy of every descriptor, and touches
// nothing. Says its number, and sends back what comes.
MILLRACE_CHILD(stream_forks) {
    Socket socket = accept_one(arguments);
    const pid_t forked = fork();
    if (forked == 0) {
        for (;;) pause();
    }
    say(std::to_string(forked));
    Bytes bytes(10'000);
    for (;;) {
        std::size_t size = 0;
        const Status status = socket.read_some(bytes, size, patience());
        if (status == Status::closed) break;
        if (status != Status::ok) return 2;
        if (socket.write_all(std::span{bytes}.first(size), patience()) != Status::ok) return 3;
    }
    return socket.close(patience()) == Status::ok ? 0 : 4;
}

/// The child of a child: ended with the test.
class Forked {
  public:
    explicit Forked(ChildProcess& child) {
        const auto line = child.read_line();
        if (line) pid_ = std::stoi(*line);
    }
    Forked(const Forked&) = delete;
    Forked& operator=(const Forked&) = delete;
    ~Forked() {
        if (pid_ > 0) kill(pid_, SIGKILL);
    }
    [[nodiscard]] bool is_there() const { return pid_ > 0 && kill(pid_, 0) == 0; }

  private:
    pid_t pid_ = 0;
};

void expect_echo(Socket& socket, std::uint64_t seed) {
    const Bytes bytes = pattern(5'000, seed);
    ASSERT_EQ(socket.write_all(bytes, patience()), Status::ok) << socket.failure();
    Bytes back;
    while (back.size() < bytes.size()) {
        Bytes part(bytes.size());
        std::size_t size = 0;
        ASSERT_EQ(socket.read_some(part, size, patience()), Status::ok) << socket.failure();
        back.insert(back.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(size));
    }
    EXPECT_EQ(back, bytes);
}

TEST_P(StreamBetweenProcesses, AForkBehindTheAcceptDisturbsNobody) {
    Remote remote = Remote::start("stream_forks", GetParam());
    const Forked forked{remote.child};
    for (std::uint64_t seed = 1; seed < 4; ++seed) expect_echo(remote.socket, seed);
    remote.socket.shut_down();
    Bytes rest(1);
    std::size_t size = 0;
    EXPECT_EQ(remote.socket.read_some(rest, size, patience()), Status::closed);
    EXPECT_EQ(remote.socket.close(patience()), Status::ok) << remote.socket.failure();
    EXPECT_EQ(remote.child.wait(), (test::Exit{test::Exit::How::exited, 0}));
    EXPECT_TRUE(forked.is_there());
}

TEST_P(StreamBetweenProcesses, AKilledPeerIsLostThoughAChildOfItLivesOn) {
    Remote remote = Remote::start("stream_forks", GetParam());
    const Forked forked{remote.child};
    expect_echo(remote.socket, 7);
    remote.child.kill();
    Bytes rest(1);
    std::size_t size = 0;
    EXPECT_EQ(remote.socket.read_some(rest, size, patience()), Status::peer_lost);
    EXPECT_NE(remote.socket.failure(), "");
    EXPECT_TRUE(forked.is_there());
}

// Sends messages 0, 1, 2, … of 8 to 40,007 bytes, each full of its number, until it is killed.
MILLRACE_CHILD(stream_chatter) {
    Socket socket = accept_one(arguments);
    Buffer memory{4 * 50'000};
    std::uint64_t sent = 0;
    std::uint64_t ended = 0;
    for (Completion done;;) {
        while (sent - ended < 4) {
            const Slice slice = memory.slice(sent % 4 * 50'000, 8 + sent * 7919 % 40'000);
            fill(slice.bytes(), 0, sent);
            if (socket.send(slice, sent) != Status::ok) return 1;
            ++sent;
        }
        if (socket.wait(done, patience()) != Status::ok) return 2;
        if (done.status != Status::ok) return 3;
        ++ended;
    }
}

TEST_P(StreamBetweenProcesses, WhatAKilledPeerHasSentIsWholeMessages) {
    for (const std::uint64_t last : {1U, 20U, 57U}) {
        Remote remote = Remote::start("stream_chatter", GetParam(), Type::seqpacket);
        Buffer memory{2 * 50'000};
        std::uint64_t begun = 0;
        const auto receive = [&] {
            const Status status =
                remote.socket.receive(memory.slice(begun % 2 * 50'000, 50'000), begun);
            ++begun;
            return status;
        };
        ASSERT_EQ(receive(), Status::ok);
        for (std::uint64_t number = 0;; ++number) {
            if (number == last) remote.child.kill();
            const Status asked = receive();
            Completion done;
            const Status status = remote.socket.wait(done, patience());
            // The last messages may have come together with the news of the peer's end.
            if (asked == Status::peer_lost && status == Status::empty) break;
            ASSERT_EQ(status, Status::ok);
            ASSERT_EQ(done.id, number);
            if (done.status == Status::peer_lost) break;
            ASSERT_EQ(done.status, Status::ok) << remote.socket.failure();
            ASSERT_EQ(done.bytes, 8 + number * 7919 % 40'000);
            ASSERT_TRUE(
                is_right(memory.bytes().subspan(number % 2 * 50'000, done.bytes), 0, number));
        }
        EXPECT_NE(remote.socket.failure(), "");
    }
}

TEST_P(StreamBetweenProcesses, AViewOutlivesAKilledPeer) {
    Remote remote = Remote::start("stream_chatter", GetParam(), Type::seqpacket);
    View view;
    ASSERT_EQ(remote.socket.read_zero_copy(view, patience()), Status::ok);
    remote.child.kill();
    Bytes into(100);
    std::size_t size = 0;
    EXPECT_EQ(remote.socket.read_some(into, size, patience()), Status::full) << "while it is kept";
    EXPECT_TRUE(is_right(view.bytes, 0, 0));
    std::uint64_t number = 0;
    std::uint64_t place = 0;
    Status status = Status::ok;
    while (status == Status::ok) {
        place += view.bytes.size();
        if (view.ends_message) {
            ASSERT_EQ(place, 8 + number * 7919 % 40'000);
            ++number;
            place = 0;
        }
        ASSERT_EQ(remote.socket.release(view.bytes.size()), Status::ok);
        status = remote.socket.read_zero_copy(view, patience());
        if (status == Status::ok) {
            ASSERT_TRUE(is_right(view.bytes, place, number)) << number;
        }
    }
    EXPECT_EQ(status, Status::peer_lost);
}

// The same by the face for C.
MILLRACE_CHILD(exs_idle) {
    exs_qhandle_t queue = exs_qcreate(8);
    exs_shandle_t listener =
        exs_socket(arguments.at(0) == "messages" ? SOCK_SEQPACKET : SOCK_STREAM);
    if (exs_bind(listener, "127.0.0.1:0") != 0 || exs_listen(listener) != 0) return 1;
    say(exs_address(listener));
    exs_event_t event;
    if (exs_accept(listener, nullptr, queue) != 0) return 2;
    if (exs_qdequeue(queue, &event, 1, -1) != 1 || event.accepted == nullptr) return 3;
    std::vector<char> into(100'000);
    if (exs_recv(event.accepted, into.data(), into.size(), 0, nullptr, nullptr, queue) != 0)
        return 4;
    say("waiting");
    for (;;) (void)exs_qdequeue(queue, &event, 1, 100);
}

TEST(ExsBetweenProcesses, AKilledPeerEndsEveryOperation) {
    for (const bool messages : {false, true}) {
        ChildProcess child = ChildProcess::start("exs_idle", {messages ? "messages" : "bytes"});
        const auto address = child.read_line();
        ASSERT_TRUE(address.has_value());
        exs_qhandle_t queue = exs_qcreate(8);
        exs_shandle_t sock = exs_socket(messages ? SOCK_SEQPACKET : SOCK_STREAM);
        exs_event_t event{};
        ASSERT_EQ(exs_connect(sock, address->c_str(), 40'000, nullptr, queue), 0);
        ASSERT_EQ(exs_qdequeue(queue, &event, 1, 40'000), 1);
        ASSERT_EQ(event.error, 0) << exs_last_error();
        ASSERT_EQ(child.read_line(), "waiting");
        std::vector<char> memory(100'000);
        exs_mhandle_t registered = exs_mregister(memory.data(), memory.size());
        for (int i = 0; i < 3; ++i) {
            ASSERT_EQ(exs_recv(sock, memory.data(), memory.size(), 0, registered, nullptr, queue),
                      0);
        }
        child.kill();
        for (int i = 0; i < 3; ++i) {
            ASSERT_EQ(exs_qdequeue(queue, &event, 1, 40'000), 1);
            EXPECT_EQ(event.type, EXS_EVT_RECV);
            EXPECT_EQ(event.error, ECONNRESET);
        }
        EXPECT_EQ(exs_send(sock, "x", 1, 0, nullptr, nullptr, queue), -1);
        EXPECT_EQ(errno, ECONNRESET);
        EXPECT_EQ(exs_mderegister(registered), 0) << "nothing uses it";
        EXPECT_EQ(exs_close(sock, 100), -1);
        EXPECT_EQ(exs_qdelete(queue), 0) << exs_last_error();
    }
}

TEST(ExsBetweenProcesses, AConnectToAKilledPeerEnds) {
    // Who listens and never accepts, as its program does something else.
    ChildProcess child = ChildProcess::start("exs_deaf", {});
    const auto address = child.read_line();
    ASSERT_TRUE(address.has_value());
    exs_qhandle_t queue = exs_qcreate(8);
    exs_shandle_t sock = exs_socket(SOCK_STREAM);
    exs_event_t event{};
    ASSERT_EQ(exs_connect(sock, address->c_str(), -1, sock, queue), 0);
    EXPECT_EQ(exs_qdequeue(queue, &event, 1, 5), 0);
    child.kill();
    ASSERT_EQ(exs_qdequeue(queue, &event, 1, 40'000), 1);
    EXPECT_EQ(event.type, EXS_EVT_CONNECT);
    EXPECT_NE(event.error, 0);
    EXPECT_EQ(exs_close(sock, 0), 0);
    EXPECT_EQ(exs_qdelete(queue), 0);
}
MILLRACE_CHILD(exs_deaf) {
    exs_shandle_t listener = exs_socket(SOCK_STREAM);
    if (exs_bind(listener, "127.0.0.1:0") != 0 || exs_listen(listener) != 0) return 1;
    say(exs_address(listener));
    for (;;) pause();
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
    // Nothing is given up but the receive, if it was cancelled in time.
    Status status = Status::ok;
    while ((status = remote.socket.wait(done, Deadline::after(20ms))) == Status::ok) {
        EXPECT_EQ(done.kind, Completion::Kind::receive);
        EXPECT_NE(done.status, Status::ok);
    }
    EXPECT_EQ(status, Status::timed_out);
    EXPECT_EQ(remote.socket.send(memory.slice(0, 8), 3), Status::closed);
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
              address, {.service = "byte stream", .service_version = 4, .max_inline = 128},
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
        put(std::uint64_t{0});  // no far fences, nothing measured
        const std::vector<std::byte> theirs = link_.exchange(facts, patience());
        std::memcpy(&victim_.address, theirs.data(), 8);
        std::memcpy(&victim_ring_, theirs.data() + 8, 8);
        std::memcpy(&victim_.rkey, theirs.data() + 24, 4);
    }

    /// Into the next slot, as a message of `size` bytes: its mark by a WRITE of its own, as one
    /// WRITE's bytes may come in any order.
    void say(const EncodedMessage& message, std::uint64_t size) {
        Slot slot;
        stream::fill(slot, message, ++said_);
        slot.size = size;
        const auto to = victim_ + victim_ring_ + (said_ - 1) * sizeof(Slot);
        const auto write = [&](std::size_t from, std::size_t length) {
            const ibv_sge slice{reinterpret_cast<std::uint64_t>(&slot) + from,
                                static_cast<std::uint32_t>(length), 0};
            ASSERT_EQ(
                link_.queue_pair().post(verbs::Write{
                    .from = {&slice, 1}, .to = to + from, .flags = verbs::SendFlags::inlined}),
                0);
        };
        write(0, offsetof(Slot, mark));
        write(offsetof(Slot, mark), sizeof slot.mark);
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

/// Whatever is sent behind this is sent after the peer's first message has come.
void await_a_message(Socket& socket) {
    const Deadline deadline = patience();
    while (socket.stats().messages_received == 0) {
        ASSERT_FALSE(deadline.expired());
        Bytes into(1);
        std::size_t size = 0;
        // Behind a receive that is outstanding, so that nothing comes of it.
        ASSERT_NE(socket.read_some(into, size, Deadline::after(1ms)), Status::ok);
    }
}

/// What a victim makes of a lie: every operation ends, and it can say why.
template <class Lie>
void lie_to_a_victim(Lie&& lie, const std::string& cause) {
    const connect::Address address = unused_address();
    Listener listener = Listener::listen(address);
    std::optional<Liar> liar;
    std::thread other{[&] { liar.emplace(address); }};
    Socket victim = listener.accept(patience());
    other.join();
    constexpr std::size_t advertised = 128 << 10;
    Buffer memory{advertised + (1 << 15)};
    ASSERT_EQ(victim.receive(memory.slice(0, advertised), 1), Status::ok);
    lie(*liar);
    await_a_message(victim);
    // What goes by an advertisement of the liar fails there, and what has been told to it does not.
    const Status sent = victim.send(memory.slice(advertised, 1 << 15), 2);
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
    message.taken = 8192;  // more than all of its ring
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
