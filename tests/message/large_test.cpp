// Messages that stay with their sender until the receiver has READ them: whole, once and to the
// right caller among small ones, which they do not hold up; cancelled, resumed, killed, lied about.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lane/rendezvous.hpp"
#include "message/hostile.hpp"
#include "message/serving.hpp"
#include "millrace/message/dispatcher.hpp"
#include "support/child_process.hpp"
#include "support/extent.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::ChildProcess;
using test::repetitions;
using namespace std::chrono_literals;

constexpr std::size_t a_megabyte = std::size_t{1} << 20;

/// Echoes; a request of procedure 1 says how many bytes it wants.
void serve_sizes(Request& request) {
    if (request.procedure() != 1) return echo(request);
    std::uint64_t size = 0;
    std::memcpy(&size, request.payload().data(), sizeof size);
    (void)request.answer(content(0, size, size));
}
std::span<const std::byte> bytes_in(const std::uint64_t& number) {
    return std::as_bytes(std::span{&number, 1});
}

class LargeMessagesOf : public ByEveryWay {
  protected:
    /// A client of a server that this thread serves.
    static Client join(Server& server, ClientOptions options = {}) {
        return join_in_turns(server, [&] {
            return Client::connect(server.address(), options_of_client(std::move(options)),
                                   patience());
        });
    }
};
INSTANTIATE_TEST_SUITE_P(Every, LargeMessagesOf, testing::ValuesIn(every_ring_way),
                         [](const auto& way) { return name_of(way.param); });

