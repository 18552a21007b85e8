// A dispatcher: the requests of many threads over one connection to each server, each answered once
// and to its port, whoever comes, goes, sleeps or dies meanwhile.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "message/serving.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/contention.hpp"
#include "millrace/base/error.hpp"
#include "millrace/message/dispatcher.hpp"
#include "support/child_process.hpp"
#include "support/extent.hpp"
#include "support/one_processor.hpp"
#include "support/readable.hpp"
#include "support/served.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::becomes_readable;
using test::ChildProcess;
using test::hear;
using test::is_readable;
using test::OnOneProcessor;
using test::repetitions;
using test::say;
using test::yielding;
using namespace std::chrono_literals;

/// A dispatcher that a thread runs until it is stopped.
class Dispatching {
  public:
    explicit Dispatching(std::vector<connect::Address> servers, DispatcherOptions options = {})
        : dispatcher{Dispatcher::connect(servers, std::move(options), patience())},
          thread_{dispatcher, [](Dispatcher& its) { return its.run(Deadline::never()); }} {}
    explicit Dispatching(const Running& server, DispatcherOptions options = {})
        : Dispatching{std::vector{server.server.address()}, std::move(options)} {}
    /// From here on the dispatcher is the calling thread's.
    void stop() { thread_.stop(); }

    Dispatcher dispatcher;

  private:
    test::ServingThread<Dispatcher> thread_;
};

/// What a port has asked and has no answer to, each by its number and content.
class Conversation {
  public:
    Conversation(Port& port, std::uint64_t whose, std::size_t most, std::uint32_t first = 0)
        : port_{&port},
          whose_{whose},
          most_{most},
          first_{first},
          random_{static_cast<unsigned>(whose + 1)} {}

    /// Until `count` more requests are answered, by servers from the first one on, each right and
    /// once.
    void talk(std::uint64_t count) {
        const std::uint64_t until = answered_ + count;
        const std::uint64_t last = sent_ + count;
        while (answered_ != until) {
            while (sent_ != last) {
                port_->to(first_ +
                          static_cast<std::uint32_t>(random_() % (port_->servers() - first_)));
                Bytes request = content(whose_, sent_, random_() % most_);
                std::uint64_t id = 0;
                const Status status = port_->submit(request, id);
                if (status == Status::full) break;
                ASSERT_EQ(status, Status::ok);
                ASSERT_TRUE(open_.emplace(id, std::move(request)).second);
                ++sent_;
                if (random_() % 8 == 0) break;
            }
            ASSERT_EQ(port_->outstanding(), open_.size());
            ASSERT_EQ(port_->wait([&](const Answer& answer) { take(answer); }, patience()),
                      Status::ok);
            while (random_() % 4 != 0 &&
                   port_->poll([&](const Answer& answer) { take(answer); }) == Status::ok) {
            }
        }
    }

  private:
    void take(const Answer& answer) {
        ASSERT_EQ(answer.outcome, Outcome::ok) << text_of(answer.payload);
        const auto found = open_.find(answer.id);
        ASSERT_NE(found, open_.end()) << "an answer to nothing, or the second: " << answer.id;
        ASSERT_TRUE(std::ranges::equal(answer.payload, found->second));
        open_.erase(found);
        ++answered_;
    }

    Port* port_;
    std::uint64_t whose_;
    std::size_t most_;
    std::uint32_t first_;
    std::minstd_rand random_;
    std::map<std::uint64_t, Bytes> open_;
    std::uint64_t sent_ = 0;
    std::uint64_t answered_ = 0;
};

class Dispatchers : public testing::TestWithParam<Polling> {
  protected:
    [[nodiscard]] static ServerOptions options() {
        ServerOptions chosen;
        chosen.polling = GetParam();
        return chosen;
    }
};
INSTANTIATE_TEST_SUITE_P(Every, Dispatchers, testing::Values(Polling::flag, Polling::dense),
                         [](const auto& polling) { return std::string{name_of(polling.param)}; });

TEST_P(Dispatchers, BringACallAndItsAnswer) {
    Running running{options()};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port();
    Bytes answer;
    for (std::size_t size = 0; size <= 300; size += 7) {
        const Bytes request = content(1, size, size);
        ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, request) << size;
    }
    EXPECT_EQ(port.outstanding(), 0U);
}

TEST_P(Dispatchers, BringTheRequestsOfEightThreadsOverOneConnection) {
    Running running{options()};
    Dispatching dispatching{running};
    const std::uint64_t requests = repetitions(700);
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 8; ++whose) {
        threads.emplace_back([&, whose] {
            Port port = dispatching.dispatcher.port();
            Conversation{port, whose, 300}.talk(requests);
        });
    }
    for (std::thread& each : threads) each.join();
    dispatching.stop();
    running.stop();
    EXPECT_EQ(running.server.stats().joined, 1U);
    EXPECT_EQ(running.server.stats().requests, 8 * requests);
    EXPECT_EQ(dispatching.dispatcher.stats().requests, 8 * requests);
    EXPECT_EQ(dispatching.dispatcher.stats().answers, 8 * requests);
    EXPECT_EQ(dispatching.dispatcher.stats().joined, 8U);
}

