// A reliable connection, step by step: which packets leave, what each end does with those that
// come, and how it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ends.hpp"

namespace millrace::roce {
namespace {

using testing::ElementsAre;

std::vector<Kind> kinds(const End& end) {
    std::vector<Kind> all;
    for (const Bytes& bytes : end.wire.said) all.push_back(read_packet(bytes).kind);
    return all;
}

std::vector<std::uint32_t> psns(const End& end) {
    std::vector<std::uint32_t> all;
    for (const Bytes& bytes : end.wire.said) all.push_back(read_packet(bytes).psn);
    return all;
}

constexpr std::uint32_t first = 0xfffffe;  // Settings::first_psn

TEST(RoceConnection, CarriesEveryKindOfRequest) {
    Ends ends;
    End& active = ends.active;
    End& passive = ends.passive;
    passive.receives.posted = {1000, 1000, 1000, 1000};
    const Bytes memory = passive.receives.memory = pattern(16384, 9);
    active.post(Operation::write, pattern(700), 100);
    active.post(Operation::send, pattern(300));
    Request& immediate = active.prepare(Operation::send_immediate, pattern(256));
    immediate.immediate = 77;
    active.requester.post(immediate);
    Request& invalidate = active.prepare(Operation::send_invalidate, {});
    invalidate.invalidate_key = 99;
    active.requester.post(invalidate);
    Request& written = active.prepare(Operation::write_immediate, pattern(1), 5000);
    written.immediate = 78;
    written.solicited = true;
    active.requester.post(written);
    active.post(Operation::read, Bytes(1000), 8000);
    active.post_atomic(Operation::fetch_add, 16000, 5);
    active.post_atomic(Operation::compare_swap, 16000, 1, 2);
    active.post(Operation::local, {});
    active.post(Operation::read, {}, 0);
    ends.settle();

    EXPECT_EQ(active.sends.completed, 10U);
    EXPECT_TRUE(active.requester.is_idle());
    EXPECT_EQ(active.next_deadline(), never);
    Bytes expected = memory;
    const Bytes text = pattern(700);
    std::copy(text.begin(), text.end(), expected.begin() + 100);
    expected[5000] = pattern(1)[0];
    std::uint64_t counter = 0;
    std::memcpy(&counter, memory.data() + 16000, 8);
    const std::uint64_t after = counter + 5;
    std::memcpy(expected.data() + 16000, &after, 8);
    EXPECT_EQ(passive.receives.memory, expected);
    EXPECT_TRUE(std::equal(memory.begin() + 8000, memory.begin() + 9000,
                           active.sends.all[5].bytes.begin()));
    std::uint64_t brought = 0;
    std::memcpy(&brought, active.sends.all[6].bytes.data(), 8);
    EXPECT_EQ(brought, counter);
    std::memcpy(&brought, active.sends.all[7].bytes.data(), 8);
    EXPECT_EQ(brought, after);

    const auto& received = passive.receives.received;
    ASSERT_EQ(received.size(), 4U);
    EXPECT_EQ(received[0].bytes, pattern(300));
    EXPECT_FALSE(received[0].arrival.has_immediate);
    EXPECT_EQ(received[1].bytes, pattern(256));
    EXPECT_EQ(received[1].arrival.immediate, 77U);
    EXPECT_TRUE(received[2].arrival.invalidates);
    EXPECT_EQ(received[2].arrival.invalidate_key, 99U);
    EXPECT_TRUE(received[3].arrival.is_write);
    EXPECT_TRUE(received[3].arrival.solicited);
    EXPECT_EQ(received[3].arrival.immediate, 78U);
}

TEST(RoceConnection, CutsMessagesIntoPacketsOfTheMtu) {
    Ends ends;
    ends.active.post(Operation::write, pattern(513));
    ends.active.post(Operation::send, pattern(512));
    ends.active.post(Operation::send, {});
    ends.say(ends.active);
    EXPECT_THAT(kinds(ends.active),
                ElementsAre(Kind::write_first, Kind::write_middle, Kind::write_last,
                            Kind::send_first, Kind::send_last, Kind::send_only));
    EXPECT_THAT(psns(ends.active), ElementsAre(first, first + 1, 0, 1, 2, 3));
    std::vector<bool> asks;
    for (const Bytes& bytes : ends.active.wire.said) {
        asks.push_back(read_packet(bytes).asks_acknowledge);
    }
    EXPECT_THAT(asks, ElementsAre(false, false, false, false, false, true))
        << "they leave together";
}

std::vector<bool> asks_of(const End& end) {
    std::vector<bool> asks;
    for (const Bytes& bytes : end.wire.said) asks.push_back(read_packet(bytes).asks_acknowledge);
    return asks;
}

TEST(RoceConnection, AsksForAnAcknowledgementWhereNoMessageFollows) {
    {
        Ends ends;
        for (int i = 0; i < 3; ++i) {
            ends.active.post(Operation::write, pattern(8));
            ends.say(ends.active);
        }
        EXPECT_THAT(asks_of(ends.active), ElementsAre(true, true, true)) << "one by one";
    }
    {
        Ends ends;
        ends.active.post(Operation::write, pattern(8));
        ends.active.post(Operation::read, Bytes(8));
        ends.active.post(Operation::write, pattern(8));
        ends.active.post(Operation::local, {});
        ends.say(ends.active);
        EXPECT_THAT(asks_of(ends.active), ElementsAre(true, false, true)) << "but for the READ";
    }
    {
        Ends ends;
        ends.active.post(Operation::read, Bytes(8));
        ends.active.post(Operation::write, pattern(8));
        Request& fenced = ends.active.prepare(Operation::write, pattern(8));
        fenced.fence = true;
        ends.active.requester.post(fenced);
        ends.say(ends.active);
        EXPECT_THAT(asks_of(ends.active), ElementsAre(false, true)) << "the fence holds the third";
    }
}

// It had asked for none, as the next one was to.
TEST(RoceConnection, AMessageBeforeOneThatFailsHereCompletes) {
    Ends ends;
    ends.active.post(Operation::write, pattern(8));
    ends.active.post(Operation::write, pattern(8));
    ends.active.sends.all[1].gathers = Status::local_protection;
    ends.say(ends.active);
    ASSERT_THAT(asks_of(ends.active), ElementsAre(false, true)) << "the first one, again";
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.active.sends.failed, Status::local_protection);
}

TEST(RoceConnection, AsksForAcknowledgementsWithinALongMessage) {
    Settings settings;
    settings.memory = 1 << 16;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(256 * 100));
    ends.say(ends.active);
    std::vector<std::uint32_t> asked;
    for (std::uint32_t i = 0; i < ends.active.wire.said.size(); ++i) {
        if (read_packet(ends.active.wire.said[i]).asks_acknowledge) asked.push_back(i);
    }
    EXPECT_THAT(asked, ElementsAre(31, 63, 95, 99));
}

