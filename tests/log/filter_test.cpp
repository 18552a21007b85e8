// Readers with filters at a log: the same items as without, chosen at the log; positions that stay
// the log's; acknowledging, resuming and retention by them.
#include "millrace/flow/filter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "readers.hpp"
#include "structures/filtered.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::HasSubstr;

LogReaderOptions asking(Filter filter, std::string name = {}) {
    LogReaderOptions options;
    options.queue.filter = filter;
    options.name = std::move(name);
    return options;
}

/// What a reader takes, with the positions that it says after each, while the log's owner serves.
template <class U>
struct Taken {
    std::vector<U> items;
    std::vector<std::uint64_t> positions;
};
template <class U, class Log, class Stop>
Taken<U> take_until(Log& log, LogReader<U>& reader, const Stop& stop) {
    Taken<U> taken;
    const Deadline deadline = soon();
    while (!stop(taken) && !deadline.expired()) {
        U item;
        const Status status = reader.try_read(item);
        if (status == Status::ok) {
            taken.items.push_back(item);
            taken.positions.push_back(reader.position());
        } else {
            EXPECT_EQ(status, Status::empty) << reader.failure();
            if (status != Status::empty) break;
            (void)log.look_around();
        }
    }
    return taken;
}
template <class U, class Log>
Taken<U> take_some(Log& log, LogReader<U>& reader, std::size_t count) {
    return take_until<U>(log, reader,
                         [&](const auto& taken) { return taken.items.size() == count; });
}

template <class F>
std::vector<std::uint64_t> places_of(const std::vector<Row>& rows, const F& filter,
                                     std::uint64_t from = 0) {
    std::vector<std::uint64_t> after;
    for (std::size_t i = from; i != rows.size(); ++i) {
        detail::put_made<F, Row>(filter, rows[i], [&](const auto&) { after.push_back(i + 1); });
    }
    return after;
}

/// Half of the rows are history when the reader joins, half of them come live.
template <class U, class F>
void check_as_at_the_reader(const F& filter, std::uint64_t seed) {
    const std::vector<Row> rows = some_rows(seed, 3000);
    auto log = Log<Rows>::listen(fresh_address());
    const auto half = std::span{rows}.first(1500);
    ASSERT_EQ(log.try_append_batch(half).count, half.size());
    auto reader = join<U>(log, asking(filter));
    std::size_t next = 1500;
    const std::vector<U> expected = kept_by<U>(rows, filter);
    const auto taken = take_until<U>(log, reader, [&](const auto& so_far) {
        if (next != rows.size()) {
            EXPECT_EQ(log.try_append(rows[next++]), Status::ok);
        }
        return so_far.items.size() == expected.size() && next == rows.size();
    });
    EXPECT_EQ(taken.items, expected);
    EXPECT_EQ(taken.positions, places_of(rows, filter));
    auto closing = std::async(std::launch::async, [&] {
        U item;
        return reader.read(item, soon());
    });
    EXPECT_EQ(log.close(soon()), Status::ok);
    EXPECT_EQ(closing.get(), Status::closed);
    EXPECT_EQ(reader.position(), rows.size());
    EXPECT_EQ(reader.stats().items, expected.size());
    EXPECT_EQ(reader.stats().left_out, rows.size() - expected.size());
    EXPECT_EQ(reader.stats().threw, 0U);
}

TEST(LogFilter, IsTheSameAsFilteringAtTheReader) {
    std::uint64_t seed = 40;
    for (const std::uint32_t limit : {0U, 50U, 95U, 100U}) {
        check_as_at_the_reader<Row>(Above{limit}, ++seed);
        check_as_at_the_reader<Key>(KeyAbove{limit}, ++seed);
    }
    check_as_at_the_reader<Key>(KeyOf{}, ++seed);
}

