// A lying peer of the wire: an input is the bytes of a datagram, from its BTH on.
//
// Required: a packet's payload lies within its bytes; what was read is written as it was read; and
// the ICRC of a packet is right with the identification that it was made with.
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "fuzz/target.hpp"
#include "roce/icrc.hpp"
#include "roce/packet.hpp"

namespace millrace::fuzz {
namespace {

using namespace roce;

constexpr std::size_t most_bytes = 8192;

/// The bytes that say what the packet is, and whose reserved bits nobody looks at, without these.
std::array<std::uint8_t, bth_bytes> meaning_of(std::span<const std::uint8_t> bytes) {
    std::array<std::uint8_t, bth_bytes> header;
    std::memcpy(header.data(), bytes.data(), header.size());
    header[1] |= 0x40;  // path migration
    header[4] = 0;      // congestion
    header[8] &= 0x80;
    return header;
}

void look_at(std::span<const std::uint8_t> bytes) {
    Packet packet{};
    if (parse(bytes, packet) != Defect::none) return;
    const std::size_t headers = header_bytes(packet.service, packet.kind);
    require(headers >= bth_bytes && headers <= most_header_bytes, "headers have an end");
    require(packet.payload.data() == bytes.data() + headers, "the payload follows the headers");
    require(packet.payload.size() <= bytes.size() - headers, "and ends with the packet");
    require(destination_of(bytes) == packet.destination, "the queue pair is found either way");

    std::array<std::uint8_t, most_bytes> again{};
    std::uint8_t* payload = compose(packet, again.data());
    require(payload == again.data() + headers, "the payload goes where it came from");
    std::memcpy(payload, packet.payload.data(), packet.payload.size());
    const auto written = std::span{again}.first(packet_bytes(headers, packet.payload.size()));
    Packet read{};
    require(parse(written, read) == Defect::none, "what was written can be read");
    require(read.payload.size() == packet.payload.size(), "with its payload");
    // A sender may pad more than it has to, and then the BTH says so.
    auto meant = meaning_of(bytes);
    meant[1] = static_cast<std::uint8_t>((meant[1] & ~0x30) | (written[1] & 0x30));
    require(meaning_of(written) == meant, "a packet is written as it was read");
    require(read.address == packet.address && read.remote_key == packet.remote_key &&
                read.length == packet.length && read.swap_or_add == packet.swap_or_add &&
                read.compare == packet.compare && read.immediate == packet.immediate &&
                read.syndrome == packet.syndrome && read.q_key == packet.q_key &&
                read.message_sequence == packet.message_sequence && read.source == packet.source,
            "and so are its other headers");
}

void check(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < bth_bytes + 2) return;
    const auto identification = static_cast<std::uint16_t>(bytes[0] << 8 | bytes[1]);
    const auto packet = bytes.subspan(2);
    Route route;
    route.source[10] = route.source[11] = 0xff;
    route.destination = route.source;
    route.source_port = identification;
    const Icrc icrc{route};
    require(icrc.check(packet, icrc.of(packet, identification)) == identification,
            "the ICRC tells the identification");
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span bytes{data, size < millrace::fuzz::most_bytes ? size : 4096};
    millrace::fuzz::look_at(bytes);
    millrace::fuzz::check(bytes);
    return 0;
}
