// A shared buffer (shared_buffer.hpp): its checksum, what is found there and what is not, and what
// servers and clients do whose requests meet there. That they do all the rest is in the suites of
// servers, where it is one way of all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lane/checksum.hpp"
#include "lane/packet.hpp"
#include "lane/shared_buffer.hpp"
#include "lane/shared_sender.hpp"
#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "support/extent.hpp"
#include "support/readable.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using test::repetitions;
using namespace std::chrono_literals;

TEST(Checksums, AreThoseOfTheStandard) {
    const auto of = [](const Bytes& bytes) {
        EXPECT_EQ(crc32c(bytes), crc32c_by_table(bytes));
        return crc32c(bytes);
    };
    EXPECT_EQ(of({}), 0U);
    EXPECT_EQ(of(bytes_of("123456789")), 0xe306'9283U);
    // RFC 3720, B.4.
    EXPECT_EQ(of(Bytes(32, std::byte{0})), 0x8a91'36aaU);
    EXPECT_EQ(of(Bytes(32, std::byte{0xff})), 0x62a8'ab43U);
}

TEST(Checksums, AreTheSameByInstructionsAndInPieces) {
    std::mt19937_64 random{1};
    for (std::size_t size = 0; size < 300; ++size) {
        const Bytes bytes = content(1, size, size);
        const std::uint32_t whole = crc32c(bytes);
        EXPECT_EQ(whole, crc32c_by_table(bytes)) << size;
        const std::size_t cut = size == 0 ? 0 : random() % size;
        const std::span<const std::byte> all{bytes};
        EXPECT_EQ(whole, crc32c(all.subspan(cut), crc32c(all.first(cut)))) << size;
    }
}

/// A buffer, and clients that write into it by hand.
class SharedBuffers : public testing::Test {
  protected:
    static constexpr SharedShape shape{.places = 5, .slots = 4, .lines = 24};
    static constexpr std::uint64_t tokens[] = {11, 22, 33, 44, 55};

    /// A packet of a client, as its stream gives it.
    static Bytes packet(std::uint32_t place, std::uint32_t number, std::size_t payload) {
        const PacketHead head{.token = tokens[place],
                              .sequence = number,
                              .length = static_cast<std::uint16_t>(payload),
                              .flags = packet_whole};
        Bytes bytes(sizeof head);
        std::memcpy(bytes.data(), &head, sizeof head);
        const Bytes its = content(place, number, payload);
        bytes.insert(bytes.end(), its.begin(), its.end());
        return bytes;
    }
    /// As a client does; it may be told where.
    SharedPlaces::Place write(std::uint32_t place, const Bytes& bytes,
                              std::optional<std::uint32_t> line = {}) {
        SharedPlaces::Place where = places_[place].next(bytes);
        if (line.has_value()) {
            where.line = *line;
            where.content = shared_word(*line, crc32c(bytes, shared_seed(tokens[place])));
        }
        std::memcpy(memory() + shape.buffer_at() + where.line * shared_line_bytes, bytes.data(),
                    bytes.size());
        set(place, where.word, where.content);
        return where;
    }
    void set(std::uint32_t place, std::size_t word, std::uint64_t content) {
        std::memcpy(memory() + shape.row_at(place) + word * sizeof content, &content,
                    sizeof content);
    }
    struct Found {
        std::uint32_t place = 0;
        bool is_whole = false;
        Bytes bytes;
    };
    std::vector<Found> look() {
        std::vector<Found> all;
        reader_.look(shape.places, [&](std::uint32_t place, std::uint64_t word) {
            alignas(8) std::array<std::byte, 256> copy{};
            std::span<const std::byte> packet;
            Found one;
            one.place = place;
            one.is_whole = reader_.read(word, shared_seed(tokens[place]), copy, packet);
            if (one.is_whole) one.bytes.assign(packet.begin(), packet.end());
            all.push_back(std::move(one));
        });
        return all;
    }
    std::byte* memory() { return reinterpret_cast<std::byte*>(memory_.data()); }

    alignas(64) std::array<std::uint64_t, shape.bytes() / 8> memory_{};
    SharedReader reader_{std::as_writable_bytes(std::span{memory_}), shape};
    std::array<SharedPlaces, 5> places_ = [] {
        std::array<SharedPlaces, 5> all;
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = {shape, shared_seed(tokens[i]), i};
        return all;
    }();
};

TEST_F(SharedBuffers, GiveEachPacketOnceAndAsItWas) {
    EXPECT_TRUE(look().empty());
    for (std::uint32_t number = 0; number < 200; ++number) {
        const std::uint32_t place = number % shape.places;
        const Bytes bytes = packet(place, number, number % 100);
        EXPECT_EQ(write(place, bytes).word, number % shape.slots);
        const std::vector<Found> found = look();
        ASSERT_EQ(found.size(), 1U);
        EXPECT_EQ(found[0].place, place);
        ASSERT_TRUE(found[0].is_whole);
        EXPECT_EQ(found[0].bytes, bytes);
        EXPECT_TRUE(look().empty());
    }
}

TEST_F(SharedBuffers, KeepThePacketsOfOneClientApart) {
    for (std::uint32_t number = 0; number < 400; number += 4) {
        for (std::uint32_t i = 0; i < 4; ++i) write(2, packet(2, number + i, 80));
        const std::vector<Found> found = look();
        ASSERT_EQ(found.size(), 4U);
        for (std::uint32_t i = 0; i < 4; ++i) {
            EXPECT_EQ(found[i].bytes, packet(2, number + i, 80)) << number + i;
        }
    }
}

TEST_F(SharedBuffers, TellWhatTwoHaveWrittenOverEachOther) {
    // Every overlap of one of four lines and one of one or two, whoever writes first.
    for (std::uint32_t line = 0; line < 6; ++line) {
        for (const std::size_t payload : {20, 90}) {
            const Bytes longer = packet(0, 4, 200);
            const Bytes shorter = packet(1, 8, payload);
            write(0, longer, 1);
            write(1, shorter, line);
            const std::uint32_t end =
                line + static_cast<std::uint32_t>(in_shared_lines(shorter.size()));
            const bool meet = line < 5 && end > 1;
            std::vector<Found> found = look();
            ASSERT_EQ(found.size(), 2U);
            EXPECT_EQ(found[0].is_whole, !meet) << line;
            EXPECT_TRUE(found[1].is_whole);
            // The other way round: what lies behind the shorter one's end is the other's still.
            write(1, shorter, line);
            write(0, longer, 1);
            found = look();
            EXPECT_TRUE(found[0].is_whole);
            EXPECT_EQ(found[1].is_whole, !meet) << line;
        }
    }
}

TEST_F(SharedBuffers, TakeNobodysPacketForAnothers) {
    // The same bytes, whole, under the word of another client.
    const SharedPlaces::Place where = write(0, packet(0, 4, 40));
    (void)look();
    set(1, where.word, where.content);
    const std::vector<Found> found = look();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_FALSE(found[0].is_whole);
}

TEST_F(SharedBuffers, FindNothingOfWhoDiesBeforeItsWord) {
    const Bytes whole = packet(0, 4, 200);
    write(0, whole, 3);
    // A half of another one's packet, over it.
    std::memset(memory() + shape.buffer_at() + 5 * shared_line_bytes, 7, 20);
    const std::vector<Found> found = look();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].place, 0U);
    EXPECT_FALSE(found[0].is_whole);
    // Its owner sends it again, elsewhere.
    write(0, whole, 9);
    ASSERT_EQ(look().size(), 1U);
}

TEST_F(SharedBuffers, AreNeverReadOutsideOfThem) {
    std::mt19937_64 random{3};
    for (std::uint64_t i = 0; i < repetitions(20'000); ++i) {
        for (std::size_t at = 0; at < 64; ++at) {
            memory_[shape.buffer_at() / 8 + random() % (shape.lines * 8)] = random();
        }
        // Of every line, also such as there are not, with any length.
        const std::uint64_t line = i % 3 == 0 ? random() : 22 + random() % 5;
        set(static_cast<std::uint32_t>(random() % shape.places), random() % shape.row(),
            (random() << 32) | (line & 0xffff'ffff));
        for (const Found& one : look()) EXPECT_FALSE(one.is_whole);
    }
}

TEST_F(SharedBuffers, ForgetTheWordsOfAFormerClient) {
    write(3, packet(3, 1, 10));
    reader_.clear(3);
    EXPECT_TRUE(look().empty());
}

TEST(SharedSenders, PostBothWritesOfAPacketOrNone) {
    const connect::LinkOptions options{.service = "shared buffer test"};
    auto listener = connect::Listener::listen(unique_address(), options);
    std::optional<connect::Link> server;
    std::thread accepting{[&] { server.emplace(listener.accept(patience())); }};
    connect::Link link = connect::connect(listener.address(), options, patience());
    accepting.join();
    constexpr SharedShape shape{.places = 2, .slots = 4, .lines = 64};
    const verbs::RegisteredBuffer buffer =
        server->allocate(shape.bytes(), verbs::Access::remote_write | verbs::Access::remote_read);
    const verbs::RemoteAddress at = buffer.remote();
    const SharedFacts facts{.address = at.address,
                            .rkey = at.rkey,
                            .place = 1,
                            .places = shape.places,
                            .slots = shape.slots,
                            .lines = shape.lines};
    ASSERT_TRUE(facts.is_valid(1024));
    const verbs::RegisteredBuffer packets = link.allocate(4096, verbs::Access::none);
    const PacketHead head{.token = 7, .length = 0, .flags = packet_whole};
    std::memcpy(packets.data(), &head, sizeof head);
    const std::span<const std::byte> packet{packets.data(), sizeof head};
    end::SendWindow window{link};
    SharedSender sender{link, window, ring::Carrier::post, facts, 7, 1024};
    PacketChain chain;
    const auto send = [&] {
        return sender.send(chain, packet, packets.slice(0, 1).lkey, verbs::SendFlags::none,
                           end::Signal::when_due);
    };
    EXPECT_EQ(send(), Status::ok);
    EXPECT_EQ(chain.batch.size(), 2U);
    EXPECT_EQ(window.post_chain(chain.batch), Status::ok);
    // What is left is one slot.
    while (window.free() > 1) ASSERT_EQ(window.hold(), Status::ok);
    EXPECT_EQ(send(), Status::full);
    EXPECT_TRUE(chain.batch.empty());
}

// --- servers

ServerOptions shared_server() {
    ServerOptions options;
    options.polling = Polling::shared;
    options.protection = Protection::trusted;
    return options;
}
ClientOptions shared_client(ClientOptions options = {}) {
    options.requests = Transfer::shared;
    return options;
}
std::string why_refused(const connect::Address& address, const ClientOptions& options) {
    try {
        (void)Client::connect(address, options, patience());
        ADD_FAILURE() << "it was let in";
        return {};
    } catch (const base::Error& error) {
        return error.what();
    }
}

TEST(SharedServers, AreForWhoAsksForThem) {
    ServerOptions options = shared_server();
    options.protection = Protection::domains;
    EXPECT_THROW((void)Server::listen(unique_address(), options), base::Error);
    options = shared_server();
    for (const std::uint32_t wrong : {0U, 3U, 128U}) {
        options.tuning.shared_packets = wrong;
        EXPECT_THROW((void)Server::listen(unique_address(), options), base::Error) << wrong;
    }
    options = shared_server();
    options.tuning.shared_bytes = 100;
    EXPECT_THROW((void)Server::listen(unique_address(), options), base::Error);
    options = shared_server();
    options.tuning.receives = Receives::shared;
    EXPECT_THROW((void)Server::listen(unique_address(), options), base::Error);
    options = shared_server();
    options.transports = connect::Transport::tcp;
    EXPECT_THROW((void)Server::listen(unique_address(), options), base::Error);
}

TEST(SharedServers, SayWhyTheyRefuseWhoWouldWriteElsewhere) {
    Running running{shared_server()};
    EXPECT_NE(why_refused(running.server.address(), {}).find("through a shared buffer"),
              std::string::npos);
    // And servers of rings those who would not.
    Running ring;
    EXPECT_NE(why_refused(ring.server.address(), shared_client()).find("shared buffer"),
              std::string::npos);
    ClientOptions wrong;
    wrong.answers = Transfer::shared;
    EXPECT_THROW((void)Client::connect(running.server.address(), wrong, patience()), base::Error);
    wrong = shared_client();
    wrong.transport = connect::Transport::uc;
    EXPECT_THROW((void)Client::connect(running.server.address(), wrong, patience()), base::Error);
}

TEST(SharedServers, SayThatTheyAreForTrustedClients) {
    Running running{shared_server()};
    Client client = Client::connect(running.server.address(), shared_client(), patience());
    const std::string says = running.server.explain();
    EXPECT_NE(says.find("polling: shared"), std::string::npos) << says;
    EXPECT_NE(says.find("for trusted clients"), std::string::npos) << says;
    EXPECT_NE(client.explain().find("requests by shared, answers by send"), std::string::npos)
        << client.explain();
}

class SharedServersBy : public testing::TestWithParam<ring::Carrier> {
  protected:
    static Client connect(const Server& server, ClientOptions options = {}) {
        options = shared_client(std::move(options));
        options.tuning.carrier = GetParam();
        return Client::connect(server.address(), options, patience());
    }
};
INSTANTIATE_TEST_SUITE_P(Carriers, SharedServersBy,
                         testing::Values(ring::Carrier::automatic, ring::Carrier::post),
                         [](const auto& carrier) { return std::string{name_of(carrier.param)}; });

TEST_P(SharedServersBy, AnswerEachOnceWherePacketsMeet) {
    // 64 lines for up to 24 packets of up to 16: most of those that are there together meet.
    ServerOptions options = shared_server();
    options.tuning.shared_bytes = 4096;
    Server server = Server::listen(unique_address(), options);
    std::vector<Client> clients;
    {
        std::thread joining{[&] {
            for (int i = 0; i < 3; ++i) clients.push_back(connect(server));
            server.stop();
        }};
        EXPECT_EQ(server.serve(echo, Deadline::never()), Status::closed);
        joining.join();
    }
    std::vector<std::map<std::uint64_t, Bytes>> open(clients.size());
    std::minstd_rand random{5};
    const std::uint64_t rounds = repetitions(300);
    std::uint64_t submitted = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
        for (std::size_t whose = 0; whose < clients.size(); ++whose) {
            for (std::uint64_t i = 0; i < 8; ++i) {
                Bytes request = content(whose, round * 8 + i, 16 + random() % 900);
                std::uint64_t id = 0;
                // Of the last packet it has not heard yet that there is room again.
                if (clients[whose].submit(request, id) == Status::full && i != 0) break;
                ASSERT_NE(id, 0U) << clients[whose].failure();
                open[whose].emplace(id, std::move(request));
                ++submitted;
            }
        }
        const Deadline deadline = patience();
        const auto left = [&] {
            return std::ranges::any_of(open, [](const auto& of) { return !of.empty(); });
        };
        while (left()) {
            ASSERT_FALSE(deadline.expired());
            (void)server.turn(echo);
            for (std::size_t whose = 0; whose < clients.size(); ++whose) {
                while (clients[whose].poll([&](const Answer& answer) {
                    const auto found = open[whose].find(answer.id);
                    ASSERT_NE(found, open[whose].end()) << "an answer to nothing, or another one";
                    ASSERT_TRUE(std::ranges::equal(answer.payload, found->second));
                    open[whose].erase(found);
                }) == Status::ok) {
                }
            }
        }
    }
    EXPECT_EQ(server.stats().requests, submitted);
    EXPECT_GE(submitted, rounds * 6 * clients.size());
    EXPECT_EQ(server.stats().misbehaved, 0U);
    // That packets met shows in what was sent again.
    std::uint64_t again = 0;
    for (Client& client : clients) {
        const std::string says = client.explain();
        const std::size_t at = says.find(" with data sent, ");
        ASSERT_NE(at, std::string::npos) << says;
        again += std::stoull(says.substr(at + std::strlen(" with data sent, ")));
    }
    EXPECT_GT(again, 0U);
}

TEST_P(SharedServersBy, AreWokenByWhoWrites) {
    ServerOptions options = shared_server();
    options.wait = base::WaitPolicy::blocking();
    Running running{options};
    Client client = connect(running.server);
    Bytes answer;
    for (std::uint64_t number = 0; number < 20; ++number) {
        ASSERT_EQ(client.call(content(1, number, 64), answer, patience()), Outcome::ok);
        ASSERT_EQ(answer, content(1, number, 64));
        std::this_thread::sleep_for(2ms);  // it falls asleep
    }
    const std::string says = client.explain();
    EXPECT_EQ(says.find("it was rung 0 times"), std::string::npos) << says;
    EXPECT_EQ(client.close(patience()), Status::ok);
}

TEST_P(SharedServersBy, LeaveTheDescriptorsOfIdleClientsQuiet) {
    Running running{shared_server()};
    Client client = connect(running.server);
    const int descriptor = client.descriptor();
    for (std::uint64_t number = 0; number < 50; ++number) {
        std::uint64_t id = 0;
        ASSERT_EQ(client.submit(content(1, number, 64), id), Status::ok);
        bool is_answered = false;
        const auto poll = [&] {
            while (client.poll([&](const Answer&) { is_answered = true; }) == Status::ok) {
            }
        };
        const Deadline deadline = patience();
        while (!is_answered && !deadline.expired()) poll();
        ASSERT_TRUE(is_answered);
        ASSERT_TRUE(test::goes_quiet(descriptor, poll)) << number;
    }
}

TEST_P(SharedServersBy, HaveAsManyPlacesAsTheyHaveClients) {
    ServerOptions options = shared_server();
    options.max_clients = 2;
    options.tuning.shared_packets = 1;
    Running running{options};
    for (int round = 0; round < 100; ++round) {
        Client one = connect(running.server);
        Client other = connect(running.server);
        Bytes answer;
        for (Client* const each : {&one, &other}) {
            ASSERT_EQ(each->call(content(1, 1, 3000), answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, content(1, 1, 3000));
        }
        ASSERT_EQ(one.close(patience()), Status::ok);
        ASSERT_EQ(other.close(patience()), Status::ok);
        ASSERT_TRUE(eventually([&] { return running.server.stats().clients == 0; }));
    }
}

}  // namespace
}  // namespace millrace::message
