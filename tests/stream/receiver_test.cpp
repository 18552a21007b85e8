// The receiving half alone: when it advertises, and what it does not believe of a sender.
#include "receiver.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace millrace::stream {
namespace {

using base::Status;

TransferMessage direct(std::uint64_t sequence, std::uint32_t length, std::uint32_t number) {
    return {{MessageKind::direct}, sequence, length, number};
}
TransferMessage indirect(std::uint64_t sequence, std::uint32_t length) {
    return {{MessageKind::indirect}, sequence, length, 0};
}
TransferMessage unhurried(TransferMessage message) {
    message.header.flags = transfer_unhurried;
    return message;
}
TransferMessage ending(TransferMessage message, std::uint8_t more = 0) {
    message.header.flags = transfer_ends_message | more;
    return message;
}
template <class Body>
Body at(std::uint64_t sequence) {
    Body message;
    message.sequence = sequence;
    return message;
}

class StreamReceiver : public testing::Test {
  protected:
    explicit StreamReceiver(DirectionTerms terms = {Mode::dynamic, 16, 3},
                            bool advertises_again = true)
        : receiver{terms, {.receives = 4, .advertises_again = advertises_again}} {}

    void receive(std::uint64_t length, bool wait_all = false) {
        ASSERT_EQ(receiver.receive({next_id, next_id << 12, length, 7, wait_all}), Status::ok);
        ++next_id;
    }
    void advertise() {
        ASSERT_TRUE(receiver.may_advertise());
        last = receiver.take_advert();
    }
    /// Copies what there is to copy; how many bytes.
    std::uint64_t copy() {
        std::uint64_t sum = 0;
        for (CopyOut copied; receiver.next_copy(copied);) sum += copied.length;
        return sum;
    }
    void expect_done(std::uint64_t id, std::uint64_t length, Status status) {
        ReceiveDone done;
        ASSERT_TRUE(receiver.next_done(done));
        EXPECT_EQ(done.receive, id);
        EXPECT_EQ(done.length, length);
        EXPECT_EQ(done.status, status);
    }
    void expect_none_done() {
        ReceiveDone done;
        EXPECT_FALSE(receiver.next_done(done));
    }

    Receiver receiver;
    AdvertMessage last;
    std::uint64_t next_id = 1;
};
class StreamReceiverInModeDirect : public StreamReceiver {
  protected:
    StreamReceiverInModeDirect() : StreamReceiver{{Mode::direct, 0, 3}} {}
};
class StreamReceiverOfMessages : public StreamReceiver {
  protected:
    StreamReceiverOfMessages() : StreamReceiver{{Mode::dynamic, 16, 3, 2}} {}
};
class StreamReceiverInModeIndirect : public StreamReceiver {
  protected:
    StreamReceiverInModeIndirect() : StreamReceiver{{Mode::indirect, 16, 0}} {}
};

TEST_F(StreamReceiver, LendsWhatIsFirstInTheRingInOnePiece) {
    Lent lent;
    EXPECT_FALSE(receiver.lend(lent)) << "there is nothing";
    ASSERT_EQ(receiver.on_indirect(indirect(0, 13)), Violation::none);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.ring_offset, 0U);
    EXPECT_EQ(lent.length, 13U);
    EXPECT_FALSE(receiver.owes_acknowledgement());
    receiver.give_back(12);
    EXPECT_EQ(receiver.take_acknowledgement().taken, 12U);
    ASSERT_EQ(receiver.on_indirect(indirect(13, 3)), Violation::none);
    ASSERT_EQ(receiver.on_indirect(indirect(16, 5)), Violation::none);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.ring_offset, 12U);
    EXPECT_EQ(lent.length, 4U) << "to the end of the ring";
    receiver.give_back(4);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.ring_offset, 0U);
    EXPECT_EQ(lent.length, 5U);
    ASSERT_EQ(receiver.on_indirect(indirect(21, 2)), Violation::none);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.length, 7U) << "asked again, with what has come";
    receiver.give_back(0);
    EXPECT_EQ(receiver.buffered(), 7U);
    EXPECT_EQ(receiver.counts().lent_bytes, 16U);
    EXPECT_EQ(receiver.counts().copies, 0U);
}

