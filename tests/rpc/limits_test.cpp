// What ends a call before its answer: deadlines, cancellation, limits, budgets, connections that
// end, processes that die.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "rpc/serving.hpp"
#include "support/child_process.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using test::ChildProcess;

/// Replies that a server's handler has put aside.
class Aside {
  public:
    void put(Reply<Sum> reply) {
        const std::lock_guard guard{mutex_};
        replies_.push_back(std::move(reply));
    }
    [[nodiscard]] std::size_t count() {
        const std::lock_guard guard{mutex_};
        return replies_.size();
    }
    [[nodiscard]] std::vector<Reply<Sum>> take() {
        const std::lock_guard guard{mutex_};
        return std::exchange(replies_, {});
    }
    [[nodiscard]] std::size_t wanted() {
        const std::lock_guard guard{mutex_};
        std::size_t count = 0;
        for (const Reply<Sum>& one : replies_) count += one.is_wanted() ? 1 : 0;
        return count;
    }

  private:
    std::mutex mutex_;
    std::vector<Reply<Sum>> replies_;
};

/// Defers what adds to 0, and answers the rest.
std::function<void(Server&)> defers_zeroes(Aside& aside, ProcedureOptions options = {}) {
    return [&aside, options](Server& server) {
        server.handle<Add>(
            [&aside](const Pair& pair, Call<Add>& call) {
                if (pair.one + pair.other == 0) {
                    aside.put(call.defer());
                } else {
                    (void)call.answer(sum_of(pair));
                }
            },
            options);
    };
}

TEST(Deadlines, AreKeptToByTheServerForWhatComesLate) {
    std::atomic<bool> is_blocked{false};
    std::atomic<bool> goes_on{false};
    std::atomic<int> calls{0};
    Running running{{}, [&](Server& server) {
                        server.handle<Ping>([&](Nothing) {
                            is_blocked = true;
                            while (!goes_on) std::this_thread::yield();
                            return Nothing{};
                        });
                        server.handle<Add>([&](const Pair& pair) {
                            ++calls;
                            return sum_of(pair);
                        });
                    }};
    // As the clocks are compared by the shortest way of a request, which may have been long.
    const auto start = base::Clock::now();
    Client client = running.connect<Add, Ping>();
    const auto longest_way = base::Clock::now() - start;
    int pings = 0;
    ASSERT_EQ(client.submit_or_wait<Ping>(
                  {}, [&](Result<Nothing>) { ++pings; }, patience()),
              Status::ok);
    ASSERT_TRUE(comes_true([&] { return is_blocked.load(); }));
    std::optional<Code> code;
    const auto limit = base::Clock::now() + longest_way + 10ms;
    const Status sent = client.submit_or_wait<Add>(
        {1, 2}, [&](Result<Sum> sum) { code = sum.code(); },
        Deadline::at(base::Clock::now() + 5ms));
    if (sent == Status::ok) {
        while (!code.has_value()) ASSERT_EQ(client.wait(patience()), Status::ok);
        EXPECT_EQ(code, Code::timed_out);
    }
    ASSERT_TRUE(comes_true([&] { return base::Clock::now() > limit + 10ms; }));
    goes_on = true;
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
    while (client.wait(patience()) == Status::ok) {
    }
    EXPECT_EQ(pings, 1);
    running.stop();
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(running.server.stats().late, sent == Status::ok ? 1U : 0U);
}

