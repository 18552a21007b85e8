// What a queue does for a program whose ends have other work, or whose items come in bursts. See
// measure_flow.hpp.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

#include <sched.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "measure_flow.hpp"
#include "meeting_of_ends.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/deadline.hpp"
#include "queue_ends.hpp"

namespace millrace::bench {
namespace {

/// What the consumer tells of the bursts, in a line of its own.
struct alignas(128) Taken {
    std::atomic<std::uint64_t> items;
    std::atomic<std::uint64_t> at;  ///< ticks when the last was taken; of streams, of a window
};
/// That there will be no more. A goodbye is heard of by the clock, which would take longer than
/// the measurement.
struct alignas(128) Over {
    std::atomic<std::uint64_t> items;  ///< that were sent in all; 0: it goes on
};
struct Shared {
    Taken taken;
    Over over;
};

/// The mean without the slowest tenth: of windows in which one side was away for a while there are
/// few, however long they were.
double usual_mean(std::vector<double> windows) {
    std::sort(windows.begin(), windows.end());
    windows.resize(windows.size() - windows.size() / 10);
    return std::accumulate(windows.begin(), windows.end(), 0.0) /
           static_cast<double>(windows.size());
}

/// Work that touches nothing: the thread is away for so long.
void work(std::uint64_t ticks) {
    if (ticks == 0) return;
    for (const std::uint64_t end = base::ticks() + ticks; base::ticks() < end;) base::pause();
}

/// A data mover, and what moves a modelled link, may have no other core than the one that waits.
class Waiting {
  public:
    explicit Waiting(Pair& pair) : pair_{&pair} {}
    void turn() {
        base::pause();
        ++turns_;
        if (turns_ % before_yield == 0) ::sched_yield();
        if ((turns_ & 1023U) == 0) pair_->check(turns_);
    }

  private:
    static constexpr std::uint32_t before_yield = 64;
    Pair* pair_;
    std::uint32_t turns_ = 0;
};

void put(Pair& pair, ProducingEnd& end, std::uint64_t number) {
    Waiting waiting{pair};
    base::Status status;
    while ((status = end.try_put(static_cast<std::uint32_t>(number))) == base::Status::full) {
        waiting.turn();
    }
    require(status, "an item that is put");
}

class Producing {
  public:
    Producing(Pair& pair, const FlowCase& chosen, const FlowLoad& load, ProducingEnd& end)
        : pair_{pair},
          chosen_{chosen},
          load_{load},
          end_{end},
          works_{base::ticks_in(load.producer_works)} {}

    /// The consumer says when they were taken, see there.
    double stream() {
        const std::uint64_t lap = chosen_.capacity;
        lay(lap);  // so that both processes know its memory
        require(end_.flush(patience_of(chosen_)), "the items that warm up");
        const std::uint64_t least = 4 * lap;
        const std::uint64_t end = base::ticks() + base::ticks_in(chosen_.limit);
        for (std::uint64_t laid = 0; laid < least || base::ticks() < end; laid += look) lay(look);
        require(end_.flush(patience_of(chosen_)), "the last items");
        pair_.shared_at<Shared>(0)->over.items.store(next_, std::memory_order_release);
        pair_.meet();
        const auto ticks = static_cast<double>(
            pair_.shared_at<Shared>(0)->taken.at.load(std::memory_order_relaxed));
        return static_cast<double>(lap) * 1e3 *
               static_cast<double>(base::ticks_in(std::chrono::milliseconds{1})) / ticks;
    }

    double bursts() {
        const auto& taken = pair_.shared_at<Shared>(0)->taken;
        std::vector<double> samples;
        const std::uint64_t begin = base::ticks();
        const std::uint64_t length = base::ticks_in(chosen_.limit);
        constexpr std::uint64_t least = 3;
        for (std::uint64_t count = 0;; ++count) {
            const std::uint64_t start = base::ticks();
            const bool is_warm = start - begin > length / 5;
            if (start - begin > length && samples.size() >= least) break;
            for (std::uint32_t i = 0; i != load_.burst; ++i) put(pair_, end_, next_++);
            wait_until_taken(taken, start);
            const auto took =
                static_cast<std::int64_t>(taken.at.load(std::memory_order_relaxed) - start);
            if (is_warm) samples.push_back(static_cast<double>(std::max<std::int64_t>(took, 1)));
            // Not in step with anything: 1 to 2 us.
            work(pause_ + pause_ * (count % 7) / 7 + works_ * load_.burst);
        }
        pair_.shared_at<Shared>(0)->over.items.store(next_, std::memory_order_release);
        pair_.meet();
        return quantile(std::move(samples), 0.5) * 1e6 /
               static_cast<double>(base::ticks_in(std::chrono::milliseconds{1}));
    }

