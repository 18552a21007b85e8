// The wire format against what a peer, or something that is none, may send.
#include "wire.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace millrace::connect {
namespace {

using testing::HasSubstr;

/// A FrameBuffer fed through a socket, as in real life.
class Wire {
  public:
    Wire() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_.data()), 0); }
    ~Wire() {
        close(ends_[0]);
        if (ends_[1] >= 0) close(ends_[1]);
    }
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    void put(std::span<const std::byte> bytes) {
        ASSERT_EQ(write(ends_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        while (buffer.receive(ends_[0]) == FrameBuffer::Received::some) {
        }
    }
    void put(std::string_view text) { put(std::as_bytes(std::span{text})); }
    void hang_up() {
        close(ends_[1]);
        ends_[1] = -1;
    }
    FrameBuffer::Received receive() { return buffer.receive(ends_[0]); }

    FrameBuffer buffer;

  private:
    std::array<int, 2> ends_{-1, -1};
};

Hello sample() {
    Hello hello;
    hello.capabilities = 0x8000000000000005;
    hello.service = "flow";
    hello.service_version = 3;
    hello.queue_pair = {
        .number = 0xabcdef, .packet_sequence = 0x123456, .lid = 77, .has_gid = true};
    for (int i = 0; i < 16; ++i) hello.queue_pair.gid.raw[i] = static_cast<std::uint8_t>(i + 1);
    hello.mtu = IBV_MTU_2048;
    hello.ethernet = true;
    hello.soft = true;
    hello.max_reads = 16;
    hello.max_send_requests = 128;
    hello.max_receive_requests = 17;
    hello.max_inline = 64;
    hello.process = 4711;
    hello.device = "soft0";
    hello.host = "host";
    hello.fabric = "fabric 'default'";
    hello.has_secret = true;
    hello.nonce.fill(std::byte{0x5a});
    hello.transport = Transport::ud;
    hello.datagram_key = 0x11223344;
    hello.listener = 5;
    hello.protocol = {.name = "orders", .version = 9};
    hello.wire_port = 4791;
    hello.wire_gid.raw[15] = 7;
    return hello;
}

std::string failure_of(FrameBuffer& buffer) {
    try {
        (void)buffer.next(max_handshake_body);
        return "none";
    } catch (const Failure& failure) {
        return failure.cause;
    }
}

std::span<const std::byte> body_of(const std::vector<std::byte>& frame) {
    return std::span{frame}.subspan(header_bytes);
}

TEST(Wire, CarriesAHelloUnchanged) {
    const Hello sent = sample();
    Wire wire;
    wire.put(encode(sent));
    const auto frame = wire.buffer.next(max_handshake_body);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->type, FrameType::hello);
    const Hello got = decode_hello(frame->body);
    EXPECT_EQ(got.capabilities, sent.capabilities);
    EXPECT_EQ(got.service, sent.service);
    EXPECT_EQ(got.service_version, sent.service_version);
    EXPECT_EQ(got.queue_pair.number, sent.queue_pair.number);
    EXPECT_EQ(got.queue_pair.packet_sequence, sent.queue_pair.packet_sequence);
    EXPECT_EQ(got.queue_pair.lid, sent.queue_pair.lid);
    EXPECT_EQ(got.queue_pair.has_gid, sent.queue_pair.has_gid);
    EXPECT_EQ(std::memcmp(&got.queue_pair.gid, &sent.queue_pair.gid, sizeof(ibv_gid)), 0);
    EXPECT_EQ(got.mtu, sent.mtu);
    EXPECT_EQ(got.ethernet, sent.ethernet);
    EXPECT_EQ(got.soft, sent.soft);
    EXPECT_EQ(got.max_reads, sent.max_reads);
    EXPECT_EQ(got.max_send_requests, sent.max_send_requests);
    EXPECT_EQ(got.max_receive_requests, sent.max_receive_requests);
    EXPECT_EQ(got.max_inline, sent.max_inline);
    EXPECT_EQ(got.process, sent.process);
    EXPECT_EQ(got.device, sent.device);
    EXPECT_EQ(got.host, sent.host);
    EXPECT_EQ(got.fabric, sent.fabric);
    EXPECT_EQ(got.has_secret, sent.has_secret);
    EXPECT_EQ(got.nonce, sent.nonce);
    EXPECT_EQ(got.transport, sent.transport);
    EXPECT_EQ(got.datagram_key, sent.datagram_key);
    EXPECT_EQ(got.listener, sent.listener);
    EXPECT_EQ(got.protocol.name, sent.protocol.name);
    EXPECT_EQ(got.protocol.version, sent.protocol.version);
    EXPECT_EQ(got.wire_port, sent.wire_port);
    EXPECT_EQ(std::memcmp(&got.wire_gid, &sent.wire_gid, sizeof(ibv_gid)), 0);
    EXPECT_FALSE(wire.buffer.next(max_handshake_body)) << "nothing is left";
}

