// See wire_address.hpp.
#include "wire/wire_address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "process/port.hpp"
#include "system/descriptor.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

constexpr std::array<std::uint8_t, 4> private_prefix{0xfd, 0x4d, 0x52, 0x00};
/// No IPv4 address.
constexpr std::uint64_t not_turned_on = std::numeric_limits<std::uint64_t>::max();
std::atomic<std::uint64_t> turned_on_at{not_turned_on};

constexpr std::string_view find_attempt = "find the wire's address";

[[noreturn]] void refuse_choice(std::string_view text, std::string cause) {
    throw base::Error{base::ErrorCode::invalid_argument, "turn on the wire",
                      fmt::format("MILLRACE_WIRE={}", text), std::move(cause),
                      "set it to auto, to an IPv4 address of this host (127.0.0.2), or to an "
                      "address and a UDP port (10.0.0.1:5000); ,always after it has peers of this "
                      "host reached by packets, too"};
}

[[nodiscard]] std::optional<std::uint32_t> ip_of(std::string_view text) {
    in_addr address{};
    if (::inet_pton(AF_INET, std::string{text}.c_str(), &address) != 1) return std::nullopt;
    return ntohl(address.s_addr);
}

[[nodiscard]] std::string words_of(std::uint32_t ip) {
    return fmt::format("{}.{}.{}.{}", ip >> 24, ip >> 16 & 0xff, ip >> 8 & 0xff, ip & 0xff);
}

/// Of this host's interfaces that are up.
template <class Is>
[[nodiscard]] std::optional<WireInterface> first_interface(const Is& is) {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) {
        base::throw_errno(errno, std::string{find_attempt}, "this host's interfaces");
    }
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all{list, &::freeifaddrs};
    const Descriptor asker{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
        if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET ||
            (at->ifa_flags & IFF_UP) == 0) {
            continue;
        }
        sockaddr_in address;
        std::memcpy(&address, at->ifa_addr, sizeof address);
        WireInterface found{ntohl(address.sin_addr.s_addr), ::if_nametoindex(at->ifa_name), 0,
                            (at->ifa_flags & IFF_LOOPBACK) != 0};
        if (!is(found)) continue;
        ifreq request{};
        std::strncpy(request.ifr_name, at->ifa_name, sizeof request.ifr_name - 1);
        if (!asker || ::ioctl(asker.get(), SIOCGIFMTU, &request) != 0) {
            base::throw_errno(errno, std::string{find_attempt}, at->ifa_name);
        }
        found.mtu = static_cast<std::uint32_t>(request.ifr_mtu);
        return found;
    }
    return std::nullopt;
}

}  // namespace

std::string describe(const UdpAddress& address) {
    return fmt::format("{}:{}", words_of(address.ip), address.port);
}

sockaddr_in socket_address(const UdpAddress& of) noexcept {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(of.port);
    address.sin_addr.s_addr = htonl(of.ip);
    return address;
}

UdpAddress udp_address_of(const sockaddr_in& address) noexcept {
    return {ntohl(address.sin_addr.s_addr), ntohs(address.sin_port)};
}

ibv_gid gid_of(const UdpAddress& address) noexcept {
    ibv_gid gid = gid_of_ipv4(htonl(address.ip));
    if (address.port == public_wire_port) return gid;
    std::copy(private_prefix.begin(), private_prefix.end(), gid.raw);
    gid.raw[4] = static_cast<std::uint8_t>(address.port >> 8);
    gid.raw[5] = static_cast<std::uint8_t>(address.port);
    gid.raw[10] = gid.raw[11] = 0;
    return gid;
}

