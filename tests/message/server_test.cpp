// Servers and clients: each request answered once and to its caller, whatever the polling, the
// sizes, and who comes and goes meanwhile. Both in one process; with more: server_crowd_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "support/extent.hpp"
#include "support/readable.hpp"
#include "support/resources.hpp"
#include "support/setting_scope.hpp"
#include "support/two_threads.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::repetitions;
using test::size_step;
using namespace std::chrono_literals;

class Servers : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, Servers, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(Servers, AnswerACall) {
    Running running{options()};
    Client client = running.connect();
    Bytes answer;
    for (std::size_t size = 0; size <= 300; size += size_step(1)) {
        const Bytes request = content(1, size, size);
        ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, request) << size;
    }
    EXPECT_EQ(client.outstanding(), 0U);
    EXPECT_EQ(client.close(patience()), Status::ok);
}

TEST_P(Servers, EndTheDomainsThatClientsHaveOfTheirOwn) {
    if (GetParam().needs_trust()) GTEST_SKIP() << "there are none";
    testing::internal::CaptureStderr();
    for (const Protection protection : {Protection::domains, Protection::trusted}) {
        ServerOptions chosen = options();
        chosen.protection = protection;
        chosen.admission.own_domains = true;
        Running running{chosen};
        Client client = running.connect();
        Client other = running.connect();
        Bytes answer;
        for (std::uint64_t number = 0; number < repetitions(200); ++number) {
            for (Client* const each : {&client, &other}) {
                const Bytes request = content(1, number, number * 13 % 500);
                ASSERT_EQ(each->call(request, answer, patience()), Outcome::ok) << each->failure();
                ASSERT_EQ(answer, request);
            }
        }
        EXPECT_EQ(client.close(patience()), Status::ok);
    }
    // A domain in which something is still registered is not freed, which is said.
    EXPECT_EQ(testing::internal::GetCapturedStderr().find("protection domain"), std::string::npos);
}

TEST_P(Servers, SayWhetherTheyKeepClientsApart) {
    const bool by_rdma = GetParam().transport != connect::Transport::tcp;
    Running running{options()};
    const std::string says = running.server.explain();
    if (by_rdma) {
        EXPECT_NE(says.find(GetParam().needs_trust() ? "protection: trusted, as the program"
                                                     : "protection: domains, as a server"),
                  std::string::npos)
            << says;
    }
    if (!GetParam().needs_trust()) return;
    // What they share is for those whom the program trusts, and it has to say so.
    ServerOptions chosen = options();
    chosen.protection = Protection::domains;
    try {
        (void)Server::listen(unique_address(), chosen);
        FAIL() << "it listens";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
        EXPECT_NE(std::string{error.what()}.find("Protection::trusted"), std::string::npos)
            << error.what();
    }
    if (GetParam().receives != Receives::shared && !GetParam().is_shared()) return;
    chosen.protection = Protection::trusted;
    chosen.admission.own_domains = true;
    EXPECT_THROW((void)Server::listen(unique_address(), chosen), base::Error);
}

TEST_P(Servers, AnswerThroughTheSmallestRings) {
    InSmallestRings small{options()};
    for (std::size_t size = 0; size <= 700; size += size_step(7)) {
        ASSERT_NO_FATAL_FAILURE(small.expect_echo(content(1, size, size)));
    }
}

TEST_P(Servers, AnswerWithoutCopies) {
    Running running{options(), [](Request& request) {
                        const std::size_t size = request.payload().size();
                        (void)request.answer(size + 10, [&](std::span<std::byte> room) {
                            std::reverse_copy(request.payload().begin(), request.payload().end(),
                                              room.begin());
                            return size;
                        });
                    }};
    Client client = running.connect();
    for (std::uint64_t number = 0; number < repetitions(2000); ++number) {
        const Bytes request = content(3, number, number % 900);
        Bytes answer;
        ASSERT_EQ(client.call(
                      request.size() + 5,
                      [&](std::span<std::byte> room) {
                          std::copy(request.begin(), request.end(), room.begin());
                          return request.size();
                      },
                      [&](std::span<const std::byte> bytes) {
                          answer.assign(bytes.begin(), bytes.end());
                      },
                      patience()),
                  Outcome::ok)
            << client.failure();
        std::reverse(answer.begin(), answer.end());
        ASSERT_EQ(answer, request);
    }
}

/// What is written apart, since the session resumes or since it was claimed longer than the ring
/// allows, waits for room as what is written in place.
TEST_P(Servers, AreSentWhatWasClaimedThoughTheRingIsFull) {
    for (const bool resumes : {false, true}) {
        std::atomic<bool> answers{false};
        ServerOptions small = options();
        small.ring_bytes = 128;
        Running running{small, [&](Request& request) {
                            while (!answers) std::this_thread::sleep_for(1ms);
                            echo(request);
                        }};
        const struct Opening {
            std::atomic<bool>& gate;
            ~Opening() { gate = true; }
        } opens_on_failure{answers};
        ClientOptions chosen;
        chosen.ring_bytes = 128;
        chosen.resumes = resumes;
        Client client = running.connect(chosen);
        std::map<std::uint64_t, Bytes> open;
        while (true) {
            const Bytes request = content(1, open.size(), 40);
            std::uint64_t id = 0;
            const auto fill = [&](std::span<std::byte> room) {
                std::copy(request.begin(), request.end(), room.begin());
                return request.size();
            };
            const Status status =
                client.submit(resumes ? 40 : 4000, fill, id, Deadline::after(50ms));
            if (status == Status::timed_out) break;
            ASSERT_EQ(status, Status::ok) << client.failure();
            open.emplace(id, request);
        }
        answers = true;
        while (!open.empty()) {
            ASSERT_EQ(client.wait(
                          [&](const Answer& answer) {
                              const auto found = open.find(answer.id);
                              ASSERT_NE(found, open.end());
                              EXPECT_TRUE(std::ranges::equal(answer.payload, found->second));
                              open.erase(found);
                          },
                          patience()),
                      Status::ok)
                << client.failure();
        }
    }
}

TEST_P(Servers, AnswerLargeMessagesBesideSmallOnes) {
    ServerOptions chosen = options();
    chosen.ring_bytes = 4096;
    Running running{chosen};
    std::thread large{[&] {
        Client client = running.connect();
        Bytes answer;
        for (std::uint64_t number = 0; number < repetitions(20); ++number) {
            const Bytes request = content(1, number, 300'000 + number * 1777);
            ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, request);
        }
    }};
    Client client = running.connect();
    Bytes answer;
    for (std::uint64_t number = 0; number < repetitions(3000); ++number) {
        const Bytes request = content(2, number, 40);
        ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, request);
    }
    large.join();
}

