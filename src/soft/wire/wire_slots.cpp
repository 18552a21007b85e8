// See wire_slots.hpp.
#include "wire/wire_slots.hpp"

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "system/file_of_process.hpp"

namespace millrace::soft {
namespace {

constexpr std::string_view share_attempt = "share the wire's UDP port";
constexpr std::chrono::seconds longest_joining{2};
/// How long a member may take to answer before another one is asked: it may be stopped.
constexpr int answer_milliseconds = 500;
constexpr int pause_milliseconds = 2;
constexpr int probe_milliseconds = 50;
/// So often others may be in the group that is being made: the members of the last one, who are
/// just ending. Then they are there to stay.
constexpr int most_strangers = 20;
constexpr int buffer_bytes = 4 << 20;
constexpr std::size_t passed_descriptors = wire_slots + 2;
/// In the file of leases, after a byte for each slot: the slot that was leased last.
constexpr off_t last_leased_at = wire_slots;

struct Welcome {
    std::uint32_t magic = 0x4d525732;  // "MRW2": what is passed on, and in which order
    IpAddress ip;
};

/// What a member sends to a joiner.
struct Passed {
    Welcome welcome;
    alignas(cmsghdr) char control[CMSG_SPACE(passed_descriptors * sizeof(int))]{};
    iovec place{&welcome, sizeof welcome};
    msghdr message{};

    Passed() noexcept {
        message.msg_iov = &place;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
    }
    Passed(const Passed&) = delete;
    Passed& operator=(const Passed&) = delete;
};

struct DoorAddress {
    explicit DoorAddress(const IpAddress& ip) {
        const std::string name = fmt::format("millrace-wire/{}/{}", ::geteuid(), ip.words());
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.data(), name.size());
        length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    }
    [[nodiscard]] const sockaddr* get() const noexcept {
        return reinterpret_cast<const sockaddr*>(&address);
    }
    sockaddr_un address{};
    socklen_t length = 0;
};

[[nodiscard]] std::string describe_group(const IpAddress& ip) {
    return describe(UdpAddress{ip, public_wire_port});
}

[[nodiscard]] struct flock byte_lock(std::uint32_t slot) noexcept {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = slot;
    lock.l_len = 1;
    return lock;
}

[[nodiscard]] bool is_of_this_user(int connection) noexcept {
    ucred peer{};
    socklen_t length = sizeof peer;
    return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
           peer.uid == ::geteuid();
}

/// The kernel takes the socket whose place in the group is what this returns.
[[nodiscard]] bool choose_by_queue_pair(int socket) noexcept {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 5),
                             BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 3),
                             BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 4),
                             BPF_STMT(BPF_ST, 0),
                             BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 6),
                             BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
                             BPF_STMT(BPF_LDX | BPF_MEM, 0),
                             BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
                             BPF_STMT(BPF_RET | BPF_A, 0)};
    const sock_fprog whole{static_cast<unsigned short>(std::size(program)), program};
    return ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &whole, sizeof whole) == 0;
}

[[nodiscard]] bool never_fragments(int socket, int family) noexcept {
    const int four = IP_PMTUDISC_DO;
    const int six = IPV6_PMTUDISC_DO;
    const int yes = 1;
    if (family == AF_INET)
        return ::setsockopt(socket, IPPROTO_IP, IP_MTU_DISCOVER, &four, sizeof four) == 0;
    return ::setsockopt(socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &six, sizeof six) == 0 &&
           ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes) == 0;
}

/// Nobody's packets: what waited for a slot's former holder.
void empty(int socket) noexcept {
    char byte = 0;
    while (::recv(socket, &byte, sizeof byte, MSG_DONTWAIT | MSG_TRUNC) >= 0) {
    }
}

void rest_a_little() noexcept {
    const int error = errno;
    ::poll(nullptr, 0, pause_milliseconds);
    errno = error;
}

/// Is `probe` the next thing there, but for packets of others?
[[nodiscard]] bool gets(int socket, std::span<const std::uint8_t> probe) {
    for (;;) {
        pollfd wait{socket, POLLIN, 0};
        if (::poll(&wait, 1, probe_milliseconds) <= 0) return false;
        std::array<std::uint8_t, 64> got{};
        const ssize_t bytes = ::recv(socket, got.data(), got.size(), MSG_DONTWAIT);
        if (bytes < 0) continue;
        if (std::ranges::equal(std::span{got}.first(static_cast<std::size_t>(bytes)), probe)) {
            return true;
        }
    }
}

}  // namespace

std::uint32_t wire_receive_buffer(int socket) noexcept {
    int granted = 0;
    socklen_t length = sizeof granted;
    if (::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &granted, &length) != 0) return 0;
    return static_cast<std::uint32_t>(granted) / 2;  // the kernel says twice what was granted
}

