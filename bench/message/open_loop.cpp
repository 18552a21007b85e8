// Implementation of open_loop.hpp.
#include "open_loop.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "sides.hpp"

namespace millrace::bench {
namespace {

/// A request of so many bytes ends a slice.
constexpr std::size_t end_bytes = 1;

/// When a thread that only reads the clock was away. In memory of both processes.
class Gaps {
  public:
    /// Reads the clock for so long.
    void watch(double span_ns) noexcept {
        count_ = 0;
        const auto start = base::Clock::now();
        for (double last = 0; last < span_ns;) {
            const double now = nanoseconds_since(start);
            if (now - last >= least_ns && count_ < gaps_.size()) gaps_[count_++] = {last, now};
            last = now;
        }
    }
    [[nodiscard]] std::span<const Gap> all() const noexcept {
        return std::span{gaps_}.first(count_);
    }

  private:
    static constexpr double least_ns = 1000;

    std::size_t count_ = 0;
    std::array<Gap, 8192> gaps_{};
};

/// Of one thread, asked for times that never go back.
class Presence {
  public:
    explicit Presence(std::span<const Gap> gaps) noexcept : gaps_{gaps} {}
    /// The first time from then on at which the thread is there.
    [[nodiscard]] double from(double time) noexcept {
        skip_to(time);
        return !gaps_.empty() && gaps_.front().begin_ns <= time ? gaps_.front().end_ns : time;
    }
    /// When the thread, which is there then, has worked for so long.
    [[nodiscard]] double behind(double time, double work) noexcept {
        skip_to(time);
        double end = time + work;
        for (const Gap& gap : gaps_) {
            if (gap.begin_ns >= end) break;
            end += gap.end_ns - gap.begin_ns;
        }
        return end;
    }

  private:
    void skip_to(double time) noexcept {
        while (!gaps_.empty() && gaps_.front().end_ns <= time) gaps_ = gaps_.subspan(1);
    }
    std::span<const Gap> gaps_;  ///< that are not over
};

/// One thread that drives clients at a rate.
class Driver {
  public:
    Driver(std::vector<Client>& clients, std::uint64_t requests)
        : clients_{clients}, due_(requests), times_(requests) {}

    /// Requests a second when `interval_ns` (on average) lie between two; 0: as fast as they are
    /// answered.
    double run(double interval_ns) {
        std::exponential_distribution<double> gap{interval_ns == 0 ? 1 : 1 / interval_ns};
        double at = 0;
        for (double& due : due_) due = interval_ns == 0 ? 0 : at += gap(random_);
        if (interval_ns != 0) call_in_turn();
        std::vector<std::uint64_t> first(clients_.size());
        for (std::size_t i = 0; i < clients_.size(); ++i) first[i] = clients_[i].stats().requests;
        const auto start = base::Clock::now();
        std::uint64_t sent = 0;
        for (std::uint64_t answered = 0; answered < due_.size();) {
            const double now = nanoseconds_since(start);
            while (sent < due_.size() && due_[sent] <= now && submit(sent)) ++sent;
            for (std::size_t i = 0; i < clients_.size(); ++i) {
                while (clients_[i].poll([&](const message::Answer& answer) {
                    keep(read_all(answer.payload.data(), answer.payload.size()));
                    require_intact(stamped(answer.payload.data(), answer.payload.size(), answer.id),
                                   "an answer");
                    const std::uint64_t number = (answer.id - first[i] - 1) * clients_.size() + i;
                    times_[number] = nanoseconds_since(start) - due_[number];
                }) == Status::ok) {
                    ++answered;
                }
            }
        }
        return static_cast<double>(due_.size()) / nanoseconds_since(start) * 1e9;
    }
    /// Of the last run.
    [[nodiscard]] std::span<const double> due() const noexcept { return due_; }
    [[nodiscard]] std::span<const double> times() const noexcept { return times_; }

