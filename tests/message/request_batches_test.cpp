// Several requests in one message, and several answers: each is what it would be by itself,
// whatever carries it, wherever the ring ends, and whatever a peer says of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/channel_core.hpp"
#include "message/hostile.hpp"
#include "message/serving.hpp"
#include "millrace/message/detail/entries.hpp"
#include "millrace/message/detail/put_off.hpp"
#include "support/readable.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

class ServersOfBatches : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServersOfBatches, testing::ValuesIn(every_way),
                         [](const auto& way) { return name_of(way.param); });
class ServersOfBatchesByRing : public ByEveryWay {};
INSTANTIATE_TEST_SUITE_P(Every, ServersOfBatchesByRing, testing::ValuesIn(every_ring_way),
                         [](const auto& way) { return name_of(way.param); });

/// Submits the numbers [from, to) of `whose`, of `size` bytes each, which have room.
std::vector<std::uint64_t> submit_some(Client& client, std::uint64_t whose, std::uint64_t from,
                                       std::uint64_t to, std::size_t size) {
    std::vector<std::uint64_t> ids;
    for (std::uint64_t number = from; number != to; ++number) {
        std::uint64_t id = 0;
        EXPECT_EQ(client.submit(content(whose, number, size), id), Status::ok) << client.failure();
        ids.push_back(id);
    }
    return ids;
}

TEST_P(ServersOfBatches, AnswerEachRequestOnce) {
    Running running{options()};
    constexpr std::uint64_t count = 600;
    std::vector<std::jthread> clients;
    for (std::uint64_t whose = 0; whose < 3; ++whose) {
        clients.emplace_back([&, whose] {
            Client client = running.connect();
            client.begin_batch();
            talk(client, whose, count, 300, static_cast<unsigned>(whose + 1));
            client.end_batch();
            const ClientStats stats = client.stats();
            EXPECT_EQ(stats.answers, count);
            if (!GetParam().has_rings()) {
                EXPECT_EQ(stats.batches, 0U);
            } else {
                EXPECT_GT(stats.batches, 0U);
                EXPECT_LT(stats.batches, count);
            }
            EXPECT_EQ(client.close(patience()), Status::ok);
        });
    }
    clients.clear();
    running.stop();
    EXPECT_EQ(running.server.stats().requests, 3 * count);
    EXPECT_EQ(running.server.stats().misbehaved, 0U);
}

TEST_P(ServersOfBatches, AnswerWhatIsWrittenInPlaceAmongLongOnesAndCalls) {
    const auto in_place = [](Request& request) {
        const std::span<const std::byte> payload = request.payload();
        (void)request.answer(payload.size() + 7, [&](std::span<std::byte> room) {
            std::copy(payload.begin(), payload.end(), room.begin());
            return payload.size();
        });
    };
    Running running{options(), in_place};
    Client client = running.connect();
    client.begin_batch();
    std::map<std::uint64_t, Bytes> open;
    const auto take = [&](const Answer& answer) {
        ASSERT_EQ(answer.outcome, Outcome::ok);
        ASSERT_TRUE(open.contains(answer.id));
        ASSERT_TRUE(std::ranges::equal(answer.payload, open.at(answer.id)));
        open.erase(answer.id);
    };
    for (std::uint64_t number = 0; number < 300; ++number) {
        // Some are longer than a batch may be, some than the ring.
        const std::size_t size =
            number % 50 == 49 ? 40'000 : (number % 20 == 19 ? 5000 : number % 200);
        Bytes request = content(1, number, size);
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(
                      size + 9,
                      [&](std::span<std::byte> room) {
                          std::copy(request.begin(), request.end(), room.begin());
                          return request.size();
                      },
                      id, patience()),
                  Status::ok)
            << client.failure();
        open.emplace(id, std::move(request));
        if (number % 30 == 29) {
            // Its answer comes among others, which are kept.
            Bytes answer;
            ASSERT_EQ(client.call(content(2, number, 33), answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, content(2, number, 33));
        }
        if (number % 10 == 9) {
            ASSERT_EQ(client.wait(take, patience()), Status::ok);
        }
    }
    while (!open.empty()) ASSERT_EQ(client.wait(take, patience()), Status::ok) << open.size();
    EXPECT_EQ(client.wait(take, patience()), Status::empty);
}

