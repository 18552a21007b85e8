// kill -9 of one side at random instants: the other ends well, nothing remains, and the next pair
// connects at once in the same process.
//
// MILLRACE_TEST_ROUNDS: rounds per abstraction and side (default 20; make test-long sets
// MILLRACE_TEST_LONG, which makes it 200). MILLRACE_TEST_SEED: of the first round; printed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "faults/ends.hpp"
#include "faults/residue.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"
#include "support/settings.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

// Far beyond the 2 s within which a death must be known: it only ends tests that have failed.
constexpr auto kill_budget = 40s;

/// The fabric of this program and its children: nobody else's nodes are counted.
const std::string& own_fabric() {
    static const std::string name = [] {
        std::string chosen = "faults-kill-" + std::to_string(getpid());
        setenv("MILLRACE_FABRIC", chosen.c_str(), 1);
        return chosen;
    }();
    return name;
}

// What the victim does once it is connected.
//   busy      puts or takes without end
//   asleep    puts or takes a few, then nothing: the survivor meets an empty or a full ring
//   finish    puts a few hundred and closes; or takes a few hundred and closes
struct Plan {
    std::string kind;
    std::string doing;
    bool victim_produces;
    bool victim_listens;
    std::string victim_wait;
    std::uint64_t capacity;
};

int act(const std::vector<std::string>& a) {
    const std::string& kind = a[0];
    const std::string& doing = a[1];
    const bool listens = a[3] == "listens";
    const Setup setup{a[4], std::stoull(a[5]), policy_of(a[6])};
    const std::uint64_t few = std::stoull(a[7]);
    const std::uint64_t count = doing == "busy" ? ~std::uint64_t{0} : few;
    if (a[2] == "produces") {
        const auto out = make_out(kind, setup, listens, Deadline::after(20s));
        say("connected");
        for (std::uint64_t i = 0; i < count; ++i) {
            if (out->put(i, Deadline::after(20s)) != Status::ok) return 1;
        }
        if (doing == "finish") (void)out->close(Deadline::after(20s));
        (void)hear();
        return 0;
    }
    const auto in = make_in(kind, setup, listens, Deadline::after(20s));
    say("connected");
    for (std::uint64_t i = 0; i < count; ++i) {
        bool right = false;
        const Status status = in->take(i, right, Deadline::after(20s));
        if (status != Status::ok) {
            say(std::string{name_of(status)} + " in place of item " + std::to_string(i));
            return 1;
        }
        if (!right) {
            say("wrong item " + std::to_string(i));
            return 1;
        }
    }
    if (doing == "finish") in->close();
    (void)hear();
    return 0;
}
MILLRACE_CHILD(faults_victim) {
    try {
        return act(arguments);
    } catch (const base::Error& error) {
        say(std::string{"error: "} + error.what());
        return 2;
    }
}

ChildProcess start_victim(const Plan& plan, const std::string& address, std::uint64_t few) {
    return ChildProcess::start(
        "faults_victim", {plan.kind, plan.doing, plan.victim_produces ? "produces" : "consumes",
                          plan.victim_listens ? "listens" : "connects", address,
                          std::to_string(plan.capacity), plan.victim_wait, std::to_string(few)});
}

/// Takes until the end; every item must be the right one.
void drain(In& in, bool may_close, std::uint64_t few) {
    std::uint64_t next = 0;
    Status status;
    bool right = false;
    while ((status = in.take(next, right, Deadline::after(kill_budget))) == Status::ok) {
        ASSERT_TRUE(right) << "item " << next;
        ++next;
    }
    if (may_close && status == Status::closed) {
        EXPECT_EQ(next, few);
    } else {
        EXPECT_EQ(status, Status::peer_lost) << name_of(status) << " after " << next;
    }
}
void fill(Out& out, bool may_close) {
    std::uint64_t next = 0;
    Status status;
    while ((status = out.put(next, Deadline::after(kill_budget))) == Status::ok) ++next;
    if (!(may_close && status == Status::closed)) {
        EXPECT_EQ(status, Status::peer_lost) << name_of(status) << " after " << next;
    }
}

