// The sending half alone: what it matches, and what it does not believe of a receiver.
#include "sender.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace millrace::stream {
namespace {

using base::Status;

AdvertMessage advert(std::uint64_t sequence, Phase phase, std::uint32_t number,
                     std::uint64_t length = 8) {
    AdvertMessage message;
    message.sequence = sequence;
    message.phase = phase;
    message.address = 0x1000;
    message.length = length;
    message.number = number;
    return message;
}

AdvertMessage waiting_for_all(AdvertMessage message) {
    message.header.flags = advert_wait_all;
    return message;
}

AcknowledgementMessage acknowledgement(std::uint64_t taken) {
    AcknowledgementMessage message;
    message.taken = taken;
    return message;
}

class StreamSender : public testing::Test {
  protected:
    explicit StreamSender(DirectionTerms terms = {Mode::dynamic, 16, 3}) : sender{terms, own()} {}

    static Terms own() {
        Terms terms;
        terms.sends = 8;
        terms.transfer_bytes = 1000;
        terms.coalesced_bytes = 6;
        return terms;
    }

    void send(std::uint64_t length) { ASSERT_EQ(sender.send(next_id++, length), Status::ok); }
    std::optional<Transfer> transfer() {
        Transfer made;
        message = {};
        if (!sender.next_transfer(made, message)) return std::nullopt;
        return made;
    }
    /// Bytes that go to the ring, in one transfer.
    void send_indirectly(std::uint64_t length) {
        send(length);
        const auto made = transfer();
        ASSERT_TRUE(made && !made->direct && made->length == length);
    }

    /// The same of a patient send, which waits for nothing.
    void send_patiently(std::uint64_t length) {
        ASSERT_EQ(sender.send(next_id++, length, true), Status::ok);
        const auto made = transfer();
        ASSERT_TRUE(made && !made->direct && made->length == length);
    }

    Sender sender;
    TransferMessage message;
    std::uint64_t next_id = 0;
};
class StreamSenderInModeDirect : public StreamSender {
  protected:
    StreamSenderInModeDirect() : StreamSender{{Mode::direct, 0, 3}} {}
};
class StreamSenderOfMessages : public StreamSender {
  protected:
    StreamSenderOfMessages() : StreamSender{{Mode::dynamic, 16, 3, 2}} {}
};
class StreamSenderInModeIndirect : public StreamSender {
  protected:
    StreamSenderInModeIndirect() : StreamSender{{Mode::indirect, 16, 0}} {}
};

TEST_F(StreamSender, RefusesLengthsThatNoSendHas) {
    EXPECT_EQ(sender.send(0, 0), Status::empty);
    EXPECT_EQ(sender.send(0, longest_operation + 1), Status::too_large);
    for (int i = 0; i < 8; ++i) send(1);
    EXPECT_EQ(sender.send(0, 1), Status::full);
    sender.shut_down();
    EXPECT_EQ(sender.send(0, 1), Status::closed);
}

TEST_F(StreamSender, EndsWithPeerLostWhatWasNotWritten) {
    send_indirectly(3);
    send_indirectly(4);
    sender.written(3);
    sender.break_off();
    SendDone done;
    ASSERT_TRUE(sender.next_done(done));
    EXPECT_EQ(done.status, Status::ok);
    ASSERT_TRUE(sender.next_done(done));
    EXPECT_EQ(done.status, Status::peer_lost);
    EXPECT_FALSE(sender.next_done(done));
}

TEST_F(StreamSender, GathersWaitingSendsIntoOneTransfer) {
    send(3);
    send(4);
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->length, 7U);
    ASSERT_EQ(made->piece_count, 2U);
    EXPECT_EQ(made->pieces[1].send, 1U);
    EXPECT_EQ(made->pieces[1].offset, 0U);
    EXPECT_EQ(made->pieces[1].length, 4U);
}

TEST_F(StreamSender, SaysThatItWaitsForNoAcknowledgementUntilASendIsPatient) {
    send_indirectly(1);
    EXPECT_EQ(message.header.flags, transfer_unhurried);
    // Those bytes may have been taken long ago: it does not wait behind them.
    ASSERT_EQ(sender.send(next_id++, 2, true), Status::ok);
    EXPECT_FALSE(sender.coalesces());
    ASSERT_TRUE(transfer());
    EXPECT_EQ(message.header.flags, 0U);
    ASSERT_EQ(sender.send(next_id++, 2, true), Status::ok);
    EXPECT_TRUE(sender.coalesces());
    EXPECT_FALSE(transfer());
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(3)), Violation::none);
    ASSERT_TRUE(transfer());
    EXPECT_EQ(message.header.flags, 0U);
}

