// Encoding and decoding of frames. Everything decoded here comes from outside and is checked.
#include "wire.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace millrace::connect {
namespace {

constexpr std::array<char, 4> magic{'M', 'L', 'R', 'C'};
constexpr std::size_t max_fabric = 512;
constexpr std::size_t max_reason = 2048;
constexpr std::size_t max_remedy = 512;

class Writer {
  public:
    void integer(std::uint64_t value, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; ++i) {
            bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
        }
    }
    void text(std::string_view value, std::size_t limit) {
        value = value.substr(0, limit);
        integer(value.size(), 2);
        raw(std::as_bytes(std::span{value}));
    }
    void raw(std::span<const std::byte> value) {
        bytes_.insert(bytes_.end(), value.begin(), value.end());
    }
    [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

  private:
    std::vector<std::byte> bytes_;
};

class Reader {
  public:
    Reader(std::span<const std::byte> bytes, std::string_view what) : bytes_{bytes}, what_{what} {}

    std::uint64_t integer(std::size_t bytes) {
        const auto from = take(bytes);
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < bytes; ++i) {
            value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
        }
        return value;
    }
    template <class Integer>
    Integer integer() {
        return static_cast<Integer>(integer(sizeof(Integer)));
    }
    std::string text(std::size_t limit) {
        const std::size_t size = integer(2);
        if (size > limit) malformed();
        const auto from = take(size);
        return printable({reinterpret_cast<const char*>(from.data()), from.size()}, 4 * limit);
    }
    std::span<const std::byte> take(std::size_t size) {
        if (size > bytes_.size()) malformed();
        const auto front = bytes_.first(size);
        bytes_ = bytes_.subspan(size);
        return front;
    }
    template <std::size_t size>
    std::array<std::byte, size> array() {
        std::array<std::byte, size> value;
        std::ranges::copy(take(size), value.begin());
        return value;
    }
    ibv_gid gid() {
        ibv_gid value;
        std::memcpy(value.raw, take(sizeof value.raw).data(), sizeof value.raw);
        return value;
    }
    [[nodiscard]] bool at_end() const noexcept { return bytes_.empty(); }
    [[noreturn]] void malformed() const {
        throw Failure{base::ErrorCode::protocol,
                      fmt::format("the peer's {} message is malformed", what_),
                      "the peer is broken or not a Millrace program"};
    }

  private:
    std::span<const std::byte> bytes_;
    std::string_view what_;
};

// What listens on ports by mistake most often.
std::string_view guess(std::string_view start) noexcept {
    for (const char* verb : {"GET ", "POST", "HEAD", "PUT ", "HTTP", "OPTI", "PRI "}) {
        if (start.starts_with(verb)) return "HTTP";
    }
    if (start.starts_with("SSH-")) return "SSH";
    if (start.starts_with("\x16\x03")) return "TLS";
    if (start.starts_with("220")) return "a mail or file transfer server";
    return {};
}

[[noreturn]] void throw_foreign(std::span<const std::byte> bytes) {
    const std::string_view start{reinterpret_cast<const char*>(bytes.data()),
                                 std::min<std::size_t>(bytes.size(), 8)};
    const std::string_view known = guess(start);
    throw Failure{
        base::ErrorCode::protocol,
        known.empty()
            ? fmt::format("the first bytes were '{}': this is not Millrace", printable(start, 64))
            : fmt::format("the first bytes were '{}': this looks like {}, not Millrace",
                          printable(start, 64), known),
        "check the address: another program uses this port"};
}

}  // namespace

std::vector<std::byte> encode_frame(FrameType type, std::span<const std::byte> body) {
    Writer writer;
    writer.raw(std::as_bytes(std::span{magic}));
    writer.integer(protocol_version, 2);
    writer.integer(static_cast<std::uint16_t>(type), 2);
    writer.integer(body.size(), 4);
    writer.raw(body);
    return writer.take();
}

