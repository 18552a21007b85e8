// Contention in a machine that is played: processors with a scheduler, threads of one process that
// wait as wait_until does, and programs that compute. What is judged is how many waits slept, how
// many offers were made, and when. tests/mutants makes mistakes in contention.cpp and plays it,
// too.
#include "millrace/base/detail/contention.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/base/clock.hpp"

namespace millrace::base {
namespace {

using namespace std::chrono_literals;
using Nanoseconds = std::int64_t;

constexpr Nanoseconds us = 1'000;
constexpr Nanoseconds ms = 1'000 * us;

// Of the kernel.
// Of who computes, while others want the processor.
constexpr Nanoseconds shortest_slice = 2 * ms;
constexpr Nanoseconds longest_slice = 4 * ms;
constexpr Nanoseconds switch_cost = 2 * us;
constexpr Nanoseconds call_cost = us / 2;
// Of wait_until and Yielding, by their defaults.
constexpr Nanoseconds longest_spin = 20 * us;
constexpr Nanoseconds longest_look = 200 * us;
constexpr Nanoseconds taken_from = 4 * us;
constexpr Nanoseconds first_rest = 10 * us;
constexpr Nanoseconds longest_rest = 320 * us;
constexpr Nanoseconds step = us;

ProcessorUse use_now;
Demand demand_now = Demand::unknown;

/// A machine is made of these.
struct World {
    unsigned processors = 2;
    unsigned pairs = 0;            ///< of threads of the process that answer each other
    unsigned alone = 0;            ///< threads of the process whose peers are elsewhere
    Nanoseconds slowest_peer = 0;  ///< those answer within so long
    unsigned programs = 0;         ///< that compute, dealt out over the processors
    Nanoseconds from = 0;          ///< they do so from then on …
    Nanoseconds until = 0;         ///< … to then
    Nanoseconds nap = 0;           ///< so long each rests after so long a turn: 0, none
    Nanoseconds turn = 0;
    bool demand_is_known = true;
    bool is_crowded_elsewhere = false;  ///< others want processors that are none of ours
};

class Machine {
  public:
    Machine(const World& world, std::uint64_t seed)
        : world_{world}, random_{seed}, run_(world.processors) {
        const unsigned own = 2 * world.pairs + world.alone;
        for (unsigned i = 0; i != own + world.programs; ++i) {
            auto& task = *tasks_.emplace_back(std::make_unique<Task>());
            task.is_own = i < own;
            task.processor = (i < own ? i : i - own) % world.processors;
            if (i < 2 * world.pairs) task.peer = tasks_.size() % 2 == 0 ? i - 1 : i + 1;
            if (!task.is_own) task.wakes_at = world.from + between(0, 2 * ms);
            if (task.is_own) run_[task.processor].ready.push_back(&task);
        }
        // One of each pair has something to say first.
        for (unsigned i = 0; i != own; ++i) {
            Task& task = *tasks_[i];
            if (task.peer && i % 2 == 0) task.message_at = 0;
            if (!task.peer) task.message_at = peer_answers(0);
        }
    }

    struct Seen {
        unsigned waits = 0;
        unsigned sleeps = 0;
        unsigned late = 0;     ///< offers that cost a millisecond or more
        Nanoseconds busy = 0;  ///< sampled each 0.1 ms
        Nanoseconds crowd = 0;
        Nanoseconds all = 0;
        std::optional<Nanoseconds> first_busy;
        std::optional<Nanoseconds> last_busy;
    };
    /// Goes on to `time`, and says what was seen on the way.
    Seen run_to(Nanoseconds time) {
        seen_ = {};
        for (;;) {
            Processor* next = nullptr;
            for (Processor& one : run_) {
                if (one.now < time && (next == nullptr || one.now < next->now)) next = &one;
            }
            if (next == nullptr) return seen_;
            sample(next->now);
            go_on(*next);
        }
    }

  private:
    enum class Doing : std::uint8_t { computing, waiting, asleep };
    struct Task {
        bool is_own = false;
        unsigned processor = 0;
        std::optional<std::size_t> peer;
        Doing doing = Doing::waiting;
        Nanoseconds left = 0;         ///< to compute
        Nanoseconds message_at = -1;  ///< -1: none is there or on its way
        Nanoseconds wakes_at = -1;    ///< asleep until then; -1: until a message
        // Of the wait.
        bool has_begun = false;
        Nanoseconds began = 0;
        Nanoseconds spin = 0;
        Nanoseconds looked = 0;
        Nanoseconds rest = 0;
        Nanoseconds due = 0;
        Nanoseconds offered_at = -1;  ///< the processor, and has not come back
    };
    struct Processor {
        Nanoseconds now = 0;
        std::deque<Task*> ready;  ///< the first one runs
        Nanoseconds until = 0;    ///< its slice
    };

