// How calls travel: every design by its name and by what it posts, the choice of one by a profile,
// and clients of many threads on one connection.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "millrace/message/client.hpp"
#include "millrace/rpc/profile.hpp"
#include "rpc/serving.hpp"
#include "support/counted_posts.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::rpc {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

constexpr Design by_dispatcher{.connection = Connection::dispatcher};

TEST(DesignNames, AreReadAsTheyAreWritten) {
    std::set<std::string> names;
    for (const Design design : every_design) {
        EXPECT_EQ(parse_design(to_string(design)), design);
        names.insert(to_string(design));
    }
    EXPECT_EQ(names.size(), 8U);
    EXPECT_EQ(to_string(Design{}), "write/write/own");
    EXPECT_THROW((void)parse_design("write/read/own"), base::Error);
    EXPECT_FALSE(is_studied(by_dispatcher, 1));
    EXPECT_TRUE(is_studied(by_dispatcher, 8));
}

/// A design is a value of a template.
template <Design D>
constexpr bool is_by_write = D.request == Transfer::write && D.response == Transfer::write;
static_assert(is_by_write<Design{}> && !is_by_write<Design{.response = Transfer::send}>);

class EveryDesign : public testing::TestWithParam<std::tuple<Design, message::Polling>> {};
INSTANTIATE_TEST_SUITE_P(Designs, EveryDesign,
                         testing::Combine(testing::ValuesIn(every_design),
                                          testing::Values(message::Polling::flag,
                                                          message::Polling::dense)),
                         [](const auto& each) {
                             std::string name = to_string(std::get<0>(each.param));
                             std::replace(name.begin(), name.end(), '/', '_');
                             return name + "_" + std::string{name_of(std::get<1>(each.param))};
                         });

/// Whether bytes of a WRITE land in order, as the device of this test says.
bool lands_in_order(const connect::Address& server) {
    message::Client client =
        message::Client::connect(server, {.tuning = {.service = server_service}}, patience());
    return client.link().writes_in_order();
}

TEST_P(EveryDesign, PostsWhatItSaysForEachCall) {
    const auto [design, polling] = GetParam();
    test::CountedEndpoint at_server;
    test::CountedEndpoint at_client;
    ServerOptions server_options;
    server_options.messages.endpoint = at_server.endpoint;
    server_options.messages.tuning.carrier = ring::Carrier::post;
    server_options.messages.polling = polling;
    Running running{server_options, add_procedures};
    const bool in_order = lands_in_order(running.server.address());
    Dispatching dispatching;
    ClientOptions options;
    options.design = design;
    options.dispatcher = dispatching.dispatcher;
    options.messages.endpoint = at_client.endpoint;
    options.messages.tuning.carrier = ring::Carrier::post;
    Client client = running.connect<Add>(options);
    // From here on all is this thread's: who sleeps announces that by a WRITE, and is woken by one.
    running.stop();
    dispatching.stop();
    const auto call = [&](std::uint64_t number) {
        bool is_answered = false;
        const auto turn = [&] {
            (void)dispatching.dispatcher->turn();
            (void)running.server.turn();
            (void)client.poll();
        };
        const auto take = [&](const Result<Sum>& sum) { is_answered = sum && sum->who == number; };
        Status status = Status::full;  // until credit is there
        for (const auto deadline = patience(); status == Status::full && !deadline.expired();) {
            status = client.submit<Add>({number, 1}, take, Deadline::never());
            if (status == Status::full) turn();
        }
        ASSERT_EQ(status, Status::ok);
        for (const auto deadline = patience(); !is_answered && !deadline.expired();) turn();
        ASSERT_TRUE(is_answered);
    };
    call(0);
    at_server.posts.clear();
    at_client.posts.clear();
    constexpr std::uint64_t calls = 400;
    for (std::uint64_t i = 1; i <= calls; ++i) call(i);
    const Posts posts = posts_of(design, in_order, polling == message::Polling::dense);
    // Credit, skips at the end of a ring, and questions about room.
    constexpr std::uint64_t now_and_then = calls / 4;
    const auto about = [](std::uint64_t counted, std::uint64_t each) {
        return counted >= calls * each && counted <= calls * each + now_and_then;
    };
    EXPECT_TRUE(about(at_client.posts.write, posts.client_writes)) << at_client.posts.write;
    EXPECT_TRUE(about(at_client.posts.send, posts.client_sends)) << at_client.posts.send;
    EXPECT_TRUE(about(at_client.posts.receive, posts.client_receives)) << at_client.posts.receive;
    EXPECT_TRUE(about(at_server.posts.write, posts.server_writes)) << at_server.posts.write;
    EXPECT_TRUE(about(at_server.posts.send, posts.server_sends)) << at_server.posts.send;
    EXPECT_TRUE(about(at_server.posts.receive, posts.server_receives)) << at_server.posts.receive;
    const std::string explained = client.explain();
    EXPECT_NE(explained.find("design " + to_string(design) + ", as the program chose"),
              std::string::npos)
        << explained;
    const std::string said = fmt::format("client {} WRITE, {} SEND",
                                         posts.client_sends == 0 ? 1 : 0, posts.client_sends);
    EXPECT_NE(explained.find(said), std::string::npos) << explained;
}