TEST(RoceConnection, HasAsMuchUnderWayAsItsWindow) {
    Settings settings;
    settings.window = 4;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(256 * 10));
    EXPECT_EQ(ends.say(ends.active), 4U);
    EXPECT_TRUE(read_packet(ends.active.wire.said.back()).asks_acknowledge);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.active.requester.counts().repeated, 0U);
}

TEST(RoceConnection, LetsShortMessagesThatArePostedOneByOneWaitAndLeaveTogether) {
    Ends ends;
    std::size_t said = 0;
    for (std::uint32_t posted = 1; posted <= 40; ++posted) {
        ends.active.post(Operation::write, pattern(8));
        said = ends.say(ends.active);
        EXPECT_EQ(said, std::min(posted, Bursts::most_packets));
    }
    for (std::uint32_t burst = 0; burst < Bursts::most_packets; ++burst) ends.deliver(ends.active);
    ends.say(ends.passive);
    ends.deliver(ends.passive);
    EXPECT_EQ(ends.say(ends.active), 40 - Bursts::most_packets) << "all that waited";
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 40U);
    EXPECT_EQ(ends.active.requester.counts().repeated, 0U);
}

TEST(RoceConnection, LetsListsOfShortMessagesLeaveWhole) {
    Ends ends;
    for (std::uint32_t list = 1; list < Bursts::most; ++list) {
        for (int i = 0; i < 20; ++i) ends.active.post(Operation::write, pattern(8));
        EXPECT_EQ(ends.say(ends.active), list * 20U);
    }
    ends.settle();
    EXPECT_EQ(ends.active.requester.counts().repeated, 0U);
}

TEST(RoceConnection, LetsNoShortMessageWaitForWhatFillsPackets) {
    Settings settings;
    settings.memory = 1 << 16;
    Ends ends{settings};
    for (std::uint32_t sent = 1; sent <= 7; ++sent) {
        ends.active.post(Operation::write, pattern(256 * 16));
        ends.active.post(Operation::write, pattern(8));
        EXPECT_EQ(ends.say(ends.active), 17 * sent);
    }
    ends.settle();
}

// Else what was lost would count for ever.
TEST(RoceConnection, CountsShortMessagesThatAreSentAgainOnce) {
    Ends ends;
    for (std::uint32_t posted = 1; posted <= 20; ++posted) {
        ends.active.post(Operation::write, pattern(8));
        ends.say(ends.active);
    }
    for (int losses = 0; losses < 2; ++losses) {
        ends.active.wire.said.clear();
        ASSERT_TRUE(ends.pass_time());
        EXPECT_EQ(ends.say(ends.active), 20U) << "as one burst";
    }
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 20U);
}

