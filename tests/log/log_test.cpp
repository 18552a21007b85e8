// A log in memory: one appender, readers that come and go.
#include "millrace/flow/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "readers.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using testing::HasSubstr;

TEST(Log, GivesEveryItemToEveryReader) {
    constexpr std::uint64_t count = 3000;
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    std::vector<LogReader<Numbered>> readers;
    for (int i = 0; i != 3; ++i) readers.push_back(join(log));
    std::vector<std::jthread> threads;
    for (auto& reader : readers) {
        threads.emplace_back([&] {
            Numbered item;
            Status status;
            std::uint64_t next = 0;
            while ((status = reader.read(item, soon())) == Status::ok) {
                ASSERT_EQ(item, Numbered::at(next++));
            }
            EXPECT_EQ(status, Status::closed);
            EXPECT_EQ(next, count);
        });
    }
    append_up_to(log, count);
    EXPECT_EQ(log.close(soon()), Status::ok);
    EXPECT_EQ(log.try_append({}), Status::closed);
    EXPECT_EQ(log.stats().items, count);
}

TEST(Log, LetsWhoComesLateReadHistoryAndThenWhatComes) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    append_up_to(log, 1000);
    auto from_first = join(log, {.from = LogStart::earliest()});
    auto from_300 = join(log, {.from = LogStart::position(300)});
    auto from_end = join(log, {.from = LogStart::latest()});
    EXPECT_EQ(from_first.position(), 0U);
    EXPECT_EQ(from_300.position(), 300U);
    EXPECT_EQ(from_end.position(), 1000U);
    Numbered item;
    EXPECT_EQ(from_end.try_read(item), Status::empty);
    read_up_to(log, from_300, 700);
    append_up_to(log, 2000);
    read_up_to(log, from_first, 2000);
    read_up_to(log, from_300, 2000);
    read_up_to(log, from_end, 2000);
    EXPECT_EQ(from_end.stats().items, 1000U);
}

TEST(Log, GivesItemsOfBytesAsTheyAre) {
    auto log = Log<Bytes>::listen(fresh_address(), small_log(2048));
    const auto item_of = [](std::uint64_t number) {
        return std::vector<std::byte>(number * 37 % 600, std::byte(number));
    };
    for (std::uint64_t i = 0; i != 200; ++i) ASSERT_EQ(log.try_append(item_of(i)), Status::ok);
    EXPECT_EQ(log.try_append(std::vector<std::byte>(2000)), Status::too_large);
    auto reader = join(log, {.from = LogStart::position(7)});
    std::vector<std::byte> item;
    for (std::uint64_t i = 7; i != 400; ++i) {
        if (i >= 100) {
            ASSERT_EQ(log.try_append(item_of(i + 100)), Status::ok);
        }
        ASSERT_TRUE(served_until(log, [&] { return reader.try_read(item) == Status::ok; }));
        EXPECT_EQ(item, item_of(i)) << i;
        EXPECT_EQ(reader.position(), i + 1);
    }
    std::span<const std::byte> kept;
    ASSERT_EQ(log.read(42, kept), Status::ok);
    EXPECT_TRUE(std::ranges::equal(kept, item_of(42)));
}

TEST(Log, TakesAndGivesBatches) {
    auto log = Log<Numbered>::listen(fresh_address());
    auto reader = join(log);
    std::vector<Numbered> items;
    for (std::uint64_t i = 0; i != 5000; ++i) items.push_back(Numbered::at(i));
    const BatchResult appended = log.try_append_batch(items);
    EXPECT_EQ(appended.status, Status::ok);
    EXPECT_EQ(appended.count, 5000U);
    std::vector<Numbered> read(5000);
    std::size_t count = 0;
    ASSERT_TRUE(served_until(log, [&] {
        count += reader.try_read_batch(std::span{read}.subspan(count)).count;
        return count == read.size();
    }));
    EXPECT_EQ(read, items);
    EXPECT_LT(reader.stats().frames, 100U);
}