/// One victim, killed `delay` after `from_connected ? it was connected : it was started`.
void kill_one(const Plan& plan, bool in_the_handshake, std::chrono::microseconds delay,
              base::WaitPolicy wait, std::uint64_t few) {
    const std::string address = unique_address();
    ChildProcess victim = start_victim(plan, address, few);
    base::Cancellation cancellation;
    std::thread killer{[&] {
        if (!in_the_handshake && victim.read_line() != "connected") ADD_FAILURE();
        std::this_thread::sleep_for(delay);
        victim.kill();
        if (in_the_handshake) {
            // A survivor that waits for some peer would wait on.
            (void)victim.wait();
            cancellation.request();
        }
    }};
    const bool may_close = plan.doing == "finish";
    const Setup setup{address, plan.capacity, wait};
    try {
        const Deadline deadline = Deadline::after(kill_budget).cancelled_by(cancellation);
        if (plan.victim_produces) {
            const auto in = make_in(plan.kind, setup, !plan.victim_listens, deadline);
            drain(*in, may_close, few);
        } else {
            const auto out = make_out(plan.kind, setup, !plan.victim_listens, deadline);
            fill(*out, may_close);
        }
    } catch (const base::Error& error) {
        const bool expected = in_the_handshake && (error.code() == base::ErrorCode::cancelled ||
                                                   error.code() == base::ErrorCode::peer_lost ||
                                                   error.code() == base::ErrorCode::refused);
        EXPECT_TRUE(expected) << name_of(error.code()) << ": " << error.what();
    }
    killer.join();
    const auto exit = victim.wait();
    const std::string said = victim.read_all();
    EXPECT_EQ(said.find("wrong"), std::string::npos) << said;
    if (in_the_handshake) return;
    EXPECT_TRUE(exit.killed_by(SIGKILL)) << describe(exit) << ": " << said;
}

/// A pair of which nobody is killed.
void run_whole(const Plan& plan, std::uint64_t few) {
    const std::string address = unique_address();
    Plan whole = plan;
    whole.doing = "finish";
    ChildProcess other = start_victim(whole, address, few);
    const Setup setup{address, plan.capacity, {}};
    if (plan.victim_produces) {
        const auto in =
            make_in(plan.kind, setup, !plan.victim_listens, Deadline::after(kill_budget));
        std::uint64_t next = 0;
        bool right = false;
        Status status;
        while ((status = in->take(next, right, Deadline::after(kill_budget))) == Status::ok) {
            ASSERT_TRUE(right) << "item " << next;
            ++next;
        }
        EXPECT_EQ(status, Status::closed);
        EXPECT_EQ(next, few);
    } else {
        const auto out =
            make_out(plan.kind, setup, !plan.victim_listens, Deadline::after(kill_budget));
        for (std::uint64_t i = 0; i < few; ++i) {
            const Status status = out->put(i, Deadline::after(kill_budget));
            if (status == Status::closed) break;
            ASSERT_EQ(status, Status::ok) << i << "; the other end: " << other.read_all();
        }
        (void)out->close(Deadline::after(kill_budget));
    }
    other.close_input();
    EXPECT_TRUE(other.wait().success()) << other.read_all();
}

struct KilledSide {
    std::string kind;
    bool victim_produces;
};
void PrintTo(const KilledSide& side, std::ostream* out) {
    *out << side.kind << (side.victim_produces ? ", producer dies" : ", consumer dies");
}

