// Items to and fro: how long one takes from enqueue to dequeue where queues are empty. See
// measure_flow.hpp.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <sys/socket.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "bench/limits/socket_ends.hpp"
#include "measure_flow.hpp"
#include "meeting_of_ends.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/connect/link.hpp"
#include "queue_ends.hpp"

namespace millrace::bench {
namespace {

constexpr std::uint64_t ring_bytes = 4U << 20;
constexpr std::uint64_t window = 64;

/// Calls `handshake(number)` until there were so many or the time is over; the median window's
/// nanoseconds of half a handshake. The first window warms up.
template <class Handshake>
double median_half(const FlowCase& chosen, std::uint64_t handshakes, Handshake&& handshake) {
    std::vector<double> halves;
    std::uint32_t number = 0;
    const std::uint64_t end = base::ticks() + base::ticks_in(chosen.limit);
    const std::uint64_t windows = std::max<std::uint64_t>(handshakes / window, 2);
    for (std::uint64_t i = 0; i < windows; ++i) {
        const auto start = base::Clock::now();
        for (std::uint64_t j = 0; j < window; ++j) handshake(number++);
        if (i != 0) halves.push_back(nanoseconds_since(start) / (2.0 * window));
        if (i != 0 && base::ticks() > end) break;
    }
    return quantile(std::move(halves), 0.5);
}

FlowCase with_small_rings(FlowCase chosen) {
    chosen.capacity = std::clamp<std::uint64_t>(ring_bytes / chosen.item_bytes, 1, chosen.capacity);
    chosen.receive_pool =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(chosen.receive_pool, chosen.capacity));
    return chosen;
}

void put(Pair& pair, ProducingEnd& end, std::uint32_t number) {
    base::Status status;
    pair.spin_until([&] {
        status = end.try_put(number);
        return status != base::Status::full;
    });
    require(status, "an item to and fro");
}
/// False: the other end closed. A passive producer sends, and tells, in its calls alone: what its
/// last one could not do yet, on a link, `own` does while the answer is waited for.
bool take(Pair& pair, ConsumingEnd& end, ProducingEnd& own, std::uint32_t number) {
    constexpr int looks_before_help = 32;  // where requests complete at once, the answer is there
    base::Status status;
    int looks = 0;
    pair.spin_until([&] {
        status = end.try_take(number);
        if (status != base::Status::empty) return true;
        if (++looks % looks_before_help == 0) (void)own.flush(base::Deadline::now());
        return false;
    });
    require(status == base::Status::ok || status == base::Status::closed, "an item to and fro");
    return status == base::Status::ok;
}

PairOptions transfer_options(const FlowCase& chosen) {
    return {.shared_bytes = sizeof(std::uint64_t),
            .deadline = std::chrono::duration_cast<std::chrono::milliseconds>(chosen.limit) +
                        std::chrono::seconds{30}};
}

/// One side of raw WRITEs: memory that the peer writes to.
class Player {
  public:
    Player(connect::Link link, std::size_t bytes)
        : link_{std::move(link)},
          bytes_{bytes},
          in_{link_.protection_domain().allocate(bytes, verbs::Access::remote_write)},
          out_{link_.protection_domain().allocate(bytes, verbs::Access::none)} {
        const auto mine = in_.remote();
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}),
                                           base::Deadline::after(std::chrono::seconds{20}));
        require(answer.size() == sizeof(peer_), "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof(peer_));
        std::memset(in_.data(), 0xff, bytes);
    }
    void write(Pair& pair, std::uint32_t number) {
        // Completions are taken only here: what is posted must have room.
        pair.spin_until([&] { return outstanding_ < queue || poll() != 0; });
        std::memset(out_.data(), static_cast<int>(number & 0xffU), bytes_);
        std::memcpy(out_.data(), &number, sizeof(number));
        std::memcpy(out_.data() + bytes_ - sizeof(number), &number, sizeof(number));
        const ibv_sge slice = out_.slice(0, bytes_);
        const bool inlined = bytes_ <= 64;
        const int error = link_.queue_pair().post(
            verbs::Write{.from = {&slice, 1},
                         .to = peer_,
                         .flags = inlined ? verbs::SendFlags::signaled | verbs::SendFlags::inlined
                                          : verbs::SendFlags::signaled});
        require(error == 0, "a posted WRITE");
        ++outstanding_;
    }
    /// False: `over` was set before it came.
    bool wait_for(Pair& pair, std::uint32_t number, const std::atomic<std::uint64_t>& over) {
        const std::atomic_ref last{
            *reinterpret_cast<std::uint32_t*>(in_.data() + bytes_ - sizeof(number))};
        bool came = false;
        pair.spin_until([&] {
            came = last.load(std::memory_order_acquire) == number;
            if (!came) poll();
            return came || over.load(std::memory_order_relaxed) != 0;
        });
        base::heard_from_peers();
        if (came) keep(read_all(in_.data(), bytes_));
        return came;
    }

  private:
    static constexpr int queue = 32;
    int poll() {
        verbs::Completion completion;
        const int polled = link_.send_queue().poll({&completion, 1});
        require(polled == 0 || (polled == 1 && completion.ok()), "a WRITE's completion");
        outstanding_ -= polled;
        return polled;
    }
    connect::Link link_;
    std::size_t bytes_;
    verbs::RegisteredBuffer in_;
    verbs::RegisteredBuffer out_;
    verbs::RemoteAddress peer_{};
    int outstanding_ = 0;
};

}  // namespace

