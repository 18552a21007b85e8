#include "packet.hpp"

#include <array>
#include <cstring>

#include "psn.hpp"

namespace millrace::roce {
namespace {

constexpr std::size_t deth_bytes = 8;
constexpr std::size_t reth_bytes = 16;
constexpr std::size_t atomic_bytes = 28;
constexpr std::size_t aeth_bytes = 4;
constexpr std::size_t original_bytes = 8;
constexpr std::size_t word_bytes = 4;  ///< of an ImmDt or an IETH

/// What follows the BTH, and whether there is a payload.
enum : std::uint8_t {
    known = 1,
    with_reth = 2,
    with_atomic = 4,
    with_aeth = 8,
    with_original = 16,
    with_immediate = 32,
    with_invalidate = 64,
    with_payload = 128,
};

/// By the lower five bits of the opcode.
constexpr std::array<std::uint8_t, 32> reliable{
    known | with_payload,                                // SEND first
    known | with_payload,                                // middle
    known | with_payload,                                // last
    known | with_immediate | with_payload,               // last with immediate
    known | with_payload,                                // only
    known | with_immediate | with_payload,               // only with immediate
    known | with_reth | with_payload,                    // WRITE first
    known | with_payload,                                // middle
    known | with_payload,                                // last
    known | with_immediate | with_payload,               // last with immediate
    known | with_reth | with_payload,                    // only
    known | with_reth | with_immediate | with_payload,   // only with immediate
    known | with_reth,                                   // READ request
    known | with_aeth | with_payload,                    // READ response first
    known | with_payload,                                // middle
    known | with_aeth | with_payload,                    // last
    known | with_aeth | with_payload,                    // only
    known | with_aeth,                                   // acknowledge
    known | with_aeth | with_original,                   // atomic acknowledge
    known | with_atomic,                                 // compare and swap
    known | with_atomic,                                 // fetch and add
    0,
    known | with_invalidate | with_payload,              // SEND last with invalidate
    known | with_invalidate | with_payload,              // only
};

std::uint8_t parts_of(Service service, Kind kind) noexcept {
    const auto number = static_cast<std::uint8_t>(kind);
    switch (service) {
        case Service::rc: return reliable[number];
        case Service::uc:
            return kind <= Kind::write_only_immediate ? reliable[number] : std::uint8_t{0};
        case Service::ud:
            return kind == Kind::send_only || kind == Kind::send_only_immediate
                       ? reliable[number]
                       : std::uint8_t{0};
        case Service::congestion: return number == (congestion_opcode & 0x1f) ? known : 0;
    }
    return 0;
}

constexpr std::size_t bytes_of(Service service, std::uint8_t parts) noexcept {
    std::size_t bytes = bth_bytes;
    if (service == Service::ud) bytes += deth_bytes;
    if ((parts & with_reth) != 0) bytes += reth_bytes;
    if ((parts & with_atomic) != 0) bytes += atomic_bytes;
    if ((parts & with_aeth) != 0) bytes += aeth_bytes;
    if ((parts & with_original) != 0) bytes += original_bytes;
    if ((parts & (with_immediate | with_invalidate)) != 0) bytes += word_bytes;
    return bytes;
}

std::uint32_t word_at(const std::uint8_t* from) noexcept {
    std::uint32_t word = 0;
    std::memcpy(&word, from, sizeof word);
    return __builtin_bswap32(word);
}
std::uint64_t long_at(const std::uint8_t* from) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, from, sizeof word);
    return __builtin_bswap64(word);
}
void put_word(std::uint8_t* to, std::uint32_t value) noexcept {
    value = __builtin_bswap32(value);
    std::memcpy(to, &value, sizeof value);
}
void put_long(std::uint8_t* to, std::uint64_t value) noexcept {
    value = __builtin_bswap64(value);
    std::memcpy(to, &value, sizeof value);
}

constexpr std::uint8_t solicited_bit = 0x80;
/// "Migrated": path migration is at rest, as everybody says who does not migrate.
constexpr std::uint8_t migration_bit = 0x40;
constexpr std::uint8_t version_bits = 0x0f;
/// A congestion notification has 16 reserved bytes after its BTH.
constexpr std::size_t notification_bytes = 16;

}  // namespace

std::size_t header_bytes(Service service, Kind kind) noexcept {
    const std::uint8_t parts = parts_of(service, kind);
    return parts == 0 ? 0 : bytes_of(service, parts);
}