TEST(LogFilter, ChoosesAmongItemsOfAnyLength) {
    auto log = Log<Frames>::listen(fresh_address());
    for (std::size_t i = 0; i != 400; ++i) {
        ASSERT_EQ(log.try_append(std::vector<std::byte>(i % 50, std::byte(i))), Status::ok);
    }
    auto longer = join<Bytes>(log, asking(Longer{20}));
    auto fronts = join<Bytes>(log, asking(Front{20}));
    auto all = join<Bytes>(log);
    const auto next = [&](LogReader<Bytes>& reader) {
        std::vector<std::byte> item;
        EXPECT_TRUE(served_until(log, [&] { return reader.try_read(item) == Status::ok; }));
        return item;
    };
    for (std::size_t i = 0; i != 400; ++i) {
        const std::vector<std::byte> item(i % 50, std::byte(i));
        EXPECT_EQ(next(all), item);
        if (item.size() > 20) {
            EXPECT_EQ(next(longer), item);
            EXPECT_EQ(longer.position(), i + 1);
        }
        if (item.size() >= 20) {
            EXPECT_EQ(next(fronts), std::vector<std::byte>(20, std::byte(i)));
        }
    }
}

TEST(LogFilter, SendsLess) {
    auto log = Log<Rows>::listen(fresh_address());
    auto all = join<Row>(log);
    auto tenth = join<Row>(log, asking(Above{89}));
    const std::vector<Row> rows = some_rows(5, 4000);
    const std::size_t expected = kept_by<Row>(rows, Above{89}).size();
    std::size_t got[2] = {};
    Row row;
    for (const Row& one : rows) {
        ASSERT_EQ(log.try_append(one), Status::ok);
        while (all.try_read(row) == Status::ok) ++got[0];
        while (tenth.try_read(row) == Status::ok) ++got[1];
    }
    ASSERT_TRUE(served_until(log, [&] {
        while (all.try_read(row) == Status::ok) ++got[0];
        while (tenth.try_read(row) == Status::ok) ++got[1];
        return got[0] == rows.size() && got[1] == expected;
    }));
    const std::vector<LogConsumer> consumers = log.consumers();
    ASSERT_EQ(consumers.size(), 2U);
    EXPECT_GT(consumers[0].bytes, 4 * consumers[1].bytes);
    EXPECT_EQ(consumers[0].filter.looked, 0U);
    EXPECT_EQ(consumers[1].filter.looked, rows.size());
    EXPECT_EQ(consumers[1].filter.passed, expected);
    EXPECT_EQ(consumers[1].filter.bytes_kept, (rows.size() - expected) * sizeof(Row));
}

TEST(LogFilter, NeedsNoAcknowledgementOfWhatItLeavesOut) {
    LogOptions options;
    options.retention.bytes = 4096 * 8;
    options.retention.until_acknowledged = {"tenth"};
    auto log = Log<Rows>::listen(fresh_address(), options);
    auto reader = join<Row>(log, asking(Above{89}, "tenth"));
    // Many times what is kept: each would wait for an acknowledgement that nobody gives.
    const std::vector<Row> rows = some_rows(6, 5000);
    std::vector<Row> got;
    Row row;
    const auto read_and_acknowledge = [&] {
        while (reader.try_read(row) == Status::ok) {
            got.push_back(row);
            EXPECT_EQ(reader.acknowledge(), Status::ok);
        }
    };
    for (const Row& one : rows) {
        Status status = Status::full;
        ASSERT_TRUE(served_until(log, [&] {
            read_and_acknowledge();
            return (status = log.try_append(one)) != Status::full;
        }));
        ASSERT_EQ(status, Status::ok);
    }
    const std::vector<Row> expected = kept_by<Row>(rows, Above{89});
    ASSERT_TRUE(served_until(log, [&] {
        read_and_acknowledge();
        return got.size() == expected.size();
    }));
    EXPECT_EQ(got, expected);
    const auto say_acknowledgements = [&] {
        EXPECT_EQ(while_served(log, [&] { return reader.flush(soon()); }), Status::ok);
    };
    say_acknowledgements();
    EXPECT_EQ(log.wait_acknowledged(log.end(), 1, soon()), Status::ok);
    EXPECT_EQ(log.wait_acknowledged(log.end(), {"tenth"}, soon()), Status::ok);
    // What passes and is not acknowledged counts as ever.
    ASSERT_EQ(log.try_append({.value = 99}), Status::ok);
    ASSERT_EQ(log.try_append({.value = 1}), Status::ok);
    EXPECT_EQ(log.wait_acknowledged(log.end(), 1, Deadline::after(20ms)), Status::timed_out);
    (void)take_some<Row>(log, reader, 1);
    EXPECT_EQ(log.wait_acknowledged(log.end(), 1, Deadline::after(20ms)), Status::timed_out);
    EXPECT_EQ(reader.acknowledge(), Status::ok);
    say_acknowledgements();
    EXPECT_EQ(log.wait_acknowledged(log.end(), 1, soon()), Status::ok);
}

