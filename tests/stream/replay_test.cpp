// The orders of events by which models/stream.pml and models/stream_credits.pml show each fault,
// played on the code: two ends and the pipes between them, driven in turn. tests/mutants makes the
// same mistakes in the code and runs these. no_phase_raise is the second example of
// example_test.cpp.
#include <gtest/gtest.h>

#include <cstdint>

#include "two_ends.hpp"

namespace millrace::stream {
namespace {

using base::Status;

class StreamReplay : public testing::Test {
  protected:
    explicit StreamReplay(const Terms& chosen = terms()) : ends{chosen} {}
    static Terms terms() {
        Terms terms;
        terms.outgoing = terms.incoming = {Mode::dynamic, 4, 8};
        terms.own_slots = terms.peer_slots = fewest_slots;
        return terms;
    }
    /// Enough for messages without an answer.
    static Terms with_slots() {
        Terms with = terms();
        with.own_slots = with.peer_slots = 64;
        return with;
    }
    /// End 0 sends; what goes out is on its way.
    void send(std::uint64_t length) {
        ASSERT_EQ(ends.send(0, length), Status::ok);
        ends.act_all(0);
    }
    /// End 1 offers a receive of 4 bytes.
    void receive(bool wait_all = false) {
        ASSERT_EQ(ends.receive(1, 4, wait_all), Status::ok);
        ends.act_all(1);
    }
    void data_arrives() {
        ends.arrive_all(0);
        ends.act_all(1);
    }
    void adverts_arrive() {
        ends.arrive_all(1);
        ends.act_all(0);
    }
    void TearDown() override {
        ends.settle();
        EXPECT_EQ(ends.failure(), "");
    }

