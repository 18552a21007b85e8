// Bars of a shuffle: tuples that one process gives to the partitions of another one by their keys,
// to the same by memcpy within one process, and by a Unix stream socket for each partition.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/framework/bars.hpp"
#include "bench/framework/payload.hpp"
#include "bench/limits/limits.hpp"
#include "bench/limits/socket_ends.hpp"
#include "flow_rates.hpp"
#include "millrace/base/error.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"

namespace millrace::bench {
namespace {

/// Its number, in all of it, is its key.
using Tuple = BarItem<64>;
constexpr std::size_t partitions = 8;
/// 64 MiB in all partitions, which are written again and again.
constexpr std::size_t tuples_of_a_partition = std::size_t{1} << 17;

/// Where the tuples of a partition end up.
class Partition {
  public:
    explicit Partition(std::size_t number) : number_{number}, tuples_(tuples_of_a_partition) {
        for (Tuple& tuple : tuples_) tuple.fill(1);  // the memory is there
    }
    /// Where the next ones go.
    [[nodiscard]] std::span<Tuple> room() noexcept {
        const std::size_t at = count_ % tuples_.size();
        return std::span{tuples_}.subspan(at, std::min<std::size_t>(tuples_.size() - at, 64));
    }
    /// They were put there.
    void add(std::size_t more) noexcept { count_ += more; }
    void check(std::span<const Tuple> tuples) {
        for (const Tuple& tuple : tuples) {
            const std::uint64_t key = tuple.words[0];
            require_intact(
                tuple.holds(key) && key > last_ && flow::partition_of(key, partitions) == number_,
                "a tuple of a shuffle");
            last_ = key;
        }
    }
    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  private:
    std::size_t number_;
    std::vector<Tuple> tuples_;
    std::uint64_t count_ = 0;
    std::uint64_t last_ = 0;
};
std::vector<Partition> every_partition() {
    std::vector<Partition> all;
    for (std::size_t i = 0; i != partitions; ++i) all.emplace_back(i);
    return all;
}

std::string address_of(int process, std::size_t partition) {
    return fmt::format("unix:@millrace-shuffle-{}-{}", process, partition);
}

double shuffle_rate() {
    const Windows windows{2'000'000};
    flow::Options queue;
    queue.ring.capacity = ring_bytes_of_limits / ring::slot_bytes_of(sizeof(Tuple), 8);
    return run_pair(
        {},
        [&](Pair& pair) {
            pair.meet();
            const auto deadline = patience();
            std::vector<connect::Address> addresses;
            for (std::size_t i = 0; i != partitions; ++i) {
                addresses.push_back(connect::Address::parse(address_of(pair.other_pid(), i)));
            }
            auto out = flow::FanOut<Tuple>::connect(addresses, {.queue = queue}, deadline);
            pair.meet();
            Tuple tuple{};
            const double tuple_ns = median_step(windows, [&](std::uint64_t number) {
                tuple.fill(number);
                require(out.enqueue_keyed(number, tuple, deadline), "a tuple");
            });
            require(out.flush(deadline), "the last tuples");
            pair.meet();
            return 1e9 / tuple_ns;
        },
        [&](Pair& pair) {
            std::vector<Partition> all = every_partition();
            std::vector<flow::FanIn<Tuple>> in;
            for (std::size_t i = 0; i != partitions; ++i) {
                in.push_back(flow::FanIn<Tuple>::listen(address_of(getpid(), i), {.queue = queue}));
            }
            pair.meet();
            std::size_t joined = 0;
            for (std::uint32_t turn = 1; joined != partitions; ++turn) {
                joined = 0;
                for (auto& one : in) joined += one.look_around();
                pair.check(turn);
            }
            pair.meet();
            std::uint64_t taken = 0;
            for (std::uint32_t turn = 1; taken != windows.total(); ++turn) {
                for (std::size_t i = 0; i != partitions; ++i) {
                    const std::span<Tuple> room = all[i].room();
                    const std::size_t count = in[i].try_dequeue_batch(room).count;
                    all[i].check(room.first(count));
                    all[i].add(count);
                    taken += count;
                }
                if (turn % 1024 == 0) pair.check(turn);
            }
            pair.meet();
        });
}

double memcpy_partition_rate() {
    return run_alone([] {
        const Windows windows{2'000'000};
        std::vector<Partition> all = every_partition();
        Tuple tuple{};
        const double tuple_ns = median_step(windows, [&](std::uint64_t number) {
            tuple.fill(number);
            keep(tuple);
            Partition& to = all[flow::partition_of(number, partitions)];
            std::memcpy(to.room().data(), &tuple, sizeof tuple);
            to.add(1);
        });
        std::uint64_t count = 0;
        for (const Partition& one : all) count += one.count();
        require(count == windows.total(), "a partition by memcpy");
        keep(all);
        return 1e9 / tuple_ns;
    });
}

/// A send for each tuple; the receiver takes as much as there is.
double socket_shuffle_rate() {
    const Windows windows{100'000};
    std::vector<SocketEnds> ends;
    for (std::size_t i = 0; i != partitions; ++i) {
        ends.push_back(connected(SocketKind::unix_stream));
    }
    return run_pair(
        {},
        [&](Pair& pair) {
            pair.meet();
            Tuple tuple{};
            const double tuple_ns = median_step(windows, [&](std::uint64_t number) {
                tuple.fill(number);
                send_all(ends[flow::partition_of(number, partitions)].first.get(),
                         reinterpret_cast<const std::byte*>(&tuple), sizeof tuple);
            });
            pair.meet();
            return 1e9 / tuple_ns;
        },
        [&](Pair& pair) {
            std::vector<Partition> all = every_partition();
            std::array<pollfd, partitions> ready{};
            for (std::size_t i = 0; i != partitions; ++i) {
                ready[i] = {.fd = ends[i].second.get(), .events = POLLIN, .revents = 0};
            }
            pair.meet();
            std::uint64_t taken = 0;
            while (taken != windows.total()) {
                if (::poll(ready.data(), ready.size(), 5000) <= 0) {
                    base::throw_errno(errno, "wait for", "sockets of the baseline", "");
                }
                for (std::size_t i = 0; i != partitions; ++i) {
                    if (ready[i].revents == 0) continue;
                    const std::span<Tuple> room = all[i].room();
                    // Whole tuples: each was sent by one call.
                    const ssize_t received =
                        ::recv(ready[i].fd, room.data(), room.size_bytes(), MSG_DONTWAIT);
                    require(received > 0, "a tuple");
                    const auto bytes = static_cast<std::size_t>(received);
                    require(bytes % sizeof(Tuple) == 0, "a whole tuple");
                    const std::size_t count = bytes / sizeof(Tuple);
                    all[i].check(room.first(count));
                    all[i].add(count);
                    taken += count;
                }
            }
            pair.meet();
        });
}

const BarRegistration to_memcpy{
    ratio_bar("structures", "64 B tuples shuffled to 8 partitions, to a partition by memcpy", 0.5,
              Sense::at_least, {"shuffle", shuffle_rate, "tuples/s"},
              {"memcpy", memcpy_partition_rate, "tuples/s"})};
const BarRegistration to_sockets{
    ratio_bar("structures", "64 B tuples shuffled to 8 partitions, to Unix stream sockets", 5,
              Sense::at_least, {"shuffle", shuffle_rate, "tuples/s"},
              {"sockets", socket_shuffle_rate, "tuples/s"})};

}  // namespace
}  // namespace millrace::bench