TEST(Deadlines, EndWhatWasSubmitted) {
    Aside aside;
    Running running{{}, defers_zeroes(aside)};
    Client client = running.connect<Add>();
    std::vector<Code> codes;
    const auto note = [&](Result<Sum> sum) { codes.push_back(sum.code()); };
    const Status soon = client.submit_or_wait<Add>({0, 0}, note, Deadline::after(20ms));
    ASSERT_TRUE(soon == Status::ok || soon == Status::timed_out);
    ASSERT_EQ(client.submit_or_wait<Add>({0, 0}, note, patience()), Status::ok);
    base::Cancellation cancellation;
    ASSERT_EQ(client.submit_or_wait<Add>({0, 0}, note, patience().cancelled_by(cancellation)),
              Status::ok);
    while (codes.empty() && soon == Status::ok) ASSERT_EQ(client.wait(patience()), Status::ok);
    cancellation.request();
    ASSERT_EQ(client.wait(patience()), Status::ok);
    EXPECT_EQ(client.outstanding(), 1U);
    if (soon == Status::ok) {
        EXPECT_TRUE(codes.front() == Code::timed_out || codes.front() == Code::late)
            << name_of(codes.front());
    }
    EXPECT_EQ(codes.back(), Code::cancelled);
    ASSERT_TRUE(comes_true([&] { return aside.wanted() == 1; }));
    for (Reply<Sum>& reply : aside.take()) (void)reply.answer({5, 0});
    ASSERT_EQ(client.wait(patience()), Status::ok);
    EXPECT_EQ(codes.back(), Code::ok);
}

TEST(Cancellation, ReachesWhoeverWorksOnTheCall) {
    Aside aside;
    Running running{{}, defers_zeroes(aside)};
    ClientOptions options;
    options.messages.window = 4;
    Client client = running.connect<Add>(options);
    // Late answers find nobody, not even in the place of the one before.
    for (std::uint64_t i = 1; i < 50; ++i) {
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit_or_wait<Add>(
                      {0, 0}, [](Result<Sum>) { ADD_FAILURE(); }, patience(), {}, &id),
                  Status::ok);
        ASSERT_TRUE(comes_true([&] { return aside.count() == 1; }));
        EXPECT_TRUE(client.cancel(id));
        EXPECT_FALSE(client.cancel(id));
        if (i % 2 == 0) {
            ASSERT_TRUE(comes_true([&] {
                (void)client.poll();  // a cancellation that found no room leaves with this
                return aside.wanted() == 0;
            }));
        }
        for (Reply<Sum>& reply : aside.take()) EXPECT_EQ(reply.answer({i, i}), Status::ok);
        const Result<Sum> sum = client.call<Add>({i, 1}, patience());
        ASSERT_TRUE(sum) << name_of(sum.code());
        EXPECT_EQ(sum->sum, i + 1);
    }
    running.stop();
    EXPECT_GE(running.server.procedures().at(0).unwanted, 24U);
    EXPECT_EQ(running.server.procedures().at(0).pending, 0U);
}

TEST(Limits, OfAProcedureAndOfAClientAreKept) {
    Aside aside;
    ServerOptions server_options;
    server_options.max_pending_of_client = 3;
    Running running{server_options, defers_zeroes(aside, {.max_pending = 4})};
    ClientOptions options;
    options.retry.attempts = 1;
    Client client = running.connect<Add>(options);
    Client other = running.connect<Add>(options);
    int answers = 0;
    const auto count = [&](Result<Sum> sum) {
        EXPECT_TRUE(sum);
        ++answers;
    };
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(client.submit_or_wait<Add>({0, 0}, count, patience()), Status::ok);
    }
    ASSERT_TRUE(comes_true([&] { return aside.count() == 3; }));
    EXPECT_EQ(client.call<Add>({1, 1}, patience()).code(), Code::overloaded) << "of the client";
    EXPECT_EQ(other.call<Add>({1, 1}, patience(), {.priority = Priority::low}).code(),
              Code::overloaded)
        << "low priority gives way when half is under way";
    EXPECT_TRUE(other.call<Add>({1, 1}, patience()).ok());
    ASSERT_EQ(other.submit<Add>({0, 0}, count, patience()), Status::ok);
    ASSERT_TRUE(comes_true([&] { return aside.count() == 4; }));
    EXPECT_EQ(other.call<Add>({1, 1}, patience()).code(), Code::overloaded) << "of the procedure";
    for (Reply<Sum>& reply : aside.take()) EXPECT_EQ(reply.answer({}), Status::ok);
    while (client.wait(patience()) == Status::ok) {
    }
    while (other.wait(patience()) == Status::ok) {
    }
    EXPECT_EQ(answers, 4);
    EXPECT_TRUE(client.call<Add>({1, 1}, patience()).ok());
    running.stop();
    EXPECT_EQ(running.server.stats().overloaded, 3U);
}

