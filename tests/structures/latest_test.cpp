// Values of which only the latest counts: never torn, never older than one seen before, never in
// the way of the writer.
#include "millrace/flow/latest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <thread>

#include "crowd.hpp"
#include "support/child_process.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using millrace::test::becomes_readable;
using millrace::test::ChildProcess;
using millrace::test::goes_quiet;
using millrace::test::say;
using testing::HasSubstr;

/// Every word says which value it is of.
template <std::size_t words>
struct Value {
    std::array<std::uint64_t, words> body{};
    static Value make(std::uint64_t number) {
        Value value;
        for (std::size_t i = 0; i != words; ++i) value.body[i] = number * 31 + i;
        return value;
    }
    [[nodiscard]] std::uint64_t number() const { return body[0] / 31; }
    [[nodiscard]] bool is_whole() const { return *this == make(number()); }
    friend bool operator==(const Value&, const Value&) = default;
};
using Small = Value<3>;
using Large = Value<512>;

template <class T>
struct LatestEnds {
    explicit LatestEnds(LatestOptions options = {.cells = 1}, LatestOptions of_writer = {}) {
        const std::string address = fresh_address();
        auto reading = std::async(
            std::launch::async, [&] { return LatestReader<T>::listen(address, options, soon()); });
        of_writer.carrier = options.carrier;
        writer.emplace(LatestWriter<T>::connect(address, of_writer, soon()));
        reader.emplace(reading.get());
    }
    std::optional<LatestWriter<T>> writer;
    std::optional<LatestReader<T>> reader;
};

template <class T>
class LatestOf : public testing::Test {};
using Sizes = testing::Types<Small, Large, Value<1>>;
TYPED_TEST_SUITE(LatestOf, Sizes);

TYPED_TEST(LatestOf, ValuesIsTheLastOneThatWasPut) {
    using T = TypeParam;
    for (const ring::Carrier carrier : {ring::Carrier::automatic, ring::Carrier::post}) {
        LatestEnds<T> ends{{.cells = 1, .carrier = carrier}};
        T value;
        EXPECT_EQ(ends.reader->try_get(value), Status::empty);
        EXPECT_EQ(ends.reader->read(0, value), Status::empty);
        for (std::uint64_t i = 1; i != 20; ++i) {
            for (std::uint64_t j = 0; j != i; ++j) {
                ASSERT_EQ(ends.writer->put(0, T::make(100 * i + j), soon()), Status::ok);
            }
            ASSERT_EQ(ends.writer->flush(soon()), Status::ok);
            ASSERT_EQ(ends.reader->try_get(value), Status::ok);
            EXPECT_EQ(value, T::make(100 * i + i - 1));
            EXPECT_EQ(ends.reader->try_get(value), Status::empty) << "it was got";
            ASSERT_EQ(ends.reader->read(0, value), Status::ok) << "and is still there";
            EXPECT_EQ(value, T::make(100 * i + i - 1));
        }
        EXPECT_EQ(ends.reader->stats().passed_over, 19 * 20 / 2 - 19U);
        EXPECT_EQ(ends.writer->stats().values, 19 * 20 / 2U);
    }
}

TYPED_TEST(LatestOf, ValuesIsNeverTornAndNeverGoesBack) {
    using T = TypeParam;
    for (const ring::Carrier carrier : {ring::Carrier::automatic, ring::Carrier::post}) {
        LatestEnds<T> ends{{.cells = 2, .carrier = carrier}};
        std::atomic<bool> ends_now{false};
        std::jthread writing{[&] {
            for (std::uint64_t i = 1; !ends_now.load(); ++i) {
                const Status status = ends.writer->put(i % 2, T::make(i));
                ASSERT_TRUE(status == Status::ok || status == Status::full);
                if (status == Status::full) std::this_thread::yield();
            }
            ASSERT_EQ(ends.writer->close(soon()), Status::ok);
        }};
        std::array<std::uint64_t, 2> last{};
        std::uint64_t got = 0;
        const Deadline deadline = soon();
        while (got != 300 && !deadline.expired()) {
            std::uint32_t cell = 9;
            T value;
            if (ends.reader->next(cell, value) != Status::ok) {
                std::this_thread::yield();  // the writer may need this core
                continue;
            }
            ASSERT_LT(cell, 2U);
            ASSERT_TRUE(value.is_whole());
            ASSERT_EQ(value.number() % 2, cell);
            ASSERT_GT(value.number(), last[cell]);
            last[cell] = value.number();
            ++got;
        }
        EXPECT_EQ(got, 300U);
        ends_now = true;
        writing.join();
        std::uint32_t cell = 0;
        T value;
        Status status;
        while ((status = ends.reader->next(cell, value)) == Status::ok || status == Status::empty) {
            EXPECT_TRUE(status == Status::empty || value.is_whole());
            ASSERT_FALSE(deadline.expired());
        }
        EXPECT_EQ(status, Status::closed);
    }
}

