// See outward.hpp.
#include "outward.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "descriptor.hpp"
#include "millrace/base/error.hpp"
#include "millrace/verbs/device.hpp"
#include "sockets.hpp"

namespace millrace::connect {
namespace {

/// What was tried in this process, and what came of it.
struct Reasons {
    std::mutex mutex;
    std::string on;
    std::string off;
};
Reasons& reasons() noexcept {
    static Reasons& instance = *new Reasons;  // threads that outlive main may ask
    return instance;
}

constexpr std::array<std::uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/// What a soft device's GID begins with whose wire has another port than RoCE's.
constexpr std::array<std::uint8_t, 4> of_other_ports{0xfd, 0x4d, 0x52, 0x00};

/// Its last four bytes are an IPv4 address.
bool is_ipv4(const ibv_gid& gid) noexcept {
    return std::memcmp(gid.raw, mapped.data(), mapped.size()) == 0 ||
           std::memcmp(gid.raw, of_other_ports.data(), of_other_ports.size()) == 0;
}

/// The loopback's, or the one that means all of a host's.
bool names_no_host(const SocketAddress& address) noexcept {
    if (address.storage.ss_family == AF_INET) {
        sockaddr_in plain;
        std::memcpy(&plain, &address.storage, sizeof plain);
        const std::uint32_t four = ntohl(plain.sin_addr.s_addr);
        return four >> 24 == IN_LOOPBACKNET || four == INADDR_ANY;
    }
    sockaddr_in6 plain;
    std::memcpy(&plain, &address.storage, sizeof plain);
    return IN6_IS_ADDR_LOOPBACK(&plain.sin6_addr) || IN6_IS_ADDR_UNSPECIFIED(&plain.sin6_addr);
}

/// An address of this host can be bound to. Where no socket is to be had, it counts as one.
bool is_of_this_host(SocketAddress address) noexcept {
    try {
        if (address.storage.ss_family == AF_INET) {
            reinterpret_cast<sockaddr_in&>(address.storage).sin_port = 0;
        } else {
            reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = 0;
        }
        const Descriptor probe{::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
        return !probe.valid() || ::bind(probe.get(), address.raw(), address.size) == 0 ||
               errno != EADDRNOTAVAIL;
    } catch (const std::exception&) {
        return true;
    }
}

std::string_view said_of_wire() noexcept {
    const char* const said = std::getenv("MILLRACE_WIRE");
    return said != nullptr ? said : "";
}

/// MILLRACE_WIRE decides where it says anything.
bool may_turn_on() { return said_of_wire().empty() && verbs::find_device().is_soft(); }

ibv_gid gid_of(const SocketAddress& address) noexcept {
    ibv_gid gid{};
    if (address.storage.ss_family == AF_INET) {
        sockaddr_in plain;
        std::memcpy(&plain, &address.storage, sizeof plain);
        std::copy(mapped.begin(), mapped.end(), gid.raw);
        std::memcpy(gid.raw + mapped.size(), &plain.sin_addr, sizeof plain.sin_addr);
    } else if (address.storage.ss_family == AF_INET6) {  // of a listener on all: IPv4-mapped
        sockaddr_in6 plain;
        std::memcpy(&plain, &address.storage, sizeof plain);
        std::memcpy(gid.raw, &plain.sin6_addr, sizeof plain.sin6_addr);
    }
    return gid;
}

/// Where what this host sends to `peer` comes from; zeros where the system does not say.
ibv_gid own_address_towards(const SocketAddress& peer) {
    const Descriptor probe{::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    SocketAddress own;
    own.size = sizeof own.storage;
    if (!probe.valid() || ::connect(probe.get(), peer.raw(), peer.size) != 0 ||
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0) {
        return {};
    }
    return gid_of(own);
}

bool turn_on(const Address& address, const ibv_gid& at, std::string_view because) {
    const bool is_on = verbs::turn_soft_wire_on(at);
    Reasons& all = reasons();
    const std::lock_guard guard{all.mutex};
    if (is_on) {
        if (all.on.empty()) all.on = fmt::format("for {}, {}", address.to_string(), because);
    } else {
        all.off = fmt::format(
            "the device was open before {} was asked for, which needs it; set "
            "MILLRACE_WIRE=auto",
            address.to_string());
    }
    return is_on;
}

}  // namespace

std::string text_of(const ibv_gid& gid) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    const bool is_four = is_ipv4(gid);
    inet_ntop(is_four ? AF_INET : AF_INET6, is_four ? gid.raw + mapped.size() : gid.raw,
              text.data(), text.size());
    return text.data();
}

void prepare_to_connect(const Address& address) {
    if (address.kind() != Address::Kind::tcp || !may_turn_on()) return;
    const std::vector<SocketAddress> all = resolve(address, false, "connect");
    // A name of this host and another ("localhost" has two) is this host's.
    if (std::ranges::any_of(all, is_of_this_host)) return;
    (void)turn_on(address, own_address_towards(all.front()), "which is no address of this host");
}

void prepare_to_listen(const Address& address) {
    if (address.kind() != Address::Kind::tcp || address.host().empty() || !may_turn_on()) return;
    const std::vector<SocketAddress> all = resolve(address, true, "listen");
    if (std::ranges::any_of(all, names_no_host)) return;
    (void)turn_on(address, gid_of(all.front()), "by which other hosts reach this one");
}

bool prepare_for_peer(int socket, const Address& peer) {
    if (!said_of_wire().empty() || !verbs::soft_wire().empty()) return false;
    const SocketAddress other = other_name(socket);
    const bool is_tcp = other.size != 0 &&
                        (other.storage.ss_family == AF_INET || other.storage.ss_family == AF_INET6);
    if (!is_tcp || names_no_host(other) || is_of_this_host(other)) return false;
    return turn_on(peer, gid_of(own_name(socket)), "which is no address of this host");
}

std::string why_wire_is_on() {
    const std::string said = verbs::soft_wire();
    Reasons& all = reasons();
    const std::lock_guard guard{all.mutex};
    if (!all.on.empty()) return all.on;
    return said.empty() ? std::string{} : fmt::format("by MILLRACE_WIRE={}", said);
}

std::string why_no_wire() {
    if (const auto said = said_of_wire(); !said.empty())
        return fmt::format("MILLRACE_WIRE={}", said);
    Reasons& all = reasons();
    const std::lock_guard guard{all.mutex};
    return all.off;
}

}  // namespace millrace::connect