TEST_F(StreamReceiver, LendsNothingThatAReceiveGets) {
    Lent lent;
    receive(4);
    ASSERT_EQ(receiver.on_indirect(indirect(0, 6)), Violation::none);
    EXPECT_FALSE(receiver.lend(lent));
    EXPECT_EQ(copy(), 4U);
    EXPECT_FALSE(receiver.lend(lent)) << "its end is not known yet";
    expect_done(1, 4, Status::ok);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.length, 2U);
    receive(4);
    EXPECT_EQ(copy(), 0U) << "it waits for what is lent";
    EXPECT_FALSE(receiver.may_advertise());
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.length, 2U);
    ASSERT_EQ(receiver.on_fin(at<FinMessage>(6)), Violation::none);
    expect_none_done();
    receiver.give_back(2);
    expect_done(2, 0, Status::closed);
}

TEST_F(StreamReceiverOfMessages, LendsPartsOfOneMessageAtATime) {
    Lent lent;
    ASSERT_EQ(receiver.on_indirect(indirect(0, 3)), Violation::none);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.length, 3U);
    EXPECT_FALSE(lent.ends_message);
    ASSERT_EQ(receiver.on_indirect(ending(indirect(3, 0))), Violation::none);
    ASSERT_EQ(receiver.on_indirect(ending(indirect(5, 2))), Violation::none);
    receiver.give_back(3);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.length, 0U) << "its mark, of which the view before did not know";
    EXPECT_TRUE(lent.ends_message);
    receiver.give_back(0);
    ASSERT_TRUE(receiver.lend(lent));
    EXPECT_EQ(lent.length, 2U);
    EXPECT_TRUE(lent.ends_message);
    receiver.give_back(1);
    receive(4);
    EXPECT_EQ(copy(), 1U) << "the rest is what a receive takes";
    expect_done(1, 1, Status::ok);
    EXPECT_EQ(receiver.buffered(), 0U);
    EXPECT_EQ(receiver.sequence(), 9U);
}

TEST_F(StreamReceiver, LeavesUnadvertisedWhatMayNotBeAndWhatIsBehindIt) {
    receive(4);
    ASSERT_EQ(receiver.receive({.id = 9, .address = 9 << 12, .length = 2, .advertised = false}),
              Status::ok);
    receive(4);
    advertise();
    EXPECT_FALSE(receiver.may_advertise());
    ASSERT_EQ(receiver.on_direct(direct(0, 1, 0)), Violation::none);
    expect_done(1, 1, Status::ok);
    EXPECT_FALSE(receiver.may_advertise());
    // It takes its bytes from the ring, and then the next one is.
    ASSERT_EQ(receiver.on_indirect(indirect(1, 2)), Violation::none);
    EXPECT_EQ(copy(), 2U);
    expect_done(9, 2, Status::ok);
    advertise();
    EXPECT_EQ(last.sequence, 3U);
    EXPECT_EQ(last.phase, 2U);
}

TEST_F(StreamReceiver, RefusesLengthsThatNoReceiveHas) {
    EXPECT_EQ(receiver.receive({1, 0, 0, 0, false}), Status::empty);
    EXPECT_EQ(receiver.receive({1, 0, longest_operation + 1, 0, false}), Status::too_large);
    for (int i = 0; i < 4; ++i) receive(1);
    EXPECT_EQ(receiver.receive({9, 0, 1, 0, false}), Status::full);
}

TEST_F(StreamReceiver, EstimatesOneByteForAReceiveAndAllOfOneThatWaitsForAll) {
    receive(8);
    receive(8, true);
    receive(8);
    advertise();
    EXPECT_EQ(last.sequence, 0U);
    advertise();
    EXPECT_EQ(last.sequence, 1U);
    EXPECT_TRUE(last.wait_all());
    advertise();
    EXPECT_EQ(last.sequence, 9U);
    EXPECT_EQ(receiver.estimate(), 10U);
    ASSERT_EQ(receiver.on_direct(direct(0, 5, 0)), Violation::none);
    EXPECT_EQ(receiver.estimate(), 14U);
    ASSERT_EQ(receiver.on_direct(direct(5, 6, 1)), Violation::none);
    ASSERT_EQ(receiver.on_direct(direct(11, 2, 1)), Violation::none);
    EXPECT_EQ(receiver.estimate(), 14U);
    ASSERT_EQ(receiver.on_direct(direct(13, 1, 2)), Violation::none);
    EXPECT_EQ(receiver.estimate(), 14U);
    EXPECT_EQ(receiver.sequence(), 14U);
}

