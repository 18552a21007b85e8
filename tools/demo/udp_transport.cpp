// UDP as the demo uses it: a datagram per record, as written by hand for a path that loses nothing.
// The consumer tells how many it has taken, and no more are under way than its socket's buffer
// holds; a record that is lost all the same is told as such by the demo's own check.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "rendezvous.hpp"
#include "transport.hpp"
#include "workload/descriptor.hpp"

namespace millrace::tools::demo {
namespace {

using base::throw_errno;

/// Records under way, at most, and after how many the consumer tells of them.
constexpr std::uint64_t window = 64;
constexpr std::uint64_t told_after = 16;
constexpr std::size_t longest_datagram = 65507;

sockaddr_in address_of(const std::string& host, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
        throw_errno(EINVAL, "make a UDP socket", host);
    }
    return address;
}

workload::Descriptor new_socket(const TransportOptions& options) {
    if (sizeof(RecordHeader) + options.max_record > longest_datagram) {
        throw base::Error{base::ErrorCode::invalid_argument, "send records by UDP", options.host,
                          "a record does not fit into a datagram", "say --record-size 65475"};
    }
    workload::Descriptor socket{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    if (socket.get() < 0) throw_errno(errno, "make a UDP socket", options.host);
    const int size = static_cast<int>(options.ring_bytes);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    const timeval patience{.tv_sec = 0, .tv_usec = 200'000};  // then the deadline is looked at
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return socket;
}

[[noreturn]] void throw_silent(const char* whom) {
    throw base::Error{base::ErrorCode::timed_out, "move records by UDP", whom,
                      "it says nothing any more", ""};
}

class UdpSender final : public Sender {
  public:
    explicit UdpSender(const TransportOptions& options)
        : socket_{new_socket(options)}, deadline_{options.deadline} {
        const connect::Address to = address_to_connect(options);
        const sockaddr_in address = address_of(to.host(), to.port());
        if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
            0) {
            throw_errno(errno, "connect a UDP socket", to.to_string());
        }
    }

    void send(const RecordHeader& header, std::span<const std::byte> content) override {
        while (sent_ - taken_ >= window) hear();
        iovec parts[2] = {{const_cast<RecordHeader*>(&header), sizeof header},
                          {const_cast<std::byte*>(content.data()), content.size()}};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        put(message);
        ++sent_;
    }
    void finish() override {
        while (taken_ != sent_) hear();
        put(msghdr{});  // of no bytes: the end
    }
    [[nodiscard]] Effort effort() override { return effort_; }

  private:
    void put(const msghdr& message) {
        for (;;) {
            ++effort_.system_calls;
            if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return;
            if (errno != EINTR) throw_errno(errno, "send a record", "a UDP socket");
        }
    }
    void hear() {
        ++effort_.system_calls;
        std::uint64_t told = 0;
        const ssize_t got = ::recv(socket_.get(), &told, sizeof told, 0);
        if (got == sizeof told) {
            taken_ = told;
        } else if (got < 0 && errno != EAGAIN && errno != EINTR) {
            throw_errno(errno, "hear of the consumer", "a UDP socket");
        } else if (deadline_.expired()) {
            throw_silent("the consumer");
        }
    }

    workload::Descriptor socket_;
    base::Deadline deadline_;
    std::uint64_t sent_ = 0;
    std::uint64_t taken_ = 0;
    Effort effort_;
};

class UdpReceiver final : public Receiver {
  public:
    explicit UdpReceiver(const TransportOptions& options)
        : socket_{new_socket(options)},
          deadline_{options.deadline},
          buffer_(sizeof(RecordHeader) + options.max_record) {
        sockaddr_in address = address_of(options.host, 0);
        socklen_t size = sizeof address;
        if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
            ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
            throw_errno(errno, "bind a UDP socket", options.host);
        }
        tell_port(options, ntohs(address.sin_port));
    }

    bool receive(const Handler& handler) override {
        for (int flags = MSG_DONTWAIT;;) {
            ++effort_.system_calls;
            socklen_t size = sizeof from_;
            const ssize_t got = ::recvfrom(socket_.get(), buffer_.data(), buffer_.size(), flags,
                                           reinterpret_cast<sockaddr*>(&from_), &size);
            if (got == 0) return false;
            if (got < 0 && errno != EAGAIN && errno != EINTR) {
                throw_errno(errno, "receive a record", "a UDP socket");
            }
            if (got > 0) {
                take(handler, static_cast<std::size_t>(got));
                return true;
            }
            if (taken_ != told_) tell();
            if (deadline_.expired()) throw_silent("the producer");
            flags = 0;
        }
    }
    [[nodiscard]] Effort effort() override { return effort_; }

  private:
    void take(const Handler& handler, std::size_t bytes) {
        RecordHeader header{};
        if (bytes < sizeof header) {
            throw base::Error{base::ErrorCode::protocol, "receive a record", "a UDP socket",
                              "the datagram is shorter than a header", ""};
        }
        std::memcpy(&header, buffer_.data(), sizeof header);
        handler(header, std::span{buffer_}.subspan(sizeof header, bytes - sizeof header));
        if (++taken_ - told_ >= told_after) tell();
    }
    void tell() {
        ++effort_.system_calls;
        if (::sendto(socket_.get(), &taken_, sizeof taken_, MSG_NOSIGNAL,
                     reinterpret_cast<const sockaddr*>(&from_), sizeof from_) < 0) {
            throw_errno(errno, "tell the producer", "a UDP socket");
        }
        told_ = taken_;
    }

    workload::Descriptor socket_;
    base::Deadline deadline_;
    std::vector<std::byte> buffer_;
    sockaddr_in from_{};
    std::uint64_t taken_ = 0;
    std::uint64_t told_ = 0;
    Effort effort_;
};

}  // namespace

Transport udp_transport() {
    return {"udp", "UDP, a datagram per record", true,
            [](const TransportOptions& options) { return std::make_unique<UdpReceiver>(options); },
            [](const TransportOptions& options) { return std::make_unique<UdpSender>(options); }};
}

}  // namespace millrace::tools::demo