TEST_P(Dispatchers, BringRequestsOfAnySizeThroughTheSmallestRingsAndWindows) {
    ServerOptions small = options();
    small.ring_bytes = 128;
    small.tuning.max_window = 1;
    Running running{small};
    DispatcherOptions chosen;
    chosen.client.ring_bytes = 128;
    chosen.client.window = 1;
    Dispatching dispatching{running, chosen};
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 3; ++whose) {
        threads.emplace_back([&, whose] {
            Port port = dispatching.dispatcher.port({.window = 1, .request_bytes = 64});
            Conversation{port, whose, 700}.talk(repetitions(60));
        });
    }
    for (std::thread& each : threads) each.join();
}

TEST_P(Dispatchers, BringLargeRequestsBesideSmallOnes) {
    ServerOptions chosen = options();
    chosen.ring_bytes = 4096;
    Running running{chosen};
    Dispatching dispatching{running};
    std::thread large{[&] {
        Port port = dispatching.dispatcher.port({.window = 2});
        Conversation{port, 1, 300'000}.talk(repetitions(20));
    }};
    Port port = dispatching.dispatcher.port();
    Conversation{port, 2, 40}.talk(repetitions(1000));
    large.join();
}

TEST_P(Dispatchers, ReachSeveralServersThatPortsChoose) {
    Running first{options()};
    Running second{options()};
    Running third{options()};
    Dispatching dispatching{
        {first.server.address(), second.server.address(), third.server.address()}};
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 4; ++whose) {
        threads.emplace_back([&, whose] {
            Port port = dispatching.dispatcher.port();
            Conversation{port, whose, 200}.talk(repetitions(600));
        });
    }
    for (std::thread& each : threads) each.join();
    std::uint64_t all = 0;
    for (Running* running : {&first, &second, &third}) {
        running->stop();
        EXPECT_EQ(running->server.stats().joined, 1U);
        EXPECT_GT(running->server.stats().requests, 0U);
        all += running->server.stats().requests;
    }
    EXPECT_EQ(all, 4 * repetitions(600));
}

TEST_P(Dispatchers, WakeForASleepingPortAndASleepingServer) {
    ServerOptions sleepy = options();
    sleepy.wait = base::WaitPolicy::blocking();
    Running running{sleepy};
    DispatcherOptions chosen;
    chosen.client.wait = base::WaitPolicy::blocking();
    chosen.wait = base::WaitPolicy::blocking();
    Dispatching dispatching{running, chosen};
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 3; ++whose) {
        threads.emplace_back([&, whose] {
            Port port = dispatching.dispatcher.port({.wait = base::WaitPolicy::blocking()});
            Bytes answer;
            for (std::uint64_t number = 0; number < repetitions(150); ++number) {
                const Bytes request = content(whose, number, 30);
                ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
                ASSERT_EQ(answer, request);
            }
        });
    }
    for (std::thread& each : threads) each.join();
    // Nobody asks any more.
    EXPECT_TRUE(eventually([&] { return dispatching.dispatcher.stats().sleeps != 0; }));
}

TEST_P(Dispatchers, HaveAnAnswerForEveryRequestOfAServerWhoseProcessDies) {
    ChildProcess child =
        ChildProcess::start("dispatched_server", {std::string{name_of(GetParam())}});
    const auto address = connect::Address::parse(child.read_line().value_or(""));
    Running living{options()};
    Dispatching dispatching{{address, living.server.address()}};
    std::atomic<bool> killed{false};
    std::atomic<unsigned> busy{0};
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 4; ++whose) {
        threads.emplace_back([&, whose] {
            Port port = dispatching.dispatcher.port();
            std::uint64_t sent = 0;
            std::uint64_t answered = 0;
            bool has_ended = false;
            const auto take = [&](const Answer& answer) {
                // Its server may have answered before it died.
                EXPECT_TRUE(answer.outcome == Outcome::ok || answer.outcome == Outcome::peer_lost)
                    << name_of(answer.outcome);
                if (++answered == 20) ++busy;
            };
            while (!has_ended) {
                std::uint64_t id = 0;
                switch (port.submit(content(whose, sent, 50), id)) {
                    case Status::ok: ++sent; break;
                    case Status::full: (void)port.wait(take, patience()); break;
                    default: has_ended = true;
                }
                while (port.poll(take) == Status::ok) {
                }
            }
            EXPECT_TRUE(killed);
            while (port.outstanding() != 0) ASSERT_EQ(port.wait(take, patience()), Status::ok);
            EXPECT_EQ(answered, sent);
            // The other one is as it was.
            Conversation{port, whose, 100, 1}.talk(100);
        });
    }
    const Deadline deadline = patience();
    while (busy != 4 && !deadline.expired()) std::this_thread::yield();
    killed = true;
    child.kill();
    for (std::thread& each : threads) each.join();
    dispatching.stop();
    EXPECT_EQ(dispatching.dispatcher.state_of(0), Status::peer_lost);
    EXPECT_FALSE(dispatching.dispatcher.failure(0).empty());
    EXPECT_EQ(dispatching.dispatcher.state_of(1), Status::ok);
}
MILLRACE_CHILD(dispatched_server) {
    ServerOptions chosen;
    chosen.polling = arguments.at(0) == "dense" ? Polling::dense : Polling::flag;
    Server server = Server::listen(unique_address(), chosen);
    say(server.address().to_string());
    (void)server.serve(echo, patience());
    return 0;
}

