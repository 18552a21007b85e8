// Calls for several requests, and for all answers that have come: each is what it would be by
// itself, whatever carries it, and whatever the program's callable does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "message/serving.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;

class SeveralAtATime : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, SeveralAtATime, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });

/// Writes the contents of the numbers from `from` on, of as many bytes as `size_of(number)`.
template <class SizeOf>
auto writing(std::uint64_t from, SizeOf size_of) {
    return [from, size_of](std::size_t index, std::span<std::byte> room) {
        const Bytes bytes = content(1, from + index, size_of(from + index));
        std::copy(bytes.begin(), bytes.end(), room.begin());
        return bytes.size();
    };
}

TEST_P(SeveralAtATime, AreAnsweredOnceEach) {
    Running running{options()};
    ClientOptions chosen;
    chosen.window = 48;
    Client client = running.connect(chosen);
    constexpr std::uint64_t count = 3000;
    constexpr std::size_t longest = 200;
    const auto size_of = [](std::uint64_t number) { return number % (longest + 1); };
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    std::set<std::uint64_t> open;
    const Deadline deadline = patience();
    while (taken != count && !deadline.expired()) {
        std::uint64_t first = 0;
        // Of any number, more than the window now and then.
        const std::size_t wanted = std::min<std::uint64_t>(sent * 7 % 61, count - sent);
        const BatchResult result =
            client.submit_several(wanted, longest, writing(sent, size_of), first);
        ASSERT_EQ(result.status, result.count == wanted ? Status::ok : Status::full)
            << client.failure();
        if (result.count != 0) {
            ASSERT_EQ(first, sent + 1);
        }
        for (std::size_t i = 0; i != result.count; ++i) open.insert(first + i);
        sent += result.count;
        if (wanted == 0 && sent != count) {
            std::uint64_t id = 0;  // one by itself among them
            const std::size_t size = size_of(sent);
            if (client.submit(content(1, sent, size), id) == Status::ok) {
                ASSERT_EQ(id, sent + 1);
                open.insert(id);
                ++sent;
            }
        }
        std::size_t handed_out = 0;
        const BatchResult answers = client.poll_all([&](const Answer& answer) {
            ++handed_out;
            EXPECT_EQ(answer.outcome, Outcome::ok);
            EXPECT_EQ(open.erase(answer.id), 1U) << answer.id;
            EXPECT_TRUE(std::ranges::equal(answer.payload,
                                           content(1, answer.id - 1, size_of(answer.id - 1))));
        });
        ASSERT_EQ(answers.status, Status::empty) << client.failure();
        ASSERT_EQ(answers.count, handed_out);
        taken += answers.count;
        ASSERT_EQ(client.outstanding(), open.size());
    }
    EXPECT_EQ(taken, count);
    EXPECT_EQ(client.stats().answers, count);
    EXPECT_EQ(client.stats().requests, count);
    EXPECT_EQ(client.stats().bytes_sent, client.stats().bytes_received);
    if (GetParam().has_rings()) {
        EXPECT_GT(client.stats().batches, 0U);
        EXPECT_LT(client.stats().batches, count / 2);
    }
    EXPECT_EQ(client.close(patience()), Status::ok);
    running.stop();
    EXPECT_EQ(running.server.stats().requests, count);
    EXPECT_EQ(running.server.stats().answers, count);
}

