// See packet_trace.hpp.
#include "wire/packet_trace.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>

#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"

namespace millrace::soft {
namespace {

/// As tcpdump's manual calls them: of the whole file, and before each packet.
struct FileHeader {
    std::uint32_t magic = 0xa1b23c4d;  // times have nanoseconds
    std::uint16_t version_major = 2;
    std::uint16_t version_minor = 4;
    std::uint32_t unused[2]{};
    std::uint32_t longest_packet = 65535;
    std::uint32_t link_type = 101;  // LINKTYPE_RAW: IPv4 or IPv6, as the first four bits say
};
static_assert(sizeof(FileHeader) == 24);
struct PacketHeader {
    std::uint32_t seconds;
    std::uint32_t nanoseconds;
    std::uint32_t captured_bytes;
    std::uint32_t bytes;
};

constexpr std::uint8_t usual_time_to_live = 64;

[[nodiscard]] std::uint16_t checksum_of(const iphdr& header) noexcept {
    std::uint16_t words[sizeof header / 2];
    std::memcpy(words, &header, sizeof header);
    std::uint32_t sum = 0;
    for (const std::uint16_t word : words) sum += word;
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~(sum + (sum >> 16)));
}

[[nodiscard]] iphdr ipv4_header(const UdpAddress& from, const UdpAddress& to, std::size_t udp_bytes,
                                std::uint16_t id) noexcept {
    iphdr ip{};
    ip.version = 4;
    ip.ihl = sizeof ip / 4;
    ip.tot_len = htons(static_cast<std::uint16_t>(sizeof ip + udp_bytes));
    ip.id = htons(id);
    ip.frag_off = htons(IP_DF);
    ip.ttl = usual_time_to_live;
    ip.protocol = IPPROTO_UDP;
    ip.saddr = htonl(from.ip.ipv4());
    ip.daddr = htonl(to.ip.ipv4());
    ip.check = checksum_of(ip);
    return ip;
}

[[nodiscard]] ip6_hdr ipv6_header(const UdpAddress& from, const UdpAddress& to,
                                  std::size_t udp_bytes) noexcept {
    ip6_hdr ip{};
    ip.ip6_flow = htonl(std::uint32_t{6} << 28);
    ip.ip6_plen = htons(static_cast<std::uint16_t>(udp_bytes));
    ip.ip6_nxt = IPPROTO_UDP;
    ip.ip6_hlim = usual_time_to_live;
    std::memcpy(&ip.ip6_src, from.ip.bytes().data(), sizeof ip.ip6_src);
    std::memcpy(&ip.ip6_dst, to.ip.bytes().data(), sizeof ip.ip6_dst);
    return ip;
}

/// The first process writes the header; the others see that it is there.
[[nodiscard]] int begin_file(int file) noexcept {
    if (::flock(file, LOCK_EX) != 0) return errno;
    struct stat status {};
    int error = ::fstat(file, &status) == 0 ? 0 : errno;
    if (error == 0 && status.st_size == 0) {
        const FileHeader header;
        errno = ENOSPC;
        if (::write(file, &header, sizeof header) != sizeof header) error = errno;
    }
    static_cast<void>(::flock(file, LOCK_UN));
    return error;
}

}  // namespace

std::unique_ptr<PacketTrace> PacketTrace::from_environment() {
    const char* const path = std::getenv("MILLRACE_WIRE_PCAP");
    if (path == nullptr || *path == '\0') return nullptr;
    Descriptor file{::open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
    const int error = file ? begin_file(file.get()) : errno;
    if (error == 0) return std::unique_ptr<PacketTrace>{new PacketTrace{std::move(file)}};
    base::throw_errno(error, "write down the wire's packets", path,
                      "let MILLRACE_WIRE_PCAP name a file with room");
}

void PacketTrace::write(const UdpAddress& from, const UdpAddress& to,
                        std::span<const std::uint8_t> payload, std::uint16_t id) noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const bool four = from.ip.is_ipv4();
    const std::size_t udp_bytes = sizeof(udphdr) + payload.size();
    const std::size_t ip_bytes = four ? sizeof(iphdr) : sizeof(ip6_hdr);
    const auto all = static_cast<std::uint32_t>(ip_bytes + udp_bytes);
    PacketHeader header{static_cast<std::uint32_t>(now.tv_sec),
                        static_cast<std::uint32_t>(now.tv_nsec), all, all};
    iphdr ipv4 = ipv4_header(from, to, udp_bytes, id);
    ip6_hdr ipv6 = ipv6_header(from, to, udp_bytes);
    udphdr udp{};
    udp.source = htons(from.port);
    udp.dest = htons(to.port);
    udp.len = htons(static_cast<std::uint16_t>(udp_bytes));
    const base::Uncancelled held;
    const iovec pieces[]{{&header, sizeof header},
                         {four ? static_cast<void*>(&ipv4) : &ipv6, ip_bytes},
                         {&udp, sizeof udp},
                         {const_cast<std::uint8_t*>(payload.data()), payload.size()}};
    const std::size_t wanted = sizeof header + all;
    const ssize_t written = ::writev(file_.get(), pieces, std::size(pieces));
    if (written >= 0 && static_cast<std::size_t>(written) == wanted) return;
    // After half a packet nobody could read on.
    const int error = written < 0 ? errno : ENOSPC;
    if (written > 0) {
        struct stat status {};
        if (::fstat(file_.get(), &status) == 0) {
            static_cast<void>(::ftruncate(file_.get(), status.st_size - written));
        }
    }
    if (!has_lost_.exchange(true)) {
        base::log(base::LogLevel::error, "wire", "the trace lacks packets from here on: {}",
                  base::describe_errno(error));
    }
}

}  // namespace millrace::soft