/// Keeps what it is asked.
struct Keeper {
    std::mutex mutex;
    std::vector<Reply> later;
    std::atomic<std::size_t> kept{0};

    void operator()(Request& request) {
        const std::lock_guard guard{mutex};
        later.push_back(request.defer());
        ++kept;
    }
    void wait_for(std::size_t count) const {
        const Deadline deadline = patience();
        while (kept < count && !deadline.expired()) std::this_thread::yield();
        ASSERT_GE(kept, count);
    }
    void answer_all() {
        const std::lock_guard guard{mutex};
        for (Reply& each : later) (void)each.answer(bytes_of("late"));
        later.clear();
    }
};

TEST_P(Dispatchers, EndWhatHasNoAnswerWhenTheyAreClosed) {
    Keeper keeper;
    Running running{options(), std::ref(keeper)};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port({.window = 8});
    std::uint64_t id = 0;
    for (int i = 0; i < 5; ++i) ASSERT_EQ(port.submit(bytes_of("x"), id), Status::ok);
    keeper.wait_for(5);
    dispatching.stop();
    // Laid, and taken by nobody.
    ASSERT_EQ(port.submit(bytes_of("y"), id), Status::ok);
    EXPECT_EQ(dispatching.dispatcher.close(patience()), Status::ok);
    EXPECT_EQ(port.submit(bytes_of("z"), id), Status::closed);
    int ended = 0;
    Status status;
    while ((status = port.wait(
                [&](const Answer& answer) {
                    EXPECT_EQ(answer.outcome, Outcome::closed);
                    ++ended;
                },
                patience())) == Status::ok) {
    }
    EXPECT_EQ(ended, 6);
    EXPECT_EQ(status, Status::closed);
    EXPECT_THROW((void)dispatching.dispatcher.port(), base::Error);
}

TEST_P(Dispatchers, EndWhatIsSubmittedWhileTheyClose) {
    for (std::uint64_t round = 0; round < repetitions(20); ++round) {
        Running running{options()};
        std::optional<Dispatching> dispatching{std::in_place, running};
        std::vector<std::thread> threads;
        std::atomic<unsigned> begun{0};
        for (unsigned whose = 0; whose < 3; ++whose) {
            threads.emplace_back([&, port = dispatching->dispatcher.port(), whose]() mutable {
                std::uint64_t sent = 0;
                std::uint64_t answered = 0;
                const auto take = [&](const Answer& answer) {
                    EXPECT_TRUE(answer.outcome == Outcome::ok || answer.outcome == Outcome::closed);
                    if (++answered == 1) ++begun;
                };
                while (true) {
                    std::uint64_t id = 0;
                    const Status status = port.submit(content(whose, sent, 20), id);
                    if (status == Status::closed) break;
                    ASSERT_TRUE(status == Status::ok || status == Status::full);
                    if (status == Status::ok) ++sent;
                    while (port.poll(take) == Status::ok) {
                    }
                }
                while (port.outstanding() != 0) {
                    ASSERT_EQ(port.wait(take, patience()), Status::ok);
                }
                EXPECT_EQ(answered, sent);
            });
        }
        const Deadline deadline = patience();
        while (begun != 3 && !deadline.expired()) std::this_thread::yield();
        dispatching.reset();
        for (std::thread& each : threads) each.join();
    }
}

TEST_P(Dispatchers, LetPortsComeAndGoWithRequestsOnTheirWay) {
    Running running{options()};
    Dispatching dispatching{running};
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 4; ++whose) {
        threads.emplace_back([&, whose] {
            for (std::uint64_t life = 0; life < 60; ++life) {
                Port port = dispatching.dispatcher.port({.window = 16});
                std::uint64_t id = 0;
                Conversation{port, whose, 60}.talk(life % 7);
                for (std::uint64_t left = life % 5; left != 0; --left) {
                    ASSERT_EQ(port.submit(content(whose, life, 40), id), Status::ok);
                }
            }
        });
    }
    for (std::thread& each : threads) each.join();
    Port last = dispatching.dispatcher.port();
    Conversation{last, 9, 60}.talk(50);
    const Deadline deadline = patience();
    while (dispatching.dispatcher.stats().ports != 1 && !deadline.expired()) {
        std::this_thread::yield();
    }
    EXPECT_EQ(dispatching.dispatcher.stats().ports, 1U);
    EXPECT_EQ(dispatching.dispatcher.stats().joined, 4U * 60 + 1);
}

