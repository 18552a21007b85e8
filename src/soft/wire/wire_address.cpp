// See wire_address.hpp.
#include "wire/wire_address.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "system/descriptor.hpp"
#include "system/whole_number.hpp"

namespace millrace::soft {
namespace {

constexpr std::array<std::uint8_t, 4> private_prefix{0xfd, 0x4d, 0x52, 0x00};

/// What `turn_wire_on_at` has said.
struct TurnedOn {
    std::mutex mutex;
    std::optional<IpAddress> at;
};
/// Never destroyed: a program may connect after main.
[[nodiscard]] TurnedOn& turned_on() noexcept {
    static TurnedOn& the_one = *new TurnedOn;
    return the_one;
}

constexpr std::string_view find_attempt = "find the wire's address";

[[noreturn]] void refuse_choice(std::string_view text, std::string cause) {
    throw base::Error{base::ErrorCode::invalid_argument, "turn on the wire",
                      fmt::format("MILLRACE_WIRE={}", text), std::move(cause),
                      "set it to auto, to an address of this host (127.0.0.2, [fd00::1]), or to an "
                      "IPv4 address and a UDP port (10.0.0.1:5000); after it ,always has peers of "
                      "this host reached by packets, too, and ,checked has an ICRC in each packet"};
}

/// The wire can use it, of those that `getifaddrs` lists.
[[nodiscard]] std::optional<IpAddress> address_of(const ifaddrs& one) noexcept {
    if (one.ifa_addr == nullptr || (one.ifa_flags & IFF_UP) == 0) return std::nullopt;
    SocketAddress address{};
    if (one.ifa_addr->sa_family == AF_INET) {
        std::memcpy(&address.ipv4, one.ifa_addr, sizeof address.ipv4);
    } else if (one.ifa_addr->sa_family == AF_INET6) {
        std::memcpy(&address.ipv6, one.ifa_addr, sizeof address.ipv6);
    } else {
        return std::nullopt;
    }
    const IpAddress ip = udp_address_of(address).ip;
    return ip.is_of_no_host() ? std::nullopt : std::optional{ip};
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
        const auto ip = address_of(*at);
        if (!ip) continue;
        WireInterface found{*ip, ::if_nametoindex(at->ifa_name), 0,
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

/// Takes `mark` from the end of a setting, once.
[[nodiscard]] bool take_mark(std::string_view& text, std::string_view mark, bool& said) noexcept {
    if (said || !text.ends_with(mark)) return false;
    text.remove_suffix(mark.size());
    return said = true;
}

/// What a setting calls an address: in brackets, by itself, or with a port.
struct Named {
    std::string_view address;
    std::optional<std::string_view> port;
};
[[nodiscard]] Named named_in(std::string_view text) noexcept {
    const bool brackets = text.starts_with('[');
    const auto end = brackets ? text.find(']') : text.npos;
    if (brackets && end == text.npos) return {text, {}};
    const std::string_view rest = brackets ? text.substr(end + 1) : text;
    const auto colon = rest.find(':');
    if (brackets) {
        if (!rest.empty() && colon != 0) return {text, {}};
        return {text.substr(1, end - 1),
                rest.empty() ? std::nullopt : std::optional{rest.substr(1)}};
    }
    if (colon == rest.npos || rest.find(':', colon + 1) != rest.npos) return {text, {}};
    return {text.substr(0, colon), rest.substr(colon + 1)};
}

}  // namespace

ibv_gid gid_of(const UdpAddress& address) noexcept {
    ibv_gid gid = address.ip.gid();
    if (address.port == public_wire_port) return gid;
    std::copy(private_prefix.begin(), private_prefix.end(), gid.raw);
    gid.raw[4] = static_cast<std::uint8_t>(address.port >> 8);
    gid.raw[5] = static_cast<std::uint8_t>(address.port);
    std::fill(gid.raw + 6, gid.raw + 12, std::uint8_t{0});
    return gid;
}

std::optional<UdpAddress> udp_address_of(const ibv_gid& gid) noexcept {
    UdpAddress address{IpAddress{gid}, public_wire_port};
    if (std::equal(private_prefix.begin(), private_prefix.end(), gid.raw)) {
        std::uint32_t ip = 0;
        for (unsigned i = 12; i < 16; ++i) ip = ip << 8 | gid.raw[i];
        address = {ip, static_cast<std::uint16_t>(gid.raw[4] << 8 | gid.raw[5])};
        if (address.port == public_wire_port) return std::nullopt;
    }
    const ibv_gid as_it_would_be = gid_of(address);
    const bool is_same = std::memcmp(as_it_would_be.raw, gid.raw, sizeof gid.raw) == 0;
    return is_same && address.port != 0 && !address.ip.is_of_no_host() ? std::optional{address}
                                                                       : std::nullopt;
}

std::optional<ibv_mtu> wire_mtu(std::uint32_t interface_mtu, const IpAddress& at) noexcept {
    for (const ibv_mtu mtu : {IBV_MTU_4096, IBV_MTU_2048, IBV_MTU_1024, IBV_MTU_512, IBV_MTU_256}) {
        if ((std::uint32_t{128} << mtu) + wire_header_bytes(at) <= interface_mtu) return mtu;
    }
    return std::nullopt;
}

WireChoice parse_wire(std::string_view text) {
    if (text.empty() || text == "off") return {};
    const std::string_view whole = text;
    WireChoice choice{WireChoice::Kind::named, {}};
    for (bool again = true; again;) {
        again = take_mark(text, ",always", choice.always) ||
                take_mark(text, ",checked", choice.checked);
    }
    if (text == "auto") {
        choice.kind = WireChoice::Kind::automatic;
        return choice;
    }
    const Named named = named_in(text);
    const auto ip = IpAddress::parse(named.address);
    if (!ip) refuse_choice(whole, "that is neither auto nor an IP address in numbers");
    if (ip->is_none() || ip->is_of_no_host()) {
        refuse_choice(whole, "that is no address of one host, or one of a single link");
    }
    if (const UdpAddress own{*ip, public_wire_port}; udp_address_of(gid_of(own)) != own) {
        refuse_choice(whole, "peers would take it for an IPv4 address and a port (fd4d:5200::/32)");
    }
    choice.address.ip = *ip;
    if (named.port) {
        const auto port = number_of<std::uint16_t>(*named.port);
        if (!port || *port == 0) refuse_choice(whole, "a UDP port is a number of 1 to 65535");
        if (!ip->is_ipv4() && *port != public_wire_port) {
            refuse_choice(whole,
                          "over IPv6 the wire has UDP port 4791 alone: the address fills "
                          "the GID, by which peers find the port");
        }
        choice.address.port = *port;
    }
    return choice;
}

WireChoice wire_of_environment() {
    const char* const set = std::getenv("MILLRACE_WIRE");
    if (set != nullptr && *set != '\0') return parse_wire(set);
    TurnedOn& said = turned_on();
    const std::lock_guard guard{said.mutex};
    if (!said.at) return {};
    return {WireChoice::Kind::automatic, {*said.at, 0}};
}

void turn_wire_on_at(const IpAddress& ip) noexcept {
    const std::lock_guard guard{turned_on().mutex};
    turned_on().at = ip;
}

WireInterface find_wire_interface(const WireChoice& choice) {
    const IpAddress& wanted = choice.address.ip;
    std::optional<WireInterface> found;
    if (!wanted.is_none()) {
        found = first_interface([&](const WireInterface& one) { return one.ip == wanted; });
        if (!found && wanted.is_ipv4() && wanted.is_loopback()) {  // 127.0.0.0/8 is this host
            found = first_interface([](const WireInterface& one) { return one.is_loopback; });
            if (found) found->ip = wanted;
        }
    }
    if (choice.kind == WireChoice::Kind::automatic) {
        for (const bool loopback : {false, true}) {
            for (const bool four : {true, false}) {
                if (found) break;
                found = first_interface([=](const WireInterface& one) {
                    return one.is_loopback == loopback && one.ip.is_ipv4() == four;
                });
            }
        }
    }
    if (found) return *found;
    const bool named = choice.kind == WireChoice::Kind::named;
    throw base::Error{base::ErrorCode::not_found, std::string{find_attempt},
                      named ? wanted.words() : std::string{"MILLRACE_WIRE=auto"},
                      named ? "no interface of this host that is up has it"
                            : "no interface that is up has an IP address",
                      named && !(wanted.is_ipv4() && wanted.is_loopback())
                          ? "name an address that `ip address` shows, or set MILLRACE_WIRE=auto"
                          : "turn on an interface (ip link set lo up)"};
}

}  // namespace millrace::soft
