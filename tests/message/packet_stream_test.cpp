// What a packet stream does where one can say what it has to do: how many packets, when, and what
// it makes of a peer that lies. Random schedules are packet_schedule_test.cpp's.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "packet_ends.hpp"

namespace millrace::message {
namespace {

using namespace std::chrono_literals;
using base::Status;

constexpr unsigned client_end = PacketEnds::client;
constexpr unsigned server_end = PacketEnds::server;
constexpr auto never = PacketEnds::Time::max();

/// Everything that is on its way arrives, and both programs read what is there. The server answers
/// with `size` bytes each.
void exchange(PacketEnds& ends, std::size_t size) {
    for (int i = 0; i < 3; ++i) {
        ends.settle();
        ends.read_all(server_end);
        while (ends.failure().empty() && ends.answer(size, true)) {
        }
        ends.settle();
        ends.read_all(client_end);
    }
}
/// A call as a client and a server make it: what could go with an answer waits for it.
void call(PacketEnds& ends, std::size_t size) {
    ASSERT_TRUE(ends.send(client_end, size, true));
    for (const unsigned end : {client_end, server_end}) {
        (void)ends.post(end, 1000, false);
        while (ends.leave(end)) {
        }
        ends.complete(end);
        while (ends.arrive()) {
        }
        ends.read_all(1 - end);
        if (end == client_end) {
            ASSERT_TRUE(ends.answer(size, true));
        }
    }
}
std::uint64_t packets(PacketEnds& ends, unsigned end) {
    return ends.stream(end).counts().sent + ends.stream(end).counts().bare;
}

TEST(PacketStream, ACallCostsOnePacketEachWay) {
    for (const std::uint32_t room : {2U, 3U, 16U, most_packets}) {
        PacketEnds ends{{.rooms = {room, room}}};
        for (int i = 0; i < 1000; ++i) {
            ASSERT_NO_FATAL_FAILURE(call(ends, 1 + i % 200));
            // Nothing is left to be told by itself.
            ends.settle();
        }
        EXPECT_EQ(ends.failure(), "");
        EXPECT_EQ(ends.read(client_end), 1000U);
        for (const unsigned end : {client_end, server_end}) {
            EXPECT_EQ(packets(ends, end), 1000U) << "room " << room;
        }
    }
}

TEST(PacketStream, RequestsInAWindowCostFewPacketsMore) {
    PacketEnds ends{{.memories = {8192, 8192}}};
    for (int i = 0; i < 200; ++i) {
        for (int of = 0; of < 8; ++of) ASSERT_TRUE(ends.send(client_end, 64, true));
        exchange(ends, 64);
    }
    EXPECT_EQ(ends.failure(), "");
    EXPECT_EQ(ends.read(client_end), 1600U);
    for (const unsigned end : {client_end, server_end}) {
        EXPECT_EQ(ends.stream(end).counts().sent, 1600U);
        EXPECT_LE(ends.stream(end).counts().bare, 200U);
    }
}

TEST(PacketStream, AnIdleClientHasNoTimerAndNobodySendsAnything) {
    PacketEnds ends{{}};
    EXPECT_EQ(ends.stream(client_end).due(), never);
    ASSERT_NO_FATAL_FAILURE(call(ends, 100));
    ends.settle();
    EXPECT_EQ(ends.stream(client_end).due(), never);
    const std::uint64_t before = packets(ends, client_end) + packets(ends, server_end);
    for (int i = 0; i < 100; ++i) {
        ends.pass_time(1s);
        ends.settle();
    }
    EXPECT_EQ(packets(ends, client_end) + packets(ends, server_end), before);
}

TEST(PacketStream, TheServerHasNoTimerAndSendsAgainOnlyWhenItIsAsked) {
    PacketEnds ends{{}};
    ASSERT_TRUE(ends.send(client_end, 10));
    ends.settle();
    ends.read_all(server_end);
    ASSERT_TRUE(ends.answer(10));
    (void)ends.post(server_end);
    while (ends.leave(server_end)) {
    }
    ends.complete(server_end);
    (void)ends.take_late();  // the answer is lost
    EXPECT_EQ(ends.stream(server_end).due(), never);
    EXPECT_FALSE(ends.post(server_end));
    ASSERT_TRUE(ends.pass_time_until_due());
    ends.settle();
    ends.read_all(client_end);
    EXPECT_EQ(ends.read(client_end), 1U);
    EXPECT_EQ(ends.stream(client_end).counts().probes, 1U);
    EXPECT_EQ(ends.stream(server_end).counts().repeated, 1U);
    EXPECT_EQ(ends.stream(client_end).due(), never);
}

TEST(PacketStream, ASilentServerIsAskedRarerAndRarer) {
    PacketEnds ends{{.faults = {.loss = 100}}};
    ASSERT_TRUE(ends.send(client_end, 10));
    const auto begin = ends.now();
    ends.settle();
    auto last = ends.now();
    std::chrono::nanoseconds pause{0};
    while (ends.now() - begin < 10s) {
        ASSERT_TRUE(ends.pass_time_until_due());
        ends.settle();
        EXPECT_GE(ends.now() - last, pause);
        pause = ends.now() - last;
        last = ends.now();
        ASSERT_LE(pause, 100ms);
    }
    EXPECT_EQ(pause, 100ms);
    EXPECT_LE(packets(ends, client_end), 110U);
}

TEST(PacketStream, AServerThatTakesItsTimeIsAskedAndAnswersThatAllIsThere) {
    PacketEnds ends{{}};
    ASSERT_TRUE(ends.send(client_end, 10));
    ends.settle();
    ends.read_all(server_end);
    for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(ends.pass_time_until_due());
        ends.settle();
    }
    // The request once more at most; then it is known to be there.
    EXPECT_LE(ends.stream(client_end).counts().repeated, 1U);
    EXPECT_EQ(ends.stream(server_end).counts().bare, 20U);
    ASSERT_TRUE(ends.answer(10));
    ends.settle();
    ends.read_all(client_end);
    EXPECT_EQ(ends.read(client_end), 1U);
    EXPECT_EQ(ends.failure(), "");
}

TEST(PacketStream, AClientThatFindsNoRoomAsksAgainThoughItAwaitsNothing) {
    PacketEnds ends{{.rooms = {16, 1}}};
    ASSERT_TRUE(ends.send(client_end, 10, true));
    ends.settle();
    // The answer leaves before the request is passed, so it brings no room; what brings it is lost.
    ASSERT_TRUE(ends.read_step(server_end));
    ASSERT_EQ(ends.stream(server_end).send({}, {}), Status::ok);
    ends.settle();
    std::span<const std::byte> message;
    ASSERT_EQ(ends.stream(client_end).look(message), Status::ok);
    ends.stream(client_end).pass();
    ends.stream(client_end).expect(false, ends.now());
    ASSERT_TRUE(ends.read_step(server_end));
    (void)ends.post(server_end);
    while (ends.leave(server_end)) {
    }
    ends.complete(server_end);
    ASSERT_EQ(ends.take_late().size(), 1U);
    EXPECT_FALSE(ends.send(client_end, 10, true));
    ends.settle();
    ASSERT_TRUE(ends.pass_time_until_due());
    ends.settle();
    EXPECT_TRUE(ends.send(client_end, 10, true));
    EXPECT_EQ(ends.failure(), "");
}

TEST(PacketStream, RoomThatWasTakenIsToldOfWhenHalfIsFreeAgain) {
    PacketEnds ends{{.rooms = {16, 8}}};
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(ends.send(client_end, 10, true));
    EXPECT_FALSE(ends.send(client_end, 10, true));
    ends.settle();
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(ends.read_step(server_end) && ends.read_step(server_end));
        ends.settle();
        EXPECT_FALSE(ends.send(client_end, 10, true));
    }
    ASSERT_TRUE(ends.read_step(server_end) && ends.read_step(server_end));
    ends.settle();
    EXPECT_TRUE(ends.send(client_end, 10, true));
    EXPECT_EQ(ends.failure(), "");
}