/// What older releases do not say: a listener, after it the program's protocol, and after that how
/// the wire reaches them.
constexpr std::size_t wire_bytes = 2 + sizeof(ibv_gid);
constexpr std::size_t protocol_bytes = 2 + std::string_view{"orders"}.size() + 4;
constexpr std::size_t listener_bytes = 4;

TEST(Wire, TakesAHelloOfAReleaseThatHasNoWire) {
    const std::vector<std::byte> frame = encode(sample());
    const auto body = body_of(frame);
    const Hello older = decode_hello(body.first(body.size() - wire_bytes));
    EXPECT_EQ(older.wire_port, 0);
    EXPECT_EQ(older.protocol.version, sample().protocol.version);
    EXPECT_THROW((void)decode_hello(body.first(body.size() - 1)), Failure);
}

TEST(Wire, TakesAHelloThatAsksForNoListenerAndOneThatNamesNoProtocol) {
    const std::vector<std::byte> frame = encode(sample());
    const auto body = body_of(frame).first(body_of(frame).size() - wire_bytes);
    const Hello nameless = decode_hello(body.first(body.size() - protocol_bytes));
    EXPECT_EQ(nameless.listener, sample().listener);
    EXPECT_TRUE(nameless.protocol.name.empty());
    EXPECT_EQ(decode_hello(body.first(body.size() - protocol_bytes - listener_bytes)).listener,
              LinkOptions::any_listener);
}

TEST(Wire, HasTheByteOrderItsDrawingSays) {
    const std::vector<std::byte> frame = encode(Ready{.writes_in_order = true});
    const std::vector<std::byte> expected{
        std::byte{'M'}, std::byte{'L'}, std::byte{'R'}, std::byte{'C'}, std::byte{3},
        std::byte{0},   std::byte{2},   std::byte{0},   std::byte{2},   std::byte{0},
        std::byte{0},   std::byte{0},   std::byte{1},   std::byte{0}};
    EXPECT_EQ(frame, expected);
}

TEST(Wire, CarriesChallengesAndProofsUnchanged) {
    Challenge challenge;
    challenge.nonce.fill(std::byte{1});
    Proof proof;
    proof.digest.fill(std::byte{2});
    const std::vector<std::byte> asked = encode(challenge);
    const std::vector<std::byte> answered = encode(proof);
    const std::vector<std::byte> ready = encode(Ready{.proof = proof.digest});
    EXPECT_EQ(decode_challenge(body_of(asked)).nonce, challenge.nonce);
    EXPECT_EQ(decode_proof(body_of(answered)).digest, proof.digest);
    EXPECT_EQ(decode_ready(body_of(ready)).proof, proof.digest);
    const std::vector<std::byte> without = encode(Ready{});
    EXPECT_FALSE(decode_ready(body_of(without)).proof.has_value());
}

TEST(Wire, RefusesChallengesAndProofsCutShort) {
    const std::vector<std::byte> asked = encode(Challenge{});
    const std::vector<std::byte> answered = encode(Proof{});
    const std::vector<std::byte> ready = encode(Ready{.proof = Digest{}});
    for (std::size_t size = 0; size < sizeof(Nonce); ++size) {
        EXPECT_THROW((void)decode_challenge(body_of(asked).first(size)), Failure) << size;
        EXPECT_THROW((void)decode_proof(body_of(answered).first(size)), Failure) << size;
        EXPECT_THROW((void)decode_ready(body_of(ready).first(size)), Failure) << size;
    }
}

TEST(Wire, PutsFramesTogetherThatComeByteByByte) {
    const std::vector<std::byte> frame = encode(sample());
    Wire wire;
    for (std::size_t i = 0; i < frame.size(); ++i) {
        EXPECT_FALSE(wire.buffer.next(max_handshake_body)) << i;
        wire.put(std::span{frame}.subspan(i, 1));
    }
    EXPECT_TRUE(wire.buffer.next(max_handshake_body));
}

TEST(Wire, SeparatesFramesThatComeTogether) {
    std::vector<std::byte> both = encode(sample());
    const std::vector<std::byte> second = encode(Ready{});
    both.insert(both.end(), second.begin(), second.end());
    Wire wire;
    wire.put(both);
    EXPECT_EQ(wire.buffer.next(max_handshake_body)->type, FrameType::hello);
    EXPECT_EQ(wire.buffer.next(max_handshake_body)->type, FrameType::ready);
}

TEST(Wire, CarriesARefusalWithItsRemedyOrWithoutOne) {
    const std::vector<std::byte> frame =
        encode(Refused{base::ErrorCode::refused, "it is full", "come again"});
    const auto body = std::span{frame}.subspan(header_bytes);
    EXPECT_EQ(decode_refused(body).reason, "it is full");
    EXPECT_EQ(decode_refused(body).remedy, "come again");
    const Refused earlier = decode_refused(body.first(body.size() - 2 - 10));
    EXPECT_EQ(earlier.reason, "it is full");
    EXPECT_EQ(earlier.remedy, "");
}