TEST_F(StreamReceiver, AdvertisesNoMoreThanWasAgreedOn) {
    for (int i = 0; i < 4; ++i) receive(8);
    for (int i = 0; i < 3; ++i) advertise();
    EXPECT_FALSE(receiver.may_advertise());
}

TEST(StreamReceiverOfShortOnes, AdvertisesThemWhereManyAreOfferedOrWereLately) {
    Receiver receiver{{Mode::dynamic, 1024, 8}, {.receives = 8, .offered_bytes = 400}};
    std::uint64_t id = 0;
    const auto offer = [&](std::uint64_t length) {
        ASSERT_EQ(receiver.receive({id, 4096, length, 7}), Status::ok);
        ++id;
    };
    for (int i = 0; i < 3; ++i) offer(100);
    EXPECT_FALSE(receiver.may_advertise()) << "300 bytes are offered";
    offer(100);
    for (std::uint32_t number = 0; number < 4; ++number) {
        ASSERT_TRUE(receiver.may_advertise());
        ASSERT_EQ(receiver.on_direct(direct(number * 100, 100, receiver.take_advert().number)),
                  Violation::none);
    }
    offer(100);
    EXPECT_TRUE(receiver.may_advertise()) << "there were 400 lately";
    // One alone, again and again.
    std::uint64_t place = 400;
    for (int i = 0; i < 100 && receiver.may_advertise(); ++i, place += 100) {
        ASSERT_EQ(receiver.on_direct(direct(place, 100, receiver.take_advert().number)),
                  Violation::none);
        for (ReceiveDone done; receiver.next_done(done);) continue;
        offer(100);
    }
    EXPECT_FALSE(receiver.may_advertise()) << "nobody offers more than one";
    ASSERT_EQ(receiver.cancel(id - 1), Status::ok);
    offer(400);
    EXPECT_TRUE(receiver.may_advertise()) << "that one is long";
}

TEST_F(StreamReceiver, HoldsOffWhileThereAreBytesInTheRing) {
    ASSERT_EQ(receiver.on_indirect(indirect(0, 4)), Violation::none);
    receive(2);
    EXPECT_FALSE(receiver.may_advertise());
    receive(2);
    receive(2);
    EXPECT_EQ(copy(), 4U);
    advertise();
    EXPECT_EQ(last.phase, 2U);
    EXPECT_EQ(last.sequence, 4U);
}

TEST_F(StreamReceiver, AdvertisesAgainWhatIsVoidBehindTheEmptyRing) {
    receive(8);
    receive(8);
    receive(8, true);
    for (int i = 0; i < 3; ++i) advertise();
    receive(8);
    ASSERT_EQ(receiver.on_indirect(indirect(0, 4)), Violation::none);
    EXPECT_FALSE(receiver.may_advertise());
    EXPECT_EQ(copy(), 4U);
    advertise();
    EXPECT_EQ(last.phase, 2U);
    EXPECT_EQ(last.sequence, 4U);
    EXPECT_EQ(last.number, 3U);
    EXPECT_EQ(last.address, 2U << 12);
    advertise();
    EXPECT_EQ(last.sequence, 5U);
    EXPECT_EQ(last.address, 3U << 12);
    advertise();
    EXPECT_EQ(last.sequence, 13U) << "behind one that waits for all";
    // What names a void one names nothing.
    EXPECT_EQ(receiver.on_direct(direct(4, 1, 1)), Violation::direct_unexpected);
}

