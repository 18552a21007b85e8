// Unreliable connections and datagrams: which packets leave, what becomes of messages that lose
// one, and random schedules of losses: what is received is whole, was sent, and in its order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "ends.hpp"
#include "roce/unreliable.hpp"
#include "support/schedules.hpp"

namespace millrace::roce {
namespace {

using testing::ElementsAre;

struct UnreliableEnds {
    explicit UnreliableEnds(std::size_t memory = 16384) : receives{memory} {
        UnreliableAttributes attributes;
        attributes.destination = 2;
        attributes.first_psn = 0xfffffe;
        attributes.mtu = 256;
        sender.start(attributes);
        receiver.start(attributes);
    }
    void post(Operation operation, Bytes bytes, std::uint64_t offset = 0,
              std::uint32_t immediate = 0) {
        Request request{};
        request.operation = operation;
        request.slot = static_cast<std::uint32_t>(sends.all.size());
        request.length = static_cast<std::uint32_t>(bytes.size());
        request.remote_key = region_key;
        request.remote_address = region_address + offset;
        request.immediate = immediate;
        Sends::Sent sent;
        sent.bytes = std::move(bytes);
        sends.all.push_back(std::move(sent));
        sender.post(request);
    }
    Bytes take() {
        Bytes bytes = wire.said.front();
        wire.said.pop_front();
        return bytes;
    }
    void arrive(const Bytes& bytes) { receiver.arrived(read_packet(bytes)); }
    void arrive_all() {
        while (!wire.said.empty()) arrive(take());
    }