TEST(LogFilter, ResumesBehindTheLastItemThatPassed) {
    const Folder folder;
    LogOptions options;
    options.directory = folder.path();
    const std::string address = fresh_address();
    const std::vector<Row> rows = some_rows(7, 3000);
    const std::vector<Row> expected = kept_by<Row>(rows, Above{79});
    auto log = std::make_unique<Log<Rows>>(Log<Rows>::listen(address, options));
    auto reader = join<Row>(*log, asking(Above{79}, "some"));
    std::vector<Row> got;
    for (std::size_t end = 500; end <= rows.size(); end += 500) {
        const auto part = std::span{rows}.subspan(end - 500, 500);
        ASSERT_EQ(log->try_append_batch(part).count, part.size());
        // Not all of them: the rest comes after the restart.
        const std::size_t before =
            kept_by<Row>({rows.begin(), rows.begin() + end}, Above{79}).size();
        const auto taken = take_some<Row>(*log, reader, before - got.size() - 3);
        got.insert(got.end(), taken.items.begin(), taken.items.end());
        const std::uint64_t position = reader.position();
        EXPECT_EQ(reader.acknowledge(), Status::ok);
        // It ends without a goodbye.
        log.reset();
        log = std::make_unique<Log<Rows>>(Log<Rows>::listen(address, options));
        Row row;
        Status status = Status::ok;
        while (status == Status::ok || status == Status::empty) status = reader.try_read(row);
        ASSERT_EQ(status, Status::peer_lost);
        // What lay in the ring was taken just now, and is left out of what was got: go back there.
        reader = while_served(*log, [&] {
            auto again = asking(Above{79}, "some");
            again.from = LogStart::position(position, reader.epoch());
            return LogReader<Row>::connect(log->address(), again, soon());
        });
        EXPECT_EQ(reader.position(), position);
    }
    const auto rest = take_some<Row>(*log, reader, expected.size() - got.size());
    got.insert(got.end(), rest.items.begin(), rest.items.end());
    EXPECT_EQ(got, expected);
    // And by resume(), which knows the position itself.
    log.reset();
    log = std::make_unique<Log<Rows>>(Log<Rows>::listen(address, options));
    while_served(*log, [&] {
        reader.resume(soon());
        return 0;
    });
    ASSERT_EQ(log->try_append({.key = 1, .value = 1}), Status::ok);
    ASSERT_EQ(log->try_append({.key = 2, .value = 99}), Status::ok);
    const auto last = take_some<Row>(*log, reader, 1);
    ASSERT_EQ(last.items.size(), 1U);
    EXPECT_EQ(last.items[0].key, 2U);
    EXPECT_EQ(reader.position(), rows.size() + 2);
}

