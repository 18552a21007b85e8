#include "ports.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "../soft/fabric/fabric_names.hpp"
#include "millrace/base/detail/name_hash.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/cm/survey.hpp"

namespace millrace::cm {
namespace {

constexpr std::uint16_t first_free_for_all = 1024;

[[nodiscard]] std::string_view name_of(PortSpace space) noexcept {
    switch (space) {
        case PortSpace::ipoib: return "ipoib";
        case PortSpace::tcp: return "tcp";
        case PortSpace::udp: return "udp";
        case PortSpace::ib: return "ib";
    }
    return "?";
}

[[nodiscard]] std::string key_of(const Address& address, bool family_only) {
    if (address.is_any()) return address.family() == AF_INET ? "*4" : family_only ? "*6o" : "*6";
    std::string key;
    for (std::size_t i = 0; i < address.byte_count(); ++i) {
        key += fmt::format("{:02x}", static_cast<unsigned>(address.bytes()[i]));
    }
    return key;
}

[[nodiscard]] std::string prefix_of(const TakenPort& port) {
    return fmt::format("millrace-cm/{}/{}/{}/", port.user, port.fabric, port.space);
}

/// "millrace-cm/<user>/<fabric>/<space>/"
[[nodiscard]] std::string prefix_of(const Realm& realm) {
    return fmt::format("millrace-cm/{}/{}/{}/", realm.user, realm.fabric, name_of(realm.space));
}

struct SocketName {
    explicit SocketName(std::string_view name) noexcept {
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.data(), name.size());
        size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    }
    [[nodiscard]] const sockaddr* get() const noexcept {
        return reinterpret_cast<const sockaddr*>(&address);
    }
    sockaddr_un address{};
    socklen_t size = 0;
};

[[nodiscard]] int bind_to_name(int socket, std::string_view name) noexcept {
    const SocketName at{name};
    return ::bind(socket, at.get(), at.size) == 0 ? 0 : errno;
}

[[nodiscard]] soft::Descriptor new_socket() noexcept {
    return soft::Descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
}

[[nodiscard]] bool is_ipv4_key(std::string_view key) noexcept {
    return key == "*4" || key.size() == 8;
}

/// As the kernel judges who may have a port beside whom. A connection's ends have none, but for the
/// name that one of them holds.
[[nodiscard]] int judge(const std::string& own, bool own_shared, const TakenPort& other) noexcept {
    if (other.connected || (own_shared && other.shared)) return 0;
    const bool other_family = is_ipv4_key(own) != is_ipv4_key(other.key);
    if (other_family && (own == "*6o" || other.key == "*6o")) return 0;
    if (own[0] == '*' || other.key[0] == '*') return EADDRNOTAVAIL;
    return own == other.key ? EADDRINUSE : 0;
}

/// The name is taken already: who has the same one is this socket itself.
[[nodiscard]] int find_conflict(const std::string& prefix, const Address& address,
                                PortOptions options) {
    const std::string own = key_of(address, options.family_only);
    for (const TakenPort& other : taken_ports()) {
        if (other.port != address.port() || prefix != prefix_of(other)) continue;
        if (other.key == own && other.shared == options.shared) continue;
        if (const int refused = judge(own, options.shared, other)) return refused;
    }
    return 0;
}

[[nodiscard]] std::pair<unsigned, unsigned> free_range() {
    unsigned first = 32768;
    unsigned last = 60999;
    std::ifstream{"/proc/sys/net/ipv4/ip_local_port_range"} >> first >> last;
    return {first, last};
}

[[nodiscard]] int take_free_port(const std::string& prefix, Address& address, PortOptions options,
                                 int socket) {
    static const auto range = free_range();
    const unsigned count = range.second - range.first + 1;
    const unsigned from = static_cast<unsigned>(base::random_bits());
    for (unsigned tried = 0; tried < count; ++tried) {
        const unsigned port = range.first + (from + tried) % count;
        const std::string name =
            fmt::format("{}{}/{}", prefix, key_of(address, options.family_only), port);
        const int error = bind_to_name(socket, name);
        if (error == EADDRINUSE) continue;
        if (error == 0) address.set_port(static_cast<std::uint16_t>(port));
        return error;
    }
    return EADDRNOTAVAIL;
}

[[nodiscard]] int take_that_port(const std::string& prefix, const Address& address,
                                 PortOptions options, int socket) {
    static std::atomic<unsigned> sharers{0};
    std::string name =
        fmt::format("{}{}/{}", prefix, key_of(address, options.family_only), address.port());
    if (options.shared) {
        name += fmt::format("+{:x}.{:x}", ::getpid(), sharers.fetch_add(1));
    }
    const int error = bind_to_name(socket, name);
    if (error == EADDRINUSE && address.is_any()) return EADDRNOTAVAIL;
    return error != 0 ? error : find_conflict(prefix, address, options);
}

/// What there is no memory for.
template <class Call>
[[nodiscard]] int without_throwing(const Call& call) noexcept {
    try {
        return call();
    } catch (...) {
        return ENOMEM;
    }
}

/// A socket that is not connected, of the same name.
[[nodiscard]] int begin_anew(soft::Descriptor& socket) noexcept {
    sockaddr_un name{};
    socklen_t size = sizeof name;
    auto* const at = reinterpret_cast<sockaddr*>(&name);
    if (::getsockname(socket.get(), at, &size) != 0) return errno;
    socket = new_socket();
    return socket && ::bind(socket.get(), at, size) == 0 ? 0 : errno;
}

}  // namespace

