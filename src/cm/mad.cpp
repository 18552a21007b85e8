// Each message's layout is written once, as a function over its fields: a Writer puts them into the
// bytes, a Reader takes them out.
#include "mad.hpp"

#include <algorithm>
#include <concepts>
#include <type_traits>
#include <utility>

namespace millrace::cm {
namespace {

constexpr std::size_t header_bytes = 24;
constexpr std::uint8_t base_version = 1;
constexpr std::uint8_t cm_class = 7;
constexpr std::uint8_t cm_class_version = 2;
constexpr std::uint8_t method_send = 3;

/// A field of the MAD: `width` bits, of which the first is bit `bit` of byte `byte`, the bit of
/// weight 128 being bit 0.
struct Field {
    std::size_t byte;
    std::size_t bit;
    std::size_t width;
};

void put_bits(std::span<std::uint8_t> bytes, Field field, std::uint64_t value) noexcept {
    for (std::size_t i = 0; i < field.width; ++i) {
        const std::size_t place = field.byte * 8 + field.bit + i;
        const auto mask = static_cast<std::uint8_t>(0x80U >> (place % 8));
        if ((value >> (field.width - 1 - i) & 1) != 0) bytes[place / 8] |= mask;
    }
}

std::uint64_t bits_of(std::span<const std::uint8_t> bytes, Field field) noexcept {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < field.width; ++i) {
        const std::size_t place = field.byte * 8 + field.bit + i;
        value = value << 1 | (bytes[place / 8] >> (7 - place % 8) & 1U);
    }
    return value;
}

/// Into bytes that are zero. Places count from the end of the header.
class Writer {
  public:
    explicit Writer(std::span<std::uint8_t> bytes) noexcept : bytes_{bytes} {}

    template <class Number>
    void bits(std::size_t byte, std::size_t bit, std::size_t width, const Number& value) noexcept {
        put_bits(bytes_, {byte, bit, width}, static_cast<std::uint64_t>(value));
    }
    template <class Number>
    void number(std::size_t byte, const Number& value) noexcept {
        bits(byte, 0, 8 * sizeof value, value);
    }
    template <std::size_t Size>
    void block(std::size_t byte, const std::array<std::uint8_t, Size>& value) noexcept {
        std::ranges::copy(value, bytes_.subspan(byte, Size).begin());
    }

  private:
    std::span<std::uint8_t> bytes_;
};

class Reader {
  public:
    explicit Reader(std::span<const std::uint8_t> bytes) noexcept : bytes_{bytes} {}

    template <class Number>
    void bits(std::size_t byte, std::size_t bit, std::size_t width, Number& value) noexcept {
        value = static_cast<Number>(bits_of(bytes_, {byte, bit, width}));
    }
    template <class Number>
    void number(std::size_t byte, Number& value) noexcept {
        bits(byte, 0, 8 * sizeof value, value);
    }
    template <std::size_t Size>
    void block(std::size_t byte, std::array<std::uint8_t, Size>& value) noexcept {
        std::ranges::copy(bytes_.subspan(byte, Size), value.begin());
    }