TEST(Repeating, IsDoneWhereNothingWasDone) {
    int refuse = 2;
    Running running{{}, [&](Server& server) {
                        server.handle<Break>([&](std::string_view how) -> Result<std::string> {
                            if (how == "refuse" && refuse-- > 0) {
                                return Error{.code = Code::overloaded, .text = "not now"};
                            }
                            if (how == "fail") return Error{.text = "it failed"};
                            return std::string{how};
                        });
                    }};
    Client client = running.connect<Break>();
    EXPECT_TRUE(client.call<Break>("refuse", patience()).ok());
    EXPECT_EQ(client.stats().repeated, 2U);
    EXPECT_EQ(client.call<Break>("fail", patience()).code(), Code::failed);
    EXPECT_EQ(client.stats().repeated, 2U) << "what failed is not made again";
}

TEST(Repeating, HasABudget) {
    std::atomic<int> calls{0};
    Running running{{}, [&](Server& server) {
                        server.handle<Break>([&](std::string_view) -> Error {
                            ++calls;
                            return {.code = Code::overloaded};
                        });
                    }};
    ClientOptions options;
    options.retry = {.attempts = 10, .budget_per_call = 0, .largest_budget = 3};
    Client client = running.connect<Break>(options);
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(client.call<Break>("", patience()).code(), Code::overloaded);
    }
    EXPECT_EQ(calls, 5 + 3);
    EXPECT_EQ(client.stats().repeated, 3U);
    EXPECT_EQ(client.stats().out_of_budget, 5U);
}

TEST(Repeating, OfWhatMayHaveBeenDoneIsForIdempotentProcedures) {
    int dropped = 0;
    Running running{{}, [&](Server& server) {
                        server.handle<Add>([&](const Pair& pair, Call<Add>& call) {
                            if (++dropped > 1) (void)call.answer(sum_of(pair));
                        });
                        server.handle<Ping>([&](Nothing, Call<Ping>&) {});
                    }};
    Client client = running.connect<Add, Ping>();
    EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    EXPECT_EQ(client.stats().repeated, 1U);
    EXPECT_EQ(client.call<Ping>({}, patience()).code(), Code::dropped);
    EXPECT_EQ(client.stats().repeated, 1U);
}

/// A server that the test serves by itself, so that it knows what waits there together.
class InOrder {
  public:
    explicit InOrder(const message::ServerOptions& options = {})
        : server{Server::listen(unique_address(), {.messages = options})} {
        server.handle<Add>([this](const Pair& pair) {
            order.push_back(pair.one);
            return sum_of(pair);
        });
    }
    [[nodiscard]] Client connect() {
        std::optional<Client> client;
        std::thread connecting{[&] {
            client = Client::connect<Add>(server.address(), {}, patience());
            server.stop();
        }};
        EXPECT_EQ(server.serve(patience()), Status::closed);
        connecting.join();
        client->adopt();
        return std::move(*client);
    }
    /// Calls that are told apart by their numbers, and that all have their answers in the end.
    void submit(Client& client, std::uint64_t first, int count, Priority priority) {
        for (int i = 0; i < count; ++i) {
            ASSERT_EQ(client.submit<Add>({first++, 0},
                                         [this](const Result<Sum>& sum) {
                                             EXPECT_TRUE(sum) << name_of(sum.code());
                                             ++answered;
                                         },
                                         patience(), {.priority = priority}),
                      Status::ok);
        }
    }
    void turn_until_answered(std::initializer_list<Client*> clients, int count) {
        for (const auto deadline = patience(); answered != count && !deadline.expired();) {
            (void)server.turn();
            for (Client* const client : clients) (void)client->poll();
        }
        EXPECT_EQ(answered, count);
    }

    std::vector<std::uint64_t> order;
    int answered = 0;
    Server server;
};

