// Bars of a log: what positions and history cost compared with a plain queue, and how fast history
// comes.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "bench/framework/bars.hpp"
#include "bench/framework/payload.hpp"
#include "bench/limits/limits.hpp"
#include "flow_rates.hpp"
#include "millrace/flow/log.hpp"
#include "millrace/flow/log_reader.hpp"

namespace millrace::bench {
namespace {

using Logged = BarItem<64>;
constexpr std::uint64_t logged_items = 1'000'000;
constexpr std::uint64_t replayed_items = (std::uint64_t{64} << 20) / sizeof(Logged);

flow::Options log_ring() {
    flow::Options options;
    options.ring.capacity = ring_bytes_of_limits;
    return options;
}

/// Items per second that are appended and read live. The appender is held up by its reader as a
/// producer is by its consumer: by what that acknowledges, of four rings of history.
double log_rate() {
    const Windows windows{logged_items};
    return run_pair(
        {},
        [&](Pair& pair) {
            auto log = flow::Log<Logged>::listen(
                "127.0.0.1:0",
                {.queue = log_ring(),
                 .retention = {.bytes = 4 * ring_bytes_of_limits, .until_acknowledged = {"bar"}}});
            pair.set_value(0, log.address().port());
            pair.meet();
            const auto deadline = patience();
            while (log.look_around() == 0 && !deadline.expired()) {
            }
            Logged item{};
            const double item_ns = median_step(windows, [&](std::uint64_t number) {
                item.fill(number);
                require(log.append(item, deadline), "an item");
            });
            require(log.close(deadline), "the last items");
            pair.meet();
            return 1e9 / item_ns;
        },
        [&](Pair& pair) {
            auto reader = flow::LogReader<Logged>::connect(
                address_of_first(pair), {.queue = log_ring(), .name = "bar"}, patience());
            const auto deadline = patience();
            Logged item{};
            for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                require(reader.read(item, deadline), "an item");
                require_intact(item.holds(number), "an item of a log");
                if (number % 1024 == 0) require(reader.acknowledge(), "an acknowledgement");
            }
            pair.meet();
        });
}

/// The same of the queue of one producer, to one consumer.
double log_yardstick() {
    flow::Options options;
    options.ring.capacity = ring_bytes_of_limits / ring::slot_bytes_of(64, 8);
    return flow_call_rate<64, ring::design_2>(options, logged_items);
}

/// GB/s of 64 MiB of history that a reader takes out, in batches, to where they stay.
double replay_rate() {
    return run_pair(
        {},
        [&](Pair& pair) {
            auto log = flow::Log<Logged>::listen(
                "127.0.0.1:0",
                {.queue = log_ring(), .retention = {.bytes = std::uint64_t{128} << 20}});
            Logged item{};
            for (std::uint64_t number = 1; number <= replayed_items; ++number) {
                item.fill(number);
                require(log.try_append(item), "an item");
            }
            pair.set_value(0, log.address().port());
            pair.meet();
            const auto deadline = patience();
            while (log.look_around() == 0 && !deadline.expired()) {
            }
            require(log.close(deadline), "the last items");
            pair.meet();
            return 1e-3 * static_cast<double>(pair.value(1));
        },
        [&](Pair& pair) {
            std::vector<Logged> items(replayed_items, Logged{});
            const connect::Address address = address_of_first(pair);
            const auto deadline = patience();
            const auto start = base::Clock::now();
            auto reader =
                flow::LogReader<Logged>::connect(address, {.queue = log_ring()}, deadline);
            std::size_t count = 0;
            while (count != items.size() && !deadline.expired()) {
                count += reader.try_read_batch(std::span{items}.subspan(count)).count;
            }
            const double time = nanoseconds_since(start);
            for (std::size_t i = 0; i != items.size(); ++i) {
                require_intact(items[i].holds(i + 1), "an item of history");
            }
            pair.set_value(1, static_cast<std::uint64_t>(
                                  1e3 * static_cast<double>(items.size() * sizeof(Logged)) / time));
            pair.meet();
        });
}

/// GB/s of one memcpy of as much, from memory to memory that were both written before.
double memcpy_rate() {
    return run_alone([] {
        std::vector<Logged> from(replayed_items, Logged{});
        std::vector<Logged> to(replayed_items, Logged{});
        std::vector<double> rates;
        for (std::uint64_t round = 1; round != 6; ++round) {
            for (Logged& item : from) item.fill(round);
            const auto start = base::Clock::now();
            std::memcpy(to.data(), from.data(), from.size() * sizeof(Logged));
            keep(reinterpret_cast<std::byte*>(to.data()));
            rates.push_back(static_cast<double>(from.size() * sizeof(Logged)) /
                            nanoseconds_since(start));
            require_intact(to[round].holds(round), "a copy");
        }
        return quantile(std::move(rates), 0.5);
    });
}

const BarRegistration log_live{
    ratio_bar("structures", "64 B items appended to a log and read live, to those of a queue", 0.8,
              Sense::at_least, {"log", log_rate, "items/s"}, {"queue", log_yardstick, "items/s"})};
const BarRegistration log_replay{
    ratio_bar("structures", "history of a log, 64 MiB of 64 B items, to memcpy", 0.7,
              Sense::at_least, {"history", replay_rate, "GB/s"}, {"memcpy", memcpy_rate, "GB/s"})};

}  // namespace
}  // namespace millrace::bench