TEST(RoceConnection, HasLessUnderWayAfterALossAndMoreWithEachWindowThatArrives) {
    Settings settings;
    settings.window = 32;
    settings.memory = 1 << 20;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(256 * 4000));
    for (const std::size_t expected : {32U, 16U, 8U, 8U}) {
        EXPECT_EQ(ends.say(ends.active), expected);
        ends.active.wire.said.clear();
        ASSERT_TRUE(ends.pass_time());
    }
    std::size_t most = 7;
    for (int rounds = 0; ends.active.sends.completed == 0 && rounds < 1000; ++rounds) {
        const std::size_t said = ends.say(ends.active);
        EXPECT_LE(said, most + 1);
        most = std::max(said, most);
        while (!ends.active.wire.said.empty()) ends.deliver(ends.active);
        ends.say(ends.passive);
        while (!ends.passive.wire.said.empty()) ends.deliver(ends.passive);
    }
    EXPECT_EQ(most, 32U);
    EXPECT_EQ(ends.active.sends.completed, 1U);
}

TEST(RoceConnection, AcknowledgesManyMessagesAtOnce) {
    Ends ends;
    for (int i = 0; i < 5; ++i) ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    while (!ends.active.wire.said.empty()) ends.deliver(ends.active);
    EXPECT_EQ(ends.passive.next_deadline(), ends.now + acknowledgement_delay);
    ends.passive.send(ends.now, false);
    EXPECT_TRUE(ends.passive.wire.said.empty()) << "more may come";
    ends.passive.send(ends.now + acknowledgement_delay, false);
    ASSERT_EQ(ends.passive.wire.said.size(), 1U);
    const Packet packet = read_packet(ends.passive.wire.said.front());
    EXPECT_EQ(packet.psn, psn_after(first, 4));
    EXPECT_EQ(packet.syndrome, syndrome_acknowledge | credits_invalid);
    EXPECT_EQ(packet.message_sequence, 5U);
    ends.deliver(ends.passive);
    EXPECT_EQ(ends.active.sends.completed, 5U);
}

TEST(RoceConnection, SendsAgainFromTheGapOnWhichIsToldOnce) {
    Ends ends;
    for (std::uint32_t i = 0; i < 5; ++i) {
        ends.active.post(Operation::write, pattern(8, 1 + i), std::uint64_t{8} * i);
    }
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.lose(ends.active);
    while (!ends.active.wire.said.empty()) ends.deliver(ends.active);
    ASSERT_EQ(ends.say(ends.passive), 1U) << "one for the gap, none for what followed";
    const Packet refusal = read_packet(ends.passive.wire.said.front());
    EXPECT_EQ(refusal.syndrome, syndrome_negative);
    EXPECT_EQ(refusal.psn, psn_after(first, 1));
    ends.deliver(ends.passive);
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.say(ends.active), 4U);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 5U);
    EXPECT_EQ(ends.passive.receives.finished, 5U) << "each once";
}

TEST(RoceConnection, TakesWhatOvertookItselfWithoutARefusalForWhatHasCome) {
    Ends ends;
    for (int i = 0; i < 2; ++i) ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    const Bytes one = ends.take(ends.active);
    const Bytes two = ends.take(ends.active);
    ends.passive.arrive(two, ends.now);
    ends.passive.arrive(one, ends.now);
    ends.passive.arrive(two, ends.now);
    ASSERT_EQ(ends.say(ends.passive), 1U);
    EXPECT_EQ(read_packet(ends.passive.wire.said.front()).syndrome,
              syndrome_acknowledge | credits_invalid);
    ends.deliver(ends.passive);
    EXPECT_EQ(ends.active.sends.completed, 2U);
}

TEST(RoceConnection, AcknowledgesAgainWhatComesAgain) {
    Ends ends;
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    const Bytes packet = ends.active.wire.said.front();
    ends.deliver(ends.active);
    ends.say(ends.passive);
    ends.lose(ends.passive);
    ends.passive.receives.memory[0] ^= 1;
    const Bytes memory = ends.passive.receives.memory;
    ends.passive.arrive(packet, ends.now);
    EXPECT_EQ(ends.passive.receives.memory, memory) << "it was done once";
    ASSERT_EQ(ends.say(ends.passive), 1U);
    ends.deliver(ends.passive);
    EXPECT_EQ(ends.active.sends.completed, 1U);
}

