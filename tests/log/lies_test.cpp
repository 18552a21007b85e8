// What a reader, or a log, may say that neither says: its end is dismissed, and nobody else
// notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "log/door.hpp"
#include "log/follower.hpp"
#include "log/subscription.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/flow/item_name.hpp"
#include "readers.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using detail::LogAsk;
using detail::LogFacts;
using detail::LogFollower;
using detail::LogQueue;
using detail::LogRequest;
using detail::LogSay;
using detail::LogShape;
using detail::LogWord;
using testing::HasSubstr;

/// A reader that says what it likes.
class Liar {
  public:
    explicit Liar(Log<Numbered>& log) {
        const std::uint64_t crew = base::random_bits() | 1;
        requests_.emplace(while_served(log, [&] {
            return queue<Producer<LogRequest>>(log.address(), LogQueue::requests, crew);
        }));
        items_.emplace(while_served(
            log, [&] { return queue<Consumer<Bytes>>(log.address(), LogQueue::items, crew); }));
    }
    void say(const LogRequest& request) { EXPECT_EQ(requests_->try_enqueue(request), Status::ok); }
    [[nodiscard]] static LogRequest join() {
        LogRequest request;
        request.ask = static_cast<std::uint32_t>(LogAsk::join);
        request.from = static_cast<std::uint32_t>(LogStart::At::earliest);
        const LogShape shape = detail::log_shape_of(detail::item_facts<Numbered>());
        request.item_size = shape.item_size;
        request.item_alignment = shape.item_alignment;
        request.item_name = shape.item_name;
        request.name_length = 4;
        std::memcpy(request.name, "liar", 4);
        return request;
    }
    [[nodiscard]] static LogRequest ask(LogAsk what, std::uint64_t position) {
        LogRequest request;
        request.ask = static_cast<std::uint32_t>(what);
        request.position = position;
        return request;
    }
    /// The log has let it go.
    [[nodiscard]] bool is_dismissed() {
        std::span<const std::byte> frame;
        while (items_->peek(frame) == Status::ok) items_->release();
        return items_->peek(frame) == Status::peer_lost;
    }

  private:
    template <class End>
    static End queue(const connect::Address& address, LogQueue which, std::uint64_t crew) {
        Options options = detail::log_queue_options({}, which);
        options.ring.crew = {.number = crew, .size = 2};
        return End::over(
            {options.endpoint,
             connect::connect(address, detail::log_link_options(options, which), soon())},
            options, soon());
    }
    std::optional<Producer<LogRequest>> requests_;
    std::optional<Consumer<Bytes>> items_;
};

TEST(LogLiar, IsDismissedAndNobodyElseNotices) {
    const auto with = [](LogRequest request, auto&& change) {
        change(request);
        return request;
    };
    const LogRequest join = Liar::join();
    const std::vector<std::vector<LogRequest>> lies{
        {join, Liar::ask(LogAsk::acknowledge, 21)},  // what it was never sent
        {join, Liar::ask(LogAsk::acknowledge, ~std::uint64_t{0})},
        {Liar::ask(LogAsk::acknowledge, 0)},  // before it has joined
        {join, join},
        {join, Liar::ask(LogAsk::skip, 0)},  // nothing has passed it
        {join, Liar::ask(static_cast<LogAsk>(99), 0)},
        {Liar::ask(static_cast<LogAsk>(0), 0)},
        {with(join, [](auto& one) { one.name_length = 65; })},
        {with(join, [](auto& one) { one.name_length = ~0U; })},
        {with(join, [](auto& one) { one.from = 4; })},
        {with(join, [](auto& one) { one.acknowledged = 7; })},  // of no sequence
        {with(join, [](auto& one) { one.name_length = 0; }), Liar::ask(LogAsk::acknowledge, 1)},
    };
    auto log = Log<Numbered>::listen(fresh_address());
    auto honest = test::join(log, {.name = "honest"});
    append_up_to(log, 20);
    for (std::size_t i = 0; i != lies.size(); ++i) {
        Liar liar{log};
        for (const LogRequest& request : lies[i]) {
            liar.say(request);
            (void)log.look_around();
        }
        EXPECT_TRUE(served_until(log, [&] { return liar.is_dismissed(); })) << "lie " << i;
    }
    EXPECT_EQ(log.stats().readers, 1U);
    EXPECT_EQ(log.stats().acknowledgements, 0U);
    EXPECT_EQ(log.wait_acknowledged(0, 2, Deadline::now()), Status::timed_out);
    for (const LogConsumer& consumer : log.consumers()) EXPECT_EQ(consumer.acknowledged, 0U);
    read_up_to(log, honest, 20);
    ASSERT_EQ(honest.acknowledge(), Status::ok);
    EXPECT_EQ(log.wait_acknowledged(20, 1, soon()), Status::ok);
}

TEST(LogLiar, ThatNeverJoinsIsNoReader) {
    auto log = Log<Numbered>::listen(fresh_address());
    const Liar silent{log};
    EXPECT_EQ(log.look_around(), 0U);
    EXPECT_EQ(log.flush(soon()), Status::ok);
    EXPECT_EQ(log.close(soon()), Status::ok);
}

