// One end as a whole: credits, both directions at once, and how it ends.
#include "connection.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <variant>

#include "millrace/base/error.hpp"
#include "two_ends.hpp"

namespace millrace::stream {
namespace {

using base::Status;

Terms small(Mode mode = Mode::dynamic) {
    Terms terms;
    terms.outgoing = terms.incoming = {mode, 16, 4};
    terms.own_slots = terms.peer_slots = fewest_slots;
    terms.sends = terms.receives = 64;
    return terms;
}

TEST(StreamCredits, AreSpentInThreeTiers) {
    Credits credits{8, 8};
    while (credits.transfer_allowed()) (void)credits.spend();
    EXPECT_EQ(credits.available(), reserve_of(8));
    while (credits.control_allowed()) (void)credits.spend();
    EXPECT_EQ(credits.available(), 1U);
    EXPECT_FALSE(credits.return_due());  // there is nothing to return
    for (std::uint32_t i = 0; i < threshold_of(8); ++i) {
        ASSERT_EQ(credits.take(0), Violation::none);
    }
    EXPECT_TRUE(credits.return_due());
    EXPECT_EQ(credits.spend(), threshold_of(8));
    EXPECT_FALSE(credits.return_due());
    EXPECT_EQ(credits.available(), 0U);
}

TEST(StreamCredits, AreWidenedOverTheWrapOf32Bits) {
    constexpr std::uint64_t wrap = std::uint64_t{1} << 32;
    EXPECT_EQ(credits_beyond(wrap - 3, static_cast<std::uint32_t>(wrap - 3)), 0U);
    EXPECT_EQ(credits_beyond(wrap - 3, static_cast<std::uint32_t>(wrap + 4)), 7U);
    EXPECT_EQ(credits_beyond(5 * wrap, 9), 9U);
    EXPECT_GT(credits_beyond(5 * wrap, static_cast<std::uint32_t>(wrap - 1)), most_slots);
}

TEST(StreamCredits, AreNotBelievedBeyondWhatIsOut) {
    Credits credits{8, 8};
    (void)credits.spend();
    (void)credits.spend();
    EXPECT_EQ(credits.take(3), Violation::credit_forged);
}
TEST(StreamCredits, AreNotTakenBack) {
    Credits credits{8, 8};
    for (int i = 0; i < 3; ++i) (void)credits.spend();
    ASSERT_EQ(credits.take(2), Violation::none);
    EXPECT_EQ(credits.take(1), Violation::credit_forged);
}
TEST(StreamCredits, AreMissedWhereAPeerSendsWithoutThem) {
    Credits credits{8, 8};
    for (int i = 0; i < 8; ++i) ASSERT_EQ(credits.take(0), Violation::none);
    EXPECT_EQ(credits.take(0), Violation::credit_overrun);
}

TEST(StreamConnection, RefusesTermsOutOfRange) {
    const auto refused = [](auto change) {
        Terms terms = small();
        change(terms);
        EXPECT_THROW(Connection{terms}, base::Error);
    };
    refused([](Terms& terms) { terms.outgoing.ring_bytes = 12; });
    refused([](Terms& terms) { terms.incoming.ring_bytes = 0; });
    refused([](Terms& terms) { terms.incoming.ring_bytes = largest_ring * 2; });
    refused([](Terms& terms) { terms.outgoing.adverts = 0; });
    refused([](Terms& terms) { terms.own_slots = fewest_slots - 1; });
    refused([](Terms& terms) { terms.peer_slots = most_slots + 1; });
    refused([](Terms& terms) { terms.sends = 0; });
    refused([](Terms& terms) { terms.receives = most_operations + 1; });
    refused([](Terms& terms) { terms.transfer_bytes = longest_transfer + 1; });
    Terms direct = small(Mode::direct);
    direct.outgoing.ring_bytes = direct.incoming.ring_bytes = 0;
    EXPECT_NO_THROW(Connection{direct});
}

TEST(StreamConnection, BothSidesMaySendWithoutReceiving) {
    TwoEnds ends{small()};
    for (int i = 0; i < 64; ++i) {
        ASSERT_EQ(ends.send(0, 1), Status::ok);
        ASSERT_EQ(ends.send(1, 1), Status::ok);
        ends.act_all(0);
        ends.act_all(1);
        if (i % 5 == 0) ends.arrive_all(0), ends.arrive_all(1);
    }
    ends.settle();
    EXPECT_EQ(ends.receiver(0).buffered(), 16U);
    EXPECT_EQ(ends.receiver(1).buffered(), 16U);
    for (int i = 0; i < 64; ++i) {
        ASSERT_EQ(ends.receive(0, 1), Status::ok);
        ASSERT_EQ(ends.receive(1, 1), Status::ok);
        ends.settle();
    }
    EXPECT_EQ(ends.failure(), "");
    EXPECT_EQ(ends.received(0), 64U);
    EXPECT_EQ(ends.received(1), 64U);
}

TEST(StreamConnection, ASendCompletesThroughTheRingWithoutAReceive) {
    TwoEnds ends{small()};
    ASSERT_EQ(ends.send(0, 10), Status::ok);
    ends.settle();
    EXPECT_TRUE(ends.send_done(0, 0));
    EXPECT_EQ(ends.failure(), "");
}

TEST(StreamConnection, WhenReceivesAreAheadEverythingGoesDirectly) {
    for (const Mode mode : {Mode::dynamic, Mode::direct}) {
        TwoEnds ends{small(mode)};
        for (int i = 0; i < 20; ++i) {
            ASSERT_EQ(ends.receive(1, 32), Status::ok);
            ends.settle();
            ASSERT_EQ(ends.send(0, 32), Status::ok);
            ends.settle();
        }
        EXPECT_EQ(ends.failure(), "");
        EXPECT_EQ(ends.sender(0).counts().direct_bytes, 640U);
        EXPECT_EQ(ends.sender(0).counts().indirect_bytes, 0U);
        EXPECT_EQ(ends.receiver(1).counts().copies, 0U);
    }
}

TEST(StreamConnection, OneDirectionEndsAndTheOtherGoesOn) {
    TwoEnds ends{small()};
    ASSERT_EQ(ends.receive(1, 8), Status::ok);
    ASSERT_EQ(ends.receive(0, 8), Status::ok);
    ends.shut_down(0);
    ends.settle();
    ASSERT_TRUE(ends.done(1, 0));
    EXPECT_EQ(ends.done(1, 0)->status, Status::closed);
    EXPECT_FALSE(ends.done(0, 0));
    EXPECT_EQ(ends.send(0, 1), Status::closed);
    ASSERT_EQ(ends.send(1, 5), Status::ok);
    ends.settle();
    ASSERT_TRUE(ends.done(0, 0));
    EXPECT_EQ(ends.done(0, 0)->length, 5U);
    EXPECT_EQ(ends.failure(), "");
}

TEST(StreamConnection, ACancelledReceiveComesBackBehindARoundTrip) {
    TwoEnds ends{small()};
    ASSERT_EQ(ends.receive(1, 8), Status::ok);
    ends.act_all(1);
    ASSERT_EQ(ends.cancel(1, 0), Status::ok);
    ends.act_all(1);
    EXPECT_FALSE(ends.done(1, 0));
    ends.arrive_all(1);  // ADVERT and CANCEL
    ends.act_all(0);
    EXPECT_FALSE(ends.done(1, 0));
    ends.arrive_all(0);  // CANCELLED
    ends.act_all(1);
    ASSERT_TRUE(ends.done(1, 0));
    EXPECT_EQ(ends.done(1, 0)->status, Status::cancelled);
    EXPECT_EQ(ends.failure(), "");
}

TEST(StreamConnection, SaysNothingBehindAViolationAndReturnsBuffersWhenItIsBrokenOff) {
    TwoEnds ends{small()};
    ASSERT_EQ(ends.receive(0, 8), Status::ok);
    ASSERT_EQ(ends.send(0, 8), Status::ok);
    Connection& core = ends.core(0);
    AcknowledgementMessage lie;
    lie.taken = 1;
    EXPECT_EQ(core.deliver(encode(lie).span()), Violation::acknowledged_unsent);
    EXPECT_EQ(core.deliver(encode(CreditMessage{}).span()), Violation::acknowledged_unsent);
    EXPECT_TRUE(std::holds_alternative<Idle>(core.next()));
    core.break_off();
    const Action received = core.next();
    ASSERT_TRUE(std::holds_alternative<ReceiveDone>(received));
    EXPECT_EQ(std::get<ReceiveDone>(received).status, Status::peer_lost);
    const Action sent = core.next();
    ASSERT_TRUE(std::holds_alternative<SendDone>(sent));
    EXPECT_EQ(std::get<SendDone>(sent).status, Status::peer_lost);
    EXPECT_TRUE(std::holds_alternative<Idle>(core.next()));
    EXPECT_EQ(core.send(9, 1), Status::peer_lost);
    EXPECT_EQ(core.receive({9, 0, 1, 0, false}), Status::peer_lost);
}

TEST(StreamConnection, CountsWhatATransferAboveFourGibibytesTakes) {
    Terms terms = small();
    Connection sender{terms};
    Connection receiver{terms};
    constexpr std::uint64_t length = (std::uint64_t{5} << 30) + 3;
    ASSERT_EQ(receiver.receive({1, std::uint64_t{1} << 32, length, 9, true}), Status::ok);
    ASSERT_EQ(sender.send(1, length), Status::ok);
    const Action advert = receiver.next();
    ASSERT_EQ(sender.deliver(std::get<SendMessage>(advert).message.span()), Violation::none);
    std::uint64_t sum = 0;
    for (;;) {
        const Action action = sender.next();
        if (const auto* const write = std::get_if<Write>(&action)) {
            EXPECT_TRUE(write->transfer.direct);
            EXPECT_EQ(write->transfer.address, (std::uint64_t{1} << 32) + sum);
            sum += write->transfer.length;
            ASSERT_EQ(receiver.deliver(write->notification.span()), Violation::none);
        } else {
            // Out of credits: the receiver returns some.
            const Action credit = receiver.next();
            if (!std::holds_alternative<SendMessage>(credit)) {
                ASSERT_TRUE(std::holds_alternative<ReceiveDone>(credit));
                EXPECT_EQ(std::get<ReceiveDone>(credit).length, length);
                break;
            }
            ASSERT_EQ(sender.deliver(std::get<SendMessage>(credit).message.span()),
                      Violation::none);
        }
    }
    EXPECT_EQ(sum, length);
}

}  // namespace
}  // namespace millrace::stream