    [[nodiscard]] Nanoseconds between(Nanoseconds least, Nanoseconds most) {
        return std::uniform_int_distribution<Nanoseconds>{least, most}(random_);
    }
    /// Most at once, some late.
    [[nodiscard]] Nanoseconds peer_answers(Nanoseconds now) {
        const Nanoseconds most = between(0, 3) == 0 ? world_.slowest_peer : 10 * us;
        return now + between(2 * us, std::max(most, 3 * us));
    }
    [[nodiscard]] static std::uint64_t ticks_at(Nanoseconds time) {
        static const double per_ns = static_cast<double>(ticks_in(1s)) / 1e9;
        return ticks_in(1h) + static_cast<std::uint64_t>(static_cast<double>(time) * per_ns);
    }
    /// What the kernel would say.
    void tell(Nanoseconds now) {
        use_now = {.time = std::chrono::nanoseconds{now + 1 * ms},
                   .used = std::chrono::nanoseconds{used_},
                   .processors = world_.processors};
        std::size_t runnable = world_.is_crowded_elsewhere ? 2 * world_.processors : 0;
        for (const Processor& one : run_) runnable += one.ready.size();
        demand_now = !world_.demand_is_known        ? Demand::unknown
                     : runnable > world_.processors ? Demand::exceeds
                                                    : Demand::is_met;
    }
    void sample(Nanoseconds now) {
        if (now < sampled_ + ms / 10) return;
        const Nanoseconds past = now - std::exchange(sampled_, now);
        tell(now);
        seen_.all += past;
        if (contention_.is_crowd(ticks_at(now))) seen_.crowd += past;
        // What is known, without the look that a wait would make.
        if (!is_busy_) return;
        seen_.busy += past;
        if (!seen_.first_busy) seen_.first_busy = now;
        seen_.last_busy = now;
    }
    [[nodiscard]] bool is_busy(const Task& task, Nanoseconds now) {
        tell(now);
        return is_busy_ = contention_.is_busy(ticks_at(now), &task);
    }

    void begin_slice(Processor& processor) {
        processor.until = processor.now + between(shortest_slice, longest_slice);
    }
    void wake(Task& task, Nanoseconds now) {
        task.wakes_at = -1;
        task.doing = task.is_own ? Doing::waiting : Doing::computing;
        Processor& processor = run_[task.processor];
        if (processor.ready.empty()) {
            processor.now = std::max(processor.now, now);
            begin_slice(processor);
        }
        // Who has slept goes before who computes, and after others that were woken.
        auto at = processor.ready.begin();
        if (!task.is_own) at = processor.ready.end();
        while (task.is_own && at != processor.ready.end() && (*at)->is_own) ++at;
        if (at == processor.ready.begin()) begin_slice(processor);
        processor.ready.insert(at, &task);
    }
    void wake_those_due(Processor& processor) {
        const unsigned number = static_cast<unsigned>(&processor - run_.data());
        for (const auto& one : tasks_) {
            Task& task = *one;
            if (task.processor != number) continue;
            const bool by_message = task.is_own && task.doing == Doing::asleep &&
                                    task.message_at >= 0 && task.message_at <= processor.now;
            const bool by_clock = task.wakes_at >= 0 && task.wakes_at <= processor.now;
            if (by_message || by_clock) wake(task, processor.now);
        }
    }
    void leave_to_next(Processor& processor, bool stays) {
        Task* const task = processor.ready.front();
        processor.ready.pop_front();
        if (stays) processor.ready.push_back(task);
        processor.now += switch_cost;
        begin_slice(processor);
    }

    void go_on(Processor& processor) {
        wake_those_due(processor);
        if (processor.ready.empty()) {
            processor.now += 2 * us;
            return;
        }
        Task& task = *processor.ready.front();
        if (processor.now >= processor.until && processor.ready.size() > 1) {
            return leave_to_next(processor, true);
        }
        if (!task.is_own) return compute(processor, task);
        const Nanoseconds before = processor.now;
        go_on(processor, task);
        used_ += processor.now - before;
    }
    void compute(Processor& processor, Task& program) {
        processor.now += 10 * us;
        if (processor.now >= world_.until) {
            program.doing = Doing::asleep;
            return leave_to_next(processor, false);
        }
        if (world_.turn == 0 || (program.left += 10 * us) < world_.turn) return;
        program.left = 0;
        program.doing = Doing::asleep;
        program.wakes_at = processor.now + world_.nap;
        leave_to_next(processor, false);
    }

