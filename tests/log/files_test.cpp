// A log in files: what a process that begins anew finds, wherever the one before was cut short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "log/book.hpp"
#include "log/history.hpp"
#include "log/subscription.hpp"
#include "readers.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using testing::HasSubstr;

LogOptions in_files(const Folder& folder) {
    LogOptions options = small_log();
    options.directory = folder.path();
    options.retention.bytes = 64 << 10;
    return options;
}

std::string content_of(const std::string& path) {
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
}
void write_file(const std::string& path, const std::string& content) {
    std::ofstream{path, std::ios::binary | std::ios::trunc} << content;
}

TEST(LogFiles, LetALogGoOnWithItsSequence) {
    const Folder folder;
    const std::string address = fresh_address();
    LogEpoch epoch;
    for (std::uint32_t round = 0; round != 5; ++round) {
        auto log = Log<Numbered>::listen(address, in_files(folder));
        EXPECT_EQ(log.end(), round * 500);
        EXPECT_EQ(log.epoch().number, round);
        if (round == 0) epoch = log.epoch();
        EXPECT_EQ(log.epoch().sequence, epoch.sequence);
        append_up_to(log, round * 500 + 250);
        auto reader = join(log, {.from = LogStart::earliest()});
        append_up_to(log, round * 500 + 500);
        read_up_to(log, reader, log.end());
        if (round % 2 == 0) {
            EXPECT_EQ(log.close(soon()), Status::ok);
        }
    }
}

TEST(LogFiles, KeepAcknowledgementsByName) {
    const Folder folder;
    const std::string address = fresh_address();
    LogEpoch epoch;
    {
        auto log = Log<Numbered>::listen(address, in_files(folder));
        append_up_to(log, 100);
        auto reader = join(log, {.name = "billing"});
        epoch = reader.epoch();
        read_up_to(log, reader, 60);
        ASSERT_EQ(reader.acknowledge(40), Status::ok);
        ASSERT_EQ(reader.acknowledge(50), Status::ok);
        ASSERT_TRUE(served_until(log, [&] { return log.stats().acknowledgements == 2; }));
        log.sync();
    }
    auto log = Log<Numbered>::listen(address, in_files(folder));
    auto reader = join(log, {.name = "billing"});
    EXPECT_EQ(reader.position(), 50U);
    EXPECT_EQ(reader.epoch(), (LogEpoch{epoch.sequence, 1}));
    auto by_itself = join(log, {.from = LogStart::position(60, epoch)});
    read_up_to(log, by_itself, 100);
    log.forget("billing");
    EXPECT_EQ(join(log, {.name = "billing"}).position(), 0U);
}

TEST(LogFiles, LetAReaderResumeWithoutAGapOrRepetition) {
    const Folder folder;
    const std::string address = fresh_address();
    auto log = std::make_unique<Log<Numbered>>(Log<Numbered>::listen(address, in_files(folder)));
    append_up_to(*log, 100);
    auto reader = join(*log, {.name = "billing"});
    read_up_to(*log, reader, 70);
    ASSERT_EQ(reader.acknowledge(65), Status::ok);
    log.reset();  // before it has taken the acknowledgement
    log = std::make_unique<Log<Numbered>>(Log<Numbered>::listen(address, in_files(folder)));
    append_up_to(*log, 200);
    Numbered item;
    Status status = Status::ok;
    for (std::uint64_t next = 70; status == Status::ok; ++next) {
        status = reader.read(item, soon());
        if (status == Status::ok) {
            EXPECT_EQ(item, Numbered::at(next)) << "what lay in its ring";
        }
    }
    EXPECT_EQ(status, Status::peer_lost);
    while_served(*log, [&] {
        reader.resume(soon());
        return 0;
    });
    EXPECT_EQ(reader.epoch().number, 1U);
    read_up_to(*log, reader, 200);
    const auto consumers = log->consumers();
    ASSERT_EQ(consumers.size(), 1U);
    EXPECT_EQ(consumers[0].acknowledged, 65U) << "said again";
}

TEST(LogFiles, RefuseAReaderThatHasHadItemsWhichTheLogLost) {
    const Folder folder;
    const std::string address = fresh_address();
    LogEpoch epoch;
    {
        auto log = Log<Numbered>::listen(address, in_files(folder));
        append_up_to(log, 100);
        epoch = log.epoch();
    }
    // As a host that ends: the last items were not on the disk.
    const std::string segment = folder.file("00000000000000000000.segment");
    std::string content = content_of(segment);
    write_file(segment, content.substr(0, 64 + 80 * sizeof(Numbered)));
    std::string checks = content.substr(64 + 80 * sizeof(Numbered));
    auto log = Log<Numbered>::listen(address, in_files(folder));
    ASSERT_LE(log.end(), 80U);
    const std::uint64_t kept = log.end();
    append_up_to(log, 150);
    const base::Error error =
        error_of([&] { (void)join(log, {.from = LogStart::position(90, epoch)}); });
    EXPECT_EQ(error.code(), base::ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("lost items"));
    (void)join(log, {.from = LogStart::position(kept, epoch)});
}

