// Packets as bytes: against those that rdma_rxe sent (rxe.pcap: ibv_rc_pingpong with a responder of
// forty lines), against what scapy and tshark read in ours, and against what no peer should send.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "capture.hpp"
#include "ends.hpp"
#include "roce/icrc.hpp"
#include "roce/packet.hpp"
#include "roce/psn.hpp"
#include "roce/unreliable.hpp"

namespace millrace::roce {
namespace {

const std::string here = MILLRACE_SOURCE_DIR "/tests/roce/";

std::span<const std::uint8_t> without_icrc(const Captured& packet) {
    return std::span{packet.bytes}.first(packet.bytes.size() - icrc_bytes);
}
std::uint32_t icrc_of(const Captured& packet) {
    return Icrc::get(packet.bytes.data() + packet.bytes.size() - icrc_bytes);
}

/// Headers, payload and padding of a packet whose payload is given.
Bytes composed(Packet packet, const Bytes& payload) {
    packet.payload = payload;
    Bytes bytes(packet_bytes(header_bytes(packet.service, packet.kind), payload.size()), 0xee);
    std::copy(payload.begin(), payload.end(), compose(packet, bytes.data()));
    return bytes;
}

TEST(RocePacket, IsReadAndWrittenAsTheKernelDoes) {
    const auto packets = read_capture(here + "rxe.pcap");
    ASSERT_EQ(packets.size(), 24U);
    int sends = 0;
    for (const Captured& captured : packets) {
        Packet packet;
        ASSERT_EQ(parse(without_icrc(captured), packet), Defect::none);
        EXPECT_EQ(packet.service, Service::rc);
        EXPECT_EQ(packet.partition_key, default_partition_key);
        EXPECT_TRUE(packet.destination == 0x11 || packet.destination == 0x1234);
        if (packet.kind == Kind::send_only) {
            ++sends;
            EXPECT_EQ(packet.payload.size(), 64U);
            EXPECT_TRUE(packet.asks_acknowledge);
        } else {
            EXPECT_EQ(packet.kind, Kind::acknowledge);
            EXPECT_EQ(packet.syndrome, syndrome_acknowledge | credits_invalid);
            EXPECT_TRUE(packet.payload.empty());
        }
        const Bytes payload{packet.payload.begin(), packet.payload.end()};
        const auto bytes = without_icrc(captured);
        // Its sender leaves the bit of path migration as it likes.
        Bytes expected{bytes.begin(), bytes.end()};
        expected[1] |= 0x40;
        EXPECT_EQ(composed(packet, payload), expected);
    }
    EXPECT_EQ(sends, 12);
}

TEST(RoceIcrc, TellsTheIdentificationThatASocketDoesNot) {
    int told = 0;
    for (const Captured& captured : read_capture(here + "rxe.pcap")) {
        const Icrc icrc{captured.route};
        EXPECT_EQ(icrc.of(without_icrc(captured), captured.identification), icrc_of(captured));
        EXPECT_EQ(icrc.check(without_icrc(captured), icrc_of(captured)), captured.identification);
        told += captured.identification != 0;
    }
    EXPECT_GT(told, 10);
}

TEST(RoceIcrc, TellsEveryIdentificationAtEveryLength) {
    const std::uint8_t addresses[]{10, 0, 0, 1, 10, 0, 0, 2};
    const Icrc icrc{{ipv4_gid(addresses), ipv4_gid(addresses + 4), 0xc123, udp_port}};
    std::mt19937 random{7};
    for (int round = 0; round < 5000; ++round) {
        const Bytes bytes = pattern(bth_bytes + random() % 4140, random());
        const auto identification = static_cast<std::uint16_t>(random());
        ASSERT_EQ(icrc.check(bytes, icrc.of(bytes, identification)), identification);
    }
}

/// Bit by bit, over what the standard says.
std::uint32_t slow_icrc(const Gid& source, const Gid& destination, Bytes bytes) {
    Bytes all(8, 0xff);
    const auto udp_length = static_cast<std::uint16_t>(8 + bytes.size() + 4);
    const auto high = static_cast<std::uint8_t>(udp_length >> 8);
    const auto low = static_cast<std::uint8_t>(udp_length);
    for (const int byte : {0x6f, 0xff, 0xff, 0xff, +high, +low, 17, 0xff}) {
        all.push_back(static_cast<std::uint8_t>(byte));
    }
    all.insert(all.end(), source.begin(), source.end());
    all.insert(all.end(), destination.begin(), destination.end());
    for (const int byte : {0xc0, 0x01, 0x12, 0xb7, +high, +low, 0xff, 0xff}) {
        all.push_back(static_cast<std::uint8_t>(byte));
    }
    bytes[4] = 0xff;
    all.insert(all.end(), bytes.begin(), bytes.end());
    std::uint32_t crc = 0xffffffff;
    for (const std::uint8_t byte : all) {
        crc ^= byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    return ~crc;
}

TEST(RoceIcrc, CoversAnIpv6Header) {
    Gid source{0x20, 0x01, 0x0d, 0xb8};
    Gid destination = source;
    source[15] = 1;
    destination[15] = 2;
    const Icrc icrc{{source, destination, 0xc001, udp_port}};
    Bytes bytes = pattern(300);
    EXPECT_EQ(icrc.of(bytes), slow_icrc(source, destination, bytes));
    EXPECT_EQ(icrc.check(bytes, icrc.of(bytes)), 0);
    for (std::size_t bit = 0; bit < 32; ++bit) {
        EXPECT_EQ(icrc.check(bytes, icrc.of(bytes) ^ 1U << bit), std::nullopt);
    }
    // No router may change it but for these.
    const std::uint32_t sent = icrc.of(bytes);
    bytes[4] ^= 0xff;
    EXPECT_EQ(icrc.of(bytes), sent);
    bytes[5] ^= 1;
    EXPECT_NE(icrc.of(bytes), sent);
}

TEST(RoceIcrc, NoticesABitThatChangedOverIpv4) {
    const auto packets = read_capture(here + "rxe.pcap");
    std::size_t unnoticed = 0;
    std::size_t changed = 0;
    for (const Captured& captured : packets) {
        const Icrc icrc{captured.route};
        Bytes bytes{captured.bytes.begin(), captured.bytes.end() - icrc_bytes};
        for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
            if (bit / 8 == 4) continue;  // congestion
            bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
            unnoticed += icrc.check(bytes, icrc_of(captured)).has_value();
            bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
            ++changed;
        }
    }
    EXPECT_GT(changed, 8000U);
    EXPECT_EQ(unnoticed, 0U);
}

TEST(RocePsn, IsBeforeAndAfterAcrossTheWrap) {
    EXPECT_EQ(psn_after(0xffffff, 1), 0U);
    EXPECT_EQ(psn_distance(0, 0xffffff), 1);
    EXPECT_EQ(psn_distance(0xffffff, 0), -1);
    EXPECT_EQ(psn_distance(5, 5), 0);
    EXPECT_EQ(psn_distance(0x7fffff, 0), 0x7fffff);
    EXPECT_EQ(psn_distance(0x800000, 0), -0x800000);
}

struct Opcode {
    Service service;
    Kind kind;
};

std::vector<Opcode> all_opcodes() {
    std::vector<Opcode> all;
    for (const Service service : {Service::rc, Service::uc, Service::ud}) {
        for (int kind = 0; kind < 32; ++kind) {
            if (header_bytes(service, static_cast<Kind>(kind)) != 0) {
                all.push_back({service, static_cast<Kind>(kind)});
            }
        }
    }
    return all;
}

Packet some_packet(Opcode opcode, std::mt19937& random) {
    Packet packet{};
    packet.service = opcode.service;
    packet.kind = opcode.kind;
    packet.solicited = random() % 2 == 0;
    packet.asks_acknowledge = random() % 2 == 0;
    packet.partition_key = static_cast<std::uint16_t>(random());
    packet.destination = random() & psn_mask;
    packet.psn = random() & psn_mask;
    packet.address = std::uint64_t{random()} << 32 | random();
    packet.remote_key = random();
    packet.length = random();
    packet.swap_or_add = std::uint64_t{random()} << 32 | random();
    packet.compare = std::uint64_t{random()} << 32 | random();
    packet.immediate = random();
    packet.syndrome = static_cast<std::uint8_t>(random() & 0x7f);
    packet.message_sequence = random() & psn_mask;
    packet.q_key = random();
    packet.source = random() & psn_mask;
    return packet;
}

bool has_payload(Kind kind) {
    return kind != Kind::read_request && kind != Kind::acknowledge &&
           kind != Kind::atomic_acknowledge && kind != Kind::compare_swap &&
           kind != Kind::fetch_add;
}

TEST(RocePacket, IsReadAsItWasWritten) {
    std::mt19937 random{1};
    EXPECT_EQ(all_opcodes().size(), 23U + 12U + 2U);
    for (const Opcode opcode : all_opcodes()) {
        for (std::size_t size = 0; size < 6; ++size) {
            const Packet packet = some_packet(opcode, random);
            const Bytes payload = has_payload(opcode.kind) ? pattern(size) : Bytes{};
            const Bytes bytes = composed(packet, payload);
            EXPECT_EQ(bytes.size() % 4, 0U);
            EXPECT_EQ(destination_of(bytes), packet.destination);
            Packet read{};
            ASSERT_EQ(parse(bytes, read), Defect::none);
            EXPECT_EQ((Bytes{read.payload.begin(), read.payload.end()}), payload);
            EXPECT_EQ(read.psn, packet.psn);
            EXPECT_EQ(read.asks_acknowledge, packet.asks_acknowledge);
            // All that the opcode has is in the bytes: written again, they are the same.
            EXPECT_EQ(composed(read, payload), bytes);
        }
    }
}

TEST(RocePacket, IsRefusedWhereItMakesNoSense) {
    std::mt19937 random{1};
    Packet packet{};
    for (const Opcode opcode : all_opcodes()) {
        const Bytes bytes = composed(some_packet(opcode, random), {});
        for (std::size_t size = 0; size < bytes.size(); ++size) {
            EXPECT_EQ(parse(std::span{bytes}.first(size), packet), Defect::short_of_headers);
        }
        Bytes changed = bytes;
        changed[1] |= 0x30;  // more padding than there is
        EXPECT_EQ(parse(changed, packet), Defect::short_of_headers);
        changed = bytes;
        changed[1] |= 1;
        EXPECT_EQ(parse(changed, packet), Defect::unknown_opcode);
        changed = bytes;
        changed.resize(bytes.size() + 4);
        EXPECT_EQ(parse(changed, packet),
                  has_payload(opcode.kind) ? Defect::none : Defect::payload);
    }
    Bytes bytes(64);
    for (const int opcode : {0x15, 0x18, 0x2c, 0x36, 0x40, 0x60, 0x80, 0xa0, 0xe4, 0xff}) {
        bytes[0] = static_cast<std::uint8_t>(opcode);
        EXPECT_EQ(parse(bytes, packet), Defect::unknown_opcode) << opcode;
    }
    bytes.resize(28);
    bytes[0] = congestion_opcode;
    EXPECT_EQ(parse(bytes, packet), Defect::none);
    EXPECT_EQ(packet.service, Service::congestion);
}

std::string output_of(const std::string& command) {
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe{::popen(command.c_str(), "r"), ::pclose};
    std::string output;
    std::array<char, 4096> part;
    while (const std::size_t size = std::fread(part.data(), 1, part.size(), pipe.get())) {
        output.append(part.data(), size);
    }
    return output;
}

/// A packet of every opcode, in a file that is removed at the end.
struct Written {
    explicit Written(const Route& route) {
        std::mt19937 random{11};
        std::vector<Bytes> all;
        for (const Opcode opcode : all_opcodes()) {
            packets.push_back(some_packet(opcode, random));
            sizes.push_back(has_payload(opcode.kind) ? 1 + random() % 40 : 0);
            all.push_back(composed(packets.back(), pattern(sizes.back())));
        }
        write_capture(path, route, all);
    }
    ~Written() { ::unlink(path.c_str()); }
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;

