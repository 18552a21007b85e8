// What clients make a server hold: counted, bounded together, and given back.
#include "millrace/message/detail/held_bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "assembly.hpp"
#include "memory.hpp"
#include "message/serving.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server_group.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

TEST(HeldBytes, AreTakenUpToTheirBoundAndComeBackWithTheirHolder) {
    const auto held = std::make_shared<HeldBytes>(1000);
    HeldPart one{held};
    EXPECT_TRUE(one.set(600));
    {
        HeldPart other{held};
        EXPECT_FALSE(other.set(401));
        EXPECT_TRUE(other.set(400));
        EXPECT_TRUE(held->is_full());
        other.set_anyhow(500);
        EXPECT_EQ(held->now(), 1100U);
        EXPECT_FALSE(one.set(601));
        EXPECT_TRUE(one.set(100));
    }
    EXPECT_EQ(held->now(), 100U);
    HeldPart moved{std::move(one)};
    EXPECT_EQ(held->now(), 100U);
    moved = HeldPart{};
    EXPECT_EQ(held->now(), 0U);
}

TEST(Memory, OfAVectorThatIsGivenBackDoesNotStay) {
    std::vector<std::byte> memory(1000);
    clear_keeping(memory, 1000);
    EXPECT_TRUE(memory.empty());
    EXPECT_EQ(memory.capacity(), 1000U);
    clear_keeping(memory, 999);
    EXPECT_EQ(memory.capacity(), 0U);
}