TEST(PacketStream, LargeMessagesNeedNoTimeWhereNothingIsLost) {
    for (const std::size_t memory : {std::size_t{4096}, std::size_t{16384}, std::size_t{1} << 18}) {
        PacketEnds ends{{.memories = {memory, memory}, .packet_bytes = 4096}};
        for (const std::size_t size :
             {std::size_t{4064}, std::size_t{4065}, std::size_t{1} << 20}) {
            ASSERT_TRUE(ends.send(client_end, size));
            for (int i = 0; i < 2000 && ends.read(server_end) != ends.sent(client_end); ++i) {
                ends.settle();
                ends.read_all(server_end);
            }
            ASSERT_TRUE(ends.answer(size));
            for (int i = 0; i < 2000 && ends.read(client_end) != ends.sent(server_end); ++i) {
                ends.settle();
                ends.read_all(client_end);
            }
            ASSERT_EQ(ends.failure(), "");
            ASSERT_EQ(ends.read(client_end), ends.sent(client_end)) << memory << ", " << size;
        }
        EXPECT_EQ(ends.stream(client_end).counts().probes, 0U);
        EXPECT_EQ(ends.stream(client_end).counts().repeated, 0U);
        EXPECT_EQ(ends.stream(server_end).counts().repeated, 0U);
    }
}