TEST_P(ServersOfBatches, GoOnWithASessionWhoseChannelBreaksAmongThem) {
    if (GetParam().transport == connect::Transport::uc ||
        GetParam().transport == connect::Transport::ud) {
        GTEST_SKIP() << "no requests travel in batches there";
    }
    std::map<std::uint64_t, int> executed;
    Running running{options(), [&](Request& request) {
                        ++executed[request.id()];
                        (void)request.answer(request.payload());
                    }};
    Breakable breakable{running.server.address(), resuming()};
    breakable.client.begin_batch();
    talk_while_it_breaks(breakable, 3, 600, 100);
    const std::uint64_t calls = call_until_resumed(breakable, 3);
    running.stop();
    EXPECT_EQ(executed.size(), 600 + calls);
    for (const auto& [id, times] : executed) EXPECT_EQ(times, 1) << id;
}

TEST_P(ServersOfBatches, TellEachCallerWhatBecameOfItsOwn) {
    std::vector<Reply> deferred;
    const auto handler = [&](Request& request) {
        switch (request.procedure() % 6) {
            case 0: (void)request.answer(request.payload()); return;
            case 1: throw std::runtime_error{"this one fails"};
            case 2: deferred.push_back(request.defer()); return;
            case 3: return;  // dropped
            case 4: (void)request.answer(Bytes(200'000)); return;
            default:
                if (detail::PuttingOff::put_off(request) != Status::ok)
                    (void)request.answer(request.payload());
        }
    };
    Server server = Server::listen(unique_address(), options());
    std::optional<Client> joining;
    {
        std::jthread connects{[&] {
            ClientOptions chosen;
            chosen.max_answer_bytes = 100'000;
            joining = Client::connect(server.address(), options_of_client(chosen), patience());
            server.stop();
        }};
        ASSERT_EQ(server.serve(handler, patience()), Status::closed);
    }
    Client& client = *joining;
    client.begin_batch();
    std::map<std::uint64_t, std::uint16_t> open;
    for (std::uint16_t i = 0; i < 24; ++i) {
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(content(1, i, 50), id, {.procedure = i}), Status::ok);
        open[id] = i;
    }
    client.end_batch();
    std::size_t answered = 0;
    const auto take = [&](const Answer& answer) {
        ASSERT_TRUE(open.contains(answer.id));
        const std::uint16_t number = open.at(answer.id);
        static constexpr Outcome outcomes[] = {Outcome::ok,      Outcome::failed,    Outcome::ok,
                                               Outcome::dropped, Outcome::too_large, Outcome::ok};
        EXPECT_EQ(answer.outcome, outcomes[number % 6]) << number;
        if (answer.outcome == Outcome::failed) {
            EXPECT_EQ(text_of(answer.payload), "this one fails");
        } else if (answer.outcome == Outcome::ok) {
            EXPECT_TRUE(std::ranges::equal(answer.payload, content(1, number, 50)));
        }
        open.erase(answer.id);
        ++answered;
    };
    const Deadline deadline = patience();
    while (!open.empty() && !deadline.expired()) {
        (void)server.turn(handler);
        for (Reply& reply : deferred) {
            EXPECT_EQ(reply.answer(content(1, 2, 50)), Status::ok);
        }
        deferred.clear();
        while (client.poll([&](const Answer& answer) {
            if (open.contains(answer.id) && open.at(answer.id) % 6 == 2) {
                EXPECT_EQ(answer.outcome, Outcome::ok);
                open.erase(answer.id);
                ++answered;
            } else {
                take(answer);
            }
        }) == Status::ok) {
        }
    }
    EXPECT_EQ(answered, 24U);
    EXPECT_EQ(server.stats().failed, 4U);
    EXPECT_EQ(server.stats().deferred, 4U);
}

TEST_P(ServersOfBatches, TakeBackRequestsThatWereNotSentYet) {
    Running running{options()};
    Client client = running.connect();
    client.begin_batch();
    const std::vector<std::uint64_t> ids = submit_some(client, 1, 0, 10, 40);
    EXPECT_TRUE(client.cancel(ids[3]));
    EXPECT_TRUE(client.cancel(ids[9]));
    EXPECT_FALSE(client.cancel(ids[3]));
    std::size_t answers = 0;
    while (client.outstanding() != 0) {
        ASSERT_EQ(client.wait(
                      [&](const Answer& answer) {
                          EXPECT_NE(answer.id, ids[3]);
                          EXPECT_NE(answer.id, ids[9]);
                          ++answers;
                      },
                      patience()),
                  Status::ok);
    }
    EXPECT_EQ(answers, 8U);
    // Their places in the window are free again, once the server has answered.
    Bytes answer;
    ASSERT_EQ(client.call(content(1, 1, 10), answer, patience()), Outcome::ok);
    EXPECT_EQ(client.stats().unwanted, 2U);
}

TEST_P(ServersOfBatchesByRing, AreTalkedToThroughTheSmallestRings) {
    InSmallestRings small{options()};
    small.client.begin_batch();
    talk(small.client, 1, 200, 60, 5);
    for (const std::size_t size : {0U, 1U, 8U, 72U, 80U, 96U, 120U, 1000U}) {
        small.expect_echo(content(2, size, size));
    }
}

TEST_P(ServersOfBatchesByRing, GetNoRequestThatIsTooLongForThem) {
    ServerOptions chosen = options();
    chosen.max_request_bytes = 20;
    Running running{chosen};
    Client client = running.connect({.window = 3});
    client.begin_batch();
    std::uint64_t id = 0;
    ASSERT_EQ(client.submit(content(1, 0, 20), id), Status::ok);
    EXPECT_EQ(client.submit(content(1, 0, 21), id), Status::too_large);
    (void)submit_some(client, 1, 1, 3, 20);
    EXPECT_EQ(client.submit(content(1, 3, 20), id), Status::full);
    for (std::uint64_t number = 0; number < 3; ++number) {
        ASSERT_EQ(
            client.wait(
                [&](const Answer& answer) {
                    EXPECT_TRUE(std::ranges::equal(answer.payload, content(1, answer.id - 1, 20)));
                },
                patience()),
            Status::ok);
    }
}

TEST_P(ServersOfBatchesByRing, LayAsManyInAMessageAsFit) {
    if (std::getenv("MILLRACE_SOFT_MODE") != nullptr) {
        GTEST_SKIP() << "room may come late, and a message be cut for it";
    }
    Running running{options()};
    Client client = running.connect({.ring_bytes = 4096, .window = 256});
    client.begin_batch();
    std::uint64_t taken = 0;
    for (std::uint64_t round = 0; round < 40; ++round) {
        (void)submit_some(client, 1, round * 24, (round + 1) * 24, 64);
        while (client.outstanding() != 0) {
            ASSERT_EQ(client.wait(
                          [&](const Answer& answer) {
                              ASSERT_TRUE(std::ranges::equal(answer.payload,
                                                             content(1, answer.id - 1, 64)));
                              ++taken;
                          },
                          patience()),
                      Status::ok);
        }
    }
    EXPECT_EQ(taken, 40U * 24U);
    // A message holds 24 of them, but where the ring ends; by SEND 6.
    const std::uint64_t one = GetParam().requests == Transfer::send ? 4 : 1;
    EXPECT_GE(client.stats().batches, 40 * one);
    EXPECT_LE(client.stats().batches, 40 * one + 20);
    EXPECT_GT(client.stats().batches_received, 0U);
    EXPECT_LT(client.stats().batches_received, 400U);
}

/// A client of a server that turns when it is told to.
struct ByTurns {
    explicit ByTurns(ServerOptions options)
        : server{Server::listen(unique_address(), std::move(options))} {}
    [[nodiscard]] Client connect(std::uint32_t window = 64) {
        return join_in_turns(server, [&] {
            return Client::connect(server.address(), options_of_client({.window = window}),
                                   patience());
        });
    }
    /// Until what was sent has come: so many requests in turns of at most `budget` each.
    std::vector<ClientId> serve(std::size_t requests, std::size_t budget) {
        std::vector<ClientId> served;
        const Deadline deadline = patience();
        while (served.size() < requests && !deadline.expired()) {
            const std::size_t before = served.size();
            const std::size_t turned = server.turn(
                [&](Request& request) {
                    served.push_back(request.client());
                    (void)request.answer(request.payload());
                },
                budget);
            EXPECT_EQ(turned, served.size() - before);
            EXPECT_LE(turned, budget);
        }
        return served;
    }
    Server server;
};

TEST_P(ServersOfBatchesByRing, HaveEachBeginABlockWhereItIsStored) {
    Running running{options()};
    Client client = running.connect({.ring_bytes = 16384, .window = 64});
    const Channel::Core& core = RingLaneInside::core_of(client);
    if (!core.stores) GTEST_SKIP() << "they lie side by side";
    for (std::uint64_t round = 0; round < 20; ++round) {
        client.begin_batch();
        (void)submit_some(client, 1, 0, 16, 40);
        client.end_batch();
        EXPECT_EQ(core.writer.position() % frame_block, 0U) << round;
        while (client.outstanding() != 0) {
            ASSERT_EQ(client.wait([](const Answer&) {}, patience()), Status::ok);
        }
        EXPECT_TRUE(GetParam().answers == Transfer::send ||
                    core.reader.position() % frame_block == 0)
            << round;
    }
}

TEST_P(ServersOfBatchesByRing, LayThemSideBySideInTheOtherHalfOfTheRing) {
    ByTurns turns{options()};
    Client client = turns.connect(256);
    const Channel::Core& core = RingLaneInside::core_of(client);
    if (!core.stores) GTEST_SKIP() << "they lie side by side";
    client.begin_batch();
    // 13 lines each: two begin a block, and behind them lie as many as the rest of the ring holds.
    std::uint64_t id = 0;
    std::uint64_t sent = 0;
    while (client.submit(content(1, sent, 34), id) == Status::ok) ++sent;
    client.end_batch();
    EXPECT_GE(sent, 11U * 16);
    EXPECT_EQ(turns.serve(sent, 1024).size(), sent);
    for (std::uint64_t taken = 0; taken != sent;) {
        (void)turns.server.turn(echo, 1024);
        if (client.poll([&](const Answer& answer) {
                EXPECT_TRUE(std::ranges::equal(answer.payload, content(1, answer.id - 1, 34)));
            }) == Status::ok) {
            ++taken;
        }
    }
}

TEST_P(ServersOfBatchesByRing, TellOfRoomInTheMessagesThemselves) {
    if (std::getenv("MILLRACE_SOFT_MODE") != nullptr) {
        GTEST_SKIP() << "room may come late, and a message be cut for it";
    }
    ByTurns turns{options()};
    Client client = turns.connect();
    const Channel::Core& core = RingLaneInside::core_of(client);
    if (GetParam().requests == Transfer::send || GetParam().answers == Transfer::send) {
        GTEST_SKIP() << "credits are for receives there";
    }
    const auto round = [&](std::uint64_t first) {
        client.begin_batch();
        (void)submit_some(client, 1, first, first + 16, 64);
        client.end_batch();
        EXPECT_EQ(turns.serve(16, 1024).size(), 16U);
        while (client.outstanding() != 0) {
            ASSERT_EQ(client.wait([](const Answer&) {}, patience()), Status::ok);
        }
    };
    round(0);
    const std::uint64_t told_here = core.page().credit.load();
    const std::uint64_t told_there = core.credit.sent();
    const std::uint64_t full = core.figures.stats().full;
    // Many times round both rings.
    const std::uint64_t begin = core.writer.position();
    for (std::uint64_t i = 1; i != 100; ++i) round(16 * i);
    EXPECT_GT(core.writer.position() - begin, 4 * core.writer.size());
    EXPECT_EQ(core.page().credit.load(), told_here);
    EXPECT_EQ(core.credit.sent(), told_there);
    EXPECT_EQ(core.figures.stats().full, full);
    // Nor are there questions, but those whose completions tell what the device is done with.
    EXPECT_TRUE(!core.stores || core.pull.posted() == 0);
}

// A credit's word says 32 bits of a position: one that stood for long would be taken for a lie, and
// then for news.
TEST_P(ServersOfBatchesByRing, TellOfRoomByACreditAsWellNowAndThen) {
    if (std::getenv("MILLRACE_SOFT_MODE") != nullptr) GTEST_SKIP() << "a GiB takes long there";
    ByTurns turns{options()};
    Client client = turns.connect();
    const Channel::Core& core = RingLaneInside::core_of(client);
    if (!core.stores || !core.has_ring) GTEST_SKIP() << "a GiB takes long there";
    const std::uint64_t heard = core.page().credit.load();
    const std::uint64_t told = core.credit.sent();
    const std::uint64_t end =
        core.reader.position() + Channel::Core::longest_untold + 2 * frame_block;
    const Deadline deadline = patience();
    while (core.reader.position() < end) {
        ASSERT_FALSE(deadline.expired());
        std::uint64_t first = 0;
        (void)client.submit_several(
            16, 64, [](std::size_t, std::span<std::byte>) {}, first);
        (void)turns.server.turn(echo, 1024);
        (void)client.poll_all([](const Answer&) {});
    }
    EXPECT_NE(core.page().credit.load(), heard);
    EXPECT_NE(core.credit.sent(), told);
}

TEST_P(ServersOfBatchesByRing, CountEachRequestAgainstTheBudgetAndLetOthersInBetween) {
    if (std::getenv("MILLRACE_SOFT_MODE") != nullptr) {
        GTEST_SKIP() << "what the others sent may come late";
    }
    ByTurns turns{options()};
    Client much = turns.connect();
    Client little = turns.connect();
    much.begin_batch();
    // By SEND they are more messages of less each.
    (void)submit_some(much, 1, 0, 40, 20);
    much.end_batch();
    (void)submit_some(little, 2, 0, 2, 20);
    const std::vector<ClientId> served = turns.serve(42, 5);
    ASSERT_EQ(served.size(), 42U);
    // Between two of the requests of the one lie at most 16 of the other.
    std::size_t in_a_row = 0;
    std::size_t of_little = 0;
    const ClientId& mine = served.front();
    const ClientId other =
        *std::ranges::find_if(served, [&](const ClientId& one) { return one != mine; });
    const std::size_t of_mine = static_cast<std::size_t>(std::ranges::count(served, mine));
    const ClientId& rare = of_mine == 2 ? mine : other;
    for (const ClientId& one : served) {
        in_a_row = one == rare ? 0 : in_a_row + 1;
        of_little += one == rare ? 1U : 0U;
        if (of_little < 2 && GetParam().requests == Transfer::write) {
            EXPECT_LE(in_a_row, 16U);
        }
    }
    std::size_t answers = 0;
    const Deadline deadline = patience();
    while (answers < 40 && !deadline.expired()) {
        if (much.poll([](const Answer&) {}) == Status::ok) ++answers;
    }
    EXPECT_EQ(answers, 40U);
}

TEST_P(ServersOfBatchesByRing, GoOnBehindAMessageOfWhichTheyHadServedAPart) {
    ByTurns turns{options()};
    std::optional<Breakable> made;
    {
        std::jthread joins{[&] {
            made.emplace(turns.server.address(), resuming());
            turns.server.stop();
        }};
        ASSERT_EQ(turns.server.serve(echo, patience()), Status::closed);
    }
    std::map<std::uint64_t, int> executed;
    const auto handler = [&](Request& request) {
        ++executed[request.id()];
        (void)request.answer(request.payload());
    };
    made->client.begin_batch();
    (void)submit_some(made->client, 1, 0, 20, 20);
    made->client.end_batch();
    const Deadline deadline = patience();
    while (executed.empty() && !deadline.expired()) (void)turns.server.turn(handler, 5);
    EXPECT_LT(executed.size(), 20U);
    made->cut();
    std::map<std::uint64_t, int> answered;
    {
        std::jthread takes{[&] {
            while (answered.size() < 20 && !deadline.expired()) {
                const Status status = made->client.wait(
                    [&](const Answer& answer) {
                        EXPECT_EQ(answer.outcome, Outcome::ok);
                        EXPECT_TRUE(
                            std::ranges::equal(answer.payload, content(1, answer.id - 1, 20)));
                        ++answered[answer.id];
                    },
                    patience());
                EXPECT_EQ(status, Status::ok) << made->client.failure();
            }
            turns.server.stop();
        }};
        EXPECT_EQ(turns.server.serve(handler, patience()), Status::closed);
    }
    EXPECT_EQ(executed.size(), 20U);
    for (const auto& [id, times] : executed) EXPECT_EQ(times, 1) << id;
    EXPECT_EQ(answered.size(), 20U);
    for (const auto& [id, times] : answered) EXPECT_EQ(times, 1) << id;
}

TEST_P(ServersOfBatchesByRing, KeepAnAnswerThatACallableThrewAt) {
    ByTurns turns{options()};
    Client client = turns.connect();
    client.begin_batch();
    (void)submit_some(client, 1, 0, 4, 20);
    client.end_batch();
    ASSERT_EQ(turns.serve(4, 1024).size(), 4U);
    std::uint64_t next = 1;
    const Deadline deadline = patience();
    while (next <= 4 && !deadline.expired()) {
        bool thrown = false;
        try {
            (void)client.poll([&](const Answer& answer) {
                EXPECT_EQ(answer.id, next);
                throw std::runtime_error{"not now"};
            });
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        if (!thrown) continue;
        EXPECT_EQ(client.poll([&](const Answer& answer) { EXPECT_EQ(answer.id, next); }),
                  Status::ok);
        ++next;
    }
    EXPECT_EQ(next, 5U);
}

TEST_P(ServersOfBatchesByRing, AreAskedByALoopThatSleeps) {
    Running running{options()};
    Client client = running.connect();
    const int descriptor = client.descriptor();
    client.begin_batch();
    std::size_t answers = 0;
    for (std::uint64_t round = 0; round < 20; ++round) {
        (void)submit_some(client, 1, 0, 5, 30);
        while (client.outstanding() != 0) {
            ASSERT_TRUE(test::becomes_readable(descriptor, 20s));
            while (client.poll([](const Answer&) {}) == Status::ok) ++answers;
        }
    }
    EXPECT_EQ(answers, 100U);
}

// --- those that do not keep to the protocol

/// Entries of requests of so many bytes each, laid as a client does.
Bytes entries(std::initializer_list<std::size_t> sizes) {
    Bytes room(4096);
    BatchWriter writer;
    writer.open(room, 1, std::nullopt);
    for (const std::size_t size : sizes) {
        std::byte* const place = writer.place_for(size);
        std::fill_n(place, size, std::byte{7});
        writer.add({.length = static_cast<std::uint16_t>(size)});
    }
    room.resize(writer.bytes());
    room.erase(room.begin(), room.begin() + session_head_bytes);
    return room;
}
Bytes entry_saying(std::uint64_t word) {
    Bytes bytes(sizeof word);
    std::memcpy(bytes.data(), &word, sizeof word);
    return bytes;
}

TEST_P(ServersOfBatchesByRing, DismissWhoeverLiesOfThem) {
    Running running{options()};
    Client other = running.connect();
    using Deed = std::function<void(Hostile&)>;
    constexpr auto kind = SessionKind::request_batch;
    const Deed deeds[] = {
        [](Hostile& it) { it.send({.id = 1, .procedure = 0, .kind = kind}, entries({})); },
        [](Hostile& it) { it.send({.id = 1, .procedure = 1, .kind = kind}, entries({})); },
        [](Hostile& it) {
            it.send({.id = 1, .procedure = 3, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) {
            it.send({.id = 1, .procedure = 1, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) { it.send({.id = 2, .procedure = 1, .kind = kind}, entries({8})); },
        [](Hostile& it) {
            it.send({.id = 0, .procedure = 2, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) {
            it.send({.id = largest_request_id, .procedure = 2, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) {  // more than the window of 8
            it.send({.id = 1, .procedure = 9, .kind = kind}, entries({0, 0, 0, 0, 0, 0, 0, 0, 0}));
        },
        [](Hostile& it) {
            it.send({.id = 1, .procedure = 1, .kind = kind, .behind = 1}, entries({8}));
        },
        [](Hostile& it) {
            it.send({.id = 1, .procedure = 0xffff, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) {  // longer than its message
            it.send({.id = 1, .procedure = 1, .kind = kind}, entry_saying(0xffff));
        },
        [](Hostile& it) { it.send({.id = 1, .procedure = 1, .kind = kind}, entry_saying(1)); },
        [](Hostile& it) { it.send({.id = 1, .procedure = 1, .kind = kind}, Bytes(7)); },
        [](Hostile& it) {  // the same numbers twice
            it.send({.id = 1, .procedure = 2, .kind = kind}, entries({8, 8}));
            it.send({.id = 1, .procedure = 2, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) {
            it.send({.id = 1, .procedure = 2, .kind = kind}, entries({8, 8}));
            it.send({.id = 2, .procedure = 2, .kind = kind}, entries({8, 8}));
        },
        [](Hostile& it) {
            it.send({.id = 1, .procedure = 2, .kind = SessionKind::answer_batch}, entries({8, 8}));
        },
        [](Hostile& it) {  // it has read one line more than was sent to it
            const std::uint64_t read = it.core().reader.position() + frame_alignment;
            it.send({.id = 1,
                     .procedure = 1,
                     .kind = kind,
                     .limit_us = Progress::units(read) | Channel::Core::says_position},
                    entries({8}));
        },
    };
    for (const Deed& deed : deeds) {
        Hostile hostile{running.server};
        hostile.takes_batches = true;
        EXPECT_TRUE(hostile.join().batches);
        deed(hostile);
        EXPECT_TRUE(hostile.is_dismissed()) << &deed - deeds;
        Bytes answer;
        ASSERT_EQ(other.call(content(1, 1, 100), answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, content(1, 1, 100));
    }
    // Who does not say that it takes batches may send none.
    Hostile without{running.server};
    EXPECT_FALSE(without.join().batches);
    without.send({.id = 1, .procedure = 1, .kind = kind}, entries({8}));
    EXPECT_TRUE(without.is_dismissed());
    running.stop();
    EXPECT_EQ(running.server.stats().misbehaved, std::size(deeds) + 1);
}

}  // namespace
}  // namespace millrace::message