std::vector<std::byte> encode(const Hello& hello) {
    Writer writer;
    writer.integer(hello.capabilities, 8);
    writer.text(hello.service, max_name);
    writer.integer(hello.service_version, 4);
    writer.integer(hello.queue_pair.number, 4);
    writer.integer(hello.queue_pair.packet_sequence, 4);
    writer.integer(hello.queue_pair.lid, 2);
    writer.integer(hello.queue_pair.has_gid ? 1 : 0, 1);
    writer.raw(std::as_bytes(std::span{hello.queue_pair.gid.raw}));
    writer.integer(hello.mtu, 1);
    writer.integer(hello.ethernet ? 1 : 0, 1);
    writer.integer(hello.soft ? 1 : 0, 1);
    writer.integer(hello.max_reads, 1);
    writer.integer(hello.max_send_requests, 4);
    writer.integer(hello.max_receive_requests, 4);
    writer.integer(hello.max_inline, 4);
    writer.integer(hello.process, 4);
    writer.text(hello.device, max_name);
    writer.text(hello.host, max_name);
    writer.text(hello.fabric, max_fabric);
    writer.integer(hello.has_secret ? 1 : 0, 1);
    writer.raw(hello.nonce);
    writer.integer(static_cast<std::uint8_t>(hello.transport), 1);
    writer.integer(hello.datagram_key, 4);
    writer.integer(hello.listener, 4);
    writer.text(hello.protocol.name, max_name);
    writer.integer(hello.protocol.version, 4);
    writer.integer(hello.wire_port, 2);
    writer.raw(std::as_bytes(std::span{hello.wire_gid.raw}));
    const auto body = writer.take();
    return encode_frame(FrameType::hello, body);
}

std::vector<std::byte> encode(const Ready& ready) {
    Writer writer;
    writer.integer(ready.writes_in_order ? 1 : 0, 1);
    writer.integer(ready.proof.has_value() ? 1 : 0, 1);
    if (ready.proof.has_value()) writer.raw(*ready.proof);
    const auto body = writer.take();
    return encode_frame(FrameType::ready, body);
}

std::vector<std::byte> encode(const Refused& refused) {
    Writer writer;
    writer.integer(static_cast<std::uint64_t>(refused.code), 1);
    writer.text(refused.reason, max_reason);
    writer.text(refused.remedy, max_remedy);
    const auto body = writer.take();
    return encode_frame(FrameType::refused, body);
}

std::vector<std::byte> encode(const Challenge& challenge) {
    return encode_frame(FrameType::challenge, challenge.nonce);
}

std::vector<std::byte> encode(const Proof& proof) {
    return encode_frame(FrameType::proof, proof.digest);
}

Hello decode_hello(std::span<const std::byte> body) {
    Reader reader{body, "hello"};
    Hello hello;
    hello.capabilities = reader.integer<std::uint64_t>();
    hello.service = reader.text(max_name);
    hello.service_version = reader.integer<std::uint32_t>();
    hello.queue_pair.number = reader.integer<std::uint32_t>();
    hello.queue_pair.packet_sequence = reader.integer<std::uint32_t>();
    hello.queue_pair.lid = reader.integer<std::uint16_t>();
    hello.queue_pair.has_gid = reader.integer<std::uint8_t>() != 0;
    hello.queue_pair.gid = reader.gid();
    const auto mtu = reader.integer<std::uint8_t>();
    if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) reader.malformed();
    hello.mtu = static_cast<ibv_mtu>(mtu);
    hello.ethernet = reader.integer<std::uint8_t>() != 0;
    hello.soft = reader.integer<std::uint8_t>() != 0;
    hello.max_reads = reader.integer<std::uint8_t>();
    hello.max_send_requests = reader.integer<std::uint32_t>();
    hello.max_receive_requests = reader.integer<std::uint32_t>();
    hello.max_inline = reader.integer<std::uint32_t>();
    hello.process = reader.integer<std::uint32_t>();
    hello.device = reader.text(max_name);
    hello.host = reader.text(max_name);
    hello.fabric = reader.text(max_fabric);
    hello.has_secret = reader.integer<std::uint8_t>() != 0;
    hello.nonce = reader.array<sizeof(Nonce)>();
    const auto transport = reader.integer<std::uint8_t>();
    if (transport > static_cast<std::uint8_t>(Transport::tcp)) reader.malformed();
    hello.transport = static_cast<Transport>(transport);
    hello.datagram_key = reader.integer<std::uint32_t>();
    if (!reader.at_end()) hello.listener = reader.integer<std::uint32_t>();
    if (!reader.at_end()) {
        hello.protocol.name = reader.text(max_name);
        hello.protocol.version = reader.integer<std::uint32_t>();
    }
    if (!reader.at_end()) {
        hello.wire_port = reader.integer<std::uint16_t>();
        hello.wire_gid = reader.gid();
    }
    // 24 bits on the wire of every RDMA network.
    if (hello.queue_pair.number > 0xffffff || hello.queue_pair.packet_sequence > 0xffffff) {
        reader.malformed();
    }
    return hello;
}