// Long sends, which wait for an empty ring: of 6 bytes and more, for a ring of 16.
class StreamSenderThatHoldsBack : public StreamSender {
  protected:
    StreamSenderThatHoldsBack() {
        Terms terms = own();
        terms.awaited_bytes = 6;
        sender = Sender{{Mode::dynamic, 16, 3}, terms};
        // It has seen that the receiver advertises, and that it was too late.
        send_indirectly(10);
        EXPECT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    }
    void taken(std::uint64_t bytes) {
        ASSERT_EQ(sender.on_acknowledgement(acknowledgement(bytes)), Violation::none);
    }
};

TEST_F(StreamSenderThatHoldsBack, ASendThatDoesNotFitUntilTheRingIsEmpty) {
    send(8);
    EXPECT_FALSE(transfer());
    EXPECT_TRUE(sender.holds_back());
    taken(6);  // now it would fit
    EXPECT_FALSE(transfer());
    // The receiver has a receive, and has taken all.
    ASSERT_EQ(sender.on_advert(advert(10, 2, 1)), Violation::none);
    taken(10);
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_TRUE(made->direct);
    EXPECT_EQ(made->length, 8U);
}

TEST_F(StreamSenderThatHoldsBack, ASendBehindTheEmptyRingForAnAdvertisementThatIsLate) {
    send(8);
    send(20);
    EXPECT_FALSE(transfer());
    EXPECT_FALSE(sender.is_awaiting()) << "the ring is not empty";
    taken(10);
    EXPECT_FALSE(transfer());
    EXPECT_TRUE(sender.is_awaiting());
    EXPECT_EQ(sender.bytes_to_copy(), 16U) << "as many as the ring takes";
    ASSERT_EQ(sender.on_advert(advert(10, 2, 1)), Violation::none);
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_TRUE(made->direct);
    EXPECT_FALSE(sender.is_awaiting());
}

TEST_F(StreamSenderThatHoldsBack, NoSendBehindTheEmptyRingWhenTimeIsOver) {
    send(8);
    EXPECT_FALSE(transfer());
    taken(10);
    EXPECT_FALSE(transfer());
    sender.stop_awaiting();
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_FALSE(made->direct);
}

TEST_F(StreamSenderThatHoldsBack, NothingThatFitsOrIsShort) {
    send_indirectly(6);
    taken(10);
    send_indirectly(10);  // full
    send(5);
    EXPECT_FALSE(transfer());
    EXPECT_FALSE(sender.holds_back());
    taken(11);
    EXPECT_TRUE(transfer());
}

TEST_F(StreamSenderThatHoldsBack, LessOftenTheLongerThatIsInVain) {
    std::uint64_t written = 10;
    std::uint64_t since = 0;  // bytes that went to the ring
    std::uint64_t last_gap = 0;
    int held = 0;
    for (int i = 0; i < 300; ++i) {
        send(16);
        while (sender.unsent() != 0) {
            if (const auto made = transfer()) {
                ASSERT_FALSE(made->direct);
                written += made->length;
                since += made->length;
                sender.written(written);
                continue;
            }
            if (sender.holds_back()) {
                EXPECT_GE(since, last_gap);
                last_gap = std::min<std::uint64_t>(2 * since, 16 << 6);
                since = 0;
                ++held;
            }
            if (sender.is_awaiting()) {
                sender.stop_awaiting();
            } else {
                taken(written);
            }
            if (HasFatalFailure()) return;
        }
        for (SendDone done; sender.next_done(done);) {
        }
    }
    // Behind 2, 4, 8, 16, 32 and 64 rings' bytes, and every 64 of them from then on.
    EXPECT_GE(held, 7);
    EXPECT_LE(held, 9);
}

