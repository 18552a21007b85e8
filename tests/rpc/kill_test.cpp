// kill -9 of a server, or of a process of clients (and of the dispatcher that they share), at
// random instants, over all designs: whoever survives has an end to each call, others are served
// on, and the next one connects.
//
// MILLRACE_TEST_ROUNDS: victims of each kind and design (default 3). MILLRACE_TEST_SEED: of the
// first round; printed where a round fails.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "rpc/serving.hpp"
#include "support/child_process.hpp"
#include "support/one_processor.hpp"
#include "support/settings.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using test::ChildProcess;

/// The ways that a kill may find otherwise: every design, and receives that all clients share.
const std::vector<Way>& ways_of_kills() {
    static const std::vector<Way> all = [] {
        std::vector<Way> made;
        for (const Design design : every_design) {
            made.push_back({.polling = message::Polling::flag, .design = design});
        }
        made.push_back({.polling = message::Polling::dense,
                        .design = {Transfer::send, Transfer::send, Connection::own},
                        .receives = message::Receives::shared});
        made.push_back({.polling = message::Polling::dense,
                        .design = {Transfer::send, Transfer::write, Connection::dispatcher},
                        .receives = message::Receives::shared});
        return made;
    }();
    return all;
}
Way way_at(const std::string& index) { return ways_of_kills().at(std::stoul(index)); }