Defect parse(std::span<const std::uint8_t> bytes, Packet& packet) noexcept {
    if (bytes.size() < bth_bytes) return Defect::short_of_headers;
    const std::uint8_t* at = bytes.data();
    packet.service = static_cast<Service>(at[0] & 0xe0);
    packet.kind = static_cast<Kind>(at[0] & 0x1f);
    const std::uint8_t parts = parts_of(packet.service, packet.kind);
    if (parts == 0 || (at[1] & version_bits) != 0) return Defect::unknown_opcode;
    const std::size_t headers = bytes_of(packet.service, parts);
    const std::size_t padding = at[1] >> 4 & 3;
    if (bytes.size() < headers + padding) return Defect::short_of_headers;

    packet.solicited = (at[1] & solicited_bit) != 0;
    packet.partition_key = static_cast<std::uint16_t>(at[2] << 8 | at[3]);
    packet.destination = word_at(at + 4) & psn_mask;
    const std::uint32_t sequence = word_at(at + 8);
    packet.asks_acknowledge = sequence >> 31 != 0;
    packet.psn = sequence & psn_mask;
    at += bth_bytes;
    if (packet.service == Service::ud) {
        packet.q_key = word_at(at);
        packet.source = word_at(at + 4) & psn_mask;
        at += deth_bytes;
    }
    if ((parts & with_reth) != 0) {
        packet.address = long_at(at);
        packet.remote_key = word_at(at + 8);
        packet.length = word_at(at + 12);
        at += reth_bytes;
    }
    if ((parts & with_atomic) != 0) {
        packet.address = long_at(at);
        packet.remote_key = word_at(at + 8);
        packet.swap_or_add = long_at(at + 12);
        packet.compare = long_at(at + 20);
    }
    if ((parts & with_aeth) != 0) {
        const std::uint32_t aeth = word_at(at);
        packet.syndrome = static_cast<std::uint8_t>(aeth >> 24);
        packet.message_sequence = aeth & psn_mask;
        at += aeth_bytes;
    }
    if ((parts & with_original) != 0) packet.original = long_at(at);
    if ((parts & with_immediate) != 0) std::memcpy(&packet.immediate, at, word_bytes);
    if ((parts & with_invalidate) != 0) packet.invalidate_key = word_at(at);

    const std::size_t rest = bytes.size() - headers - padding;
    packet.payload = bytes.subspan(headers, rest);
    if ((parts & with_payload) != 0 || rest == 0) return Defect::none;
    if (packet.service == Service::congestion && rest == notification_bytes) return Defect::none;
    return Defect::payload;
}

std::uint8_t* compose(const Packet& packet, std::uint8_t* room) noexcept {
    const std::uint8_t parts = parts_of(packet.service, packet.kind);
    const std::size_t padding = -packet.payload.size() & 3;
    std::uint8_t* at = room;
    at[0] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(packet.service) |
                                      static_cast<std::uint8_t>(packet.kind));
    at[1] = static_cast<std::uint8_t>((packet.solicited ? solicited_bit : 0) | migration_bit |
                                      padding << 4);
    at[2] = static_cast<std::uint8_t>(packet.partition_key >> 8);
    at[3] = static_cast<std::uint8_t>(packet.partition_key);
    put_word(at + 4, packet.destination);
    put_word(at + 8, packet.psn | (packet.asks_acknowledge ? 1U << 31 : 0));
    at += bth_bytes;
    if (packet.service == Service::ud) {
        put_word(at, packet.q_key);
        put_word(at + 4, packet.source);
        at += deth_bytes;
    }
    if ((parts & with_reth) != 0) {
        put_long(at, packet.address);
        put_word(at + 8, packet.remote_key);
        put_word(at + 12, packet.length);
        at += reth_bytes;
    }
    if ((parts & with_atomic) != 0) {
        put_long(at, packet.address);
        put_word(at + 8, packet.remote_key);
        put_long(at + 12, packet.swap_or_add);
        put_long(at + 20, packet.compare);
        at += atomic_bytes;
    }
    if ((parts & with_aeth) != 0) {
        put_word(at, static_cast<std::uint32_t>(packet.syndrome) << 24 | packet.message_sequence);
        at += aeth_bytes;
    }
    if ((parts & with_original) != 0) {
        put_long(at, packet.original);
        at += original_bytes;
    }
    if ((parts & with_immediate) != 0) {
        std::memcpy(at, &packet.immediate, word_bytes);
        at += word_bytes;
    }
    if ((parts & with_invalidate) != 0) {
        put_word(at, packet.invalidate_key);
        at += word_bytes;
    }
    std::memset(at + packet.payload.size(), 0, padding);
    return at;
}

}  // namespace millrace::roce