  private:
    std::span<const std::uint8_t> bytes_;
};

/// `Message`, const for a Writer.
template <class Type, class Message>
concept Of = std::same_as<std::remove_const_t<Type>, Message>;

template <class Bytes, Of<Path> Message>
void lay(Bytes& at, std::size_t place, Message& path) noexcept {
    at.number(place, path.local_lid);
    at.number(place + 2, path.remote_lid);
    at.block(place + 4, path.local_gid);
    at.block(place + 20, path.remote_gid);
    at.bits(place + 36, 0, 20, path.flow_label);
    at.bits(place + 39, 2, 6, path.packet_rate);
    at.number(place + 40, path.traffic_class);
    at.number(place + 41, path.hop_limit);
    at.bits(place + 42, 0, 4, path.service_level);
    at.bits(place + 42, 4, 1, path.subnet_local);
    at.bits(place + 43, 0, 5, path.local_ack_timeout);
}

template <class Bytes, Of<Req> Message>
void lay(Bytes& at, Message& req) noexcept {
    at.number(0, req.local_comm_id);
    at.number(8, req.service_id);
    at.number(16, req.local_ca_guid);
    at.number(28, req.local_q_key);
    at.bits(32, 0, 24, req.local_qpn);
    at.number(35, req.responder_resources);
    at.number(39, req.initiator_depth);
    at.bits(43, 0, 5, req.remote_response_timeout);
    at.bits(43, 5, 2, req.transport);
    at.bits(43, 7, 1, req.end_to_end_flow_control);
    at.bits(44, 0, 24, req.starting_psn);
    at.bits(47, 0, 5, req.local_response_timeout);
    at.bits(47, 5, 3, req.retry_count);
    at.number(48, req.partition_key);
    at.bits(50, 0, 4, req.path_mtu);
    at.bits(50, 5, 3, req.rnr_retry_count);
    at.bits(51, 0, 4, req.max_cm_retries);
    at.bits(51, 4, 1, req.srq);
    lay(at, 52, req.primary);
    lay(at, 96, req.alternate);
    at.block(140, req.private_data);
}

template <class Bytes, Of<Mra> Message>
void lay(Bytes& at, Message& mra) noexcept {
    at.number(0, mra.local_comm_id);
    at.number(4, mra.remote_comm_id);
    at.bits(8, 0, 2, mra.answered);
    at.bits(9, 0, 5, mra.service_timeout);
    at.block(10, mra.private_data);
}

template <class Bytes, Of<Rej> Message>
void lay(Bytes& at, Message& rej) noexcept {
    at.number(0, rej.local_comm_id);
    at.number(4, rej.remote_comm_id);
    at.bits(8, 0, 2, rej.answered);
    at.bits(9, 0, 7, rej.information_size);
    at.number(10, rej.reason);
    at.block(12, rej.information);
    at.block(84, rej.private_data);
}

template <class Bytes, Of<Rep> Message>
void lay(Bytes& at, Message& rep) noexcept {
    at.number(0, rep.local_comm_id);
    at.number(4, rep.remote_comm_id);
    at.number(8, rep.local_q_key);
    at.bits(12, 0, 24, rep.local_qpn);
    at.bits(20, 0, 24, rep.starting_psn);
    at.number(24, rep.responder_resources);
    at.number(25, rep.initiator_depth);
    at.bits(26, 0, 5, rep.target_ack_delay);
    at.bits(26, 5, 2, rep.failover_accepted);
    at.bits(26, 7, 1, rep.end_to_end_flow_control);
    at.bits(27, 0, 3, rep.rnr_retry_count);
    at.bits(27, 3, 1, rep.srq);
    at.number(28, rep.local_ca_guid);
    at.block(36, rep.private_data);
}

template <class Bytes, Of<Rtu> Message>
void lay(Bytes& at, Message& rtu) noexcept {
    at.number(0, rtu.local_comm_id);
    at.number(4, rtu.remote_comm_id);
    at.block(8, rtu.private_data);
}

template <class Bytes, Of<Dreq> Message>
void lay(Bytes& at, Message& dreq) noexcept {
    at.number(0, dreq.local_comm_id);
    at.number(4, dreq.remote_comm_id);
    at.bits(8, 0, 24, dreq.remote_qpn);
    at.block(12, dreq.private_data);
}

template <class Bytes, Of<Drep> Message>
void lay(Bytes& at, Message& drep) noexcept {
    at.number(0, drep.local_comm_id);
    at.number(4, drep.remote_comm_id);
    at.block(8, drep.private_data);
}

template <class Bytes, Of<SidrReq> Message>
void lay(Bytes& at, Message& req) noexcept {
    at.number(0, req.request_id);
    at.number(4, req.partition_key);
    at.number(8, req.service_id);
    at.block(16, req.private_data);
}

template <class Bytes, Of<SidrRep> Message>
void lay(Bytes& at, Message& rep) noexcept {
    at.number(0, rep.request_id);
    at.number(4, rep.status);
    at.number(5, rep.information_size);
    at.bits(8, 0, 24, rep.qpn);
    at.number(12, rep.service_id);
    at.number(20, rep.q_key);
    at.block(24, rep.information);
    at.block(96, rep.private_data);
}

template <class Message>
constexpr Attribute attribute_of_message = [] {
    if constexpr (std::same_as<Message, Req>) return Attribute::req;
    if constexpr (std::same_as<Message, Mra>) return Attribute::mra;
    if constexpr (std::same_as<Message, Rej>) return Attribute::rej;
    if constexpr (std::same_as<Message, Rep>) return Attribute::rep;
    if constexpr (std::same_as<Message, Rtu>) return Attribute::rtu;
    if constexpr (std::same_as<Message, Dreq>) return Attribute::dreq;
    if constexpr (std::same_as<Message, Drep>) return Attribute::drep;
    if constexpr (std::same_as<Message, SidrReq>) return Attribute::sidr_req;
    if constexpr (std::same_as<Message, SidrRep>) return Attribute::sidr_rep;
}();

/// The one of the variant's messages that has this attribute, empty.
template <class... Messages>
bool choose(std::variant<Messages...>& body, std::uint16_t attribute) noexcept {
    const auto is = [&]<class Message>(std::type_identity<Message>) {
        if (attribute != static_cast<std::uint16_t>(attribute_of_message<Message>)) return false;
        body.template emplace<Message>();
        return true;
    };
    return (is(std::type_identity<Messages>{}) || ...);
}

}  // namespace