TEST(LogFilter, IsPassedByRetentionAsEverybodyIs) {
    LogOptions options;
    options.retention.bytes = 4096 * 8;
    auto log = Log<Rows>::listen(fresh_address(), options);
    LogReaderOptions chosen = asking(Above{0});
    chosen.queue.ring.capacity = 1024;
    auto reader = join<Row>(log, chosen);
    while (log.first() < 500) ASSERT_EQ(log.try_append({.value = 1}), Status::ok);
    Row row;
    Status status = Status::ok;
    ASSERT_TRUE(served_until(log, [&] {
        status = reader.try_read(row);
        return status != Status::ok && status != Status::empty;
    }));
    EXPECT_EQ(status, Status::full);
    EXPECT_EQ(reader.skip(), Status::ok);
    const auto taken = take_some<Row>(log, reader, 1);
    EXPECT_GE(reader.position(), 501U);
    EXPECT_EQ(taken.items.size(), 1U);
    EXPECT_GT(reader.stats().skipped, 0U);
}

template <class U, class L>
std::string refusal(L& log, const LogReaderOptions& options) {
    const base::Error error =
        error_of([&] { (void)join<U>(static_cast<detail::LogBase&>(log), options); });
    EXPECT_EQ(error.code(), base::ErrorCode::refused) << error.what();
    return error.what();
}

TEST(LogFilter, IsRefusedWhereTheLogHasNoneOfThatNameOrType) {
    auto log = Log<Rows>::listen(fresh_address());
    EXPECT_THAT(refusal<Row>(log, asking(Other{})),
                AllOf(HasSubstr("test::Other'"), HasSubstr("it has '"), HasSubstr("KeyAbove'")));
    EXPECT_THAT(refusal<Row>(log, asking(KeyOf{})), HasSubstr("another type"));
    auto plain = Log<Row>::listen(fresh_address());
    EXPECT_THAT(refusal<Row>(plain, asking(Above{1})), HasSubstr("it has none"));
    LogOptions options;
    options.queue.filter = Above{1};
    EXPECT_EQ(error_of([&] { (void)Log<Rows>::listen(fresh_address(), options); }).code(),
              base::ErrorCode::invalid_argument);
}

TEST(LogFilter, ThatThrowsEndsItsReaderThere) {
    auto log = Log<Rows>::listen(fresh_address());
    auto reader = join<Row>(log, asking(ThrowsAt{7}));
    auto other = join<Row>(log);
    for (std::uint32_t value = 0; value != 10; ++value) {
        ASSERT_EQ(log.try_append({.value = value}), Status::ok);
    }
    const auto taken = take_some<Row>(log, reader, 7);
    ASSERT_EQ(taken.items.size(), 7U);
    Row row;
    Status status = Status::empty;
    ASSERT_TRUE(served_until(log, [&] {
        status = reader.try_read(row);
        return status != Status::empty;
    }));
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_THAT(reader.failure(), AllOf(HasSubstr("ThrowsAt"), HasSubstr("for the item at 7"),
                                        HasSubstr("no such?value")));
    EXPECT_EQ(reader.position(), 7U);
    EXPECT_EQ(log.consumers().at(0).filter.threw, 1U);
    EXPECT_EQ(take_some<Row>(log, other, 10).items.size(), 10U);
}

TEST(LogFilter, ThatThrowsLeavesTheItemOutWhereItsReaderSaysSo) {
    auto log = Log<Rows>::listen(fresh_address());
    auto reader = join<Row>(log, asking(Filter{ThrowsAt{7}, WhenThrown::skip}));
    for (std::uint32_t i = 0; i != 30; ++i) {
        ASSERT_EQ(log.try_append({.key = i, .value = i % 10}), Status::ok);
    }
    const auto taken = take_some<Row>(log, reader, 27);
    ASSERT_EQ(taken.items.size(), 27U);
    for (const Row& row : taken.items) EXPECT_NE(row.value, 7U);
    EXPECT_EQ(taken.positions.back(), 30U);
    EXPECT_EQ(reader.stats().threw, 3U);
    EXPECT_EQ(reader.stats().left_out, 3U);
    EXPECT_EQ(log.consumers().at(0).filter.threw, 3U);
}

}  // namespace
}  // namespace millrace::flow