TEST_P(SeveralAtATime, MayBeAskedForAheadAtAnyTime) {
    Running running{options()};
    std::vector<Client> clients;
    for (int i = 0; i != 9; ++i) clients.push_back(running.connect());
    constexpr std::uint64_t rounds = 40;
    const auto size_of = [](std::uint64_t number) { return number * 29 % 150; };
    std::vector<std::uint64_t> sent(clients.size());
    std::vector<std::uint64_t> taken(clients.size());
    const Deadline deadline = patience();
    while (std::ranges::any_of(taken, [](auto count) { return count != rounds * 8; })) {
        ASSERT_FALSE(deadline.expired());
        for (std::size_t i = 0; i != clients.size(); ++i) {
            prefetch_next(clients, i);
            Client& client = clients[i];
            ASSERT_EQ(
                client
                    .poll_all([&](const Answer& answer) {
                        ++taken[i];
                        clients[(i + 1) % clients.size()].prefetch();  // and in between
                        EXPECT_TRUE(std::ranges::equal(
                            answer.payload, content(1, answer.id - 1, size_of(answer.id - 1))));
                    })
                    .status,
                Status::empty)
                << client.failure();
            if (taken[i] != sent[i] || sent[i] == rounds * 8) continue;
            std::uint64_t first = 0;
            const BatchResult result =
                client.submit_several(std::min<std::uint64_t>(8, rounds * 8 - sent[i]), 150,
                                      writing(sent[i], size_of), first);
            ASSERT_TRUE(result.status == Status::ok || result.status == Status::full);
            sent[i] += result.count;
        }
    }
    Client& client = clients[0];
    EXPECT_EQ(client.close(patience()), Status::ok);
    client.prefetch();
}

TEST_P(SeveralAtATime, GoOnBehindWhatACallableThrew) {
    Running running{options()};
    Client client = running.connect();
    const auto fails_at = [](std::size_t which) {
        return [which](std::size_t index, std::span<std::byte> room) {
            if (index == which) throw std::runtime_error{"not this one"};
            const Bytes bytes = content(1, index, 30);
            std::copy(bytes.begin(), bytes.end(), room.begin());
        };
    };
    std::uint64_t first = 0;
    EXPECT_THROW((void)client.submit_several(9, 30, fails_at(5), first), std::runtime_error);
    EXPECT_EQ(first, 1U);
    EXPECT_EQ(client.outstanding(), 5U);
    EXPECT_THROW((void)client.submit_several(9, 30, fails_at(0), first), std::runtime_error);
    EXPECT_EQ(client.outstanding(), 5U);
    // Each throws the first time.
    std::uint64_t next = 1;
    bool has_thrown = false;
    const Deadline deadline = patience();
    while (next != 6 && !deadline.expired()) {
        try {
            (void)client.poll_all([&](const Answer& answer) {
                EXPECT_EQ(answer.id, next);
                EXPECT_TRUE(std::ranges::equal(answer.payload, content(1, next - 1, 30)));
                has_thrown = !has_thrown;
                if (has_thrown) throw std::runtime_error{"not now"};
                ++next;
            });
        } catch (const std::runtime_error&) {
        }
        EXPECT_EQ(client.outstanding(), 6 - next);
    }
    EXPECT_EQ(next, 6U);
    Bytes answer;
    EXPECT_EQ(client.call(content(1, 9, 30), answer, patience()), Outcome::ok);
    EXPECT_EQ(answer, content(1, 9, 30));
}

