// Dispatchers in want of memory, and calls by them to servers that answer what they like.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/message/dispatcher.hpp"
#include "millrace/message/server.hpp"
#include "millrace/rpc/stream.hpp"
#include "millrace/rpc/table.hpp"
#include "rpc/allocations.hpp"
#include "rpc/serving.hpp"
#include "support/one_processor.hpp"
#include "support/served.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using Bytes = std::vector<std::byte>;

/// Answers with what it is asked.
Status echo(message::Server& server) {
    return server.serve([](message::Request& request) { (void)request.answer(request.payload()); },
                        Deadline::never());
}

TEST(DispatcherWithoutMemory, LosesNobodyWhoWaitsToBeLetIn) {
    auto server = message::Server::listen(unique_address(), {});
    test::ServingThread<message::Server> serving{server, echo};
    std::uint64_t failed = 0;
    for (bool has_failed = true; has_failed;) {
        message::Dispatcher dispatcher =
            message::Dispatcher::connect({}, {.max_servers = 4}, patience());
        std::vector<message::Port> ports;
        ports.push_back(dispatcher.port());
        (void)dispatcher.turn();
        ports.push_back(dispatcher.port());
        ASSERT_EQ(dispatcher.join(server.address(), {}, patience()), 0U);
        ASSERT_EQ(dispatcher.join(server.address(), {}, patience()), 1U);
        ports.push_back(dispatcher.port());
        {
            const FailingAllocation one{failed};
            try {
                (void)dispatcher.turn();
            } catch (const std::bad_alloc&) {
            }
            has_failed = one.has_failed();
        }
        (void)dispatcher.turn();
        EXPECT_EQ(dispatcher.stats().joined, 3U) << failed;
        int stand = 0;
        for (std::uint32_t number = 0; number < 2; ++number) {
            // What the dispatcher could not watch has ended, as its number says.
            if (dispatcher.state_of(number) == Status::ok) ++stand;
            for (message::Port& port : ports) {
                port.to(number);
                std::uint64_t id = 0;
                const Bytes request(30, std::byte{static_cast<unsigned char>(number)});
                const Status submitted = port.submit(request, id);
                ASSERT_EQ(submitted, dispatcher.state_of(number)) << failed;
                if (submitted != Status::ok) continue;
                std::optional<message::Outcome> outcome;
                for (const Deadline deadline = patience();
                     !outcome.has_value() && !deadline.expired();) {
                    (void)dispatcher.turn();
                    (void)port.poll(
                        [&](const message::Answer& answer) { outcome = answer.outcome; });
                }
                EXPECT_EQ(outcome, message::Outcome::ok) << failed;
            }
        }
        EXPECT_GE(stand, 1) << failed;
        EXPECT_EQ(dispatcher.close(patience()), stand == 2 ? Status::ok : Status::peer_lost);
        ++failed;
    }
    EXPECT_GT(failed, 3U) << "none was there to fail";
}

