// The port: what arrives, what is dropped and counted, what leaves in how many calls.
#include "wire/wire_port.hpp"

#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "roce/packet.hpp"
#include "soft/wire/wire_member.hpp"
#include "support/child_process.hpp"
#include "support/setting_scope.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::test {
namespace {

using soft::WireCount;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Bytes to a port from a socket that knows nothing of the wire.
class Stranger {
  public:
    explicit Stranger(std::uint32_t ip) : socket_{soft::wire_socket({ip, 0}, false)} {}
    void send(const soft::UdpAddress& to, const std::vector<std::uint8_t>& bytes) const {
        const soft::SocketAddress address = soft::socket_address(to);
        ASSERT_EQ(
            ::sendto(socket_.get(), bytes.data(), bytes.size(), 0, &address.any, address.size()),
            static_cast<ssize_t>(bytes.size()));
    }
    /// With a right ICRC.
    void send_right(const soft::UdpAddress& to, std::vector<std::uint8_t> bytes) const {
        const auto own = soft::own_address_of(socket_.get());
        ASSERT_TRUE(own);
        const auto icrc = soft::icrc_between(*own, to).of(bytes);
        bytes.resize(bytes.size() + 4);
        roce::Icrc::put(icrc, bytes.data() + bytes.size() - 4);
        send(to, bytes);
    }

    /// Whether `bytes` end in an ICRC that is right for one of the identifications that IP may give
    /// them, which one random packet in 65,536 does.
    bool is_right_by_chance(const soft::UdpAddress& to, std::span<const std::uint8_t> bytes) const {
        const auto own = soft::own_address_of(socket_.get());
        if (!own || bytes.size() < roce::bth_bytes + roce::icrc_bytes) return false;
        const auto packet = bytes.first(bytes.size() - roce::icrc_bytes);
        const auto icrc = roce::Icrc::get(bytes.data() + packet.size());
        return soft::icrc_between(*own, to).check(packet, icrc, 0).has_value();
    }

    /// Two packets of one size by one send.
    void send_joined(const soft::UdpAddress& to,
                     const std::array<std::vector<std::uint8_t>, 2>& packets) const {
        const int size = static_cast<int>(packets[0].size()) + 4;
        ASSERT_EQ(::setsockopt(socket_.get(), SOL_UDP, UDP_SEGMENT, &size, sizeof size), 0);
        const auto own = soft::own_address_of(socket_.get());
        ASSERT_TRUE(own);
        const auto icrc = soft::icrc_between(*own, to);
        std::vector<std::uint8_t> all;
        for (const auto& packet : packets) {
            all.insert(all.end(), packet.begin(), packet.end());
            all.resize(all.size() + 4);
            roce::Icrc::put(icrc.of(packet), all.data() + all.size() - 4);
        }
        send(to, all);
    }

  private:
    soft::Descriptor socket_;
};

/// When this has arrived, all that was sent to `to` before has been taken in.
void flush_through(OnWire& from, OnWire& to) {
    const std::size_t before = to.inbox.count();
    from.send_to(to, "through");
    ASSERT_EQ(to.inbox.wait_for(before + 1).size(), before + 1);
}

TEST(WirePort, DropsAndCountsWhatIsForNobody) {
    OnWire one{own_loopback(30)};
    OnWire peer{own_loopback(31)};
    const Stranger stranger{own_loopback(32)};
    stranger.send_right(one.port->own(), packet_with(one.qpn + 1, "nobody's"));
    flush_through(peer, one);
    EXPECT_EQ(one.port->counted(WireCount::strays), 1U);
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("through"));
}

TEST(WirePort, DropsAndCountsWhatIsDamaged) {
    OnWire one{own_loopback(33)};
    OnWire peer{own_loopback(34)};
    const Stranger stranger{own_loopback(35)};
    auto bytes = packet_with(one.qpn, "damaged, in its last bits");
    bytes.resize(bytes.size() + 4, 0x5a);
    stranger.send(one.port->own(), bytes);
    bytes.resize(11);
    stranger.send(one.port->own(), bytes);
    flush_through(peer, one);
    EXPECT_EQ(one.port->counted(WireCount::bad_checks), 1U);
    EXPECT_EQ(one.port->counted(WireCount::malformed), 1U);
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("through"));
}