TEST(RoceConnection, WaitsForItsTimeoutAndGivesUpAfterItsRetries) {
    Settings settings;
    settings.timeout = 9;
    settings.retry_count = 3;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(8));
    const std::int64_t begun = ends.now;
    int sent = 0;
    for (; !ends.active.sends.failed && sent < 100; ++sent) {
        ends.say(ends.active);
        ends.active.wire.said.clear();
        if (ends.active.sends.failed) break;
        ASSERT_TRUE(ends.pass_time());
    }
    EXPECT_EQ(ends.active.sends.failed, Status::retries_exceeded);
    EXPECT_EQ(sent, 4) << "once, and three times more";
    EXPECT_EQ(ends.now - begun, 4 * (4096LL << 9));
    EXPECT_EQ(ends.active.requester.counts().timeouts, 4U);
    EXPECT_EQ(ends.active.next_deadline(), never);
}

TEST(RoceConnection, SendsAgainBeforeItsTimeoutAndTakesNoRetryForIt) {
    Settings settings;
    settings.retry_count = 0;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(8));
    const std::int64_t begun = ends.now;
    for (const std::int64_t waited : {1, 3, 7}) {
        EXPECT_EQ(ends.say(ends.active), 1U);
        ends.lose(ends.active);
        ASSERT_TRUE(ends.pass_time());
        EXPECT_EQ(ends.now - begun, waited * least_patience);
    }
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.active.requester.counts().early, 3U);
    EXPECT_EQ(ends.active.requester.counts().timeouts, 0U);
}

TEST(RoceConnection, WaitsForSomeOfTheRoundTripsThatItSees) {
    constexpr std::int64_t way = 10'000'000;
    Ends ends;
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    ends.now += way;
    ends.deliver(ends.active);
    ends.say(ends.passive);
    ends.deliver(ends.passive);
    ASSERT_EQ(ends.active.sends.completed, 1U);
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    ends.lose(ends.active);
    const std::int64_t begun = ends.now;
    ASSERT_TRUE(ends.pass_time());
    EXPECT_EQ(ends.now - begun, 4 * way);
}

TEST(RoceConnection, WaitsForEverWithoutATimeout) {
    Settings settings;
    settings.timeout = 0;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    EXPECT_EQ(ends.active.next_deadline(), never);
}

TEST(RoceConnection, CountsItsRetriesAnewAfterProgress) {
    Settings settings;
    settings.retry_count = 1;
    Ends ends{settings};
    for (int i = 0; i < 10; ++i) {
        ends.active.post(Operation::write, pattern(8));
        ends.say(ends.active);
        ends.lose(ends.active);
        ASSERT_TRUE(ends.pass_time());
        ends.settle();
    }
    EXPECT_FALSE(ends.active.sends.failed);
    EXPECT_EQ(ends.active.sends.completed, 10U);
}

TEST(RoceConnection, PausesWhileTheReceiverIsNotReady) {
    Settings settings;
    settings.min_rnr_timer = 14;  // 1.28 ms
    Ends ends{settings};
    ends.active.post(Operation::send, pattern(8));
    ends.active.post(Operation::write, pattern(8));
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 0U);
    EXPECT_EQ(ends.passive.receives.finished, 0U);
    EXPECT_EQ(ends.active.next_deadline(), ends.now + 1'280'000);
    ends.passive.receives.posted = {8};
    EXPECT_EQ(ends.say(ends.active), 0U) << "not before the time is up";
    ASSERT_TRUE(ends.pass_time());
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 2U);
    EXPECT_EQ(ends.passive.receives.received.size(), 1U);
}

TEST(RoceConnection, HeedsARefusalThatComesTwiceOnce) {
    Settings settings;
    settings.rnr_retry = 1;
    Ends ends{settings};
    ends.active.post(Operation::send, pattern(8));
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.say(ends.passive);
    const Bytes refusal = ends.passive.wire.said.front();
    ends.deliver(ends.passive);
    ends.active.arrive(refusal, ends.now);
    EXPECT_FALSE(ends.active.sends.failed);
    ends.passive.receives.posted = {8};
    ASSERT_TRUE(ends.pass_time());
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
}

TEST(RoceConnection, ClaimsTheReceiveOfAWriteWithImmediateAtItsLastPacket) {
    Ends ends;
    ends.active.post(Operation::write_immediate, pattern(600), 8);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 0U);
    ends.passive.receives.posted = {0};
    ASSERT_TRUE(ends.pass_time());
    EXPECT_EQ(ends.say(ends.active), 1U) << "the two before it were acknowledged";
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.passive.receives.received.size(), 1U);
}