Descriptor wire_socket(const UdpAddress& at, bool shared) {
    const SocketAddress address = socket_address(at);
    Descriptor made{::socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!made) return made;
    const int yes = 1;
    // As much as the system grants: neither fails.
    static_cast<void>(
        ::setsockopt(made.get(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes));
    static_cast<void>(
        ::setsockopt(made.get(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes));
    // Without it packets come one by one.
    static_cast<void>(::setsockopt(made.get(), SOL_UDP, UDP_GRO, &yes, sizeof yes));
    const bool done =
        never_fragments(made.get(), address.any.sa_family) &&
        (!shared || ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0) &&
        ::bind(made.get(), &address.any, address.size()) == 0;
    if (!done) {
        const int error = errno;
        made.close();
        errno = error;
    }
    return made;
}

std::unique_ptr<WireSlots> WireSlots::join(const IpAddress& ip,
                                           std::optional<std::uint32_t> wanted) {
    const auto until = base::Clock::now() + longest_joining;
    for (int strangers = 0;;) {
        std::unique_ptr<WireSlots> slots{new WireSlots};
        Entry entry = slots->enter(ip);
        if (entry == Entry::nobody_there) entry = slots->found(ip);
        if (entry == Entry::taken) return nullptr;
        if (entry == Entry::with_strangers && ++strangers == most_strangers) {
            base::log(base::LogLevel::warn, "wire",
                      "what is sent to UDP port {} does not arrive there: a firewall drops it, or "
                      "another program of this user shares the port",
                      describe_group(ip));
            return nullptr;
        }
        if (entry == Entry::done) {
            slots->open_leases(ip);
            if (wanted) return slots->lease(ip, *wanted) ? std::move(slots) : nullptr;
            slots->lease_any(ip);
            return slots;
        }
        if (base::Clock::now() > until) {
            base::log(base::LogLevel::warn, "wire",
                      "who has UDP port {} does not answer: processes of this user that are "
                      "stopped, or another user, who has their name",
                      describe_group(ip));
            return nullptr;
        }
        slots.reset();
        rest_a_little();
    }
}

bool WireSlots::has_members(const IpAddress& ip) noexcept {
    const Descriptor connection{
        ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    const DoorAddress door{ip};
    return connection && ::connect(connection.get(), door.get(), door.length) == 0 &&
           is_of_this_user(connection.get());
}

WireSlots::Entry WireSlots::enter(const IpAddress& ip) {
    const Descriptor connection{
        ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!connection) base::throw_errno(errno, std::string{share_attempt}, describe_group(ip));
    const DoorAddress door{ip};
    if (::connect(connection.get(), door.get(), door.length) != 0) {
        return errno == ECONNREFUSED ? Entry::nobody_there : Entry::try_again;
    }
    if (!is_of_this_user(connection.get())) return Entry::taken;
    pollfd wait{connection.get(), POLLIN, 0};
    if (::poll(&wait, 1, answer_milliseconds) <= 0) return Entry::try_again;
    Passed passed;
    Welcome& welcome = passed.welcome;
    msghdr& message = passed.message;
    welcome.magic = 0;
    const ssize_t bytes = ::recvmsg(connection.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    std::size_t taken = 0;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); bytes > 0 && at != nullptr;
         at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(at) + i * sizeof number, sizeof number);
            Descriptor& to = taken < wire_slots    ? sockets_[taken]
                             : taken == wire_slots ? leases_
                                                   : door_;
            to = Descriptor{number};
            ++taken;
        }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        base::throw_errno(EMFILE, std::string{share_attempt}, describe_group(ip),
                          fmt::format("a process on the wire needs {} descriptors: raise its limit "
                                      "of open files (ulimit -n)",
                                      passed_descriptors + 8));
    }
    const bool whole = bytes == static_cast<ssize_t>(sizeof welcome) &&
                       welcome.magic == Welcome{}.magic && welcome.ip == ip &&
                       taken == passed_descriptors && door_;
    return whole ? Entry::done : Entry::try_again;
}

WireSlots::Entry WireSlots::found(const IpAddress& ip) {
    const auto refuse = [&](const char* what) {
        base::throw_errno(errno, std::string{share_attempt},
                          fmt::format("{} ({})", describe_group(ip), what));
    };
    door_ = Descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!door_) refuse("its Unix socket");
    const DoorAddress address{ip};
    if (::bind(door_.get(), address.get(), address.length) != 0) {
        if (errno == EADDRINUSE) return Entry::try_again;  // somebody is founding it
        refuse("its Unix socket");
    }
    for (Descriptor& socket : sockets_) {
        socket = wire_socket({ip, public_wire_port}, true);
        if (!socket && errno == EADDRINUSE) return Entry::taken;
        if (!socket) refuse("its sockets");
    }
    if (!choose_by_queue_pair(sockets_[0].get())) refuse("the choice by queue pair number");
    if (!each_slot_is_reached(ip)) return Entry::with_strangers;
    leases_ = Descriptor{::memfd_create("millrace-wire-leases", MFD_CLOEXEC)};
    if (!leases_ || ::ftruncate(leases_.get(), last_leased_at + 1) != 0) refuse("its leases");
    if (::listen(door_.get(), wire_slots) != 0) refuse("its Unix socket");
    return Entry::done;
}

