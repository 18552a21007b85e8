// Making sockets. A Unix path left behind by a process that died is taken over; one on which
// somebody listens is not.
#include "sockets.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::connect {
namespace {

constexpr int backlog = 128;

[[noreturn]] void fail(int error, const Address& address, std::string remedy = {}) {
    base::throw_errno(error, "listen", address.to_string(), std::move(remedy));
}

SocketAddress unix_address(const std::string& path) {
    SocketAddress result;
    sockaddr_un raw{};
    raw.sun_family = AF_UNIX;
    const std::size_t size = std::min(path.size(), sizeof raw.sun_path - 1);
    std::memcpy(raw.sun_path, path.data(), size);
    const bool abstract = path.starts_with('@');
    if (abstract) raw.sun_path[0] = '\0';
    std::memcpy(&result.storage, &raw, sizeof raw);
    // An abstract name ends with the address, a path with its zero byte.
    result.size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size + (abstract ? 0 : 1));
    return result;
}

Descriptor new_socket(int family) {
    return Descriptor{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
}

bool somebody_listens(const SocketAddress& address) {
    const Descriptor probe = new_socket(AF_UNIX);
    if (!probe.valid()) return true;
    return ::connect(probe.get(), address.raw(), address.size) == 0 || errno != ECONNREFUSED;
}

Listening listen_unix(const Address& address) {
    const SocketAddress to = unix_address(address.path());
    const char* path = address.path().c_str();
    const bool has_path = !address.path().starts_with('@');
    Listening result;
    result.address = address;
    result.socket = new_socket(AF_UNIX);
    if (!result.socket.valid()) fail(errno, address);
    int error = ::bind(result.socket.get(), to.raw(), to.size) == 0 ? 0 : errno;
    if (error == EADDRINUSE && has_path) {
        struct stat file {};
        if (lstat(path, &file) == 0 && !S_ISSOCK(file.st_mode)) {
            fail(error, address, "the path names a file that is not a socket: choose another");
        }
        if (!somebody_listens(to)) {
            unlink(path);
            error = ::bind(result.socket.get(), to.raw(), to.size) == 0 ? 0 : errno;
        }
    }
    if (error == EADDRINUSE) {
        fail(error, address, "another process listens there: stop it or choose another address");
    }
    if (error != 0) {
        fail(error, address, "check that the folder exists and that you may write to it");
    }
    if (has_path) {
        struct stat file {};
        if (lstat(path, &file) == 0) {
            result.device = file.st_dev;
            result.inode = file.st_ino;
        }
    }
    if (::listen(result.socket.get(), backlog) != 0) fail(errno, address);
    return result;
}

Listening listen_tcp(const Address& address) {
    int error = EADDRNOTAVAIL;
    for (const SocketAddress& to : resolve(address, true, "listen")) {
        Descriptor socket = new_socket(to.storage.ss_family);
        if (!socket.valid()) {
            error = errno;
            continue;
        }
        const int on = 1, off = 0;
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (to.storage.ss_family == AF_INET6 && address.host().empty()) {
            setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        }
        if (::bind(socket.get(), to.raw(), to.size) != 0 || ::listen(socket.get(), backlog) != 0) {
            error = errno;
            continue;
        }
        Listening result;
        const Address bound = local_address(socket.get(), address);
        result.address = Address::tcp(address.host(), bound.port());
        result.socket = std::move(socket);
        return result;
    }
    fail(error, address,
         error == EADDRINUSE
             ? "another process listens there: stop it or choose another port (0: any free one)"
         : error == EACCES ? "ports below 1024 need privileges: choose a higher one"
                           : "listen on an address of this machine, or on ':port' for all");
}

std::optional<Address> numeric(const SocketAddress& name) {
    if (name.storage.ss_family != AF_INET && name.storage.ss_family != AF_INET6) return {};
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    if (getnameinfo(name.raw(), name.size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return {};
    }
    std::string_view text{host.data()};
    // An IPv4 peer of a socket that listens on both.
    if (text.starts_with("::ffff:") && text.find('.') != std::string_view::npos) {
        text.remove_prefix(7);
    }
    return Address::tcp(std::string{text}, static_cast<std::uint16_t>(std::atoi(port.data())));
}

}  // namespace

std::vector<SocketAddress> resolve(const Address& address, bool to_listen, const char* attempted) {
    if (address.kind() == Address::Kind::unix_socket) return {unix_address(address.path())};
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
    addrinfo* list = nullptr;
    const std::string port = std::to_string(address.port());
    const int error = getaddrinfo(address.host().empty() ? nullptr : address.host().c_str(),
                                  port.c_str(), &hints, &list);
    if (error != 0) {
        throw base::Error(
            base::ErrorCode::not_found, attempted, address.to_string(),
            fmt::format("the host '{}' is not known ({})", address.host(),
                        error == EAI_SYSTEM ? base::describe_errno(errno) : gai_strerror(error)),
            "check the spelling, or use a numeric address");
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner{list, freeaddrinfo};
    std::vector<SocketAddress> result;
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        SocketAddress one;
        if (entry->ai_addrlen > sizeof one.storage) continue;
        std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
        one.size = entry->ai_addrlen;
        result.push_back(one);
    }
    if (to_listen && address.host().empty()) {
        // On "every interface", IPv6 first: such a socket takes IPv4 as well.
        std::stable_partition(result.begin(), result.end(), [](const SocketAddress& one) {
            return one.storage.ss_family == AF_INET6;
        });
    }
    return result;
}

Listening listen_on(const Address& address) {
    return address.kind() == Address::Kind::tcp ? listen_tcp(address) : listen_unix(address);
}

void unlink_own(const Listening& listening) noexcept {
    // In a child made by fork the descriptor is not valid, and the file its parent's.
    if (listening.inode == 0 || !listening.socket.valid()) return;
    const char* path = listening.address.path().c_str();
    struct stat file {};
    if (lstat(path, &file) == 0 && file.st_dev == listening.device &&
        file.st_ino == listening.inode) {
        unlink(path);
    }
}

void prepare_connected(int socket) noexcept {
    // All of these fail on a Unix socket, which needs none of them.
    const int on = 1, idle_seconds = 1, interval_seconds = 1, probes = 4;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof interval_seconds);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void drain(int socket) noexcept {
    std::array<std::byte, 4096> rest;
    for (int i = 0; i < 16; ++i) {
        if (recv(socket, rest.data(), rest.size(), MSG_DONTWAIT) <= 0) break;
    }
}

SocketAddress own_name(int socket) noexcept {
    SocketAddress name;
    name.size = sizeof name.storage;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&name.storage), &name.size) != 0) {
        name.size = 0;
    }
    return name;
}

SocketAddress other_name(int socket) noexcept {
    SocketAddress name;
    name.size = sizeof name.storage;
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&name.storage), &name.size) != 0) {
        name.size = 0;
    }
    return name;
}

std::string peer_text(int socket, const Address& fallback) {
    return peer_address(socket, fallback).to_string();
}

Address peer_address(int socket, const Address& fallback) {
    return numeric(other_name(socket)).value_or(fallback);
}

Address local_address(int socket, const Address& fallback) {
    return numeric(own_name(socket)).value_or(fallback);
}

bool connected_to_itself(int socket) noexcept {
    const SocketAddress own = own_name(socket), other = other_name(socket);
    return (own.storage.ss_family == AF_INET || own.storage.ss_family == AF_INET6) &&
           own.size == other.size && std::memcmp(&own.storage, &other.storage, own.size) == 0;
}

}  // namespace millrace::connect