TEST_F(StreamSender, LetsPatientSendsWaitOnlyWhileEarlierBytesLieInTheRing) {
    ASSERT_EQ(sender.send(0, 2, true), Status::ok);
    EXPECT_TRUE(transfer());  // the ring is empty: nothing waits
    ASSERT_EQ(sender.send(1, 2, true), Status::ok);
    ASSERT_EQ(sender.send(2, 3, true), Status::ok);
    EXPECT_FALSE(transfer());
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(2)), Violation::none);
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->length, 5U);
    EXPECT_EQ(made->piece_count, 2U);
}
TEST_F(StreamSender, LetsPatientSendsWaitForNoMoreThanAFewBytes) {
    send_patiently(1);
    ASSERT_EQ(sender.send(1, 5, true), Status::ok);
    EXPECT_FALSE(transfer());
    ASSERT_EQ(sender.send(2, 1, true), Status::ok);
    EXPECT_TRUE(transfer());
}
TEST_F(StreamSender, LetsNoSendWaitBehindPatientOnes) {
    send_patiently(1);
    ASSERT_EQ(sender.send(1, 1, true), Status::ok);
    EXPECT_FALSE(transfer());
    send(1);
    EXPECT_TRUE(transfer());
}
TEST_F(StreamSender, LetsNothingWaitForAnAdvertisementOrTheEnd) {
    send_patiently(1);
    ASSERT_EQ(sender.send(1, 1, true), Status::ok);
    ASSERT_EQ(sender.on_advert(advert(1, 2, 0)), Violation::none);
    const auto made = transfer();
    ASSERT_TRUE(made && made->direct);
    ASSERT_EQ(sender.send(2, 1, true), Status::ok);
    EXPECT_FALSE(transfer());
    sender.shut_down();
    EXPECT_TRUE(transfer());
}

TEST_F(StreamSender, EndsATransferWhereTheRingEnds) {
    send_indirectly(12);
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(12)), Violation::none);
    send(10);
    auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->address, 12U);
    EXPECT_EQ(made->length, 4U);
    made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->address, 0U);
    EXPECT_EQ(made->pieces[0].offset, 4U);
    EXPECT_EQ(made->length, 6U);
}

TEST_F(StreamSender, CompletesASendWhenItsLastByteIsWritten) {
    send(20);
    ASSERT_TRUE(transfer());
    sender.written(16);
    SendDone done;
    EXPECT_FALSE(sender.next_done(done));
    EXPECT_FALSE(transfer());  // the ring is full
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(16)), Violation::none);
    ASSERT_TRUE(transfer());
    sender.written(4);
    ASSERT_TRUE(sender.next_done(done));
    EXPECT_EQ(done.status, Status::ok);
}

TEST_F(StreamSender, KeepsAnAdvertisementThatWaitsForAllAtTheHeadUntilItIsFilled) {
    ASSERT_EQ(sender.on_advert(waiting_for_all(advert(0, 0, 0, 10))), Violation::none);
    ASSERT_EQ(sender.on_advert(advert(10, 0, 1)), Violation::none);
    send(6);
    auto made = transfer();
    ASSERT_TRUE(made && made->direct);
    EXPECT_EQ(made->address, 0x1000U);
    send(9);
    made = transfer();
    ASSERT_TRUE(made && made->direct);
    EXPECT_EQ(made->address, 0x1006U);
    EXPECT_EQ(made->length, 4U);
    EXPECT_EQ(message.number, 0U);
    made = transfer();
    ASSERT_TRUE(made && made->direct);
    EXPECT_EQ(message.number, 1U);
    EXPECT_EQ(made->length, 5U);
    EXPECT_EQ(sender.adverts(), 0U);
}

TEST_F(StreamSender, ThrowsALateAdvertisementAwayWithAllOfItsPhase) {
    send_indirectly(1);
    send_indirectly(1);
    EXPECT_EQ(sender.phase(), 1U);
    EXPECT_EQ(sender.on_advert(advert(1, 2, 0)), Violation::none);
    EXPECT_EQ(sender.phase(), 3U);
    EXPECT_EQ(sender.on_advert(advert(2, 2, 1)), Violation::none);  // of the right place, too
    EXPECT_EQ(sender.adverts(), 0U);
    EXPECT_EQ(sender.counts().adverts_stale, 2U);
    send_indirectly(1);  // place 1 and 2 are taken: the receiver has caught up
    EXPECT_EQ(sender.on_advert(advert(3, 4, 2)), Violation::none);
    EXPECT_EQ(sender.adverts(), 1U);
    EXPECT_EQ(sender.phase(), 3U);  // direct with the first transfer
    send(1);
    ASSERT_TRUE(transfer());
    EXPECT_EQ(sender.phase(), 4U);
}