// A port that takes the dispatcher's turn may lack the memory for anybody's answer. It is none of
// its calls that failed: the dispatcher's thread takes the turn again.
TEST(DispatcherWithoutMemory, TakesTheTurnInWhichAPortLackedIt) {
    auto server = message::Server::listen(unique_address(), {});
    test::ServingThread<message::Server> serving{server, echo};
    const test::OnOneProcessor here;  // the dispatcher's thread inherits it
    message::DispatcherOptions options;
    options.wait = test::yielding;
    message::Dispatcher dispatcher =
        message::Dispatcher::connect(std::array{server.address()}, options, patience());
    test::ServingThread<message::Dispatcher> dispatching{
        dispatcher, [](message::Dispatcher& its) { return its.run(Deadline::never()); }};
    const Bytes request(200, std::byte{0x5a});
    int failed = 0;
    std::uint64_t calls = 0;
    for (const Deadline deadline = patience(); failed < 10 && !deadline.expired(); ++calls) {
        // Its places have no memory for an answer yet: who brings the first one allocates.
        message::Port port = dispatcher.port({.window = 4, .wait = test::yielding});
        std::uint64_t id = 0;
        ASSERT_EQ(port.submit(request, id), Status::ok);
        std::optional<message::Outcome> outcome;
        bool is_right = false;
        {
            const FailingAllocation one{0};
            ASSERT_EQ(port.wait(
                          [&](const message::Answer& answer) {
                              outcome = answer.outcome;
                              is_right = std::ranges::equal(answer.payload, request);
                          },
                          patience()),
                      Status::ok);
            if (one.has_failed()) ++failed;
        }
        ASSERT_EQ(outcome, message::Outcome::ok);
        ASSERT_TRUE(is_right);
    }
    EXPECT_GT(failed, 0) << "no port took a turn with an answer";
    dispatching.stop();
    EXPECT_EQ(dispatcher.stats().requests, calls);
    EXPECT_EQ(dispatcher.stats().answers, calls);
}

struct CountRequest {
    std::uint64_t count = 0;
};
struct CountByPort {
    static constexpr std::string_view name = "count";
    using Request = CountRequest;
    using Part = Pair;
};

/// Knows the procedures, and answers what it likes.
class LyingServer {
  public:
    explicit LyingServer(unsigned seed)
        : random_{seed},
          server_{
              message::Server::listen(unique_address(), {.tuning = {.service = server_service}})},
          thread_{server_, [this](message::Server& its) {
                      return its.serve([this](message::Request& request) { lie(request); },
                                       Deadline::never());
                  }} {}
    [[nodiscard]] const connect::Address& address() const { return server_.address(); }
    [[nodiscard]] std::uint64_t told() const { return told_; }

  private:
    [[nodiscard]] static Bytes table() {
        // As a server that keeps to it numbers them.
        auto server = Server::listen(unique_address(), {});
        add_procedures(server);
        server.handle<CountByPort>([](const CountRequest&, Sink<Pair>) {});
        auto reports = server.procedures();
        return write_table(reports, false);
    }
    [[nodiscard]] Bytes noise(std::size_t most) {
        Bytes bytes(random_() % (most + 1));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_() >> 8);
        return bytes;
    }
    void lie(message::Request& request) {
        ++told_;
        const auto number = static_cast<std::uint16_t>(request.procedure() & ~head_bit);
        if (number == table_number || number == report_number) {
            (void)request.answer(table_);
            return;
        }
        switch (random_() % 6) {
            case 0: (void)request.answer({}); break;
            case 1: (void)request.answer(noise(64)); break;
            case 2: (void)request.answer(noise(3000)); break;
            case 3: {
                const Bytes text = noise(1500);
                (void)request.fail({reinterpret_cast<const char*>(text.data()), text.size()});
                break;
            }
            case 4: (void)request.answer(request.payload()); break;
            default: break;  // lets go of it
        }
    }

    std::minstd_rand random_;
    Bytes table_ = table();
    std::atomic<std::uint64_t> told_{0};
    message::Server server_;
    test::ServingThread<message::Server> thread_;
};

ClientOptions shared_by(const Dispatching& dispatching) {
    ClientOptions options;
    options.design = Design{.connection = Connection::dispatcher};
    options.dispatcher = dispatching.dispatcher;
    return options;
}

class SharedByLiars : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, SharedByLiars, testing::Range(1U, 6U));

