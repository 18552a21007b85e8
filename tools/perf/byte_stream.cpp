// A lane over a byte stream: several buffers of registered memory in turn, all under way at once.
#include "perf/lane.hpp"

#include <utility>

#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/stream/buffer.hpp"

namespace millrace::tools::perf {
namespace {

using base::Status;

class StreamLane final : public Lane {
  public:
    StreamLane(stream::Socket socket, std::shared_ptr<connect::Endpoint> endpoint,
               const base::Cancellation& stop)
        : Lane{stop}, endpoint_{std::move(endpoint)}, socket_{std::move(socket)} {}

    LaneCount send(const Plan& plan, std::uint32_t lane) override {
        Lent lent{*this, plan};
        LaneCount result;
        const auto start = base::Clock::now();
        Allowance allowance{plan, lane};
        std::uint64_t begun = 0;
        std::uint64_t ended = 0;
        bool enough = false;
        while (!enough || ended != begun) {
            if (!enough && begun - ended < plan.buffers) {
                const std::uint64_t bytes = allowance.next();
                enough = bytes == 0;
                if (enough) continue;
                require(socket_.send(lent.place(begun, bytes), begun), "send");
                ++begun;
                continue;
            }
            const stream::Completion done = next("send");
            require(done.status, "send");
            result.bytes += done.bytes;
            count(done.bytes);
            ++ended;
        }
        result.seconds = seconds_since(start);
        result.percent_direct = socket_.stats().percent_direct();
        close();
        return result;
    }

    LaneCount receive(const Plan& plan) override {
        Lent lent{*this, plan};
        LaneCount result;
        const auto start = base::Clock::now();
        std::uint64_t begun = 0;
        std::uint64_t ended = 0;
        bool over = false;
        const auto lend = [&] {
            const Status status = socket_.receive(lent.place(begun, plan.length), begun);
            if (status == Status::closed) {
                over = true;
                return;
            }
            require(status, "receive");
            ++begun;
        };
        while (begun < plan.buffers && !over) lend();
        while (ended != begun) {
            const stream::Completion done = next("receive");
            ++ended;
            if (done.status == Status::closed) {
                over = true;
                continue;
            }
            require(done.status, "receive");
            result.bytes += done.bytes;
            count(done.bytes);
            result.seconds = seconds_since(start);
            // Completions come in order: the place of this one is the next.
            if (!over) lend();
        }
        close();
        return result;
    }

  private:
    /// Memory that the peer may use, for as long as the connection stands.
    struct Lent {
        Lent(StreamLane& owner, const Plan& plan)
            : lane{owner}, length{plan.length}, buffers{plan.buffers} {
            lane.memory_.emplace(length * buffers, lane.endpoint_);
        }
        [[nodiscard]] stream::Slice place(std::uint64_t number, std::uint64_t bytes) const {
            return lane.memory_->slice(number % buffers * length, bytes);
        }
        StreamLane& lane;
        std::uint64_t length;
        std::uint32_t buffers;
    };

    stream::Completion next(const char* verb) {
        stream::Completion done;
        require(socket_.wait(done, base::Deadline::never().cancelled_by(stop())), verb);
        return done;
    }
    void close() {
        const auto deadline = base::Deadline::after(patience).cancelled_by(stop());
        const Status status = socket_.close(deadline);
        // The other end may have closed first.
        if (status != Status::closed) require(status, "end");
    }
    void require(Status status, const char* verb) const {
        if (status == Status::ok) return;
        if (status == Status::cancelled) {
            throw base::Error{base::ErrorCode::cancelled, std::string{verb} + " a stream",
                              socket_.peer_name(), "the measurement was given up", ""};
        }
        throw base::Error{
            base::ErrorCode::peer_lost, std::string{verb} + " a stream", socket_.peer_name(),
            socket_.failure().empty() ? "it answers " + std::string{base::name_of(status)}
                                      : socket_.failure(),
            "look at what its process reported"};
    }

    std::shared_ptr<connect::Endpoint> endpoint_;
    std::optional<stream::Buffer> memory_;  ///< goes behind the socket
    stream::Socket socket_;
};

}  // namespace

std::unique_ptr<Lane> stream_lane(stream::Socket socket,
                                  std::shared_ptr<connect::Endpoint> endpoint,
                                  const base::Cancellation& stop) {
    return std::make_unique<StreamLane>(std::move(socket), std::move(endpoint), stop);
}

}  // namespace millrace::tools::perf