TEST_F(StreamSender, AnswersACancelWithEveryAdvertisementWithdrawn) {
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    ASSERT_EQ(sender.on_advert(advert(1, 0, 1)), Violation::none);
    ASSERT_EQ(sender.on_cancel(), Violation::none);
    EXPECT_EQ(sender.adverts(), 0U);
    ASSERT_TRUE(sender.owes_cancelled());
    EXPECT_EQ(sender.take_cancelled().sequence, 0U);
    EXPECT_EQ(sender.on_advert(advert(0, 0, 2)), Violation::none);
    EXPECT_EQ(sender.adverts(), 1U);
}

TEST_F(StreamSender, IgnoresWhatCrossesItsFin) {
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    sender.shut_down();
    ASSERT_TRUE(sender.owes_fin());
    EXPECT_EQ(sender.take_fin().sequence, 0U);
    EXPECT_FALSE(sender.owes_fin());
    EXPECT_TRUE(sender.finished());
    EXPECT_EQ(sender.on_advert(advert(1, 0, 1)), Violation::none);
    EXPECT_EQ(sender.on_cancel(), Violation::none);
    EXPECT_FALSE(sender.owes_cancelled());
}

TEST_F(StreamSender, OwesNoFinBeforeEverythingIsSent) {
    send(17);
    sender.shut_down();
    ASSERT_TRUE(transfer());
    EXPECT_FALSE(sender.owes_fin());
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(1)), Violation::none);
    ASSERT_TRUE(transfer());
    EXPECT_TRUE(sender.owes_fin());
}

// ---- what cannot be true

TEST_F(StreamSender, RefusesAcknowledgementsOfBytesThatWereNeverSent) {
    send_indirectly(5);
    EXPECT_EQ(sender.on_acknowledgement(acknowledgement(6)), Violation::acknowledged_unsent);
    EXPECT_EQ(sender.on_acknowledgement(acknowledgement(0)), Violation::acknowledged_unsent);
    EXPECT_EQ(sender.on_acknowledgement(acknowledgement(5)), Violation::none);
    EXPECT_EQ(sender.on_acknowledgement(acknowledgement(4)), Violation::acknowledged_unsent);
}

TEST_F(StreamSender, RefusesAdvertisementsOutOfOrder) {
    EXPECT_EQ(sender.on_advert(advert(0, 0, 1)), Violation::advert_number);
    EXPECT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    EXPECT_EQ(sender.on_advert(advert(1, 0, 0)), Violation::advert_number);
}

TEST_F(StreamSender, RefusesAdvertisementsThatAreNoMemory) {
    EXPECT_EQ(sender.on_advert(advert(0, 0, 0, 0)), Violation::advert_range);
    EXPECT_EQ(sender.on_advert(advert(0, 0, 0, longest_operation + 1)), Violation::advert_range);
    AdvertMessage wrapping = advert(0, 0, 0, 8);
    wrapping.address = ~std::uint64_t{6};
    EXPECT_EQ(sender.on_advert(wrapping), Violation::advert_range);
}

