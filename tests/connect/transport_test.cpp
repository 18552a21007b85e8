// Links by another transport than RC: what each has, what travels, and who is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>

#include "millrace/connect/transport.hpp"
#include "millrace/verbs/datagram.hpp"
#include "peers.hpp"

namespace millrace::connect {
namespace {

using base::ErrorCode;
using test::bytes;
using test::error_of;
using test::fresh_address;
using test::soon;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(Transports, HaveNamesThatAreParsed) {
    for (const Transport one : {Transport::rc, Transport::uc, Transport::ud, Transport::tcp}) {
        EXPECT_EQ(parse_transport(name_of(one)), one);
        EXPECT_TRUE(Transports{one}.has(one));
        EXPECT_TRUE(Transports::all().has(one));
        EXPECT_EQ(Transports{one}.has_rdma(), one != Transport::tcp);
    }
    EXPECT_FALSE(parse_transport("xrc").has_value());
    EXPECT_FALSE(parse_transport("").has_value());
    EXPECT_TRUE(Transports{}.empty());
    EXPECT_EQ((Transports{Transport::tcp, Transport::uc}.to_string()), "uc, tcp");
}

/// A listener's end for datagrams.
struct Station {
    explicit Station(Endpoint& endpoint, std::uint32_t key_of_all = 4711)
        : completions{endpoint.context().create_completion_queue(64)},
          pair{endpoint.protection_domain().create_datagram_queue_pair(
              {.send_queue = &completions, .receive_queue = &completions})},
          memory{endpoint.protection_domain().allocate(4096, verbs::Access::local_write)},
          key{key_of_all} {
        pair.start(endpoint.port(), key);
    }
    [[nodiscard]] DatagramService service() noexcept { return {&pair, key}; }