/// Victims of a kind and a side that `choose` names, one after the other, killed at random.
template <class Choose>
void kill_many(std::uint64_t usual_rounds, Choose&& choose) {
    using testing::Test;
    const std::uint64_t rounds = test::number_from(
        "MILLRACE_TEST_ROUNDS",
        std::getenv("MILLRACE_TEST_LONG") != nullptr ? 10 * usual_rounds : usual_rounds);
    const std::uint64_t first_seed =
        test::number_from("MILLRACE_TEST_SEED", std::random_device{}());
    std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first_seed),
                static_cast<unsigned long long>(first_seed + rounds - 1));
    std::size_t descriptors = 0;
    std::size_t maps = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t seed = first_seed + round;
        std::mt19937_64 random{seed};
        const auto below = [&](std::uint64_t limit) { return random() % limit; };
        static constexpr const char* doings[] = {"busy", "busy", "asleep", "finish"};
        static constexpr const char* waits[] = {"default", "blocking", "polling"};
        const bool in_the_handshake = below(4) == 0;
        const KilledSide side = choose(random);
        const Plan plan{.kind = side.kind,
                        .doing = doings[below(4)],
                        .victim_produces = side.victim_produces,
                        .victim_listens = below(2) == 0,
                        .victim_wait = waits[below(3)],
                        .capacity = 1 + below(100)};
        const std::chrono::microseconds delay{below(in_the_handshake ? 15'000 : 4'000)};
        const std::uint64_t few = below(300);
        SCOPED_TRACE("seed " + std::to_string(seed) + ", victim of " + side.kind +
                     (side.victim_produces ? " produces, " : " consumes, ") + plan.doing +
                     (in_the_handshake ? ", in the handshake" : ""));
        kill_one(plan, in_the_handshake, delay, policy_of(waits[below(3)]), few);
        if (Test::HasFatalFailure()) return;
        if (round % 4 == 0) run_whole(plan, 200);
        if (Test::HasFailure()) return;

        // Of this fabric, this process's own node is left (if it has opened the device yet).
        EXPECT_LE(nodes_of(own_fabric()).size(), 1U);
        EXPECT_TRUE(shared_memory_files().empty());
        if (round == 3) {
            descriptors = open_descriptors();
            maps = shared_mappings();
        }
    }
    if (rounds > 8) {
        // What belongs to dead peers is given back a moment later than they die.
        EXPECT_LE(open_descriptors(), descriptors + 12);
        EXPECT_LE(shared_mappings(), maps + 40);
    }
}

class KillAtRandomInstants : public testing::TestWithParam<KilledSide> {
  protected:
    static void SetUpTestSuite() { (void)own_fabric(); }
};

TEST_P(KillAtRandomInstants, TheSurvivorEndsWellAndTheNextPairConnects) {
    kill_many(20, [](std::mt19937_64&) { return GetParam(); });
}

INSTANTIATE_TEST_SUITE_P(Every, KillAtRandomInstants,
                         testing::Values(KilledSide{"flow1", true}, KilledSide{"flow1", false},
                                         KilledSide{"flow2", true}, KilledSide{"flow2", false},
                                         KilledSide{"bytes1", true}, KilledSide{"bytes1", false},
                                         KilledSide{"bytes2", true}, KilledSide{"bytes2", false},
                                         KilledSide{"message", true}, KilledSide{"message", false},
                                         KilledSide{"stream", true}, KilledSide{"stream", false}),
                         [](const auto& chosen) {
                             return chosen.param.kind + (chosen.param.victim_produces
                                                             ? "ProducerDies"
                                                             : "ConsumerDies");
                         });

/// All points of the design space, each round batched and moved another way.
class KillAtEveryPoint : public testing::TestWithParam<std::string> {
  protected:
    static void SetUpTestSuite() { (void)own_fabric(); }
};

TEST_P(KillAtEveryPoint, TheSurvivorEndsWellAndTheNextPairConnects) {
    kill_many(6, [](std::mt19937_64& random) {
        std::string kind = some_way(GetParam(), random);
        return KilledSide{std::move(kind), random() % 2 == 0};
    });
}

INSTANTIATE_TEST_SUITE_P(Points, KillAtEveryPoint, testing::ValuesIn(every_point()),
                         [](const auto& point) { return test_name_of(point.param); });

}  // namespace
}  // namespace millrace::faults