/// A host that ended twice: the second time more was lost than the first time.
TEST(LogFiles, JudgeAReaderByAllEpochsSinceItsOwn) {
    const std::uint64_t begins[] = {0, 50, 20};
    const detail::LogView log{
        .shape = {.item_size = 8}, .sequence = 5, .epochs = begins, .epoch = 2, .end = 100};
    const auto state_of = [&](std::uint64_t position, std::uint32_t epoch) {
        detail::LogSubscription subscription;
        detail::LogRequest request;
        request.ask = static_cast<std::uint32_t>(detail::LogAsk::join);
        request.from = static_cast<std::uint32_t>(LogStart::At::position);
        request.item_size = 8;
        request.item_alignment = 1;
        request.sequence = 5;
        request.position = position;
        request.epoch = epoch;
        EXPECT_EQ(subscription.take(request, log, [](const auto&) { return std::nullopt; }),
                  nullptr);
        return subscription.state();
    };
    using State = detail::LogSubscription::State;
    EXPECT_EQ(state_of(20, 0), State::reading);
    EXPECT_EQ(state_of(21, 0), State::refused);
    EXPECT_EQ(state_of(21, 1), State::refused);
    EXPECT_EQ(state_of(60, 2), State::reading);
    EXPECT_EQ(state_of(20, 3), State::refused) << "an epoch to come";
}

TEST(LogFiles, GoByTheOldestFirst) {
    const Folder folder;
    LogOptions options = in_files(folder);
    options.retention.bytes = 8192;
    auto log = Log<Numbered>::listen(fresh_address(), options);
    append_up_to(log, 3000);
    EXPECT_GT(log.first(), 2500U);
    std::uintmax_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator{folder.path()}) {
        if (entry.path().extension() == ".segment") bytes += entry.file_size();
    }
    EXPECT_LE(bytes, 8192U);
    EXPECT_GT(bytes, 8192U * 7 / 8 - 64);
}

TEST(LogFiles, BelongToOneLogAtATimeAndToItsItems) {
    const Folder folder;
    {
        auto log = Log<Numbered>::listen(fresh_address(), in_files(folder));
        const base::Error error =
            error_of([&] { (void)Log<Numbered>::listen(fresh_address(), in_files(folder)); });
        EXPECT_THAT(error.what(), HasSubstr("another log has it"));
    }
    const base::Error error =
        error_of([&] { (void)Log<std::uint64_t>::listen(fresh_address(), in_files(folder)); });
    EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    std::string content = content_of(folder.file("log"));
    for (std::size_t cut = 0; cut < content.size(); ++cut) {
        write_file(folder.file("log"), content.substr(0, cut));
        EXPECT_THROW((void)Log<Numbered>::listen(fresh_address(), in_files(folder)), base::Error);
    }
    content[20] ^= 1;
    write_file(folder.file("log"), content);
    EXPECT_THROW((void)Log<Numbered>::listen(fresh_address(), in_files(folder)), base::Error);
}

// ---- cut at every byte

using detail::LogDirectory;
using detail::LogHistory;
using detail::LogShape;

/// An item of up to 40 bytes; of one type, of 12.
std::vector<std::byte> item_at(const LogShape& shape, std::uint64_t position) {
    std::vector<std::byte> item(shape.is_framed() ? position * 11 % 41 : shape.item_size);
    for (std::size_t i = 0; i != item.size(); ++i) item[i] = std::byte(position * 31 + i);
    return item;
}

class LogFilesOf : public testing::TestWithParam<bool> {
  protected:
    const LogShape shape{.item_size = GetParam() ? 0U : 12U, .item_alignment = 4, .item_name = 7};
    const LogRetention retention{.bytes = 4096};
    const Folder folder;

    LogHistory open(LogDirectory& directory) {
        return LogHistory{shape, retention, 256, &directory};
    }
    void append(LogHistory& history, std::uint64_t end) {
        while (history.end() != end) {
            ASSERT_EQ(history.append(item_at(shape, history.end())), Status::ok);
        }
    }
    /// Everything that is kept is what was appended.
    void check(const LogHistory& history) {
        LogHistory::Cursor cursor{.position = history.first()};
        while (cursor.position != history.end()) {
            const std::uint64_t position = cursor.position;
            ASSERT_TRUE(std::ranges::equal(history.item(position), item_at(shape, position)))
                << position;
            const std::uint64_t size = item_at(shape, position).size();
            (void)history.next(cursor, shape.is_framed() ? detail::log_record_bytes(size) : size);
            ASSERT_EQ(cursor.position, position + 1);
        }
    }
    [[nodiscard]] std::string last_segment(LogDirectory& directory) const {
        return directory.path_of(directory.segments().back());
    }
};

