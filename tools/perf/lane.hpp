// One stream of a measurement: a connection over which the one end sends for a while and the other
// one receives until the end. Each runs on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/stream/socket.hpp"
#include "perf/plan.hpp"
#include "workload/descriptor.hpp"

namespace millrace::tools::perf {

/// What one end of a lane did.
struct LaneCount {
    std::uint64_t bytes = 0;
    double seconds = 0;  ///< from the start to the last byte
    /// Sender of a byte stream: of its bytes, those that no receiver copied. Below 0: not known.
    double percent_direct = -1;
};

class Lane {
  public:
    /// Ends what the lane waits for, when it is requested.
    explicit Lane(const base::Cancellation& stop) noexcept : stop_{&stop} {}
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
    virtual ~Lane() = default;

    /// Sends until `plan` says that it is enough, and ends the stream in good order. Throws Error.
    virtual LaneCount send(const Plan& plan, std::uint32_t lane) = 0;
    /// Receives until the end of the stream. Throws Error.
    virtual LaneCount receive(const Plan& plan) = 0;

    /// Sent or received so far. Any thread.
    [[nodiscard]] std::uint64_t bytes() const noexcept {
        return bytes_.load(std::memory_order_relaxed);
    }

  protected:
    void count(std::uint64_t bytes) noexcept {
        bytes_.store(this->bytes() + bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] const base::Cancellation& stop() const noexcept { return *stop_; }

  private:
    const base::Cancellation* stop_;
    std::atomic<std::uint64_t> bytes_{0};
};

/// When a sender has sent enough: the time is over, or the bytes are.
class Allowance {
  public:
    Allowance(const Plan& plan, std::uint32_t lane) noexcept
        : left_{plan.bytes == 0 ? ~std::uint64_t{0} : plan.bytes_of(lane)},
          length_{plan.length},
          ends_{plan.bytes == 0 ? base::Deadline::after(std::chrono::seconds{plan.seconds})
                                : base::Deadline::never()} {}
    /// Bytes of the next send; 0: enough.
    [[nodiscard]] std::uint64_t next() noexcept {
        if (ends_.expired()) left_ = 0;
        const std::uint64_t bytes = left_ < length_ ? left_ : length_;
        left_ -= bytes;
        return bytes;
    }

  private:
    std::uint64_t left_;
    std::uint64_t length_;
    base::Deadline ends_;
};

[[nodiscard]] inline double seconds_since(base::Clock::time_point start) noexcept {
    return std::chrono::duration<double>(base::Clock::now() - start).count();
}

[[nodiscard]] std::unique_ptr<Lane> stream_lane(stream::Socket socket,
                                                std::shared_ptr<connect::Endpoint> endpoint,
                                                const base::Cancellation& stop);
/// Of a connected TCP socket. Sends and receives by blocking calls, `plan.length` bytes each.
[[nodiscard]] std::unique_ptr<Lane> tcp_lane(workload::Descriptor socket,
                                             const base::Cancellation& stop);

// --- TCP's set-up

/// Connects, and sends the hello. Throws Error.
[[nodiscard]] workload::Descriptor tcp_connect(const std::string& host, std::uint16_t port,
                                               const Hello& hello);

}  // namespace millrace::tools::perf