Ready decode_ready(std::span<const std::byte> body) {
    Reader reader{body, "ready"};
    Ready ready{.writes_in_order = reader.integer<std::uint8_t>() != 0};
    if (reader.integer<std::uint8_t>() != 0) ready.proof = reader.array<sizeof(Digest)>();
    return ready;
}

Refused decode_refused(std::span<const std::byte> body) {
    Reader reader{body, "refused"};
    Refused refused;
    const auto code = reader.integer<std::uint8_t>();
    if (code <= static_cast<std::uint8_t>(base::ErrorCode::verbs)) {
        refused.code = static_cast<base::ErrorCode>(code);
    }
    refused.reason = reader.text(max_reason);
    if (!reader.at_end()) refused.remedy = reader.text(max_remedy);  // not in the first releases
    return refused;
}

Challenge decode_challenge(std::span<const std::byte> body) {
    return {Reader{body, "challenge"}.array<sizeof(Nonce)>()};
}

Proof decode_proof(std::span<const std::byte> body) {
    return {Reader{body, "proof"}.array<sizeof(Digest)>()};
}

FrameBuffer::Received FrameBuffer::receive(int socket) {
    constexpr std::size_t chunk = 16 * 1024;
    if (bytes_.size() >= header_bytes + max_link_body) return Received::nothing;  // read it first
    std::byte room[chunk];  // of which a look that finds nothing touches nothing
    ssize_t got;
    do {
        got = recv(socket, room, chunk, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    const int error = got < 0 ? errno : 0;
    if (got > 0) {
        bytes_.insert(bytes_.end(), room, room + got);
        received_ += static_cast<std::uint64_t>(got);
        return Received::some;
    }
    if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return Received::nothing;
    error_ = error;
    return Received::ended;
}

std::optional<Frame> FrameBuffer::next(std::size_t max_body) {
    const std::size_t known = std::min(bytes_.size(), magic.size());
    if (known != 0 && std::memcmp(bytes_.data(), magic.data(), known) != 0) throw_foreign(bytes_);
    if (bytes_.size() < header_bytes) return std::nullopt;
    Reader header{std::span{bytes_}.subspan(magic.size(), header_bytes - magic.size()), "header"};
    const auto version = header.integer<std::uint16_t>();
    const auto type = header.integer<std::uint16_t>();
    const auto size = header.integer<std::uint32_t>();
    if (version != protocol_version) {
        throw Failure{base::ErrorCode::version_mismatch,
                      fmt::format("the peer speaks protocol version {}, this build speaks {}",
                                  version, protocol_version),
                      "run the same release of Millrace at both ends",
                      fmt::format("it speaks protocol version {}, this build speaks {}",
                                  protocol_version, version)};
    }
    if (size > max_body) {
        throw Failure{base::ErrorCode::protocol,
                      fmt::format("the peer announced a message of {} bytes where at most {} are "
                                  "allowed",
                                  size, max_body),
                      "the peer is broken or not a Millrace program"};
    }
    if (type < static_cast<std::uint16_t>(FrameType::hello) ||
        type > static_cast<std::uint16_t>(FrameType::proof)) {
        throw Failure{base::ErrorCode::protocol,
                      fmt::format("the peer sent a message of the unknown type {}", type),
                      "the peer is broken or not a Millrace program"};
    }
    if (bytes_.size() < header_bytes + size) return std::nullopt;
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(header_bytes);
    const auto end = begin + static_cast<std::ptrdiff_t>(size);
    Frame frame{static_cast<FrameType>(type), {begin, end}};
    if (end == bytes_.end()) {
        std::vector<std::byte>{}.swap(bytes_);  // words are rare, and idle links many
    } else {
        bytes_.erase(bytes_.begin(), end);
    }
    return frame;
}

}  // namespace millrace::connect