    TwoEnds ends;
};

// stale_by_phase_alone
TEST_F(StreamReplay, AnAdvertisementOfANewerPhaseIsStaleWhereItsPlaceHasBeenPassed) {
    send(1);
    data_arrives();
    receive();
    receive();  // caught up: of phase 2, place 1
    ASSERT_EQ(ends.receiver(1).phase(), 2U);
    send(1);  // place 1 goes to the ring
    adverts_arrive();
    send(1);
    EXPECT_EQ(ends.sender(0).counts().direct_transfers, 0U);
}

// void_estimate_kept, void_phase_again
TEST_F(StreamReplay, WhatIsVoidIsAdvertisedAgainFromWhereTheReceiverIs) {
    ends = TwoEnds{with_slots()};
    receive();
    receive();
    receive();  // of phase 0, places 0, 1 and 2
    send(1);    // before they come
    data_arrives();
    ASSERT_EQ(ends.receiver(1).phase(), 2U);
    EXPECT_EQ(ends.receiver(1).counts().adverts, 5U);
    EXPECT_EQ(ends.receiver(1).estimate(), 3U) << "two that begin at place 1";
    adverts_arrive();
    EXPECT_EQ(ends.sender(0).counts().adverts_stale, 3U);
    EXPECT_EQ(ends.sender(0).adverts(), 2U);
    send(4);
    data_arrives();
    EXPECT_EQ(ends.sender(0).counts().direct_bytes, 4U);
    EXPECT_EQ(ends.done(1, 1)->length, 4U);
}

TEST_F(StreamReplay, FewerReceivesAreAdvertisedAgainEachTimeThatItIsInVain) {
    ends = TwoEnds{with_slots()};
    for (int i = 0; i < 8; ++i) receive();
    EXPECT_EQ(ends.receiver(1).counts().adverts, 8U);
    std::uint64_t before = 8;
    for (const std::uint64_t more : {7U, 4U, 2U, 1U, 1U}) {
        send(1);  // before they come
        ends.arrive_all(1);
        data_arrives();
        EXPECT_EQ(ends.receiver(1).counts().adverts - before, more);
        before = ends.receiver(1).counts().adverts;
    }
    // One of them is used: then there are as many as ever.
    adverts_arrive();
    send(1);
    for (int i = 0; i < 3; ++i) receive();
    data_arrives();
    EXPECT_EQ(ends.sender(0).counts().direct_transfers, 1U);
    EXPECT_EQ(ends.receiver(1).advertised(), ends.receiver(1).outstanding());
}

// estimate_high, estimate_low
TEST_F(StreamReplay, TheEstimateIsExactWhenTheReceiverHasCaughtUp) {
    receive();
    adverts_arrive();
    send(3);
    data_arrives();
    EXPECT_EQ(ends.receiver(1).estimate(), 3U);
    send(1);
    data_arrives();
    receive();
    EXPECT_EQ(ends.receiver(1).estimate(), 4U);
    receive();
    adverts_arrive();
    EXPECT_EQ(ends.sender(0).adverts(), 1U);
}

// ack_lost
TEST_F(StreamReplay, RoomInTheRingComesBack) {
    send(4);
    send(4);
    data_arrives();
    receive();
    adverts_arrive();
    EXPECT_EQ(ends.sender(0).unsent(), 0U);
}

// cancelled_at_once
TEST_F(StreamReplay, ATransferThatCrossesACancelFindsItsBuffer) {
    receive();
    adverts_arrive();
    ASSERT_EQ(ends.cancel(1, 0), Status::ok);
    ends.act_all(1);
    send(2);
    data_arrives();
    ASSERT_TRUE(ends.done(1, 0));
    EXPECT_EQ(ends.done(1, 0)->status, Status::ok);
    EXPECT_EQ(ends.done(1, 0)->length, 2U);
}

// cancel_keeps_adverts
TEST_F(StreamReplay, NoTransferGoesToAnAdvertisementBehindItsCancel) {
    receive();
    receive();
    adverts_arrive();
    ASSERT_EQ(ends.cancel(1, 1), Status::ok);
    ends.act_all(1);
    adverts_arrive();
    EXPECT_EQ(ends.sender(0).adverts(), 0U);
    data_arrives();
    ASSERT_TRUE(ends.done(1, 1));
    EXPECT_EQ(ends.done(1, 1)->status, Status::cancelled);
    adverts_arrive();
    send(1);
    send(1);
}

// wait_all_given_up
TEST_F(StreamReplay, AReceiveThatWaitsForAllIsFilledByManyTransfers) {
    receive(true);
    adverts_arrive();
    send(1);
    send(3);
    data_arrives();
    EXPECT_EQ(ends.sender(0).counts().direct_bytes, 4U);
    ASSERT_TRUE(ends.done(1, 0));
    EXPECT_EQ(ends.done(1, 0)->length, 4U);
}

// credit_leaked, never_returned
TEST_F(StreamReplay, CreditsComeBackThoughTheReceiverHasNothingToSay) {
    ASSERT_EQ(ends.receive(1, 32, true), Status::ok);
    ends.settle();
    for (int i = 0; i < 32; ++i) send(1);
    ends.settle();
    ASSERT_TRUE(ends.done(1, 0));
    EXPECT_EQ(ends.done(1, 0)->length, 32U);
}

// no_reserve
TEST_F(StreamReplay, TransfersOfBothEndsLeaveCreditsForWhatReturnsThem) {
    Terms wide = terms();
    wide.outgoing.ring_bytes = wide.incoming.ring_bytes = 16;
    ends = TwoEnds{wide};
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(ends.send(0, 1), Status::ok);
        ASSERT_EQ(ends.send(1, 1), Status::ok);
        ends.act_all(0);
        ends.act_all(1);
    }
    ends.settle();
    EXPECT_EQ(ends.sender(0).unsent(), 0U);
    EXPECT_EQ(ends.sender(1).unsent(), 0U);
}

// last_credit_spent
TEST_F(StreamReplay, AdvertisementsOfBothEndsLeaveACreditForWhatReturnsThem) {
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(ends.receive(0, 4), Status::ok);
        ASSERT_EQ(ends.receive(1, 4), Status::ok);
    }
    ends.act_all(0);
    ends.act_all(1);
    ends.settle();
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(ends.send(0, 4), Status::ok);
        ASSERT_EQ(ends.send(1, 4), Status::ok);
    }
    ends.settle();
    EXPECT_EQ(ends.received(0), 32U);
    EXPECT_EQ(ends.received(1), 32U);
}

// awaits_for_ever
class StreamReplayOfLongSends : public StreamReplay {
  protected:
    StreamReplayOfLongSends() : StreamReplay{awaiting()} {}
    static Terms awaiting() {
        Terms with = terms();
        with.awaited_bytes = 2;
        return with;
    }
};

TEST_F(StreamReplayOfLongSends, WaitForAnAdvertisementThatIsLate) {
    receive();
    adverts_arrive();
    send(2);
    send(2);
    EXPECT_TRUE(ends.sender(0).is_awaiting());
    EXPECT_EQ(ends.sender(0).counts().indirect_transfers, 0U);
    data_arrives();
    receive();
    adverts_arrive();
    EXPECT_FALSE(ends.sender(0).is_awaiting());
    EXPECT_EQ(ends.sender(0).counts().direct_transfers, 2U);
}