// As work 003 has it.
class StreamReceiverThatAdvertisesOnce : public StreamReceiver {
  protected:
    StreamReceiverThatAdvertisesOnce() : StreamReceiver{{Mode::dynamic, 16, 3}, false} {}
};
TEST_F(StreamReceiverThatAdvertisesOnce, HoldsOffUntilEveryVoidAdvertisementIsSatisfied) {
    receive(8);
    receive(8);
    advertise();
    advertise();
    receive(8);
    ASSERT_EQ(receiver.on_indirect(indirect(0, 4)), Violation::none);
    EXPECT_EQ(copy(), 4U);
    EXPECT_FALSE(receiver.may_advertise());
    ASSERT_EQ(receiver.on_indirect(indirect(4, 1)), Violation::none);
    EXPECT_EQ(copy(), 1U);
    advertise();
    EXPECT_EQ(last.phase, 2U);
    EXPECT_EQ(last.sequence, 5U);
    EXPECT_EQ(last.number, 2U);
}

TEST_F(StreamReceiver, AdvertisesTheRestOfAReceiveThatWaitsForAll) {
    ASSERT_EQ(receiver.on_indirect(indirect(0, 4)), Violation::none);
    receive(10, true);
    EXPECT_EQ(copy(), 4U);
    advertise();
    EXPECT_EQ(last.address, (1U << 12) + 4U);
    EXPECT_EQ(last.length, 6U);
    EXPECT_EQ(receiver.estimate(), 10U);
}

TEST_F(StreamReceiver, LeavesTheAcknowledgementOfAFewBytesThatNobodyWaitsFor) {
    const auto take = [&](const TransferMessage& message) {
        ASSERT_EQ(receiver.on_indirect(message), Violation::none);
        Lent lent;
        ASSERT_TRUE(receiver.lend(lent));
        receiver.give_back(lent.length, true);
    };
    take(unhurried(indirect(0, 1)));
    EXPECT_FALSE(receiver.owes_acknowledgement());
    take(unhurried(indirect(1, 1)));
    EXPECT_TRUE(receiver.owes_acknowledgement()) << "an eighth of the ring";
    EXPECT_EQ(receiver.take_acknowledgement().taken, 2U);
    EXPECT_EQ(receiver.counts().copies, 2U);
    take(unhurried(indirect(2, 1)));
    EXPECT_FALSE(receiver.owes_acknowledgement());
    take(indirect(3, 1));
    EXPECT_TRUE(receiver.owes_acknowledgement()) << "whose sender may wait";
    EXPECT_EQ(receiver.take_acknowledgement().taken, 4U);
    take(unhurried(indirect(4, 1)));
    EXPECT_FALSE(receiver.owes_acknowledgement());
    receive(8);
    advertise();
    EXPECT_TRUE(receiver.owes_acknowledgement()) << "a sender that holds back waits for it";
}

TEST_F(StreamReceiverOfMessages, RefusesUnhurriedOnes) {
    EXPECT_EQ(receiver.on_indirect(unhurried(indirect(0, 1))), Violation::message_mark);
    auto message = ending(indirect(0, 1), transfer_unhurried);
    EXPECT_EQ(receiver.on_indirect(message), Violation::message_mark);
}

TEST_F(StreamReceiver, AcknowledgesAllCopiesSoFarAtOnce) {
    EXPECT_FALSE(receiver.owes_acknowledgement());
    ASSERT_EQ(receiver.on_indirect(indirect(0, 6)), Violation::none);
    receive(4);
    receive(4);
    EXPECT_EQ(copy(), 6U);
    ASSERT_TRUE(receiver.owes_acknowledgement());
    EXPECT_EQ(receiver.take_acknowledgement().taken, 6U);
    EXPECT_FALSE(receiver.owes_acknowledgement());
}

TEST_F(StreamReceiver, FillsAReceiveOverTheEndOfTheRing) {
    ASSERT_EQ(receiver.on_indirect(indirect(0, 12)), Violation::none);
    receive(12);
    EXPECT_EQ(copy(), 12U);
    expect_done(1, 12, Status::ok);
    ASSERT_EQ(receiver.on_indirect(indirect(12, 4)), Violation::none);
    ASSERT_EQ(receiver.on_indirect(indirect(16, 3)), Violation::none);
    receive(12);
    EXPECT_EQ(copy(), 7U);
    expect_done(2, 7, Status::ok);
}

