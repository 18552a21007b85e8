// Streams of items through flow queues, and over a socket. See measure_flow.hpp.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <sched.h>
#include <sys/socket.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/limits/socket_ends.hpp"
#include "call_times.hpp"
#include "measure_flow.hpp"
#include "meeting_of_ends.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "queue_ends.hpp"

namespace millrace::bench {
namespace {

/// What the consuming side leaves in shared memory.
struct ConsumerReport {
    std::uint64_t items;
    double dequeue_ns;
    double empty_ns;
    std::uint64_t empties;
    std::uint64_t transfer_reads;
    std::uint64_t credit_writes;
    std::uint64_t requests;
    std::uint64_t events;
    std::uint64_t calls;
};

/// One lap of the ring makes its memory known to both processes: without it, the poster finds
/// page after page. Where the link would take much longer for it than for the run, less must do.
std::uint64_t warm_up_items(const FlowCase& chosen) {
    constexpr double least = 32U << 20;
    constexpr double most = 512U << 20;
    const std::uint64_t rate = soft::cable_facts(chosen.mode).bits_per_second;
    const double seconds = 1.5 * std::chrono::duration<double>{chosen.limit}.count();
    const double bytes =
        rate == 0 ? most : std::clamp(seconds * static_cast<double>(rate) / 8, least, most);
    return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(bytes) / chosen.item_bytes, 1,
                                     chosen.capacity);
}

PairOptions pair_options(const FlowCase& chosen) {
    return {.shared_bytes = sizeof(ConsumerReport),
            .deadline = std::chrono::duration_cast<std::chrono::milliseconds>(chosen.limit) +
                        std::chrono::seconds{60}};
}

/// Puts items until there were `items` or the time is over. What `put` answers other than `full`
/// must be ok.
class Putting {
  public:
    template <class Put>
    std::uint64_t run(Pair& pair, std::uint64_t first, std::uint64_t items, std::uint64_t end,
                      Put&& put) {
        std::uint32_t until_sample = CallTimes::stride;
        std::uint32_t turn = 0;
        std::uint32_t fulls = 0;
        std::uint64_t number = first;
        const std::uint64_t last = first + items;
        while (number != last) {
            base::Status status;
            if (--until_sample == 0) [[unlikely]] {
                until_sample = CallTimes::stride;
                const std::uint64_t start = base::ticks();
                status = put(static_cast<std::uint32_t>(number));
                const std::uint64_t now = base::ticks();
                (status == base::Status::ok ? ok_ : full_).add(now - start);
                if (now > end) {
                    number += status == base::Status::ok ? 1 : 0;
                    break;
                }
            } else {
                status = put(static_cast<std::uint32_t>(number));
            }
            if (status == base::Status::ok) [[likely]] {
                ++number;
                fulls = 0;
            } else {
                require(status == base::Status::full, "an item that is put");
                base::pause();
                // A data mover, and a link's engine, may have no other core than this one.
                if (++fulls % patient_fulls == 0) ::sched_yield();
                if ((++turn & 1023U) == 0) pair.check(turn);
            }
        }
        return number - first;
    }
    CallTimes ok_;
    CallTimes full_;