TEST(WirePort, TakesAQueuePairsPacketsFromItsPeersAddressAlone) {
    OnWire peer{own_loopback(36)};
    OnWire one{own_loopback(37), peer.port->own()};
    // Any user may have another port of the peer's address.
    for (const std::uint8_t address : {38, 36}) {
        const Stranger stranger{own_loopback(address)};
        stranger.send_right(one.port->own(), packet_with(one.qpn, "forged"));
    }
    flush_through(peer, one);
    EXPECT_EQ(one.port->counted(WireCount::strays), 2U);
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("through"));
}

TEST(WirePort, HandsNothingOnOfRandomBytes) {
    OnWire one{own_loopback(39)};
    OnWire peer{own_loopback(40)};
    const Stranger stranger{own_loopback(41)};
    std::mt19937 random{1};
    const std::size_t count = 2000;
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<std::uint8_t> bytes(random() % 300 + (i % 2 == 0 ? 8 : 0));
        for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
        if (bytes.size() > 7 && i % 2 == 0) {  // for the queue pair, and wrong all the same
            bytes[5] = static_cast<std::uint8_t>(one.qpn >> 16);
            bytes[6] = static_cast<std::uint8_t>(one.qpn >> 8);
            bytes[7] = static_cast<std::uint8_t>(one.qpn);
        } else if (bytes.size() > 6) {  // to its slot at least
            bytes[5] = static_cast<std::uint8_t>(one.qpn >> 16);
            bytes[6] = static_cast<std::uint8_t>(one.qpn >> 8);
        }
        if (stranger.is_right_by_chance(one.port->own(), bytes)) continue;
        stranger.send(one.port->own(), bytes);
        if (i % 50 == 0) flush_through(peer, one);
    }
    flush_through(peer, one);
    EXPECT_THAT(one.inbox.wait_for(1), Each("through"));
    EXPECT_GT(one.port->counted(WireCount::bad_checks), count / 4);
}

TEST(WirePort, IsDrainedByItsEngineWhileTheProgramDoesNot) {
    OnWire one{own_loopback(42)};
    OnWire peer{own_loopback(43)};
    for (int i = 1; i <= 20; ++i) {
        peer.send_to(one, std::to_string(i));
        ASSERT_EQ(one.inbox.wait_for(static_cast<std::size_t>(i)).back(), std::to_string(i));
    }
}

TEST(WirePort, IsDrainedByTheProgramWhilePolling) {
    OnWire one{own_loopback(44)};
    OnWire peer{own_loopback(45)};
    for (std::size_t i = 1; i <= 2000; ++i) {
        peer.send_to(one, "polled");
        while (one.inbox.count() < i) static_cast<void>(one.port->drain(soft::cable_now()));
    }
    EXPECT_EQ(one.port->counted(WireCount::packets_received), 2000U);
}

TEST(WirePort, IsLeftToItsEngineWhereTheProgramHasStoppedPolling) {
    OnWire one{own_loopback(46)};
    OnWire peer{own_loopback(47)};
    for (std::size_t i = 1; i <= 50; ++i) {
        for (int polls = 0; polls < 1000; ++polls) {
            static_cast<void>(one.port->drain(soft::cable_now()));
        }
        one.port->program_sleeps();
        peer.send_to(one, "asleep");
        ASSERT_EQ(one.inbox.wait_for(i).size(), i);
    }
}