TEST_P(Dispatchers, HandOutNoAnswerToACallThatWasGivenUp) {
    Keeper keeper;
    Running running{options(), std::ref(keeper)};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port({.window = 4});
    Bytes answer;
    for (int round = 0; round < 6; ++round) {
        // Twice as many as there are places, all in all: what is given up frees its own.
        ASSERT_EQ(port.call(bytes_of("early"), answer, Deadline::after(1ms)), Outcome::timed_out);
    }
    std::uint64_t wanted = 0;
    std::uint64_t given_up = 0;
    ASSERT_EQ(port.submit(bytes_of("given up"), given_up, patience()), Status::ok);
    ASSERT_EQ(port.submit(bytes_of("wanted"), wanted, patience()), Status::ok);
    EXPECT_TRUE(port.cancel(given_up));
    EXPECT_FALSE(port.cancel(given_up));
    EXPECT_EQ(port.outstanding(), 1U);
    Status status = Status::timed_out;
    const Deadline deadline = patience();
    while (status == Status::timed_out && !deadline.expired()) {
        keeper.answer_all();
        status = port.wait(
            [&](const Answer& given) {
                EXPECT_EQ(given.id, wanted);
                EXPECT_EQ(given.outcome, Outcome::ok);
                EXPECT_EQ(text_of(given.payload), "late");
            },
            Deadline::after(1ms));
    }
    EXPECT_EQ(status, Status::ok);
    EXPECT_EQ(port.poll([](const Answer&) {}), Status::empty);
}

TEST_P(Dispatchers, KeepAnswersToOtherRequestsForTheirCalls) {
    Running running{options()};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port({.window = 8});
    std::map<std::uint64_t, Bytes> open;
    for (std::uint64_t number = 0; number < 7; ++number) {
        std::uint64_t id = 0;
        Bytes request = content(1, number, 30);
        ASSERT_EQ(port.submit(request, id), Status::ok);
        open.emplace(id, std::move(request));
    }
    Bytes answer;
    ASSERT_EQ(port.call(content(2, 0, 99), answer, patience()), Outcome::ok);
    EXPECT_EQ(answer, content(2, 0, 99));
    EXPECT_EQ(port.outstanding(), 7U);
    // A window that is full of answers nobody took has room for one who waits.
    std::uint64_t id = 0;
    for (std::uint64_t number = 0; number < 20; ++number) {
        Bytes request = content(3, number, 20);
        ASSERT_EQ(port.submit(request, id, patience()), Status::ok);
        open.emplace(id, std::move(request));
    }
    while (!open.empty()) {
        ASSERT_EQ(port.wait(
                      [&](const Answer& given) {
                          ASSERT_TRUE(open.contains(given.id));
                          EXPECT_TRUE(std::ranges::equal(given.payload, open[given.id]));
                          open.erase(given.id);
                      },
                      patience()),
                  Status::ok);
    }
}

TEST_P(Dispatchers, HavePortsWithRoomAgainWhereAWaitThatAwaitedNoAnswerIsOver) {
    std::vector<Reply> later;
    Running running{options(), [&](Request& request) { later.push_back(request.defer()); }};
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{running.server.address()}, {}, patience());
    Port port = dispatcher.port({.window = 2});
    std::uint64_t ids[2];
    for (std::uint64_t& id : ids) ASSERT_EQ(port.submit(bytes_of("?"), id), Status::ok);
    const Deadline deadline = patience();
    while (running.server.stats().pending < 2 && !deadline.expired()) (void)dispatcher.turn();
    ASSERT_EQ(running.server.stats().pending, 2U);
    for (const std::uint64_t id : ids) ASSERT_TRUE(port.cancel(id));
    std::uint64_t id = 0;
    ASSERT_EQ(port.submit(bytes_of("?"), id), Status::full);
    ASSERT_EQ(port.outstanding(), 0U);
    const auto nothing = [](const Answer&) { FAIL() << "nothing is awaited"; };
    // The dispatcher, of which this is the thread, has not heard of it.
    EXPECT_EQ(port.wait(nothing, Deadline::now()), Status::timed_out);
    while (port.wait(nothing, Deadline::now()) == Status::timed_out && !deadline.expired()) {
        (void)dispatcher.turn();
    }
    EXPECT_EQ(port.submit(bytes_of("?"), id), Status::ok);
    EXPECT_EQ(dispatcher.close(patience()), Status::ok);
}

TEST_P(Dispatchers, HandOutAnAnswerThatCameWhileAnotherWasAwaited) {
    Running running{options()};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port();
    std::uint64_t ids[3];
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(port.submit(content(7, i, 30), ids[i]), Status::ok);
    }
    for (const std::uint64_t i : {2, 0, 1}) {
        Bytes got;
        const auto take = [&](std::span<const std::byte> answer) {
            got.assign(answer.begin(), answer.end());
        };
        // What is here is not waited for.
        const Deadline deadline = i == 2 ? patience() : Deadline::now();
        ASSERT_EQ(port.answer_to(ids[i], take, deadline), Outcome::ok) << i;
        EXPECT_EQ(got, content(7, i, 30));
    }
    EXPECT_EQ(port.outstanding(), 0U);
}