TEST(Designs, ThatCannotBeAreRefused) {
    Running running;
    const auto refused = [&](const ClientOptions& options, const std::string& what) {
        try {
            (void)Client::connect<Add>(running.server.address(), options, patience());
            ADD_FAILURE() << "not refused: " << what;
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
            EXPECT_NE(std::string{error.what()}.find(what), std::string::npos) << error.what();
        }
    };
    ClientOptions without;
    without.design = by_dispatcher;
    refused(without, "there is no dispatcher");
    ClientOptions elsewhere;
    elsewhere.messages.requests = Transfer::send;
    refused(elsewhere, "ClientOptions::design");
    Dispatching dispatching;
    without.dispatcher = dispatching.dispatcher;
    without.messages.resumes = true;
    refused(without, "resumes");
}

// --- the choice by what was measured

constexpr std::string_view measured = R"(# by hand
soft-fast 64 1 write/write/own 1e6 1000 2000
soft-fast 64 1 send/send/own 5e5 900 2500   # quicker, and less of it

soft-fast 64 8 write/write/own 4e6 2000 4000
soft-fast 64 8 write/write/dispatcher 5e6 3000 5000
soft-fast 64 8 send/write/own 3e6 2500 4000
soft-fast 4096 8 write/send/own 2e6 5000 9000
soft-fast 4096 8 write/write/own 1e6 6000 9000
soft-fast 65536 8 send/send/own 1.02e5 9.9e4 2e5
soft-fast 65536 8 write/send/own 1.00e5 1e5 2e5
soft-fast 65536 8 write/write/own 9e4 1.1e5 2e5
)";

TEST(Profiles, AreReadAsTheyAreWritten) {
    const Profile profile = Profile::parse(measured, "mine");
    ASSERT_EQ(profile.lines().size(), 10U);
    EXPECT_EQ(profile.lines()[3].design, by_dispatcher);
    EXPECT_EQ(profile.lines()[3].clients, 8U);
    const std::string text = profile.text("who measured it\nand when");
    EXPECT_EQ(text.find("# who measured it\n# and when\n"), 0U) << text;
    const test::TemporaryFolder folder;
    std::ofstream{folder.path("profile")} << text;
    const Profile again = Profile::load(folder.path("profile"));
    EXPECT_TRUE(std::ranges::equal(again.lines(), profile.lines()));
    EXPECT_THROW((void)Profile::load(folder.path("none")), base::Error);
    std::ofstream{folder.path("empty")} << "# nothing was measured\n";
    EXPECT_THROW((void)Profile::load(folder.path("empty")), base::Error);
}

TEST(Profiles, ThatCannotBeReadSayWhere) {
    for (const char* wrong :
         {"soft-fast 64 1 write/write/own 1e6 1000", "soft-fast 64 0 write/write/own 1e6 1000 2000",
          "soft-fast 64 1 write/own 1e6 1000 2000", "soft-fast x 1 write/write/own 1e6 1000 2000",
          "soft-fast 64 1 write/write/own 1e6 1000 2000 more",
          "soft-fast 64 1 write/write/own -1e6 1000 2000"}) {
        try {
            (void)Profile::parse("# head\n" + std::string{wrong} + "\n", "mine");
            ADD_FAILURE() << wrong;
        } catch (const base::Error& error) {
            EXPECT_NE(std::string{error.what()}.find("line 2 of mine"), std::string::npos)
                << error.what();
        }
    }
}

