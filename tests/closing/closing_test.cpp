// One close contract for every abstraction (docs/closing.md): the end that sends closes, and this
// is what close() answers, what the other end reads, and what is left after a close that timed out.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ends.hpp"

namespace millrace::closing {
namespace {

using namespace std::chrono_literals;

struct Row {
    Made made;
    Carrier carrier;
};

class Closing : public testing::TestWithParam<Row> {
  protected:
    Pair pair = GetParam().made.make(GetParam().carrier);
    std::uint64_t received = 0;

    /// As many as go in without a reader.
    std::uint64_t fill() {
        if (pair.keeps_last) return send(3);
        std::uint64_t count = 0;
        Status status = Status::ok;
        for (; (status = pair.send(count)) == Status::ok; ++count) {
        }
        EXPECT_EQ(status, Status::full);
        return count;
    }
    std::uint64_t send(std::uint64_t count) {
        for (std::uint64_t i = 0; i != count; ++i) EXPECT_EQ(pair.send(i), Status::ok);
        return count;
    }
    /// What the other end answers once it has found nothing, or the end. `meanwhile()` within.
    template <class Meanwhile>
    Status receive_until(std::uint64_t count, Meanwhile&& meanwhile) {
        const Deadline deadline = soon();
        while (received != count && !deadline.expired()) {
            std::uint64_t number = 0;
            const Status status = pair.receive(number);
            if (status == Status::ok) {
                if (pair.keeps_last) received = number;
                EXPECT_EQ(number, received);
                ++received;
            } else if (status != Status::empty) {
                return status;
            }
            meanwhile();
        }
        return Status::ok;
    }
    Status receive(std::uint64_t count) {
        return receive_until(count, [] {});
    }
    /// How it ends for the other end, which takes what is there still.
    Status end_of_other() { return receive(~std::uint64_t{0}); }
};

TEST_P(Closing, OkMeansThatTheOtherEndReadsClosedAfterTheLastItem) {
    const std::uint64_t count = send(5);
    if (pair.is_fetched) {
        const auto close = [&] { (void)pair.close(Deadline::now()); };
        ASSERT_EQ(receive_until(count, close), Status::ok);
    }
    EXPECT_EQ(pair.close(soon()), Status::ok);
    EXPECT_EQ(pair.send(count), Status::closed);
    EXPECT_EQ(end_of_other(), Status::closed);
    EXPECT_EQ(received, count);
    EXPECT_EQ(end_of_other(), Status::closed) << "once more";
    EXPECT_EQ(pair.close(soon()), Status::ok) << "once more";
}

TEST_P(Closing, TimedOutMeansThatNothingWasGivenUp) {
    const std::uint64_t count = fill();
    if (pair.delivers_at_once && !pair.is_fetched) {
        EXPECT_EQ(pair.close(Deadline::now()), Status::ok);
    } else {
        EXPECT_EQ(pair.close(Deadline::now()), Status::timed_out);
        EXPECT_EQ(pair.send(count), Status::closed) << "it takes nothing new";
        EXPECT_EQ(pair.close(Deadline::after(1ms)), Status::timed_out) << "once more";
        if (pair.answer) {
            ASSERT_EQ(pair.answer(7), Status::ok);
            std::uint64_t heard = 0;
            const Deadline deadline = soon();
            while (pair.hear(heard) == Status::empty && !deadline.expired()) {
            }
            EXPECT_EQ(heard, 7U) << "it reads still";
        }
    }
    Status closed = Status::timed_out;
    const Status status =
        receive_until(~std::uint64_t{0}, [&] { closed = pair.close(Deadline::now()); });
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(received, count);
    EXPECT_EQ(pair.close(soon()), Status::ok);
}

TEST_P(Closing, AnEndThatIsDestroyedAfterACloseThatTimedOutIsLost) {
    const std::uint64_t count = fill();
    if (pair.delivers_at_once && !pair.is_fetched) GTEST_SKIP() << "there is nothing to wait for";
    ASSERT_EQ(pair.close(Deadline::now()), Status::timed_out);
    pair.drop();
    EXPECT_EQ(end_of_other(), pair.if_dropped);
    EXPECT_LE(received, count);
}

TEST_P(Closing, AnEndThatIsDestroyedWithoutACloseIsLost) {
    const std::uint64_t count = send(5);
    EXPECT_EQ(receive(count), Status::ok);
    pair.drop();
    EXPECT_EQ(end_of_other(), pair.if_dropped);
    EXPECT_EQ(received, count);
}

TEST_P(Closing, PeerLostMeansThatNobodyTakesWhatIsLeft) {
    (void)send(5);
    pair.drop_other();
    EXPECT_EQ(pair.close(soon()), pair.if_lost);
    EXPECT_EQ(pair.close(soon()), pair.if_lost) << "once more";
}

TEST_P(Closing, OkIsAlsoTheAnswerWhereTheOtherEndHasClosedAndHadEverything) {
    const std::uint64_t count = send(5);
    ASSERT_EQ(receive(count), Status::ok);
    pair.close_other();
    EXPECT_EQ(pair.close(soon()), Status::ok);
}

TEST_P(Closing, ClosedMeansThatTheOtherEndHasClosedBeforeItHadEverything) {
    (void)fill();
    pair.close_other();
    EXPECT_EQ(pair.close(soon()), pair.if_left);
    EXPECT_EQ(pair.close(soon()), pair.if_left) << "once more";
}

std::vector<Row> rows() {
    std::vector<Row> all;
    for (const auto& of : {flows(), two_ways(), sessions()}) {
        for (const Made& made : of) {
            all.push_back({made, Carrier::automatic});
            if (made.has_carriers) all.push_back({made, Carrier::post});
        }
    }
    return all;
}
std::string name_of(const testing::TestParamInfo<Row>& of) {
    return std::string{of.param.made.name} + (of.param.carrier == Carrier::post ? "_posted" : "");
}
INSTANTIATE_TEST_SUITE_P(Of, Closing, testing::ValuesIn(rows()), name_of);

}  // namespace
}  // namespace millrace::closing