TEST(Log, TellsAReaderThatRetentionHasPassedAndGoesOnWhereItCan) {
    LogOptions options = small_log();
    options.retention.bytes = 8192;  // 512 items, 64 go at a time
    auto log = Log<Numbered>::listen(fresh_address(), options);
    auto slow = join(log);
    auto quick = join(log);
    for (std::uint64_t end = 0; end != 4000; end += 10) {
        append_up_to(log, end + 10);
        read_up_to(log, quick, end + 10);
    }
    EXPECT_GE(log.first(), 4000U - 512);
    EXPECT_LE(log.first(), 4000U - 512 + 64);
    // What lies in its ring it has.
    Numbered item;
    Status status = Status::ok;
    ASSERT_TRUE(served_until(log, [&] {
        const std::uint64_t position = slow.position();
        status = slow.try_read(item);
        if (status == Status::ok) {
            EXPECT_EQ(item, Numbered::at(position));
        }
        return status != Status::ok && status != Status::empty;
    }));
    EXPECT_EQ(status, Status::full);
    EXPECT_GT(slow.first_kept(), slow.position());
    EXPECT_LE(slow.first_kept(), log.first()) << "the first one when it was passed";
    EXPECT_EQ(slow.try_read(item), Status::full) << "until the program has decided";
    EXPECT_EQ(slow.read(item, soon()), Status::full);
    const std::uint64_t missing = log.first() - slow.position();
    EXPECT_EQ(slow.skip(), Status::ok);
    EXPECT_EQ(slow.skip(), Status::empty);
    ASSERT_TRUE(served_until(log, [&] { return slow.try_read(item) == Status::ok; }));
    EXPECT_EQ(item, Numbered::at(log.first()));
    EXPECT_EQ(slow.stats().skipped, missing);
    read_up_to(log, slow, 4000);
    EXPECT_EQ(log.stats().passed, 1U);
}

TEST(Log, TellsWhoAsksForWhatIsNoLongerKept) {
    LogOptions options = small_log();
    options.retention.bytes = 8192;
    auto log = Log<Numbered>::listen(fresh_address(), options);
    append_up_to(log, 2000);
    auto reader = join(log, {.from = LogStart::position(3)});
    EXPECT_EQ(reader.position(), 3U);
    Numbered item;
    Status status = Status::ok;
    ASSERT_TRUE(
        served_until(log, [&] { return (status = reader.try_read(item)) != Status::empty; }));
    EXPECT_EQ(status, Status::full);
    EXPECT_EQ(reader.first_kept(), log.first());
    const base::Error error =
        error_of([&] { (void)join(log, {.from = LogStart::position(2001)}); });
    EXPECT_EQ(error.code(), base::ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("2000"));
}