// In a session that resumes, and where they are too long for one message.
TEST(SeveralByThemselves, GoAtOnceThoughTheirClientGathers) {
    for (const std::size_t size : {std::size_t{32}, std::size_t{70'000}}) {
        Server server = Server::listen(unique_address(), {});
        ClientOptions chosen;
        chosen.gathers_requests = true;
        chosen.resumes = size < longest_entry;
        chosen.tuning.carrier = ring::Carrier::post;
        Client client = join_in_turns(
            server, [&] { return Client::connect(server.address(), chosen, patience()); });
        std::uint64_t first = 0;
        ASSERT_EQ(
            client.submit_several(2, size, writing(0, [&](std::uint64_t) { return size; }), first)
                .count,
            2U);
        std::size_t served = 0;
        for (const Deadline deadline = patience(); served != 2 && !deadline.expired();) {
            served += server.turn(echo);
        }
        EXPECT_EQ(served, 2U) << size;
    }
}

TEST_P(SeveralAtATime, LeaveOutWhatIsNotWanted) {
    Running running{options()};
    Client client = running.connect();
    client.begin_batch();
    std::uint64_t first = 0;
    const auto thirty = [](std::uint64_t) { return std::size_t{30}; };
    ASSERT_EQ(client.submit_several(20, 30, writing(0, thirty), first).count, 20U);
    const std::set<std::uint64_t> unwanted{first, first + 7, first + 8, first + 19};
    for (const std::uint64_t id : unwanted) EXPECT_TRUE(client.cancel(id));
    client.end_batch();
    std::set<std::uint64_t> seen;
    const Deadline deadline = patience();
    while (client.outstanding() != 0 && !deadline.expired()) {
        (void)client.poll_all([&](const Answer& answer) {
            EXPECT_FALSE(unwanted.contains(answer.id));
            EXPECT_TRUE(seen.insert(answer.id).second);
        });
    }
    EXPECT_EQ(seen.size(), 16U);
    Bytes answer;
    ASSERT_EQ(client.call(content(1, 1, 10), answer, patience()), Outcome::ok);
    EXPECT_EQ(client.stats().unwanted, 4U);
}

TEST_P(SeveralAtATime, SayWhyThereAreNotMore) {
    ServerOptions offered = options();
    offered.max_request_bytes = 5000;
    Running running{offered};
    ClientOptions chosen;
    chosen.window = 8;
    Client client = running.connect(chosen);
    const auto nothing = [](std::size_t, std::span<std::byte>) { return std::size_t{0}; };
    std::uint64_t first = 0;
    BatchResult result = client.submit_several(0, 10, nothing, first);
    EXPECT_EQ(result.status, Status::ok);
    EXPECT_EQ(result.count, 0U);
    result = client.submit_several(3, 5001, nothing, first);
    EXPECT_EQ(result.status, Status::too_large);
    EXPECT_EQ(result.count, 0U);
    result = client.submit_several(20, 10, nothing, first);
    EXPECT_EQ(result.status, Status::full);
    EXPECT_EQ(result.count, 8U);
    const Deadline deadline = patience();
    std::size_t taken = 0;
    while (taken != 8 && !deadline.expired()) {
        taken += client.poll_all([](const Answer& answer) { EXPECT_TRUE(answer.payload.empty()); })
                     .count;
    }
    EXPECT_EQ(taken, 8U);
    EXPECT_EQ(client.close(patience()), Status::ok);
    EXPECT_EQ(client.submit_several(1, 10, nothing, first).status, Status::closed);
    EXPECT_EQ(client.poll_all([](const Answer&) {}).status, Status::closed);
}

TEST_P(SeveralAtATime, AreSentAgainWhereTheSessionIsResumed) {
    std::map<std::uint64_t, int> executed;
    Running running{options(), [&](Request& request) {
                        ++executed[request.id()];
                        (void)request.answer(request.payload());
                    }};
    Breakable one{running.server.address(), resuming()};
    Client& client = one.client;
    const auto thirty = [](std::uint64_t) { return std::size_t{30}; };
    constexpr std::uint64_t count = 200;
    std::uint64_t taken = 0;
    std::uint64_t first = 0;
    std::uint64_t cuts = 0;
    const Deadline deadline = patience();
    // The last answer may come before the first cut is noticed.
    for (std::uint64_t sent = 0;
         (taken != count || client.stats().resumed == 0) && !deadline.expired();) {
        sent += client
                    .submit_several(std::min<std::uint64_t>(20, count - sent), 30,
                                    writing(sent, thirty), first)
                    .count;
        if (sent > cuts * 50) {
            one.cut();
            ++cuts;
        }
        const BatchResult result = client.poll_all([](const Answer& answer) {
            EXPECT_TRUE(std::ranges::equal(answer.payload, content(1, answer.id - 1, 30)));
        });
        taken += result.count;
        if (result.status == Status::peer_lost) {
            ASSERT_EQ(client.reconnect(deadline), Status::ok);
        }
    }
    EXPECT_EQ(taken, count);
    EXPECT_GT(client.stats().resumed, 0U);
    running.stop();
    EXPECT_EQ(executed.size(), count);
    for (const auto& [id, times] : executed) EXPECT_EQ(times, 1) << id;
}

}  // namespace
}  // namespace millrace::message
