// The running example of work 003, step by step. The slides' drawings are not in the text that we
// have; what is played here is reconstructed from their captions:
//
//   "At start, sender has sent 2 bytes to receiver directly. Receiver issues two exs_recv
//   requests." "Sender issues single exs_send request." "Sender and receiver continue to issue
//   exs_send and exs_recv requests." "Advertisement A4 is delayed, so sender sends indirect
//   transfer." "Receiver holds off on sending off advertisements until all pending advertisements
//   satisfied." "Receiver starts sending advertisements again once caught up. Sender matches
//   advertisement once
//    sequence number in ADVERT matches and phase number in ADVERT is greater."
//   (backup) "If sender phase were not incremented after processing A4-A6, would incorrectly match
//   A6."
//
// Reconstructed: the sizes (every receive takes up to 4 bytes, sends are of 1 to 4), that R1 takes
// the two bytes of the start (so that R2 and R3 are the "two requests"; the captions' A4 is then
// R4's), and, of the last caption, that A4 to A6 are of one phase, sent by a receiver that has
// caught up, while 2 bytes more are on their way to the ring: as many as lie between A4's place and
// A6's.
#include <gtest/gtest.h>

#include <cstdint>

#include "two_ends.hpp"

namespace millrace::stream {
namespace {

using base::Status;

constexpr unsigned source = 0;
constexpr unsigned sink = 1;

Terms terms() {
    Terms terms;
    terms.outgoing.ring_bytes = terms.incoming.ring_bytes = 16;
    terms.advertises_again = false;  // as the work has it
    return terms;
}

class StreamExample : public testing::Test {
  protected:
    /// exs_send of `length` bytes; what goes out is on its way.
    void send(std::uint64_t length) {
        ASSERT_EQ(ends.send(source, length), Status::ok);
        ends.act_all(source);
    }
    /// exs_recv of up to 4 bytes; its ADVERT, if there is one, is on its way.
    void receive() {
        ASSERT_EQ(ends.receive(sink, 4), Status::ok);
        ends.act_all(sink);
    }
    void data_arrives() {
        ends.arrive_all(source);
        ends.act_all(sink);
    }
    void adverts_arrive() {
        ends.arrive_all(sink);
        ends.act_all(source);
    }
    /// How many bytes receive R1, R2, … got; 0: it has not ended.
    std::uint64_t got(std::uint64_t receive) const {
        const auto done = ends.done(sink, receive - 1);
        return done ? done->length : 0;
    }
    std::uint64_t adverts() const { return ends.receiver(sink).counts().adverts; }
    const Sender& sender() const { return ends.sender(source); }
    const Receiver& receiver() const { return ends.receiver(sink); }
    void TearDown() override { EXPECT_EQ(ends.failure(), ""); }