TEST_P(Dispatchers, TellWhatTheServerDoesNotTake) {
    ServerOptions chosen = options();
    chosen.max_request_bytes = 100;
    Running running{chosen};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port();
    Bytes answer;
    EXPECT_EQ(port.call(Bytes(101), answer, patience()), Outcome::too_large);
    EXPECT_EQ(port.call(Bytes(100), answer, patience()), Outcome::ok);
    EXPECT_EQ(port.call(Bytes(10), answer, Deadline::now()), Outcome::timed_out);
}

TEST_P(Dispatchers, HoldUpNobodyForAServerThatDoesNotAnswer) {
    Keeper keeper;
    Running slow{options(), std::ref(keeper)};
    Running quick{options()};
    DispatcherOptions chosen;
    chosen.client.window = 2;
    Dispatching dispatching{{slow.server.address(), quick.server.address()}, chosen};
    Port port = dispatching.dispatcher.port({.window = 16});
    std::uint64_t id = 0;
    for (int i = 0; i < 8; ++i) ASSERT_EQ(port.submit(bytes_of("slow"), id), Status::ok);
    port.to(1);
    Bytes answer;
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(port.call(bytes_of("quick"), answer, patience()), Outcome::ok);
    }
    int late = 0;
    const Deadline deadline = patience();
    while (late != 8 && !deadline.expired()) {
        keeper.answer_all();
        (void)port.wait([&](const Answer&) { ++late; }, Deadline::after(1ms));
    }
    EXPECT_EQ(late, 8);
}

TEST_P(Dispatchers, AreJoinedByServersAtAnyTimeAlsoByOneThatCameBack) {
    Dispatching dispatching{std::vector<connect::Address>{}, {.max_servers = 3}};
    Dispatcher& dispatcher = dispatching.dispatcher;
    Port port = dispatcher.port();
    EXPECT_EQ(port.servers(), 0U);
    const connect::Address address = unique_address();
    Bytes answer;
    for (std::uint32_t number = 0; number < 3; ++number) {
        Running running{options(), echo, address};
        ASSERT_EQ(dispatcher.join(address, {}, patience()), number);
        // At once, and many, while others have joined already.
        port.to(number);
        for (std::uint64_t i = 0; i < repetitions(100); ++i) {
            const Bytes request = content(number, i, 70);
            ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, request);
        }
        running.stop();
        EXPECT_EQ(running.server.close(patience()), Status::ok);
        // It has ended for good, under this number.
        Outcome outcome = Outcome::ok;
        const Deadline deadline = patience();
        while (outcome != Outcome::closed && outcome != Outcome::peer_lost && !deadline.expired()) {
            outcome = port.call(bytes_of("more"), answer, Deadline::after(20ms));
        }
        EXPECT_NE(dispatcher.state_of(number), Status::ok);
    }
    Running running{options()};
    EXPECT_THROW((void)dispatcher.join(running.server.address(), {}, patience()), base::Error);
    dispatching.stop();
    EXPECT_NE(dispatcher.explain().find("which has ended"), std::string::npos)
        << dispatcher.explain();
    (void)dispatcher.close(patience());
}

TEST_P(Dispatchers, HavePortsForLoopsThatWaitForManyThings) {
    Running running{options()};
    Dispatching dispatching{running};
    Port port = dispatching.dispatcher.port({.window = 4});
    const int descriptor = port.descriptor();
    EXPECT_TRUE(becomes_readable(descriptor, 40s)) << "nobody has looked yet";
    std::uint64_t sent = 0;
    std::uint64_t answered = 0;
    Bytes answer;
    while (answered < 400) {
        std::uint64_t id = 0;
        while (port.submit(content(1, sent, 40), id) == Status::ok) ++sent;
        ASSERT_TRUE(becomes_readable(descriptor, 40s)) << sent << " sent, " << answered;
        while (port.poll([&](const Answer& each) {
            EXPECT_EQ(each.outcome, Outcome::ok);
            ++answered;
        }) == Status::ok) {
        }
        if (answered % 50 < 4) {
            // A call sleeps by the same bell.
            while (port.outstanding() != 0) {
                ASSERT_EQ(port.wait([&](const Answer&) { ++answered; }, patience()), Status::ok);
            }
            ASSERT_EQ(port.call(content(2, sent, 10), answer, patience()), Outcome::ok);
        }
        // What was given up rings, too, and nothing is there.
        if (answered % 30 < 4 && port.submit(content(3, sent, 40), id) == Status::ok) {
            EXPECT_TRUE(port.cancel(id));
        }
    }
    while (port.outstanding() != 0) {
        ASSERT_EQ(port.wait([&](const Answer&) {}, patience()), Status::ok);
    }
    // Not readable for ever, whatever it was rung for last.
    const Deadline deadline = patience();
    do {
        EXPECT_EQ(port.poll([](const Answer&) {}), Status::empty);
    } while (is_readable(descriptor) && !deadline.expired());
    EXPECT_FALSE(is_readable(descriptor));
}