TEST_P(Servers, AnswerWindowsOfRequestsThatWrapAllTheTime) {
    ServerOptions chosen = options();
    chosen.ring_bytes = 1024;
    Running running{chosen};
    ClientOptions ring;
    ring.ring_bytes = 1024;
    ring.window = 16;
    Client client = running.connect(ring);
    const std::uint64_t requests = repetitions(5000);
    talk(client, 1, requests, 400, 7);
    EXPECT_EQ(client.stats().requests, requests);
    EXPECT_EQ(client.stats().answers, requests);
}

TEST_P(Servers, AnswerACrowd) {
    ServerOptions chosen = options();
    chosen.ring_bytes = 2048;
    Running running{chosen};
    const std::uint64_t requests = repetitions(800);
    std::vector<std::thread> crowd;
    for (unsigned whose = 0; whose < 8; ++whose) {
        crowd.emplace_back([&, whose] {
            Client client = running.connect();
            talk(client, whose, requests, 200, whose);
            EXPECT_EQ(client.close(patience()), Status::ok);
        });
    }
    for (std::thread& each : crowd) each.join();
    running.stop();
    EXPECT_EQ(running.server.stats().requests, 8U * requests);
    EXPECT_EQ(running.server.stats().answers, 8U * requests);
    EXPECT_EQ(running.server.stats().joined, 8U);
    EXPECT_EQ(running.server.stats().misbehaved, 0U);
}

TEST_P(Servers, AnswerWhatWasDeferredFromAnyThreadInAnyOrder) {
    std::mutex mutex;
    std::vector<std::pair<Reply, Bytes>> later;
    std::atomic<bool> ends{false};
    std::thread worker{[&] {
        std::minstd_rand random{3};
        while (!ends) {
            std::pair<Reply, Bytes> one;
            {
                const std::lock_guard guard{mutex};
                if (!later.empty()) {
                    std::swap(later[random() % later.size()], later.back());
                    one = std::move(later.back());
                    later.pop_back();
                }
            }
            if (!one.first.is_due()) {
                std::this_thread::yield();
                continue;
            }
            EXPECT_EQ(one.first.answer(one.second), Status::ok);
            EXPECT_FALSE(one.first.is_due());
        }
    }};
    {
        Running running{options(), [&](Request& request) {
                            Reply reply = request.defer();
                            const std::lock_guard guard{mutex};
                            later.emplace_back(std::move(reply), Bytes{request.payload().begin(),
                                                                       request.payload().end()});
                        }};
        std::thread other{[&] {
            Client client = running.connect();
            talk(client, 2, repetitions(1500), 100, 4);
        }};
        Client client = running.connect();
        talk(client, 1, repetitions(1500), 100, 9);
        other.join();
    }
    ends = true;
    worker.join();
}

TEST_P(Servers, TellTheCallerOfAHandlerThatThrowsAndLive) {
    Running running{options(), [](Request& request) {
                        if (request.procedure() == 1) throw std::runtime_error{"no such thing"};
                        if (request.procedure() == 2) throw 7;
                        if (request.procedure() == 3) return;
                        if (request.procedure() == 4) {
                            (void)request.answer(10, [](std::span<std::byte>) {
                                throw std::runtime_error{"in the middle"};
                            });
                        }
                        if (request.procedure() == 5) (void)request.fail("not today");
                        if (request.procedure() == 6) (void)request.defer();
                        EXPECT_EQ(request.answer(request.payload()),
                                  request.procedure() == 0 ? Status::ok : Status::closed);
                    }};
    Client client = running.connect();
    Bytes answer;
    const Bytes request = bytes_of("question");
    EXPECT_EQ(client.call(request, answer, patience(), 1), Outcome::failed);
    EXPECT_EQ(text_of(answer), "no such thing");
    EXPECT_EQ(client.call(request, answer, patience(), 2), Outcome::failed);
    EXPECT_EQ(client.call(request, answer, patience(), 3), Outcome::dropped);
    EXPECT_EQ(client.call(request, answer, patience(), 4), Outcome::failed);
    EXPECT_EQ(text_of(answer), "in the middle");
    EXPECT_EQ(client.call(request, answer, patience(), 5), Outcome::failed);
    EXPECT_EQ(text_of(answer), "not today");
    EXPECT_EQ(client.call(request, answer, patience(), 6), Outcome::dropped);
    EXPECT_EQ(client.call(request, answer, patience(), 0), Outcome::ok);
    EXPECT_EQ(answer, request);
}

TEST_P(Servers, AreDestroyedByAThreadThatDidNotServe) {
    std::optional<Server> server{Server::listen(unique_address(), options())};
    const connect::Address address = server->address();
    std::thread serving{[&] {
        server->adopt();
        EXPECT_EQ(server->serve(Handler{echo}, patience()), Status::closed);
    }};
    Client client = Client::connect(address, options_of_client(), patience());
    Bytes answer;
    EXPECT_EQ(client.call({}, answer, patience()), Outcome::ok);
    server->stop();
    serving.join();
    server.reset();
    EXPECT_EQ(client.call({}, answer, patience()), Outcome::peer_lost);
}

TEST_P(Servers, BoundTheTextOfAnError) {
    Running running{options(),
                    [](Request& request) { (void)request.fail(std::string(5000, 'x')); }};
    Client client = running.connect();
    Bytes answer;
    EXPECT_EQ(client.call({}, answer, patience()), Outcome::failed);
    EXPECT_EQ(answer.size(), 1000U);
}

TEST_P(Servers, RefuseMoreClientsThanTheirBudgetWithTheReason) {
    ServerOptions chosen = options();
    chosen.max_clients = 2;
    Running running{chosen};
    Client first = running.connect();
    std::optional<Client> second{running.connect()};
    try {
        (void)running.connect();
        FAIL() << "a third client was taken";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::refused);
        EXPECT_NE(std::string{error.what()}.find("2 clients already"), std::string::npos)
            << error.what();
    }
    EXPECT_EQ(second->close(patience()), Status::ok);
    // Its place is free soon.
    const Deadline deadline = patience();
    while (true) {
        try {
            Client third = running.connect();
            Bytes answer;
            EXPECT_EQ(third.call({}, answer, patience()), Outcome::ok);
            break;
        } catch (const base::Error& error) {
            ASSERT_EQ(error.code(), base::ErrorCode::refused) << error.what();
            ASSERT_FALSE(deadline.expired());
        }
    }
}