TEST_F(StreamReceiver, ReturnsACancelledBufferAtOnceOnlyIfItWasNotAdvertised) {
    receive(8);
    receive(8);
    receive(8);
    advertise();
    advertise();
    EXPECT_EQ(receiver.cancel(3), Status::ok);
    expect_done(3, 0, Status::cancelled);
    EXPECT_EQ(receiver.cancel(3), Status::empty);
    EXPECT_EQ(receiver.cancel(2), Status::ok);
    expect_none_done();
    EXPECT_TRUE(receiver.owes_cancel());
    (void)receiver.take_cancel();
    EXPECT_FALSE(receiver.may_advertise());
    // What was on its way comes first.
    ASSERT_EQ(receiver.on_direct(direct(0, 3, 0)), Violation::none);
    expect_done(1, 3, Status::ok);
    ASSERT_EQ(receiver.on_cancelled(at<CancelledMessage>(3)), Violation::none);
    expect_done(2, 0, Status::cancelled);
    EXPECT_EQ(receiver.estimate(), 3U);
}

TEST_F(StreamReceiver, AdvertisesAnewWhatACancelTookBackBesides) {
    receive(8, true);
    receive(8);
    advertise();
    advertise();
    ASSERT_EQ(receiver.on_direct(direct(0, 3, 0)), Violation::none);
    ASSERT_EQ(receiver.cancel(2), Status::ok);
    (void)receiver.take_cancel();
    ASSERT_EQ(receiver.on_cancelled(at<CancelledMessage>(3)), Violation::none);
    expect_done(2, 0, Status::cancelled);
    advertise();
    EXPECT_EQ(last.number, 2U);
    EXPECT_EQ(last.sequence, 3U);
    EXPECT_EQ(last.length, 5U);
    ASSERT_EQ(receiver.on_direct(direct(3, 5, 2)), Violation::none);
    expect_done(1, 8, Status::ok);
}

TEST_F(StreamReceiver, EndsEveryReceiveBehindTheLastByte) {
    ASSERT_EQ(receiver.on_indirect(indirect(0, 4)), Violation::none);
    ASSERT_EQ(receiver.on_fin(at<FinMessage>(4)), Violation::none);
    EXPECT_FALSE(receiver.finished());
    receive(3);
    receive(3, true);
    receive(3);
    EXPECT_EQ(copy(), 4U);
    expect_done(1, 3, Status::ok);
    expect_done(2, 1, Status::ok);
    expect_done(3, 0, Status::closed);
    EXPECT_TRUE(receiver.finished());
    receive(3);
    expect_done(4, 0, Status::closed);
}

TEST_F(StreamReceiver, TakesFinForTheAnswerToACancel) {
    receive(8);
    receive(8);
    advertise();
    advertise();
    ASSERT_EQ(receiver.cancel(2), Status::ok);
    (void)receiver.take_cancel();
    ASSERT_EQ(receiver.on_fin(at<FinMessage>(0)), Violation::none);
    expect_done(1, 0, Status::closed);
    expect_done(2, 0, Status::cancelled);
    EXPECT_FALSE(receiver.may_advertise());
}

// ---- what cannot be true

TEST_F(StreamReceiver, RefusesADirectTransferToNothing) {
    EXPECT_EQ(receiver.on_direct(direct(0, 1, 0)), Violation::direct_unexpected);
    receive(8);
    EXPECT_EQ(receiver.on_direct(direct(0, 1, 0)), Violation::direct_unexpected);
    advertise();
    EXPECT_EQ(receiver.on_direct(direct(0, 1, 1)), Violation::direct_unexpected);
    EXPECT_EQ(receiver.on_direct(direct(1, 1, 0)), Violation::sequence_gap);
    EXPECT_EQ(receiver.on_direct(direct(0, 0, 0)), Violation::direct_overrun);
    EXPECT_EQ(receiver.on_direct(direct(0, 9, 0)), Violation::direct_overrun);
    EXPECT_EQ(receiver.on_direct(direct(0, 8, 0)), Violation::none);
}

TEST_F(StreamReceiver, RefusesADirectTransferToAVoidAdvertisement) {
    receive(8);
    receive(8);
    advertise();
    advertise();
    ASSERT_EQ(receiver.on_indirect(indirect(0, 1)), Violation::none);
    EXPECT_EQ(receiver.on_direct(direct(1, 1, 0)), Violation::direct_unexpected);
    EXPECT_EQ(copy(), 1U);
    EXPECT_EQ(receiver.on_direct(direct(1, 1, 1)), Violation::direct_unexpected);
}