TEST(Assembly, KeepsNoMemoryOfALargeMessage) {
    const auto held = std::make_shared<HeldBytes>(std::size_t{10} << 20);
    Assembly assembly{std::size_t{4} << 20, HeldPart{held}};
    const Bytes piece(100'000);
    assembly.begin();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(assembly.append(piece));
    EXPECT_GE(held->now(), 20 * piece.size());
    assembly.clear();
    EXPECT_EQ(held->now(), 0U);
}

TEST(Assembly, KeepsTheHeadOfAMessageThatFindsNoRoom) {
    const auto held = std::make_shared<HeldBytes>(std::size_t{200} << 10);
    Assembly assembly{std::size_t{4} << 20, HeldPart{held}};
    const Bytes piece = content(1, 2, 50'000);
    assembly.begin();
    int pieces = 0;
    while (assembly.append(piece)) ASSERT_LT(++pieces, 5);
    EXPECT_TRUE(assembly.exceeds_budget());
    assembly.keep_head(piece);
    EXPECT_TRUE(std::ranges::equal(assembly.bytes(), std::span{piece}.first(session_head_bytes)));
    EXPECT_EQ(held->now(), 0U);
    // One that is longer than any may be is no matter of room.
    Assembly small{1000};
    small.begin();
    EXPECT_FALSE(small.append(piece));
    EXPECT_FALSE(small.exceeds_budget());
}

class HeldByServers : public ByEveryWay {
  protected:
    /// Long messages go in pieces.
    [[nodiscard]] static Client connect(RunningGroup& running, ClientOptions options = {}) {
        options.tuning.large.longer_than = LargeMessages::never;
        return running.connect(options);
    }
    [[nodiscard]] static ServerOptions options_of_few_bytes() {
        ServerOptions chosen = options();
        chosen.max_request_bytes = std::size_t{1} << 20;
        chosen.max_held_bytes = 0;  // what one request takes
        return chosen;
    }
};
INSTANTIATE_TEST_SUITE_P(Every, HeldByServers, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(HeldByServers, AreGivenBackBehindALargeRequest) {
    RunningGroup running{1, options()};
    Client client = connect(running);
    const Bytes large = content(1, 1, std::size_t{3} << 20);
    for (int i = 0; i < 3; ++i) {
        Bytes answer;
        ASSERT_EQ(client.call(large, answer, patience()), Outcome::ok);
        EXPECT_EQ(answer, large);
    }
    EXPECT_TRUE(eventually([&] { return running.group.held()->now() == 0; }));
}

TEST_P(HeldByServers, HaveABoundForAllClientsTogether) {
    RunningGroup running{1, options_of_few_bytes()};
    constexpr std::size_t room = (std::size_t{1} << 20) + (std::size_t{128} << 10);
    constexpr std::size_t count = 6;
    const Bytes large(std::size_t{1} << 20);
    std::vector<Client> clients;
    for (std::size_t i = 0; i < count; ++i) clients.push_back(connect(running));
    for (Client& client : clients) {
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(
                      large.size(), [](std::span<std::byte>) {}, id, patience()),
                  Status::ok);
    }
    std::size_t whole = 0;
    std::size_t refused = 0;
    const auto take = [&](const Answer& answer) {
        whole += answer.outcome == Outcome::ok ? 1 : 0;
        refused += answer.outcome == Outcome::overloaded ? 1 : 0;
    };
    const Deadline deadline = patience();
    while (whole + refused < count && !deadline.expired()) {
        for (Client& client : clients) (void)client.poll(take);
        // Answers that wait are what was given, and is not refused.
        EXPECT_LE(running.group.held()->now(), 3 * room);
    }
    EXPECT_EQ(whole + refused, count);
    EXPECT_GE(whole, 1U);
    // Another thread reads counts that may be those of a millisecond ago.
    EXPECT_TRUE(eventually([&] { return running.group.stats().overloaded == refused; }));
    EXPECT_GE(running.group.stats().over_budget, refused);
    // Who was refused is served again.
    EXPECT_TRUE(eventually([&] { return running.group.held()->now() == 0; }));
    for (Client& client : clients) {
        Bytes answer;
        EXPECT_EQ(client.call(large, answer, patience()), Outcome::ok);
    }
}

TEST_P(HeldByServers, AreThoseOfNoClientWhoseRequestDoesNotGoOn) {
    ServerOptions chosen = options();
    chosen.patience = 50ms;
    RunningGroup running{1, chosen};
    Client stalling = connect(running);
    Client other = connect(running);
    const Bytes large(std::size_t{8} << 20);
    std::uint64_t id = 0;
    ASSERT_EQ(stalling.submit(
                  large.size(), [](std::span<std::byte>) {}, id, patience()),
              Status::ok);
    EXPECT_TRUE(eventually([&] {
        // Most of it never comes, as nobody goes on sending it.
        const Bytes small(10);
        Bytes answer;
        EXPECT_EQ(other.call(small, answer, patience()), Outcome::ok);
        return running.group.stats().misbehaved == 1;
    }));
    EXPECT_TRUE(eventually([&] { return running.group.held()->now() == 0; }));
    EXPECT_EQ(running.group.stats().clients, 1U);
}

/// Requests of this size are kept, or make the answers that are long.
constexpr std::size_t long_bytes = std::size_t{200} << 10;

TEST(HeldBytesOfSessions, EndNoneWhoseRequestComesAgainWhereThereIsNoRoom) {
    std::mutex mutex;
    std::vector<Reply> later;
    RunningGroup running{1, {}, [&](Request& request) {
                             if (request.payload().size() != long_bytes) return echo(request);
                             const std::lock_guard guard{mutex};
                             later.push_back(request.defer());
                         }};
    ClientOptions chosen = resuming();
    chosen.tuning.large.longer_than = LargeMessages::never;
    Breakable breakable{running.group.address(), chosen};
    std::uint64_t id = 0;
    ASSERT_EQ(breakable.client.submit(content(1, 1, long_bytes), id, patience()), Status::ok);
    ASSERT_TRUE(eventually([&] {
        (void)breakable.client.poll([](const Answer&) {});
        const std::lock_guard guard{mutex};
        return later.size() == 1;
    }));
    const std::size_t others = ServerOptions{}.max_held_bytes;
    running.group.held()->add(others);
    breakable.cut();
    // What is called after it comes back when the server has seen it once more. There is no room to
    // keep an answer either, so one that was on its way may be gone.
    EXPECT_TRUE(eventually([&] {
        Bytes answer;
        const Outcome outcome = breakable.client.call(content(2, 1, 20), answer, patience());
        EXPECT_TRUE(outcome == Outcome::ok || outcome == Outcome::expired)
            << breakable.client.failure();
        return breakable.client.stats().resumed != 0;
    }));
    EXPECT_EQ(running.group.stats().misbehaved, 0U);
    running.group.held()->give_back(others);
    ASSERT_EQ(later.front().answer(bytes_of("late")), Status::ok);
    std::string got;
    EXPECT_EQ(
        breakable.client.answer_to(
            id, [&](std::span<const std::byte> answer) { got = text_of(answer); }, patience()),
        Outcome::ok);
    EXPECT_EQ(got, "late");
    EXPECT_EQ(later.size(), 1U) << "it was executed once";
}

}  // namespace
}  // namespace millrace::message