TEST(Priorities, SayWhoIsServedFirstOfWhatWaitsAndStarveNobody) {
    InOrder served;
    Client one = served.connect();
    Client other = served.connect();
    served.submit(one, 100, 3, Priority::low);
    served.submit(one, 0, 20, Priority::normal);
    served.submit(other, 200, 3, Priority::low);
    served.submit(other, 20, 20, Priority::normal);
    served.turn_until_answered({&one, &other}, 46);
    ASSERT_EQ(served.order.size(), 46U);
    std::vector<std::uint64_t> low;
    for (std::size_t i = 0; i < served.order.size(); ++i) {
        if (served.order[i] < 100) continue;
        low.push_back(served.order[i]);
        // One behind each 16 others, and the rest behind all.
        const std::size_t before = message::detail::PuttingOff::others_before;
        const std::size_t place =
            low.size() <= 2 ? low.size() * before + low.size() - 1 : 40 + low.size() - 1;
        EXPECT_EQ(i, place) << served.order[i];
    }
    EXPECT_EQ(low, (std::vector<std::uint64_t>{100, 200, 101, 201, 102, 202})) << "as they came";
    EXPECT_EQ(served.server.stats().messages.put_off, 6U);
    EXPECT_EQ(served.server.stats().messages.pending, 0U);
    EXPECT_EQ(served.server.procedures().at(0).answered, 46U);
}

TEST(Priorities, MeanNothingWhereWhatIsPutOffFindsNoRoom) {
    InOrder served{{.tuning = {.max_put_off_bytes = 0}}};
    Client client = served.connect();
    served.submit(client, 0, 1, Priority::low);
    served.submit(client, 1, 1, Priority::normal);
    served.turn_until_answered({&client}, 2);
    EXPECT_EQ(served.order, (std::vector<std::uint64_t>{0, 1}));
}

TEST(Priorities, LetWhatIsPutOffBeTakenBackOrLateOrDrained) {
    InOrder served;
    // As the clocks are compared by the shortest way of a request, which may have been long.
    const auto start = base::Clock::now();
    Client client = served.connect();
    const auto longest_way = base::Clock::now() - start;
    std::vector<Code> codes;
    const auto note = [&](const Result<Sum>& sum) { codes.push_back(sum.code()); };
    const auto never = [](const Result<Sum>&) { ADD_FAILURE() << "it was taken back"; };
    const CallOptions low{.priority = Priority::low};
    const auto turn_until = [&](auto&& condition) {
        const auto deadline = patience();
        while (!condition() && !deadline.expired()) (void)served.server.turn();
        EXPECT_TRUE(condition());
    };
    const auto counts = [&] { return served.server.stats().messages; };
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit<Add>({1, 0}, never, patience(), low, &id), Status::ok);
    turn_until([&] { return counts().put_off == 1; });
    EXPECT_TRUE(client.cancel(id));
    turn_until([&] { return counts().pending == 0; });
    // Its deadline goes on while it waits. One that came late already was not put off: once more.
    std::size_t late = 0;
    for (const auto deadline = patience(); counts().put_off == 1 && !deadline.expired();) {
        const auto soon = Deadline::after(20ms);
        const Status status = client.submit<Add>({2, 0}, note, soon, low);
        if (status == Status::timed_out) continue;  // nothing was sent
        ASSERT_EQ(status, Status::ok);
        ++late;
        turn_until([&] { return counts().put_off == 2 || served.server.stats().late == late; });
        while (base::Clock::now() < soon.point() + longest_way + 1ms) std::this_thread::yield();
        turn_until([&] { return counts().pending == 0; });
        EXPECT_EQ(served.server.stats().late, late);
    }
    EXPECT_EQ(counts().put_off, 2U);
    // Those of a client that has gone are nobody's.
    {
        Client gone = served.connect();
        ASSERT_EQ(gone.submit<Add>({3, 0}, never, patience(), low), Status::ok);
        turn_until([&] { return counts().put_off == 3; });
    }
    turn_until([&] { return counts().clients == 1 && counts().pending == 0; });
    // And a server that is about to stop has done nothing for them.
    ASSERT_EQ(client.submit<Add>({4, 0}, note, patience(), low), Status::ok);
    turn_until([&] { return counts().put_off == 4; });
    EXPECT_EQ(served.server.drain(patience()), Status::ok);
    while (codes.size() < late + 1) ASSERT_EQ(client.wait(patience()), Status::ok);
    for (std::size_t i = 0; i < late; ++i) {
        EXPECT_TRUE(codes[i] == Code::late || codes[i] == Code::timed_out) << name_of(codes[i]);
    }
    EXPECT_EQ(codes.back(), Code::draining);
    // The server may have heard of the one that has gone only behind its call.
    EXPECT_TRUE(served.order.empty() || served.order == std::vector<std::uint64_t>{3});
}