TEST(PacketStream, LargeMessagesArriveWholeWhereOneOfTwentyPacketsIsLost) {
    PacketEnds ends{{.memories = {1 << 16, 1 << 16},
                     .packet_bytes = 4096,
                     .faults = {.loss = 5, .duplicate = 5, .reorder = 20},
                     .seed = 7}};
    for (const std::size_t size : {std::size_t{0}, std::size_t{1} << 20, std::size_t{100'000}}) {
        ASSERT_TRUE(ends.send(client_end, size));
        for (int i = 0; i < 100'000 && ends.read(client_end) != ends.sent(client_end); ++i) {
            const std::uint64_t before = ends.steps();
            ends.settle();
            ends.read_all(server_end);
            while (ends.answer(size)) {
            }
            ends.settle();
            ends.read_all(client_end);
            if (ends.steps() == before) (void)ends.pass_time_until_due();
        }
        ASSERT_EQ(ends.failure(), "");
        ASSERT_EQ(ends.read(client_end), ends.sent(client_end));
    }
    // Most losses are found by what came behind them: no timer ran out for them.
    const std::uint64_t repeated =
        ends.stream(client_end).counts().repeated + ends.stream(server_end).counts().repeated;
    EXPECT_LT(ends.stream(client_end).counts().probes, repeated / 2);
}

TEST(PacketStream, WhereMemoryIsShortTheNextPacketIsCopiedAndAnyOtherIsAsIfLost) {
    PacketEnds ends{{}};
    std::vector<std::vector<std::byte>> packets;
    std::vector<std::vector<std::byte>> messages;
    for (int i = 0; i < 3; ++i) {
        messages.emplace_back(10, static_cast<std::byte>(i));
        ASSERT_EQ(ends.stream(client_end).send(messages.back(), {}), Status::ok);
        std::span<const std::byte> packet;
        ASSERT_TRUE(ends.stream(client_end).next(packet, ends.now()));
        packets.emplace_back(packet.begin(), packet.end());
        ends.stream(client_end).posted(static_cast<std::uint64_t>(i) + 1, ends.now());
    }
    PacketStream& server = ends.stream(server_end);
    const auto comes = [&](std::size_t number, bool may_keep) {
        return server.receive(packets[number], static_cast<std::uint32_t>(number), ends.now(),
                              may_keep);
    };
    EXPECT_EQ(comes(1, false), PacketStream::Arrival::passed);
    EXPECT_EQ(server.counts().dropped, 1U);
    EXPECT_EQ(comes(1, true), PacketStream::Arrival::kept);
    // It fills the gap before what is kept already.
    EXPECT_EQ(comes(0, false), PacketStream::Arrival::passed);
    std::ranges::fill(packets[0], std::byte{0xee});
    EXPECT_EQ(server.got(), 2U);
    // There is one such place, and it is taken until that packet was read.
    EXPECT_EQ(comes(2, false), PacketStream::Arrival::passed);
    EXPECT_EQ(server.counts().dropped, 2U);
    EXPECT_EQ(server.got(), 2U);
    const auto reads = [&](std::size_t number) {
        std::span<const std::byte> message;
        ASSERT_EQ(server.look(message), Status::ok);
        EXPECT_TRUE(std::ranges::equal(message, messages[number]));
        server.pass();
    };
    ASSERT_NO_FATAL_FAILURE(reads(0));
    EXPECT_EQ(comes(2, false), PacketStream::Arrival::passed);
    EXPECT_EQ(server.counts().dropped, 2U);
    EXPECT_EQ(server.got(), 3U);
    ASSERT_NO_FATAL_FAILURE(reads(1));
    ASSERT_NO_FATAL_FAILURE(reads(2));
    // Only what lay in memory of the owner is given back to it.
    std::uint32_t slot = 0;
    ASSERT_TRUE(server.take_free(slot));
    EXPECT_EQ(slot, 1U);
    EXPECT_FALSE(server.take_free(slot));
}

TEST(PacketStream, GoesOnWithEachPieceOfAMessage) {
    PacketEnds ends{{}};
    ASSERT_TRUE(ends.send(client_end, 700));
    ends.post(client_end);
    std::uint64_t of_client = ends.stream(client_end).progress();
    std::uint64_t of_server = ends.stream(server_end).progress();
    const auto goes_on = [&](unsigned end, std::uint64_t& before) {
        return std::exchange(before, ends.stream(end).progress()) != before;
    };
    std::uint64_t pieces = 0;
    for (; ends.leave(client_end); ++pieces) {
        ASSERT_TRUE(ends.arrive());
        EXPECT_TRUE(goes_on(server_end, of_server));
    }
    EXPECT_GT(pieces, 1U);
    EXPECT_FALSE(goes_on(client_end, of_client));
    ends.settle();
    EXPECT_TRUE(goes_on(client_end, of_client)) << "the server has acknowledged some";
    EXPECT_FALSE(goes_on(server_end, of_server));
}

TEST(PacketStream, EverythingArrivesThoughMemoryIsShortForEver) {
    for (const std::uint32_t loss : {0U, 20U}) {
        PacketEnds ends{{.memories = {1 << 14, 1 << 14},
                         .faults = {.loss = loss, .reorder = 50},
                         .shortage = 100,
                         .seed = 3}};
        constexpr std::uint64_t requests = 40;
        for (std::uint64_t i = 0; i < requests; ++i) {
            ASSERT_TRUE(ends.send(client_end, i * 37));
        }
        for (int i = 0; i < 10'000 && ends.read(client_end) != requests; ++i) {
            ends.settle();
            ends.read_all(server_end);
            while (ends.answer(20)) {
            }
            ends.settle();
            ends.read_all(client_end);
            if (ends.on_the_way() == 0) (void)ends.pass_time_until_due();
        }
        ASSERT_EQ(ends.failure(), "");
        EXPECT_EQ(ends.read(client_end), requests);
    }
}

TEST(PacketStream, AMessageThatIsTooLargeIsPassedOverAndTheNextOneIsRead) {
    PacketEnds ends{{.longest = 1000}};
    std::vector<std::byte> message(5000, std::byte{7});
    message[0] = std::byte{9};
    ASSERT_EQ(ends.stream(client_end).send(message, {}), Status::ok);
    ASSERT_EQ(ends.stream(client_end).send(std::span{message}.first(1000), {}), Status::ok);
    Status status = Status::empty;
    std::span<const std::byte> found;
    for (int i = 0; i < 100 && status == Status::empty; ++i) {
        ends.settle();
        status = ends.stream(server_end).look(found);
    }
    ASSERT_EQ(status, Status::too_large);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found[0], std::byte{9});
    // Whoever looks once more, as a server that looks ahead, hears the same until it is passed.
    const std::size_t begin = found.size();
    found = {};
    ASSERT_EQ(ends.stream(server_end).look(found), Status::too_large);
    ASSERT_EQ(found.size(), begin);
    EXPECT_EQ(found[0], std::byte{9});
    ends.stream(server_end).pass();
    for (int i = 0; i < 100; ++i) {
        ends.settle();
        status = ends.stream(server_end).look(found);
        if (status != Status::empty) break;
    }
    ASSERT_EQ(status, Status::ok);
    EXPECT_EQ(found.size(), 1000U);
}

TEST(PacketStream, TheEndComesBehindTheLastMessageBeItLost) {
    PacketEnds ends{{}};
    ASSERT_TRUE(ends.send(client_end, 10));
    ends.settle();
    ends.read_all(server_end);
    ASSERT_TRUE(ends.answer(10));
    (void)ends.post(server_end);
    while (ends.leave(server_end)) {
    }
    ends.complete(server_end);
    (void)ends.take_late();  // the answer is lost
    std::span<const std::byte> message;
    EXPECT_FALSE(ends.stream(client_end).end_at(ends.stream(server_end).end() + 100, ends.now()));
    EXPECT_FALSE(ends.stream(client_end).end_at(ends.stream(server_end).end() - 2, ends.now()));
    ASSERT_TRUE(ends.stream(client_end).end_at(ends.stream(server_end).end(), ends.now()));
    EXPECT_EQ(ends.stream(client_end).look(message), Status::empty);
    ends.stream(client_end).expect(false, ends.now());
    ASSERT_TRUE(ends.pass_time_until_due());
    ends.settle();
    ends.read_all(client_end);
    EXPECT_EQ(ends.read(client_end), 1U);
    EXPECT_EQ(ends.stream(client_end).look(message), Status::closed);
    EXPECT_EQ(ends.stream(client_end).due(), never);
    EXPECT_FALSE(ends.stream(server_end).is_acknowledged());
    // Whoever is to be told so, is: by what the client says at its end.
}

// --- peers that lie

/// A server that has received one request and sent two answers of one packet, of which nothing is
/// acknowledged; and a packet that its client might send next.
struct Lied {
    Lied() : ends{{.rooms = {8, 8}}} {
        std::span<std::byte> place;
        for (int i = 0; i < 2; ++i) {
            if (ends.stream(server_end).claim(20, place) == Status::ok)
                ends.stream(server_end).commit(20);
        }
        (void)ends.post(server_end);
        head = {.token = 0x2222,
                .sequence = 0,
                .acknowledged = 2,
                .room = 8,
                .length = 24,
                .flags = packet_whole};
    }
    PacketStream::Arrival arrive(std::size_t payload = 24) {
        packet.assign(packet_head_bytes + payload, std::byte{1});
        std::memcpy(packet.data(), &head, sizeof head);
        return ends.stream(server_end).receive(packet, 3, ends.now());
    }
    PacketEnds ends;
    PacketHead head;
    std::vector<std::byte> packet;
};

TEST(PacketStream, TakesWhatAnHonestPeerSays) {
    Lied lied;
    EXPECT_EQ(lied.arrive(), PacketStream::Arrival::kept);
    EXPECT_EQ(lied.ends.stream(server_end).failure(), "");
    EXPECT_TRUE(lied.ends.stream(server_end).is_acknowledged());
}

TEST(PacketStream, WhatIsNobodysChangesNothing) {
    const std::vector<std::function<void(PacketHead&)>> changes{
        [](PacketHead& head) { head.token ^= 1; },
        [](PacketHead& head) { head.length += 1; },
        [](PacketHead& head) { head.length -= 1; },
        [](PacketHead& head) { head.length = 0xffff; },
        [](PacketHead& head) { head.room = most_packets + 1; },
        [](PacketHead& head) { head.flags |= 0x8000; },
        [](PacketHead& head) { head.flags &= static_cast<std::uint16_t>(~packet_data); },
        [](PacketHead& head) { head.zero = 1; },
    };
    Lied lied;
    const PacketHead honest = lied.head;
    for (const auto& change : changes) {
        lied.head = honest;
        change(lied.head);
        EXPECT_EQ(lied.arrive(), PacketStream::Arrival::foreign);
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, packet_head_bytes - 1}) {
        EXPECT_EQ(lied.ends.stream(server_end)
                      .receive(std::span{lied.packet}.first(size), 3, lied.ends.now()),
                  PacketStream::Arrival::foreign);
    }
    EXPECT_EQ(lied.ends.stream(server_end).counts().foreign, changes.size() + 3);
    EXPECT_FALSE(lied.ends.stream(server_end).is_acknowledged());
    EXPECT_FALSE(lied.ends.stream(server_end).has_more());
    lied.head = honest;
    EXPECT_EQ(lied.arrive(), PacketStream::Arrival::kept);
}