bool WireSlots::each_slot_is_reached(const IpAddress& ip) const {
    const SocketAddress to = socket_address({ip, public_wire_port});
    for (std::uint32_t slot = 0; slot < wire_slots; ++slot) {
        std::array<std::uint8_t, 24> probe{};
        probe[5] = static_cast<std::uint8_t>(slot >> 4);
        probe[6] = static_cast<std::uint8_t>(slot << 4);
        const std::uint64_t mark = base::random_bits();
        std::memcpy(probe.data() + 12, &mark, sizeof mark);
        const ssize_t sent = ::sendto(sockets_[0].get(), probe.data(), probe.size(), MSG_DONTWAIT,
                                      &to.any, to.size());
        if (sent < 0 || !gets(sockets_[slot].get(), probe)) return false;
    }
    return true;
}

void WireSlots::open_leases(const IpAddress& ip) {
    // A description of one's own: locks belong to descriptions.
    lease_ =
        Descriptor{::open(descriptor_path(::getpid(), leases_.get()).c_str(), O_RDWR | O_CLOEXEC)};
    if (!lease_) {
        base::throw_errno(errno, std::string{share_attempt}, describe_group(ip),
                          "it needs /proc: let it be mounted");
    }
}

bool WireSlots::lease(const IpAddress& ip, std::uint32_t slot) {
    struct flock lock = byte_lock(slot);
    if (::fcntl(lease_.get(), F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES) return false;
        base::throw_errno(errno, std::string{share_attempt}, describe_group(ip));
    }
    slot_ = slot;
    const auto last = static_cast<std::uint8_t>(slot);
    static_cast<void>(::pwrite(lease_.get(), &last, sizeof last, last_leased_at));
    empty(socket());
    return true;
}

void WireSlots::lease_any(const IpAddress& ip) {
    std::uint8_t last = 0;
    static_cast<void>(::pread(lease_.get(), &last, sizeof last, last_leased_at));
    // The one that was free longest: what still travels to its former holder is then gone.
    for (std::uint32_t i = 0; i < wire_slots; ++i) {
        const std::uint32_t slot = (last + 1U + i) % wire_slots;
        if (slot != 0 && lease(ip, slot)) return;
    }
    throw base::Error{
        base::ErrorCode::resource_exhausted, std::string{share_attempt}, describe_group(ip),
        fmt::format("{} processes share it, and there is no place for more", wire_slots - 1),
        "end one of them, or use another address of this host or, over IPv4, a port of one's own "
        "(MILLRACE_WIRE=ADDRESS:PORT)"};
}

void WireSlots::admit() noexcept {
    for (;;) {
        const Descriptor joiner{
            ::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (!joiner) return;
        if (!is_of_this_user(joiner.get())) continue;
        const auto own = own_address_of(socket());
        if (!own) continue;
        Passed passed;
        passed.welcome.ip = own->ip;
        std::array<int, passed_descriptors> numbers{};
        for (std::uint32_t i = 0; i < wire_slots; ++i) numbers[i] = sockets_[i].get();
        numbers[wire_slots] = leases_.get();
        numbers[wire_slots + 1] = door_.get();
        cmsghdr* const at = CMSG_FIRSTHDR(&passed.message);
        at->cmsg_level = SOL_SOCKET;
        at->cmsg_type = SCM_RIGHTS;
        at->cmsg_len = CMSG_LEN(sizeof numbers);
        std::memcpy(CMSG_DATA(at), numbers.data(), sizeof numbers);
        // Who is not served tries again.
        static_cast<void>(::sendmsg(joiner.get(), &passed.message, MSG_DONTWAIT | MSG_NOSIGNAL));
    }
}

std::uint32_t WireSlots::leased() const noexcept {
    std::uint32_t count = 1;  // one's own lock is in nobody's way
    for (std::uint32_t slot = 1; slot < wire_slots; ++slot) {
        struct flock lock = byte_lock(slot);
        if (::fcntl(lease_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) ++count;
    }
    return count;
}

void WireSlots::become_copy() noexcept {
    for (Descriptor& socket : sockets_) socket.close();
    leases_.close();
    door_.close();
    lease_.close();
}

}  // namespace millrace::soft