  private:
    static constexpr std::uint32_t patient_fulls = 64;
};

constexpr std::uint64_t no_end = ~std::uint64_t{0};

void produce(Pair& pair, const FlowCase& chosen, ProducingEnd& end, StreamResult& result) {
    const auto deadline = patience_of(chosen);
    const std::uint64_t warm_up = warm_up_items(chosen);
    const auto put = [&](std::uint32_t number) { return end.try_put(number); };
    pair.meet();
    Putting{}.run(pair, 0, warm_up, no_end, put);
    require(end.flush(deadline), "the items that warm up");
    pair.meet();

    const flow::ProducerStats before = end.stats();
    const std::uint64_t calls = base::system_calls_of_this_thread();
    Putting putting;
    const auto start = base::Clock::now();
    const std::uint64_t items =
        putting.run(pair, warm_up, chosen.items, base::ticks() + base::ticks_in(chosen.limit), put);
    require(end.flush(deadline), "the last items");
    result.seconds = nanoseconds_since(start) / 1e9;
    const flow::ProducerStats after = end.stats();
    result.items = items;
    const auto each = static_cast<double>(items);
    result.producer_calls = static_cast<double>(base::system_calls_of_this_thread() - calls) / each;
    require(end.close(deadline), "the end");
    pair.meet();

    const auto per_item = [&](std::uint64_t ring::SenderCounts::*count) {
        return static_cast<double>(after.ring.*count - before.ring.*count) / each;
    };
    using Counts = ring::SenderCounts;
    result.enqueue_ns = putting.ok_.mean_ns();
    result.full_ns = putting.full_.mean_ns();
    result.fulls = per_item(&Counts::full_returns);
    result.producer_requests = per_item(&Counts::work_requests) + per_item(&Counts::receives);
    const auto& report = *pair.shared_at<ConsumerReport>(0);
    require_intact(report.items == items, "as many items as were put");
    result.dequeue_ns = report.dequeue_ns;
    result.empty_ns = report.empty_ns;
    result.empties = static_cast<double>(report.empties) / each;
    result.transfer_ratio =
        per_item(&Counts::transfer_writes) + static_cast<double>(report.transfer_reads) / each;
    result.space_ratio =
        per_item(&Counts::space_reads) + static_cast<double>(report.credit_writes) / each;
    result.consumer_requests = static_cast<double>(report.requests) / each;
    result.consumer_events = static_cast<double>(report.events) / each;
    result.consumer_calls = static_cast<double>(report.calls) / each;
}

void consume(Pair& pair, const FlowCase& chosen, ConsumingEnd& end) {
    const std::uint64_t warm_up = warm_up_items(chosen);
    CallTimes ok;
    CallTimes empty;
    pair.meet();
    std::uint64_t number = 0;
    std::uint32_t turn = 0;
    while (number != warm_up) {
        if (end.try_take(static_cast<std::uint32_t>(number)) == base::Status::ok) {
            ++number;
        } else if ((++turn & 1023U) == 0) {
            pair.check(turn);
        }
    }
    const flow::ConsumerStats before = end.stats();
    const std::uint64_t calls = base::system_calls_of_this_thread();
    pair.meet();
    std::uint32_t until_sample = CallTimes::stride;
    while (true) {
        base::Status status;
        if (--until_sample == 0) [[unlikely]] {
            until_sample = CallTimes::stride;
            const std::uint64_t start = base::ticks();
            status = end.try_take(static_cast<std::uint32_t>(number));
            (status == base::Status::ok ? ok : empty).add(base::ticks() - start);
        } else {
            status = end.try_take(static_cast<std::uint32_t>(number));
        }
        if (status == base::Status::ok) [[likely]] {
            ++number;
        } else if (status == base::Status::empty) {
            base::pause();
            if ((++turn & 1023U) == 0) pair.check(turn);
        } else {
            require(status == base::Status::closed, "the end of the items");
            break;
        }
    }
    const flow::ConsumerStats after = end.stats();
    auto& report = *pair.shared_at<ConsumerReport>(0);
    report.items = number - warm_up;
    report.calls = base::system_calls_of_this_thread() - calls;
    report.dequeue_ns = ok.mean_ns();
    report.empty_ns = empty.mean_ns();
    report.empties = after.empty_returns - before.empty_returns;
    report.transfer_reads = after.ring.transfer_reads - before.ring.transfer_reads;
    report.credit_writes = after.ring.credit_writes - before.ring.credit_writes;
    report.requests = after.ring.work_requests - before.ring.work_requests + after.ring.receives -
                      before.ring.receives;
    report.events = after.ring.events - before.ring.events;
    pair.meet();
}

/// As many bytes a second as the modelled link takes; its latency is not modelled.
void pace(int socket, const FlowCase& chosen) {
    const std::uint64_t bytes = soft::cable_facts(chosen.mode).bits_per_second / 8;
    if (bytes == 0) return;
    require(::setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes, sizeof bytes) == 0,
            "a socket that is paced");
}

}  // namespace

StreamResult measure_stream(const FlowCase& chosen) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    const EndMakers& makers = makers_for(chosen);
    StreamResult result;
    run_pair(
        pair_options(chosen),
        [&](Pair& pair) {
            auto listener = listen_for_second(pair, options_of(chosen));
            const auto end = makers.accept_producer(chosen.design, listener, patience_of(chosen));
            produce(pair, chosen, *end, result);
            return 0.0;
        },
        [&](Pair& pair) {
            const auto end = makers.connect_consumer(chosen.design, address_of_first(pair),
                                                     options_of(chosen), patience_of(chosen));
            consume(pair, chosen, *end);
        });
    return result;
}

StreamResult measure_socket_stream(const FlowCase& chosen) {
    const SocketEnds ends = connected(SocketKind::tcp_loopback);
    pace(ends.first.get(), chosen);
    const std::size_t size = chosen.item_bytes;
    const auto stamp_item = [&](std::vector<std::byte>& item, std::uint32_t number) {
        std::memcpy(item.data(), &number, sizeof(number));
        std::memcpy(item.data() + size - sizeof(number), &number, sizeof(number));
    };
    StreamResult result;
    run_pair(
        pair_options(chosen),
        [&](Pair& pair) {
            std::vector<std::byte> item(size);
            Putting putting;
            pair.meet();
            const auto start = base::Clock::now();
            result.items =
                putting.run(pair, 0, chosen.items, base::ticks() + base::ticks_in(chosen.limit),
                            [&](std::uint32_t number) {
                                stamp_item(item, number);
                                send_all(ends.first.get(), item.data(), size);
                                return base::Status::ok;
                            });
            ::shutdown(ends.first.get(), SHUT_WR);
            pair.meet();
            result.seconds = nanoseconds_since(start) / 1e9;
            const auto& report = *pair.shared_at<ConsumerReport>(0);
            require_intact(report.items == result.items, "as many items as were sent");
            result.enqueue_ns = putting.ok_.mean_ns();
            result.dequeue_ns = report.dequeue_ns;
            result.producer_calls = 1;
            result.consumer_calls = 1;
            return 0.0;
        },
        [&](Pair& pair) {
            std::vector<std::byte> item(size);
            std::vector<std::byte> expected(size);
            CallTimes times;
            pair.meet();
            std::uint64_t number = 0;
            while (true) {
                const std::uint64_t start = base::ticks();
                if (!receive_all(pair, ends.second.get(), item.data(), size,
                                 SocketWait::blocking)) {
                    break;
                }
                if (number % CallTimes::stride == 0) times.add(base::ticks() - start);
                stamp_item(expected, static_cast<std::uint32_t>(number));
                require_intact(
                    std::memcmp(item.data(), expected.data(), 4) == 0 &&
                        std::memcmp(item.data() + size - 4, expected.data() + size - 4, 4) == 0,
                    "an item over a socket");
                ++number;
            }
            auto& report = *pair.shared_at<ConsumerReport>(0);
            report.items = number;
            report.dequeue_ns = times.mean_ns();
            pair.meet();
        });
    return result;
}

}  // namespace millrace::bench