TEST(WirePort, CallsNoReceiverThatHasBeenRemoved) {
    OnWire peer{own_loopback(48)};
    OnWire one{own_loopback(49)};
    auto gone = std::make_unique<Inbox>();
    ASSERT_TRUE(one.port->add(one.qpn + 1, *gone, {}));
    Inbox second;
    EXPECT_FALSE(one.port->add(one.qpn + 1, second, {}));  // the number is taken
    for (int i = 0; i < 200; ++i) {
        send_text(*peer.port, one.port->own(), one.qpn + 1, "late");
    }
    one.port->remove(one.qpn + 1);
    gone.reset();  // a sanitizer tells, or the process ends
    flush_through(peer, one);
    EXPECT_TRUE(one.port->add(one.qpn + 1, second, {}));
    one.port->remove(one.qpn + 1);
}

TEST(WireRoute, SendsRunsOfEqualSizeInOneCallAndTheyArriveWholeAndInOrder) {
    OnWire one{own_loopback(50)};
    OnWire peer{own_loopback(51)};
    const auto route = peer.port->route(one.port->own());
    std::vector<std::string> sent;
    for (int i = 0; i < 100; ++i) {
        // Runs of 1 to 9 of a size, some with a shorter last one.
        const std::string text =
            std::to_string(i) + std::string(static_cast<std::size_t>(i / 9 * 20 % 70), 'x');
        sent.push_back(text);
        ASSERT_TRUE(compose(*route, one.qpn, text));
    }
    EXPECT_EQ(peer.port->counted(WireCount::sends), 0U);
    peer.port->flush();
    EXPECT_EQ(one.inbox.wait_for(100), sent);
    EXPECT_EQ(peer.port->counted(WireCount::sends), 1U);
    EXPECT_EQ(peer.port->counted(WireCount::packets_sent), 100U);
    EXPECT_EQ(one.port->counted(WireCount::packets_received), 100U);
    EXPECT_EQ(one.port->counted(WireCount::bad_checks), 0U);
}

TEST(WireRoute, OfOneQueuePairDoesNotMixWithThoseOfOthers) {
    OnWire one{own_loopback(52)};
    OnWire two{own_loopback(53)};
    OnWire peer{own_loopback(54)};
    Inbox third;  // of the same process as `one`, so merged with its packets on the way
    ASSERT_TRUE(one.port->add(one.qpn + 1, third, {}));
    const auto to_one = peer.port->route(one.port->own());
    const auto to_two = peer.port->route(two.port->own());
    EXPECT_EQ(peer.port->route(one.port->own()), to_one);  // shared
    std::vector<std::string> sent;
    for (int i = 100; i < 300; ++i) {
        sent.push_back(std::to_string(i));
        ASSERT_TRUE(compose(*to_one, one.qpn, sent.back()));
        ASSERT_TRUE(compose(*to_two, two.qpn, sent.back()));
        ASSERT_TRUE(compose(*to_one, one.qpn + 1, sent.back()));
    }
    peer.port->flush();
    EXPECT_EQ(one.inbox.wait_for(200), sent);
    EXPECT_EQ(two.inbox.wait_for(200), sent);
    EXPECT_EQ(third.wait_for(200), sent);
    // 400 equal packets of one process in 7 sends of 64.
    EXPECT_LE(one.port->counted(WireCount::receives), 20U);
    one.port->remove(one.qpn + 1);
}

TEST(WireRoute, DoesNotJoinWhatGoesToProcessesThatShareAPort) {
    OnWire one{own_loopback(65)};
    OnWire two{own_loopback(65)};
    OnWire peer{own_loopback(66)};
    const auto route = peer.port->route(one.port->own());
    std::vector<std::string> sent;
    for (int i = 100; i < 300; ++i) {
        sent.push_back(std::to_string(i));
        ASSERT_TRUE(compose(*route, one.qpn, sent.back()));
        ASSERT_TRUE(compose(*route, two.qpn, sent.back()));
    }
    peer.port->flush();
    EXPECT_EQ(one.inbox.wait_for(200), sent);
    EXPECT_EQ(two.inbox.wait_for(200), sent);
    EXPECT_EQ(one.port->counted(WireCount::strays), 0U);
}