TEST_F(StreamReceiver, RefusesWhatDoesNotFitTheRing) {
    EXPECT_EQ(receiver.on_indirect(indirect(0, 17)), Violation::indirect_overrun);
    EXPECT_EQ(receiver.on_indirect(indirect(0, 0)), Violation::indirect_overrun);
    EXPECT_EQ(receiver.on_indirect(indirect(1, 1)), Violation::sequence_gap);
    ASSERT_EQ(receiver.on_indirect(indirect(0, 10)), Violation::none);
    receive(8);
    EXPECT_EQ(copy(), 8U);
    EXPECT_EQ(receiver.on_indirect(indirect(10, 7)), Violation::indirect_overrun);  // over its end
    ASSERT_EQ(receiver.on_indirect(indirect(10, 6)), Violation::none);
    EXPECT_EQ(receiver.on_indirect(indirect(16, 9)), Violation::indirect_overrun);  // over its room
    EXPECT_EQ(receiver.on_indirect(indirect(16, 8)), Violation::none);
}

TEST_F(StreamReceiver, RefusesACancelledThatAnswersNothing) {
    EXPECT_EQ(receiver.on_cancelled(at<CancelledMessage>(0)), Violation::cancelled_unexpected);
    receive(8);
    advertise();
    ASSERT_EQ(receiver.cancel(1), Status::ok);
    EXPECT_EQ(receiver.on_cancelled(at<CancelledMessage>(0)), Violation::cancelled_unexpected);
    (void)receiver.take_cancel();
    EXPECT_EQ(receiver.on_cancelled(at<CancelledMessage>(1)), Violation::sequence_gap);
    EXPECT_EQ(receiver.on_cancelled(at<CancelledMessage>(0)), Violation::none);
}

TEST_F(StreamReceiver, RefusesMoreOfTheStreamBehindItsEnd) {
    EXPECT_EQ(receiver.on_fin(at<FinMessage>(1)), Violation::sequence_gap);
    ASSERT_EQ(receiver.on_fin(at<FinMessage>(0)), Violation::none);
    EXPECT_EQ(receiver.on_fin(at<FinMessage>(0)), Violation::after_end);
    EXPECT_EQ(receiver.on_indirect(indirect(0, 1)), Violation::after_end);
    EXPECT_EQ(receiver.on_direct(direct(0, 1, 0)), Violation::after_end);
    EXPECT_EQ(receiver.on_cancelled(at<CancelledMessage>(0)), Violation::after_end);
}

TEST_F(StreamReceiverInModeDirect, RefusesIndirectTransfers) {
    EXPECT_EQ(receiver.on_indirect(indirect(0, 1)), Violation::indirect_unexpected);
}

TEST_F(StreamReceiverInModeIndirect, NeverAdvertises) {
    receive(8);
    EXPECT_FALSE(receiver.may_advertise());
    EXPECT_EQ(receiver.on_direct(direct(0, 1, 0)), Violation::direct_unexpected);
    EXPECT_EQ(receiver.cancel(1), Status::ok);
    expect_done(1, 0, Status::cancelled);
}

// --- messages

TEST_F(StreamReceiverOfMessages, GivesEachMessageAReceive) {
    ASSERT_EQ(receiver.on_indirect(ending(indirect(0, 3))), Violation::none);
    ASSERT_EQ(receiver.on_indirect(ending(indirect(5, 0))), Violation::none);
    ASSERT_EQ(receiver.on_indirect(indirect(7, 1)), Violation::none);
    ASSERT_EQ(receiver.on_indirect(ending(indirect(8, 4))), Violation::none);
    for (int i = 0; i < 3; ++i) receive(4);
    EXPECT_EQ(copy(), 7U);
    expect_done(1, 3, Status::ok);
    expect_done(2, 0, Status::ok);
    expect_done(3, 4, Status::too_large);
    EXPECT_EQ(receiver.sequence(), 14U);
    EXPECT_EQ(receiver.estimate(), 14U);
    EXPECT_EQ(receiver.buffered(), 0U);
}