TEST(RoceConnection, GivesUpAReceiverThatIsNeverReady) {
    Settings settings;
    settings.rnr_retry = 2;
    Ends ends{settings};
    ends.active.post(Operation::send, pattern(8));
    int pauses = 0;
    for (ends.settle(); !ends.active.sends.failed && pauses < 100; ends.settle()) {
        ASSERT_TRUE(ends.pass_time());
        ++pauses;
    }
    EXPECT_EQ(ends.active.sends.failed, Status::rnr_retries_exceeded);
    EXPECT_EQ(pauses, 2);
}

TEST(RoceConnection, NeverGivesUpAReceiverWithRnrRetrySeven) {
    Ends ends;
    ends.active.post(Operation::send, pattern(8));
    ends.settle();
    for (int i = 0; i < 100; ++i) {
        ASSERT_TRUE(ends.pass_time());
        ends.settle();
    }
    EXPECT_FALSE(ends.active.sends.failed);
    ends.passive.receives.posted = {8};
    ASSERT_TRUE(ends.pass_time());
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
}

struct Failing {
    const char* name;
    void (*post)(End& active, End& passive);
    Status sees;
    bool is_told;
};

class RoceFailure : public testing::TestWithParam<Failing> {};

TEST_P(RoceFailure, IsOfTheRequestThatIsNotAllowed) {
    Ends ends;
    ends.passive.receives.posted = {8, 8, 8};
    ends.active.post(Operation::write, pattern(8));
    GetParam().post(ends.active, ends.passive);
    ends.active.post(Operation::write, pattern(8));
    ends.active.post(Operation::send, pattern(8));
    const Bytes memory = ends.passive.receives.memory;
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.active.sends.failed, GetParam().sees);
    EXPECT_EQ(ends.active.requester.abort(), 2U);
    if (GetParam().is_told) {
        EXPECT_EQ(ends.passive.receives.has_failed, GetParam().sees);
        EXPECT_EQ(ends.passive.receives.finished, 1U) << "nothing after it was done";
    }
    EXPECT_EQ(ends.active.next_deadline(), never);
    EXPECT_EQ(ends.passive.next_deadline(), never);
}

INSTANTIATE_TEST_SUITE_P(
    Roce, RoceFailure,
    testing::Values(
        Failing{"write_to_an_unknown_key",
                [](End& active, End&) {
                    Request& request = active.prepare(Operation::write, pattern(300));
                    request.remote_key ^= 1;
                    active.requester.post(request);
                },
                Status::remote_access, true},
        Failing{"read_beyond_the_region",
                [](End& active, End&) { active.post(Operation::read, Bytes(300), 16200); },
                Status::remote_access, true},
        Failing{"atomic_on_an_unknown_key",
                [](End& active, End&) { active.post_atomic(Operation::fetch_add, 16384, 1); },
                Status::remote_access, true},
        Failing{"atomic_on_an_odd_address",
                [](End& active, End&) { active.post_atomic(Operation::fetch_add, 4, 1); },
                Status::remote_invalid_request, true},
        Failing{"send_too_long_for_the_receive",
                [](End& active, End&) { active.post(Operation::send, pattern(9)); },
                Status::remote_invalid_request, true},
        Failing{"memory_that_is_gone_when_it_leaves",
                [](End& active, End&) {
                    active.post(Operation::write, pattern(600));
                    active.sends.all.back().gathers = Status::local_protection;
                },
                Status::local_protection, false},
        Failing{"memory_that_is_gone_when_a_read_comes",
                [](End& active, End&) {
                    active.post(Operation::read, Bytes(600));
                    active.sends.all.back().scatters = Status::local_protection;
                },
                Status::local_protection, false},
        Failing{"local_operation",
                [](End& active, End&) {
                    active.post(Operation::local, {});
                    active.sends.all.back().local = Status::local_operation;
                },
                Status::local_operation, false}),
    [](const auto& param) { return std::string{param.param.name}; });

/// A packet that the active end would not send.
void arrive_at(End& end, Kind kind, std::uint32_t psn, std::size_t size, std::int64_t now,
               std::uint32_t length = 0) {
    Packet packet{};
    packet.service = Service::rc;
    packet.kind = kind;
    packet.psn = psn;
    packet.remote_key = region_key;
    packet.address = region_address;
    packet.length = length;
    const Bytes payload(size);
    packet.payload = payload;
    end.responder.arrived(packet, now);
}

struct Strange {
    const char* name;
    std::vector<std::pair<Kind, std::size_t>> packets;  ///< the last one is not allowed
    std::uint32_t length;                               ///< of a WRITE
};

class RoceStrange : public testing::TestWithParam<Strange> {};