    verbs::CompletionQueue completions;
    verbs::DatagramQueuePair pair;
    verbs::RegisteredBuffer memory;
    std::uint32_t key;
};

verbs::Completion next_completion(verbs::CompletionQueue& queue) {
    verbs::Completion one[1];
    EXPECT_TRUE(test::eventually([&] { return queue.poll(one) == 1; }));
    return one[0];
}

TEST(LinkByUc, CarriesSends) {
    test::Pair ends{{.transport = Transport::uc, .accepted = Transport::uc}};
    EXPECT_EQ(ends.a->transport(), Transport::uc);
    EXPECT_EQ(ends.b->transport(), Transport::uc);
    EXPECT_EQ(ends.a->queue_pair().raw()->qp_type, IBV_QPT_UC);
    EXPECT_EQ(ends.b->queue_pair().state(), IBV_QPS_RTS);
    EXPECT_GE(ends.a->mtu(), 256U);
    EXPECT_THAT(ends.a->explain(), HasSubstr("verbs (UC)"));

    auto into = ends.b->allocate(4096, verbs::Access::local_write);
    const ibv_sge slot = into.slice(0, 64);
    ASSERT_EQ(ends.b->queue_pair().post(verbs::Receive{.id = 7, .into = {&slot, 1}}), 0);
    auto from = ends.a->allocate(4096, verbs::Access::none);
    std::memcpy(from.data(), "by UC", 5);
    const ibv_sge what = from.slice(0, 5);
    ASSERT_EQ(ends.a->queue_pair().post(
                  verbs::Send{.from = {&what, 1}, .flags = verbs::SendFlags::signaled}),
              0);
    const verbs::Completion arrived = next_completion(ends.b->receive_queue());
    EXPECT_EQ(arrived.raw.wr_id, 7U);
    EXPECT_EQ(std::memcmp(into.data(), "by UC", 5), 0);
    EXPECT_TRUE(next_completion(ends.a->send_queue()).ok());
}

TEST(LinkByUd, ReachesTheListenersOneQueuePairAndItsClients) {
    const auto endpoint = Endpoint::shared();
    Station station{*endpoint};
    test::Pair first{{.endpoint = endpoint,
                      .transport = Transport::ud,
                      .accepted = Transport::ud,
                      .datagrams = station.service()}};
    auto accepted = test::accept_in_background(first.listener);
    Link second = connect(first.listener.address(), {.transport = Transport::ud}, soon());
    Link second_at_server = accepted.get();
    EXPECT_EQ(&first.b->datagrams(), &second_at_server.datagrams());
    EXPECT_NE(first.a->datagrams().number(), second.datagrams().number());
    EXPECT_EQ(second_at_server.peer_queue_pair(), second.datagrams().number());
    EXPECT_THAT(first.b->explain(), HasSubstr("which all its links share"));

    const ibv_sge slot = station.memory.slice(0, 1024);
    ASSERT_EQ(station.pair.post(verbs::Receive{.id = 1, .into = {&slot, 1}}), 0);
    auto from = second.allocate(4096, verbs::Access::local_write);
    std::memcpy(from.data(), "there", 5);
    const ibv_sge what = from.slice(0, 5);
    ASSERT_EQ(second.datagrams().post(verbs::SendTo{
                  .from = {&what, 1}, .to = second.destination(), .flags = verbs::SendFlags::none}),
              0);
    const verbs::Completion arrived = next_completion(station.completions);
    const verbs::Datagram datagram = verbs::datagram_in(arrived, {station.memory.data(), 1024});
    EXPECT_EQ(datagram.from, second_at_server.peer_queue_pair());
    ASSERT_EQ(datagram.message.size(), 5U);
    EXPECT_EQ(std::memcmp(datagram.message.data(), "there", 5), 0);

    const ibv_sge back = from.slice(1024, 1024);
    ASSERT_EQ(second.datagrams().post(verbs::Receive{.id = 2, .into = {&back, 1}}), 0);
    std::memcpy(station.memory.data() + 2048, "back", 4);
    const ibv_sge answer = station.memory.slice(2048, 4);
    ASSERT_EQ(station.pair.post(verbs::SendTo{.from = {&answer, 1},
                                              .to = second_at_server.destination(),
                                              .flags = verbs::SendFlags::signaled}),
              0);
    const verbs::Completion came_back = next_completion(second.receive_queue());
    EXPECT_EQ(std::memcmp(verbs::datagram_in(came_back, {from.data() + 1024, 1024}).message.data(),
                          "back", 4),
              0);
    EXPECT_TRUE(next_completion(station.completions).ok());
}

TEST(LinkByTcp, GivesTheSocketAwayWithWhatHasCome) {
    for (const Address& where : {Address::parse("127.0.0.1:0"), fresh_address()}) {
        test::Pair ends{{.transport = Transport::tcp, .accepted = Transport::tcp}, where};
        auto heard =
            std::async(std::launch::async, [&] { return ends.b->exchange(bytes("s"), soon()); });
        EXPECT_EQ(test::text(ends.a->exchange(bytes("c"), soon())), "s");
        EXPECT_EQ(test::text(heard.get()), "c");
        ASSERT_EQ(send(ends.a->socket(), "early", 5, 0), 5);
        // An end that looks after its peer may have read it, or not.
        std::vector<std::byte> come = ends.b->take_over_socket();
        while (come.size() < 5) {
            std::byte byte;
            if (recv(ends.b->socket(), &byte, 1, 0) == 1) come.push_back(byte);
        }
        EXPECT_EQ(test::text(come), "early");
        EXPECT_THAT(ends.a->explain(), HasSubstr("over the handshake's"));
    }
}

TEST(LinkByTcp, NeedsNoDevice) {
    setenv("MILLRACE_DEVICE", "no-such-device", 1);
    try {
        test::Pair ends{{.transport = Transport::tcp, .accepted = Transport::tcp}};
        EXPECT_EQ(ends.a->peer_now(), PeerState::alive);
        ends.a->say_goodbye();
        EXPECT_TRUE(test::eventually([&] { return ends.b->peer_now() != PeerState::alive; }));
        EXPECT_EQ(ends.b->peer_now(), PeerState::closed);
    } catch (...) {
        unsetenv("MILLRACE_DEVICE");
        throw;
    }
    unsetenv("MILLRACE_DEVICE");
}

TEST(LinkByAnother, IsRefusedWhereItIsNotTaken) {
    for (const Transport asked : {Transport::rc, Transport::uc, Transport::ud}) {
        Listener listener = Listener::listen(fresh_address(), {.accepted = Transport::tcp});
        auto accepted = std::async(std::launch::async, [&] {
            return error_of([&] { (void)listener.accept_one(soon()); });
        });
        const base::Error error =
            error_of([&] { (void)connect(listener.address(), {.transport = asked}, soon()); });
        EXPECT_EQ(error.code(), ErrorCode::refused) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(name_of(asked)));
        EXPECT_THAT(error.what(), HasSubstr("it takes tcp"));
        EXPECT_EQ(accepted.get().code(), ErrorCode::refused);
    }
    Listener listener = Listener::listen(fresh_address());
    auto accepted = std::async(
        std::launch::async, [&] { return error_of([&] { (void)listener.accept_one(soon()); }); });
    EXPECT_EQ(error_of([&] {
                  (void)connect(listener.address(), {.transport = Transport::tcp}, soon());
              }).code(),
              ErrorCode::refused);
    (void)accepted.get();
}

TEST(LinkByAnother, IsGatedByTheSecret) {
    for (const Transport transport : {Transport::uc, Transport::tcp}) {
        LinkOptions options{.transport = transport, .accepted = transport};
        options.admission.secret = Secret("a long enough secret");
        test::Pair ends{options};
        EXPECT_THAT(ends.a->explain(), HasSubstr("by a secret"));
        auto accepted = std::async(std::launch::async, [&] {
            return error_of([&] { (void)ends.listener.accept_one(soon()); });
        });
        options.admission.secret = Secret("another long secret");
        EXPECT_EQ(error_of([&] { (void)connect(ends.listener.address(), options, soon()); }).code(),
                  ErrorCode::refused);
        EXPECT_EQ(accepted.get().code(), ErrorCode::refused);
    }
}

TEST(Listener, WantsAQueuePairForDatagramsAndAtLeastOneTransport) {
    EXPECT_EQ(error_of([] {
                  (void)Listener::listen(fresh_address(), {.accepted = Transport::ud});
              }).code(),
              ErrorCode::invalid_argument);
    EXPECT_EQ(error_of([] {
                  (void)Listener::listen(fresh_address(), {.accepted = Transports{}});
              }).code(),
              ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace millrace::connect