    void go_on(Processor& processor, Task& task) {
        if (task.doing == Doing::computing) {
            const Nanoseconds part = std::min(step, task.left);
            processor.now += part;
            task.left -= part;
            if (task.left > 0) return;
            if (task.peer) {
                tasks_[*task.peer]->message_at = processor.now;
            } else {
                task.message_at = peer_answers(processor.now);
            }
            task.doing = Doing::waiting;
            return;
        }
        if (task.offered_at >= 0) came_back(processor, task);
        if (task.message_at >= 0 && task.message_at <= processor.now) {
            task.message_at = -1;
            task.has_begun = false;
            task.doing = Doing::computing;
            task.left = between(us, 5 * us);
            return;
        }
        if (!task.has_begun) begin(processor, task);
        const Nanoseconds waited = processor.now - task.began;
        if (waited < task.spin) {
            processor.now += step;
            return;
        }
        if (task.looked >= longest_look || is_busy(task, processor.now)) {
            ++seen_.sleeps;
            task.has_begun = false;
            task.doing = Doing::asleep;
            return leave_to_next(processor, false);
        }
        if (processor.now < task.due) {
            processor.now += step;
            task.looked += step;
            return;
        }
        task.offered_at = processor.now;
        processor.now += call_cost;
        if (processor.ready.size() > 1) leave_to_next(processor, true);
    }
    void begin(Processor& processor, Task& task) {
        ++seen_.waits;
        const std::uint64_t now = ticks_at(processor.now);
        task.has_begun = true;
        task.began = processor.now;
        task.looked = 0;
        task.spin = longest_spin;
        if (contention_.is_crowd(now)) {
            task.spin = Contention::spin.count();
        } else if (is_busy(task, processor.now)) {
            task.spin = 0;
        }
        task.due = processor.now + task.spin + task.rest;
    }
    void came_back(Processor& processor, Task& task) {
        const Nanoseconds away = processor.now - std::exchange(task.offered_at, -1);
        if (away >= ms) ++seen_.late;
        if (away < taken_from) {
            task.rest = std::min(std::max(2 * task.rest, first_rest), longest_rest);
            task.looked += away;
        } else {
            task.rest = 0;
            tell(processor.now);
            const Taken taken =
                contention_.came_back(ticks_at(processor.now), ticks_at(away) - ticks_at(0), &task,
                                      static_cast<int>(task.processor));
            task.looked +=
                taken == Taken::by_crowd ? Nanoseconds{Contention::offer_costs.count()} : away;
            if (contention_.is_busy(ticks_at(processor.now), &task)) is_busy_ = true;
        }
        task.due = processor.now + task.rest;
    }

    World world_;
    std::mt19937_64 random_;
    Contention contention_{[]() noexcept { return use_now; }, []() noexcept { return demand_now; }};
    std::vector<Processor> run_;
    std::vector<std::unique_ptr<Task>> tasks_;
    Nanoseconds used_ = 0;
    Nanoseconds sampled_ = 0;
    bool is_busy_ = false;
    Seen seen_;
};

double share(Nanoseconds part, Nanoseconds all) {
    return static_cast<double>(part) / static_cast<double>(all);
}

constexpr std::uint64_t seeds = 2;

/// Plays `world` with each seed.
template <class Play>
void for_each_seed(const World& world, Play&& play) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        SCOPED_TRACE(testing::Message() << world.processors << " processors, " << world.pairs
                                        << " pairs, seed " << seed);
        Machine machine{world, seed};
        play(machine);
        if (testing::Test::HasFailure()) return;
    }
}

TEST(ContentionSimulation, ACrowdOfOneProcessNeverSleeps) {
    for (const auto& [processors, pairs] :
         {std::pair{1U, 1U}, {1U, 8U}, {2U, 2U}, {2U, 16U}, {4U, 8U}}) {
        const World world{.processors = processors, .pairs = pairs};
        for_each_seed(world, [](Machine& machine) {
            // Until it is known for one, some find that it is not their turn for long.
            const Machine::Seen first = machine.run_to(100 * ms);
            EXPECT_LE(first.sleeps, first.waits / 100);
            EXPECT_EQ(first.busy, 0);
            const Machine::Seen seen = machine.run_to(200 * ms);
            EXPECT_EQ(seen.sleeps, 0U);
            EXPECT_EQ(seen.busy, 0);
            EXPECT_GE(share(seen.crowd, seen.all), 0.99);
        });
    }
}