TEST_F(StreamReplayOfLongSends, GoToTheRingWhenTimeIsOver) {
    receive();
    adverts_arrive();
    send(2);
    send(2);
    send(1);
    ASSERT_TRUE(ends.stop_awaiting(0));
    EXPECT_FALSE(ends.stop_awaiting(0));
    ends.act_all(0);
    EXPECT_EQ(ends.sender(0).counts().indirect_transfers, 1U);
    EXPECT_EQ(ends.sender(0).unsent(), 0U) << "what is shorter goes with it";
}

TEST_F(StreamReplayOfLongSends, WaitForNothingWhereNothingWasEverAdvertised) {
    send(2);
    EXPECT_EQ(ends.sender(0).unsent(), 0U);
}

TEST_F(StreamReplayOfLongSends, GoAtOnceWhereTheyAreTo) {
    receive();
    adverts_arrive();
    send(2);
    ASSERT_EQ(ends.send(0, 2, false, true), Status::ok);
    ends.act_all(0);
    EXPECT_EQ(ends.sender(0).unsent(), 0U);
}

TEST_F(StreamReplayOfLongSends, DoNotWaitEachTimeWhereItIsInVain) {
    receive();
    adverts_arrive();
    send(2);
    data_arrives();
    std::uint64_t waited = 0;
    for (int turn = 0; turn < 12; ++turn) {
        // As many receives as are filled, each time too late.
        send(2);
        waited += ends.stop_awaiting(0) ? 1 : 0;
        ends.act_all(0);
        EXPECT_EQ(ends.sender(0).unsent(), 0U);
        data_arrives();
        receive();
        ends.settle();
        receive();
        adverts_arrive();
        send(2);
        ends.settle();
    }
    EXPECT_GT(waited, 1U);
    EXPECT_LT(waited, 6U);
}

// put_off_for_ever
class StreamReplayOfSendsThatArePutOff : public StreamReplay {
  protected:
    StreamReplayOfSendsThatArePutOff() : StreamReplay{putting_off()} {}
    static Terms putting_off() {
        Terms with = with_slots();
        with.outgoing.ring_bytes = with.incoming.ring_bytes = 16;
        with.awaited_bytes = with.put_off_bytes = 2;
        return with;
    }
};

TEST_F(StreamReplayOfSendsThatArePutOff, GoToTheRingThoughBothEndsSendBeforeTheyReceive) {
    for (const unsigned end : {0U, 1U}) ASSERT_EQ(ends.receive(end, 4), Status::ok);
    ends.settle();
    // Straight into those; and behind them to the ring, as the next receives are late.
    for (const std::uint64_t length : {4, 2, 2}) {
        for (const unsigned end : {0U, 1U}) {
            ASSERT_EQ(ends.send(end, length), Status::ok);
            ends.act_all(end);
            EXPECT_EQ(ends.sender(end).is_awaiting(), length == 2);
            (void)ends.stop_awaiting(end);
            ends.act_all(end);
            EXPECT_EQ(ends.sender(end).unsent(), 0U);
        }
    }
    EXPECT_EQ(ends.sender(0).counts().direct_transfers, 1U);
    EXPECT_EQ(ends.sender(1).counts().indirect_transfers, 2U);
}

// lent_acknowledged
TEST_F(StreamReplay, WhatIsLentIsNotAcknowledgedBeforeItIsGivenBack) {
    send(4);
    data_arrives();
    ASSERT_TRUE(ends.lend(1));
    ends.act_all(1);
    adverts_arrive();
    EXPECT_EQ(ends.sender(0).room(), 0U);
    send(4);
    ends.settle();  // nothing may come over what is looked at
    ends.give_back(1, 4);
    ends.settle();
    EXPECT_EQ(ends.receiver(1).buffered(), 4U);
}

// copied_while_lent
TEST_F(StreamReplay, WhatIsLentIsNotCopiedToAReceiveBehindIt) {
    send(3);
    data_arrives();
    ASSERT_TRUE(ends.lend(1));
    receive();
    EXPECT_EQ(ends.receiver(1).outstanding(), 1U);
    ends.give_back(1, 2);
    ends.act_all(1);
    ASSERT_TRUE(ends.done(1, 0).has_value());
    EXPECT_EQ(ends.done(1, 0)->length, 1U);
}

