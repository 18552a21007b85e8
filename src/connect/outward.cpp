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
#include <exception>
#include <mutex>
#include <string_view>

#include <fmt/format.h>

#include "descriptor.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
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

/// All zeros: it is no address of IP.
ibv_gid gid_of(const SocketAddress& address) noexcept {
    ibv_gid gid{};
    if (address.size == 0) return gid;
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

/// An address of this host can be bound to. Where no socket is to be had, it counts as one.
bool is_of_this_host(SocketAddress address, const ibv_gid& gid) noexcept {
    const bool is_loopback = is_ipv4(gid) && gid.raw[mapped.size()] == IN_LOOPBACKNET;
    if (is_loopback) return true;
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

}  // namespace

// Of both kinds the last four bytes are the address.
bool is_ipv4(const ibv_gid& gid) noexcept {
    return std::memcmp(gid.raw, mapped.data(), mapped.size()) == 0 ||
           std::memcmp(gid.raw, of_other_ports.data(), of_other_ports.size()) == 0;
}

std::string text_of(const ibv_gid& gid) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    const bool is_four = is_ipv4(gid);
    inet_ntop(is_four ? AF_INET : AF_INET6, is_four ? gid.raw + mapped.size() : gid.raw,
              text.data(), text.size());
    return text.data();
}

bool turn_on_for_peer(int socket, const Address& peer) {
    if (!said_of_wire().empty()) return false;
    const SocketAddress other = other_name(socket);
    const ibv_gid zeros{};
    const ibv_gid theirs = gid_of(other);
    if (std::memcmp(theirs.raw, zeros.raw, sizeof zeros.raw) == 0 ||
        is_of_this_host(other, theirs)) {
        return false;
    }
    Reasons& all = reasons();
    try {
        if (!verbs::turn_soft_wire_on(gid_of(own_name(socket)))) return false;
    } catch (const base::Error& error) {
        base::log(base::LogLevel::warn, "connect", "no wire for {}: {}", peer.to_string(),
                  error.what());
        const std::lock_guard guard{all.mutex};
        all.off = error.what();
        return false;
    }
    const std::lock_guard guard{all.mutex};
    if (all.on.empty()) {
        all.on = fmt::format("for {}, which is of another host", peer.to_string());
    }
    return true;
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