TEST_P(Servers, AnswerOverloadWithAStatus) {
    ServerOptions chosen = options();
    chosen.max_pending = 3;
    std::vector<Reply> later;
    Running running{chosen, [&](Request& request) { later.push_back(request.defer()); }};
    Client client = running.connect();
    std::uint64_t ids[8];
    for (std::uint64_t& id : ids) ASSERT_EQ(client.submit({}, id), Status::ok);
    for (int i = 0; i < 5; ++i) {
        ASSERT_EQ(client.wait(
                      [&](const Answer& answer) {
                          EXPECT_EQ(answer.outcome, Outcome::overloaded);
                          EXPECT_GE(answer.id, ids[3]);
                      },
                      patience()),
                  Status::ok);
    }
    running.stop();
    EXPECT_EQ(running.server.stats().overloaded, 5U);
    EXPECT_EQ(running.server.stats().pending, 3U);
    for (Reply& reply : later) EXPECT_EQ(reply.answer({}), Status::ok);
    {
        const test::ServingThread<Server> serving{
            running.server, [](Server& its) { return its.serve(echo, Deadline::never()); }};
        for (int i = 0; i < 3; ++i) {
            EXPECT_EQ(
                client.wait([](const Answer& answer) { EXPECT_EQ(answer.outcome, Outcome::ok); },
                            patience()),
                Status::ok);
        }
    }
    EXPECT_EQ(running.server.stats().pending, 0U);
}