/// What a peer lies about, or leaves undone, is the same by whatever announcements come.
class LargeMessagesOfLiars : public LargeMessagesOf {};
INSTANTIATE_TEST_SUITE_P(Some, LargeMessagesOfLiars,
                         testing::Values(Way{Polling::flag},
                                         Way{Polling::dense, Transfer::send, Transfer::send}),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(LargeMessagesOf, AreAnsweredWholeAndOnceAmongSmallOnes) {
    Running running{options()};
    const std::uint64_t requests = repetitions(240);
    std::thread other{[&] {
        Client client = running.connect();
        talk(client, 2, requests, 60'000, 5);
        EXPECT_GT(client.stats().large, requests);
    }};
    ClientOptions resumes;
    resumes.resumes = true;
    Client client = running.connect(resumes);
    talk(client, 1, requests, 60'000, 3);
    EXPECT_GT(client.stats().large, requests);
    EXPECT_EQ(client.close(patience()), Status::ok);
    other.join();
    running.stop();
    EXPECT_EQ(running.server.stats().requests, 2 * requests);
    EXPECT_EQ(running.server.stats().misbehaved, 0U);
    EXPECT_GT(running.server.stats().large, 2 * requests);
}

TEST_P(LargeMessagesOf, GoThroughTheSmallestRings) {
    InSmallestRings small{options()};
    Client& client = small.client;
    for (std::size_t size = 0; size <= 200'000; size = size * 2 + 17) {
        const Bytes request = content(1, size, size);
        ASSERT_NO_FATAL_FAILURE(small.expect_echo(request));
        ASSERT_EQ(
            client.call(
                size, [&](std::span<std::byte> room) { std::ranges::copy(request, room.begin()); },
                [&](std::span<const std::byte> bytes) {
                    EXPECT_TRUE(std::ranges::equal(bytes, request)) << size;
                },
                patience()),
            Outcome::ok)
            << client.failure();
    }
    EXPECT_GT(client.stats().large, 20U);
}

TEST_P(LargeMessagesOf, AreOvertakenBySmallOnesUnlessTheyKeepTheirOrder) {
    for (const bool keeps_order : {false, true}) {
        Server server = Server::listen(unique_address(), options());
        ClientOptions chosen;
        chosen.tuning.large.keeps_order = keeps_order;
        Client client = join(server, chosen);
        std::vector<std::size_t> served;
        const auto serve = [&](Request& request) {
            served.push_back(request.payload().size());
            echo(request);
        };
        const std::map<std::size_t, Bytes> sent{{a_megabyte, content(1, 1, a_megabyte)},
                                                {100, content(1, 2, 100)},
                                                {101, content(1, 3, 101)}};
        std::uint64_t id = 0;
        for (const std::size_t size : {a_megabyte, std::size_t{100}, std::size_t{101}}) {
            ASSERT_EQ(client.submit(sent.at(size), id), Status::ok);
        }
        std::vector<std::size_t> answered;
        const Deadline deadline = patience();
        while (answered.size() != 3 && !deadline.expired()) {
            (void)server.turn(serve);
            (void)client.poll([&](const Answer& answer) {
                answered.push_back(answer.payload.size());
                EXPECT_TRUE(std::ranges::equal(answer.payload, sent.at(answer.payload.size())));
            });
        }
        // It takes several turns to READ it, and one to find the next one in the ring.
        const std::vector<std::size_t> in_order{a_megabyte, 100, 101};
        const std::vector<std::size_t> overtaking{100, 101, a_megabyte};
        EXPECT_EQ(served, keeps_order ? in_order : overtaking);
        // Answers have no order.
        EXPECT_EQ(answered, overtaking);
    }
}

TEST_P(LargeMessagesOf, AreReadNoFurtherWhenTheyAreCancelled) {
    Server server = Server::listen(unique_address(), options());
    Client client = join(server);
    std::uint64_t executed = 0;
    const auto serve = [&](Request& request) {
        ++executed;
        echo(request);
    };
    for (std::uint64_t round = 1; round <= 12; ++round) {
        std::uint64_t given_up = 0;
        ASSERT_EQ(client.submit(content(1, round, a_megabyte), given_up), Status::ok);
        // Announced, and some of it READ; never all.
        for (std::uint64_t turns = round % 4; turns != 0; --turns) (void)server.turn(serve);
        ASSERT_TRUE(client.cancel(given_up));
        // Its memory is not yet for the next one.
        const Bytes next = content(2, round, 300'000);
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(next, id), Status::ok);
        const Deadline deadline = patience();
        Status status = Status::empty;
        while (status == Status::empty && !deadline.expired()) {
            (void)server.turn(serve);
            status = client.poll([&](const Answer& answer) {
                EXPECT_EQ(answer.id, id);
                EXPECT_TRUE(std::ranges::equal(answer.payload, next));
            });
        }
        ASSERT_EQ(status, Status::ok);
        EXPECT_EQ(executed, round);
        EXPECT_EQ(client.stats().unwanted, round);
        EXPECT_EQ(client.outstanding(), 0U);
    }
}

TEST_P(LargeMessagesOf, TravelInPiecesWhereNotBothEndsAllowOtherwise) {
    enum class Who : std::uint8_t { client, server, budget };
    for (const Who refuses : {Who::client, Who::server, Who::budget}) {
        ServerOptions chosen = options();
        ClientOptions client_options;
        if (refuses == Who::client) client_options.tuning.large.allowed = false;
        if (refuses == Who::server) chosen.tuning.large.allowed = false;
        if (refuses == Who::budget) {
            chosen.admission.budget.registered_bytes = std::uint64_t{64} << 20;
        }
        Running running{chosen};
        Client client = running.connect(client_options);
        Bytes answer;
        const Bytes request = content(1, 1, 100'000);
        ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok) << client.failure();
        EXPECT_EQ(answer, request);
        EXPECT_EQ(client.stats().large, 0U);
        EXPECT_NE(client.explain().find("large messages: in pieces"), std::string::npos);
    }
}

TEST_P(LargeMessagesOf, AreSentAsEachEndChooses) {
    ServerOptions chosen = options();
    chosen.tuning.large.longer_than = 1000;
    Running running{chosen, serve_sizes};
    ClientOptions client_options;
    client_options.tuning.large.longer_than = LargeMessages::never;
    Client client = running.connect(client_options);
    Bytes answer;
    std::uint64_t large = 0;
    for (const std::uint64_t size : {8U, 1000U, 1001U, 50'000U}) {
        ASSERT_EQ(client.call(bytes_in(size), answer, patience(), 1), Outcome::ok);
        EXPECT_EQ(answer, content(0, size, size));
        large += size > 1000 ? 1 : 0;
        EXPECT_EQ(client.stats().large, large) << size;
    }
    const Bytes request = content(1, 1, 50'000);
    ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok);
    EXPECT_EQ(answer, request);
    EXPECT_EQ(client.stats().large, large + 1) << "the answer alone";
    EXPECT_NE(client.explain().find("this end announces none"), std::string::npos);
}

TEST_P(LargeMessagesOf, GoInPiecesBeyondWhatMayLieThere) {
    ServerOptions chosen = options();
    chosen.tuning.large.max_bytes = 150'000;
    Server server = Server::listen(unique_address(), chosen);
    ClientOptions client_options;
    client_options.tuning.large.max_bytes = 150'000;
    Client client = join(server, client_options);
    std::map<std::uint64_t, Bytes> open;
    std::uint64_t id = 0;
    // The second finds no room beside the first; a single one has no limit but its own.
    for (const std::size_t size : {200'000U, 100'000U}) {
        const Bytes request = content(1, size, size);
        ASSERT_EQ(client.submit(request, id), Status::ok);
        open.emplace(id, request);
    }
    EXPECT_EQ(client.stats().large, 1U);
    const Deadline deadline = patience();
    while (!open.empty() && !deadline.expired()) {
        (void)server.turn(echo);
        (void)client.poll([&](const Answer& answer) {
            EXPECT_TRUE(std::ranges::equal(answer.payload, open.at(answer.id)));
            open.erase(answer.id);
        });
    }
    EXPECT_TRUE(open.empty());
}

TEST_P(LargeMessagesOf, GoOnWhileTheirServerRests) {
    for (const bool in_pieces : {true, false}) {
        ServerOptions chosen = options();
        chosen.tuning.large.allowed = !in_pieces;
        Server server = Server::listen(unique_address(), chosen);
        Client client = join(server);
        const std::uint64_t size = 200'000;
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(bytes_in(size), id, {.procedure = 1}), Status::ok);
        const Deadline deadline = patience();
        while (server.turn(serve_sizes) == 0 && !deadline.expired()) {
        }
        while (server.turn(serve_sizes) != 0 && !deadline.expired()) {
        }
        std::atomic<bool> has_ended{false};
        std::thread reading{[&] {
            while (!has_ended && !deadline.expired()) (void)client.poll([](const Answer&) {});
        }};
        // No message comes: what has found room ends it, or what was READ.
        EXPECT_EQ(server.rest(deadline), Status::ok) << in_pieces;
        has_ended = true;
        reading.join();
    }
}

TEST_P(LargeMessagesOf, OfAServerWaitUntilThereIsMemoryForThem) {
    ServerOptions chosen = options();
    chosen.tuning.large.max_bytes = 150'000;
    Server server = Server::listen(unique_address(), chosen);
    Client client = join(server);
    // Each but the first finds the one before it there.
    constexpr std::uint64_t answers = 5;
    std::uint64_t id = 0;
    for (std::uint64_t i = 0; i < answers; ++i) {
        const std::uint64_t size = 100'000 + i;
        ASSERT_EQ(client.submit(bytes_in(size), id, {.procedure = 1}), Status::ok)
            << client.failure();
    }
    while (server.turn(serve_sizes) != 0) {
    }
    EXPECT_EQ(server.stats().answers, answers);
    EXPECT_EQ(server.stats().large, 1U);
    std::uint64_t answered = 0;
    const Deadline deadline = patience();
    while (answered != answers && !deadline.expired()) {
        (void)server.turn(serve_sizes);
        (void)client.poll([&](const Answer& answer) {
            const std::uint64_t size = 100'000 + answered;
            EXPECT_TRUE(std::ranges::equal(answer.payload, content(0, size, size)));
            ++answered;
        });
    }
    EXPECT_EQ(answered, answers);
    EXPECT_EQ(client.stats().large, answers);
}

TEST_P(LargeMessagesOf, WakeWhoSleeps) {
    ServerOptions chosen = options();
    chosen.wait = base::WaitPolicy::blocking();
    Running running{chosen};
    ClientOptions client_options;
    client_options.wait = base::WaitPolicy::blocking();
    Client client = running.connect(client_options);
    Bytes answer;
    for (std::uint64_t number = 0; number < repetitions(20); ++number) {
        const Bytes request = content(1, number, 100'000 + number * 10'000);
        ASSERT_EQ(client.call(request, answer, patience()), Outcome::ok) << client.failure();
        ASSERT_EQ(answer, request);
    }
}

TEST_P(LargeMessagesOf, ArriveInLoops) {
    ServerOptions chosen = options();
    chosen.wait.spin = 0ns;
    Server server = Server::listen(unique_address(), chosen);
    std::atomic<bool> ends{false};
    std::thread serving{[&] {
        server.adopt();
        pollfd readable{.fd = server.descriptor(), .events = POLLIN, .revents = 0};
        while (!ends) {
            if (poll(&readable, 1, 20) != 0) (void)server.turn(echo);
        }
    }};
    {
        ClientOptions client_options = options_of_client();
        client_options.wait.spin = 0ns;
        Client client = Client::connect(server.address(), client_options, patience());
        pollfd readable{.fd = client.descriptor(), .events = POLLIN, .revents = 0};
        for (std::uint64_t number = 0; number < repetitions(20); ++number) {
            const Bytes request = content(1, number, 100'000 + number * 10'000);
            std::uint64_t id = 0;
            ASSERT_EQ(client.submit(request, id), Status::ok);
            Status status = Status::empty;
            const Deadline deadline = patience();
            while (status == Status::empty && !deadline.expired()) {
                ASSERT_EQ(poll(&readable, 1, 40'000), 1);
                status = client.poll([&](const Answer& answer) {
                    EXPECT_TRUE(std::ranges::equal(answer.payload, request));
                });
            }
            ASSERT_EQ(status, Status::ok);
        }
    }
    ends = true;
    serving.join();
    server.adopt();
}

TEST_P(LargeMessagesOf, AreReadBeforeEitherEndCloses) {
    Running running{options(), serve_sizes};
    {
        // A request whose client closes at once.
        Client client = running.connect();
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(content(1, 1, 3 * a_megabyte), id), Status::ok);
        EXPECT_EQ(client.close(patience()), Status::ok);
        const Deadline deadline = patience();
        while (running.server.stats().left == 0 && !deadline.expired()) {
            std::this_thread::sleep_for(1ms);
        }
    }
    // An answer whose server does.
    Client client = running.connect();
    std::uint64_t id = 0;
    const std::uint64_t size = 3 * a_megabyte;
    ASSERT_EQ(client.submit(bytes_in(size), id, {.procedure = 1}), Status::ok);
    const Deadline deadline = patience();
    while (running.server.stats().answers != 1 + 1 && !deadline.expired()) {
        std::this_thread::sleep_for(1ms);
    }
    running.stop();
    EXPECT_EQ(running.server.stats().requests, 2U);
    std::thread closing{[&] {
        running.server.adopt();
        EXPECT_EQ(running.server.close(patience()), Status::ok);
    }};
    EXPECT_EQ(client.wait(
                  [&](const Answer& answer) {
                      EXPECT_EQ(answer.outcome, Outcome::ok);
                      EXPECT_TRUE(std::ranges::equal(answer.payload, content(0, size, size)));
                  },
                  patience()),
              Status::ok);
    closing.join();
    running.server.adopt();
}

TEST_P(LargeMessagesOfLiars, DropWhoDoesNotReadThem) {
    ServerOptions chosen = options();
    chosen.patience = 200ms;
    Running running{chosen, serve_sizes};
    Client other = running.connect();
    Hostile deaf{running.server};
    (void)deaf.join(true);
    // More than half of its ring.
    const std::uint64_t size = 300'000;
    deaf.send({.id = 1, .procedure = 1}, bytes_in(size));
    Bytes answer;
    const Deadline deadline = patience();
    while (running.server.stats().misbehaved == 0 && !deadline.expired()) {
        ASSERT_EQ(other.call({}, answer, patience()), Outcome::ok);
    }
    EXPECT_TRUE(deaf.is_dismissed());
    running.stop();
    EXPECT_EQ(running.server.stats().misbehaved, 1U);
}

TEST_P(LargeMessagesOfLiars, EndTheirConnectionAlone) {
    ServerOptions chosen = options();
    chosen.max_request_bytes = a_megabyte;
    Running running{chosen, serve_sizes};
    Client other = running.connect();
    const auto announce = [](Hostile& it, std::uint64_t id, const Announcement& where) {
        it.send({.id = id, .kind = SessionKind::request_by_read}, pack(where));
    };
    using Deed = std::function<void(Hostile&)>;
    const Deed deeds[] = {
        [&](Hostile& it) {  // memory of nobody
            announce(it, 1, {.address = 4096, .rkey = 7, .length = 100'000});
        },
        [&](Hostile& it) {  // beyond the end of what is its own
            verbs::RegisteredBuffer own =
                it.line->link().protection_domain().allocate(4096, verbs::Access::remote_read);
            announce(it, 1,
                     {.address = own.remote().address,
                      .rkey = own.remote().rkey,
                      .length = own.size() + a_megabyte / 2});
            EXPECT_TRUE(it.is_dismissed());
        },
        [&](Hostile& it) {  // what nobody may READ
            verbs::RegisteredBuffer own =
                it.line->link().protection_domain().allocate(200'000, verbs::Access::local_write);
            announce(
                it, 1,
                {.address = own.remote().address, .rkey = own.remote().rkey, .length = 200'000});
            EXPECT_TRUE(it.is_dismissed());
        },
        [&](Hostile& it) { announce(it, 2, {.length = 1}); },
        [&](Hostile& it) { announce(it, 0, {.length = 1}); },
        [&](Hostile& it) {
            it.send({.id = 1, .kind = SessionKind::request_by_read, .behind = 1},
                    pack(Announcement{}));
        },
        [&](Hostile& it) { it.send({.id = 1, .kind = SessionKind::request_by_read}); },
        [&](Hostile& it) {
            it.send({.id = 1, .kind = SessionKind::request_by_read, .outcome = Outcome::failed},
                    pack(Announcement{}));
        },
        [&](Hostile& it) {
            auto bytes = pack(Announcement{});
            bytes[12] = std::byte{2};
            it.send({.id = 1, .kind = SessionKind::request_by_read}, bytes);
        },
        [&](Hostile& it) {
            it.send({.id = 1, .kind = SessionKind::answer_by_read}, pack(Announcement{}));
        },
        [&](Hostile& it) {  // READ, it says, what was never announced
            const std::uint64_t size = 300'000;
            const std::uint64_t word = ring::PositionWord::pack(1000 * ring::PositionWord::unit);
            const ibv_sge slice{reinterpret_cast<std::uint64_t>(&word), sizeof word, 0};
            EXPECT_EQ(
                end_of(it, verbs::Write{.from = {&slice, 1},
                                        .to = it.core().peer_page + offsetof(ControlPage, read),
                                        .flags = verbs::SendFlags::inlined}),
                IBV_WC_SUCCESS);
            it.send({.id = 1, .procedure = 1}, bytes_in(size));
        },
    };
    for (const Deed& deed : deeds) {
        Hostile hostile{running.server};
        (void)hostile.join(true);
        deed(hostile);
        EXPECT_TRUE(hostile.is_dismissed()) << &deed - deeds;
        Bytes answer;
        const Bytes request = content(1, 1, 50'000);
        ASSERT_EQ(other.call(request, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, request);
    }
    // One that is longer than is allowed is told so, and its memory is not looked at.
    Hostile boaster{running.server};
    (void)boaster.join(true);
    announce(boaster, 1, {.address = 4096, .rkey = 7, .length = a_megabyte + 1});
    announce(boaster, 2, {.address = 4096, .rkey = 7, .length = ~std::uint64_t{0}});
    const Deadline deadline = patience();
    for (std::uint64_t told = 0; told != 2 && !deadline.expired();) {
        std::span<const std::byte> message;
        if (boaster.line.look(message) != Status::ok) continue;
        SessionHeader header;
        std::span<const std::byte> payload;
        ASSERT_TRUE(parse(message, header, payload));
        EXPECT_EQ(header.id, ++told);
        EXPECT_EQ(header.outcome, Outcome::too_large);
        boaster.line.pass();
    }
    EXPECT_FALSE(deadline.expired());
}

// A server spun for its patience, while what lay behind hid that nothing of it could come.
TEST_P(LargeMessagesOfLiars, AreNotWaitedForThoughMoreLiesBehindThem) {
    ServerOptions chosen = options();
    chosen.max_request_bytes = a_megabyte;
    chosen.patience = std::chrono::hours{1};
    Running running{chosen, serve_sizes};
    Hostile hostile{running.server};
    (void)hostile.join(true);
    hostile.send(
        {.id = 1, .kind = SessionKind::request_by_read},
        pack(Announcement{.address = 4096, .rkey = 7, .is_in_order = true, .length = 100'000}));
    hostile.send({.id = 2, .procedure = 1}, bytes_in(8));
    EXPECT_TRUE(hostile.is_dismissed());
}

TEST_P(LargeMessagesOf, AreExecutedOnceWhenChannelsBreak) {
    std::mutex mutex;
    std::multiset<std::uint64_t> executed;
    ServerOptions keeps = options();
    keeps.tuning.max_kept_bytes = 16 * a_megabyte;
    Running running{keeps, [&](Request& request) {
                        std::uint64_t number = 0;
                        std::memcpy(&number, request.payload().data() + 8, sizeof number);
                        {
                            const std::lock_guard guard{mutex};
                            executed.insert(number);
                        }
                        echo(request);
                    }};
    ClientOptions chosen = resuming();
    chosen.window = 8;
    Breakable breakable{running.server.address(), chosen};
    const std::uint64_t requests = std::max<std::uint64_t>(repetitions(60), 28);
    std::map<std::uint64_t, Bytes> open;
    std::uint64_t sent = 0;
    std::uint64_t answered = 0;
    // Nobody may have noticed the first breaks before all was answered.
    const auto goes_on = [&] { return sent < requests || breakable.client.stats().resumed == 0; };
    while (answered != sent || goes_on()) {
        while (goes_on()) {
            Bytes request = content(1, sent, sent % 3 == 0 ? 200 : 200'000 + sent);
            std::uint64_t id = 0;
            if (breakable.client.submit(request, id) != Status::ok) break;
            open.emplace(id, std::move(request));
            ++sent;
            if (sent % 7 == 0) breakable.cut();
        }
        const Status status = breakable.client.wait(
            [&](const Answer& answer) {
                ASSERT_EQ(answer.outcome, Outcome::ok);
                ASSERT_EQ(open.count(answer.id), 1U);
                ASSERT_TRUE(std::ranges::equal(answer.payload, open.at(answer.id)));
                open.erase(answer.id);
                ++answered;
            },
            patience());
        ASSERT_TRUE(status == Status::ok || (status == Status::empty && open.empty()))
            << name_of(status) << breakable.client.failure();
    }
    EXPECT_EQ(executed.size(), sent);
    EXPECT_EQ(std::set(executed.begin(), executed.end()).size(), sent);
}

/// address, way: asks for ever, with large requests
MILLRACE_CHILD(client_with_large_requests) {
    chosen_way() = way_named(arguments.at(1));
    Client client =
        Client::connect(connect::Address::parse(arguments.at(0)), options_of_client(), patience());
    const Bytes request = content(1, 1, 2 * a_megabyte);
    std::uint64_t id = 0;
    while (true) {
        while (client.submit(request, id) == Status::ok) {
        }
        if (client.wait([](const Answer&) {}, patience()) != Status::ok) return 1;
    }
}

TEST_P(LargeMessagesOf, OfKilledClientsEndWithThem) {
    Server server = Server::listen(unique_address(), options());
    Client steady = join(server);
    for (std::uint64_t round = 0; round < 2; ++round) {
        ChildProcess victim = ChildProcess::start(
            "client_with_large_requests", {server.address().to_string(), name_of(chosen_way())});
        const std::uint64_t before = server.stats().requests;
        const Deadline deadline = patience();
        while (server.stats().requests < before + 3 && !deadline.expired()) (void)server.turn(echo);
        victim.kill_and_wait();
        while (server.stats().clients != 1 && !deadline.expired()) (void)server.turn(echo);
        ASSERT_FALSE(deadline.expired());
        std::uint64_t id = 0;
        const Bytes request = content(1, round, 100'000);
        ASSERT_EQ(steady.submit(request, id), Status::ok);
        Status status = Status::empty;
        while (status == Status::empty && !deadline.expired()) {
            (void)server.turn(echo);
            status = steady.poll([&](const Answer& answer) {
                EXPECT_TRUE(std::ranges::equal(answer.payload, request));
            });
        }
        ASSERT_EQ(status, Status::ok);
    }
}

/// way: serves until it is killed
MILLRACE_CHILD(server_of_large_answers) {
    Running running{options_of_server(way_named(arguments.at(0))), serve_sizes,
                    connect::Address::parse("127.0.0.1:0")};
    test::say(running.server.address().to_string());
    (void)test::hear();
    return 0;
}

TEST_P(LargeMessagesOf, OfAKilledServerEndAllCalls) {
    ChildProcess child = ChildProcess::start("server_of_large_answers", {name_of(GetParam())});
    const auto address = connect::Address::parse(child.read_line().value_or("nowhere"));
    Client client = Client::connect(address, options_of_client(), patience());
    const std::uint64_t size = 4 * a_megabyte;
    std::uint64_t id = 0;
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(client.submit(bytes_in(size), id, {.procedure = 1}), Status::ok);
        ASSERT_EQ(client.submit(content(1, 1, a_megabyte), id), Status::ok);
    }
    // Somewhere in the middle of them.
    ASSERT_EQ(client.wait([](const Answer&) {}, patience()), Status::ok);
    child.kill_and_wait();
    Status status = Status::ok;
    while (status == Status::ok) status = client.wait([](const Answer&) {}, patience());
    EXPECT_TRUE(status == Status::peer_lost || status == Status::empty) << name_of(status);
}

TEST_P(LargeMessagesOf, GoThroughADispatcher) {
    Running running{options()};
    Dispatcher dispatcher = Dispatcher::connect(std::array{running.server.address()},
                                                {.client = options_of_client()}, patience());
    std::jthread thread{[&] {
        dispatcher.adopt();
        (void)dispatcher.run(Deadline::never());
    }};
    Port port = dispatcher.port();
    Bytes answer;
    for (std::uint64_t number = 0; number < repetitions(20); ++number) {
        const Bytes request = content(1, number, number % 2 == 0 ? 50 : 150'000);
        ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, request);
    }
    dispatcher.stop();
}

TEST(MemoryOfLargeMessages, IsUsedAgainAndGivenBackWhenItIsNot) {
    constexpr std::size_t most = std::size_t{256} << 10;
    MemoryPool pool{connect::Endpoint::shared(), verbs::Access::local_write, most};
    verbs::RegisteredBuffer first = pool.take(100'000);
    ASSERT_GE(first.size(), 100'000U);
    const std::byte* const place = first.data();
    pool.give_back(std::move(first));
    verbs::RegisteredBuffer small = pool.take(1000);
    EXPECT_NE(small.data(), place) << "that is for large ones";
    verbs::RegisteredBuffer second = pool.take(99'000);
    EXPECT_EQ(second.data(), place);
    // No more is kept than was said.
    pool.give_back(pool.take(2 * most));
    EXPECT_TRUE(pool.empty());
    pool.give_back(std::move(second));
    const auto now = base::Clock::now();
    pool.tidy(now);
    EXPECT_FALSE(pool.empty());
    pool.tidy(now + 10s);
    EXPECT_TRUE(pool.empty());
}

TEST(MemoryOfLargeMessages, IsNotTakenWhereThereIsNone) {
    MemoryPool pool{connect::Endpoint::shared(), verbs::Access::local_write, a_megabyte};
    EXPECT_EQ(pool.take(std::size_t{1} << 50).size(), 0U);
}

}  // namespace
}  // namespace millrace::message