TEST(Dispatcher, GivesEachPortATurn) {
    // A server that takes one request at a time, in the order they come in.
    std::vector<char> order;
    ServerOptions chosen;
    chosen.tuning.max_window = 1;
    Running running{chosen, [&](Request& request) {
                        order.push_back(text_of(request.payload()).at(0));
                        (void)request.answer({});
                    }};
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{running.server.address()}, {}, patience());
    std::vector<Port> ports;
    std::uint64_t id = 0;
    for (int i = 0; i < 3; ++i) ports.push_back(dispatcher.port());
    // The first one is much the fastest.
    for (int i = 0; i < 30; ++i) ASSERT_EQ(ports[0].submit(bytes_of("a"), id), Status::ok);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(ports[1].submit(bytes_of("b"), id), Status::ok);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(ports[2].submit(bytes_of("c"), id), Status::ok);
    const Deadline deadline = patience();
    while (dispatcher.stats().answers != 50 && !deadline.expired()) (void)dispatcher.turn();
    running.stop();
    ASSERT_EQ(order.size(), 50U);
    for (std::size_t i = 0; i < 30; i += 3) {
        EXPECT_EQ((std::string{order.begin() + static_cast<std::ptrdiff_t>(i),
                               order.begin() + static_cast<std::ptrdiff_t>(i + 3)}),
                  "abc");
    }
}

TEST(Dispatcher, NeedsNoDescriptorForAServerThatHasJoined) {
    ChildProcess child = ChildProcess::start("dispatched_server", {"flag"});
    const auto address = connect::Address::parse(child.read_line().value_or(""));
    Dispatcher dispatcher = Dispatcher::connect({}, {}, patience());
    ASSERT_EQ(dispatcher.join(address, {}, patience()), 0U);
    Port port = dispatcher.port();
    // All below the lowest free one are in use.
    const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(lowest, 0);
    close(lowest);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{.rlim_cur = static_cast<rlim_t>(lowest), .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_NO_THROW((void)dispatcher.turn());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(dispatcher.state_of(0), Status::ok);
    std::uint64_t id = 0;
    ASSERT_EQ(port.submit(bytes_of("x"), id), Status::ok);
    std::optional<Outcome> outcome;
    for (const Deadline deadline = patience(); !outcome.has_value() && !deadline.expired();) {
        (void)dispatcher.turn();
        (void)port.poll([&](const Answer& answer) { outcome = answer.outcome; });
    }
    EXPECT_EQ(outcome, Outcome::ok);
}

/// Dispatchers that share one processor with their ports; by how both wait.
struct Waits {
    const char* name;
    base::WaitPolicy of_dispatcher;
    base::WaitPolicy of_port;
};
class OneProcessor : public testing::TestWithParam<Waits> {};
INSTANTIATE_TEST_SUITE_P(
    Waits, OneProcessor,
    testing::Values(Waits{"yielding", yielding, yielding},
                    Waits{"sleeping_ports", yielding, base::WaitPolicy::blocking()},
                    Waits{"sleeping_dispatcher", base::WaitPolicy::blocking(), yielding},
                    Waits{"both_as_by_default", {}, {}}),
    [](const auto& each) { return std::string{each.param.name}; });

TEST_P(OneProcessor, IsSharedByADispatcherAndPortsThatComeAndGo) {
    Running running;
    Running other;
    const OnOneProcessor here;  // the threads below inherit it
    DispatcherOptions options;
    options.wait = GetParam().of_dispatcher;
    Dispatching dispatching{running, options};
    Dispatcher& dispatcher = dispatching.dispatcher;
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 8; ++whose) {
        threads.emplace_back([&, whose] {
            for (unsigned round = 0; round < 8; ++round) {
                Port port = dispatcher.port({.window = 16, .wait = GetParam().of_port});
                Conversation{port, whose, 300}.talk(100);
                // What it goes with has no answer.
                std::uint64_t id = 0;
                for (int i = 0; i < 3; ++i) (void)port.submit(content(whose, 7, 30), id);
                if (whose == 0 && round == 3) {
                    EXPECT_EQ(dispatcher.join(other.server.address(), {}, patience()), 1U);
                }
            }
        });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(dispatcher.state_of(0), Status::ok);
    EXPECT_EQ(dispatcher.state_of(1), Status::ok);
    dispatching.stop();
    EXPECT_EQ(dispatcher.stats().joined, 64U);
    EXPECT_EQ(dispatcher.close(patience()), Status::ok);
}

TEST(Dispatcher, IsSparedItsTurnsByPortsThatWaitOnItsProcessor) {
    Running running;
    const OnOneProcessor here;
    DispatcherOptions options;
    options.wait = yielding;
    Dispatching dispatching{running, options};
    Port port = dispatching.dispatcher.port({.wait = yielding});
    Bytes answer;
    const Deadline deadline = patience();
    std::uint64_t calls = 0;
    while (dispatching.dispatcher.stats().turns_of_ports < 100 && !deadline.expired()) {
        const Bytes request = content(1, calls++, 50);
        ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, request);
    }
    EXPECT_GE(dispatching.dispatcher.stats().turns_of_ports, 100U);
    dispatching.stop();
    EXPECT_EQ(dispatching.dispatcher.stats().requests, calls);
    EXPECT_EQ(dispatching.dispatcher.stats().answers, calls);
}