TEST_F(StreamSender, RefusesPhasesInWhichTheReceiverCannotBe) {
    // The sender is direct: the receiver has seen no switch.
    EXPECT_EQ(sender.on_advert(advert(0, 1, 0)), Violation::advert_phase);
}
TEST_F(StreamSender, RefusesAPhaseAheadOfADirectSender) {
    EXPECT_EQ(sender.on_advert(advert(0, 2, 0)), Violation::advert_phase);
}
TEST_F(StreamSender, RefusesAPhaseThatTheReceiverCannotHaveReached) {
    send_indirectly(2);
    EXPECT_EQ(sender.on_advert(advert(2, 4, 0)), Violation::advert_phase);
}
TEST_F(StreamSender, RefusesAPhaseThatBeginsBeforeWhatEndedTheOneBefore) {
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    send(2);
    ASSERT_TRUE(transfer());
    send_indirectly(3);  // to place 5
    Sender at_its_place = sender;
    EXPECT_EQ(sender.on_advert(advert(4, 2, 1)), Violation::advert_sequence);
    EXPECT_EQ(at_its_place.on_advert(advert(5, 2, 1)), Violation::none);
}
TEST_F(StreamSender, TakesAPhaseThatBeginsBeforeTheEstimatesOfTheOneBefore) {
    send_indirectly(1);
    for (std::uint32_t i = 0; i < 3; ++i) {
        ASSERT_EQ(sender.on_advert(advert(i, 0, i)), Violation::none);
    }
    ASSERT_EQ(sender.on_advert(advert(1, 2, 3)), Violation::none);
    EXPECT_EQ(sender.adverts(), 1U);
}
TEST_F(StreamSender, RefusesAPhaseOfIndirectTransfer) {
    send_indirectly(2);
    EXPECT_EQ(sender.on_advert(advert(2, 1, 0)), Violation::advert_phase);
}
TEST_F(StreamSender, RefusesAPhaseThatGoesBack) {
    send_indirectly(1);
    send_indirectly(1);
    ASSERT_EQ(sender.on_advert(advert(1, 2, 0)), Violation::none);
    EXPECT_EQ(sender.on_advert(advert(2, 0, 1)), Violation::advert_phase);
}
TEST_F(StreamSender, RefusesAnotherPhaseBehindAFreshAdvertisement) {
    send_indirectly(2);
    ASSERT_EQ(sender.on_advert(advert(2, 2, 0)), Violation::none);
    EXPECT_EQ(sender.on_advert(advert(3, 4, 1)), Violation::advert_phase);
}

TEST_F(StreamSender, RefusesPlacesBeyondWhatTheAdvertisementsBeforeMayTake) {
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    EXPECT_EQ(sender.on_advert(advert(2, 0, 1)), Violation::advert_sequence);
}
TEST_F(StreamSender, RefusesPlacesBeforeWhatTheAdvertisementsBeforeMustTake) {
    ASSERT_EQ(sender.on_advert(waiting_for_all(advert(0, 0, 0, 5))), Violation::none);
    EXPECT_EQ(sender.on_advert(advert(4, 0, 1)), Violation::advert_sequence);
}
TEST_F(StreamSender, RefusesAPlaceThatHasNotBeenSentTo) {
    send_indirectly(2);
    EXPECT_EQ(sender.on_advert(advert(3, 2, 0)), Violation::advert_sequence);
}
TEST_F(StreamSender, RefusesAPlaceBeyondEveryStream) {
    send_indirectly(2);
    EXPECT_EQ(sender.on_advert(advert(~std::uint64_t{0}, 0, 0)), Violation::advert_sequence);
}

TEST_F(StreamSender, RefusesMoreAdvertisementsThanWereAgreedOn) {
    for (std::uint32_t i = 0; i < 3; ++i) {
        ASSERT_EQ(sender.on_advert(advert(i, 0, i)), Violation::none);
    }
    EXPECT_EQ(sender.on_advert(advert(3, 0, 3)), Violation::advert_overflow);
}

TEST_F(StreamSender, RefusesWhatComesBeforeItsAnswerToACancel) {
    ASSERT_EQ(sender.on_cancel(), Violation::none);
    EXPECT_EQ(sender.on_cancel(), Violation::cancel_unexpected);
    EXPECT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::advert_unexpected);
}

TEST_F(StreamSenderInModeDirect, WaitsForAnAdvertisement) {
    send(4);
    EXPECT_FALSE(transfer());
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::none);
    ASSERT_TRUE(transfer());
    EXPECT_EQ(sender.on_acknowledgement(acknowledgement(1)), Violation::acknowledged_unsent);
}

TEST_F(StreamSenderInModeIndirect, RefusesAdvertisementsAndCancels) {
    EXPECT_EQ(sender.on_advert(advert(0, 0, 0)), Violation::advert_unexpected);
    EXPECT_EQ(sender.on_cancel(), Violation::cancel_unexpected);
}

// --- messages

TEST_F(StreamSenderOfMessages, GivesATransferToOneMessageOnlyAndAMarkToEach) {
    send(3);
    send(0);
    send(4);
    auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->length, 3U);
    EXPECT_EQ(made->places, 5U);
    EXPECT_EQ(message.header.flags, transfer_ends_message);
    made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->piece_count, 0U);
    EXPECT_EQ(made->places, 2U);
    EXPECT_EQ(message.sequence, 5U);
    made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->address, 7U);
    EXPECT_EQ(made->places, 6U);
    EXPECT_EQ(sender.room(), 16U - 13U);
    SendDone done;
    sender.written(6);
    EXPECT_TRUE(sender.next_done(done));
    EXPECT_FALSE(sender.next_done(done));
}