Attribute attribute_of(const Mad& mad) noexcept {
    return std::visit([]<class Message>(const Message&) { return attribute_of_message<Message>; },
                      mad.body);
}

MadBytes encode(const Mad& mad) noexcept {
    MadBytes bytes{};
    Writer header{bytes};
    header.number(0, base_version);
    header.number(1, cm_class);
    header.number(2, cm_class_version);
    header.number(3, method_send);
    header.number(8, mad.transaction);
    header.number(16, attribute_of(mad));
    Writer at{std::span{bytes}.subspan(header_bytes)};
    std::visit([&](const auto& message) { lay(at, message); }, mad.body);
    return bytes;
}

std::optional<Mad> decode(std::span<const std::uint8_t> bytes) noexcept {
    if (bytes.size() != mad_bytes || bytes[0] != base_version || bytes[1] != cm_class ||
        bytes[2] != cm_class_version || bytes[3] != method_send) {
        return std::nullopt;
    }
    Reader header{bytes};
    Mad mad;
    header.number(8, mad.transaction);
    std::uint16_t attribute = 0;
    header.number(16, attribute);
    if (!choose(mad.body, attribute)) return std::nullopt;
    Reader at{bytes.subspan(header_bytes)};
    std::visit([&](auto& message) { lay(at, message); }, mad.body);
    return mad;
}

std::optional<PortSpace> port_space_of(std::uint64_t service) noexcept {
    for (const PortSpace space :
         {PortSpace::ipoib, PortSpace::tcp, PortSpace::udp, PortSpace::ib}) {
        if (service >> 16 == static_cast<std::uint16_t>(space)) return space;
    }
    return std::nullopt;
}

//   byte 0  version 0
//        1  IP version (4 bits) | 0
//        2  source port
//        4  source address: IPv6, or 12 zeros and IPv4
//       20  destination address
void put_address_header(const AddressHeader& header,
                        std::span<std::uint8_t> private_data) noexcept {
    const auto bytes = private_data.first(address_header_bytes);
    std::ranges::fill(bytes, std::uint8_t{0});
    Writer at{bytes};
    at.bits(1, 0, 4, header.ip_version);
    at.number(2, header.source_port);
    at.block(4, header.source);
    at.block(20, header.destination);
}

std::optional<AddressHeader> address_header_of(
    std::span<const std::uint8_t> private_data) noexcept {
    if (private_data.size() < address_header_bytes || private_data[0] != 0) return std::nullopt;
    Reader at{private_data};
    AddressHeader header;
    at.bits(1, 0, 4, header.ip_version);
    at.number(2, header.source_port);
    at.block(4, header.source);
    at.block(20, header.destination);
    if (header.ip_version != 4 && header.ip_version != 6) return std::nullopt;
    return header;
}

}  // namespace millrace::cm
