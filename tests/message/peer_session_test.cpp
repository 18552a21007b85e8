// What a server keeps of a client's session: numbers, requests without an answer, and answers that
// may be asked for again.
#include "server/peer_session.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::message {
namespace {

using testing::ElementsAre;

class ServerSessions : public testing::Test {
  protected:
    void begin(Hello hello, std::uint32_t window = 4) { session.begin(hello, window, held); }
    [[nodiscard]] std::vector<std::uint64_t> deferred() const {
        std::vector<std::uint64_t> all;
        session.each_deferred([&](std::uint64_t id) { all.push_back(id); });
        return all;
    }
    static SessionHeader request(std::uint64_t id, std::uint16_t behind) {
        return {.id = id, .behind = behind};
    }
    static constexpr std::size_t plenty = std::size_t{1} << 20;

    std::shared_ptr<HeldBytes> held = std::make_shared<HeldBytes>(std::size_t{1} << 20);
    PeerSession session;
};

TEST_F(ServerSessions, HaveNamesOfTheirOwn) {
    begin({});
    const SessionName first = session.name();
    EXPECT_FALSE(first.is_none());
    session.end();
    EXPECT_TRUE(session.name().is_none());
    begin({});
    EXPECT_NE(session.name(), first);
}

TEST_F(ServerSessions, TakeNumbersInTheirOrderFromTheOneThatTheClientSays) {
    begin({.next_id = 7});
    EXPECT_FALSE(session.is_next(1));
    EXPECT_TRUE(session.is_next(7));
    session.take(request(7, 0));
    EXPECT_EQ(session.taken(), 7U);
    EXPECT_FALSE(session.is_next(7));
    EXPECT_TRUE(session.is_next(8));
    session.take_up_to(12);
    session.take_up_to(9);
    EXPECT_EQ(session.taken(), 12U);
}

TEST_F(ServerSessions, AllowNoMoreWithoutAnAnswerThanTheWindow) {
    begin({}, 3);
    EXPECT_TRUE(session.allows(request(5, 2)));
    EXPECT_FALSE(session.allows(request(5, 3)));
    EXPECT_FALSE(session.allows(request(2, 2))) << "there is no request 0";
}

TEST_F(ServerSessions, KnowWhatIsDeferred) {
    begin({}, 3);  // places for four
    EXPECT_TRUE(session.defer(1));
    EXPECT_TRUE(session.defer(2));
    EXPECT_TRUE(session.is_deferred(2));
    EXPECT_EQ(session.pending(), 2U);
    EXPECT_FALSE(session.defer(5)) << "of a client that lies, which loses 1";
    EXPECT_EQ(session.pending(), 2U);
    EXPECT_THAT(deferred(), ElementsAre(5, 2));
    EXPECT_FALSE(session.take_deferred(1));
    EXPECT_TRUE(session.take_deferred(5));
    EXPECT_FALSE(session.take_deferred(5));
    EXPECT_EQ(session.pending(), 1U);
    session.end();
    EXPECT_FALSE(session.take_deferred(2));
    EXPECT_EQ(session.pending(), 0U);
}

TEST_F(ServerSessions, KeepAnswersUntilTheClientHasThem) {
    begin({.resumes = true});
    const std::vector<std::byte> answer(100, std::byte{7});
    session.take(request(1, 0));
    EXPECT_TRUE(session.keep(1, Outcome::failed, answer, plenty));
    session.take(request(2, 1));  // 1 has no answer yet, as far as its client knows
    const PeerSession::Kept* const kept = session.kept(1);
    ASSERT_NE(kept, nullptr);
    EXPECT_EQ(kept->outcome, Outcome::failed);
    EXPECT_EQ(kept->payload, answer);
    EXPECT_GE(held->now(), answer.size());
    session.take(request(3, 1));
    EXPECT_EQ(session.kept(1), nullptr);
    EXPECT_EQ(held->now(), 0U);
}

TEST_F(ServerSessions, KeepNoMoreThanTheyMay) {
    begin({.resumes = true});
    const std::vector<std::byte> answer(1000);
    EXPECT_TRUE(session.keep(1, Outcome::ok, answer, 1500));
    EXPECT_TRUE(session.keep(2, Outcome::ok, answer, 1500)) << "which is no matter of memory";
    EXPECT_NE(session.kept(1), nullptr);
    EXPECT_EQ(session.kept(2), nullptr);
    ASSERT_TRUE(held->take((std::size_t{1} << 20) - held->now()));
    const std::vector<std::byte> longer(20'000);
    EXPECT_FALSE(session.keep(3, Outcome::ok, longer, plenty));
    EXPECT_EQ(session.kept(3), nullptr);
}

TEST_F(ServerSessions, RememberWhatIsToBeRead) {
    begin({.resumes = true});
    session.take(request(1, 0));
    session.add_unread(1);
    session.take(request(2, 1));
    EXPECT_TRUE(session.is_unread(1));
    EXPECT_TRUE(session.take_unread(1));
    EXPECT_FALSE(session.take_unread(1));
    session.add_unread(2);
    session.take(request(3, 0));  // its client has the answer to 2
    EXPECT_FALSE(session.is_unread(2));
}

TEST_F(ServerSessions, ThatEndWithTheirConnectionRememberNothing) {
    begin({});
    session.take(request(1, 0));
    session.add_unread(1);
    EXPECT_FALSE(session.is_unread(1));
}

}  // namespace
}  // namespace millrace::message
