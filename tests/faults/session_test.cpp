// Clients that are killed at each operation that they post, over three lives of a session: while
// they connect, ask, lose their connection, come back, and ask again. Their server gathers answers,
// they gather requests. It lives on, keeps nothing of them, executes nothing twice, and serves
// another client meanwhile.
//
// MILLRACE_TEST_SEED: the first operation, default 1. MILLRACE_TEST_ROUNDS: how many, default: all.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "faults/ends.hpp"
#include "millrace/base/error.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"
#include "support/child_process.hpp"
#include "support/settings.hpp"

namespace millrace::faults {
namespace {

using message::Client;
using message::Outcome;
using message::Polling;
using message::Server;
using message::Transfer;
using test::ChildProcess;
using test::hear;
using test::say;

constexpr auto session_budget = 40s;

/// What a server counts that the test asks about.
struct Counts {
    std::uint64_t clients = 0;
    std::uint64_t resumed = 0;
    std::uint64_t misbehaved = 0;
    std::uint64_t twice = 0;  ///< requests that were executed again
};

/// address, polling. Each line that it hears is a question for its counts.
MILLRACE_CHILD(faults_session_server) {
    message::ServerOptions options;
    options.polling = arguments.at(1) == "dense" ? Polling::dense : Polling::flag;
    // So long may a client that lives need to come back.
    options.session_patience = 3s;
    Server server = Server::listen(connect::Address::parse(arguments.at(0)), options);
    std::atomic<std::uint64_t> twice{0};
    std::thread serving{[&] {
        server.adopt();
        std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>> executed;
        (void)server.serve(
            [&](message::Request& request) {
                const message::ClientId who = request.client();
                if (!executed.insert({who.place, who.generation, request.id()}).second) ++twice;
                (void)request.answer(request.payload());
            },
            Deadline::never());
    }};
    say("serves");
    while (hear()) {
        const message::ServerStats stats = server.stats();
        std::ostringstream line;
        line << stats.clients << ' ' << stats.resumed << ' ' << stats.misbehaved << ' ' << twice;
        say(line.str());
    }
    server.stop();
    serving.join();
    server.adopt();
    return 0;
}

/// Submits as many requests as that and takes the answers; false: one was wrong, or none came.
bool ask(Client& client, std::uint64_t& number, std::uint64_t count, std::uint64_t cut_before) {
    std::map<std::uint64_t, Item> open;
    std::uint64_t taken = 0;
    for (std::uint64_t sent = 0; taken != count;) {
        std::uint64_t id = 0;
        while (sent != count) {
            const Item item = Item::make(number);
            if (client.submit(std::as_bytes(std::span{item.words}), id) != Status::ok) break;
            open[id] = item;
            ++number;
            ++sent;
        }
        if (taken == cut_before) {
            (void)shutdown(client.link().socket(), SHUT_RDWR);
            cut_before = count;
        }
        bool is_right = false;
        const Status status = client.wait(
            [&](const message::Answer& answer) {
                const auto found = open.find(answer.id);
                is_right = found != open.end() && answer.outcome == Outcome::ok &&
                           answer.payload.size() == sizeof(Item) &&
                           std::memcmp(answer.payload.data(), &found->second, sizeof(Item)) == 0;
                if (found != open.end()) open.erase(found);
                ++taken;
            },
            Deadline::after(session_budget));
        if (status == Status::empty) continue;
        if (status != Status::ok || !is_right) return false;
    }
    return true;
}

/// address, transfer, lives of its session: 0: for ever, until its input ends; with pauses behind a
/// line of it.
MILLRACE_CHILD(faults_session_client) {
    try {
        const Transfer transfer = arguments.at(1) == "send" ? Transfer::send : Transfer::write;
        message::ClientOptions options;
        options.requests = options.answers = transfer;
        options.resumes = options.gathers_requests = true;
        options.window = 4;
        Client client = Client::connect(connect::Address::parse(arguments.at(0)), options,
                                        Deadline::after(session_budget));
        const std::uint64_t lives = std::stoull(arguments.at(2));
        std::uint64_t number = 0;
        if (lives == 0) {
            std::atomic<bool> is_calm{false};
            std::atomic<bool> is_over{false};
            std::thread listening{[&] {
                while (hear()) is_calm = true;
                is_over = true;
            }};
            bool is_right = true;
            while (is_right && !is_over) {
                is_right = ask(client, number, 8, 8);
                if (number == 8) say("asks");
                if (is_calm) std::this_thread::sleep_for(10ms);
            }
            listening.join();
            return is_right && client.close(Deadline::after(session_budget)) == Status::ok ? 0 : 2;
        }
        for (std::uint64_t life = 0; life != lives; ++life) {
            // Some answers of a life come in the next one.
            const bool is_last = life + 1 == lives;
            if (!ask(client, number, 6, is_last ? 6 : 2)) return 2;
            // A device may be slow to tell of a cut.
            const Deadline deadline = Deadline::after(session_budget);
            while (!is_last && client.stats().resumed == life && !deadline.expired()) {
                (void)client.wait([](const message::Answer&) {}, deadline);
            }
        }
        if (client.close(Deadline::after(session_budget)) != Status::ok) return 3;
        say("resumed " + std::to_string(client.stats().resumed));
        return 0;
    } catch (const base::Error& error) {
        say(error.what());
        return 1;
    }
}

struct SessionWay {
    const char* polling;
    const char* transfer;
};
void PrintTo(const SessionWay& way, std::ostream* out) {
    *out << way.polling << ' ' << way.transfer;
}

class KilledSessions : public testing::TestWithParam<SessionWay> {};
INSTANTIATE_TEST_SUITE_P(Ways, KilledSessions,
                         testing::Values(SessionWay{"flag", "write"}, SessionWay{"dense", "write"},
                                         SessionWay{"flag", "send"}),
                         [](const auto& way) {
                             return std::string{way.param.polling} + "_" + way.param.transfer;
                         });

TEST_P(KilledSessions, LeaveNothingBehindAtWhateverOperationTheyDie) {
    const std::string link =
        "MILLRACE_SOFT_MODE=faulty:10g,latency=1us,loss=0%,duplicate=0%,reorder=0%";
    const std::string address = unique_address();
    ChildProcess server =
        ChildProcess::start("faults_session_server", {address, GetParam().polling}, {link});
    ASSERT_EQ(server.read_line(), "serves");
    const auto counts = [&] {
        Counts now;
        (void)server.write_line("?");
        std::istringstream words{server.read_line().value_or("")};
        words >> now.clients >> now.resumed >> now.misbehaved >> now.twice;
        EXPECT_FALSE(words.fail()) << "the server has died";
        return now;
    };
    ChildProcess steady =
        ChildProcess::start("faults_session_client", {address, GetParam().transfer, "0"}, {link});
    ASSERT_EQ(steady.read_line(), "asks");
    std::uint64_t killed = 0;
    bool is_over = false;
    const std::uint64_t first = test::number_from("MILLRACE_TEST_SEED", 1);
    const std::uint64_t rounds = test::number_from("MILLRACE_TEST_ROUNDS", 1000);
    for (std::uint64_t at = first; !is_over && at != first + rounds; ++at) {
        SCOPED_TRACE("dies at operation " + std::to_string(at));
        ChildProcess client =
            ChildProcess::start("faults_session_client", {address, GetParam().transfer, "3"},
                                {link + ",die=" + std::to_string(at)});
        const auto exit = client.wait(session_budget);
        // It had less to post than that.
        is_over = !exit.killed_by(SIGKILL);
        if (is_over) {
            ASSERT_TRUE(exit.success()) << describe(exit) << ": " << client.read_all();
            EXPECT_EQ(client.read_line(), "resumed 2");
        } else {
            ++killed;
        }
    }
    EXPECT_TRUE(is_over || rounds != 1000);
    EXPECT_GT(killed, rounds < 12 ? 0U : 6U);
    // Sessions end by the server's patience: seconds in which two processors need not be busy.
    ASSERT_TRUE(steady.write_line("calm"));
    const Deadline deadline = Deadline::after(session_budget);
    while (counts().clients != 1 && !deadline.expired()) std::this_thread::sleep_for(1ms);
    const Counts all = counts();
    EXPECT_EQ(all.clients, 1U) << "beside the one that is served still";
    EXPECT_EQ(all.misbehaved, 0U);
    EXPECT_EQ(all.twice, 0U);
    EXPECT_GE(all.resumed, killed / 3) << "at many operations it was in its second life";
    steady.close_input();
    const auto exit = steady.wait(session_budget);
    EXPECT_TRUE(exit.success()) << describe(exit);
    std::printf("killed at %llu operations\n", static_cast<unsigned long long>(killed));
}

}  // namespace
}  // namespace millrace::faults