/// Another server at the address of the one before, with other numbers.
void add_in_another_order(Server& server) {
    server.handle<Echo>([](std::span<const std::byte> bytes) { return bytes; });
    server.handle<Ping>([](Nothing) { return Nothing{}; });
    server.handle<Add>(sum_of);
}

class Reconnecting : public OfEachSession {};
INSTANTIATE_TEST_SUITE_P(Sessions, Reconnecting, every_session,
                         [](const auto& each) { return std::string{each.param}; });

TEST_P(Reconnecting, FindsTheProceduresOfAnotherServer) {
    const connect::Address address = unique_address();
    auto first = std::make_unique<Running>(ServerOptions{}, add_procedures, address);
    Client client = first->connect<Add, Ping>(options());
    EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    first.reset();
    Running second{{}, add_in_another_order, address};
    // It is idempotent: wherever the end of the first server is noticed, it is made again.
    const Result<Sum> sum = client.call<Add>({3, 4}, patience());
    ASSERT_TRUE(sum) << name_of(sum.code()) << client.failure();
    EXPECT_EQ(sum->sum, 7U);
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
    second.stop();
    EXPECT_EQ(second.server.procedures().at(2).answered, 1U);
    EXPECT_EQ(second.server.procedures().at(1).answered, 1U);
    EXPECT_EQ(second.server.procedures().at(0).calls, 0U) << "no number of the first server";
}

TEST_P(Reconnecting, NeedsNobodyWhoHasNoticedTheEnd) {
    const connect::Address address = unique_address();
    auto server = std::make_unique<Running>(ServerOptions{}, add_procedures, address);
    ClientOptions chosen = options();
    chosen.retry.attempts = 1;  // a call would connect anew by itself
    Client client = server->connect<Add, Ping>(chosen);
    EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    const auto replace = [&](void (*prepare)(Server&)) {
        server.reset();
        server = std::make_unique<Running>(ServerOptions{}, prepare, address);
    };
    replace(add_in_another_order);
    ASSERT_EQ(client.reconnect(patience()), Status::ok);
    const Result<Sum> sum = client.call<Add>({3, 4}, patience());
    ASSERT_TRUE(sum) << name_of(sum.code());
    EXPECT_EQ(sum->sum, 7U);
    EXPECT_EQ(client.stats().reconnected, 1U);
    ASSERT_EQ(client.reconnect(patience()), Status::ok) << "nothing has ended";
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
    if (!chosen.messages.resumes) return;
    // In a session that resumes, whoever asks for the table finds the other server, too.
    replace(add_procedures);
    EXPECT_EQ(client.procedures(patience()).at(0).signature.name, Add::name);
}

TEST_P(Reconnecting, ToAServerThatLacksAProcedureIsAnError) {
    const connect::Address address = unique_address();
    auto first = std::make_unique<Running>(ServerOptions{}, add_procedures, address);
    Client client = first->connect<Add, Ping>(options());
    first.reset();
    Running second{{}, [](Server& server) { server.handle<Add>(sum_of); }, address};
    EXPECT_TRUE(client.call<Add>({3, 4}, patience()).ok());
    EXPECT_THROW((void)client.call<Ping>({}, patience()), base::Error);
}

