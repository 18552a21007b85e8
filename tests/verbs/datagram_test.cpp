// Datagrams over any device: destinations, headers, keys, groups.
#include "millrace/verbs/datagram.hpp"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "loopback.hpp"
#include "millrace/base/error.hpp"

namespace millrace::verbs::test {
namespace {

constexpr std::uint32_t key = 0x1234;
constexpr std::size_t room = 512;

/// A datagram queue pair with its memory: receives from `into` on, messages to be sent at `from`.
struct Station {
    CompletionQueue sends;
    CompletionQueue receives;
    DatagramQueuePair queue_pair;
    RegisteredBuffer memory;
    static constexpr std::size_t from = 4096;

    int receive(std::uint64_t id) {
        const ibv_sge into = memory.slice(id * room, room);
        return queue_pair.post(Receive{.id = id, .into = {&into, 1}});
    }
    [[nodiscard]] Datagram arrived(const Completion& completion) const {
        return datagram_in(completion, {memory.data() + completion.id() * room, room});
    }
};

class Datagrams : public testing::Test {
  protected:
    Datagrams() {
        make(a_);
        make(b_);
    }
    void make(Station& station) {
        station.sends = context_.create_completion_queue(32);
        station.receives = context_.create_completion_queue(32);
        station.queue_pair = domain_.create_datagram_queue_pair(
            {.send_queue = &station.sends, .receive_queue = &station.receives});
        station.queue_pair.start(port_, key);
        station.memory = domain_.allocate(8192, Access::local_write);
        for (std::size_t i = 0; i < 4096; ++i) {
            station.memory.data()[Station::from + i] = static_cast<std::byte>(i * 7 + 1);
        }
    }
    /// Of this port: with its GID where that is how it is reached, or if `global`.
    AddressHandle way(bool global = false) {
        QueuePairAddress peer{.lid = context_.port(port_).lid};
        PathOptions path{.port = port_, .gid_index = gid_index_};
        if (global && path.gid_index < 0) path.gid_index = 0;
        if (path.gid_index >= 0) {
            peer.has_gid = true;
            peer.gid = context_.gid(port_, path.gid_index);
        }
        return domain_.create_address_handle(peer, path);
    }
    static DatagramDestination to(const AddressHandle& way, const Station& station) {
        return {.way = &way, .queue_pair = station.queue_pair.number(), .key = key};
    }
    /// Sends `bytes` of what every station's memory holds.
    static void send(Station& from, const DatagramDestination& to, std::size_t bytes) {
        const ibv_sge slice = from.memory.slice(Station::from, bytes);
        ASSERT_EQ(from.queue_pair.post(
                      SendTo{.id = 5, .from = {&slice, 1}, .to = to, .flags = SendFlags::signaled}),
                  0);
        const Completion sent = next(from.sends);
        ASSERT_TRUE(sent.ok()) << sent.explain();
        EXPECT_EQ(sent.id(), 5U);
    }
    static bool same(const Datagram& datagram, const Station& sender, std::size_t bytes) {
        return datagram.message.size() == bytes &&
               std::memcmp(datagram.message.data(), sender.memory.data() + Station::from, bytes) ==
                   0;
    }

