// Calls of typed procedures, one at a time and several: every call has one answer, which is its
// own.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "rpc/serving.hpp"
#include "support/extent.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

INSTANTIATE_TEST_SUITE_P(Ways, Calls, all_ways(), name_of_way);

std::vector<std::byte> content(std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) {
        seed = seed * 1664525 + 1013904223;
        byte = static_cast<std::byte>(seed >> 24);
    }
    return bytes;
}

TEST_P(Calls, AreAnsweredByTheirProcedure) {
    Running running{server_options()};
    Client client = running.connect<Add, Echo, Break, Ping>(client_options());
    for (std::uint64_t i = 0; i < 200; ++i) {
        const Result<Sum> sum = client.call<Add>({i, 1000 + i}, patience());
        ASSERT_TRUE(sum) << name_of(sum.code());
        EXPECT_EQ(sum->sum, 1000 + 2 * i);
        EXPECT_EQ(sum->who, i);
    }
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
    const Result<std::string> text = client.call<Break>("nothing", patience());
    ASSERT_TRUE(text);
    EXPECT_EQ(*text, "nothing");
    const std::string explained = client.explain() + running.server.explain();
    EXPECT_NE(explained.find("add is procedure"), std::string::npos) << explained;
    EXPECT_NE(explained.find("4 procedures"), std::string::npos) << explained;
    EXPECT_EQ(client.close(patience()), Status::ok);
}

TEST_P(Calls, CarryBytesOfEverySize) {
    Running running{server_options()};
    Client client = running.connect<Echo>(client_options());
    for (const std::size_t size :
         {0UL, 1UL, 63UL, 1000UL, 16384UL, 200'000UL, test::in_full() ? 3'000'000UL : 500'000UL}) {
        const std::vector<std::byte> bytes = content(size, static_cast<unsigned>(size));
        const Result<std::vector<std::byte>> answer = client.call<Echo>(bytes, patience());
        ASSERT_TRUE(answer) << size << ": " << name_of(answer.code());
        EXPECT_TRUE(*answer == bytes) << size;
    }
}

TEST_P(Calls, GoThroughTheSmallestRingsAndWindows) {
    ServerOptions small = server_options();
    small.messages.ring_bytes = small.messages.tuning.slot_bytes = 128;
    small.messages.tuning.max_window = 1;
    Running running{small};
    ClientOptions options = client_options();
    options.messages.ring_bytes = options.messages.tuning.slot_bytes = 128;
    options.messages.window = 1;
    Client client = running.connect<Add, Echo>(options);
    for (std::uint64_t i = 0; i < 50; i += test::size_step(1)) {
        const std::vector<std::byte> bytes = content(i * 37, static_cast<unsigned>(i));
        const Result<std::vector<std::byte>> answer = client.call<Echo>(bytes, patience());
        ASSERT_TRUE(answer) << i << ": " << name_of(answer.code());
        EXPECT_TRUE(*answer == bytes) << i;
        // By the shortest way, too, which finds no room at first.
        const Result<Sum> sum = client.call<Add>({i, 1}, Deadline::never());
        ASSERT_TRUE(sum) << name_of(sum.code());
        EXPECT_EQ(sum->sum, i + 1);
    }
}

TEST_P(Calls, TellWhatTheHandlerThrewOrSaid) {
    Running running{server_options()};
    Client client = running.connect<Break, Ping>(client_options());
    const auto fail = [&](std::string_view how) {
        const Result<std::string> result = client.call<Break>(how, patience());
        EXPECT_FALSE(result);
        EXPECT_EQ(result.code(), Code::failed);
        return result.error();
    };
    EXPECT_EQ(fail("throw").text, "it was asked to throw");
    EXPECT_EQ(fail("throw a number").text, "the handler threw what is no exception");
    const Error error = fail("fail");
    EXPECT_EQ(error.number, 42U);
    EXPECT_EQ(error.text, "no such thing");
    EXPECT_EQ(error.detail, std::vector<std::byte>{std::byte{1}});
    EXPECT_THROW((void)client.call<Break>("throw", patience()).value(), Failure);
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
    running.stop();
    EXPECT_EQ(running.server.procedures()[2].failed, 4U);
}