TEST_P(RoceStrange, OrderOrLengthIsAnInvalidRequest) {
    Ends ends;
    ends.passive.receives.posted = {10000, 10000};
    std::uint32_t psn = first;
    for (const auto& [kind, size] : GetParam().packets) {
        EXPECT_EQ(ends.passive.responder.next_deadline(), never);
        arrive_at(ends.passive, kind, psn, size, ends.now, GetParam().length);
        psn = psn_after(psn, 1);
    }
    ASSERT_EQ(ends.say(ends.passive), 1U);
    const Packet refusal = read_packet(ends.passive.wire.said.front());
    EXPECT_EQ(refusal.syndrome, syndrome_negative | static_cast<int>(Refusal::invalid_request));
    EXPECT_EQ(refusal.psn, psn_after(psn, psn_mask));
    EXPECT_EQ(ends.passive.receives.has_failed, Status::remote_invalid_request);
    EXPECT_EQ(ends.passive.receives.finished, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Roce, RoceStrange,
    testing::Values(
        Strange{"middle_without_first", {{Kind::send_middle, 256}}, 0},
        Strange{"last_without_first", {{Kind::write_last, 8}}, 8},
        Strange{"first_within", {{Kind::send_first, 256}, {Kind::send_first, 256}}, 0},
        Strange{"only_within", {{Kind::send_first, 256}, {Kind::send_only, 8}}, 0},
        Strange{"write_within_a_send", {{Kind::send_first, 256}, {Kind::write_last, 8}}, 0},
        Strange{"send_within_a_write", {{Kind::write_first, 256}, {Kind::send_last, 8}}, 264},
        Strange{"read_within", {{Kind::write_first, 256}, {Kind::read_request, 0}}, 300},
        Strange{"atomic_within", {{Kind::write_first, 256}, {Kind::fetch_add, 0}}, 300},
        Strange{"short_first", {{Kind::send_first, 252}}, 0},
        Strange{"short_middle", {{Kind::send_first, 256}, {Kind::send_middle, 8}}, 0},
        Strange{"empty_last", {{Kind::send_first, 256}, {Kind::send_last, 0}}, 0},
        Strange{"long_only", {{Kind::send_only, 257}}, 0},
        Strange{"long_last", {{Kind::send_first, 256}, {Kind::send_last, 260}}, 0},
        Strange{"write_shorter_than_said", {{Kind::write_only, 8}}, 9},
        Strange{"write_longer_than_said", {{Kind::write_first, 256}, {Kind::write_last, 8}}, 263},
        Strange{"write_without_end", {{Kind::write_first, 256}, {Kind::write_middle, 256}}, 512},
        Strange{"write_too_long", {{Kind::write_first, 256}}, 0x80000001},
        Strange{"read_too_long", {{Kind::read_request, 0}}, 0x80000001}),
    [](const auto& param) { return std::string{param.param.name}; });

TEST(RoceConnection, RefusesMoreReadsThanItPromised) {
    Ends ends;
    for (std::uint32_t i = 0; i < 5; ++i) {
        arrive_at(ends.passive, Kind::read_request, psn_after(first, i), 0, ends.now, 8);
    }
    ends.say(ends.passive);
    EXPECT_THAT(kinds(ends.passive),
                ElementsAre(Kind::read_response_only, Kind::read_response_only,
                            Kind::read_response_only, Kind::read_response_only, Kind::acknowledge));
    EXPECT_EQ(ends.passive.receives.has_failed, Status::remote_invalid_request);
}

TEST(RoceConnection, HasAsManyReadsUnderWayAsThePeerServes) {
    Settings settings;
    settings.most_reads = 2;
    Ends ends{settings};
    for (int i = 0; i < 3; ++i) ends.active.post(Operation::read, Bytes(8));
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    EXPECT_THAT(kinds(ends.active), ElementsAre(Kind::read_request, Kind::read_request));
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 4U);
}

TEST(RoceConnection, AsksForALongReadInPieces) {
    Settings settings;
    settings.memory = 1 << 16;
    settings.most_reads = 1;
    Ends ends{settings};
    ends.passive.receives.memory = pattern(1 << 16);
    ends.active.post(Operation::read, Bytes(256 * 70 + 5), 3);
    ends.say(ends.active);
    ASSERT_EQ(ends.active.wire.said.size(), 1U);
    EXPECT_EQ(read_packet(ends.active.wire.said.front()).length, 256 * most_read_packets);
    ends.settle();
    EXPECT_EQ(ends.active.requester.counts().packets, 3U);
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_TRUE(std::equal(ends.active.sends.all[0].bytes.begin(),
                           ends.active.sends.all[0].bytes.end(),
                           ends.passive.receives.memory.begin() + 3));
}