TEST(Latest, CellsKnowNothingOfEachOther) {
    LatestEnds<Small> ends{{.cells = 100}};
    EXPECT_EQ(ends.writer->cells(), 100U);
    for (std::uint32_t cell = 0; cell < 100; cell += 7) {
        ASSERT_EQ(ends.writer->put(cell, Small::make(cell), soon()), Status::ok);
    }
    ASSERT_EQ(ends.writer->flush(soon()), Status::ok);
    std::uint32_t expected = 0;
    std::uint32_t cell = 0;
    Small value;
    while (ends.reader->next(cell, value) == Status::ok) {
        EXPECT_EQ(cell, expected);
        EXPECT_EQ(value, Small::make(cell));
        expected += 7;
    }
    EXPECT_EQ(expected, 105U);
    EXPECT_EQ(ends.reader->read(1, value), Status::empty);
    EXPECT_EQ(ends.reader->try_get(100, value), Status::too_large);
    EXPECT_EQ(ends.writer->put(100, value), Status::too_large);
}

TEST(Latest, WriterNeverWaitsForItsReader) {
    LatestEnds<Large> ends;
    for (std::uint64_t i = 1; i != 5000; ++i) {
        ASSERT_EQ(ends.writer->put(0, Large::make(i), soon()), Status::ok);
    }
    ASSERT_EQ(ends.writer->flush(soon()), Status::ok);
    Large value;
    ASSERT_EQ(ends.reader->try_get(value), Status::ok);
    EXPECT_EQ(value, Large::make(4999));
}

TEST(Latest, ReaderSleepsUntilThereIsANewer) {
    for (const ring::Carrier carrier : {ring::Carrier::automatic, ring::Carrier::post}) {
        LatestEnds<Small> ends{
            {.cells = 8, .wait = base::WaitPolicy::blocking(), .carrier = carrier}};
        const Deadline deadline = soon();
        while (ends.reader->stats().sleeps == 0 && !deadline.expired()) {
            EXPECT_EQ(ends.reader->wait(Deadline::after(10ms)), Status::timed_out);
        }
        EXPECT_GT(ends.reader->stats().sleeps, 0U);
        std::jthread writing{[&] {
            for (std::uint64_t i = 1; i <= 100; ++i) {
                std::this_thread::sleep_for(std::chrono::microseconds{i % 7 * 200});
                ASSERT_EQ(ends.writer->put(i % 8, Small::make(i), soon()), Status::ok);
            }
            ASSERT_EQ(ends.writer->close(soon()), Status::ok);
        }};
        Status status;
        std::uint64_t last = 0;
        while ((status = ends.reader->wait(soon())) == Status::ok) {
            std::uint32_t cell = 0;
            Small value;
            while (ends.reader->next(cell, value) == Status::ok) {
                last = std::max(last, value.number());
            }
        }
        EXPECT_EQ(status, Status::closed);
        EXPECT_EQ(last, 100U);
    }
}