TEST_P(Calls, OfSeveralAtATimeHaveOneAnswerEachWhichIsTheirOwn) {
    Running running{server_options()};
    ClientOptions options = client_options();
    options.messages.window = 16;
    Client client = running.connect<Add>(options);
    const std::uint64_t all = test::repetitions(3000);
    std::vector<int> answers(all);
    std::uint64_t done = 0;
    for (std::uint64_t sent = 0; done < all;) {
        Status status = Status::full;
        if (sent < all) {
            // In a window that is empty there is nothing to wait for but room in the ring.
            const auto send = [&](auto callback) {
                return client.outstanding() == 0
                           ? client.submit_or_wait<Add>({sent, 5}, callback, patience())
                           : client.submit<Add>({sent, 5}, callback, patience());
            };
            status = send([&, number = sent](Result<Sum> sum) {
                ASSERT_TRUE(sum);
                EXPECT_EQ(sum->who, number);
                EXPECT_EQ(sum->sum, number + 5);
                ++answers[number];
                ++done;
            });
        }
        if (status == Status::ok) {
            ++sent;
        } else {
            ASSERT_EQ(status, Status::full);
            ASSERT_EQ(client.wait(patience()), Status::ok);
        }
        EXPECT_LE(client.outstanding(), 16U);
    }
    EXPECT_EQ(answers, std::vector<int>(all, 1));
    EXPECT_EQ(client.outstanding(), 0U);
    EXPECT_EQ(client.wait(patience()), Status::empty);
}

TEST_P(Calls, MayBeMadeFromACallback) {
    Running running{server_options()};
    Client client = running.connect<Add>(client_options());
    std::uint64_t sum = 0;
    std::function<void(Result<Sum>)> next = [&](Result<Sum> result) {
        ASSERT_TRUE(result);
        sum = result->sum;
        if (sum < 50) {
            ASSERT_EQ(client.submit_or_wait<Add>({sum, 1}, next, patience()), Status::ok);
        }
    };
    ASSERT_EQ(client.submit_or_wait<Add>({0, 1}, next, patience()), Status::ok);
    while (client.wait(patience()) == Status::ok) {
    }
    EXPECT_EQ(sum, 50U);
}

TEST_P(Calls, OfBothKindsDoNotDisturbEachOther) {
    Running running{server_options()};
    Client client = running.connect<Add>(client_options());
    int answers = 0;
    for (std::uint64_t i = 0; i < 10; ++i) {
        ASSERT_EQ(client.submit_or_wait<Add>(
                      {i, i},
                      [&, i](Result<Sum> sum) {
                          ASSERT_TRUE(sum);
                          EXPECT_EQ(sum->sum, 2 * i);
                          ++answers;
                      },
                      patience()),
                  Status::ok);
        const Result<Sum> sum = client.call<Add>({i, 100}, patience());
        ASSERT_TRUE(sum);
        EXPECT_EQ(sum->sum, i + 100);
    }
    EXPECT_EQ(client.outstanding(), 10U) << "a call leaves what was submitted to poll and wait";
    while (client.wait(patience()) == Status::ok) {
    }
    EXPECT_EQ(answers, 10);
}

