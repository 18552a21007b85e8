// The baselines, written plainly: one sendmsg per record, buffered reads of 64 KiB.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"
#include "rendezvous.hpp"
#include "transport.hpp"
#include "workload/descriptor.hpp"

namespace millrace::tools::demo {
namespace {

using base::throw_errno;

enum class Family { unix_socket, tcp };

void set_buffers(int socket, std::size_t bytes) {
    // The kernel doubles what is asked for and caps it at wmem_max: the baseline gets at least the
    // memory that the rings have, where the system allows it.
    const int size = static_cast<int>(bytes);
    ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

sockaddr_un unix_address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        base::throw_errno(ENAMETOOLONG, "make a socket", path, "set TMPDIR to a shorter path");
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

sockaddr_in tcp_address(const TransportOptions& options, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (::inet_pton(AF_INET, options.host.c_str(), &address.sin_addr) != 1) {
        base::throw_errno(EINVAL, "make a socket", options.host);
    }
    return address;
}

class SocketSender final : public Sender {
  public:
    explicit SocketSender(workload::Descriptor socket) : socket_{std::move(socket)} {}

    void send(const RecordHeader& header, std::span<const std::byte> content) override {
        iovec parts[2] = {{const_cast<RecordHeader*>(&header), sizeof header},
                          {const_cast<std::byte*>(content.data()), content.size()}};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        std::size_t left = sizeof header + content.size();
        while (left != 0) {
            ++effort_.system_calls;
            const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
            if (sent < 0) {
                if (errno == EINTR) continue;
                throw_errno(errno, "send a record", "a socket", "look at the consumer's end");
            }
            left -= static_cast<std::size_t>(sent);
            auto skip = static_cast<std::size_t>(sent);
            for (iovec& part : parts) {
                const std::size_t step = std::min(skip, part.iov_len);
                part.iov_base = static_cast<std::byte*>(part.iov_base) + step;
                part.iov_len -= step;
                skip -= step;
            }
        }
    }

    void finish() override { ::shutdown(socket_.get(), SHUT_WR); }
    [[nodiscard]] Effort effort() override { return effort_; }

  private:
    workload::Descriptor socket_;
    Effort effort_;
};

class SocketReceiver final : public Receiver {
  public:
    SocketReceiver(workload::Descriptor listener, const TransportOptions& options, Family family)
        : listener_{std::move(listener)},
          deadline_{options.deadline},
          ring_bytes_{options.ring_bytes},
          family_{family},
          buffer_(
              std::max<std::size_t>(64 << 10, 2 * (sizeof(RecordHeader) + options.max_record))) {}

    bool receive(const Handler& handler) override {
        if (socket_.get() < 0) accept();
        RecordHeader header;
        if (!fill(sizeof header)) return false;
        std::memcpy(&header, buffer_.data() + begin_, sizeof header);
        if (header.length > buffer_.size() - sizeof header) {
            throw base::Error{base::ErrorCode::protocol, "receive a record", "a socket",
                              "its length is beyond the largest record", ""};
        }
        if (!fill(sizeof header + header.length)) {
            throw base::Error{base::ErrorCode::peer_lost, "receive a record", "a socket",
                              "the stream ended in the middle of it", ""};
        }
        handler(header, std::span{buffer_}.subspan(begin_ + sizeof header, header.length));
        begin_ += sizeof header + header.length;
        return true;
    }
    [[nodiscard]] Effort effort() override { return effort_; }

  private:
    void accept() {
        pollfd wait{listener_.get(), POLLIN, 0};
        const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(
            std::min<std::chrono::nanoseconds>(deadline_.remaining(), std::chrono::seconds{30}));
        if (::poll(&wait, 1, static_cast<int>(limit.count())) != 1) {
            throw base::Error{base::ErrorCode::timed_out, "wait for the producer", "a socket",
                              "nobody connected", ""};
        }
        socket_ = workload::Descriptor{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (socket_.get() < 0) throw_errno(errno, "accept", "a socket");
        set_buffers(socket_.get(), ring_bytes_);
        if (family_ == Family::tcp) {
            const int on = 1;
            ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
    }

    /// Until `wanted` bytes are buffered from `begin_` on. False at the end of the stream.
    bool fill(std::size_t wanted) {
        while (end_ - begin_ < wanted) {
            if (buffer_.size() - begin_ < wanted) {
                std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
                end_ -= begin_;
                begin_ = 0;
            } else if (begin_ == end_) {
                begin_ = end_ = 0;
            }
            ++effort_.system_calls;
            const ssize_t got =
                ::recv(socket_.get(), buffer_.data() + end_, buffer_.size() - end_, 0);
            if (got == 0) return false;
            if (got < 0) {
                if (errno == EINTR) continue;
                throw_errno(errno, "receive", "a socket", "look at the producer's end");
            }
            end_ += static_cast<std::size_t>(got);
        }
        return true;
    }

    workload::Descriptor listener_;
    workload::Descriptor socket_;
    base::Deadline deadline_;
    std::size_t ring_bytes_;
    Family family_;
    std::vector<std::byte> buffer_;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
    Effort effort_;
};

std::unique_ptr<Receiver> listen(const TransportOptions& options, Family family) {
    const int domain = family == Family::tcp ? AF_INET : AF_UNIX;
    workload::Descriptor socket{::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (socket.get() < 0) throw_errno(errno, "make a socket", "the baseline");
    set_buffers(socket.get(), options.ring_bytes);
    if (family == Family::unix_socket) {
        const sockaddr_un address = unix_address(options.rendezvous);
        ::unlink(options.rendezvous.c_str());
        if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
                0 ||
            ::listen(socket.get(), 1) != 0) {
            throw_errno(errno, "listen", options.rendezvous);
        }
    } else {
        sockaddr_in address = tcp_address(options, 0);
        socklen_t size = sizeof address;
        if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
                0 ||
            ::listen(socket.get(), 1) != 0 ||
            ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
            throw_errno(errno, "listen", options.host);
        }
        tell_port(options, ntohs(address.sin_port));
    }
    return std::make_unique<SocketReceiver>(std::move(socket), options, family);
}

/// One attempt; an invalid descriptor while nobody listens yet.
workload::Descriptor try_connect(const TransportOptions& options, Family family) {
    workload::Descriptor socket{
        ::socket(family == Family::tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (socket.get() < 0) throw_errno(errno, "make a socket", "the baseline");
    set_buffers(socket.get(), options.ring_bytes);
    if (family == Family::unix_socket) {
        const sockaddr_un address = unix_address(options.rendezvous);
        if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0) {
            return socket;
        }
        return workload::Descriptor{};
    }
    const std::optional<std::uint16_t> port = told_port(options);
    if (!port.has_value()) return workload::Descriptor{};
    const sockaddr_in address = tcp_address(options, *port);
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        return socket;
    }
    return workload::Descriptor{};
}

std::unique_ptr<Sender> connect(const TransportOptions& options, Family family) {
    workload::Descriptor socket;
    base::NapParker parker;
    const base::Status status = base::wait_until(
        [&] {
            socket = try_connect(options, family);
            return socket.get() >= 0;
        },
        options.deadline, base::WaitPolicy::blocking(), parker);
    if (status != base::Status::ok) {
        throw base::Error{base::ErrorCode::timed_out, "connect to the consumer", options.rendezvous,
                          "nothing listens there", ""};
    }
    return std::make_unique<SocketSender>(std::move(socket));
}

Transport make(std::string key, std::string title, Family family) {
    return {std::move(key), std::move(title), true,
            [family](const TransportOptions& options) { return listen(options, family); },
            [family](const TransportOptions& options) { return connect(options, family); }};
}

}  // namespace

std::vector<Transport> socket_transports() {
    return {make("unix", "Unix stream socket", Family::unix_socket),
            make("tcp", "TCP", Family::tcp)};
}

}  // namespace millrace::tools::demo
