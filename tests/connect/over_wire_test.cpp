// Links between two hosts, by the soft device's wire: two processes of this machine, each of which
// has another address of the loopback, and reaches the other by UDP alone.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "identity.hpp"
#include "peers.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"
#include "wire.hpp"

namespace millrace::connect {
namespace {

using millrace::test::ChildProcess;
using millrace::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string first_host = "MILLRACE_WIRE=127.0.0.2";
const std::string second_host = "MILLRACE_WIRE=127.0.0.3";

/// What an end says of a link to, or at, `address`: "connected", and why; or the error.
struct Ends {
    std::string listening;
    std::string connecting;
};
Ends link_between(const std::vector<std::string>& listens, const std::vector<std::string>& connects,
                  const std::string& transport = "rc", const std::vector<std::string>& users = {}) {
    std::vector<std::string> first{transport};
    if (!users.empty()) first.push_back(users.at(0));
    ChildProcess listener = ChildProcess::start("listen_on_host", first, listens);
    const std::string address = listener.read_line().value_or("");
    std::vector<std::string> second{transport, address};
    if (!users.empty()) second.push_back(users.at(1));
    ChildProcess connector = ChildProcess::start("connect_on_host", second, connects);
    Ends ends{listener.read_line().value_or("silent"), connector.read_line().value_or("silent")};
    (void)listener.wait();
    (void)connector.wait();
    return ends;
}

/// The last word of each end's memory is the other's to write.
std::string talk(Link& link, std::uint64_t mine, std::uint64_t theirs) {
    verbs::RegisteredBuffer memory = link.allocate(4096, verbs::Access::remote_write);
    const verbs::RemoteAddress own = memory.remote();
    const auto answer = link.exchange(std::as_bytes(std::span{&own, 1}), test::soon());
    verbs::RemoteAddress peer;
    std::memcpy(&peer, answer.data(), sizeof peer);
    const ibv_sge from{reinterpret_cast<std::uint64_t>(&mine), sizeof mine, 0};
    const int posted = link.queue_pair().post(
        verbs::Write{.from = {&from, 1},
                     .to = peer,
                     .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled});
    if (posted != 0) return "a WRITE was refused";
    std::atomic_ref word{*reinterpret_cast<std::uint64_t*>(memory.data())};
    verbs::Completion done;
    bool completed = false;
    const bool came = test::eventually([&] {
        completed = completed || link.send_queue().poll({&done, 1}) == 1;
        return completed && word.load(std::memory_order_acquire) == theirs;
    });
    (void)link.exchange({}, test::soon());
    return came && done.ok() ? "connected" : "the WRITEs did not come";
}

std::string line_of(const std::string& text, std::string_view word) {
    const auto at = text.find(word);
    return at == text.npos ? std::string{} : text.substr(at, text.find('\n', at) - at);
}

int say_link(Link link, std::uint64_t mine, std::uint64_t theirs) {
    const std::string word =
        link.transport() == Transport::rc ? talk(link, mine, theirs) : "connected";
    millrace::test::say(word + (link.queue_pair().shares_memory() ? ", in memory " : " ") +
                        line_of(link.explain(), "wire  "));
    // Nobody leaves while the other still connects.
    (void)link.exchange({}, test::soon());
    return 0;
}

TEST(OverWire, TwoHostsFindEachOtherAndSayWhy) {
    const auto [listening, connecting] = link_between({first_host}, {second_host});
    EXPECT_THAT(listening, AllOf(HasSubstr("connected "), HasSubstr("127.0.0.2 port "),
                                 HasSubstr("to 127.0.0.3 port "), Not(HasSubstr("in memory")),
                                 HasSubstr("address on the wire 127.0.0.2 here, 127.0.0.3 there"),
                                 HasSubstr("it is on by MILLRACE_WIRE=127.0.0.2"),
                                 HasSubstr("without ICRC, as both ends are on one machine")));
    EXPECT_THAT(connecting, AllOf(HasSubstr("connected "), HasSubstr("127.0.0.3 port "),
                                  HasSubstr("to 127.0.0.2 port "), Not(HasSubstr("in memory"))));
}

TEST(OverWire, ByUnreliableConnectionsAndDatagramsToo) {
    for (const char* transport : {"uc", "ud"}) {
        const auto [listening, connecting] = link_between({first_host}, {second_host}, transport);
        EXPECT_THAT(listening, HasSubstr("connected wire")) << transport;
        EXPECT_THAT(connecting, HasSubstr("connected wire")) << transport;
    }
}

TEST(OverWire, TwoProcessesOfOneHostShareMemory) {
    const auto [listening, connecting] = link_between({first_host}, {first_host});
    EXPECT_EQ(listening, "connected, in memory ");
    EXPECT_EQ(connecting, "connected, in memory ");
}

TEST(OverWire, WhereAllGoesByItTwoProcessesOfOneHostDoNot) {
    const auto [listening, connecting] =
        link_between({first_host + ",always"}, {first_host + ",always"});
    EXPECT_THAT(listening, HasSubstr("connected wire"));
    EXPECT_THAT(connecting, HasSubstr("connected wire"));
}

/// Of a file that `millrace soft trace --pcap` writes: how many packets have an ICRC, and how many
/// "none" in its place.
struct Traced {
    explicit Traced(const std::string& path) {
        std::ifstream file{path, std::ios::binary};
        const std::string all{std::istreambuf_iterator<char>{file}, {}};
        for (std::size_t at = 24; at + 16 <= all.size();) {
            std::uint32_t size = 0;
            std::memcpy(&size, all.data() + at + 8, sizeof size);
            at += 16 + size;
            ++(std::string_view{all}.substr(0, at).ends_with("none") ? without_icrc : with_icrc);
        }
    }
    int with_icrc = 0;
    int without_icrc = 0;
};
Traced traced_between(const std::string& one, const std::string& other,
                      const std::string& transport) {
    const TemporaryFolder folder;
    const std::string path = folder.path("trace.pcap");
    const std::string trace = "MILLRACE_WIRE_PCAP=" + path;
    const auto [listening, connecting] = link_between({one, trace}, {other, trace}, transport);
    EXPECT_THAT(listening, HasSubstr("connected wire"));
    EXPECT_THAT(connecting, HasSubstr("connected wire"));
    EXPECT_EQ(listening.find("without ICRC") == listening.npos,
              connecting.find("without ICRC") == connecting.npos);
    return Traced{path};
}

TEST(OverWire, PacketsBetweenEndsOfOneMachineHaveNoIcrc) {
    const Traced traced = traced_between(first_host, second_host, "rc");
    EXPECT_EQ(traced.with_icrc, 0);
    EXPECT_GE(traced.without_icrc, 4) << "a WRITE each, as it was sent and as it came";
}

TEST(OverWire, PacketsHaveAnIcrcWhereOneEndWantsIt) {
    for (const auto& [one, other] : {std::pair{first_host + ",checked", second_host},
                                     {first_host, second_host + ",checked"}}) {
        const Traced traced = traced_between(one, other, "rc");
        EXPECT_EQ(traced.without_icrc, 0) << one << ", " << other;
        EXPECT_GE(traced.with_icrc, 4) << one << ", " << other;
    }
}

// At one address, the second one has a port of its own.
TEST(OverWire, TwoUsersReachEachOther) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
    for (const std::string& second : {second_host, first_host}) {
        const auto [listening, connecting] =
            link_between({first_host}, {second}, "rc", {"65534", "65533"});
        EXPECT_THAT(listening, HasSubstr("connected wire"));
        EXPECT_THAT(connecting, HasSubstr("connected wire"));
    }
}

TEST(OverWire, AnEndWithoutItIsNamed) {
    const auto [listening, connecting] = link_between({first_host}, {"MILLRACE_FABRIC=elsewhere"});
    EXPECT_THAT(listening, AllOf(HasSubstr("share no memory"), HasSubstr("the peer has no wire"),
                                 HasSubstr("MILLRACE_WIRE=auto")));
    EXPECT_THAT(connecting, AllOf(HasSubstr("share no memory"), HasSubstr("this end has no wire")));
}

// A peer whose device answers no packet, as behind a firewall.
TEST(OverWire, APathThatUdpDoesNotPassIsRefusedWithItsAddresses) {
    const Address address = test::fresh_address();
    const test::Stranger listener = test::Stranger::listen_on(address);
    ChildProcess connector =
        ChildProcess::start("connect_on_host", {"rc", address.to_string()}, {second_host});
    test::Stranger peer = listener.accept();
    Hello hello{.service = "link", .service_version = 1};
    hello.queue_pair.number = 0x101;
    hello.soft = true;
    hello.ethernet = true;
    hello.fabric = "elsewhere";
    hello.wire_port = 4791;
    hello.wire_gid = [] {
        ibv_gid gid{};
        const std::array<std::uint8_t, 16> raw{0, 0, 0,   0,   0,   0, 0, 0,
                                               0, 0, 255, 255, 127, 0, 0, 9};
        std::memcpy(gid.raw, raw.data(), raw.size());
        return gid;
    }();
    peer.say(encode(hello));
    peer.say(encode(Ready{}));
    const std::string said = connector.read_line().value_or("silent");
    EXPECT_THAT(said, AllOf(HasSubstr("UDP does not pass: nothing sent from 127.0.0.3 port "),
                            HasSubstr("to 127.0.0.9 port 4791 was answered within 2.1 s"),
                            HasSubstr("let UDP port 4791 pass in both directions")));
    EXPECT_FALSE(connector.wait().success());
    EXPECT_THAT(peer.hear_all(), HasSubstr("UDP does not pass"));
}

// Its packets came before the word on the socket did, and so are done when that is told.
TEST(OverWire, WhatAPeerWroteBeforeItsGoodbyeIsThereWithIt) {
    ChildProcess listener = ChildProcess::start("read_last_words", {}, {first_host});
    const std::string address = listener.read_line().value_or("");
    for (int round = 0; round < 20; ++round) {
        ChildProcess connector = ChildProcess::start("write_and_leave", {address}, {second_host});
        EXPECT_EQ(listener.read_line(), "it was there");
        EXPECT_TRUE(connector.wait().success());
    }
}

/// What a host says that serves two others, of which the first one is struck by `blow`.
std::string one_of_two_struck(void (*blow)(ChildProcess&)) {
    ChildProcess server = ChildProcess::start("serve_two", {}, {first_host});
    const std::string address = server.read_line().value_or("");
    ChildProcess struck = ChildProcess::start("be_served", {address}, {second_host});
    EXPECT_EQ(server.read_line(), "one is here");
    ChildProcess other = ChildProcess::start("be_served", {address}, {"MILLRACE_WIRE=127.0.0.4"});
    EXPECT_EQ(server.read_line(), "two are here");
    blow(struck);
    EXPECT_TRUE(server.write_line("go on"));
    const std::string said = server.read_line().value_or("silent");
    EXPECT_TRUE(server.wait().success());
    EXPECT_TRUE(other.wait().success());
    return said;
}

// A stopped process answers no packet: its connection ends when the retries are over, as on
// hardware.
TEST(OverWire, AStoppedPeerEndsItsOwnConnectionAlone) {
    const std::string said =
        one_of_two_struck([](ChildProcess& peer) { ASSERT_TRUE(peer.stop()); });
    EXPECT_THAT(said, AllOf(HasSubstr("the other's: ok; the first one's: transport retries"),
                            HasSubstr("UDP port 4791")));
}

TEST(OverWire, AKilledPeerEndsItsOwnConnectionAlone) {
    const std::string said =
        one_of_two_struck([](ChildProcess& peer) { (void)peer.kill_and_wait(); });
    EXPECT_THAT(said, HasSubstr("the other's: ok; the first one's: transport retries"));
}

Transport transport_of(const std::string& name) {
    return name == "uc" ? Transport::uc : name == "ud" ? Transport::ud : Transport::rc;
}

/// The listener's queue pair for datagrams, where that is the transport.
struct Datagrams {
    explicit Datagrams(std::shared_ptr<Endpoint> of)
        : endpoint{std::move(of)},
          queue{endpoint->context().create_completion_queue(16)},
          pair{endpoint->protection_domain().create_datagram_queue_pair(
              {.send_queue = &queue, .receive_queue = &queue})} {
        pair.start(endpoint->port(), 7);
    }
    std::shared_ptr<Endpoint> endpoint;
    verbs::CompletionQueue queue;
    verbs::DatagramQueuePair pair;
};

/// Memory of 8 bytes that the peer may write to, told to it by the link.
verbs::RemoteAddress addresses_exchanged(Link& link, const verbs::RegisteredBuffer& memory) {
    const verbs::RemoteAddress own = memory.remote();
    const auto answer = link.exchange(std::as_bytes(std::span{&own, 1}), test::soon());
    verbs::RemoteAddress peer;
    std::memcpy(&peer, answer.data(), sizeof peer);
    return peer;
}

verbs::Completion written(Link& link, verbs::RemoteAddress to, std::uint64_t value) {
    const ibv_sge from{reinterpret_cast<std::uint64_t>(&value), sizeof value, 0};
    verbs::Completion done{};
    done.raw.status = IBV_WC_GENERAL_ERR;
    if (link.queue_pair().post(
            verbs::Write{.from = {&from, 1},
                         .to = to,
                         .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled}) != 0) {
        return done;
    }
    (void)test::eventually([&] { return link.send_queue().poll({&done, 1}) == 1; });
    return done;
}

MILLRACE_CHILD(read_last_words) {
    const LinkOptions options{.endpoint = Endpoint::open("soft0")};
    Listener listener = Listener::listen("127.0.0.1:0", options);
    millrace::test::say(listener.address().to_string());
    for (int round = 0; round < 20; ++round) {
        Link link = listener.accept_one(test::soon());
        verbs::RegisteredBuffer memory = link.allocate(4096, verbs::Access::remote_write);
        (void)addresses_exchanged(link, memory);
        std::atomic_ref word{*reinterpret_cast<std::uint64_t*>(memory.data())};
        // Nothing is polled, and nothing waited for, but the socket.
        pollfd entry{.fd = link.socket(), .events = POLLIN, .revents = 0};
        (void)::poll(&entry, 1, 20'000);
        const PeerState peer = link.peer_now();
        const bool is_there = word.load(std::memory_order_acquire) == 7;
        millrace::test::say(peer != PeerState::closed ? "it said no goodbye"
                            : is_there                ? "it was there"
                                                      : "it was not there");
    }
    return 0;
}

MILLRACE_CHILD(write_and_leave) {
    const LinkOptions options{.endpoint = Endpoint::open("soft0")};
    Link link = connect(Address::parse(arguments.at(0)), options, test::soon());
    verbs::RegisteredBuffer memory = link.allocate(4096, verbs::Access::remote_write);
    const auto peer = addresses_exchanged(link, memory);
    const std::uint64_t value = 7;
    const ibv_sge from{reinterpret_cast<std::uint64_t>(&value), sizeof value, 0};
    const int posted = link.queue_pair().post(
        verbs::Write{.from = {&from, 1}, .to = peer, .flags = verbs::SendFlags::inlined});
    link.say_goodbye();
    return posted;
}

MILLRACE_CHILD(serve_two) {
    const LinkOptions options{.endpoint = Endpoint::open("soft0")};
    Listener listener = Listener::listen("127.0.0.1:0", options);
    millrace::test::say(listener.address().to_string());
    Link first = listener.accept_one(test::soon());
    verbs::RegisteredBuffer memory = first.allocate(4096, verbs::Access::remote_write);
    const auto to_first = addresses_exchanged(first, memory);
    millrace::test::say("one is here");
    Link other = listener.accept_one(test::soon());
    const auto to_other = addresses_exchanged(other, memory);
    millrace::test::say("two are here");
    (void)millrace::test::hear();
    const std::string first_one = written(first, to_first, 1).explain();
    const verbs::Completion others = written(other, to_other, 1);
    millrace::test::say("the other's: " + (others.ok() ? "ok" : others.explain()) +
                        "; the first one's: " + first_one);
    return 0;
}

MILLRACE_CHILD(be_served) {
    const LinkOptions options{.endpoint = Endpoint::open("soft0")};
    Link link = connect(Address::parse(arguments.at(0)), options, test::soon());
    verbs::RegisteredBuffer memory = link.allocate(4096, verbs::Access::remote_write);
    (void)addresses_exchanged(link, memory);
    // Its device answers while it waits for the server's end.
    return test::eventually([&] { return link.peer_now() != PeerState::alive; }) ? 0 : 1;
}

/// The user whose number is argument `at`, if there is one.
void become_user(const std::vector<std::string>& arguments, std::size_t at) {
    if (arguments.size() <= at) return;
    const auto user = static_cast<uid_t>(std::stoul(arguments[at]));
    if (::setgid(user) != 0 || ::setuid(user) != 0) std::abort();
}

MILLRACE_CHILD(listen_on_host) {
    try {
        become_user(arguments, 1);
        LinkOptions options{.endpoint = Endpoint::open("soft0")};
        options.transport = transport_of(arguments.at(0));
        options.accepted = options.transport;
        Datagrams datagrams{options.endpoint};
        if (options.transport == Transport::ud) {
            options.datagrams = {.queue_pair = &datagrams.pair, .key = 7};
        }
        Listener listener = Listener::listen("127.0.0.1:0", options);
        millrace::test::say(listener.address().to_string());
        return say_link(listener.accept_one(test::soon()), 1, 2);
    } catch (const base::Error& error) {
        millrace::test::say(error.what());
        return 1;
    }
}

MILLRACE_CHILD(connect_on_host) {
    try {
        become_user(arguments, 2);
        LinkOptions options{.endpoint = Endpoint::open("soft0")};
        options.transport = transport_of(arguments.at(0));
        return say_link(connect(Address::parse(arguments.at(1)), options, test::soon()), 2, 1);
    } catch (const base::Error& error) {
        millrace::test::say(error.what());
        return 1;
    }
}

}  // namespace
}  // namespace millrace::connect