// no_hold_off
TEST_F(StreamReplay, NothingIsAdvertisedBehindWhatIsLent) {
    send(3);
    data_arrives();
    ASSERT_TRUE(ends.lend(1));
    receive();
    EXPECT_EQ(ends.receiver(1).counts().adverts, 0U) << "of a place behind what is lent";
    ends.give_back(1, 3);
    ends.act_all(1);
    EXPECT_EQ(ends.receiver(1).estimate(), 4U);
    adverts_arrive();
    send(2);
    EXPECT_EQ(ends.sender(0).counts().direct_bytes, 2U);
}

// no_hold_off, as the model ends it: the receive that was advertised behind the ring's bytes is
// filled with them, and its buffer is the program's when the direct transfer lands there. (The
// model copies when it likes; the code copies before it advertises, unless the bytes are lent.)
TEST_F(StreamReplay, NothingLandsInAReceiveThatTheRingHasFilled) {
    send(3);
    data_arrives();
    ASSERT_TRUE(ends.lend(1));
    receive();
    adverts_arrive();
    send(1);  // on its way
    ends.give_back(1, 1);
    ends.act_all(1);
    ASSERT_TRUE(ends.done(1, 0).has_value()) << "with what was left in the ring";
    EXPECT_EQ(ends.done(1, 0)->length, 2U);
    data_arrives();
    EXPECT_EQ(ends.failure(), "");
    EXPECT_EQ(ends.sender(0).counts().direct_bytes, 0U);
    receive();
    ASSERT_TRUE(ends.done(1, 1).has_value());
    EXPECT_EQ(ends.received(1), 4U);
}

// forgone_unraised
TEST_F(StreamReplay, WhatIsForgoneMakesStaleWhatIsBehindIt) {
    Terms with = with_slots();
    with.short_bytes = 2;
    ends = TwoEnds{with};
    for (int i = 0; i < 7; ++i) {
        receive();
        adverts_arrive();
        send(1);
        data_arrives();
    }
    send(1);  // to the ring
    data_arrives();
    receive();
    adverts_arrive();  // an ACK
    receive();
    receive();  // of phase 2, places 8 and 9
    ASSERT_TRUE(ends.arrive(1));
    EXPECT_EQ(ends.sender(0).adverts(), 1U);
    send(1);
    EXPECT_EQ(ends.sender(0).counts().adverts_forgone, 1U);
    EXPECT_EQ(ends.sender(0).phase(), 3U);
    adverts_arrive();
    EXPECT_EQ(ends.sender(0).counts().adverts_stale, 1U) << "its place is the next";
    send(3);  // not short
    data_arrives();
    EXPECT_EQ(ends.failure(), "");
    EXPECT_EQ(ends.sender(0).counts().direct_transfers, 7U);
}

class StreamReplayOfMessages : public StreamReplay {
  protected:
    StreamReplayOfMessages() : StreamReplay{with_marks()} {}
    static Terms with_marks() {
        Terms with = terms();
        with.outgoing.mark_bytes = with.incoming.mark_bytes = 2;
        return with;
    }
};

// mark_not_estimated
TEST_F(StreamReplayOfMessages, TheEstimateCountsTheMarksThatHaveCome) {
    receive();
    adverts_arrive();
    send(3);
    data_arrives();
    EXPECT_EQ(ends.receiver(1).sequence(), 5U);
    EXPECT_EQ(ends.receiver(1).estimate(), 5U);
    send(0);
    data_arrives();
    receive();
    EXPECT_EQ(ends.receiver(1).estimate(), 7U);
    EXPECT_EQ(ends.messages(1), 2U);
}

// cancelled_in_message
TEST_F(StreamReplayOfMessages, AReceiveWithTheBeginningOfAMessageGetsTheRest) {
    ASSERT_EQ(ends.receive(1, 10, false, false), Status::ok);
    send(7);  // three bytes more than the ring
    data_arrives();
    ASSERT_EQ(ends.cancel(1, 0), Status::ok);
    ends.settle();
    ASSERT_TRUE(ends.done(1, 0).has_value());
    EXPECT_EQ(ends.done(1, 0)->status, Status::ok);
    EXPECT_EQ(ends.done(1, 0)->length, 7U);
}

}  // namespace
}  // namespace millrace::stream