  private:
    void lay(std::uint64_t items) {
        for (std::uint64_t i = 0; i != items; ++i) {
            work(works_);
            put(pair_, end_, next_++);
        }
    }
    void wait_until_taken(const Taken& taken, std::uint64_t start) {
        constexpr int looks_before_help = 32;  // where requests complete at once, all is there
        const std::uint64_t late = start + base::ticks_in(std::chrono::milliseconds{1});
        Waiting waiting{pair_};
        for (int looks = 1; taken.items.load(std::memory_order_acquire) < next_; ++looks) {
            waiting.turn();
            if (looks % looks_before_help != 0) continue;
            if (works_ == 0 || base::ticks() > late) (void)end_.flush(base::Deadline::now());
        }
    }

    static constexpr std::uint64_t look = 16;  ///< items between looks at the clock

    Pair& pair_;
    const FlowCase& chosen_;
    const FlowLoad& load_;
    ProducingEnd& end_;
    std::uint64_t works_;
    std::uint64_t pause_ = base::ticks_in(std::chrono::microseconds{1});
    std::uint64_t next_ = 0;
};

/// Of a stream it leaves what a window took, which is a lap of the ring.
void consume(Pair& pair, const FlowCase& chosen, const FlowLoad& load, ConsumingEnd& end) {
    auto& [taken, over] = *pair.shared_at<Shared>(0);
    const std::uint64_t works = base::ticks_in(load.consumer_works);
    const bool is_busy = load.consumer_works.count() != 0;
    const std::uint64_t window = load.burst == 0 ? chosen.capacity : load.burst;
    std::vector<double> windows;
    std::uint64_t start = 0;
    std::uint64_t number = 0;
    std::uint64_t in_window = 0;
    std::uint32_t turn = 0;
    while (true) {
        const base::Status status = end.try_take(static_cast<std::uint32_t>(number));
        if (status == base::Status::ok) {
            ++number;
            if (++in_window == window) {
                in_window = 0;
                const std::uint64_t now = base::ticks();
                if (load.burst != 0) {
                    taken.at.store(now, std::memory_order_relaxed);
                    taken.items.store(number, std::memory_order_release);
                } else if (number > 2 * window) {
                    windows.push_back(static_cast<double>(now - start));
                }
                start = now;
            }
            if (is_busy) work(works);
        } else if (status == base::Status::empty) {
            base::pause();
            if (number != 0 && over.items.load(std::memory_order_acquire) == number) break;
            if ((++turn & 1023U) == 0) pair.check(turn);
        } else {
            require(status, "an item that is taken");
        }
    }
    if (load.burst == 0) {
        taken.at.store(static_cast<std::uint64_t>(usual_mean(std::move(windows))),
                       std::memory_order_relaxed);
    }
    pair.meet();
}

}  // namespace

double measure_load(const FlowCase& chosen, const FlowLoad& load) {
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    const EndMakers& makers = makers_for(chosen);
    return run_pair(
        {.shared_bytes = sizeof(Shared),
         .deadline = std::chrono::duration_cast<std::chrono::milliseconds>(chosen.limit) +
                     std::chrono::seconds{10}},
        [&](Pair& pair) {
            auto listener = listen_for_second(pair, options_of(chosen));
            const auto end = makers.accept_producer(chosen.design, listener, patience_of(chosen));
            Producing producing{pair, chosen, load, *end};
            return load.burst == 0 ? producing.stream() : producing.bursts();
        },
        [&](Pair& pair) {
            const auto end = makers.connect_consumer(chosen.design, address_of_first(pair),
                                                     options_of(chosen), patience_of(chosen));
            consume(pair, chosen, load, *end);
        });
}

}  // namespace millrace::bench