TEST_P(Servers, AreNotBlockedByAClientThatDoesNotRead) {
    ServerOptions chosen = options();
    chosen.tuning.max_waiting_bytes = 10'000;
    // Where an answer goes in pieces, whoever loses the processor in the middle of one reads
    // nothing of it for that long, and is not meant.
    chosen.patience = GetParam().has_rings() ? 200ms : 2000ms;
    // A kernel keeps some megabytes for who does not read a socket.
    const std::size_t size = GetParam().has_rings() ? 1000 : 50'000;
    Running running{
        chosen, [size](Request& request) { (void)request.answer(content(0, request.id(), size)); }};
    ClientOptions many;
    many.window = 1000;
    Client deaf = running.connect(many);
    Client other = running.connect();
    std::uint64_t id = 0;
    std::uint64_t submitted = 0;
    Bytes answer;
    // Its requests are taken until too much waits for it, then its ring is full.
    while (deaf.submit(content(1, submitted, 8), id) == Status::ok) ++submitted;
    EXPECT_GT(submitted, 20U);
    for (int i = 0; i < 200; ++i) {
        ASSERT_EQ(other.call({}, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, content(0, static_cast<std::uint64_t>(i) + 1, size));
    }
    // And it is dropped.
    const Deadline deadline = patience();
    const auto is_dropped = [&] {
        if (GetParam().has_rings()) return deaf.submit({}, id) == Status::peer_lost;
        pollfd socket{.fd = deaf.link().socket(), .events = POLLRDHUP, .revents = 0};
        return poll(&socket, 1, 0) == 1 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    };
    while (!is_dropped() && !deadline.expired()) {
        ASSERT_EQ(other.call({}, answer, patience()), Outcome::ok);
        std::this_thread::sleep_for(10ms);
    }
    EXPECT_FALSE(deadline.expired());
    running.stop();
    EXPECT_EQ(running.server.stats().misbehaved, 1U);
    EXPECT_EQ(running.server.stats().clients, 1U);
}

TEST_P(Servers, GoOnWithAClientThatReadsLate) {
    ServerOptions chosen = options();
    chosen.tuning.max_waiting_bytes = 10'000;
    Running running{chosen,
                    [](Request& request) { (void)request.answer(content(0, request.id(), 1000)); }};
    ClientOptions many;
    many.window = 1000;
    many.ring_bytes = 4096;
    Client client = running.connect(many);
    std::uint64_t submitted = 0;
    std::uint64_t id = 0;
    while (submitted < 500 && client.submit(content(1, submitted, 100), id) == Status::ok) {
        ++submitted;
    }
    std::this_thread::sleep_for(5ms);
    std::uint64_t answered = 0;
    while (answered < 500) {
        ASSERT_EQ(
            client.wait(
                [&](const Answer& answer) {
                    ASSERT_TRUE(std::ranges::equal(answer.payload, content(0, answer.id, 1000)));
                    ++answered;
                },
                patience()),
            Status::ok);
        if (submitted == 500) continue;
        // With nothing on its way there is no answer to wait for, but perhaps room.
        const Status status = client.outstanding() == 0
                                  ? client.submit(content(1, submitted, 100), id, patience())
                                  : client.submit(content(1, submitted, 100), id);
        if (status == Status::ok) ++submitted;
    }
}

TEST_P(Servers, AnswerNothingThatIsTooLarge) {
    ServerOptions chosen = options();
    chosen.max_request_bytes = 50'000;
    Running running{chosen, [](Request& request) {
                        (void)request.answer(Bytes(request.payload().size() * 2, std::byte{1}));
                    }};
    ClientOptions small;
    small.max_answer_bytes = 30'000;
    Client client = running.connect(small);
    Bytes answer;
    EXPECT_EQ(client.call(Bytes(50'001), answer, patience()), Outcome::too_large);
    EXPECT_EQ(client.call(Bytes(15'001), answer, patience()), Outcome::too_large);
    EXPECT_EQ(client.call(Bytes(15'000), answer, patience()), Outcome::ok);
    EXPECT_EQ(answer.size(), 30'000U);
}

TEST_P(Servers, EndTheCallsOfAClientThatClosed) {
    Running running{options()};
    Client client = running.connect();
    EXPECT_EQ(client.close(patience()), Status::ok);
    Bytes answer;
    std::uint64_t id = 0;
    EXPECT_EQ(client.call({}, answer, patience()), Outcome::closed);
    EXPECT_EQ(client.submit({}, id), Status::closed);
    EXPECT_EQ(client.poll([](const Answer&) {}), Status::closed);
    EXPECT_EQ(client.reconnect(patience()), Status::closed);
    EXPECT_THROW((void)client.descriptor(), base::Error);
}

TEST_P(Servers, LeaveACallWhoseDeadlineHasPassed) {
    std::vector<Reply> later;
    Running running{options(), [&](Request& request) {
                        if (request.procedure() == 1) {
                            later.push_back(request.defer());
                        } else {
                            echo(request);
                        }
                    }};
    Client client = running.connect();
    Bytes answer;
    EXPECT_EQ(client.call({}, answer, Deadline::now()), Outcome::timed_out);
    EXPECT_EQ(client.stats().requests, 0U);
    // Of whoever loses the processor for that long nothing is sent: once more.
    const Deadline limit = patience();
    while (client.stats().requests == 0) {
        ASSERT_FALSE(limit.expired()) << "none was sent";
        ASSERT_EQ(client.call({}, answer, Deadline::after(10ms), 1), Outcome::timed_out);
    }
    // What comes of it is nobody's.
    for (std::uint64_t number = 0; number < 300; ++number) {
        ASSERT_EQ(client.call(content(1, number, 50), answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, content(1, number, 50));
    }
    EXPECT_EQ(client.outstanding(), 0U);
    EXPECT_EQ(client.stats().unwanted, 1U) << "its answer, cancelled, makes room in the window";
    running.stop();
    EXPECT_EQ(running.server.stats().pending, 0U);
    EXPECT_EQ(later.at(0).answer({}), Status::ok);
}

TEST_P(Servers, ForgetWhatIsCancelled) {
    std::vector<Reply> later;
    Running running{options(), [&](Request& request) { later.push_back(request.defer()); }};
    ClientOptions narrow;
    narrow.window = 2;
    Client client = running.connect(narrow);
    // Far more than its window.
    for (int i = 0; i < 50; ++i) {
        std::uint64_t id = 0;
        const Deadline deadline = patience();
        while (client.submit({}, id) == Status::full) {
            ASSERT_EQ(client.poll([](const Answer&) { FAIL() << "an answer"; }), Status::empty);
            ASSERT_FALSE(deadline.expired());
        }
        EXPECT_TRUE(client.cancel(id));
        EXPECT_FALSE(client.cancel(id));
    }
    EXPECT_FALSE(client.cancel(12345));
    EXPECT_EQ(client.outstanding(), 0U);
}

TEST_P(Servers, KeepAnswersThatComeWhileAnotherIsWaitedFor) {
    Running running{options()};
    Client client = running.connect();
    std::uint64_t ids[3];
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(client.submit(content(5, i, 30), ids[i]), Status::ok);
    }
    Bytes answer;
    ASSERT_EQ(client.call(content(6, 0, 30), answer, patience()), Outcome::ok);
    EXPECT_EQ(answer, content(6, 0, 30));
    EXPECT_EQ(client.outstanding(), 3U);
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(client.poll([&](const Answer& kept) {
            EXPECT_EQ(kept.id, ids[i]);
            EXPECT_TRUE(std::ranges::equal(kept.payload, content(5, i, 30)));
        }),
                  Status::ok);
    }
    EXPECT_EQ(client.poll([](const Answer&) {}), Status::empty);
    EXPECT_EQ(client.wait([](const Answer&) {}, patience()), Status::empty);
}

TEST_P(Servers, HaveRoomAgainWhereAWaitThatAwaitedNoAnswerIsOver) {
    std::vector<Reply> later;
    const auto put_aside = [&](Request& request) { later.push_back(request.defer()); };
    Running running{options()};
    Client client = running.connect({.window = 2});
    running.stop();
    Server& server = running.server;
    const auto nothing = [](const Answer&) { FAIL() << "nothing is awaited"; };
    const auto fill = [&] {
        std::uint64_t ids[2];
        for (std::uint64_t& id : ids) ASSERT_EQ(client.submit(bytes_of("?"), id), Status::ok);
        const Deadline deadline = patience();
        while (server.stats().pending < 2 && !deadline.expired()) {
            (void)client.poll(nothing);
            (void)server.turn(put_aside);
        }
        ASSERT_EQ(server.stats().pending, 2U);
        for (const std::uint64_t id : ids) ASSERT_TRUE(client.cancel(id));
    };
    fill();
    EXPECT_EQ(client.wait(nothing, patience()), Status::empty) << "nobody has asked for room";
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(bytes_of("?"), id), Status::full);
    ASSERT_EQ(client.outstanding(), 0U);
    EXPECT_EQ(client.wait(nothing, Deadline::now()), Status::timed_out);
    const Deadline deadline = patience();
    while (client.wait(nothing, Deadline::now()) == Status::timed_out && !deadline.expired()) {
        (void)server.turn(put_aside);
    }
    EXPECT_EQ(client.submit(bytes_of("?"), id), Status::ok);
}

TEST_P(Servers, HandOutAnAnswerThatCameWhileAnotherWasAwaited) {
    Running running{options()};
    for (const base::WaitPolicy& wait :
         {base::WaitPolicy{}, base::WaitPolicy::polling(), base::WaitPolicy::blocking()}) {
        Client client = running.connect({.wait = wait});
        std::uint64_t ids[3];
        for (std::uint64_t i = 0; i < 3; ++i) {
            ASSERT_EQ(client.submit(content(7, i, 30), ids[i]), Status::ok);
        }
        for (const std::uint64_t i : {2, 0, 1}) {
            Bytes got;
            const auto take = [&](std::span<const std::byte> answer) {
                got.assign(answer.begin(), answer.end());
            };
            // What is here is not waited for.
            const Deadline deadline = i == 2 ? patience() : Deadline::now();
            ASSERT_EQ(client.answer_to(ids[i], take, deadline), Outcome::ok) << i;
            EXPECT_EQ(got, content(7, i, 30));
        }
        EXPECT_EQ(client.outstanding(), 0U);
    }
}

TEST_P(Servers, TellHandlersWhenAClientStopsWaiting) {
    Running running{options(), [](Request& request) {
                        const auto left = request.deadline().remaining();
                        (void)request.answer(std::as_bytes(std::span{&left, 1}));
                    }};
    Client client = running.connect();
    const auto call = [&](const Deadline& deadline) {
        Bytes answer;
        EXPECT_EQ(client.call({}, answer, deadline), Outcome::ok);
        std::chrono::nanoseconds left{};
        std::memcpy(&left, answer.data(), sizeof left);
        return left;
    };
    EXPECT_EQ(call(Deadline::never()), std::chrono::nanoseconds::max());
    const auto left = call(Deadline::after(100s));
    EXPECT_GT(left, 10s);
    EXPECT_LE(left, 101s);
}

TEST_P(Servers, TellHandlersOfADeadlineThatPassesWhileTheyHaveTheRequest) {
    // Waits until the deadline has passed, which it does while this goes on.
    Running running{options(), [](Request& request) {
                        const Deadline first = request.deadline();
                        const Deadline end = patience();
                        while (!request.deadline().expired() && !end.expired()) {
                        }
                        const bool is_same = request.deadline().point() - first.point() < 1s;
                        const bool has_passed = request.deadline().expired() && is_same;
                        (void)request.answer(std::as_bytes(std::span{&has_passed, 1}));
                    }};
    Client client = running.connect();
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit({}, id, {.deadline = Deadline::after(20ms)}), Status::ok);
    ASSERT_EQ(client.wait(
                  [](const Answer& answer) {
                      ASSERT_EQ(answer.outcome, Outcome::ok);
                      ASSERT_EQ(answer.payload.size(), 1U);
                      EXPECT_EQ(answer.payload[0], std::byte{1});
                  },
                  patience()),
              Status::ok);
}

TEST_P(Servers, TellHandlersOfADeadlineThatHasPassedWhileTheyPutTheRequestOff) {
    std::optional<base::Clock::time_point> latest;  // that it can be, as it was taken before
    Running running{options(), [&](Request& request) {
                        if (!latest.has_value()) {
                            latest = base::Clock::now() + 100ms;
                            ASSERT_EQ(detail::PuttingOff::put_off(request), Status::ok);
                            return;
                        }
                        if (detail::PuttingOff::put_off_at(request) == 0) {
                            while (base::Clock::now() < *latest) {
                            }
                        } else {
                            // Two clocks are read for it, between which this thread may be away.
                            auto least = base::Clock::time_point::max();
                            for (int i = 0; i < 1000; ++i) {
                                least = std::min(least, request.deadline().point());
                            }
                            EXPECT_LE(least, *latest + 1ms);
                        }
                        (void)request.answer({});
                    }};
    Client client = running.connect();
    std::uint64_t id = 0;
    client.begin_batch();
    ASSERT_EQ(client.submit({}, id, {.deadline = Deadline::after(100ms)}), Status::ok);
    ASSERT_EQ(client.submit({}, id), Status::ok);
    client.end_batch();
    int answered = 0;
    while (client.outstanding() != 0) {
        ASSERT_EQ(client.wait(
                      [&](const Answer& answer) {
                          EXPECT_EQ(answer.outcome, Outcome::ok);
                          ++answered;
                      },
                      patience()),
                  Status::ok);
    }
    EXPECT_EQ(answered, 2);
}

/// Clients of unequal loads who all have asked before their server looks, round by round, each of
/// which lets their requests travel for longer.
class UnequalClients {
  public:
    static constexpr std::uint64_t count = 5;
    static constexpr std::uint64_t load_of(std::uint64_t whose) { return 4 * (whose + 1); }
    static constexpr std::uint64_t requests = 4 + 8 + 12 + 16 + 20;

    explicit UnequalClients(const connect::Address& address)
        : thread_{[this, address] {
              std::vector<Client> clients;
              for (std::uint64_t i = 0; i < count; ++i) {
                  clients.push_back(Client::connect(address, options_of_client(), patience()));
              }
              have_joined_ = true;
              for (std::uint64_t round = 1;; ++round) {
                  while (asked_for_ < round) std::this_thread::yield();
                  if (asked_for_ == over) return;
                  for (std::uint64_t i = 0; i < count; ++i) {
                      std::uint64_t id = 0;
                      for (std::uint64_t k = 0; k < load_of(i); ++k) {
                          ASSERT_EQ(clients[i].submit({}, id), Status::ok) << clients[i].failure();
                      }
                  }
                  asked_ = round;
                  // What a transport lost goes once more only where its client looks.
                  const Deadline deadline = patience();
                  const auto are_answered = [&] {
                      return std::ranges::all_of(
                          clients, [](const Client& client) { return client.outstanding() == 0; });
                  };
                  while (!are_answered() && !deadline.expired()) {
                      for (Client& client : clients) (void)client.poll([](const Answer&) {});
                      std::this_thread::yield();
                  }
                  ASSERT_TRUE(are_answered());
                  answered_ = round;
              }
          }} {}
    UnequalClients(const UnequalClients&) = delete;
    UnequalClients& operator=(const UnequalClients&) = delete;
    ~UnequalClients() {
        asked_for_ = over;
        thread_.join();
    }

    [[nodiscard]] bool have_joined() const { return have_joined_; }
    [[nodiscard]] bool are_answered() const { return answered_ == asked_for_; }
    void ask(std::chrono::milliseconds travel) {
        const std::uint64_t round = ++asked_for_;
        const Deadline deadline = patience();
        while (asked_ != round && !deadline.expired()) std::this_thread::yield();
        ASSERT_EQ(asked_, round);
        std::this_thread::sleep_for(travel);
    }

  private:
    static constexpr std::uint64_t over = ~std::uint64_t{0};
    std::atomic<bool> have_joined_{false};
    std::atomic<std::uint64_t> asked_for_{0};
    std::atomic<std::uint64_t> asked_{0};
    std::atomic<std::uint64_t> answered_{0};
    std::thread thread_;
};

/// Who was served twice while another waited, if all of them had asked before; empty: nobody.
std::string unfairness_of(const std::vector<std::uint32_t>& order) {
    struct Of {
        std::size_t left = 0;
        std::size_t served_before = 0;  ///< the place in the order behind the one it has
    };
    std::map<std::uint32_t, Of> all;
    for (const std::uint32_t place : order) ++all[place].left;
    for (std::size_t i = 0; i < order.size(); ++i) {
        Of& served = all[order[i]];
        for (const auto& [other, its] : all) {
            if (its.left == 0 || its.served_before >= served.served_before) continue;
            return std::to_string(order[i]) + " was served twice while " + std::to_string(other) +
                   " waited, at " + std::to_string(i);
        }
        --served.left;
        served.served_before = i + 1;
    }
    return {};
}

TEST_P(Servers, ServeNobodyTwiceWhileAnotherWaits) {
    std::vector<std::uint32_t> order;
    Server server = Server::listen(unique_address(), options());
    UnequalClients clients{server.address()};
    const auto handler = [&](Request& request) {
        order.push_back(request.client().place);
        echo(request);
    };
    const Deadline deadline = patience();
    while (!clients.have_joined() && !deadline.expired()) (void)server.turn(handler);
    // Nobody can tell when everything is there that was posted, over a link or by a loaded machine.
    // So a round in which something came late proves nothing, and the next one waits longer; where
    // servers are unfair, every round shows it.
    std::string unfairness = "nobody was served";
    for (std::chrono::milliseconds travel = 2ms; !unfairness.empty() && !deadline.expired();
         travel = std::min<std::chrono::milliseconds>(2 * travel, 2s)) {
        order.clear();
        ASSERT_NO_FATAL_FAILURE(clients.ask(travel));
        while (!clients.are_answered() && !deadline.expired()) (void)server.turn(handler, 3);
        ASSERT_EQ(order.size(), UnequalClients::requests);
        unfairness = unfairness_of(order);
    }
    EXPECT_EQ(unfairness, "");
}

TEST_P(Servers, DrainWhatIsUnderWayAndRefuseTheRest) {
    std::mutex mutex;
    std::vector<Reply> later;
    auto running = std::make_unique<Running>(options(), [&](Request& request) {
        const std::lock_guard guard{mutex};
        later.push_back(request.defer());
    });
    Client client = running->connect();
    std::uint64_t before = 0;
    ASSERT_EQ(client.submit({}, before), Status::ok);
    const Deadline deadline = patience();
    while (!deadline.expired()) {
        const std::lock_guard guard{mutex};
        if (!later.empty()) break;
    }
    running->stop();
    EXPECT_EQ(running->server.drain(Deadline::after(1ms)), Status::timed_out);
    std::uint64_t refused = 0;
    ASSERT_EQ(client.submit({}, refused), Status::ok);
    std::thread worker{[&] { EXPECT_EQ(later.at(0).answer(bytes_of("late")), Status::ok); }};
    std::thread stranger{[&] {
        EXPECT_THROW((void)Client::connect(running->server.address(), options_of_client(),
                                           Deadline::after(300ms)),
                     base::Error);
    }};
    std::thread reader{[&] {
        std::map<std::uint64_t, Outcome> outcomes;
        for (int i = 0; i < 2; ++i) {
            ASSERT_EQ(
                client.wait([&](const Answer& answer) { outcomes[answer.id] = answer.outcome; },
                            patience()),
                Status::ok);
        }
        EXPECT_EQ(outcomes[before], Outcome::ok);
        EXPECT_EQ(outcomes[refused], Outcome::draining);
        Bytes answer;
        Outcome outcome = Outcome::draining;
        while (outcome == Outcome::draining) outcome = client.call({}, answer, patience());
        EXPECT_EQ(outcome, Outcome::closed) << client.failure();
    }};
    worker.join();
    // Until the second request has come, too, which may still have been under way.
    while (!deadline.expired() && (running->server.drain(Deadline::after(400ms)) != Status::ok ||
                                   running->server.stats().answers < 2)) {
    }
    stranger.join();
    EXPECT_EQ(running->server.close(patience()), Status::ok);
    running.reset();
    reader.join();
}

TEST_P(Servers, DrainThoughClientsGoOnAsking) {
    auto running = std::make_unique<Running>(options());
    constexpr std::size_t count = 3;
    std::vector<std::thread> clients;
    for (std::size_t whose = 0; whose < count; ++whose) {
        clients.emplace_back([&, whose] {
            Client client = running->connect();
            if (whose == 1) client.begin_batch();
            // One asks for what is to be READ, where that can be.
            const std::size_t size = whose == 2 ? 20'000 : 20;
            Status status = Status::ok;
            const Deadline deadline = patience();
            while ((status == Status::ok || status == Status::empty) && !deadline.expired()) {
                std::uint64_t id = 0;
                while (client.submit(content(whose, id, size), id) == Status::ok) {
                }
                status = client.poll([](const Answer&) {});
            }
            EXPECT_EQ(status, Status::closed) << client.failure();
        });
    }
    EXPECT_TRUE(eventually([&] {
        const ServerStats stats = running->server.stats();
        return stats.clients == count && stats.requests > 1000;
    }));
    running->stop();
    EXPECT_EQ(running->server.close(patience()), Status::ok);
    for (std::thread& client : clients) client.join();
}

TEST_P(Servers, AnswerWhatCameBetweenTwoDrains) {
    auto running = std::make_unique<Running>(options());
    Client client = running->connect();
    running->stop();
    for (int drains = 0; drains < 3; ++drains) {
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(content(1, 1, 20), id), Status::ok);
        Outcome outcome = Outcome::ok;
        // It may be under way when the first one ends.
        EXPECT_TRUE(eventually([&] {
            EXPECT_EQ(running->server.drain(patience()), Status::ok);
            const auto take = [&](const Answer& answer) { outcome = answer.outcome; };
            return client.poll(take) == Status::ok;
        }));
        EXPECT_EQ(outcome, Outcome::draining);
    }
}

TEST_P(Servers, ServeClientsThatTakeShortAnswersOnly) {
    Running running{options()};
    ClientOptions chosen;
    chosen.max_answer_bytes = 8;
    Client client = running.connect(chosen);
    Bytes answer;
    EXPECT_EQ(client.call(content(1, 1, 8), answer, patience()), Outcome::ok);
    EXPECT_EQ(client.call(content(1, 2, 9), answer, patience()), Outcome::too_large);
}

TEST_P(Servers, LetRepliesOutliveThem) {
    std::vector<Reply> later;
    {
        Running running{options(), [&](Request& request) { later.push_back(request.defer()); }};
        Client client = running.connect();
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit({}, id), Status::ok);
        ASSERT_EQ(client.submit({}, id), Status::ok);
        const Deadline deadline = patience();
        while (!deadline.expired()) {
            running.stop();
            if (later.size() == 2) break;
            (void)running.server.serve([&](Request& request) { later.push_back(request.defer()); },
                                       Deadline::after(1ms));
        }
    }
    ASSERT_EQ(later.size(), 2U);
    EXPECT_EQ(later[0].answer({}), Status::closed);
}

TEST_P(Servers, TellNewClientsOfAPlaceFromFormerOnes) {
    std::mutex mutex;
    std::vector<Reply> later;
    std::vector<ClientId> who;
    Running running{options(), [&](Request& request) {
                        const std::lock_guard guard{mutex};
                        who.push_back(request.client());
                        if (later.empty()) {
                            later.push_back(request.defer());
                        } else {
                            echo(request);
                        }
                    }};
    const Deadline deadline = patience();
    {
        Client former = running.connect();
        std::uint64_t id = 0;
        ASSERT_EQ(former.submit({}, id), Status::ok);
        while (!deadline.expired()) {
            const std::lock_guard guard{mutex};
            if (!later.empty()) break;
        }
    }
    Bytes answer;
    while (!deadline.expired()) {
        Client next = running.connect();
        ASSERT_EQ(next.call(content(2, 1, 20), answer, patience()), Outcome::ok);
        if (who.back().place == who.front().place) {
            EXPECT_NE(who.back().generation, who.front().generation);
            // Its number is the same, and its client is not.
            std::uint64_t id = 0;
            EXPECT_EQ(later.at(0).answer(bytes_of("for another one")), Status::ok);
            ASSERT_EQ(next.submit(content(2, 2, 20), id), Status::ok);
            ASSERT_EQ(next.wait(
                          [&](const Answer& its) {
                              EXPECT_EQ(its.id, id);
                              EXPECT_TRUE(std::ranges::equal(its.payload, content(2, 2, 20)));
                          },
                          patience()),
                      Status::ok);
            EXPECT_EQ(next.poll([](const Answer&) {}), Status::empty);
            return;
        }
    }
    FAIL() << "the place was never free";
}

TEST_P(Servers, WorkInAHubByTheirDescriptor) {
    Server server = Server::listen(unique_address(), options());
    const connect::Address address = server.address();
    connect::Hub hub;
    hub.add(server.descriptor(), [&] { (void)server.turn(echo); });
    std::thread crowd{[&] {
        std::vector<Client> clients;
        for (int i = 0; i < 3; ++i) {
            clients.push_back(Client::connect(address, options_of_client(), patience()));
        }
        for (unsigned round = 0; round < 5; ++round) {
            for (unsigned i = 0; i < 3; ++i) talk(clients[i], i, 50, 100, round);
            std::this_thread::sleep_for(2ms);
        }
        for (Client& client : clients) EXPECT_EQ(client.close(patience()), Status::ok);
        hub.stop();
    }};
    EXPECT_EQ(hub.run(patience()), Status::closed);
    crowd.join();
    EXPECT_EQ(server.stats().requests, 3U * 5 * 50);
}

TEST_P(Servers, AreQuietInALoopBesideIdleClients) {
    Server server = Server::listen(unique_address(), options());
    const int descriptor = server.descriptor();
    std::atomic<int> step{0};
    const auto reach = [&](int which) {
        step = which;
        step.notify_all();
    };
    std::thread other{[&] {
        Client client = Client::connect(server.address(), options_of_client(), patience());
        reach(1);
        step.wait(1);
        Bytes answer;
        EXPECT_EQ(client.call(content(1, 1, 64), answer, patience()), Outcome::ok);
        reach(3);
        step.wait(3);
    }};
    while (step < 1) (void)server.turn(echo);
    ASSERT_TRUE(test::goes_quiet(descriptor, [&] { (void)server.turn(echo); }));
    reach(2);
    const Deadline deadline = patience();
    while (step < 3 && !deadline.expired()) {
        ASSERT_TRUE(test::becomes_readable(descriptor, 20'000ms));
        (void)server.turn(echo);
    }
    ASSERT_TRUE(test::goes_quiet(descriptor, [&] { (void)server.turn(echo); }));
    reach(4);
    other.join();
}

TEST_P(Servers, AreQuietInALoopBesideAClientThatWaitsForADeferredAnswer) {
    Server server = Server::listen(unique_address(), options());
    std::vector<Reply> later;
    const auto turn = [&] {
        (void)server.turn([&](Request& request) { later.push_back(request.defer()); });
    };
    Client client = join_in_turns(
        server, [&] { return Client::connect(server.address(), options_of_client(), patience()); });
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(content(1, 1, 64), id), Status::ok);
    const Deadline deadline = patience();
    while (later.empty() && !deadline.expired()) turn();
    ASSERT_EQ(later.size(), 1U);
    Bytes answer;
    const auto poll = [&] {
        (void)client.poll(
            [&](const Answer& its) { answer.assign(its.payload.begin(), its.payload.end()); });
    };
    EXPECT_TRUE(test::both_go_quiet(client.descriptor(), poll, server.descriptor(), turn));
    // The answer wakes the one, and then the other.
    EXPECT_EQ(later.front().answer(content(1, 1, 64)), Status::ok);
    const Deadline until = patience();
    while (answer.empty() && !until.expired()) {
        if (test::is_readable(server.descriptor())) turn();
        if (test::is_readable(client.descriptor())) poll();
    }
    EXPECT_EQ(answer, content(1, 1, 64));
}

TEST_P(Servers, ServeClientsInALoop) {
    Running running{options()};
    Client client = running.connect();
    const int descriptor = client.descriptor();
    const std::uint64_t requests = repetitions(2000);
    std::uint64_t answered = 0;
    std::uint64_t sent = 0;
    while (answered < requests) {
        while (sent < requests) {
            std::uint64_t id = 0;
            if (client.submit(content(1, sent + 1, 100), id) != Status::ok) break;
            ASSERT_EQ(id, ++sent);
        }
        ASSERT_TRUE(test::becomes_readable(descriptor, 20'000ms));
        while (client.poll([&](const Answer& answer) {
            ASSERT_TRUE(std::ranges::equal(answer.payload, content(1, answer.id, 100)));
            ++answered;
        }) == Status::ok) {
        }
    }
    ASSERT_TRUE(test::goes_quiet(descriptor, [&] { (void)client.poll([](const Answer&) {}); }));
}

TEST_P(Servers, RefuseCallsOfAnotherThreadThatMaySleep) {
    Server server = Server::listen(unique_address(), options());
    std::thread other{[&] { EXPECT_THROW((void)server.turn(echo), base::Error); }};
    other.join();
    EXPECT_EQ(server.turn(echo), 0U);
}

TEST_P(Servers, GoOnWhereACallOfAnotherThreadWasRefused) {
    Running running{options()};
    Client client = running.connect();
    running.stop();
    Server& server = running.server;
    server.stop();
    std::thread other{[&] {
        EXPECT_THROW((void)server.drain(patience()), base::Error);
        EXPECT_THROW((void)server.close(patience()), base::Error);
        EXPECT_THROW((void)server.serve(echo, Deadline::now()), base::Error);
        EXPECT_THROW((void)server.rest(Deadline::now()), base::Error);
    }};
    other.join();
    EXPECT_EQ(server.serve(echo, patience()), Status::closed) << "it was stopped";
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(bytes_of("still there?"), id), Status::ok);
    Outcome outcome = Outcome::dropped;
    const auto take = [&](const Answer& answer) { outcome = answer.outcome; };
    const Deadline deadline = patience();
    while (client.poll(take) == Status::empty && !deadline.expired()) (void)server.turn(echo);
    EXPECT_EQ(outcome, Outcome::ok) << "it does not drain";
}

TEST_P(Servers, GoOnWithAClientWhoseCloseByAnotherThreadWasRefused) {
    std::vector<Reply> later;
    const auto keep = [&](Request& request) { later.push_back(request.defer()); };
    Server server = Server::listen(unique_address(), options());
    Client client = join_in_turns(
        server, [&] { return Client::connect(server.address(), options_of_client(), patience()); });
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(bytes_of("?"), id), Status::ok);
    const Deadline deadline = patience();
    while (later.empty() && !deadline.expired()) (void)server.turn(keep);
    ASSERT_EQ(later.size(), 1U);
    Status status = Status::empty;
    Bytes got;
    // Nothing here opens a descriptor but a wait that has fallen asleep: by it it can be cancelled.
    const base::Cancellation never;
    const std::size_t descriptors = test::open_descriptors();
    std::atomic<bool> is_over{false};
    std::thread waiting{[&] {
        status = client.wait(
            [&](const Answer& answer) { got.assign(answer.payload.begin(), answer.payload.end()); },
            patience().cancelled_by(never));
        is_over = true;
    }};
    EXPECT_TRUE(eventually([&] { return test::open_descriptors() > descriptors; }));
    try {
        (void)client.close(patience());
        ADD_FAILURE() << "another thread waits in it";
    } catch (const base::Error& error) {
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument) << error.what();
    }
    EXPECT_EQ(later.front().answer(bytes_of("!")), Status::ok);
    while (!is_over) (void)server.turn(echo);
    waiting.join();
    EXPECT_EQ(status, Status::ok);
    EXPECT_EQ(text_of(got), "!");
    EXPECT_EQ(client.outstanding(), 0U);
    ASSERT_EQ(client.submit(bytes_of("?"), id), Status::ok) << "it is open";
}

TEST(ServerOptions, AreRefusedOutsideTheirRanges) {
    const auto code_of = [](const ServerOptions& options) {
        try {
            (void)Server::listen(unique_address(), options);
        } catch (const base::Error& error) {
            return error.code();
        }
        return base::ErrorCode::system;
    };
    EXPECT_EQ(code_of({.max_clients = 0}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.max_clients = 70'000}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.ring_bytes = 100}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.tuning = {.max_window = 0}}), base::ErrorCode::invalid_argument);
    EXPECT_EQ(code_of({.tuning = {.max_window = 5000}}), base::ErrorCode::invalid_argument);
    EXPECT_THROW((void)Client::connect(unique_address(), {.window = 0}, patience()), base::Error);
}

TEST(ServerPolling, IsChosenByTheBudgetOfClientsAndExplained) {
    const auto explained = [](std::uint32_t clients) {
        ServerOptions options;
        options.max_clients = clients;
        return Server::listen(unique_address(), options).explain();
    };
    EXPECT_NE(explained(4).find("polling: flag, because it may have 4 clients"), std::string::npos);
    EXPECT_NE(explained(4000).find("polling: dense, because it may have 4000 clients"),
              std::string::npos);
}

TEST(ServerPolling, ScansByTheKernelThatWasChosen) {
    for (const ScanKernel kernel : every_scan_kernel) {
        ServerOptions options;
        options.polling = Polling::dense;
        options.tuning.scan = kernel;
        const connect::Address address = unique_address();
        if (!is_available(kernel)) {
            EXPECT_THROW((void)Server::listen(address, options), base::Error) << name_of(kernel);
            continue;
        }
        EXPECT_NE(Server::listen(address, options)
                      .explain()
                      .find("scanned by " + std::string{name_of(kernel)}),
                  std::string::npos);
    }
}

TEST(ServerPolling, IsChosenByWhatWillCarryItsMessages) {
    // Between the two figures from which bytes are cheaper: by store, and by post.
    const auto explained = [](ring::Carrier carrier) {
        ServerOptions options;
        options.max_clients = 300;
        options.tuning.carrier = carrier;
        options.endpoint = connect::Endpoint::open("soft0");
        return Server::listen(unique_address(), options).explain();
    };
    const auto dense = testing::HasSubstr("polling: dense, because it may have 300 clients");
    const auto flag = testing::HasSubstr("polling: flag, because it may have 300 clients");
    {
        const millrace::test::SettingScope mode{"MILLRACE_SOFT_MODE", "fast"};
        {
            const millrace::test::SettingScope carrier{"MILLRACE_CARRIER", "automatic"};
            EXPECT_THAT(explained(ring::Carrier::automatic), dense);
            EXPECT_THAT(explained(ring::Carrier::post), flag);
        }
        const millrace::test::SettingScope carrier{"MILLRACE_CARRIER", "post"};
        EXPECT_THAT(explained(ring::Carrier::automatic), flag);
        EXPECT_THAT(explained(ring::Carrier::store), dense);
    }
    const millrace::test::SettingScope carrier{"MILLRACE_CARRIER", "automatic"};
    for (const char* setting :
         {"shaped:10g,latency=1us", "strict:seed=7", "faulty:seed=3,loss=0.1%"}) {
        const millrace::test::SettingScope mode{"MILLRACE_SOFT_MODE", setting};
        EXPECT_THAT(explained(ring::Carrier::automatic), flag) << setting;
    }
}

TEST(ServerStrangers, AreToldWhatTheyTalkTo) {
    Running running;
    try {
        (void)message::connect(running.server.address(), ChannelOptions{}, Deadline::after(5s));
        FAIL() << "a plain channel was taken";
    } catch (const base::Error& error) {
        EXPECT_NE(std::string{error.what()}.find("message server"), std::string::npos)
            << error.what();
    }
}

TEST(Client, NamesTheMistakeOfASecondThreadInIt) {
    if (test::sees_races) GTEST_SKIP() << "two threads race in it";
    std::vector<Reply> later;
    Running running{{}, [&](Request& request) { later.push_back(request.defer()); }};
    Client client = running.connect();
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(bytes_of("?"), id), Status::ok);
    const auto told = test::told_to_two_threads(
        [&](const Deadline& deadline) { (void)client.wait([](const Answer&) {}, deadline); });
    ASSERT_TRUE(told.has_value());
    EXPECT_NE(std::string{told->what()}.find("a call of another thread is under way in it"),
              std::string::npos)
        << told->what();
    running.stop();
}

}  // namespace
}  // namespace millrace::message