TEST(PacketStream, WhatThePeerCannotKnowOrMaySendEndsTheStream) {
    const std::vector<std::pair<const char*, std::function<void(PacketHead&)>>> lies{
        {"acknowledges", [](PacketHead& head) { head.acknowledged = 3; }},
        {"acknowledges", [](PacketHead& head) { head.received = 1; }},
        {"acknowledges", [](PacketHead& head) { head.acknowledged = 0, head.received = 2; }},
        {"acknowledges", [](PacketHead& head) { head.acknowledged = 0x7fffffff; }},
        {"room", [](PacketHead& head) { head.sequence = 8; }},
        {"room", [](PacketHead& head) { head.sequence = 0x7fffffff; }},
        {"room", [](PacketHead& head) { head.sequence = 64; }},
        {"pieces", [](PacketHead& head) { head.flags = packet_data | packet_last; }},
        {"pieces", [](PacketHead& head) { head.flags = packet_data; }},
    };
    for (const auto& [why, change] : lies) {
        Lied lied;
        change(lied.head);
        (void)lied.arrive();
        std::span<const std::byte> message;
        EXPECT_EQ(lied.ends.stream(server_end).look(message), Status::peer_lost);
        EXPECT_NE(lied.ends.stream(server_end).failure().find(why), std::string_view::npos)
            << lied.ends.stream(server_end).failure();
        EXPECT_EQ(lied.ends.stream(server_end).send({}, {}), Status::peer_lost);
    }
}

TEST(PacketStream, AnAcknowledgementFromThePastIsPassedOver) {
    Lied lied;
    lied.head.sequence = 1;
    EXPECT_EQ(lied.arrive(), PacketStream::Arrival::kept);
    lied.head.sequence = 0;
    lied.head.acknowledged = 0x90000000;
    lied.head.received = ~std::uint64_t{0};
    EXPECT_EQ(lied.arrive(), PacketStream::Arrival::kept);
    EXPECT_TRUE(lied.ends.stream(server_end).is_acknowledged());
    EXPECT_EQ(lied.ends.stream(server_end).failure(), "");
}

}  // namespace
}  // namespace millrace::message