    Context context_ = find_device().open();
    std::uint8_t port_ = context_.usable_port();
    int gid_index_ = context_.choose_gid_index(port_);
    ProtectionDomain domain_ = context_.allocate_protection_domain();
    Station a_;
    Station b_;
};

TEST_F(Datagrams, CarryAMessageBehindRoomForAHeader) {
    const AddressHandle handle = way();
    ASSERT_EQ(b_.receive(3), 0);
    send(a_, to(handle, b_), 100);
    const Completion done = next(b_.receives);
    ASSERT_TRUE(done.ok()) << done.explain();
    EXPECT_TRUE(done.is_receive());
    EXPECT_EQ(done.id(), 3U);
    EXPECT_EQ(done.bytes(), 100 + datagram_header_bytes);
    const Datagram datagram = b_.arrived(done);
    EXPECT_TRUE(same(datagram, a_, 100));
    EXPECT_EQ(datagram.from, a_.queue_pair.number());
    EXPECT_EQ(datagram.header != nullptr, gid_index_ >= 0);
}

TEST_F(Datagrams, ShowTheHeaderOfAGlobalRoute) {
    const AddressHandle handle = way(true);
    ASSERT_EQ(b_.receive(1), 0);
    send(a_, to(handle, b_), 8);
    const Completion done = next(b_.receives);
    ASSERT_TRUE(done.ok()) << done.explain();
    const Datagram datagram = b_.arrived(done);
    EXPECT_TRUE(same(datagram, a_, 8));
    ASSERT_NE(datagram.header, nullptr);
    EXPECT_EQ(static_cast<const void*>(datagram.header), b_.memory.data() + room);
}

TEST_F(Datagrams, AreAnsweredToTheQueuePairThatTheyCameFrom) {
    const AddressHandle handle = way();
    ASSERT_EQ(a_.receive(0), 0);
    ASSERT_EQ(b_.receive(0), 0);
    send(a_, to(handle, b_), 16);
    const Completion asked = next(b_.receives);
    ASSERT_TRUE(asked.ok()) << asked.explain();
    send(b_, {.way = &handle, .queue_pair = b_.arrived(asked).from, .key = key}, 24);
    const Completion answered = next(a_.receives);
    ASSERT_TRUE(answered.ok()) << answered.explain();
    EXPECT_TRUE(same(a_.arrived(answered), b_, 24));
    EXPECT_EQ(a_.arrived(answered).from, b_.queue_pair.number());
}

TEST_F(Datagrams, CarryAnImmediate) {
    const AddressHandle handle = way();
    ASSERT_EQ(b_.receive(2), 0);
    const ibv_sge slice = a_.memory.slice(Station::from, 8);
    ASSERT_EQ(a_.queue_pair.post(SendToWithImmediate{.from = {&slice, 1},
                                                     .to = to(handle, b_),
                                                     .immediate = 0x01020304,
                                                     .flags = SendFlags::signaled}),
              0);
    ASSERT_TRUE(next(a_.sends).ok());
    const Completion done = next(b_.receives);
    ASSERT_TRUE(done.ok()) << done.explain();
    ASSERT_TRUE(done.has_immediate());
    EXPECT_EQ(done.immediate(), 0x01020304U);
}

TEST_F(Datagrams, WithAnotherKeyAreDropped) {
    const AddressHandle handle = way();
    ASSERT_EQ(b_.receive(0), 0);
    DatagramDestination wrong = to(handle, b_);
    wrong.key = key + 1;
    send(a_, wrong, 8);
    send(a_, to(handle, b_), 32);
    const Completion done = next(b_.receives);
    ASSERT_TRUE(done.ok()) << done.explain();
    EXPECT_TRUE(same(b_.arrived(done), a_, 32)) << "the first one took the receive";
}

TEST_F(Datagrams, OfABatchGoToAsManyPeers) {
    const AddressHandle handle = way();
    ASSERT_EQ(a_.receive(0), 0);
    ASSERT_EQ(b_.receive(0), 0);
    const std::array<ibv_sge, 2> slices{a_.memory.slice(Station::from, 8),
                                        a_.memory.slice(Station::from, 48)};
    Batch<2> batch;
    ASSERT_TRUE(batch.add(SendTo{.from = {&slices[0], 1}, .to = to(handle, a_)}));
    ASSERT_TRUE(batch.add(SendTo{
        .id = 9, .from = {&slices[1], 1}, .to = to(handle, b_), .flags = SendFlags::signaled}));
    std::size_t posted = 0;
    ASSERT_EQ(a_.queue_pair.post(batch, &posted), 0);
    EXPECT_EQ(posted, 2U);
    EXPECT_EQ(next(a_.sends).id(), 9U);
    const Completion own = next(a_.receives);
    const Completion others = next(b_.receives);
    ASSERT_TRUE(own.ok() && others.ok());
    EXPECT_TRUE(same(a_.arrived(own), a_, 8));
    EXPECT_TRUE(same(b_.arrived(others), a_, 48));
}

TEST_F(Datagrams, ToAGroupReachItsMembers) {
    // Where the kernel's device joins groups, members on the sender's own port hear nothing of it.
    if (!context_.is_soft()) GTEST_SKIP() << "this device's groups need a network";
    ibv_gid group{};
    group.raw[0] = 0xff;
    group.raw[1] = 0x0e;
    const pid_t process = getpid();  // this suite runs in several modes at once
    std::memcpy(&group.raw[8], &process, sizeof process);
    group.raw[15] = 0x42;
    GroupMembership membership = b_.queue_pair.join(group);
    EXPECT_EQ(std::memcmp(&membership.group(), &group, sizeof group), 0);
    const AddressHandle handle = domain_.create_address_handle(
        {.lid = 0xc001, .has_gid = true, .gid = group}, {.port = port_, .gid_index = 0});
    const DatagramDestination everybody{
        .way = &handle, .queue_pair = multicast_queue_pair, .key = key};
    ASSERT_EQ(b_.receive(1), 0);
    send(a_, everybody, 64);
    const Completion done = next(b_.receives);
    ASSERT_TRUE(done.ok()) << done.explain();
    EXPECT_TRUE(same(b_.arrived(done), a_, 64));

    // It may be handed on, and ends with who has it then.
    {
        const GroupMembership last{std::move(membership)};
        EXPECT_TRUE(last);
        EXPECT_FALSE(membership);  // NOLINT(bugprone-use-after-move): that is what is asked
        ASSERT_EQ(b_.receive(3), 0);
        send(a_, everybody, 64);
        const Completion heard = next(b_.receives);
        ASSERT_TRUE(heard.ok()) << heard.explain();
        EXPECT_TRUE(same(b_.arrived(heard), a_, 64));
    }
    ASSERT_EQ(b_.receive(2), 0);
    send(a_, everybody, 64);
    const AddressHandle direct = way();
    send(a_, to(direct, b_), 8);
    const Completion later = next(b_.receives);
    ASSERT_TRUE(later.ok()) << later.explain();
    EXPECT_TRUE(same(b_.arrived(later), a_, 8)) << "it heard the group after it had left";
    GroupMembership one = b_.queue_pair.join(group);
    GroupMembership other = b_.queue_pair.join(group);
    one.leave();
    one.leave();  // it is none any more, which is no mistake
    try {
        other.leave();
        FAIL() << "it is no member";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("leave a multicast group"));
        EXPECT_THAT(error.what(), testing::HasSubstr("ff0e:"));
    }
}

TEST_F(Datagrams, AreFlushedInError) {
    ASSERT_EQ(b_.receive(4), 0);
    b_.queue_pair.fail();
    EXPECT_EQ(b_.queue_pair.state(), IBV_QPS_ERR);
    const Completion flushed = next(b_.receives);
    EXPECT_EQ(flushed.id(), 4U);
    EXPECT_EQ(flushed.status(), IBV_WC_WR_FLUSH_ERR);
}

TEST_F(Datagrams, QueuePairIsStartedOnce) {
    try {
        a_.queue_pair.start(port_, key);
        FAIL() << "it was started before";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("RESET to INIT"));
        EXPECT_THAT(error.what(), testing::HasSubstr("Q_Key 0x1234"));
    }
}

TEST(DatagramIn, BelievesNoLengthBeyondTheMemory) {
    std::array<std::byte, 64> memory{};
    Completion completion;
    completion.raw.opcode = IBV_WC_RECV;
    completion.raw.wc_flags = IBV_WC_GRH;
    completion.raw.byte_len = 1000;
    EXPECT_EQ(datagram_in(completion, memory).message.size(), 24U);
    completion.raw.byte_len = 40;
    EXPECT_EQ(datagram_in(completion, memory).message.size(), 0U);
    EXPECT_NE(datagram_in(completion, memory).header, nullptr);
    completion.raw.byte_len = 39;  // of a device that breaks the rule
    EXPECT_EQ(datagram_in(completion, memory).message.size(), 0U);
    EXPECT_EQ(datagram_in(completion, memory).header, nullptr);
}

}  // namespace
}  // namespace millrace::verbs::test