TEST(Log, KeepsWhatNamedConsumersHaveNotAcknowledged) {
    LogOptions options = small_log();
    options.retention = {.bytes = 8192, .until_acknowledged = {"billing", "audit"}};
    auto log = Log<Numbered>::listen(fresh_address(), options);
    append_up_to(log, 512);
    EXPECT_EQ(log.try_append({}), Status::full);
    EXPECT_EQ(log.append({}, Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(log.stats().first, 0U);
    auto billing = join(log, {.name = "billing"});
    auto audit = join(log, {.name = "audit"});
    read_up_to(log, billing, 512);
    read_up_to(log, audit, 100);
    ASSERT_EQ(billing.acknowledge(), Status::ok);
    ASSERT_EQ(audit.acknowledge(), Status::ok);
    ASSERT_TRUE(served_until(log, [&] { return log.stats().acknowledgements == 2; }));
    // 100 may go, by 64 at a time.
    append_up_to(log, 512 + 64);
    EXPECT_EQ(log.try_append({}), Status::full);
    EXPECT_EQ(log.first(), 64U);
    log.forget("audit");
    append_up_to(log, 1024);
    EXPECT_EQ(log.first(), 512U);
    EXPECT_EQ(log.try_append({}), Status::full);
}

TEST(Log, DropsWhatIsTooOld) {
    LogOptions options = small_log();
    options.retention = {.bytes = 8192, .age = 1ns};
    auto log = Log<Numbered>::listen(fresh_address(), options);
    append_up_to(log, 200);
    // What is full goes; what grows does not.
    ASSERT_TRUE(served_until(log, [&] { return log.first() == 192; }));
    Numbered item;
    EXPECT_EQ(log.read(191, item), Status::empty);
    ASSERT_EQ(log.read(192, item), Status::ok);
    EXPECT_EQ(item, Numbered::at(192));
    EXPECT_EQ(log.read(200, item), Status::empty);
}

TEST(Log, LetsANamedConsumerGoOnWhereItHasAcknowledged) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    append_up_to(log, 500);
    {
        auto reader = join(log, {.name = "billing"});
        EXPECT_EQ(reader.position(), 0U) << "it never was here";
        read_up_to(log, reader, 300);
        ASSERT_EQ(reader.acknowledge(120), Status::ok);
        ASSERT_EQ(reader.acknowledge(200), Status::ok);
        ASSERT_EQ(reader.acknowledge(150), Status::ok) << "which changes nothing";
        ASSERT_EQ(reader.flush(soon()), Status::ok);
        const base::Error error = error_of([&] { (void)reader.acknowledge(301); });
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    }
    auto again = join(log, {.name = "billing"});
    EXPECT_EQ(again.position(), 200U);
    read_up_to(log, again, 500);
    EXPECT_EQ(while_served(log, [&] { return again.close(soon()); }), Status::ok);
    ASSERT_TRUE(served_until(log, [&] { return log.stats().readers == 0; }));
    EXPECT_EQ(log.stats().closed, 1U);
    EXPECT_EQ(log.stats().lost, 1U);
    const auto consumers = log.consumers();
    ASSERT_EQ(consumers.size(), 1U);
    EXPECT_EQ(consumers[0].name, "billing");
    EXPECT_EQ(consumers[0].acknowledged, 200U);
    EXPECT_EQ(consumers[0].number, 0U) << "it is not there";
    auto nameless = join(log);
    EXPECT_THROW((void)nameless.acknowledge(0), base::Error);
}

TEST(Log, GivesANameToWhoCameLast) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    append_up_to(log, 10);
    auto first = join(log, {.name = "billing"});
    read_up_to(log, first, 10);
    auto second = join(log, {.name = "billing"});
    EXPECT_EQ(log.stats().readers, 1U);
    Numbered item;
    Status status = Status::ok;
    ASSERT_TRUE(
        served_until(log, [&] { return (status = first.try_read(item)) != Status::empty; }));
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_NE(first.failure(), "");
    read_up_to(log, second, 10);
}

TEST(Log, IsNotHeldUpByAReaderThatDoesNotRead) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    auto idle = join(log);
    auto reader = join(log);
    for (std::uint64_t end = 0; end != 20'000; end += 100) {
        append_up_to(log, end + 100);
        read_up_to(log, reader, end + 100);
    }
    EXPECT_EQ(log.stats().full, 0U);
    read_up_to(log, idle, 20'000);
}

TEST(Log, RefusesReadersOfOtherItems) {
    auto log = Log<Numbered>::listen(fresh_address(), small_log());
    const auto error_of_reader = [&]<class T>() {
        return error_of([&] {
            (void)while_served(log,
                               [&] { return LogReader<T>::connect(log.address(), {}, soon()); });
        });
    };
    EXPECT_EQ(error_of_reader.operator()<std::uint64_t>().code(), base::ErrorCode::refused);
    EXPECT_EQ(error_of_reader.operator()<Bytes>().code(), base::ErrorCode::refused);
    EXPECT_EQ(log.stats().joined, 0U);
}

