// A lane over a TCP socket of the kernel.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <vector>

#include "millrace/base/error.hpp"
#include "perf/lane.hpp"
#include "workload/tcp_socket.hpp"

namespace millrace::tools::perf {
namespace {

using base::Error;
using base::ErrorCode;
using base::throw_errno;

/// What a blocking call answers when nothing has happened for a while.
bool is_pause(int error) noexcept {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

class TcpLane final : public Lane {
  public:
    TcpLane(workload::Descriptor socket, const base::Cancellation& stop)
        : Lane{stop}, socket_{std::move(socket)} {
        // Blocking calls look up now and then.
        const timeval look{0, std::chrono::microseconds{look_interval}.count()};
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &look, sizeof look);
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
    }

    LaneCount send(const Plan& plan, std::uint32_t lane) override {
        const std::vector<std::byte> memory(plan.length);
        LaneCount result;
        const auto start = base::Clock::now();
        Allowance allowance{plan, lane};
        while (std::uint64_t left = allowance.next()) {
            while (left != 0) {
                const ssize_t sent = ::send(socket_.get(), memory.data(), left, MSG_NOSIGNAL);
                if (sent < 0 && !is_pause(errno)) throw_errno(errno, "send", "a TCP socket");
                go_on();
                if (sent < 0) continue;
                left -= static_cast<std::uint64_t>(sent);
                result.bytes += static_cast<std::uint64_t>(sent);
                count(static_cast<std::uint64_t>(sent));
            }
        }
        result.seconds = seconds_since(start);
        ::shutdown(socket_.get(), SHUT_WR);
        // Until the receiver has closed: closing sooner would throw away what it has not read.
        std::byte last;
        while (true) {
            const ssize_t got = ::recv(socket_.get(), &last, 1, 0);
            if (got >= 0 || !is_pause(errno)) break;
            go_on();
        }
        return result;
    }

    LaneCount receive(const Plan& plan) override {
        std::vector<std::byte> memory(plan.length);
        LaneCount result;
        const auto start = base::Clock::now();
        while (true) {
            const ssize_t got = ::recv(socket_.get(), memory.data(), memory.size(), 0);
            if (got == 0) break;
            if (got < 0 && !is_pause(errno)) throw_errno(errno, "receive", "a TCP socket");
            go_on();
            if (got < 0) continue;
            result.bytes += static_cast<std::uint64_t>(got);
            count(static_cast<std::uint64_t>(got));
            result.seconds = seconds_since(start);
        }
        socket_ = workload::Descriptor{};
        return result;
    }

  private:
    void go_on() const {
        if (!stop().requested()) return;
        throw Error{ErrorCode::cancelled, "measure", "a TCP socket", "the measurement was given up",
                    ""};
    }
    workload::Descriptor socket_;
};

}  // namespace

std::unique_ptr<Lane> tcp_lane(workload::Descriptor socket, const base::Cancellation& stop) {
    return std::make_unique<TcpLane>(std::move(socket), stop);
}

workload::Descriptor tcp_connect(const std::string& host, std::uint16_t port, const Hello& hello) {
    workload::Descriptor connected;
    int error = 0;
    workload::for_each_address(
        host, port, 0, [&](workload::Descriptor& socket, const addrinfo& address) {
            if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
                error = errno;
                return false;
            }
            connected = std::move(socket);
            return true;
        });
    const std::string name = host + ":" + std::to_string(port);
    if (connected.get() < 0) throw_errno(error, "connect by TCP", name);
    const auto bytes = hello.bytes();
    if (::send(connected.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
        throw_errno(errno, "greet by TCP", name);
    }
    return connected;
}

}  // namespace millrace::tools::perf