TEST_P(Calls, WhoseAnswersLieUnreadKeepTheirPlaceWhileOthersAreMade) {
    Running running{server_options()};
    ClientOptions options = client_options();
    options.messages.window = 4;
    Client client = running.connect<Add>(options);
    std::vector<int> answers(5000);
    std::uint64_t sent = 0;
    for (std::uint64_t i = 0; i < 300; ++i) {
        const auto count = [&, number = sent](Result<Sum> sum) {
            ASSERT_TRUE(sum);
            EXPECT_EQ(sum->who, number);
            ++answers[number];
        };
        const Status status = client.submit_or_wait<Add>({sent, 1}, count, patience());
        if (status == Status::ok) {
            ++sent;
        } else {
            ASSERT_EQ(status, Status::full);
            EXPECT_EQ(client.outstanding(), 4U);
            ASSERT_EQ(client.wait(patience()), Status::ok);
        }
        const Result<Sum> sum = client.call<Add>({i, 7}, patience());
        ASSERT_TRUE(sum);
        EXPECT_EQ(sum->sum, i + 7);
    }
    while (client.wait(patience()) == Status::ok) {
    }
    answers.resize(sent);
    EXPECT_EQ(answers, std::vector<int>(sent, 1));
}

TEST_P(Calls, AreAnsweredLaterFromAnyThreadAndInAnyOrder) {
    std::mutex mutex;
    std::vector<std::pair<Pair, Reply<Sum>>> waiting;
    Running running{server_options(), [&](Server& server) {
                        server.handle<Add>([&](const Pair& pair, Call<Add>& call) {
                            const std::lock_guard guard{mutex};
                            waiting.emplace_back(pair, call.defer());
                            EXPECT_EQ(call.answer({}), Status::closed) << "it was deferred";
                        });
                    }};
    std::atomic<bool> ends{false};
    std::thread worker{[&] {
        while (!ends.load()) {
            std::optional<std::pair<Pair, Reply<Sum>>> one;
            {
                const std::lock_guard guard{mutex};
                if (!waiting.empty()) {
                    one.emplace(std::move(waiting.back()));
                    waiting.pop_back();
                }
            }
            if (!one.has_value()) {
                std::this_thread::yield();
                continue;
            }
            EXPECT_EQ(one->second.answer(sum_of(one->first)), Status::ok);
            EXPECT_EQ(one->second.answer({}), Status::closed) << "it is answered";
        }
    }};
    Client client = running.connect<Add>(client_options());
    std::uint64_t answers = 0;
    for (std::uint64_t i = 0; i < 300; ++i) {
        const auto count = [&, i](Result<Sum> sum) {
            ASSERT_TRUE(sum);
            EXPECT_EQ(sum->who, i);
            ++answers;
        };
        Status status = client.submit_or_wait<Add>({i, 1}, count, patience());
        while (status == Status::full) {
            EXPECT_EQ(client.wait(patience()), Status::ok);
            status = client.submit_or_wait<Add>({i, 1}, count, patience());
        }
        EXPECT_EQ(status, Status::ok);
    }
    while (client.wait(patience()) == Status::ok) {
    }
    ends = true;
    worker.join();
    EXPECT_EQ(answers, 300U);
    running.stop();
    const ProcedureReport report = running.server.procedures().at(0);
    EXPECT_EQ(report.answered, 300U);
    EXPECT_EQ(report.pending, 0U);
    EXPECT_LE(report.latency_p50, report.latency_most);
    EXPECT_GT(report.latency_p50, 0U);
}

TEST_P(Calls, ThatAreLetGoOfAreDropped) {
    Running running{server_options(), [](Server& server) {
                        server.handle<Break>([](std::string_view how, Call<Break>& call) {
                            if (how == "later") (void)call.defer();
                            if (how == "fail later") (void)call.defer().fail("it failed");
                        });
                    }};
    Client client = running.connect<Break>(client_options());
    EXPECT_EQ(client.call<Break>("now", patience()).code(), Code::dropped);
    EXPECT_EQ(client.call<Break>("later", patience()).code(), Code::dropped);
    const Result<std::string> failed = client.call<Break>("fail later", patience());
    EXPECT_EQ(failed.code(), Code::failed);
    EXPECT_EQ(failed.error().text, "it failed");
}