TEST(Profiles, ChooseByTheNearestPoint) {
    const Profile profile = Profile::parse(measured, "mine");
    const auto first = [&](const Automatic& load, bool has_dispatcher = false) {
        return profile.choose("soft-fast", load, has_dispatcher).at(0);
    };
    using Aim = Automatic::Aim;
    EXPECT_EQ(first({.response_bytes = 100}).design, (Design{}));
    EXPECT_EQ(first({.response_bytes = 100, .aim = Aim::latency}).design,
              (Design{Transfer::send, Transfer::send}));
    EXPECT_EQ(first({.response_bytes = 16384, .clients = 40}).design,
              (Design{.response = Transfer::send}));
    EXPECT_EQ(first({.response_bytes = 60'000, .clients = 8}).design,
              (Design{.response = Transfer::send}))
        << "as good as the best, and simpler";
    EXPECT_EQ(first({.response_bytes = 60'000, .clients = 8, .aim = Aim::latency}).design,
              (Design{.response = Transfer::send}));
    EXPECT_EQ(first({.response_bytes = 64, .clients = 6}).design, (Design{}));
    EXPECT_EQ(first({.response_bytes = 64, .clients = 6}, true).design, by_dispatcher);
    EXPECT_EQ(first({.response_bytes = 64, .clients = 1}, true).design, (Design{}))
        << "there is no connection to save";
    const Choice choice = first({.response_bytes = 70, .clients = 9});
    EXPECT_NE(choice.why.find("mine"), std::string::npos) << choice.why;
    EXPECT_NE(choice.why.find("64 B, 8 clients, write/write/own: 4e+06 calls/s"), std::string::npos)
        << choice.why;
    EXPECT_NE(choice.why.find("the next one: soft-fast 64 B, 8 clients, send/write/own"),
              std::string::npos)
        << choice.why;
    const Choice unknown = profile.choose("mlx", {}, true).at(0);
    EXPECT_EQ(unknown.design, (Design{}));
    EXPECT_NE(unknown.why.find("no line of mlx"), std::string::npos) << unknown.why;
}

TEST(Profiles, OfTheLibraryHasEveryDesign) {
    std::set<std::string> designs;
    for (const ProfileLine& line : Profile::built_in().lines()) {
        EXPECT_TRUE(is_studied(line.design, line.clients));
        if (line.device == "soft-fast") designs.insert(to_string(line.design));
    }
    EXPECT_EQ(designs.size(), 8U);
}

TEST(AutomaticDesign, IsWhatTheProfileSaysAndIsExplained) {
    const connect::Address address = unique_address();
    ServerOptions server_options;
    server_options.messages.tuning.answers_by_send = false;
    Running running{server_options, add_procedures, address};
    auto endpoint = connect::Endpoint::shared();
    const std::string device = device_kind(*endpoint);
    ClientOptions options;
    options.design = Automatic{};
    options.profile = std::make_shared<Profile>(
        Profile::parse(fmt::format("{0} 16 1 send/send/own 3e6 1 1\n{0} 16 1 send/write/own 2e6 1 "
                                   "1\n{0} 4096 1 write/write/own 9e6 1 1\n",
                                   device),
                       "mine"));
    // What a response has is the size of Sum.
    Client client = running.connect<Add>(options);
    EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    const std::string explained = client.explain();
    EXPECT_NE(explained.find("design send/write/own, chosen for answers of 64 B and 1 clients"),
              std::string::npos)
        << explained;
    EXPECT_NE(explained.find("send/send/own was refused"), std::string::npos) << explained;

    options.design = Automatic{.response_bytes = 5000};
    EXPECT_NE(running.connect<Add>(options).explain().find("design write/write/own"),
              std::string::npos);
    ClientOptions by_socket;
    by_socket.design = Automatic{.clients = 8};
    by_socket.messages.transport = connect::Transport::tcp;
    ServerOptions sockets;
    sockets.messages.transports = connect::Transport::tcp;
    Running other{sockets};
    EXPECT_NE(other.connect<Add>(by_socket).explain().find("nothing to choose"), std::string::npos);
    EXPECT_NE(running.connect<Add>({.design = Automatic{.clients = 8}})
                  .explain()
                  .find("chosen for answers of 64 B and 8 clients"),
              std::string::npos);
}

TEST(AutomaticDesign, TakesNoDispatcherForASessionThatResumes) {
    Running running;
    Dispatching dispatching;
    ClientOptions options;
    options.design = Automatic{.clients = 8};
    options.dispatcher = dispatching.dispatcher;
    options.profile = std::make_shared<Profile>(Profile::parse(
        fmt::format("{0} 64 8 write/write/dispatcher 5e6 1 1\n{0} 64 8 write/write/own 1e6 1 1\n",
                    device_kind(*connect::Endpoint::shared())),
        "mine"));
    EXPECT_NE(running.connect<Add>(options).explain().find("design write/write/dispatcher"),
              std::string::npos);
    options.messages.resumes = true;
    Client client = running.connect<Add>(options);
    EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    EXPECT_NE(client.explain().find("design write/write/own"), std::string::npos)
        << client.explain();
}

// --- clients of a dispatcher

ClientOptions posted_by(const Dispatching& dispatching) {
    ClientOptions options;
    options.design = by_dispatcher;
    options.dispatcher = dispatching.dispatcher;
    return options;
}

TEST(SharedConnections, CarryTheCallsOfManyThreads) {
    Running running;
    Dispatching dispatching;
    constexpr std::uint64_t threads = 8;
    std::vector<std::thread> callers;
    for (std::uint64_t whose = 0; whose < threads; ++whose) {
        callers.emplace_back([&, whose] {
            Client client = running.connect<Add>(posted_by(dispatching));
            std::uint64_t answered = 0;
            for (std::uint64_t i = 0; i < 300; ++i) {
                const Result<Sum> one = client.call<Add>({1000 * whose + i, i}, patience());
                ASSERT_TRUE(one) << name_of(one.code());
                EXPECT_EQ(one->who, 1000 * whose + i);
                const auto check = [&, i](const Result<Sum>& sum) {
                    ASSERT_TRUE(sum);
                    EXPECT_EQ(sum->who, 1000 * whose + i);
                    ++answered;
                };
                while (client.submit<Add>({1000 * whose + i, 7}, check, patience()) != Status::ok) {
                    ASSERT_EQ(client.wait(patience()), Status::ok);
                }
            }
            while (client.outstanding() != 0) ASSERT_EQ(client.wait(patience()), Status::ok);
            EXPECT_EQ(answered, 300U);
            EXPECT_EQ(client.close(patience()), Status::ok);
        });
    }
    for (std::thread& each : callers) each.join();
    EXPECT_EQ(running.server.stats().messages.joined, 1U) << "one connection of all of them";
    EXPECT_GE(dispatching.dispatcher->stats().joined, threads);
    EXPECT_NE(running.connect<Add>(posted_by(dispatching)).explain().find("of a dispatcher"),
              std::string::npos);
    dispatching.stop();
    EXPECT_NE(dispatching.dispatcher->explain().find("message dispatcher"), std::string::npos);
}

TEST(SharedConnections, ToAServerThatCameBackServeNoNumberOfTheFormerOne) {
    const connect::Address address = unique_address();
    auto first = std::make_unique<Running>(ServerOptions{}, add_procedures, address);
    Dispatching dispatching;
    std::vector<Client> clients;
    for (int i = 0; i < 4; ++i) clients.push_back(first->connect<Add>(posted_by(dispatching)));
    for (Client& client : clients) EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    first.reset();
    const auto in_another_order = [](Server& server) {
        server.handle<Ping>([](Nothing) { return Nothing{}; });
        server.handle<Add>(sum_of);
    };
    Running second{{}, in_another_order, address};
    for (Client& client : clients) {
        const Result<Sum> sum = client.call<Add>({3, 4}, patience());
        ASSERT_TRUE(sum) << name_of(sum.code()) << client.failure();
        EXPECT_EQ(sum->sum, 7U);
    }
    second.stop();
    EXPECT_EQ(second.server.stats().messages.joined, 1U);
    EXPECT_EQ(second.server.procedures().at(0).calls, 0U) << "no number of the first server";
    EXPECT_EQ(second.server.procedures().at(1).answered, 4U);
}

TEST(SharedConnections, AreOfClientsThatAskForTheSame) {
    Running running;
    Dispatching dispatching;
    std::vector<Client> clients;
    clients.push_back(running.connect<Add>(posted_by(dispatching)));
    ClientOptions named = posted_by(dispatching);
    named.messages.endpoint = connect::Endpoint::shared();
    named.messages.window = 3;
    clients.push_back(running.connect<Add>(named));
    ClientOptions other = posted_by(dispatching);
    other.messages.max_answer_bytes = 4096;
    clients.push_back(running.connect<Add>(other));
    for (Client& client : clients) EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());

    // Not the connection that stands, whatever the server allows.
    ClientOptions resuming = posted_by(dispatching);
    resuming.messages.resumes = true;
    EXPECT_THROW((void)running.connect<Add>(resuming), base::Error);
    ClientOptions by_socket = posted_by(dispatching);
    by_socket.messages.transport = connect::Transport::tcp;
    EXPECT_THROW((void)running.connect<Add>(by_socket), base::Error);
    ClientOptions secret = posted_by(dispatching);
    secret.messages.admission.secret = connect::Secret{"a secret that the server has not"};
    EXPECT_THROW((void)running.connect<Add>(secret), base::Error);
    running.stop();
    EXPECT_EQ(running.server.stats().messages.joined, 2U);
}

TEST(SharedConnections, CountTimeInTheDispatcherOnce) {
    std::mutex mutex;
    std::optional<Deadline> seen;
    Running running{{}, [&](Server& server) {
                        server.handle<Add>([&](const Pair& pair, Call<Add>& call) {
                            const std::lock_guard guard{mutex};
                            seen = call.deadline();
                            (void)call.answer(sum_of(pair));
                        });
                    }};
    const auto dispatcher = std::make_shared<Dispatcher>();
    ClientOptions options;
    options.design = by_dispatcher;
    options.dispatcher = dispatcher;
    std::optional<Client> client;
    {
        test::ServingThread<Dispatcher> thread{
            *dispatcher, [](Dispatcher& its) { return its.run(Deadline::never()); }};
        client.emplace(running.connect<Add>(options));
    }
    const auto deadline = patience();
    bool is_answered = false;
    ASSERT_EQ(client->submit<Add>(
                  {1, 2}, [&](const Result<Sum>& sum) { is_answered = sum.ok(); }, deadline),
              Status::ok);
    std::this_thread::sleep_for(30ms);  // in which nobody dispatches
    while (!is_answered && !deadline.expired()) {
        (void)dispatcher->turn();
        (void)client->poll();
    }
    ASSERT_TRUE(is_answered);
    const std::lock_guard guard{mutex};
    // Never earlier than it is, by whatever it lay.
    EXPECT_GE(seen->point(), deadline.point());
}

TEST(SharedConnections, TellTheServerWhatIsTakenBack) {
    std::mutex mutex;
    std::vector<Reply<Sum>> aside;
    Running running{{}, [&](Server& server) {
                        server.handle<Add>([&](const Pair&, Call<Add>& call) {
                            const std::lock_guard guard{mutex};
                            aside.push_back(call.defer());
                        });
                    }};
    Dispatching dispatching;
    Client client = running.connect<Add>(posted_by(dispatching));
    std::uint64_t id = 0;
    int ends = 0;
    const auto count = [&](const Result<Sum>& sum) {
        // A server that lost the processor for as long says it first.
        EXPECT_TRUE(sum.code() == Code::timed_out || sum.code() == Code::late);
        ++ends;
    };
    ASSERT_EQ(client.submit<Add>(
                  {}, [](const Result<Sum>&) { ADD_FAILURE(); }, patience(), {}, &id),
              Status::ok);
    Status status = Status::timed_out;  // whoever loses the processor that long asks again
    while (status == Status::timed_out) {
        status = client.submit<Add>({}, count, Deadline::after(50ms));
    }
    ASSERT_EQ(status, Status::ok);
    ASSERT_TRUE(client.cancel(id));
    ASSERT_EQ(client.wait(patience()), Status::ok);
    EXPECT_EQ(ends, 1);
    const auto deadline = patience();
    // The one whose time was over may never have reached the handler.
    const auto are_unwanted = [&] {
        const std::lock_guard guard{mutex};
        return std::none_of(aside.begin(), aside.end(),
                            [](const auto& one) { return one.is_wanted(); });
    };
    while (!are_unwanted() && !deadline.expired()) std::this_thread::sleep_for(100us);
    EXPECT_TRUE(are_unwanted());
}

TEST(SharedConnections, EndWithTheirDispatcher) {
    Running running;
    Dispatching dispatching;
    Client client = running.connect<Add>(posted_by(dispatching));
    EXPECT_TRUE(client.call<Add>({1, 2}, patience()).ok());
    dispatching.stop();
    EXPECT_EQ(dispatching.dispatcher->close(patience()), Status::ok);
    EXPECT_EQ(client.call<Add>({1, 2}, patience()).code(), Code::not_sent);
    EXPECT_THROW((void)running.connect<Add>(posted_by(dispatching)), base::Error);
}

}  // namespace
}  // namespace millrace::rpc