TEST(LogLiar, IsAPlainQueueRefused) {
    auto log = Log<Numbered>::listen(fresh_address());
    EXPECT_THROW(while_served(log,
                              [&] {
                                  (void)Consumer<Bytes>::connect(log.address(), {}, soon());
                                  return 0;
                              }),
                 base::Error);
}

// ---- a log that lies to its reader

std::vector<std::byte> frame_of(LogSay say, std::uint64_t position,
                                std::span<const std::byte> rest) {
    const std::uint64_t word = LogWord{say, position}.pack();
    std::vector<std::byte> frame(sizeof word + rest.size());
    std::memcpy(frame.data(), &word, sizeof word);
    std::copy(rest.begin(), rest.end(), frame.begin() + sizeof word);
    return frame;
}
std::vector<std::byte> word_of(LogSay say, std::uint64_t position,
                               LogFacts facts = {0, 0, 0, 100}) {
    return frame_of(say, position, std::as_bytes(std::span{&facts, 1}));
}
std::vector<std::byte> items_of(std::uint64_t position, std::size_t bytes) {
    return frame_of(LogSay::items, position, std::vector<std::byte>(bytes));
}

TEST(LogFollower, BelievesNothingThatLeavesAGapOrComesTwice) {
    using Heard = LogFollower::Heard;
    const LogShape shape{.item_size = 8};
    const auto joined = word_of(LogSay::joined, 10);
    const auto heard_after_join = [&](const std::vector<std::byte>& frame) {
        LogFollower follower{shape};
        EXPECT_EQ(follower.take(joined), Heard::change);
        EXPECT_EQ(follower.position(), 10U);
        return follower.take(frame);
    };
    EXPECT_EQ(heard_after_join(items_of(10, 16)), Heard::items);
    EXPECT_EQ(heard_after_join(items_of(11, 16)), Heard::wrong);
    EXPECT_EQ(heard_after_join(items_of(9, 16)), Heard::wrong);
    EXPECT_EQ(heard_after_join(items_of(10, 0)), Heard::wrong);
    EXPECT_EQ(heard_after_join(items_of(10, 12)), Heard::wrong);
    EXPECT_EQ(heard_after_join(joined), Heard::wrong);
    EXPECT_EQ(heard_after_join(word_of(LogSay::refused, 10)), Heard::wrong);
    EXPECT_EQ(heard_after_join(word_of(LogSay::begins, 20)), Heard::wrong);
    EXPECT_EQ(heard_after_join(word_of(LogSay::passed, 10)), Heard::wrong);
    EXPECT_EQ(heard_after_join(word_of(LogSay::passed, 11)), Heard::change);
    EXPECT_EQ(heard_after_join(word_of(static_cast<LogSay>(0), 10)), Heard::wrong);
    EXPECT_EQ(heard_after_join(word_of(static_cast<LogSay>(77), 10)), Heard::wrong);
    EXPECT_EQ(heard_after_join({}), Heard::wrong);
    EXPECT_EQ(heard_after_join(std::vector<std::byte>(7)), Heard::wrong);
    EXPECT_EQ(heard_after_join(frame_of(LogSay::passed, 11, {})), Heard::wrong);

    LogFollower early{shape};
    EXPECT_EQ(early.take(items_of(0, 8)), Heard::wrong);
    LogFollower beyond{shape};
    EXPECT_EQ(beyond.take(word_of(LogSay::joined, 101)), Heard::wrong);
    LogFollower back{shape};
    EXPECT_EQ(back.take(joined), Heard::change);
    EXPECT_EQ(back.take(word_of(LogSay::passed, 50)), Heard::change);
    EXPECT_EQ(back.take(items_of(10, 8)), Heard::wrong) << "nobody has skipped yet";
    back.skip();
    EXPECT_EQ(back.take(word_of(LogSay::begins, 49)), Heard::wrong);
    EXPECT_EQ(back.take(word_of(LogSay::begins, 60)), Heard::change);
    EXPECT_EQ(back.take(items_of(60, 8)), Heard::items);
}

// ---- fork

TEST(LogAndFork, AChildsCopyRefusesAndTheParentsGoesOn) {
    const Folder folder;
    LogOptions options = small_log();
    options.directory = folder.path();
    auto log = Log<Numbered>::listen(fresh_address(), options);
    append_up_to(log, 10);
    auto reader = join(log, {.name = "billing"});
    read_up_to(log, reader, 10);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const auto throws = [](auto&& call) {
            try {
                call();
            } catch (const base::Error& error) {
                return error.code() == base::ErrorCode::invalid_argument;
            }
            return false;
        };
        Numbered item;
        const bool is_right =
            throws([&] { (void)log.try_append({}); }) && throws([&] { (void)log.look_around(); }) &&
            throws([&] { (void)log.close(soon()); }) && throws([&] { log.sync(); }) &&
            reader.try_read(item) == Status::peer_lost &&
            reader.acknowledge() == Status::peer_lost && reader.close(soon()) == Status::peer_lost;
        _exit(is_right ? 0 : 1);
    }
    int how = 0;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
    EXPECT_EQ(log.end(), 10U);
    append_up_to(log, 20);
    read_up_to(log, reader, 20);
    ASSERT_EQ(reader.acknowledge(), Status::ok);
    EXPECT_EQ(log.wait_acknowledged(20, 1, soon()), Status::ok);
}

}  // namespace
}  // namespace millrace::flow