TEST(Dispatcher, SparesPortsOnItsProcessorThatSleepAtOnceSomeSleeps) {
    Running running;
    if (running.connect().explain().find("carrier: store") == std::string::npos) {
        GTEST_SKIP() << "a kernel's device may bring an answer later than the others' turns end";
    }
    const OnOneProcessor here;
    DispatcherOptions options;
    options.wait = yielding;
    Dispatching dispatching{running, options};
    std::atomic<std::uint64_t> calls{0};
    const auto spared = [&] { return dispatching.dispatcher.stats().spared_sleeps; };
    // Where other programs compute, the ports are no crowd, and only one in so many waits offers.
    const auto are_some = [&] {
        return spared() >= 100 ||
               (spared() != 0 && base::contention_of_process.is_busy(base::ticks()));
    };
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 4; ++whose) {
        threads.emplace_back([&, whose] {
            Port port = dispatching.dispatcher.port({.wait = base::WaitPolicy::blocking()});
            Bytes answer;
            const Deadline deadline = patience();
            for (std::uint64_t call = 0; !are_some() && !deadline.expired(); ++call) {
                const Bytes request = content(whose, call, 50);
                ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
                ASSERT_EQ(answer, request);
                calls.fetch_add(1, std::memory_order_relaxed);
            }
        });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_GE(spared(), 1U);
    dispatching.stop();
    EXPECT_EQ(dispatching.dispatcher.stats().answers, calls);
}

/// A server with a small window, which answers nothing until it is let.
class Holding {
  public:
    static constexpr std::uint32_t window = 8;

    Holding() = default;
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;
    ~Holding() { let(1000); }
    /// It may answer that many more.
    void let(int answers) { may_answer_ += answers; }

  private:
    static ServerOptions options() {
        ServerOptions options;
        options.tuning.max_window = window;
        return options;
    }
    std::atomic<int> may_answer_{0};

  public:
    Running running{options(), [this](Request& request) {
                        while (may_answer_ == 0) std::this_thread::yield();
                        --may_answer_;
                        echo(request);
                    }};
};

TEST(Dispatcher, CountsOnceWhatPortsFindHeldBackAgainAndAgain) {
    Holding server;
    const OnOneProcessor here;
    DispatcherOptions options;
    options.wait = yielding;
    Dispatching dispatching{server.running, options};
    Dispatcher& dispatcher = dispatching.dispatcher;
    Port port = dispatcher.port({.window = 2 * Holding::window, .wait = yielding});
    std::uint64_t id = 0;
    for (std::uint32_t i = 0; i < 2 * Holding::window; ++i) {
        ASSERT_EQ(port.submit(content(1, i, 50), id), Status::ok);
    }
    const auto take = [](const Answer& answer) { EXPECT_EQ(answer.outcome, Outcome::ok); };
    const Deadline deadline = patience();
    const auto wait_for_turns = [&](std::uint64_t count) {
        const std::uint64_t until = dispatcher.stats().turns_of_ports + count;
        while (dispatcher.stats().turns_of_ports < until && !deadline.expired()) {
            EXPECT_EQ(port.wait(take, Deadline::after(1ms)), Status::timed_out);
        }
        EXPECT_GE(dispatcher.stats().turns_of_ports, until);
    };
    while (dispatcher.stats().held_back == 0 && !deadline.expired()) {
        EXPECT_EQ(port.wait(take, Deadline::after(1ms)), Status::timed_out);
    }
    // The dispatcher's thread takes no turn any more: nothing comes.
    wait_for_turns(3);
    const std::uint64_t held_back = dispatcher.stats().held_back;
    EXPECT_GE(held_back, 1U);
    wait_for_turns(100);
    EXPECT_EQ(dispatcher.stats().held_back, held_back);
    EXPECT_EQ(dispatcher.stats().requests, Holding::window);
    server.let(2 * Holding::window);
    while (port.outstanding() != 0) ASSERT_EQ(port.wait(take, patience()), Status::ok);
    EXPECT_EQ(dispatcher.stats().requests, 2 * Holding::window);
}

// The thread of the dispatcher only rests here: every turn but the first ones is a port's.
TEST(Dispatcher, IsNotSentByPortsWhatAPortThatHasLeftHadQueued) {
    for (std::uint64_t round = 0; round < repetitions(20); ++round) {
        Holding server;
        const OnOneProcessor here;
        DispatcherOptions options;
        options.wait = yielding;
        Dispatcher dispatcher =
            Dispatcher::connect(std::array{server.running.server.address()}, options, patience());
        std::optional<Port> leaving{dispatcher.port({.wait = yielding})};
        Port staying = dispatcher.port({.wait = yielding});
        std::uint64_t id = 0;
        for (std::uint32_t i = 0; i < Holding::window; ++i) {
            ASSERT_EQ(staying.submit(content(1, i, 50), id), Status::ok);
        }
        (void)dispatcher.turn();
        ASSERT_EQ(dispatcher.stats().requests, Holding::window);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(leaving->submit(content(2, 0, 50), id), Status::ok);
        (void)dispatcher.turn();
        ASSERT_EQ(dispatcher.stats().held_back, 1U);
        std::atomic<bool> is_done{false};
        std::thread ports{[&] {
            const auto take = [](const Answer&) {};
            server.let(1);
            // The answer makes room, behind what that turn could send. It does not come where the
            // dispatcher's thread has seen it first, which then does not take the turn.
            (void)staying.wait(take, Deadline::after(1ms));
            leaving.reset();
            (void)staying.wait(take, Deadline::after(200us));
            EXPECT_EQ(dispatcher.stats().requests, Holding::window);
            is_done = true;
        }};
        while (!is_done) (void)dispatcher.rest(Deadline::after(1ms));
        ports.join();
    }
}