TEST_F(StreamSenderOfMessages, SendsAMarkAloneWhereTheRingHadNoRoomForIt) {
    send(15);
    auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->places, 15U);
    EXPECT_FALSE(message.ends_message());
    EXPECT_FALSE(transfer());
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(15)), Violation::none);
    made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->length, 0U);
    EXPECT_EQ(made->places, 2U);
    EXPECT_TRUE(message.ends_message());
}

/// Waits for advertisements, and goes to the ring 4 bytes at a time.
class StreamSenderOfPieces : public StreamSender {
  protected:
    explicit StreamSenderOfPieces(std::uint64_t put_off_bytes = 0) {
        Terms terms = own();
        terms.awaited_bytes = 6;
        terms.ring_piece_bytes = 4;
        terms.put_off_bytes = put_off_bytes;
        sender = Sender{{Mode::dynamic, 16, 3}, terms};
        // From here on it knows that there are advertisements, and would wait for them.
        EXPECT_EQ(sender.on_advert(advert(0, 0, 0, 2)), Violation::none);
        EXPECT_EQ(sender.send(next_id++, 2), Status::ok);
        EXPECT_TRUE(transfer());
    }
};

TEST_F(StreamSenderOfPieces, HoldsNothingBackBetweenThePiecesOfARun) {
    send(40);
    EXPECT_FALSE(transfer());
    EXPECT_TRUE(sender.is_awaiting());
    sender.stop_awaiting();
    for (std::uint32_t piece = 0; piece < 4; ++piece) {
        EXPECT_EQ(sender.next_room(), 4U);
        const auto made = transfer();
        ASSERT_TRUE(made) << piece;
        EXPECT_FALSE(made->direct);
        EXPECT_EQ(made->length, 4U);
        EXPECT_EQ(made->address, 4 * piece);
    }
    // The run was all that there was room for. What is left is held back until the ring is empty.
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(8)), Violation::none);
    EXPECT_FALSE(transfer());
    EXPECT_TRUE(sender.holds_back());
}

// As above, and 8 bytes in the ring are enough to put off what fits there.
class StreamSenderThatPutsOff : public StreamSenderOfPieces {
  protected:
    StreamSenderThatPutsOff() : StreamSenderOfPieces{8} {
        // The next one is late, and the transfers turn to the ring.
        EXPECT_EQ(sender.send(next_id++, 14), Status::ok);
        EXPECT_FALSE(transfer());
        sender.stop_awaiting();
        EXPECT_EQ(pieces_that_go(), 2) << "8 bytes";
    }
    [[nodiscard]] int pieces_that_go() {
        int count = 0;
        while (transfer()) ++count;
        return count;
    }
};

TEST_F(StreamSenderThatPutsOff, WaitsForAnAdvertisementWhereThereIsRoom) {
    EXPECT_TRUE(sender.is_awaiting());
    EXPECT_FALSE(sender.holds_back());
    EXPECT_GE(sender.room(), sender.unsent());
    EXPECT_EQ(sender.bytes_to_copy(), 6U + 8U) << "what lies in the ring is copied first";
    ASSERT_EQ(sender.on_advert(advert(10, 2, 1, 16)), Violation::none);
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(8)), Violation::none);
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_TRUE(made->direct);
    EXPECT_EQ(made->length, 6U);
}

TEST_F(StreamSenderThatPutsOff, GoesToTheRingWhenThatWasLongEnough) {
    // However much more the program sends meanwhile, and whatever the receiver has taken.
    send(20);
    EXPECT_FALSE(transfer());
    EXPECT_TRUE(sender.is_awaiting());
    sender.stop_awaiting();
    EXPECT_FALSE(sender.holds_back());
    EXPECT_EQ(pieces_that_go(), 2) << "all that there is room for";
    EXPECT_FALSE(sender.is_awaiting());
    // Not again before two more rings' bytes have gone there.
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(16)), Violation::none);
    EXPECT_EQ(pieces_that_go(), 4);
    EXPECT_FALSE(sender.is_awaiting());
}