std::optional<UdpAddress> udp_address_of(const ibv_gid& gid) noexcept {
    UdpAddress address;
    for (unsigned i = 12; i < 16; ++i) address.ip = address.ip << 8 | gid.raw[i];
    address.port = public_wire_port;
    if (std::equal(private_prefix.begin(), private_prefix.end(), gid.raw)) {
        address.port = static_cast<std::uint16_t>(gid.raw[4] << 8 | gid.raw[5]);
    }
    const ibv_gid as_it_would_be = gid_of(address);
    const bool is_same = std::memcmp(as_it_would_be.raw, gid.raw, sizeof gid.raw) == 0;
    return is_same && address.ip != 0 && address.port != 0 ? std::optional{address} : std::nullopt;
}

std::optional<ibv_mtu> wire_mtu(std::uint32_t interface_mtu) noexcept {
    for (const ibv_mtu mtu : {IBV_MTU_4096, IBV_MTU_2048, IBV_MTU_1024, IBV_MTU_512, IBV_MTU_256}) {
        if ((std::uint32_t{128} << mtu) + wire_header_bytes <= interface_mtu) return mtu;
    }
    return std::nullopt;
}

WireChoice parse_wire(std::string_view text) {
    if (text.empty() || text == "off") return {};
    constexpr std::string_view mark = ",always";
    const std::string_view whole = text;
    WireChoice choice{WireChoice::Kind::named, {}, text.ends_with(mark)};
    if (choice.always) text.remove_suffix(mark.size());
    if (text == "auto") {
        choice.kind = WireChoice::Kind::automatic;
        return choice;
    }
    const auto colon = text.find(':');
    if (colon != text.npos && text.find(':', colon + 1) != text.npos) {
        refuse_choice(whole, "the wire has IPv4 addresses only");
    }
    const auto ip = ip_of(text.substr(0, colon));
    if (!ip) refuse_choice(whole, "that is neither auto nor an IPv4 address in numbers");
    if (*ip == 0 || *ip >> 28 >= 0xe) refuse_choice(whole, "that is no address of one host");
    choice.address.ip = *ip;
    if (colon != text.npos) {
        const auto port = number_of<std::uint16_t>(text.substr(colon + 1));
        if (!port || *port == 0) refuse_choice(whole, "a UDP port is a number of 1 to 65535");
        choice.address.port = *port;
    }
    return choice;
}

WireChoice wire_of_environment() {
    const char* const set = std::getenv("MILLRACE_WIRE");
    if (set != nullptr && *set != '\0') return parse_wire(set);
    const std::uint64_t at = turned_on_at.load(std::memory_order_relaxed);
    if (at == not_turned_on) return {};
    return {WireChoice::Kind::automatic, {static_cast<std::uint32_t>(at), 0}};
}

void turn_wire_on_at(std::uint32_t ip) noexcept {
    turned_on_at.store(ip, std::memory_order_relaxed);
}

WireInterface find_wire_interface(const WireChoice& choice) {
    const std::uint32_t wanted = choice.address.ip;
    std::optional<WireInterface> found;
    if (wanted != 0) {
        found = first_interface([wanted](const WireInterface& one) { return one.ip == wanted; });
        if (!found && is_loopback(wanted)) {  // all of 127.0.0.0/8 is this host
            found = first_interface([](const WireInterface& one) { return one.is_loopback; });
            if (found) found->ip = wanted;
        }
    }
    if (!found && choice.kind == WireChoice::Kind::automatic) {
        found = first_interface([](const WireInterface& one) { return !one.is_loopback; });
        if (!found) {
            found = first_interface([](const WireInterface& one) { return one.is_loopback; });
        }
    }
    if (found) return *found;
    const bool named = choice.kind == WireChoice::Kind::named;
    throw base::Error{base::ErrorCode::not_found, std::string{find_attempt},
                      named ? words_of(wanted) : std::string{"MILLRACE_WIRE=auto"},
                      named ? "no interface of this host that is up has it"
                            : "no interface that is up has an IPv4 address",
                      named && !is_loopback(wanted)
                          ? "name an address that `ip -4 address` shows, or set MILLRACE_WIRE=auto"
                          : "turn on an interface (ip link set lo up)"};
}

}  // namespace millrace::soft
