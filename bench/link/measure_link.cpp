#include "measure_link.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <span>
#include <thread>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/soft/cable_facts.hpp"

namespace millrace::bench {
namespace {

/// The times of two processes are compared: CLOCK_MONOTONIC, to the nanosecond.
[[nodiscard]] std::int64_t now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// What the settings say, read back from the device that has them.
struct Setting {
    double latency_us = 0;
    double gigabits = 0;  ///< 0: unlimited
    [[nodiscard]] double one_way(std::size_t bytes) const {
        return latency_us + (gigabits == 0 ? 0 : static_cast<double>(bytes) * 8 / gigabits / 1000);
    }
};
[[nodiscard]] Setting setting_of(const std::string& mode) {
    const auto facts = soft::cable_facts(mode);
    if (!facts.shaped) {
        throw base::Error{base::ErrorCode::invalid_argument, "measure the shaped link", mode,
                          "this mode is no link", "name one, as shaped:10g,latency=10us"};
    }
    return {static_cast<double>(facts.latency_ns) / 1e3,
            static_cast<double>(facts.bits_per_second) / 1e9};
}

void require(bool held, const char* what) {
    if (held) return;
    throw base::Error{base::ErrorCode::verbs, "measure the shaped link", what, "it failed", ""};
}

constexpr std::uint32_t queue = 1024;
/// When a measurement is content with what it has: others may use the cores.
constexpr std::int64_t long_enough_ns = 4'000'000'000;
constexpr std::size_t least_samples = 10;

[[nodiscard]] connect::LinkOptions options() {
    connect::LinkOptions chosen;
    chosen.service = "bench link";
    chosen.max_send_requests = queue;
    return chosen;
}

/// One end: memory that the other may write to.
class End {
  public:
    End(connect::Link link, std::size_t bytes)
        : link_{std::move(link)},
          memory_{link_.protection_domain().allocate(bytes, verbs::Access::remote_write)} {
        const auto mine = memory_.remote();
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}), patience());
        require(answer.size() == sizeof(peer_), "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof(peer_));
    }
    [[nodiscard]] std::byte* memory() noexcept { return memory_.data(); }
    [[nodiscard]] std::uint64_t word(std::size_t offset) noexcept {
        return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(memory_.data() + offset)}.load(
            std::memory_order_acquire);
    }
    /// False: the send queue is full.
    [[nodiscard]] bool write(std::size_t bytes) {
        const ibv_sge slice = memory_.slice(0, bytes);
        const int error = link_.queue_pair().post(
            verbs::Write{.from = {&slice, 1}, .to = peer_, .flags = verbs::SendFlags::signaled});
        require(error == 0 || error == ENOMEM, "a posted WRITE");
        return error == 0;
    }
    /// How many completions there are now.
    int poll() {
        std::array<verbs::Completion, 16> found;
        const int count = link_.send_queue().poll(found);
        require(count >= 0, "a poll");
        for (int i = 0; i < count; ++i) {
            require(found[static_cast<std::size_t>(i)].ok(), "a WRITE's completion");
        }
        return count;
    }

  private:
    connect::Link link_;
    verbs::RegisteredBuffer memory_;
    verbs::RemoteAddress peer_{};
};

}  // namespace