TEST(RoceConnection, AsksAgainForNoMoreThanWasAskedFor) {
    Settings settings;
    settings.memory = 1 << 16;
    settings.most_reads = 1;
    Ends ends{settings};
    ends.passive.receives.memory = pattern(1 << 16);
    ends.active.post(Operation::read, Bytes(256 * 70));
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.say(ends.passive);
    for (int i = 0; i < 10; ++i) ends.deliver(ends.passive);
    ends.lose(ends.passive);
    ends.deliver(ends.passive);
    ASSERT_EQ(ends.say(ends.active), 1U);
    const Packet again = read_packet(ends.active.wire.said.front());
    EXPECT_EQ(again.psn, psn_after(first, 10));
    EXPECT_EQ(again.length, 256 * (most_read_packets - 10));
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.passive.responder.counts().dropped, 0U);
}

TEST(RoceConnection, AsksAgainForWhatAReadLacksAlone) {
    Ends ends;
    ends.passive.receives.memory = pattern(16384);
    ends.active.post(Operation::read, Bytes(256 * 4), 0);
    ends.say(ends.active);
    ends.deliver(ends.active);
    ASSERT_EQ(ends.say(ends.passive), 4U);
    ends.deliver(ends.passive);
    ends.lose(ends.passive);
    ends.deliver(ends.passive);
    ASSERT_EQ(ends.say(ends.active), 1U);
    const Packet again = read_packet(ends.active.wire.said.front());
    EXPECT_EQ(again.kind, Kind::read_request);
    EXPECT_EQ(again.psn, psn_after(first, 1));
    EXPECT_EQ(again.address, region_address + 256);
    EXPECT_EQ(again.length, 256U * 3);
    ends.deliver(ends.passive);  // what was read first and came too early
    EXPECT_EQ(ends.say(ends.active), 1U) << "once for the gap";
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.active.sends.all[0].bytes, pattern(256 * 4));
}

TEST(RoceConnection, KnowsByALaterAcknowledgementThatAResponseWasLost) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(8));
    ends.active.post(Operation::write, pattern(8), 8);
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.deliver(ends.active);
    EXPECT_EQ(ends.say(ends.passive), 2U);
    ends.lose(ends.passive);
    ends.deliver(ends.passive);
    EXPECT_EQ(ends.active.sends.completed, 0U);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 2U);
    EXPECT_EQ(ends.active.requester.counts().timeouts, 0U);
    EXPECT_EQ(ends.passive.receives.finished, 1U);
}

TEST(RoceConnection, ReadsAgainWhatIsThereNow) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(8));
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.say(ends.passive);
    ends.lose(ends.passive);
    ends.passive.receives.memory = pattern(16384, 5);
    ASSERT_TRUE(ends.pass_time());
    ends.settle();
    const Bytes now = pattern(16384, 5);
    EXPECT_EQ(ends.active.sends.all[0].bytes, (Bytes{now.begin(), now.begin() + 8}));
}

TEST(RoceConnection, DropsAnOldReadWhoseKeyIsGone) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(8));
    ends.say(ends.active);
    const Bytes old = ends.active.wire.said.front();
    ends.settle();
    ends.passive.receives.key ^= 1;
    ends.passive.arrive(old, ends.now);
    EXPECT_EQ(ends.say(ends.passive), 0U);
    EXPECT_FALSE(ends.passive.receives.has_failed);
    EXPECT_EQ(ends.passive.responder.counts().dropped, 1U);
}

TEST(RoceConnection, AnswersNoReadThatWasNotAskedFor) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(8));
    ends.say(ends.active);
    const Bytes asked = ends.active.wire.said.front();
    ends.settle();
    constexpr std::size_t low_byte_of_psn = 11;
    constexpr std::size_t low_byte_of_address = 19;
    for (const std::size_t at : {low_byte_of_psn, low_byte_of_address}) {
        Bytes other = asked;
        other[at] = static_cast<std::uint8_t>(at == low_byte_of_psn ? other[at] - 100 : 8);
        ends.passive.arrive(other, ends.now);
        EXPECT_EQ(ends.say(ends.passive), 0U);
    }
    EXPECT_EQ(ends.passive.responder.counts().dropped, 2U);
    ends.passive.arrive(asked, ends.now);
    EXPECT_EQ(ends.say(ends.passive), 1U) << "this one comes again";
}

TEST(RoceConnection, FailsAReadWhoseKeyGoesWhileItIsRead) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(600));
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.deliver(ends.active);
    ends.passive.wire.room = 1;
    ends.passive.send(ends.now);
    ends.passive.receives.key ^= 1;
    ends.passive.wire.room = -1;
    ends.settle();
    EXPECT_EQ(ends.active.sends.failed, Status::remote_access);
    EXPECT_EQ(ends.active.sends.completed, 0U);
    EXPECT_EQ(ends.passive.receives.has_failed, Status::remote_access);
}

