// Calls awaited by tasks: many at once, over by deadline, cancellation and death, destroyed while
// they wait; and what a call allocates, of each kind.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/connect/hub.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "millrace/rpc/coroutine.hpp"
#include "rpc/allocations.hpp"
#include "rpc/serving.hpp"
#include "support/child_process.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using base::Task;
using test::ChildProcess;

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

class AwaitedBy : public testing::TestWithParam<Connection> {};
INSTANTIATE_TEST_SUITE_P(Connections, AwaitedBy,
                         testing::Values(Connection::own, Connection::dispatcher),
                         [](const auto& each) { return std::string{name_of(each.param)}; });

TEST_P(AwaitedBy, ManyTasksHaveTheirOwnAnswersThoughTheWindowIsSmall) {
    Running running_server;
    std::optional<Dispatching> dispatching;
    ClientOptions options = client_options_of({.design = {.connection = GetParam()}}, dispatching);
    options.messages.window = 4;
    connect::Hub hub;
    AsyncClient client{hub, running_server.connect<Add>(options)};
    int running = 20;
    for (std::uint64_t i = 0; i < 20; ++i) base::spawn(hub, add_many(client, i, 50, running, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(running, 0);
}

TEST_P(AwaitedBy, CallsThatWaitForTheWindowGoByTheirPriority) {
    std::vector<std::uint64_t> order;
    Running running{{}, [&](Server& server) {
                        server.handle<Add>([&](const Pair& pair) {
                            order.push_back(pair.one);
                            return sum_of(pair);
                        });
                    }};
    std::optional<Dispatching> dispatching;
    ClientOptions options = client_options_of({.design = {.connection = GetParam()}}, dispatching);
    options.messages.window = 1;
    connect::Hub hub;
    AsyncClient client{hub, running.connect<Add>(options)};
    int left = 0;
    const auto add = [&](std::uint64_t number, Priority priority) -> Task<> {
        const CallOptions said{.priority = priority};
        EXPECT_TRUE((co_await client.call<Add>({number, 0}, patience(), said)).ok());
        if (--left == 0) hub.stop();
    };
    const auto spawn = [&](std::uint64_t first, int count, Priority priority) {
        left += count;
        for (int i = 0; i < count; ++i) base::spawn(hub, add(first++, priority));
    };
    // The first one takes the window, and the others wait.
    spawn(0, 10, Priority::normal);
    spawn(100, 3, Priority::low);
    spawn(10, 30, Priority::normal);
    EXPECT_EQ(hub.run(patience()), Status::closed);
    running.stop();
    ASSERT_EQ(order.size(), 43U);
    const std::uint64_t before = message::detail::PuttingOff::others_before;
    const auto first_low =
        static_cast<std::uint64_t>(std::ranges::find(order, 100U) - order.begin());
    // The first one went while none waited; where answers come sooner, some of the others, too.
    ASSERT_GT(first_low, before);
    ASSERT_LE(first_low, before + 10);
    const std::uint64_t went_at_once = first_low - before;
    std::vector<std::uint64_t> expected;
    std::uint64_t low = 100;
    for (std::uint64_t count = 1; count <= 40; ++count) {
        expected.push_back(count - 1);
        if (count > went_at_once && (count - went_at_once) % before == 0) expected.push_back(low++);
    }
    while (low < 103) expected.push_back(low++);
    EXPECT_EQ(order, expected) << "normal ones first, and one of the others behind each 16";
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

void refuse_every_break(Server& server) {
    server.handle<Break>([](std::string_view) { return Error{.code = Code::overloaded}; });
}
/// A call that was refused is made again in an hour.
[[nodiscard]] ClientOptions patient_with_refusals() {
    ClientOptions options;
    options.retry = {.attempts = 9, .pause = 1h, .longest_pause = 1h};
    return options;
}

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

TEST(AwaitedCalls, AreMadeAgainWhereNothingWasDone) {
    int refuse = 4;
    Running running{{}, [&](Server& server) {
                        server.handle<Add>([&](const Pair& pair) -> Result<Sum> {
                            if (refuse-- > 0) return Error{.code = Code::overloaded};
                            return sum_of(pair);
                        });
                        refuse_every_break(server);
                    }};
    connect::Hub hub;
    AsyncClient client{hub, running.connect<Add, Break>()};
    int over = 0;
    const auto call = [&](std::uint64_t number) -> Task<> {
        const Result<Sum> sum = co_await client.call<Add>({number, 1}, patience());
        // Of four refusals no call meets more than it has attempts, but for all of them.
        EXPECT_TRUE(sum || refuse <= 0) << name_of(sum.code());
        if (sum) {
            EXPECT_EQ(sum->who, number);
        }
        if (++over == 3) hub.stop();
    };
    base::spawn(hub, call(1));
    base::spawn(hub, call(2));
    base::spawn(hub, [](AsyncClient& asked, int& count, connect::Hub& in) -> Task<> {
        const auto result = co_await asked.call<Break>("", patience());
        EXPECT_EQ(result.code(), Code::overloaded);
        if (++count == 3) in.stop();
    }(client, over, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(over, 3);
    EXPECT_GE(client.client().stats().repeated, 4U);
}

TEST(AwaitedCalls, ThatArePutOffMayBeCancelledOrDestroyed) {
    Running running{{}, refuse_every_break};
    connect::Hub hub;
    const ClientOptions options = patient_with_refusals();
    auto client = std::make_unique<AsyncClient>(hub, running.connect<Break>(options));
    base::Cancellation cancellation;
    std::optional<Code> code;
    const auto call = [&](Deadline deadline) -> Task<> {
        code = (co_await client->call<Break>("", deadline)).code();
    };
    base::spawn(hub, call(Deadline::never().cancelled_by(cancellation)));
    const auto destroyed = base::spawn(hub, call(Deadline::never()));
    base::spawn(hub, call(Deadline::never()));
    const auto deadline = patience();
    while (client->client().stats().repeated != 3 && !deadline.expired()) (void)hub.turn();
    EXPECT_TRUE(hub.remove(destroyed));
    EXPECT_FALSE(code.has_value());
    cancellation.request();
    while (!code.has_value() && !deadline.expired()) {
        (void)hub.rest(Deadline::after(1ms));
        (void)hub.turn();
    }
    EXPECT_EQ(code, Code::cancelled);
    client.reset();  // the third one stays suspended
    for (int i = 0; i < 10; ++i) (void)hub.turn();
}

// --- streams

struct Counted {
    static constexpr std::string_view name = "counted";
    using Request = Pair;  ///< from one to the other
    using Part = Sum;
};

/// Writes from threads of its own.
struct Writers {
    ~Writers() {
        for (std::thread& one : threads) one.join();
    }
    void operator()(const Pair& range, Sink<Sum> sink) {
        threads.emplace_back([range, sink = std::move(sink)]() mutable {
            for (std::uint64_t i = range.one; i < range.other; ++i) {
                if (sink.write({i, range.one}, patience()) != Status::ok) return;
            }
            if (range.other % 2 == 0) {
                (void)sink.finish();
            } else {
                (void)sink.fail({.number = 3, .text = "odd"});
            }
        });
    }
    std::vector<std::thread> threads;
};

TEST_P(AwaitedBy, StreamsBringEveryPartOnceAndInOrder) {
    Writers writers;
    Running running{{}, [&](Server& server) {
                        server.handle<Counted>(std::ref(writers), {.max_parts = 4});
                        server.handle<Add>(sum_of);
                    }};
    std::optional<Dispatching> dispatching;
    ClientOptions options = client_options_of({.design = {.connection = GetParam()}}, dispatching);
    options.messages.window = 6;  // of which each stream would have 8
    connect::Hub hub;
    AsyncClient client{hub, running.connect<Counted, Add>(options)};
    int over = 0;
    const auto read = [&](Pair range, std::uint32_t ahead) -> Task<> {
        auto reader = co_await client.open<Counted>(range, patience(), ahead);
        std::uint64_t next = range.one;
        while (true) {
            const auto part = co_await reader.next(patience());
            if (!part) {
                EXPECT_EQ(range.other % 2, 1U);
                EXPECT_EQ(part.error().text, "odd");
                EXPECT_EQ(part.error().number, 3U);
                break;
            }
            if (!part->has_value()) {
                EXPECT_EQ(range.other % 2, 0U);
                break;
            }
            EXPECT_EQ((**part).who, range.one);
            EXPECT_EQ((**part).sum, next++);
        }
        EXPECT_EQ(next, range.other);
        if (++over == 4) hub.stop();
    };
    base::spawn(hub, read({0, 300}, 8));
    base::spawn(hub, read({1000, 1301}, 1));
    base::spawn(hub, read({5000, 5000}, 3));
    base::spawn(hub, [](AsyncClient& asked, int& count, connect::Hub& in) -> Task<> {
        for (std::uint64_t i = 0; i < 100; ++i) {
            const Result<Sum> sum = co_await asked.call<Add>({i, 1}, patience());
            EXPECT_TRUE(sum) << name_of(sum.code());
        }
        if (++count == 4) in.stop();
    }(client, over, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(over, 4);
}

TEST(AwaitedStreams, AreOverByDeadlineOrLeftInTheMiddle) {
    std::mutex mutex;
    std::vector<Sink<Sum>> sinks;
    Running running{{}, [&](Server& server) {
                        server.handle<Counted>([&](const Pair&, Sink<Sum> sink) {
                            const std::lock_guard guard{mutex};
                            sinks.push_back(std::move(sink));
                        });
                    }};
    const auto wanted = [&] {
        const std::lock_guard guard{mutex};
        return std::count_if(sinks.begin(), sinks.end(),
                             [](const auto& one) { return one.is_wanted(); });
    };
    const auto turn_until = [](connect::Hub& hub, auto&& condition) {
        const auto deadline = patience();
        while (!condition() && !deadline.expired()) {
            (void)hub.rest(Deadline::after(1ms));
            (void)hub.turn();
        }
        EXPECT_TRUE(condition());
    };
    connect::Hub hub;
    auto client = std::make_unique<AsyncClient>(hub, running.connect<Counted>());
    base::Cancellation cancellation;
    int step = 0;
    base::spawn(hub, [](AsyncClient& asked, base::Cancellation& cancels, int& now) -> Task<> {
        {
            auto reader = co_await asked.open<Counted>({}, patience());
            auto part = co_await reader.next(Deadline::after(2ms));
            EXPECT_EQ(part.code(), Code::timed_out);
            EXPECT_EQ(reader.error().code, Code::ok) << "the stream goes on";
            ++now;
            part = co_await reader.next(patience().cancelled_by(cancels));
            EXPECT_EQ(part.code(), Code::cancelled);
            ++now;
            part = co_await reader.next(patience());
            EXPECT_TRUE(part.ok() && part->has_value() && (**part).sum == 7);
        }
        ++now;  // it is let go of
        auto late = co_await asked.open<Counted>({}, Deadline::now());
        EXPECT_EQ((co_await late.next(patience())).code(), Code::late);
        ++now;
    }(*client, cancellation, step));
    turn_until(hub, [&] { return step == 1; });
    turn_until(hub, [&] { return wanted() == 1; });
    cancellation.request();
    turn_until(hub, [&] { return step == 2; });
    {
        const std::lock_guard guard{mutex};
        EXPECT_EQ(sinks[0].write({7, 7}), Status::ok);
    }
    turn_until(hub, [&] { return step == 4; });
    turn_until(hub, [&] { return wanted() == 0; });

    // A task that waits for a part is destroyed, and one outlives its client.
    const auto wait = [](AsyncClient& asked) -> Task<> {
        auto reader = co_await asked.open<Counted>({}, patience());
        (void)co_await reader.next(patience());
        ADD_FAILURE() << "nobody writes";
    };
    const auto task = base::spawn(hub, wait(*client));
    base::spawn(hub, wait(*client));
    turn_until(hub, [&] { return wanted() == 2; });
    EXPECT_TRUE(hub.remove(task));
    turn_until(hub, [&] { return wanted() == 1; });
    client.reset();
    for (int i = 0; i < 10; ++i) (void)hub.turn();
}

TEST(AwaitedStreams, MayTakeTheReaderOfAnotherClientOnceTheirsHasGone) {
    Writers writers;
    Running running{{}, [&](Server& server) { server.handle<Counted>(std::ref(writers)); }};
    connect::Hub hub;
    auto first = std::make_unique<AsyncClient>(hub, running.connect<Counted>());
    AsyncClient second{hub, running.connect<Counted>()};
    base::spawn(
        hub,
        [](std::unique_ptr<AsyncClient>& goes, AsyncClient& stays, connect::Hub& in) -> Task<> {
            auto reader = co_await goes->open<Counted>({0, 2}, patience());
            {
                auto other = co_await stays.open<Counted>({7, 8}, patience());
                goes.reset();
                reader = std::move(other);
            }
            const auto part = co_await reader.next(patience());
            EXPECT_TRUE(part.ok() && part->has_value() && (**part).sum == 7);
            in.stop();
        }(first, second, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
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

TEST(AwaitedCalls, MayDestroyTheirClient) {
    for (const bool by_answer : {false, true}) {
        Lazy lazy;
        connect::Hub hub;
        auto client = std::make_unique<AsyncClient>(hub, lazy.running.connect<Add>());
        base::Cancellation cancellation;
        int over = 0;
        const auto wait = [&](Deadline deadline) -> Task<> {
            const Result<Sum> sum = co_await client->call<Add>({0, 0}, deadline);
            EXPECT_EQ(sum.code(), by_answer ? Code::ok : Code::cancelled);
            ++over;
            client.reset();
        };
        // Two whose end is found in one look, and one that goes on waiting.
        base::spawn(hub, wait(patience().cancelled_by(cancellation)));
        base::spawn(hub, wait(patience().cancelled_by(cancellation)));
        base::spawn(hub, wait(patience()));
        while (lazy.wanted() != 3) (void)hub.turn();
        if (by_answer) {
            lazy.running.stop();
            for (Reply<Sum>& one : lazy.aside) EXPECT_EQ(one.answer(Sum{}), Status::ok);
        } else {
            cancellation.request();
        }
        for (const auto deadline = patience(); over == 0 && !deadline.expired();) {
            if (by_answer) (void)lazy.running.server.turn();
            (void)hub.rest(Deadline::after(1ms));
            (void)hub.turn();
        }
        for (int i = 0; i < 10; ++i) (void)hub.turn();
        EXPECT_EQ(over, 1) << "the others stay suspended";
        // The deadlines of two, and the cancellation that one of them names, unless it is over.
        EXPECT_EQ(hub.size(), by_answer ? 3U : 2U) << "their tasks, and nothing of the client";
    }
}

TEST(AwaitedCalls, ThatArePutOffEndWhenTheClientCloses) {
    Running running{{}, refuse_every_break};
    connect::Hub hub;
    const ClientOptions options = patient_with_refusals();
    AsyncClient client{hub, running.connect<Break>(options)};
    std::vector<Code> codes;
    for (int i = 0; i < 2; ++i) {
        base::spawn(hub, [](AsyncClient& asked, std::vector<Code>& told) -> Task<> {
            told.push_back((co_await asked.call<Break>("", Deadline::never())).code());
        }(client, codes));
    }
    const auto deadline = patience();
    while (client.client().stats().repeated != 2 && !deadline.expired()) (void)hub.turn();
    EXPECT_TRUE(codes.empty());
    EXPECT_EQ(client.close(patience()), Status::ok);
    EXPECT_EQ(codes, (std::vector{Code::closed, Code::closed}));
}

TEST(AwaitedCalls, EndWhenTheServerOrTheClientCloses) {
    for (const bool by_client : {false, true}) {
        Lazy lazy;
        connect::Hub hub;
        ClientOptions options;
        options.retry.attempts = 1;
        AsyncClient client{hub, lazy.running.connect<Add>(options)};
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

// --- another connection

/// Adds one to what it has done for a number. Nobody says that it may do so twice.
struct Note {
    static constexpr std::string_view name = "note";
    using Request = std::uint64_t;
    using Response = std::uint64_t;
};

class AwaitedAnew : public OfEachSession {
  protected:
    [[nodiscard]] ClientOptions options() {
        ClientOptions options = OfEachSession::options();
        options.retry = {.attempts = 100, .largest_budget = 1'000'000};
        return options;
    }
};
INSTANTIATE_TEST_SUITE_P(Sessions, AwaitedAnew, every_session,
                         [](const auto& each) { return std::string{each.param}; });

TEST_P(AwaitedAnew, CallsGoOnThroughServersThatComeAndGoAndNoneIsExecutedTwice) {
    constexpr std::uint64_t most = 1'000'000;
    constexpr std::uint64_t tasks = 6;
    constexpr int most_servers = 6;
    std::vector<std::atomic<int>> executed(most);
    const connect::Address address = unique_address();
    const auto prepare = [&](Server& server) {
        server.handle<Add>(sum_of);
        server.handle<Note>([&](const std::uint64_t& number) {
            ++executed.at(number);
            return number;
        });
    };
    auto first = std::make_unique<Running>(ServerOptions{}, prepare, address);
    connect::Hub hub;
    AsyncClient client{hub, first->connect<Add, Note>(options())};
    std::atomic<std::uint64_t> answered{0};
    std::atomic<int> servers{1};
    std::uint64_t next = 0;
    std::atomic<std::uint64_t> running{tasks};
    const auto call = [&]() -> Task<> {
        while (next < most) {
            const std::uint64_t number = next++;
            const bool is_last = servers == most_servers;
            const Result<std::uint64_t> noted = co_await client.call<Note>(number, patience());
            if (noted) {
                EXPECT_EQ(executed[number], 1) << number;
            } else if (is_safe_to_repeat(noted.code())) {
                EXPECT_EQ(executed[number], 0) << number << ": " << name_of(noted.code());
            } else {
                EXPECT_LE(executed[number], 1) << number << ": " << name_of(noted.code());
                EXPECT_TRUE(noted.code() == Code::peer_lost || noted.code() == Code::session_lost ||
                            noted.code() == Code::closed)
                    << name_of(noted.code());
            }
            // What may be done twice has its answer, whoever gives it.
            const Result<Sum> sum = co_await client.call<Add>({number, 1}, patience());
            EXPECT_TRUE(sum) << name_of(sum.code());
            if (!sum) break;
            EXPECT_EQ(sum->sum, number + 1);
            ++answered;
            if (is_last) break;
        }
        if (--running == 0) hub.stop();
    };
    std::thread restarting{[&] {
        std::unique_ptr<Running> server;
        first->stop();
        server = std::move(first);
        for (int i = 1; i < most_servers; ++i) {
            server.reset();
            // While nobody is there, too.
            std::this_thread::sleep_for(std::chrono::milliseconds{i});
            server = std::make_unique<Running>(ServerOptions{}, prepare, address);
            const std::uint64_t seen = answered;
            const bool goes_on = comes_true([&] { return answered > seen + 3 * tasks; });
            EXPECT_TRUE(goes_on);
            ++servers;
        }
        EXPECT_TRUE(comes_true([&] { return running == 0; }));
    }};
    for (std::uint64_t i = 0; i < tasks; ++i) base::spawn(hub, call());
    EXPECT_EQ(hub.run(patience()), Status::closed);
    restarting.join();
    EXPECT_EQ(running, 0U);
    for (std::uint64_t i = 0; i < next; ++i) EXPECT_LE(executed[i], 1) << i;
    EXPECT_GE(client.client().stats().reconnected, static_cast<std::uint64_t>(most_servers) - 1);
}

TEST_P(AwaitedAnew, CallsWaitForTheNextServerWhileTheLoopGoesOn) {
    const connect::Address address = unique_address();
    ChildProcess child = ChildProcess::start("rpc_server", {address.to_string()});
    ASSERT_EQ(child.read_line(), "serving");
    connect::Hub hub;
    AsyncClient client{hub, Client::connect<Add>(address, options(), patience())};
    const auto turn_until = [&](auto&& condition) {
        const auto deadline = patience();
        while (!condition() && !deadline.expired()) {
            (void)hub.rest(Deadline::after(1ms));
            (void)hub.turn();
        }
        EXPECT_TRUE(condition());
    };
    std::vector<Code> codes;
    const auto call = [&](Pair pair, Deadline deadline) -> Task<> {
        codes.push_back((co_await client.call<Add>(pair, deadline)).code());
    };
    // The first server defers it, and dies.
    base::Cancellation cancellation;
    base::spawn(hub, call({0, 1}, Deadline::never().cancelled_by(cancellation)));
    turn_until([&] { return client.client().outstanding() == 1; });
    ASSERT_EQ(child.read_line(), "deferred");
    child.kill_and_wait();
    // Nobody is there: one is over by its deadline, one is destroyed, and others wait.
    base::spawn(hub, call({1, 1}, Deadline::after(30ms)));
    const auto destroyed = base::spawn(hub, call({1, 1}, Deadline::never()));
    base::spawn(hub, call({1, 1}, patience()));
    turn_until([&] { return codes.size() == 1; });
    ASSERT_FALSE(codes.empty());
    EXPECT_TRUE(codes.front() == Code::late || codes.front() == Code::timed_out)
        << name_of(codes.front());
    EXPECT_TRUE(hub.remove(destroyed));
    ChildProcess next = ChildProcess::start("rpc_server", {address.to_string()});
    ASSERT_EQ(next.read_line(), "serving");
    turn_until([&] { return codes.size() == 2; });
    EXPECT_EQ(codes.back(), Code::ok);
    // The first call was made again, and the second server has deferred it, too.
    std::optional<std::string> line;
    std::atomic<bool> has_read{false};
    std::thread reading{[&] {
        line = next.read_line();
        has_read = true;
    }};
    turn_until([&] { return has_read.load(); });
    reading.join();
    EXPECT_EQ(line, "deferred");
    cancellation.request();
    turn_until([&] { return codes.size() == 3; });
    EXPECT_EQ(codes.back(), Code::cancelled);
}

TEST_P(AwaitedAnew, ClientsMayGoOrCloseWhileNobodyIsThere) {
    for (const bool closes : {false, true}) {
        const connect::Address address = unique_address();
        auto first = std::make_unique<Running>(ServerOptions{}, add_procedures, address);
        connect::Hub hub;
        auto client = std::make_unique<AsyncClient>(hub, first->connect<Add>(options()));
        first.reset();
        std::vector<Code> codes;
        const auto call = [&]() -> Task<> {
            codes.push_back((co_await client->call<Add>({1, 1}, Deadline::never())).code());
        };
        for (int i = 0; i < 3; ++i) base::spawn(hub, call());
        // Long enough for a thread to connect in vain.
        const auto while_away = Deadline::after(20ms);
        while (!while_away.expired()) {
            (void)hub.rest(Deadline::after(1ms));
            (void)hub.turn();
        }
        EXPECT_TRUE(codes.empty());
        if (closes) {
            (void)client->close(patience());
            EXPECT_EQ(codes.size(), 3U);
            for (const Code code : codes) {
                EXPECT_TRUE(code == Code::closed || code == Code::not_sent) << name_of(code);
            }
        } else {
            client.reset();  // they stay suspended
        }
        for (int i = 0; i < 10; ++i) (void)hub.turn();
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
                      {i, 1}, [&](const Result<Sum>& one) { sum += one.ok() ? one->sum : 0; },
                      patience()),
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