TEST_P(LogFilesOf, ThatAreCutAtAnyByteGoOnWithTheWholeItemsBefore) {
    constexpr std::uint64_t count = 60;
    std::string whole;
    std::string segment;
    std::uint64_t base = 0;
    {
        LogDirectory directory{folder.path(), shape};
        LogHistory history = open(directory);
        append(history, count);
        directory.begin_epoch(0);
        segment = last_segment(directory);
        base = directory.segments().back();
        whole = content_of(segment);
    }
    ASSERT_GT(base, 0U) << "one is whole";
    std::uint64_t most = 0;
    for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
        write_file(segment, whole.substr(0, cut));
        LogDirectory directory{folder.path(), shape};
        LogHistory history = open(directory);
        ASSERT_GE(history.end(), base);
        ASSERT_LE(history.end(), count);
        if (shape.is_framed() || cut == whole.size()) {
            ASSERT_GE(history.end(), most) << "the longer it is, the more is whole";
        }
        most = std::max(most, history.end());
        check(history);
        // What comes next is not mixed with what was there.
        append(history, history.end() + 1);
        check(history);
    }
    EXPECT_EQ(most, count);
}

TEST_P(LogFilesOf, ThatAreWrongInAnyByteGoOnWithTheWholeItemsBefore) {
    std::string whole;
    std::string segment;
    {
        LogDirectory directory{folder.path(), shape};
        LogHistory history = open(directory);
        append(history, 8);
        directory.begin_epoch(0);
        segment = last_segment(directory);
        whole = content_of(segment);
    }
    for (std::size_t at = 0; at != whole.size(); ++at) {
        std::string wrong = whole;
        wrong[at] = static_cast<char>(wrong[at] ^ 0x10);
        write_file(segment, wrong);
        LogDirectory directory{folder.path(), shape};
        LogHistory history = open(directory);
        ASSERT_LE(history.end(), 8U);
        check(history);
    }
}

TEST_P(LogFilesOf, DoNotLetOldItemsComeToLightAfterNewOnes) {
    {
        LogDirectory directory{folder.path(), shape};
        LogHistory history = open(directory);
        append(history, 10);
        directory.begin_epoch(0);
    }
    std::string segment;
    {  // Item 4 is torn; those after it are whole.
        LogDirectory directory{folder.path(), shape};
        segment = last_segment(directory);
        std::string torn = content_of(segment);
        const auto item = item_at(shape, 4);
        const std::string bytes{reinterpret_cast<const char*>(item.data()), item.size()};
        torn[torn.find(bytes)] ^= 1;
        write_file(segment, torn);
        LogHistory history = open(directory);
        EXPECT_EQ(history.end(), 4U);
        append(history, 5);
    }
    LogDirectory directory{folder.path(), shape};
    LogHistory history = open(directory);
    EXPECT_EQ(history.end(), 5U) << "the items 5 to 9 were given up with the first restart";
    check(history);
}

TEST_P(LogFilesOf, SetAsideWhatDoesNotFollow) {
    std::vector<std::uint64_t> bases;
    {
        LogDirectory directory{folder.path(), shape};
        LogHistory history = open(directory);
        append(history, 80);
        directory.begin_epoch(0);
        bases = directory.segments();
    }
    ASSERT_GE(bases.size(), 3U);
    {
        LogDirectory directory{folder.path(), shape};
        std::filesystem::resize_file(directory.path_of(bases[1]), 90);
        LogHistory history = open(directory);
        EXPECT_GE(history.end(), bases[1]);
        EXPECT_LT(history.end(), bases[2]);
        check(history);
        EXPECT_EQ(directory.segments().size(), 2U);
    }
    LogDirectory directory{folder.path(), shape};
    check(open(directory));
}

INSTANTIATE_TEST_SUITE_P(Items, LogFilesOf, testing::Bool(),
                         [](const auto& of) { return of.param ? "of_bytes" : "of_one_type"; });

TEST(LogBook, HasTheNewestWholePositionWhereverItIsCut) {
    const Folder folder;
    std::filesystem::create_directories(folder.path());
    const std::string path = folder.file("consumers");
    {
        detail::LogBook book{path, 5, 1000};
        ASSERT_TRUE(book.note("a", 10));
        ASSERT_TRUE(book.note("b", 20));
        ASSERT_TRUE(book.note("a", 30));
        ASSERT_TRUE(book.note("b", 40));
    }
    const std::string whole = content_of(path).substr(0, 32 + 4 * 96);
    for (std::size_t at = 0; at != whole.size(); ++at) {
        std::string wrong = whole;
        wrong[at] = static_cast<char>(wrong[at] ^ 0x10);
        write_file(path, wrong);
        detail::LogBook book{path, 5, 1000};
        const auto a = book.acknowledged("a").value_or(0);
        const auto b = book.acknowledged("b").value_or(0);
        EXPECT_TRUE(a == 30 || a == 10) << at << ": " << a;
        EXPECT_TRUE(b == 40 || b == 20) << at << ": " << b;
    }
    for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
        write_file(path, whole.substr(0, cut));
        detail::LogBook book{path, 5, 1000};
        const auto a = book.acknowledged("a").value_or(0);
        EXPECT_TRUE(a == 30 || a == 10 || a == 0) << cut << ": " << a;
    }
    write_file(path, whole);
    EXPECT_EQ((detail::LogBook{path, 5, 35}.acknowledged("b")), 35U) << "the log has no more";
    EXPECT_EQ((detail::LogBook{path, 6, 1000}.acknowledged("a")), std::nullopt) << "another log's";
}

}  // namespace
}  // namespace millrace::flow