    TwoEnds ends{terms()};
};

TEST_F(StreamExample, ALateAdvertisementIsPassedOverAndDirectTransfersResume) {
    // At the start, the sender has sent 2 bytes to the receiver directly.
    receive();
    adverts_arrive();
    send(2);
    data_arrives();
    ASSERT_EQ(got(1), 2U);
    EXPECT_EQ(sender().sequence(), 2U);
    EXPECT_EQ(receiver().sequence(), 2U);
    EXPECT_EQ(receiver().estimate(), 2U);

    // The receiver issues two exs_recv requests: A2 says place 2, A3 place 3, of phase 0.
    receive();
    receive();
    EXPECT_EQ(adverts(), 3U);
    EXPECT_EQ(receiver().estimate(), 4U);
    adverts_arrive();
    EXPECT_EQ(sender().adverts(), 2U);

    // The sender issues a single exs_send request: 3 bytes go to A2.
    send(3);
    EXPECT_EQ(sender().sequence(), 5U);
    EXPECT_EQ(sender().adverts(), 1U);
    data_arrives();
    EXPECT_EQ(got(2), 3U);
    EXPECT_EQ(receiver().estimate(), 6U);  // 5 bytes, and at least one for A3

    // Sender and receiver continue to issue requests: R4 is advertised, and A3 is used.
    receive();
    EXPECT_EQ(adverts(), 4U);
    send(4);
    EXPECT_EQ(sender().sequence(), 9U);

    // Advertisement A4 is delayed, so the sender sends an indirect transfer.
    send(2);
    EXPECT_EQ(sender().phase(), 1U);
    EXPECT_EQ(sender().counts().indirect_transfers, 1U);
    EXPECT_EQ(sender().sequence(), 11U);

    // A4 comes late, and is thrown away: its phase is lower, and its place lies before.
    adverts_arrive();
    EXPECT_EQ(sender().counts().adverts_stale, 1U);
    EXPECT_EQ(sender().phase(), 1U);  // past A4's already

    // The direct transfer reaches R3. R5 comes while A4 is still thought to be good, and is
    // advertised.
    ends.arrive(source);
    ends.arrive(source);
    ends.act_all(sink);
    EXPECT_EQ(got(3), 4U);
    receive();
    EXPECT_EQ(adverts(), 5U);

    // The indirect transfer reaches the ring and is copied to R4. The receiver holds off on sending
    // advertisements until all pending advertisements are satisfied: A5 is one.
    data_arrives();
    EXPECT_EQ(got(4), 2U);
    EXPECT_EQ(receiver().phase(), 1U);
    receive();
    EXPECT_EQ(adverts(), 5U);
    adverts_arrive();
    EXPECT_EQ(sender().counts().adverts_stale, 2U);

    // The next bytes go to the ring, too, and satisfy R5. The receiver has caught up and advertises
    // again: A6 says place 12, exactly, and phase 2.
    send(1);
    EXPECT_EQ(sender().counts().indirect_transfers, 2U);
    data_arrives();
    EXPECT_EQ(got(5), 1U);
    EXPECT_EQ(adverts(), 6U);
    EXPECT_EQ(receiver().phase(), 2U);
    EXPECT_EQ(receiver().sequence(), 12U);

    // The sender matches it: the place is the same, and the phase is greater.
    adverts_arrive();
    EXPECT_EQ(sender().adverts(), 1U);
    send(4);
    EXPECT_EQ(sender().phase(), 2U);
    EXPECT_EQ(sender().counts().direct_transfers, 4U);
    data_arrives();
    EXPECT_EQ(got(6), 4U);
    EXPECT_EQ(ends.received(sink), 16U);
    ends.settle();
}

TEST_F(StreamExample, WithoutThePhaseIncrementA6WouldBeMatchedWrongly) {
    // 7 bytes have gone through the ring to R1, R2 and R3: the receiver has caught up.
    send(4);
    send(3);
    data_arrives();
    receive();
    receive();
    ASSERT_EQ(got(1) + got(2), 7U);
    send(1);
    data_arrives();
    receive();
    ASSERT_EQ(got(3), 1U);
    ends.arrive_all(sink);
    ASSERT_EQ(sender().phase(), 1U);
    ASSERT_EQ(adverts(), 0U);

    // A4, A5 and A6 are of phase 2 and of the places 8, 9 and 10 …
    receive();
    receive();
    receive();
    ASSERT_EQ(adverts(), 3U);
    ASSERT_EQ(receiver().phase(), 2U);
    ASSERT_EQ(receiver().sequence(), 8U);
    // … and before they come, the sender sends 2 bytes to the ring.
    send(2);
    ASSERT_EQ(sender().sequence(), 10U);

    // A4 is stale, as 8 < 10; so are A5 and A6, though A6 says place 10 and phase 2 > 1.
    adverts_arrive();
    EXPECT_EQ(sender().counts().adverts_stale, 3U);
    EXPECT_EQ(sender().adverts(), 0U);
    EXPECT_EQ(sender().phase(), 3U);

    // For R4 takes both bytes, and the next ones are R5's. They go to the ring, not to R6.
    data_arrives();
    send(3);
    EXPECT_EQ(sender().counts().direct_transfers, 0U);
    data_arrives();
    EXPECT_EQ(got(4), 2U);
    EXPECT_EQ(got(5), 3U);
    EXPECT_EQ(got(6), 0U);

    // R6 gets the bytes after those, and then the receiver advertises in the phase after the
    // sender's.
    send(2);
    data_arrives();
    EXPECT_EQ(got(6), 2U);
    receive();
    adverts_arrive();
    EXPECT_EQ(receiver().phase(), 4U);
    send(1);
    EXPECT_EQ(sender().phase(), 4U);
    EXPECT_EQ(sender().counts().direct_transfers, 1U);
    data_arrives();
    ends.settle();
}

}  // namespace
}  // namespace millrace::stream