TEST(WireRoute, HasASourcePortForEachProcessWhereNetworksMayJoinPackets) {
    const soft::WireInterface outside = soft::find_wire_interface(soft::parse_wire("auto"));
    if (outside.is_loopback) GTEST_SKIP() << "needs an interface besides the loopback";
    OnWire one{outside.ip};
    OnWire two{outside.ip};
    OnWire peer{outside.ip};
    if (one.port->is_private()) GTEST_SKIP() << "needs the public port of the interface";
    peer.send_to(one, "from one port");
    peer.send_to(two, "from another");
    ASSERT_EQ(one.inbox.wait_for(1).size(), 1U);
    ASSERT_EQ(two.inbox.wait_for(1).size(), 1U);
    EXPECT_EQ(one.inbox.source().ip, outside.ip);
    EXPECT_NE(one.inbox.source().port, two.inbox.source().port);
    EXPECT_NE(one.inbox.source().port, soft::public_wire_port);
}

TEST(WirePort, TakesItsOwnOfWhatCameJoinedWithAnotherProcesssPackets) {
    OnWire one{own_loopback(67)};
    OnWire other{own_loopback(67)};
    OnWire peer{own_loopback(68)};
    const Stranger stranger{own_loopback(69)};
    stranger.send_joined(one.port->own(),
                         {packet_with(one.qpn, "its own"), packet_with(other.qpn, "other's")});
    EXPECT_THAT(one.inbox.wait_for(1), ElementsAre("its own"));
    flush_through(peer, one);
    EXPECT_EQ(one.port->counted(WireCount::strays), 1U);
    EXPECT_EQ(other.inbox.count(), 0U);
    // Two that are its own are taken one by one from now on.
    stranger.send_joined(one.port->own(),
                         {packet_with(one.qpn, "alone 1"), packet_with(one.qpn, "alone 2")});
    EXPECT_EQ(one.inbox.wait_for(4).size(), 4U);
}

/// After 512 packets of which so many had to be sent again, how many calls do 100 equal ones take?
std::uint64_t calls_after(std::uint32_t there, std::uint32_t here, std::uint64_t repeated) {
    OnWire one{own_loopback(there)};
    OnWire peer{own_loopback(here)};
    const auto route = peer.port->route(one.port->own());
    route->note_repeated(repeated);
    for (int i = 0; i < 512; ++i) EXPECT_TRUE(compose(*route, one.qpn, "equal"));
    peer.port->flush();
    const std::uint64_t before = peer.port->counted(WireCount::sends);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(compose(*route, one.qpn, "equal"));
    peer.port->flush();
    return peer.port->counted(WireCount::sends) - before;
}

TEST(WireRoute, SendsPacketByPacketWhereMostWereSentAgain) {
    EXPECT_EQ(calls_after(55, 56, 200), 1U) << "two runs, in one call";
    EXPECT_EQ(calls_after(55, 56, 300), 2U) << "a call has 64 of them";
}

TEST(WireRoute, DropsWhatIsBegunAndNotCommitted) {
    OnWire one{own_loopback(57)};
    OnWire peer{own_loopback(58)};
    const auto route = peer.port->route(one.port->own());
    {
        soft::WireOutlet outlet{*route};
        EXPECT_NE(outlet.begin(1024), nullptr);
        EXPECT_NE(outlet.begin(16), nullptr);
    }
    peer.port->flush();
    EXPECT_EQ(peer.port->counted(WireCount::sends), 0U);
    flush_through(peer, one);
    EXPECT_EQ(one.port->counted(WireCount::packets_received), 1U);
}

TEST(WireRoute, ToWhereNoWayLeadsLosesAndCounts) {
    OnWire one{own_loopback(59)};
    send_text(*one.port, {240U << 24 | 1, 4791}, 7, "lost");  // of no host: RFC 1112
    EXPECT_EQ(one.port->counted(WireCount::losses), 1U);
    EXPECT_EQ(one.port->counted(WireCount::packets_sent), 0U);
}