    Wire wire;
    Sends sends;
    Receives receives;
    UnreliableSender sender{sends, most_requests};
    UnreliableReceiver receiver{receives};
};

TEST(RoceUnreliable, CarriesMessagesThatAreCompleteWhenTheyLeave) {
    UnreliableEnds ends;
    ends.receives.posted = {1000, 1000, 1000};
    ends.post(Operation::write, pattern(700), 100);
    ends.post(Operation::send, pattern(300));
    ends.post(Operation::send_immediate, pattern(8), 0, 77);
    ends.post(Operation::local, {});
    ends.post(Operation::write_immediate, {}, 0, 78);
    EXPECT_TRUE(ends.sender.send(ends.wire));
    EXPECT_EQ(ends.sends.completed, 5U);
    EXPECT_TRUE(ends.sender.is_idle());
    std::vector<Kind> kinds;
    for (const Bytes& bytes : ends.wire.said) {
        EXPECT_EQ(read_packet(bytes).service, Service::uc);
        EXPECT_FALSE(read_packet(bytes).asks_acknowledge);
        kinds.push_back(read_packet(bytes).kind);
    }
    EXPECT_THAT(kinds, ElementsAre(Kind::write_first, Kind::write_middle, Kind::write_last,
                                   Kind::send_first, Kind::send_last, Kind::send_only_immediate,
                                   Kind::write_only_immediate));
    ends.arrive_all();
    ASSERT_EQ(ends.receives.received.size(), 3U);
    EXPECT_EQ(ends.receives.received[0].bytes, pattern(300));
    EXPECT_EQ(ends.receives.received[1].arrival.immediate, 77U);
    EXPECT_EQ(ends.receives.received[2].arrival.immediate, 78U);
    const Bytes text = pattern(700);
    EXPECT_TRUE(std::equal(text.begin(), text.end(), ends.receives.memory.begin() + 100));
    EXPECT_EQ(ends.receiver.dropped(), 0U);
}

TEST(RoceUnreliable, DropsTheRestOfAMessageThatLostAPacket) {
    UnreliableEnds ends;
    ends.receives.posted = {1000};
    ends.post(Operation::send, pattern(1000));
    ends.post(Operation::send, pattern(600, 2));
    EXPECT_TRUE(ends.sender.send(ends.wire));
    ends.arrive(ends.take());
    (void)ends.take();
    ends.arrive_all();
    ASSERT_EQ(ends.receives.received.size(), 1U);
    EXPECT_EQ(ends.receives.received[0].bytes, pattern(600, 2)) << "into the receive of the first";
    EXPECT_EQ(ends.receives.abandoned, 1U);
    EXPECT_EQ(ends.receiver.dropped(), 2U);
}

TEST(RoceUnreliable, KeepsAClaimedReceiveForTheNextMessageThatTakesOne) {
    UnreliableEnds ends;
    ends.receives.posted = {1000};
    ends.post(Operation::send, pattern(300));
    ends.post(Operation::write, pattern(8));
    ends.post(Operation::send, pattern(5));
    EXPECT_TRUE(ends.sender.send(ends.wire));
    ends.arrive(ends.take());
    (void)ends.take();
    ends.arrive_all();
    EXPECT_EQ(ends.receives.finished, 2U);
    ASSERT_EQ(ends.receives.received.size(), 1U);
    EXPECT_EQ(ends.receives.received[0].bytes, pattern(5));
}

TEST(RoceUnreliable, DropsWhatFindsNoReceiveOrNoMemory) {
    UnreliableEnds ends;
    ends.post(Operation::send, pattern(600));
    ends.post(Operation::write, pattern(600), 16300);
    ends.post(Operation::write, pattern(8), 0);
    EXPECT_TRUE(ends.sender.send(ends.wire));
    const Bytes memory = ends.receives.memory;
    ends.arrive_all();
    EXPECT_EQ(ends.receives.finished, 1U);
    EXPECT_EQ(ends.receiver.dropped(), 6U);
    EXPECT_TRUE(std::equal(memory.begin() + 8, memory.end(), ends.receives.memory.begin() + 8));
}

TEST(RoceUnreliable, PassesOverAnswersAndStrangePackets) {
    UnreliableEnds ends;
    ends.receives.posted = {1000};
    for (const Kind kind : {Kind::acknowledge, Kind::read_request, Kind::send_middle}) {
        Packet packet{};
        packet.service = Service::uc;
        packet.kind = kind;
        packet.psn = 0xfffffe;
        ends.receiver.arrived(packet);
    }
    EXPECT_EQ(ends.receives.finished, 0U);
    ends.post(Operation::send, pattern(8));
    EXPECT_TRUE(ends.sender.send(ends.wire));
    ends.arrive_all();
    EXPECT_EQ(ends.receives.received.size(), 1U);
}

TEST(RoceUnreliable, GoesOnWhereTheOutletWasFull) {
    UnreliableEnds ends;
    ends.receives.posted = {1000};
    ends.post(Operation::send, pattern(1000));
    ends.wire.room = 2;
    EXPECT_FALSE(ends.sender.send(ends.wire));
    EXPECT_EQ(ends.sends.completed, 0U);
    EXPECT_FALSE(ends.sender.is_drained());
    ends.wire.room = -1;
    EXPECT_TRUE(ends.sender.send(ends.wire));
    EXPECT_EQ(ends.sends.completed, 1U);
    EXPECT_TRUE(ends.sender.is_drained());
    ends.arrive_all();
    ASSERT_EQ(ends.receives.received.size(), 1U);
    EXPECT_EQ(ends.receives.received[0].bytes, pattern(1000));
}

TEST(RoceUnreliable, FailsWhereItsMemoryIsGone) {
    UnreliableEnds ends;
    ends.post(Operation::send, pattern(8));
    ends.post(Operation::send, pattern(8));
    ends.post(Operation::send, pattern(8));
    ends.sends.all[1].gathers = Status::local_protection;
    EXPECT_TRUE(ends.sender.send(ends.wire));
    EXPECT_EQ(ends.sends.completed, 1U);
    EXPECT_EQ(ends.sends.failed, Status::local_protection);
    EXPECT_EQ(ends.wire.said.size(), 1U);
    EXPECT_EQ(ends.sender.abort(), 1U);
}

TEST(RoceUnreliable, BeginsNothingWhileItIsHeld) {
    UnreliableEnds ends;
    ends.post(Operation::send, pattern(600));
    ends.post(Operation::send, pattern(8));
    ends.wire.room = 1;
    EXPECT_FALSE(ends.sender.send(ends.wire));
    ends.sender.hold(true);
    ends.wire.room = -1;
    EXPECT_TRUE(ends.sender.send(ends.wire));
    EXPECT_EQ(ends.sends.completed, 1U) << "what had begun ends";
    EXPECT_TRUE(ends.sender.is_drained());
    EXPECT_FALSE(ends.sender.is_idle());
    ends.sender.hold(false);
    EXPECT_TRUE(ends.sender.send(ends.wire));
    EXPECT_EQ(ends.sends.completed, 2U);
}

TEST(RoceDatagram, SaysWhoSentItAndWithWhichKey) {
    Wire wire;
    const Datagram datagram{.destination = 0x123456,
                            .source = 0x654321,
                            .q_key = 0x11111111,
                            .psn = 0x1000005,
                            .partition_key = default_partition_key,
                            .solicited = true,
                            .has_immediate = true,
                            .immediate = 0xa1b2c3d4,
                            .length = 5};
    std::uint8_t* payload = begin_datagram(datagram, wire);
    ASSERT_NE(payload, nullptr);
    const Bytes text = pattern(5);
    std::copy(text.begin(), text.end(), payload);
    wire.commit();
    const Packet packet = read_packet(wire.said.front());
    EXPECT_EQ(packet.service, Service::ud);
    EXPECT_EQ(packet.kind, Kind::send_only_immediate);
    EXPECT_EQ(packet.destination, 0x123456U);
    EXPECT_EQ(packet.source, 0x654321U);
    EXPECT_EQ(packet.q_key, 0x11111111U);
    EXPECT_EQ(packet.psn, 5U);
    EXPECT_TRUE(packet.solicited);
    EXPECT_EQ(packet.immediate, 0xa1b2c3d4U);
    EXPECT_EQ((Bytes{packet.payload.begin(), packet.payload.end()}), text);
    EXPECT_EQ(wire.said.front().size(), 12U + 8 + 4 + 8);
    wire.room = 0;
    EXPECT_EQ(begin_datagram(datagram, wire), nullptr);
}

std::string play_one(std::uint64_t seed) {
    std::mt19937_64 random{seed};
    const auto below = [&](std::uint64_t count) { return random() % count; };
    UnreliableEnds ends;
    const auto messages = static_cast<std::uint32_t>(1 + below(40));
    std::deque<Bytes> on_way;
    for (std::uint32_t number = 0; number < messages; ++number) {
        if (below(4) != 0) ends.receives.posted.push_back(1500);
        ends.post(below(2) == 0 ? Operation::send_immediate : Operation::write_immediate,
                  pattern(below(4) == 0 ? below(2000) : below(300), number), 0, number);
        ends.wire.room = static_cast<int>(below(6));
        (void)ends.sender.send(ends.wire);
        ends.wire.room = -1;
        if (below(2) == 0) (void)ends.sender.send(ends.wire);
        while (!ends.wire.said.empty()) {
            const Bytes bytes = ends.take();
            if (below(8) == 0) continue;
            on_way.push_back(bytes);
            if (below(16) == 0) on_way.push_back(bytes);
            if (below(8) == 0 && on_way.size() > 1) std::swap(on_way.back(), on_way.front());
        }
        while (below(4) != 0 && !on_way.empty()) {
            ends.arrive(on_way.front());
            on_way.pop_front();
        }
    }
    (void)ends.sender.send(ends.wire);
    ends.arrive_all();
    if (ends.sends.completed != messages) return "a message did not leave";
    for (const auto& got : ends.receives.received) {
        const std::uint32_t number = got.arrival.immediate;
        if (number >= messages) return "it was never sent";
        const Bytes& sent = ends.sends.all[number].bytes;
        if (got.arrival.length != sent.size()) return "a part was received";
        if (!got.arrival.is_write && got.bytes != sent) return "it is of several messages";
    }
    return testing::Test::HasFailure() ? "see above" : "";
}

TEST(RoceUnreliable, ReceivesWholeMessagesAlone) {
    test::play_schedules(5'000, 1'000'000, play_one);
}

}  // namespace
}  // namespace millrace::roce