TEST_P(Calls, WithADeadlineThatHasPassedAreNotSent) {
    Running running{server_options()};
    Client client = running.connect<Add>(client_options());
    EXPECT_EQ(client.call<Add>({1, 2}, Deadline::now()).code(), Code::late);
    EXPECT_EQ(client.submit<Add>(
                  {1, 2}, [](Result<Sum>) { ADD_FAILURE(); }, Deadline::now()),
              Status::timed_out);
    running.stop();
    EXPECT_EQ(running.server.procedures().at(0).calls, 0U);
}

TEST_P(Calls, OfAProcedureThatWasNotAskedForAreRefused) {
    Running running{server_options()};
    Client client = running.connect<Add>(client_options());
    EXPECT_THROW((void)client.call<Ping>({}, patience()), base::Error);
    client.use<Ping>(patience());
    EXPECT_TRUE(client.call<Ping>({}, patience()).ok());
}

TEST_P(Calls, FromAnotherThreadAreRefused) {
    Running running{server_options()};
    Client client = running.connect<Add>(client_options());
    std::thread{[&] {
        EXPECT_THROW((void)client.call<Add>({1, 2}, patience()), base::Error);
        EXPECT_THROW((void)client.poll(), base::Error);
        client.adopt();
        EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    }}.join();
    EXPECT_THROW((void)client.call<Add>({1, 2}, patience()), base::Error);
}

TEST_P(Calls, BehindCloseAreRefused) {
    Running running{server_options()};
    Client client = running.connect<Add>(client_options());
    int answers = 0;
    ASSERT_EQ(client.submit_or_wait<Add>(
                  {1, 2},
                  [&](Result<Sum> sum) {
                      ++answers;
                      EXPECT_EQ(sum.code(), Code::closed);
                  },
                  patience()),
              Status::ok);
    EXPECT_EQ(client.close(patience()), Status::ok);
    EXPECT_EQ(answers, 1);
    EXPECT_EQ(client.call<Add>({1, 2}, patience()).code(), Code::not_sent);
    EXPECT_EQ(client.submit_or_wait<Add>(
                  {1, 2}, [](Result<Sum>) { ADD_FAILURE(); }, patience()),
              Status::closed);
}

TEST_P(Calls, WhoseRequestOrAnswerIsTooLargeAreToldSo) {
    ServerOptions options = server_options();
    options.messages.max_request_bytes = 1000;
    Running running{options};
    ClientOptions small = client_options();
    small.messages.max_answer_bytes = 500;
    Client client = running.connect<Echo>(small);
    EXPECT_EQ(client.call<Echo>(content(2000, 1), patience()).code(), Code::too_large);
    EXPECT_EQ(client.call<Echo>(content(600, 1), patience()).code(), Code::too_large);
    EXPECT_TRUE(client.call<Echo>(content(500, 1), patience()).ok());
}

TEST_P(Calls, CarryTheirTraceAndPriority) {
    Trace trace{.flags = 1};
    trace.trace_id.fill(std::byte{0x4b});
    trace.parent_id.fill(std::byte{0xf9});
    std::optional<Trace> seen;
    std::optional<Priority> priority;
    std::optional<Trace> later;
    Running running{server_options(), [&](Server& server) {
                        server.handle<Ping>([&](Nothing, Call<Ping>& call) {
                            seen = call.trace();
                            priority = call.priority();
                            Reply<Nothing> reply = call.defer();
                            later = reply.trace();
                            (void)reply.answer({});
                        });
                    }};
    Client client = running.connect<Ping>(client_options());
    ASSERT_TRUE(client.call<Ping>({}, patience(), {.trace = trace, .priority = Priority::low}));
    running.stop();
    EXPECT_EQ(seen, trace);
    EXPECT_EQ(later, trace);
    EXPECT_EQ(priority, Priority::low);
}

}  // namespace
}  // namespace millrace::rpc