TEST(Latest, ReaderCanBeInAProgramsOwnLoop) {
    LatestEnds<Small> ends{{.cells = 3}};
    const int descriptor = ends.reader->descriptor();
    std::uint32_t cell = 0;
    Small value;
    EXPECT_TRUE(goes_quiet(descriptor, [&] { (void)ends.reader->next(cell, value); }));
    for (std::uint64_t i = 1; i != 20; ++i) {
        ASSERT_EQ(ends.writer->put(i % 3, Small::make(i), soon()), Status::ok);
        Status status = Status::empty;
        while (status == Status::empty) {
            ASSERT_TRUE(becomes_readable(descriptor, 20s)) << i;
            status = ends.reader->next(cell, value);
        }
        ASSERT_EQ(status, Status::ok);
        EXPECT_EQ(value, Small::make(i));
        EXPECT_TRUE(goes_quiet(descriptor, [&] { (void)ends.reader->next(cell, value); }));
    }
    ASSERT_EQ(ends.writer->close(soon()), Status::ok);
    ASSERT_TRUE(becomes_readable(descriptor, 20s));
    const Deadline deadline = soon();
    Status status = Status::empty;
    while (status == Status::empty && !deadline.expired()) status = ends.reader->next(cell, value);
    EXPECT_EQ(status, Status::closed);
}

TEST(Latest, EndsAreToldOfEachOther) {
    LatestEnds<Small> ends;
    ASSERT_EQ(ends.writer->put(Small::make(1)), Status::ok);
    ends.reader->close();
    const Deadline deadline = soon();
    Status status = Status::ok;
    while ((status == Status::ok || status == Status::full) && !deadline.expired()) {
        status = ends.writer->put(Small::make(2));
    }
    EXPECT_EQ(status, Status::closed);
    Small value;
    EXPECT_EQ(ends.reader->try_get(value), Status::closed);

    LatestEnds<Small> others;
    ASSERT_EQ(others.writer->put(0, Small::make(1), soon()), Status::ok);
    ASSERT_EQ(others.writer->flush(soon()), Status::ok);
    others.writer.reset();
    ASSERT_EQ(others.reader->wait(soon()), Status::ok) << "what was put before its end comes first";
    ASSERT_EQ(others.reader->try_get(value), Status::ok);
    EXPECT_EQ(others.reader->wait(soon()), Status::peer_lost);
    EXPECT_EQ(others.reader->try_get(value), Status::peer_lost);
    EXPECT_FALSE(others.reader->failure().empty());
    ASSERT_EQ(others.reader->read(0, value), Status::ok) << "it is kept";
    EXPECT_EQ(value, Small::make(1));
}

TEST(Latest, EndsThatPauseLookAfterEachOther) {
    LatestEnds<Small> ends;
    EXPECT_EQ(ends.writer->look_around(), Status::ok);
    EXPECT_EQ(ends.reader->look_around(), Status::empty);
    ends.reader->close();
    EXPECT_EQ(ends.reader->look_around(), Status::closed);
    EXPECT_EQ(ends.writer->look_around(), Status::closed) << "at once";

    LatestEnds<Small> others;
    ASSERT_EQ(others.writer->put(0, Small::make(1), soon()), Status::ok);
    ASSERT_EQ(others.writer->flush(soon()), Status::ok);
    others.writer.reset();
    EXPECT_EQ(others.reader->look_around(), Status::empty) << "it left a value";
    Small value;
    ASSERT_EQ(others.reader->try_get(value), Status::ok);
    EXPECT_EQ(others.reader->look_around(), Status::peer_lost);
}