TEST_F(StreamReceiverOfMessages, DoesNotAdvertiseAFullReceiveWhoseMessageGoesOn) {
    receive(4);
    receive(4);
    ASSERT_EQ(receiver.on_indirect(indirect(0, 6)), Violation::none);
    EXPECT_EQ(copy(), 4U);
    expect_none_done();
    EXPECT_FALSE(receiver.may_advertise());
    ASSERT_EQ(receiver.on_indirect(ending(indirect(6, 1))), Violation::none);
    expect_done(1, 4, Status::too_large);
    advertise();
    EXPECT_EQ(last.sequence, 9U);
}

TEST_F(StreamReceiverOfMessages, TellsWhatASenderCutOff) {
    receive(4);
    advertise();
    ASSERT_EQ(receiver.on_direct(ending(direct(0, 4, 0), transfer_cut_off)), Violation::none);
    expect_done(1, 4, Status::too_large);
}

TEST_F(StreamReceiverOfMessages, AccusesWhoPutsMarksWhereNoneCanBe) {
    receive(4);
    advertise();
    // Cut off though there was room, or in the middle; full, and goes on; nothing at all.
    const auto accused = [&](const TransferMessage& message) {
        Receiver copied{receiver};
        return message.header.kind == MessageKind::direct ? copied.on_direct(message)
                                                          : copied.on_indirect(message);
    };
    TransferMessage cut = direct(0, 4, 0);
    cut.header.flags = transfer_cut_off;
    EXPECT_EQ(accused(ending(direct(0, 3, 0), transfer_cut_off)), Violation::message_mark);
    EXPECT_EQ(accused(cut), Violation::message_mark);
    EXPECT_EQ(accused(direct(0, 4, 0)), Violation::message_mark);
    EXPECT_EQ(accused(direct(0, 0, 0)), Violation::direct_overrun);
    EXPECT_EQ(accused(ending(indirect(0, 1), transfer_cut_off)), Violation::message_mark);
    EXPECT_EQ(accused(indirect(0, 0)), Violation::indirect_overrun);
    EXPECT_EQ(accused(ending(indirect(0, 15))), Violation::indirect_overrun);
    EXPECT_EQ(accused(ending(indirect(0, 14))), Violation::none);
    EXPECT_EQ(accused(ending(direct(0, 0, 0))), Violation::none);
}

TEST_F(StreamReceiverOfMessages, AccusesWhoEndsTheStreamInAMessage) {
    ASSERT_EQ(receiver.on_indirect(indirect(0, 3)), Violation::none);
    EXPECT_EQ(receiver.on_fin(at<FinMessage>(3)), Violation::message_mark);
}

TEST_F(StreamReceiver, AccusesWhoPutsMarksIntoAStreamOfBytes) {
    receive(4);
    advertise();
    EXPECT_EQ(receiver.on_direct(ending(direct(0, 3, 0))), Violation::message_mark);
    EXPECT_EQ(receiver.on_indirect(ending(indirect(0, 3))), Violation::message_mark);
}

TEST(StreamReceiverOfPieces, CopiesPieceByPieceAndGivesTheRoomOfEachBack) {
    Receiver receiver{{Mode::dynamic, 16, 3}, {.receives = 4, .ring_piece_bytes = 4}};
    ASSERT_EQ(receiver.receive({1, 4096, 16, 7, true}), Status::ok);
    ASSERT_EQ(receiver.on_indirect(indirect(0, 10)), Violation::none);
    CopyOut copied;
    std::uint64_t taken = 0;
    for (const std::uint64_t length : {4U, 4U}) {
        EXPECT_FALSE(receiver.owes_acknowledgement_early());
        ASSERT_TRUE(receiver.next_copy(copied));
        EXPECT_EQ(copied.length, length);
        EXPECT_EQ(copied.ring_offset, taken);
        taken += length;
        ASSERT_TRUE(receiver.owes_acknowledgement_early());
        EXPECT_EQ(receiver.take_acknowledgement().taken, taken);
    }
    ASSERT_TRUE(receiver.next_copy(copied));
    EXPECT_EQ(copied.length, 2U);
    // Behind the last one an ADVERT may have to go first.
    EXPECT_FALSE(receiver.owes_acknowledgement_early());
    EXPECT_TRUE(receiver.owes_acknowledgement());
    EXPECT_FALSE(receiver.next_copy(copied));
}

}  // namespace
}  // namespace millrace::stream