TEST(RoceConnection, AnswersARepeatedAtomicFromItsMemory) {
    Ends ends;
    ends.active.post_atomic(Operation::fetch_add, 0, 3);
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.say(ends.passive);
    ends.lose(ends.passive);
    ASSERT_TRUE(ends.pass_time());
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
    EXPECT_EQ(ends.passive.receives.atomics, 1U);
    EXPECT_EQ(ends.active.sends.all[0].bytes, Bytes(8));
}

TEST(RoceConnection, AcknowledgesNothingBeforeTheAnswersThatPrecedeIt) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(256 * 3));
    ends.active.post(Operation::write, pattern(8), 8000);
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.deliver(ends.active);
    ends.passive.wire.room = 2;
    EXPECT_FALSE(ends.passive.send(ends.now)) << "there is more";
    EXPECT_EQ(ends.passive.next_deadline(), 0);
    EXPECT_THAT(kinds(ends.passive),
                ElementsAre(Kind::read_response_first, Kind::read_response_middle));
    ends.passive.wire.room = -1;
    ends.passive.send(ends.now);
    EXPECT_THAT(kinds(ends.passive),
                ElementsAre(Kind::read_response_first, Kind::read_response_middle,
                            Kind::read_response_last, Kind::acknowledge));
}

TEST(RoceConnection, WaitsAtAFenceForReadsAlone) {
    Ends ends;
    ends.active.post(Operation::write, pattern(8));
    Request& first_fence = ends.active.prepare(Operation::write, pattern(8));
    first_fence.fence = true;
    ends.active.requester.post(first_fence);
    ends.active.post(Operation::read, Bytes(8));
    Request& fence = ends.active.prepare(Operation::write, pattern(8));
    fence.fence = true;
    ends.active.requester.post(fence);
    EXPECT_EQ(ends.say(ends.active), 3U);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 4U);
}

TEST(RoceConnection, BeginsNothingWhileItIsHeld) {
    Settings settings;
    settings.window = 2;
    Ends ends{settings};
    ends.active.post(Operation::write, pattern(256 * 4));
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    ends.active.requester.hold(true);
    EXPECT_FALSE(ends.active.requester.is_drained());
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U) << "what had begun ends";
    EXPECT_TRUE(ends.active.requester.is_drained());
    EXPECT_FALSE(ends.active.requester.is_idle());
    ends.active.requester.hold(false);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 2U);
}

TEST(RoceConnection, LeavesNothingAfterItWasAborted) {
    Ends ends;
    for (int i = 0; i < 3; ++i) ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    ends.deliver(ends.active);
    ends.say(ends.passive);
    EXPECT_EQ(ends.active.requester.abort(), 3U);
    ends.active.wire.said.clear();
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 0U);
    EXPECT_EQ(ends.active.next_deadline(), never);
    EXPECT_TRUE(ends.active.wire.said.empty());
}

TEST(RoceConnection, TakesAResponseOfAnotherLengthForABadOne) {
    Ends ends;
    ends.active.post(Operation::read, Bytes(8));
    ends.say(ends.active);
    Packet packet{};
    packet.service = Service::rc;
    packet.kind = Kind::read_response_only;
    packet.psn = first;
    const Bytes payload(12);
    packet.payload = payload;
    ends.active.requester.arrived(packet, ends.now);
    EXPECT_EQ(ends.active.sends.failed, Status::bad_response);
    EXPECT_EQ(ends.active.sends.all[0].placed, 0U);
}

TEST(RoceConnection, TakesDataForAWriteForABadResponse) {
    Ends ends;
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    Packet packet{};
    packet.service = Service::rc;
    packet.kind = Kind::atomic_acknowledge;
    packet.psn = first;
    ends.active.requester.arrived(packet, ends.now);
    EXPECT_EQ(ends.active.sends.failed, Status::bad_response);
}

TEST(RoceConnection, PassesOverAnswersToWhatItDidNotAsk) {
    Ends ends;
    ends.active.post(Operation::write, pattern(8));
    ends.say(ends.active);
    for (const std::uint32_t psn : {psn_after(first, 1), first - 1, psn_after(first, 0x7fffff)}) {
        Packet packet{};
        packet.service = Service::rc;
        packet.kind = Kind::acknowledge;
        packet.syndrome = syndrome_negative | static_cast<int>(Refusal::remote_access);
        packet.psn = psn;
        ends.active.requester.arrived(packet, ends.now);
    }
    EXPECT_FALSE(ends.active.sends.failed);
    EXPECT_EQ(ends.active.requester.counts().strange, 2U);
    ends.settle();
    EXPECT_EQ(ends.active.sends.completed, 1U);
}

}  // namespace
}  // namespace millrace::roce