double measure_transfer(const FlowCase& asked, std::uint64_t handshakes) {
    const FlowCase chosen = with_small_rings(asked);
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    const EndMakers& makers = makers_for(chosen);
    return run_pair(
        transfer_options(chosen),
        [&](Pair& pair) {
            auto listener = listen_for_second(pair, options_of(chosen));
            const auto there = makers.accept_producer(chosen.design, listener, patience_of(chosen));
            const auto back = makers.accept_consumer(chosen.design, listener, patience_of(chosen));
            pair.meet();
            const double half = median_half(chosen, handshakes, [&](std::uint32_t number) {
                put(pair, *there, number);
                require(take(pair, *back, *there, number), "an item that comes back");
            });
            require(there->close(patience_of(chosen)), "the end");
            pair.meet();
            return half;
        },
        [&](Pair& pair) {
            const auto address = address_of_first(pair);
            const auto there = makers.connect_consumer(chosen.design, address, options_of(chosen),
                                                       patience_of(chosen));
            const auto back = makers.connect_producer(chosen.design, address, options_of(chosen),
                                                      patience_of(chosen));
            pair.meet();
            for (std::uint32_t number = 0; take(pair, *there, *back, number); ++number) {
                put(pair, *back, number);
            }
            pair.meet();
        });
}

double measure_raw_write(const FlowCase& chosen, std::uint64_t handshakes) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    const auto deadline = patience_of(chosen);
    connect::LinkOptions options;
    options.service = "bench raw WRITE";
    return run_pair(
        transfer_options(chosen),
        [&](Pair& pair) {
            auto listener =
                connect::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            auto& over = *pair.shared_at<std::atomic<std::uint64_t>>(0);
            Player player{listener.accept(deadline), chosen.item_bytes};
            pair.meet();
            const double half = median_half(chosen, handshakes, [&](std::uint32_t number) {
                player.write(pair, number);
                require(player.wait_for(pair, number, over), "a WRITE that comes back");
            });
            over.store(1, std::memory_order_relaxed);
            pair.meet();
            return half;
        },
        [&](Pair& pair) {
            Player player{connect::connect(address_of_first(pair), options, deadline),
                          chosen.item_bytes};
            const auto& over = *pair.shared_at<std::atomic<std::uint64_t>>(0);
            pair.meet();
            for (std::uint32_t number = 0; player.wait_for(pair, number, over); ++number) {
                player.write(pair, number);
            }
            pair.meet();
        });
}

double measure_socket_transfer(const FlowCase& chosen) {
    const SocketEnds ends = connected(SocketKind::tcp_loopback);
    const std::size_t size = chosen.item_bytes;
    return run_pair(
        transfer_options(chosen),
        [&](Pair& pair) {
            std::vector<std::byte> out(size);
            std::vector<std::byte> in(size);
            pair.meet();
            const double half =
                median_half(chosen, std::uint64_t{1} << 17, [&](std::uint32_t number) {
                    std::memcpy(out.data(), &number, sizeof(number));
                    send_all(ends.first.get(), out.data(), size);
                    require(receive_all(pair, ends.first.get(), in.data(), size,
                                        SocketWait::blocking) &&
                                std::memcmp(in.data(), out.data(), sizeof(number)) == 0,
                            "an answer over a socket");
                });
            ::shutdown(ends.first.get(), SHUT_WR);
            pair.meet();
            return half;
        },
        [&](Pair& pair) {
            std::vector<std::byte> item(size);
            pair.meet();
            while (receive_all(pair, ends.second.get(), item.data(), size, SocketWait::blocking)) {
                send_all(ends.second.get(), item.data(), size);
            }
            pair.meet();
        });
}

}  // namespace millrace::bench