OneWay measure_one_way(const std::string& mode, std::size_t bytes, Mover mover,
                       std::uint64_t count) {
    const Setting setting = setting_of(mode);
    const EnvironmentScope scope{"MILLRACE_SOFT_MODE", mode};
    const std::uint64_t warm_up = count / 10 + 3;
    OneWay result;
    result.set = setting.one_way(bytes);
    PairOptions pair_options;
    pair_options.shared_bytes = 4096 + (count + warm_up) * sizeof(std::int64_t);
    pair_options.deadline = std::chrono::seconds{60};
    run_pair(
        pair_options,
        [&](Pair& pair) {
            End end{accept_second(pair,
                                  [&](const auto& address) {
                                      return connect::Listener::listen(address, options());
                                  }),
                    bytes};
            auto& seen = *pair.shared_at<std::atomic<std::uint64_t>>(0);
            auto& over = *pair.shared_at<std::atomic<bool>>(64);
            auto* const taken = pair.shared_at<std::int64_t>(4096);
            pair.meet();
            std::vector<double> times;
            const std::int64_t begin = now();
            for (std::uint64_t number = 1; number <= warm_up + count; ++number) {
                if (now() - begin > long_enough_ns && times.size() >= least_samples) break;
                // The last word tells: it lands last.
                std::memcpy(end.memory() + bytes - 8, &number, 8);
                const std::int64_t start = now();
                require(end.write(bytes), "room for a WRITE");
                if (mover == Mover::engine) {
                    while (seen.load(std::memory_order_acquire) != number) {
                        std::this_thread::sleep_for(std::chrono::microseconds{200});
                        pair.check(1024);
                    }
                }
                bool completed = false;
                pair.spin_until([&] {
                    completed = completed || end.poll() == 1;
                    return completed && seen.load(std::memory_order_acquire) == number;
                });
                if (number > warm_up) {
                    times.push_back(static_cast<double>(taken[number - 1] - start) / 1e3);
                }
            }
            over.store(true, std::memory_order_release);
            result.us = summarize(times);
            pair.meet();
            return 0.0;
        },
        [&](Pair& pair) {
            End end{connect::connect(address_of_first(pair), options(), patience()), bytes};
            auto& seen = *pair.shared_at<std::atomic<std::uint64_t>>(0);
            auto& over = *pair.shared_at<std::atomic<bool>>(64);
            auto* const taken = pair.shared_at<std::int64_t>(4096);
            pair.meet();
            for (std::uint64_t number = 1; number <= warm_up + count; ++number) {
                pair.spin_until([&] {
                    if (mover == Mover::ends) end.poll();
                    return end.word(bytes - 8) == number || over.load(std::memory_order_relaxed);
                });
                if (end.word(bytes - 8) != number) break;
                taken[number - 1] = now();
                seen.store(number, std::memory_order_release);
            }
            pair.meet();
        });
    return result;
}

Bandwidth measure_bandwidth(const std::string& mode, std::size_t bytes, std::uint64_t total,
                            int rounds) {
    const EnvironmentScope scope{"MILLRACE_SOFT_MODE", mode};
    Bandwidth result;
    const Setting setting = setting_of(mode);
    // What a full send queue moves in a round trip may be less than the rate.
    const double round_trip_ns = 1e3 * (setting.one_way(bytes) + setting.latency_us);
    result.set = std::min(setting.gigabits, static_cast<double>(queue * bytes) * 8 / round_trip_ns);
    const std::uint64_t count = total / bytes + 1;
    PairOptions pair_options;
    pair_options.deadline = std::chrono::seconds{60};
    run_pair(
        pair_options,
        [&](Pair& pair) {
            End end{accept_second(pair,
                                  [&](const auto& address) {
                                      return connect::Listener::listen(address, options());
                                  }),
                    bytes};
            std::memset(end.memory(), 1, bytes);
            pair.meet();
            std::vector<double> rates;
            const std::int64_t begin = now();
            for (int round = 0; round < rounds; ++round) {
                if (round > 0 && now() - begin > long_enough_ns) break;
                // From the first completion, so that the latency does not count.
                std::uint64_t posted = 0;
                std::uint64_t done = 0;
                std::int64_t first = 0;
                std::uint64_t before = 0;
                std::uint32_t turn = 0;
                while (done < count) {
                    while (posted < count && posted - done < queue && end.write(bytes)) ++posted;
                    const int completed = end.poll();
                    if (completed > 0 && first == 0) {
                        first = now();
                        before = static_cast<std::uint64_t>(completed);
                    }
                    done += static_cast<std::uint64_t>(completed);
                    if ((++turn & 1023U) == 0) pair.check(turn);
                }
                const double ns = static_cast<double>(now() - first);
                rates.push_back(static_cast<double>((count - before) * bytes) * 8 / ns);
            }
            result.gigabits = summarize(rates);
            pair.meet();
            return 0.0;
        },
        [&](Pair& pair) {
            End end{connect::connect(address_of_first(pair), options(), patience()), bytes};
            pair.meet();
            pair.meet();  // sleeping in no verbs call, as the target of a one-sided operation may
        });
    return result;
}

}  // namespace millrace::bench