TEST(Wire, CarriesABackslashUnchanged) {
    const std::string fabric = printable("fabric 'a\\b'", 512);
    const std::vector<std::byte> frame = encode(Hello{.service = "link", .fabric = fabric});
    EXPECT_EQ(decode_hello(std::span{frame}.subspan(header_bytes)).fabric, fabric);
}

TEST(Wire, IgnoresWhatALaterReleaseAddsToABody) {
    const std::vector<std::byte> frame = encode(sample());
    std::vector<std::byte> body(body_of(frame).begin(), body_of(frame).end());
    body.insert(body.end(), 100, std::byte{0xee});
    EXPECT_EQ(decode_hello(body).fabric, sample().fabric);
}

TEST(Wire, RefusesAHelloCutShortAnywhere) {
    const std::vector<std::byte> frame = encode(sample());
    const auto body = body_of(frame);
    for (std::size_t size = 0; size < body.size(); ++size) {
        const std::size_t missing = body.size() - size;
        if (missing == wire_bytes || missing == wire_bytes + protocol_bytes ||
            missing == wire_bytes + protocol_bytes + listener_bytes) {
            continue;
        }
        EXPECT_THROW((void)decode_hello(body.first(size)), Failure) << size;
    }
    EXPECT_NO_THROW((void)decode_hello(body));
}

TEST(Wire, SurvivesRandomBodies) {
    std::mt19937 random{20261121};
    for (int round = 0; round < 20'000; ++round) {
        const std::vector<std::byte> frame = encode(sample());
        std::vector<std::byte> body(body_of(frame).begin(), body_of(frame).end());
        for (int i = 0; i < 3; ++i) body[random() % body.size()] = static_cast<std::byte>(random());
        try {
            const Hello hello = decode_hello(body);
            EXPECT_LE(hello.queue_pair.number, 0xffffffU);
            EXPECT_LE(hello.mtu, IBV_MTU_4096);
        } catch (const Failure& failure) {
            EXPECT_EQ(failure.code, base::ErrorCode::protocol);
        }
    }
}

TEST(Wire, NamesBothVersions) {
    std::vector<std::byte> frame = encode(sample());
    frame[4] = std::byte{4};
    Wire wire;
    wire.put(frame);
    EXPECT_EQ(failure_of(wire.buffer), "the peer speaks protocol version 4, this build speaks 3");
}

TEST(Wire, RecognisesWhatOtherServicesSay) {
    const std::pair<const char*, const char*> cases[] = {
        {"GET / HTTP/1.1\r\n", "'GET / HT': this looks like HTTP"},
        {"HTTP/1.1 400 Bad Request", "HTTP"},
        {"SSH-2.0-OpenSSH_9.2", "SSH"},
        {"\x16\x03\x01\x02", "TLS"},
        {"220 mail.example ESMTP", "mail"},
        {"\x01\x02\x03", "'\\x01\\x02\\x03': this is not Millrace"},
        {"MLRX", "this is not Millrace"},
    };
    for (const auto& [said, heard] : cases) {
        Wire wire;
        wire.put(said);
        EXPECT_THAT(failure_of(wire.buffer), HasSubstr(heard)) << said;
    }
}

TEST(Wire, RefusesLongMessagesBeforeTheyCome) {
    std::vector<std::byte> frame = encode(Ready{});
    frame[8] = frame[9] = frame[10] = frame[11] = std::byte{0xff};
    Wire wire;
    wire.put(std::span{frame}.first(header_bytes));
    EXPECT_THAT(failure_of(wire.buffer), HasSubstr("4294967295 bytes"));
}

TEST(Wire, RefusesUnknownTypes) {
    for (const int type : {0, 8, 255}) {
        std::vector<std::byte> frame = encode(Ready{});
        frame[6] = static_cast<std::byte>(type);
        Wire wire;
        wire.put(frame);
        EXPECT_THAT(failure_of(wire.buffer), HasSubstr("unknown type")) << type;
    }
}

TEST(Wire, HoldsABoundedAmountOfAFlood) {
    Wire wire;
    const std::vector<std::byte> frame = encode_frame(FrameType::exchange, {});
    std::vector<std::byte> flood;
    while (flood.size() < 60'000) flood.insert(flood.end(), frame.begin(), frame.end());
    for (int i = 0; i < 3; ++i) wire.put(flood);
    EXPECT_LE(wire.buffer.received(), header_bytes + max_link_body + 16 * 1024);
}

TEST(Wire, TellsTheEnd) {
    Wire wire;
    EXPECT_EQ(wire.receive(), FrameBuffer::Received::nothing);
    wire.hang_up();
    EXPECT_EQ(wire.receive(), FrameBuffer::Received::ended);
    EXPECT_EQ(wire.buffer.error(), 0);
}

}  // namespace
}  // namespace millrace::connect