    std::string path = testing::TempDir() + "millrace-roce-" + std::to_string(::getpid()) + ".pcap";
    std::vector<Packet> packets;
    std::vector<std::size_t> sizes;
};

Route route_over_ipv4() {
    const std::uint8_t addresses[]{10, 1, 2, 3, 10, 4, 5, 6};
    return {ipv4_gid(addresses), ipv4_gid(addresses + 4), 0xc321, udp_port};
}
Route route_over_ipv6() {
    return {{0xfd, 0x12, 0x34, 0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
            {0xfd, 0x12, 0x34, 0x56, 0, 0, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1},
            0xc321,
            udp_port};
}

class RoceJudge : public testing::TestWithParam<Route> {};
INSTANTIATE_TEST_SUITE_P(Families, RoceJudge, testing::Values(route_over_ipv4(), route_over_ipv6()),
                         [](const auto& route) {
                             return is_ipv4(route.param.source) ? "IPv4" : "IPv6";
                         });

TEST_P(RoceJudge, ScapyReadsPacketsAndComputesTheSameIcrc) {
    if (std::system("/usr/bin/python3 -c 'import scapy.contrib.roce' 2>/dev/null") != 0) {
        GTEST_SKIP() << "no python3-scapy";
    }
    const Written written{GetParam()};
    std::string expected;
    for (std::size_t i = 0; i < written.packets.size(); ++i) {
        const Packet& packet = written.packets[i];
        std::ostringstream line;
        line << (static_cast<int>(packet.service) | static_cast<int>(packet.kind)) << ' '
             << packet.solicited << ' ' << (-written.sizes[i] & 3) << ' ' << packet.partition_key
             << ' ' << packet.destination << ' ' << packet.asks_acknowledge << ' ' << packet.psn
             << " right\n";
        expected += line.str();
    }
    EXPECT_EQ(output_of("/usr/bin/python3 " + here + "judge.py " + written.path + " 2>/dev/null"),
              expected);
}

std::string hex(std::uint64_t value, int digits) {
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%0*llx", digits,
                  static_cast<unsigned long long>(value));
    return text.data();
}

TEST_P(RoceJudge, TsharkReadsPackets) {
    if (std::system("tshark --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no tshark";
    const Written written{GetParam()};
    std::string command = "tshark -r " + written.path + " -T fields -E separator=,";
    for (const char* field :
         {"bth.opcode", "bth.psn", "bth.destqp", "reth.va", "reth.r_key", "reth.dmalen",
          "atomiceth.swapdt", "atomiceth.cmpdt", "atomicacketh.origremdt", "aeth.msn", "deth.q_key",
          "deth.srcqp", "immdt"}) {
        command += std::string{" -e infiniband."} + field;
    }
    std::istringstream lines{output_of(command + " 2>/dev/null")};
    for (const Packet& packet : written.packets) {
        const Kind kind = packet.kind;
        std::string line;
        ASSERT_TRUE(std::getline(lines, line));
        const auto field = [&](bool has, const std::string& text) {
            const std::size_t comma = line.find(',');
            const std::string read = line.substr(0, comma);
            line = comma == std::string::npos ? std::string{} : line.substr(comma + 1);
            EXPECT_EQ(read, has ? text : std::string{}) << "opcode " << static_cast<int>(kind);
        };
        const bool reth = kind == Kind::write_first || kind == Kind::write_only ||
                          kind == Kind::write_only_immediate || kind == Kind::read_request;
        const bool atomic = kind == Kind::compare_swap || kind == Kind::fetch_add;
        const bool original = kind == Kind::atomic_acknowledge;
        const bool aeth = original || kind == Kind::acknowledge ||
                          kind == Kind::read_response_first || kind == Kind::read_response_last ||
                          kind == Kind::read_response_only;
        const bool immediate =
            kind == Kind::send_last_immediate || kind == Kind::send_only_immediate ||
            kind == Kind::write_last_immediate || kind == Kind::write_only_immediate;
        const bool is_datagram = packet.service == Service::ud;
        field(true, std::to_string(static_cast<int>(packet.service) | static_cast<int>(kind)));
        field(true, std::to_string(packet.psn));
        field(true, "0x" + hex(packet.destination, 6));
        field(reth || atomic, "0x" + hex(packet.address, 16));
        field(reth || atomic, "0x" + hex(packet.remote_key, 8));
        field(reth, std::to_string(packet.length));
        field(atomic, std::to_string(packet.swap_or_add));
        field(atomic, std::to_string(packet.compare));
        field(original, std::to_string(packet.original));
        field(aeth, std::to_string(packet.message_sequence));
        field(is_datagram, "0x" + hex(packet.q_key, 16));
        field(is_datagram, "0x" + hex(packet.source, 8));
        const std::uint32_t as_sent = __builtin_bswap32(packet.immediate);
        field(immediate, hex(as_sent, 8));
    }
}

}  // namespace
}  // namespace millrace::roce