Realm own_realm(PortSpace space) {
    const char* const named = std::getenv("MILLRACE_FABRIC");
    std::string fabric = named != nullptr && *named != '\0' ? named : "default";
    soft::check_fabric_name(fabric);
    constexpr std::size_t longest = 32;  // a socket's name has 107
    if (fabric.size() > longest) fabric = fmt::format("~{:016x}", base::name_hash(fabric));
    return {::geteuid(), std::move(fabric), space};
}

int take_port(const Realm& realm, Address& address, PortOptions options,
              soft::Descriptor& socket) noexcept {
    return without_throwing([&] {
        const std::uint16_t port = address.port();
        if (port != 0 && port < first_free_for_all && ::geteuid() != 0) return EACCES;
        const std::string prefix = prefix_of(realm);
        // Another may take the free one before it is shared.
        for (int tries = 0; tries < 16; ++tries) {
            soft::Descriptor made = new_socket();
            if (!made) return errno;
            if (port == 0) {
                const int error = take_free_port(prefix, address, options, made.get());
                if (error != 0) return error;
            }
            if (port == 0 && options.shared) made = new_socket();
            const int error = port == 0 && !options.shared
                                  ? 0
                                  : take_that_port(prefix, address, options, made.get());
            if (error == 0) socket = std::move(made);
            if (error == 0 || port != 0) return error;
        }
        return EADDRINUSE;
    });
}

int change_port(const Realm& realm, const Address& address, PortOptions before, PortOptions after,
                soft::Descriptor& socket) noexcept {
    Address same = address;
    socket.close();
    const int error = take_port(realm, same, after, socket);
    // As it was; nobody but those that may share it can have come between.
    if (error != 0) static_cast<void>(take_port(realm, same, before, socket));
    return error;
}

int listen_on_port(const Realm& realm, const Address& address, PortOptions options, int backlog,
                   soft::Descriptor& socket) noexcept {
    return without_throwing([&] {
        if (options.shared) {
            PortOptions alone = options;
            alone.shared = false;
            if (const int error = change_port(realm, address, options, alone, socket)) return error;
        }
        return ::listen(socket.get(), backlog) == 0 ? 0 : errno;
    });
}

int connect_to_port(const Realm& realm, const Address& address, soft::Descriptor& socket) noexcept {
    return without_throwing([&] {
        const std::string prefix = prefix_of(realm);
        const std::array<std::string, 3> keys{key_of(address, false),
                                              address.family() == AF_INET ? "*4" : "*6",
                                              address.family() == AF_INET ? "*6" : "*6o"};
        for (const std::string& key : keys) {
            const SocketName to{fmt::format("{}{}/{}", prefix, key, address.port())};
            if (::connect(socket.get(), to.get(), to.size) != 0) {
                if (errno == EAGAIN) return EAGAIN;
                continue;
            }
            if (is_of_user(socket.get(), realm.user)) return 0;
            // Another user has the name: whoever of ours listens does so at a wider one.
            if (const int error = begin_anew(socket)) return error;
        }
        return ECONNREFUSED;
    });
}

bool is_of_user(int socket, uid_t user) noexcept {
    ucred other{};
    socklen_t size = sizeof other;
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == user;
}

}  // namespace millrace::cm