TEST(Dispatcher, RestsOnceWhoHadSomethingHeldBackHasLeft) {
    Holding server;
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{server.running.server.address()}, {}, patience());
    {
        Port port = dispatcher.port();
        std::uint64_t id = 0;
        for (std::uint32_t i = 0; i <= Holding::window; ++i) {
            ASSERT_EQ(port.submit(content(1, i, 50), id), Status::ok);
        }
        (void)dispatcher.turn();
        ASSERT_EQ(dispatcher.stats().held_back, 1U);
    }
    server.let(Holding::window);
    const Deadline deadline = patience();
    Status status = Status::ok;
    while (status == Status::ok && !deadline.expired()) {
        (void)dispatcher.turn();
        // Long enough for the answers, which make room for what was held back.
        status = dispatcher.rest(Deadline::after(100ms));
    }
    EXPECT_EQ(status, Status::timed_out) << "it finds work for ever";
}

TEST(Dispatcher, HasItsTurnForItselfWhileItDoesNotRest) {
    Running running;
    const OnOneProcessor here;
    DispatcherOptions options;
    options.wait = yielding;
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{running.server.address()}, options, patience());
    Port port = dispatcher.port({.wait = yielding});
    EXPECT_EQ(dispatcher.rest(patience()), Status::ok) << "the port has come";
    (void)dispatcher.turn();
    EXPECT_EQ(dispatcher.rest(Deadline::after(5ms)), Status::timed_out);
    Bytes answer;
    EXPECT_EQ(port.call(bytes_of("x"), answer, Deadline::after(20ms)), Outcome::timed_out);
    EXPECT_EQ(dispatcher.stats().requests, 0U);
    EXPECT_EQ(dispatcher.stats().turns_of_ports, 0U);
}

TEST(Dispatcher, IsNotClosedByAWrongThreadThoughServersJoin) {
    Running running;
    Running other;
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{running.server.address()}, {}, patience());
    Port port = dispatcher.port();
    std::uint64_t id = 0;
    ASSERT_EQ(port.submit(bytes_of("x"), id), Status::ok);
    // Joined, and not let in by any turn.
    ASSERT_EQ(dispatcher.join(other.server.address(), {}, patience()), 1U);
    port.to(1);
    ASSERT_EQ(port.submit(bytes_of("y"), id), Status::ok);
    std::thread wrong{[&] { EXPECT_THROW((void)dispatcher.close(patience()), base::Error); }};
    wrong.join();
    EXPECT_NO_THROW((void)dispatcher.port()) << "it is not closed";
    EXPECT_EQ(dispatcher.close(patience()), Status::ok);
    EXPECT_EQ(dispatcher.state_of(0), Status::closed);
    EXPECT_EQ(dispatcher.state_of(1), Status::closed);
    EXPECT_EQ(dispatcher.failure(1), "");
    int ended = 0;
    const auto take = [&](const Answer& answer) {
        EXPECT_EQ(answer.outcome, Outcome::closed);
        ++ended;
    };
    Status status = Status::ok;
    while (status == Status::ok) status = port.wait(take, Deadline::after(10s));
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(ended, 2);
    // The server that was never let in has heard of the end, too.
    const Deadline deadline = patience();
    while (other.server.stats().clients != 0 && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(other.server.stats().clients, 0U);
}

TEST(Dispatcher, SaysWhatItDoesNotTake) {
    const auto attempt = [](std::span<const connect::Address> servers, DispatcherOptions options) {
        return Dispatcher::connect(servers, std::move(options), patience());
    };
    EXPECT_THROW((void)attempt({}, {.max_servers = 65'537}), base::Error);
    Running running;
    DispatcherOptions resuming;
    resuming.client.resumes = true;
    EXPECT_THROW((void)attempt(std::array{running.server.address()}, resuming), base::Error);
    Dispatcher dispatcher = attempt(std::array{running.server.address()}, {});
    EXPECT_THROW((void)dispatcher.port({.window = 0}), base::Error);
    EXPECT_THROW((void)dispatcher.port({.window = 4097}), base::Error);
    EXPECT_NE(dispatcher.explain().find("share 1 connection"), std::string::npos);
    std::thread other{
        [&] { EXPECT_THROW((void)dispatcher.rest(Deadline::after(1ms)), base::Error); }};
    other.join();
}

}  // namespace
}  // namespace millrace::message
