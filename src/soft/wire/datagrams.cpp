#include "wire/datagrams.hpp"

#include <arpa/inet.h>
#include <netinet/ip.h>

#include <cstddef>
#include <cstring>
#include <exception>

#include "datagram/address_handle.hpp"
#include "fabric/copy_in_order.hpp"
#include "fabric/node.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "process/process.hpp"
#include "roce/packet.hpp"
#include "roce/unreliable.hpp"
#include "wire/destination.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint32_t udp_and_check_bytes = 8 + 4;
constexpr std::uint8_t usual_time_to_live = 64;
/// What adapters say of a datagram in its completion's service level, as RoCE has none there: that
/// it had a UDP header, and one of which IP. UCX looks there for how the 40 bytes are to be read.
constexpr std::uint32_t by_udp = 8;
constexpr std::uint32_t by_ipv6 = 1;
constexpr std::uint32_t by_ipv4 = 2;

/// What stands before a datagram: an IPv6 header is a GRH.
union HeaderInGrh {
    Ipv4InGrh four;
    ibv_grh six;
};

/// As it came, as far as a socket tells.
[[nodiscard]] ibv_grh ipv6_header_of(const WirePacket& packet, const UdpAddress& to) noexcept {
    ibv_grh grh{};
    grh.version_tclass_flow = htonl(std::uint32_t{6} << 28);
    grh.paylen = htons(static_cast<std::uint16_t>(udp_and_check_bytes + packet.bytes.size()));
    grh.next_hdr = IPPROTO_UDP;
    grh.hop_limit = usual_time_to_live;
    grh.sgid = packet.from.ip.gid();
    grh.dgid = to.ip.gid();
    return grh;
}

[[nodiscard]] Ipv4InGrh ipv4_header_of(const WirePacket& packet, const UdpAddress& to) noexcept {
    Ipv4InGrh grh{};
    iphdr& header = grh.header;
    header.version = 4;
    header.ihl = sizeof(iphdr) / 4;
    header.tot_len = htons(
        static_cast<std::uint16_t>(sizeof(iphdr) + udp_and_check_bytes + packet.bytes.size()));
    header.frag_off = htons(IP_DF);
    header.ttl = usual_time_to_live;
    header.protocol = IPPROTO_UDP;
    header.saddr = htonl(packet.from.ip.ipv4());
    header.daddr = htonl(to.ip.ipv4());
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < sizeof(iphdr) / 2; ++i) {
        std::uint16_t word;
        std::memcpy(&word, reinterpret_cast<const std::byte*>(&header) + 2 * i, sizeof word);
        sum += word;
    }
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    header.check = static_cast<std::uint16_t>(~sum);
    return grh;
}

}  // namespace

Datagrams::Datagrams(WirePort& port, Process& process, std::uint32_t qpn)
    : port_{port}, process_{process}, qpn_{qpn} {
    if (!port_.add(qpn_, *this, {})) {
        throw base::Error{base::ErrorCode::invalid_argument, "create a queue pair for the wire",
                          std::to_string(qpn), "its number is in use at the port",
                          "open the device in one process only"};
    }
}

Datagrams::~Datagrams() { port_.remove(qpn_); }

bool Datagrams::carries(const ibv_ah_attr& attributes, std::uint32_t qpn) noexcept {
    to_ = nullptr;
    try {
        const auto address = address_on_wire(process_, attributes, qpn);
        if (!address) return false;
        auto& route = routes_[*address];
        if (route == nullptr) route = port_.route(*address);
        to_ = route.get();
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "wire", "cannot reach queue pair {:#x}: {}", qpn,
                  error.what());
    }
    return to_ != nullptr;
}

bool Datagrams::send(const DatagramMessage& message, std::uint32_t qpn) noexcept {
    if (message.bytes > 128U << port_.mtu()) return false;
    roce::Datagram datagram{};
    datagram.destination = qpn;
    datagram.source = message.source;
    datagram.q_key = message.qkey;
    datagram.psn = psn_ = (psn_ + 1) & 0xffffff;
    datagram.partition_key = roce::default_partition_key;
    datagram.solicited = (message.flags & completion_solicited) != 0;
    datagram.has_immediate = (message.flags & completion_immediate) != 0;
    datagram.immediate = message.immediate;
    datagram.length = message.bytes;
    WireOutlet outlet{*to_};
    auto* at = reinterpret_cast<std::byte*>(roce::begin_datagram(datagram, outlet));
    if (at == nullptr) return false;
    for (std::uint32_t i = 0; i < message.count; ++i) {
        const Piece& piece = message.pieces[i];
        if (piece.at.direct == nullptr) {
            std::memset(at, 0, piece.length);
        } else {
            copy_in_order(at, piece.at.direct, piece.length);
        }
        at += piece.length;
    }
    outlet.commit();
    return true;
}

void Datagrams::arrived(const WirePacket& packet) noexcept {
    roce::Packet parsed;
    if (roce::parse(packet.bytes, parsed) != roce::Defect::none) {
        return port_.count(WireCount::malformed);
    }
    if (parsed.service != roce::Service::ud) return port_.count(WireCount::strays);
    try {
        if (own_ == nullptr) {
            own_ = process_.datagram_targets().find(process_.node(), qpn_, nullptr);
        }
    } catch (const std::exception&) {  // no memory for it: the datagram is lost
    }
    if (own_ == nullptr) return;
    const bool four = port_.own().ip.is_ipv4();
    HeaderInGrh header;
    if (four) {
        header.four = ipv4_header_of(packet, port_.own());
    } else {
        header.six = ipv6_header_of(packet, port_.own());
    }
    DatagramMessage message;
    // Read only: a Piece says where memory is, whoever may change it.
    auto* const payload =
        reinterpret_cast<std::byte*>(const_cast<std::uint8_t*>(parsed.payload.data()));
    message.pieces[0] = {Reach{payload, 0, 0}, parsed.payload.size(), 0};
    message.count = parsed.payload.empty() ? 0 : 1;
    message.bytes = static_cast<std::uint32_t>(parsed.payload.size());
    message.source = parsed.source;
    message.qkey = parsed.q_key;
    message.grh = &header.six;
    message.flags = completion_grh | (by_udp | (four ? by_ipv4 : by_ipv6))
                                         << completion_service_level_shift;
    if (parsed.solicited) message.flags |= completion_solicited;
    if (parsed.kind == roce::Kind::send_only_immediate) {
        message.flags |= completion_immediate;
        message.immediate = parsed.immediate;
    }
    if (own_->deliver(message) != DatagramTarget::Result::delivered) {
        process_.counters().add(Count::dropped);
    }
}

}  // namespace millrace::soft