MILLRACE_CHILD(rpc_server) {
    Server server = Server::listen(connect::Address::parse(arguments[0]));
    std::vector<Reply<Sum>> aside;
    server.handle<Add>([&](const Pair& pair, Call<Add>& call) {
        if (pair.one != 0) {
            (void)call.answer(sum_of(pair));
            return;
        }
        aside.push_back(call.defer());
        if (aside.size() == pair.other) test::say("deferred");
    });
    test::say("serving");
    (void)server.serve(Deadline::never());
    return 0;
}

MILLRACE_CHILD(rpc_client) {
    Client client = Client::connect<Add>(connect::Address::parse(arguments[0]), {}, patience());
    for (int i = 0; i < 8; ++i) {
        if (client.submit_or_wait<Add>(
                {0, 0}, [](Result<Sum>) {}, patience()) != Status::ok)
            return 1;
    }
    test::say("sent");
    (void)client.wait(Deadline::never());
    return 0;
}

class Death : public testing::TestWithParam<Connection> {};
INSTANTIATE_TEST_SUITE_P(Connections, Death,
                         testing::Values(Connection::own, Connection::dispatcher),
                         [](const auto& each) { return std::string{name_of(each.param)}; });

TEST_P(Death, OfTheServerEndsEveryCallOnce) {
    std::optional<Dispatching> dispatching;
    const connect::Address address = unique_address();
    ChildProcess child = ChildProcess::start("rpc_server", {address.to_string()});
    ASSERT_EQ(child.read_line(), "serving");
    ClientOptions options = client_options_of({.design = {.connection = GetParam()}}, dispatching);
    options.retry.attempts = 1;
    Client client = Client::connect<Add>(address, options, patience());
    EXPECT_TRUE(client.call<Add>({1, 1}, patience()).ok());
    constexpr std::uint64_t all = 20;
    std::vector<int> ends(all);
    for (std::uint64_t i = 0; i < all; ++i) {
        ASSERT_EQ(client.submit_or_wait<Add>(
                      {0, all},
                      [&, i](Result<Sum> sum) {
                          EXPECT_EQ(sum.code(), Code::peer_lost);
                          ++ends[i];
                      },
                      patience()),
                  Status::ok);
    }
    ASSERT_EQ(child.read_line(), "deferred");
    child.kill_and_wait();
    Status status = Status::ok;
    while (client.outstanding() != 0) status = client.wait(patience());
    // The connection of a dispatcher is not the client's own, and tells it by answers.
    EXPECT_EQ(status, GetParam() == Connection::own ? Status::peer_lost : Status::ok);
    EXPECT_EQ(ends, std::vector<int>(all, 1));
    EXPECT_EQ(client.call<Add>({1, 1}, patience()).code(), Code::not_sent);
    // Somebody is there again.
    ChildProcess next = ChildProcess::start("rpc_server", {address.to_string()});
    ASSERT_EQ(next.read_line(), "serving");
    ASSERT_EQ(client.reconnect(patience()), Status::ok);
    EXPECT_TRUE(client.call<Add>({1, 1}, patience()).ok());
}

TEST(ClientDeath, IsToldToWhoeverWorksForIt) {
    Aside aside;
    Running running{{}, defers_zeroes(aside)};
    ChildProcess child = ChildProcess::start("rpc_client", {running.server.address().to_string()});
    ASSERT_EQ(child.read_line(), "sent");
    ASSERT_TRUE(comes_true([&] { return aside.count() == 8; }));
    EXPECT_EQ(aside.wanted(), 8U);
    child.kill_and_wait();
    ASSERT_TRUE(comes_true([&] { return aside.wanted() == 0; }));
    for (Reply<Sum>& reply : aside.take()) EXPECT_EQ(reply.answer({}), Status::ok);
    Client client = running.connect<Add>();
    EXPECT_TRUE(client.call<Add>({1, 1}, patience()).ok());
}

}  // namespace
}  // namespace millrace::rpc