TEST(WireRoute, CarriesAllThatSeveralThreadsSend) {
    OnWire one{own_loopback(60)};
    OnWire peer{own_loopback(61)};
    constexpr int threads = 4;
    constexpr int each = 500;
    std::vector<std::thread> senders;
    std::atomic<int> arrived{0};
    for (int t = 0; t < threads; ++t) {
        senders.emplace_back([&, t] {
            const auto route = peer.port->route(one.port->own());
            for (int i = 0; i < each; ++i) {
                while (!compose(*route, one.qpn, std::to_string(t * each + i))) {
                    peer.port->flush();
                }
                if (i % 7 == 0) peer.port->flush();
                // No more under way than the socket holds.
                while (t * each + i - arrived.load() > threads * each) std::this_thread::yield();
                if (i % 50 == 0) {
                    arrived.store(static_cast<int>(one.inbox.count()));
                }
            }
            peer.port->flush();
        });
    }
    for (auto& sender : senders) sender.join();
    auto texts = one.inbox.wait_for(threads * each);
    EXPECT_EQ(texts.size(), std::size_t{threads * each});
    std::sort(texts.begin(), texts.end());
    EXPECT_EQ(std::unique(texts.begin(), texts.end()), texts.end());  // each once
}

/// What tshark reads in a trace of three packets from `there` to `here`: the fields of each.
std::string traced(const soft::IpAddress& here, const soft::IpAddress& there,
                   std::vector<std::string> fields, std::uint32_t& qpn) {
    const TemporaryFolder folder;
    const std::string file = folder.path("wire.pcap");
    const SettingScope setting{"MILLRACE_WIRE_PCAP", file};
    OnWire one{here};
    OnWire peer{there};  // appends to the same file
    qpn = one.qpn;
    const auto route = peer.port->route(one.port->own());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(compose(*route, one.qpn, "traced"));
    peer.port->flush();
    EXPECT_EQ(one.inbox.wait_for(3).size(), 3U);
    std::vector<std::string> words{"tshark", "-r",    file, "-o", "ip.check_checksum:TRUE",
                                   "-T",     "fields"};
    for (const std::string& field : fields) words.insert(words.end(), {"-e", field});
    auto tshark = ChildProcess::start_program(words);
    std::string lines = tshark.read_all();
    EXPECT_TRUE(tshark.wait().success());
    return lines;
}
std::string six_times(const std::string& line) {
    std::string all;
    for (int i = 0; i < 6; ++i) all += line;  // as they were sent, and as they came
    return all;
}

TEST(WireTrace, IsReadByTshark) {
    std::uint32_t qpn = 0;
    const std::string lines =
        traced(own_loopback(62), own_loopback(63),
               {"infiniband.bth.opcode", "infiniband.bth.destqp", "ip.checksum.status"}, qpn);
    EXPECT_EQ(lines, six_times(fmt::format("4\t{:#08x}\t1\n", qpn)));
}

TEST(WireTrace, OfIpv6IsReadByTshark) {
    std::uint32_t qpn = 0;
    const auto loopback = soft::IpAddress::parse("::1").value();
    const std::string lines = traced(
        loopback, loopback,
        {"ipv6.src", "ipv6.dst", "udp.dstport", "infiniband.bth.opcode", "infiniband.bth.destqp"},
        qpn);
    EXPECT_EQ(lines, six_times(fmt::format("::1\t::1\t4791\t4\t{:#08x}\n", qpn)));
}

TEST(WireTrace, OfAFileThatCannotBeWrittenIsRefused) {
    const SettingScope setting{"MILLRACE_WIRE_PCAP", "/dev/full"};
    try {
        const OnWire one{own_loopback(64)};
        FAIL() << "it is written";
    } catch (const base::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("MILLRACE_WIRE_PCAP"));
    }
}

}  // namespace
}  // namespace millrace::test
