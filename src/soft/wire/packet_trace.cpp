// See packet_trace.hpp.
#include "wire/packet_trace.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

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
    std::uint32_t link_type = 228;  // LINKTYPE_IPV4
};
static_assert(sizeof(FileHeader) == 24);
struct PacketHeader {
    std::uint32_t seconds;
    std::uint32_t nanoseconds;
    std::uint32_t captured_bytes;
    std::uint32_t bytes;
};

struct Headers {
    PacketHeader packet;
    iphdr ip;
    udphdr udp;
};
static_assert(sizeof(Headers) == 16 + 20 + 8);

[[nodiscard]] std::uint16_t checksum_of(const iphdr& header) noexcept {
    std::uint16_t words[sizeof header / 2];
    std::memcpy(words, &header, sizeof header);
    std::uint32_t sum = 0;
    for (const std::uint16_t word : words) sum += word;
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~(sum + (sum >> 16)));
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
    const auto all = static_cast<std::uint32_t>(sizeof(iphdr) + sizeof(udphdr) + payload.size());
    Headers headers{};
    headers.packet = {static_cast<std::uint32_t>(now.tv_sec),
                      static_cast<std::uint32_t>(now.tv_nsec), all, all};
    headers.ip.version = 4;
    headers.ip.ihl = sizeof(iphdr) / 4;
    headers.ip.tot_len = htons(static_cast<std::uint16_t>(all));
    headers.ip.id = htons(id);
    headers.ip.frag_off = htons(IP_DF);
    headers.ip.ttl = 64;
    headers.ip.protocol = IPPROTO_UDP;
    headers.ip.saddr = htonl(from.ip);
    headers.ip.daddr = htonl(to.ip);
    headers.ip.check = checksum_of(headers.ip);
    headers.udp.source = htons(from.port);
    headers.udp.dest = htons(to.port);
    headers.udp.len = htons(static_cast<std::uint16_t>(sizeof(udphdr) + payload.size()));
    const base::Uncancelled held;
    const iovec pieces[2]{{&headers, sizeof headers},
                          {const_cast<std::uint8_t*>(payload.data()), payload.size()}};
    const std::size_t wanted = sizeof headers + payload.size();
    const ssize_t written = ::writev(file_.get(), pieces, 2);
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