TEST(Latest, AWriterOfFewValuesIsToldOfItsReadersEndByTheClock) {
    LatestEnds<Small> ends;
    ASSERT_EQ(ends.writer->put(Small::make(1)), Status::ok);
    ends.reader->close();
    // Its socket is looked at each 50 ms.
    const auto until = base::Clock::now() + 60ms;
    while (base::Clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(ends.writer->put(Small::make(2)), Status::closed);
}

TEST(Latest, AFlushOfStoredValuesSendsNoVersionBehindThem) {
    LatestEnds<Small> ends;
    if (ends.writer->explain().find("stored to") == std::string::npos) {
        GTEST_SKIP() << "this device's memory is not stored to";
    }
    // The reader sleeps, so that a value comes with an event, which is a request.
    std::uint32_t cell = 0;
    Small value;
    const int descriptor = ends.reader->descriptor();
    ASSERT_TRUE(goes_quiet(descriptor, [&] { (void)ends.reader->next(cell, value); }));
    ASSERT_EQ(ends.writer->put(Small::make(1)), Status::ok);
    ASSERT_EQ(ends.writer->stats().events, 1U);
    ASSERT_EQ(ends.writer->flush(soon()), Status::ok);
    EXPECT_EQ(ends.writer->stats().requests, 0U);
}

TEST(Latest, EndsThatDoNotFitAreRefused) {
    const auto error_between = [](auto&& reader, auto&& writer) {
        const std::string address = fresh_address();
        base::Cancellation is_over;
        auto reading = std::async(std::launch::async, [&] {
            return error_of([&] { reader(address, soon().cancelled_by(is_over)); });
        });
        const base::Error error = error_of([&] { writer(address, soon()); });
        is_over.request();
        (void)reading.get();
        return error;
    };
    const auto read_one = [](const std::string& address, const Deadline& deadline) {
        (void)LatestReader<Small>::listen(address, {.cells = 1}, deadline);
    };
    EXPECT_THAT(error_between(read_one,
                              [](const std::string& address, const Deadline& deadline) {
                                  (void)LatestWriter<Large>::connect(address, {}, deadline);
                              })
                    .what(),
                HasSubstr("values of 4096 bytes"));
    EXPECT_THAT(error_between(read_one,
                              [](const std::string& address, const Deadline& deadline) {
                                  (void)LatestWriter<Small>::connect(address, {.cells = 2},
                                                                     deadline);
                              })
                    .what(),
                HasSubstr("2 cells"));
    EXPECT_THAT(error_between(read_one,
                              [](const std::string& address, const Deadline& deadline) {
                                  (void)LatestReader<Small>::connect(address, {.cells = 1},
                                                                     deadline);
                              })
                    .what(),
                HasSubstr("of one kind"));
    EXPECT_EQ(
        error_of([] { (void)LatestReader<Small>::listen(fresh_address(), {}, soon()); }).code(),
        base::ErrorCode::invalid_argument);
    EXPECT_EQ(error_of([] {
                  (void)LatestReader<Large>::listen(fresh_address(), {.cells = 1U << 20}, soon());
              }).code(),
              base::ErrorCode::invalid_argument);
}

MILLRACE_CHILD(latest_writer) {
    auto writer = LatestWriter<Large>::connect(arguments[0], {}, soon());
    say("connected");
    for (std::uint64_t i = 1;; ++i) {
        const Status status = writer.put(0, Large::make(i), soon());
        if (status != Status::ok) return 1;
    }
}

TEST(LatestBetweenProcesses, IsWholeWhenTheWriterIsKilled) {
    for (int round = 0; round != 5; ++round) {
        const std::string address = fresh_address();
        ChildProcess child = ChildProcess::start("latest_writer", {address});
        auto reader = LatestReader<Large>::listen(address, {.cells = 1}, soon());
        Large value;
        std::uint64_t last = 0;
        for (int got = 0; got != 200;) {
            const Status status = reader.try_get(value);
            ASSERT_TRUE(status == Status::ok || status == Status::empty);
            if (status != Status::ok) {
                ASSERT_EQ(reader.wait(soon()), Status::ok);
                continue;
            }
            ASSERT_TRUE(value.is_whole());
            ASSERT_GT(value.number(), last);
            last = value.number();
            ++got;
        }
        child.kill();
        Status status;
        while ((status = reader.wait(soon())) == Status::ok) {
            if (reader.try_get(value) == Status::ok) {
                ASSERT_TRUE(value.is_whole());
                last = value.number();
            }
        }
        EXPECT_EQ(status, Status::peer_lost);
        ASSERT_EQ(reader.read(0, value), Status::ok);
        EXPECT_TRUE(value.is_whole());
        EXPECT_EQ(value.number(), last);
    }
}

}  // namespace
}  // namespace millrace::flow