TEST_P(SharedByLiars, EndEachCallOnceAndServeTheOthers) {
    Running honest;
    LyingServer liar{GetParam()};
    Dispatching dispatching;
    std::vector<std::thread> threads;
    std::atomic<int> lied_to{3};
    for (int whose = 0; whose < 3; ++whose) {
        threads.emplace_back([&] {
            Client client = Client::connect<Add, Echo, Break, Ping>(
                liar.address(), shared_by(dispatching), patience());
            std::uint64_t sent = 0;
            std::uint64_t ended = 0;
            const auto count = [&](const auto&) { ++ended; };
            for (std::uint64_t i = 0; i < 200; ++i) {
                const Bytes bytes(i % 70);
                Status status = Status::ok;
                switch (i % 5) {
                    case 0: status = client.submit<Add>({i, i}, count, patience()); break;
                    case 1: status = client.submit<Echo>(bytes, count, patience()); break;
                    case 2: status = client.submit<Break>("x", count, patience()); break;
                    case 3: status = client.submit<Ping>({}, count, patience()); break;
                    default: (void)client.call<Add>({i, i}, patience()); continue;
                }
                if (status == Status::ok) ++sent;
                if (status == Status::full) {
                    ASSERT_EQ(client.wait(patience()), Status::ok);
                }
            }
            while (client.outstanding() != 0) ASSERT_EQ(client.wait(patience()), Status::ok);
            EXPECT_EQ(ended, sent);
            EXPECT_GT(sent, 50U);
            --lied_to;
        });
    }
    threads.emplace_back([&] {
        Client client = honest.connect<Add>(shared_by(dispatching));
        for (std::uint64_t i = 0; i < 200 || lied_to != 0; ++i) {
            const Result<Sum> sum = client.call<Add>({i, 5}, patience());
            ASSERT_TRUE(sum) << name_of(sum.code());
            ASSERT_EQ(sum->sum, i + 5);
            ASSERT_EQ(sum->who, i);
        }
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(liar.told(), 200U);
}

/// A process that says what it likes, by a dispatcher's connection.
TEST(LiarsByADispatcher, WhoCallWhatIsNoneAreAnsweredAndSoAreTheOthers) {
    Running running;
    auto dispatcher = message::Dispatcher::connect(
        std::vector{running.server.address()}, {.client = {.tuning = {.service = server_service}}},
        patience());
    std::jthread thread{[&] {
        dispatcher.adopt();
        (void)dispatcher.run(Deadline::never());
    }};
    const auto talk = [&](unsigned seed, bool keeps_to_it) {
        message::Port port = dispatcher.port();
        std::minstd_rand random{seed};
        Bytes answer;
        ASSERT_EQ(port.call({}, answer, patience(), table_number), message::Outcome::ok);
        for (std::uint64_t i = 0; i < 400; ++i) {
            if (keeps_to_it) {
                const Pair pair{i, 9};
                ASSERT_EQ(
                    port.call(std::as_bytes(std::span{&pair, 1}), answer, patience(), first_number),
                    message::Outcome::ok);
                Sum sum;
                ASSERT_GE(answer.size(), sizeof sum);
                std::memcpy(&sum, answer.data(), sizeof sum);
                ASSERT_EQ(sum.sum, i + 9);
                continue;
            }
            Bytes request(random() % 200);
            for (std::byte& byte : request) byte = static_cast<std::byte>(random() >> 8);
            const auto procedure = static_cast<std::uint16_t>(
                random() % 2 == 0 ? random()
                                  : (random() % 24) | (random() % 2 == 0 ? head_bit : 0));
            const message::Outcome outcome =
                port.call(request, answer, Deadline::after(2s), procedure);
            ASSERT_TRUE(outcome == message::Outcome::ok || outcome == message::Outcome::failed ||
                        outcome == message::Outcome::dropped ||
                        outcome == message::Outcome::timed_out)
                << name_of(outcome) << " of " << procedure;
        }
    };
    std::vector<std::thread> threads;
    for (unsigned whose = 0; whose < 4; ++whose) threads.emplace_back(talk, whose + 1, whose == 0);
    for (std::thread& one : threads) one.join();
    EXPECT_EQ(dispatcher.state_of(0), Status::ok);
    dispatcher.stop();
}

}  // namespace
}  // namespace millrace::rpc