TEST(ContentionSimulation, WaitsSleepBesideProgramsThatComputeAndOfferHardlyAnything) {
    for (const auto& [processors, pairs] : {std::pair{1U, 1U}, {2U, 1U}, {2U, 4U}, {4U, 2U}}) {
        const World world{.processors = processors,
                          .pairs = pairs,
                          .programs = processors,
                          .from = 50 * ms,
                          .until = 800 * ms};
        for_each_seed(world, [&](Machine& machine) {
            (void)machine.run_to(100 * ms);
            const Machine::Seen first = machine.run_to(500 * ms);
            EXPECT_EQ(first.busy, first.all);
            EXPECT_EQ(first.late, 0U);
            EXPECT_GE(first.sleeps + 2 * pairs, first.waits);
            // Within it is the trial after half a second, and what shows that it was in vain.
            const Machine::Seen second = machine.run_to(800 * ms);
            EXPECT_GT(second.late, 0U);
            EXPECT_GE(share(second.busy, second.all), 0.8);
        });
    }
}

TEST(ContentionSimulation, WaitsSpinAgainAsSoonAsTheProgramsAreGone) {
    for (const auto& [processors, pairs] : {std::pair{2U, 1U}, {4U, 1U}, {4U, 2U}}) {
        const World world{.processors = processors,
                          .pairs = pairs,
                          .programs = processors,
                          .from = 50 * ms,
                          .until = 250 * ms};
        for_each_seed(world, [](Machine& machine) {
            EXPECT_GT(machine.run_to(250 * ms).busy, 0);
            EXPECT_LE(machine.run_to(350 * ms).last_busy.value_or(0),
                      250 * ms + longest_slice + 2 * Contention::shortest_rest.count());
            EXPECT_EQ(machine.run_to(500 * ms).sleeps, 0U);
        });
    }
}

TEST(ContentionSimulation, WhereOthersAreCrowdedElsewhereAnOfferIsTriedAllTheSame) {
    const World world{.pairs = 1,
                      .programs = 2,
                      .from = 50 * ms,
                      .until = 250 * ms,
                      .is_crowded_elsewhere = true};
    for_each_seed(world, [](Machine& machine) {
        EXPECT_GT(machine.run_to(250 * ms).busy, 0);
        (void)machine.run_to(800 * ms);
        EXPECT_EQ(machine.run_to(1000 * ms).sleeps, 0U);
    });
}

TEST(ContentionSimulation, OffersAreSeldomWhereNothingIsKnownOfDemand) {
    const World world{.processors = 1,
                      .pairs = 1,
                      .programs = 1,
                      .from = 50 * ms,
                      .until = 5000 * ms,
                      .demand_is_known = false};
    for_each_seed(world, [](Machine& machine) {
        (void)machine.run_to(2000 * ms);
        const Machine::Seen seen = machine.run_to(4000 * ms);
        EXPECT_GE(share(seen.busy, seen.all), 0.97);
        EXPECT_LE(seen.late, 24U);
    });
}

TEST(ContentionSimulation, TurnsOfManyThreadsBesideAShortOneAreNotTakenForPrograms) {
    // The other one has too much of the processor for them to be a crowd.
    const World world{.processors = 1,
                      .pairs = 32,
                      .programs = 1,
                      .until = 1000 * ms,
                      .nap = 300 * us,
                      .turn = 200 * us};
    for_each_seed(world, [](Machine& machine) {
        const Machine::Seen seen = machine.run_to(300 * ms);
        EXPECT_GT(seen.late, 0U);
        EXPECT_EQ(seen.busy, 0);
    });
}

TEST(ContentionSimulation, ASlowPeerFoolsNobody) {
    for (const auto& [processors, alone] : {std::pair{1U, 1U}, {2U, 1U}, {2U, 2U}, {4U, 4U}}) {
        const World world{.processors = processors, .alone = alone, .slowest_peer = 30 * ms};
        for_each_seed(world, [](Machine& machine) { EXPECT_EQ(machine.run_to(500 * ms).busy, 0); });
    }
}

TEST(ContentionSimulation, ProgramsThatComputeForAMomentNowAndThenFoolNobody) {
    unsigned late = 0;
    for (const auto& [processors, pairs] : {std::pair{2U, 1U}, {2U, 2U}, {4U, 2U}}) {
        const World world{.processors = processors,
                          .pairs = pairs,
                          .programs = processors,
                          .from = 50 * ms,
                          .until = 1000 * ms,
                          .nap = 95 * ms,
                          .turn = 5 * ms};
        for_each_seed(world, [&late](Machine& machine) {
            const Machine::Seen seen = machine.run_to(1000 * ms);
            late += seen.late;
            EXPECT_LE(share(seen.busy, seen.all), 0.02);
        });
    }
    EXPECT_GT(late, 0U) << "there was nothing to be fooled by";
}

}  // namespace
}  // namespace millrace::base