TEST(Log, RefusesAPositionOfAnotherSequence) {
    const std::string address = fresh_address();
    LogEpoch epoch;
    {
        auto log = Log<Numbered>::listen(address, small_log());
        append_up_to(log, 10);
        epoch = join(log).epoch();
        EXPECT_EQ(epoch, log.epoch());
    }
    auto log = Log<Numbered>::listen(address, small_log());
    append_up_to(log, 20);
    EXPECT_NE(log.epoch().sequence, epoch.sequence);
    const base::Error error =
        error_of([&] { (void)join(log, {.from = LogStart::position(5, epoch)}); });
    EXPECT_EQ(error.code(), base::ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("begun anew"));
    (void)join(log, {.from = LogStart::position(5, log.epoch())});
}

TEST(Log, RefusesOptionsThatCannotBe) {
    const auto code_of = [](LogOptions options) {
        return error_of([&] { (void)Log<Numbered>::listen(fresh_address(), std::move(options)); })
            .code();
    };
    EXPECT_EQ(code_of({.retention = {.bytes = 100}}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.retention = {.age = -1s}}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.retention = {.until_acknowledged = {""}}}),
              base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.max_readers = 0}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.queue = {.ring = {.capacity = 40}}}), base::ErrorCode::invalid_argument);
    const std::string long_name(65, 'x');
    auto log = Log<Numbered>::listen(fresh_address());
    EXPECT_EQ(error_of([&] {
                  (void)LogReader<Numbered>::connect(log.address(), {.name = long_name}, soon());
              }).code(),
              base::ErrorCode::invalid_argument);
}

TEST(Log, BelongsToTheThreadThatMadeItOrAdoptedIt) {
    auto log = Log<Numbered>::listen(fresh_address());
    std::jthread{[&] { EXPECT_THROW((void)log.look_around(), base::Error); }}.join();
    std::jthread{[&] {
        log.adopt();
        EXPECT_EQ(log.try_append({}), Status::ok);
    }}.join();
    EXPECT_THROW((void)log.close(soon()), base::Error);
    log.adopt();
    EXPECT_EQ(log.close(soon()), Status::ok);
}

TEST(Log, WaitsWithDeadlineAndCancellation) {
    auto log = Log<Numbered>::listen(fresh_address());
    EXPECT_EQ(log.serve(Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(log.wait_acknowledged(0, 1, Deadline::after(1ms)), Status::timed_out);
    EXPECT_EQ(log.wait_acknowledged(0, 0, Deadline::now()), Status::ok);
    base::Cancellation cancellation;
    std::jthread canceller{[&] { cancellation.request(); }};
    EXPECT_EQ(log.serve(Deadline::never().cancelled_by(cancellation)), Status::cancelled);
    EXPECT_EQ(log.flush(soon()), Status::ok);
    auto reader = join(log);
    Numbered item;
    EXPECT_EQ(reader.read(item, Deadline::after(1ms)), Status::timed_out);
}

TEST(Log, ExplainsWhatItKeepsAndWhatCarriesIt) {
    LogOptions options = small_log();
    options.retention = {.bytes = 8192, .age = 2s, .until_acknowledged = {"billing"}};
    auto log = Log<Numbered>::listen(fresh_address(), options);
    append_up_to(log, 7);
    auto reader = join(log, {.name = "billing"});
    EXPECT_THAT(log.explain(), HasSubstr("items 0 to 7"));
    EXPECT_THAT(log.explain(), HasSubstr("8192 bytes"));
    EXPECT_THAT(log.explain(), HasSubstr("older than 2 s"));
    EXPECT_THAT(log.explain(), HasSubstr("carrier"));
    EXPECT_THAT(reader.explain(), HasSubstr("'billing'"));
    EXPECT_THAT(reader.explain(), HasSubstr("carrier"));
}

}  // namespace
}  // namespace millrace::flow