std::vector<std::byte> some_bytes(std::uint64_t number, std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<std::byte>((number * 31 + i) * 0x9e3779b1U >> 24);
    }
    return bytes;
}
/// Every size from one piece of a slot to several of a ring.
std::size_t some_size(std::minstd_rand& random) {
    static constexpr std::size_t most[] = {64, 600, 5000, 100'000};
    return random() % most[random() % 4];
}

MILLRACE_CHILD(rpc_killed_server) {
    Server server = Server::listen(connect::Address::parse(arguments[0]),
                                   server_options_of(way_at(arguments[1])));
    add_procedures(server);
    test::say("serving");
    (void)server.serve(Deadline::never());
    return 0;
}

/// Clients in four threads, by a connection each or by the dispatcher of this process. Where all of
/// it has one processor, whoever waits takes the dispatcher's turn, and is killed in it now and
/// then.
MILLRACE_CHILD(rpc_killed_clients) {
    std::optional<test::OnOneProcessor> alone;
    if (arguments[3] == "one processor") alone.emplace();
    const Way way = way_at(arguments[1]);
    std::optional<Dispatching> dispatching;
    const ClientOptions options = [&] {
        ClientOptions made = client_options_of(way, dispatching);
        if (alone.has_value()) made.messages.wait = test::yielding;
        return made;
    }();
    std::atomic<int> connected{0};
    std::atomic<bool> is_wrong{false};
    std::vector<std::jthread> threads;
    for (unsigned whose = 0; whose < 4; ++whose) {
        threads.emplace_back([&, whose] {
            Client client =
                Client::connect<Echo>(connect::Address::parse(arguments[0]), options, patience());
            if (++connected == 4) test::say("connected");
            std::minstd_rand random{static_cast<unsigned>(std::stoul(arguments[2])) + whose};
            for (std::uint64_t number = 0; !is_wrong; ++number) {
                const auto bytes = some_bytes(number + whose, some_size(random));
                const auto answer = client.call<Echo>(bytes, patience());
                if (!answer || *answer != bytes) is_wrong = true;
            }
        });
    }
    threads.clear();
    test::say("wrong");
    return 1;
}

class KillsOf : public testing::TestWithParam<std::size_t> {
  protected:
    [[nodiscard]] static Way way() { return ways_of_kills()[GetParam()]; }
    [[nodiscard]] static std::string index() { return std::to_string(GetParam()); }
    /// `round(seed, random)`, as often as is asked for.
    template <class Round>
    static void rounds(Round&& round) {
        const std::uint64_t count = test::number_from(
            "MILLRACE_TEST_ROUNDS", std::getenv("MILLRACE_TEST_LONG") != nullptr ? 50 : 3);
        const std::uint64_t first = test::number_from("MILLRACE_TEST_SEED", std::random_device{}());
        for (std::uint64_t i = 0; i < count && !HasFailure(); ++i) {
            SCOPED_TRACE("seed " + std::to_string(first + i));
            std::minstd_rand random{static_cast<unsigned>(first + i)};
            round(random);
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Ways, KillsOf, testing::Range(std::size_t{0}, ways_of_kills().size()),
                         [](const auto& each) {
                             return name_of_way({ways_of_kills()[each.param], each.index});
                         });

TEST_P(KillsOf, AServerEndEachCallOnce) {
    rounds([&](std::minstd_rand& random) {
        const connect::Address address = unique_address();
        ChildProcess victim =
            ChildProcess::start("rpc_killed_server", {address.to_string(), index()});
        ASSERT_EQ(victim.read_line(), "serving");
        std::optional<Dispatching> dispatching;
        ClientOptions options = client_options_of(way(), dispatching);
        options.retry.attempts = 1;
        options.reconnects = false;
        Client client = Client::connect<Echo>(address, options, patience());
        std::thread killer{[&, delay = std::chrono::microseconds{random() % 4'000}] {
            std::this_thread::sleep_for(delay);
            victim.kill();
        }};
        std::vector<int> ends;
        ends.reserve(1'000'000);
        std::uint64_t failed = 0;
        bool goes_on = true;
        for (const auto deadline = patience(); goes_on && !deadline.expired();) {
            const std::uint64_t number = ends.size();
            const auto bytes = some_bytes(number, some_size(random));
            ends.push_back(0);
            const Status status = client.submit_or_wait<Echo>(
                bytes,
                [&, number, bytes](const Result<std::vector<std::byte>>& answer) {
                    ++ends[number];
                    if (answer) {
                        EXPECT_TRUE(*answer == bytes);
                    } else {
                        ++failed;
                    }
                },
                patience());
            if (status == Status::ok) {
                (void)client.poll();
            } else {
                ends.pop_back();
                const Status waited = client.wait(patience());
                goes_on =
                    status == Status::full && (waited == Status::ok || waited == Status::empty);
            }
        }
        killer.join();
        while (client.outstanding() != 0) (void)client.wait(patience());
        EXPECT_EQ(ends, std::vector<int>(ends.size(), 1)) << "of so many calls " << ends.size();
        EXPECT_FALSE(goes_on);
        EXPECT_LE(failed, ends.size());
        EXPECT_TRUE(victim.wait().killed_by(SIGKILL));
        // The next one is there, and the same client goes on with it.
        ChildProcess next =
            ChildProcess::start("rpc_killed_server", {address.to_string(), index()});
        ASSERT_EQ(next.read_line(), "serving");
        ASSERT_EQ(client.reconnect(patience()), Status::ok) << client.failure();
        const auto bytes = some_bytes(1, 3000);
        const auto answer = client.call<Echo>(bytes, patience());
        ASSERT_TRUE(answer) << name_of(answer.code());
        EXPECT_TRUE(*answer == bytes);
    });
}

TEST_P(KillsOf, ClientsAndTheirDispatcherLeaveTheOthersServed) {
    Running running{server_options_of(way())};
    std::optional<Dispatching> dispatching;
    Client other = running.connect<Echo>(client_options_of(way(), dispatching));
    const auto bytes = some_bytes(7, 4000);
    rounds([&](std::minstd_rand& random) {
        const bool is_alone = random() % 2 == 0;
        ChildProcess victim =
            ChildProcess::start("rpc_killed_clients", {running.server.address().to_string(),
                                                       index(), std::to_string(random() % 1000),
                                                       is_alone ? "one processor" : "several"});
        ASSERT_EQ(victim.read_line(), "connected");
        const auto until = base::Clock::now() + std::chrono::microseconds{random() % 6'000};
        while (base::Clock::now() < until) {
            const auto answer = other.call<Echo>(bytes, patience());
            ASSERT_TRUE(answer) << name_of(answer.code());
            EXPECT_TRUE(*answer == bytes);
        }
        victim.kill();
        EXPECT_TRUE(victim.wait().killed_by(SIGKILL)) << victim.read_all();
        for (int i = 0; i < 20; ++i) {
            const auto answer = other.call<Echo>(bytes, patience());
            ASSERT_TRUE(answer) << name_of(answer.code());
            EXPECT_TRUE(*answer == bytes);
        }
        // The server learns of it, whatever it was doing for them.
        EXPECT_TRUE(comes_true([&] { return running.server.stats().messages.clients == 1; }));
        // Another one takes its place.
        std::optional<Dispatching> next_dispatching;
        Client next = running.connect<Echo>(client_options_of(way(), next_dispatching));
        EXPECT_TRUE(next.call<Echo>(bytes, patience()).ok());
        EXPECT_EQ(next.close(patience()), Status::ok);
        if (next_dispatching.has_value()) {
            next_dispatching->stop();
            EXPECT_EQ(next_dispatching->dispatcher->close(patience()), Status::ok);
        }
        EXPECT_TRUE(comes_true([&] { return running.server.stats().messages.clients == 1; }));
    });
    running.stop();
    EXPECT_EQ(running.server.procedures().at(1).pending, 0U);
}

}  // namespace
}  // namespace millrace::rpc