TEST_F(StreamSenderThatPutsOff, WaitsNoLongerBehindAnEmptyRing) {
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(8)), Violation::none);
    EXPECT_FALSE(transfer());
    EXPECT_TRUE(sender.is_awaiting());
    sender.stop_awaiting();
    EXPECT_EQ(pieces_that_go(), 2);
    EXPECT_EQ(sender.unsent(), 0U);
}

TEST_F(StreamSenderThatPutsOff, LetsGoWhatTheProgramEndsWith) {
    EXPECT_TRUE(sender.is_awaiting());
    sender.shut_down();
    EXPECT_EQ(pieces_that_go(), 2);
    EXPECT_EQ(sender.unsent(), 0U);
    EXPECT_FALSE(sender.is_awaiting());
}

TEST_F(StreamSenderThatPutsOff, LetsGoWhatIsToGoAtOnce) {
    sender.stop_awaiting();
    EXPECT_EQ(pieces_that_go(), 2);
    ASSERT_EQ(sender.on_advert(advert(16, 2, 1, 16)), Violation::none);
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(14)), Violation::none);
    send(16);
    ASSERT_TRUE(transfer()) << "directly";
    ASSERT_EQ(sender.send(next_id++, 16, false, true), Status::ok);
    EXPECT_GE(pieces_that_go(), 4);
    EXPECT_EQ(sender.unsent(), 0U);
}

TEST(StreamSenderOfALargeRing, HasItUnderWayWithFewPieces) {
    Terms own;
    own.ring_piece_bytes = 4;
    Sender sender{{Mode::indirect, 4096, 0}, own};
    ASSERT_EQ(sender.send(0, 10'000), Status::ok);
    Transfer transfer;
    TransferMessage message;
    for (int piece = 0; piece < 16; ++piece) {
        ASSERT_TRUE(sender.next_transfer(transfer, message)) << piece;
        EXPECT_EQ(transfer.length, 256U);
    }
    EXPECT_FALSE(sender.next_transfer(transfer, message));
}

TEST_F(StreamSenderOfPieces, TurnsFromARunToAnAdvertisement) {
    send(40);
    sender.stop_awaiting();
    EXPECT_FALSE(transfer());
    sender.stop_awaiting();
    ASSERT_TRUE(transfer());
    ASSERT_TRUE(transfer());
    // The receiver has taken 8 bytes from the ring, found it empty, and advertised.
    ASSERT_EQ(sender.on_acknowledgement(acknowledgement(8)), Violation::none);
    ASSERT_EQ(sender.on_advert(advert(10, 2, 1, 16)), Violation::none);
    const auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_TRUE(made->direct);
    EXPECT_EQ(made->length, 16U) << "no piece of a ring";
}

TEST_F(StreamSenderOfMessages, CutsAMessageOffAtTheEndOfItsAdvertisement) {
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0, 8)), Violation::none);
    ASSERT_EQ(sender.on_advert(advert(2, 0, 1, 8)), Violation::none);
    send(20);
    send(5);
    auto made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->length, 8U);
    EXPECT_EQ(message.header.flags, transfer_ends_message | transfer_cut_off);
    made = transfer();
    ASSERT_TRUE(made);
    EXPECT_EQ(message.sequence, 10U);
    EXPECT_EQ(message.number, 1U);
    EXPECT_EQ(message.header.flags, transfer_ends_message);
    EXPECT_EQ(made->pieces[0].offset, 0U);
    EXPECT_EQ(sender.unsent(), 0U);
    SendDone done;
    sender.written(17);
    EXPECT_TRUE(sender.next_done(done));
    EXPECT_TRUE(sender.next_done(done));
}

TEST_F(StreamSenderOfMessages, StaysWithAnAdvertisementUntilItsMessageEnds) {
    ASSERT_EQ(sender.on_advert(advert(0, 0, 0, 3000)), Violation::none);
    send(1500);  // 1000 with a transfer
    ASSERT_TRUE(transfer());
    EXPECT_EQ(sender.adverts(), 1U);
    const auto made = transfer();
    ASSERT_TRUE(made && made->direct);
    EXPECT_EQ(made->address, 0x1000U + 1000U);
    EXPECT_EQ(sender.adverts(), 0U);
}

TEST_F(StreamSenderOfMessages, TakesNoAdvertisementThatWaitsForAll) {
    EXPECT_EQ(sender.on_advert(waiting_for_all(advert(0, 0, 0))), Violation::malformed);
}

}  // namespace
}  // namespace millrace::stream