  private:
    /// The server falls asleep while the times of the requests are drawn. Behind these calls it is
    /// awake, and has answered the ring of each client.
    void call_in_turn() {
        constexpr std::uint64_t laps = 100;
        for (std::uint64_t lap = 0; lap != laps; ++lap) {
            for (Client& client : clients_) call_once(client, lap);
        }
    }
    bool submit(std::uint64_t number) {
        Client& client = clients_[number % clients_.size()];
        std::array<std::byte, message_bytes> request;
        stamp(request.data(), request.size(), client.stats().requests + 1);
        std::uint64_t id = 0;
        const Status status = client.submit(request, id);
        if (status == Status::full) return false;
        require(status, "a request");
        return true;
    }
    std::vector<Client>& clients_;
    std::mt19937_64 random_{7};
    std::vector<double> due_;    ///< of each request
    std::vector<double> times_;  ///< of its answer, from then on
};

void end_slice(Client& client) {
    const std::array<std::byte, end_bytes> request{};
    std::vector<std::byte> answer;
    const message::Outcome outcome = client.call(request, answer, base::Deadline::after(longest));
    require(outcome == message::Outcome::ok, "the end of a slice");
}

double time_away(std::span<const Gap> gaps) {
    double sum = 0;
    for (const Gap& gap : gaps) sum += gap.end_ns - gap.begin_ns;
    return sum;
}

void append(std::vector<double>& all, std::span<const double> some) {
    all.insert(all.end(), some.begin(), some.end());
}

}  // namespace

std::vector<double> ideal_times(std::span<const double> due_ns, double service_ns,
                                std::span<const Gap> of_client, std::span<const Gap> of_server) {
    Presence sends{of_client};
    Presence sees{of_client};
    Presence serves{of_server};
    std::vector<double> times;
    times.reserve(due_ns.size());
    double served = 0;
    for (const double due : due_ns) {
        const double begin = serves.from(std::max(served, sends.from(due)));
        served = serves.behind(begin, service_ns);
        times.push_back(sees.from(served) - due);
    }
    return times;
}

OpenLatency latency_at_rate(const OpenLoad& setting) {
    OpenLatency measured;
    const auto gaps_of_client = [](Pair& pair) { return pair.shared_at<Gaps>(0); };
    const auto gaps_of_server = [](Pair& pair) { return pair.shared_at<Gaps>(sizeof(Gaps)); };
    constexpr int span_value = 1;
    (void)run_pair(
        {.shared_bytes = 2 * sizeof(Gaps), .deadline = longest},
        [&](Pair& pair) {
            std::vector<Client> clients = connect_all(pair, {}, setting.clients, 64);
            Driver driver{clients, setting.requests};
            // The rate is a share of what is answered on average. An ideal server is as fast as
            // ours is while nothing keeps it.
            (void)driver.run(0);
            double seconds = 0;
            double most = 0;
            for (std::size_t slice = 0; slice < setting.slices; ++slice) {
                const double per_second = driver.run(0);
                seconds += static_cast<double>(setting.requests) / per_second;
                most = std::max(most, per_second);
            }
            measured.capacity = static_cast<double>(setting.slices * setting.requests) / seconds;
            const double service_ns = 1e9 / most;
            const double interval_ns = 1e9 / (measured.capacity * setting.share);
            std::vector<double> times;
            std::vector<double> ideal;
            double watched = 0;
            for (std::size_t slice = 0; slice < setting.slices; ++slice) {
                (void)driver.run(interval_ns);
                append(times, driver.times());
                end_slice(clients.front());
                const double span = driver.due().back();
                pair.set_value(span_value, static_cast<std::uint64_t>(span));
                pair.meet();
                Gaps& gaps = *gaps_of_client(pair);
                gaps.watch(span);
                pair.meet();
                const std::span<const Gap> of_server = gaps_of_server(pair)->all();
                append(ideal, ideal_times(driver.due(), service_ns, gaps.all(), of_server));
                watched += span;
                measured.away += time_away(of_server);
                for (const Gap& gap : of_server) {
                    measured.longest_away_ns =
                        std::max(measured.longest_away_ns, gap.end_ns - gap.begin_ns);
                }
            }
            leave(clients);
            pair.meet();
            measured.away /= watched;
            measured.median_ns = quantile(times, 0.5);
            measured.longest_ns = quantile(times, 0.999);
            measured.ideal_longest_ns = measured.median_ns + quantile(ideal, 0.999);
            return 0.0;
        },
        [&](Pair& pair) {
            Server server = listen(pair, setting.polling, {}, setting.clients);
            std::uint64_t requests = 0;
            const auto handler = [&](message::Request& request) {
                if (request.payload().size() == end_bytes) server.stop();
                if (setting.stall_every != 0 && ++requests % setting.stall_every == 0) {
                    std::this_thread::sleep_for(setting.stall);
                }
                (void)request.answer(request.payload());
            };
            for (std::size_t slice = 0; slice < setting.slices; ++slice) {
                require(server.serve(handler, base::Deadline::after(longest)) == Status::closed,
                        "serving");
                pair.meet();
                gaps_of_server(pair)->watch(static_cast<double>(pair.value(span_value)));
                pair.meet();
            }
            pair.meet();
        });
    return measured;
}

}  // namespace millrace::bench
