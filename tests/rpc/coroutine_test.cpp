// Calls awaited by tasks: many at once, over by deadline, cancellation and death, destroyed while
// they wait; and what a call allocates, of each kind.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/connect/hub.hpp"
#include "millrace/rpc/coroutine.hpp"
#include "rpc/allocations.hpp"
#include "rpc/serving.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::Task;

Task<> add_many(AsyncClient& client, std::uint64_t whose, int count, int& running,
                connect::Hub& hub) {
    for (int i = 0; i < count; ++i) {
        const auto number = static_cast<std::uint64_t>(i);
        const Result<Sum> sum = co_await client.call<Add>({whose, number}, patience());
        EXPECT_TRUE(sum) << name_of(sum.code());
        if (!sum) break;
        EXPECT_EQ(sum->who, whose);
        EXPECT_EQ(sum->sum, whose + number);
    }
    if (--running == 0) hub.stop();
}

TEST(AwaitedCalls, OfManyTasksHaveTheirOwnAnswersThoughTheWindowIsSmall) {
    Running running_server;
    ClientOptions options;
    options.messages.window = 4;
    connect::Hub hub;
    AsyncClient client{hub, running_server.connect<Add>(options)};
    int running = 20;
    for (std::uint64_t i = 0; i < 20; ++i) base::spawn(hub, add_many(client, i, 50, running, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(running, 0);
}

/// Answers what adds to more than 0, and lets the rest lie.
struct Lazy {
    Lazy()
        : running{{}, [this](Server& server) {
                      server.handle<Add>([this](const Pair& pair, Call<Add>& call) {
                          if (pair.one + pair.other != 0) {
                              (void)call.answer(sum_of(pair));
                              return;
                          }
                          const std::lock_guard guard{mutex};
                          aside.push_back(call.defer());
                      });
                  }} {}
    std::size_t wanted() {
        const std::lock_guard guard{mutex};
        std::size_t count = 0;
        for (const Reply<Sum>& one : aside) count += one.is_wanted() ? 1 : 0;
        return count;
    }
    std::mutex mutex;
    std::vector<Reply<Sum>> aside;
    Running running;
};

TEST(AwaitedCalls, AreOverByDeadlineAndCancellation) {
    Lazy lazy;
    connect::Hub hub;
    ClientOptions options;
    options.messages.window = 2;
    AsyncClient client{hub, lazy.running.connect<Add>(options)};
    base::Cancellation cancellation;
    int over = 0;
    const auto wait = [&](Deadline deadline, Code expected, Code other) -> Task<> {
        const Result<Sum> sum = co_await client.call<Add>({0, 0}, deadline);
        EXPECT_TRUE(sum.code() == expected || sum.code() == other) << name_of(sum.code());
        if (++over == 4) hub.stop();
    };
    // The last two find the window full, and wait for a place.
    base::spawn(hub, wait(Deadline::after(50ms), Code::timed_out, Code::late));
    base::spawn(hub, wait(patience().cancelled_by(cancellation), Code::cancelled, Code::cancelled));
    base::spawn(hub, wait(Deadline::after(40ms), Code::late, Code::timed_out));
    base::spawn(hub, wait(patience().cancelled_by(cancellation), Code::cancelled, Code::cancelled));
    hub.after(60ms, [&] { cancellation.request(); });
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(over, 4);
    EXPECT_EQ(client.client().outstanding(), 0U);
}

TEST(AwaitedCalls, MayBeDestroyedWhileTheyWait) {
    Lazy lazy;
    connect::Hub hub;
    ClientOptions options;
    options.messages.window = 2;
    AsyncClient client{hub, lazy.running.connect<Add>(options)};
    std::vector<base::Executor::Id> tasks;
    for (int i = 0; i < 4; ++i) {
        tasks.push_back(base::spawn(hub, [](AsyncClient& asked) -> Task<> {
            (void)co_await asked.call<Add>({0, 0}, patience());
            ADD_FAILURE() << "nobody answers";
        }(client)));
    }
    while (lazy.wanted() != 2) (void)hub.turn();
    EXPECT_EQ(client.client().outstanding(), 2U);
    for (const base::Executor::Id task : tasks) EXPECT_TRUE(hub.remove(task));
    EXPECT_EQ(client.client().outstanding(), 0U);
    while (lazy.wanted() != 0) (void)hub.turn();
    // The places of the window are free again.
    int running = 1;
    base::spawn(hub, add_many(client, 1, 10, running, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
}

TEST(AwaitedCalls, MayOutliveTheirClient) {
    Lazy lazy;
    connect::Hub hub;
    ClientOptions options;
    options.messages.window = 1;
    auto client = std::make_unique<AsyncClient>(hub, lazy.running.connect<Add>(options));
    for (int i = 0; i < 2; ++i) {
        base::spawn(hub, [](AsyncClient& asked) -> Task<> {
            (void)co_await asked.call<Add>({0, 0}, patience());
            ADD_FAILURE() << "it stays suspended";
        }(*client));
    }
    while (lazy.wanted() != 1) (void)hub.turn();
    client.reset();
    for (int i = 0; i < 10; ++i) (void)hub.turn();
}

TEST(AwaitedCalls, EndWhenTheServerOrTheClientCloses) {
    for (const bool by_client : {false, true}) {
        Lazy lazy;
        connect::Hub hub;
        AsyncClient client{hub, lazy.running.connect<Add>()};
        std::optional<Code> code;
        base::spawn(hub, [](AsyncClient& asked, std::optional<Code>& told) -> Task<> {
            told = (co_await asked.call<Add>({0, 0}, patience())).code();
        }(client, code));
        while (lazy.wanted() != 1) (void)hub.turn();
        if (by_client) {
            EXPECT_EQ(client.close(patience()), Status::ok);
            EXPECT_EQ(code, Code::closed);
            continue;
        }
        lazy.running.stop();
        lazy.aside.clear();  // dropped, and answered by that
        EXPECT_EQ(lazy.running.server.close(patience()), Status::ok);
        while (!code.has_value()) (void)hub.turn();
        EXPECT_EQ(code, Code::dropped);
        base::spawn(hub, [](AsyncClient& asked, connect::Hub& in) -> Task<> {
            Code last = Code::ok;
            while (last != Code::not_sent) {
                last = (co_await asked.call<Add>({0, 0}, patience())).code();
                EXPECT_TRUE(last == Code::not_sent || last == Code::closed ||
                            last == Code::peer_lost || last == Code::draining)
                    << name_of(last);
            }
            in.stop();
        }(client, hub));
        EXPECT_EQ(hub.run(patience()), Status::closed);
    }
}

Task<std::uint64_t> add(AsyncClient& client, std::uint64_t number) {
    const Result<Sum> sum = co_await client.call<Add>({number, 1}, patience());
    co_return sum ? sum->sum : 0;
}

/// The fewest allocations of ten calls in a row. The soft device looks around itself by the clock,
/// and opens what it wakes others by when that is needed: some allocations belong to no call, and
/// come more often than once in so many calls only by chance.
class Fewest {
  public:
    /// Behind each call.
    void note(std::uint64_t allocated) {
        if (++calls_ % 10 != 0) return;
        if (calls_ > 10) fewest_ = std::min(fewest_, allocated - before_);
        before_ = allocated;
    }
    [[nodiscard]] std::uint64_t of_ten_calls() const { return fewest_; }

  private:
    std::uint64_t calls_ = 0;
    std::uint64_t before_ = 0;
    std::uint64_t fewest_ = ~std::uint64_t{0};
};

TEST(Allocations, OfACallAreNoneBehindTheFirstOnes) {
    constexpr std::uint64_t all = 1200;
    Fewest by_server;
    Running running{{}, [&](Server& server) {
                        server.handle<Add>([&](const Pair& pair) {
                            by_server.note(allocations());
                            return sum_of(pair);
                        });
                    }};
    connect::Hub hub;
    AsyncClient client{hub, running.connect<Add>()};

    // Awaited, in a task of its own for each call.
    Fewest awaited;
    base::spawn(hub, [](AsyncClient& asked, connect::Hub& in, Fewest& fewest) -> Task<> {
        for (std::uint64_t i = 1; i <= all; ++i) {
            const std::uint64_t sum = co_await add(asked, i);
            EXPECT_EQ(sum, i + 1);
            fewest.note(allocations());
        }
        in.stop();
    }(client, hub, awaited));
    ASSERT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(awaited.of_ten_calls(), 0U);

    Fewest one_by_one;
    for (std::uint64_t i = 1; i <= all; ++i) {
        const Result<Sum> sum = client.client().call<Add>({i, 1}, patience());
        ASSERT_TRUE(sum.ok());
        one_by_one.note(allocations());
    }
    EXPECT_EQ(one_by_one.of_ten_calls(), 0U);

    Fewest by_callback;
    std::uint64_t sum = 0;
    for (std::uint64_t i = 1; i <= all; ++i) {
        ASSERT_EQ(client.client().submit_or_wait<Add>(
                      {i, 1}, [&](const Result<Sum>& one) { sum += one->sum; }, patience()),
                  Status::ok);
        ASSERT_EQ(client.client().wait(patience()), Status::ok);
        by_callback.note(allocations());
    }
    EXPECT_EQ(by_callback.of_ten_calls(), 0U);
    EXPECT_EQ(sum, all * (all + 1) / 2 + all);
    running.stop();
    EXPECT_EQ(by_server.of_ten_calls(), 0U);
}

}  // namespace
}  // namespace millrace::rpc
