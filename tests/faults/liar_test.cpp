// A lying peer: it connects as everybody does, then scribbles over everything that it can write:
// its own memory, which we read, and ours that it has mapped (rings, wake-up pages, counters, the
// connection's block). We must neither crash, nor reach beyond our memory (the address sanitizer
// looks), nor wait beyond a deadline. Content may be wrong: it is the liar's to choose.
//
// MILLRACE_TEST_ROUNDS, MILLRACE_TEST_SEED: as in kill_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "faults/ends.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::hear;
using millrace::test::say;

/// The words of every shared memory file that this process may write: the soft device's, and
/// registered memory, its own and the peer's.
struct Scribbled {
    std::uint64_t* words;
    std::size_t count;
};

std::vector<Scribbled> writable_shared_memory() {
    std::vector<Scribbled> found;
    std::ifstream maps{"/proc/self/maps"};
    for (std::string line; std::getline(maps, line);) {
        if (line.find("/memfd:") == std::string::npos) continue;
        unsigned long from = 0;
        unsigned long to = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, rights) != 3) continue;
        if (rights[1] != 'w' || rights[3] != 's') continue;
        found.push_back({reinterpret_cast<std::uint64_t*>(from), (to - from) / 8});
    }
    return found;
}

/// A node's memory is sparse and large: what was never written is left alone mostly.
void scribble(std::mt19937_64& random, const std::vector<Scribbled>& memory, unsigned strokes) {
    for (unsigned i = 0; i < strokes; ++i) {
        const Scribbled& area = memory[random() % memory.size()];
        // Half of the strokes go to the first pages, where headers and counters are.
        const std::size_t reach =
            random() % 2 == 0 ? std::min<std::size_t>(area.count, 1024) : area.count;
        const std::atomic_ref<std::uint64_t> word{area.words[random() % reach]};
        const std::uint64_t old = word.load(std::memory_order_relaxed);
        std::uint64_t lie = 0;
        switch (random() % 8) {
            case 0: lie = random(); break;
            case 1: lie = old ^ (std::uint64_t{1} << random() % 64); break;
            case 2: lie = old + random() % 64; break;
            case 3: lie = old - random() % 64; break;
            case 4: lie = ~std::uint64_t{0} >> random() % 64; break;
            case 5: lie = old + (random() % 256 << 32); break;
            // What stands elsewhere is likely to mean something there.
            case 6: lie = area.words[random() % reach]; break;
            default: lie = 0; break;
        }
        word.store(lie, std::memory_order_relaxed);
    }
}

// arguments: kind, produces or consumes, address, seed, strokes between items
int lie(const std::vector<std::string>& a) {
    const std::string& kind = a[0];
    const bool produces = a[1] == "produces";
    const Setup setup{a[2], 64, base::WaitPolicy::blocking()};
    std::mt19937_64 random{std::stoull(a[3])};
    const auto strokes = static_cast<unsigned>(std::stoul(a[4]));
    std::unique_ptr<Out> out;
    std::unique_ptr<In> in;
    if (produces) {
        out = make_out(kind, setup, false, Deadline::after(20s));
    } else {
        in = make_in(kind, setup, false, Deadline::after(20s));
    }
    // A few honest items, so that all memory that is going to be mapped is.
    bool right = false;
    std::uint64_t number = 0;
    const auto speak = [&](Deadline deadline) {
        if (produces) {
            (void)out->put(number++, deadline);
        } else {
            (void)in->take(number++, right, deadline);
        }
    };
    for (int i = 0; i < 100; ++i) speak(Deadline::after(20s));
    const std::vector<Scribbled> memory = writable_shared_memory();
    say("lying in " + std::to_string(memory.size()) + " areas");
    // Some go on speaking in between. At their own risk: their memory is scribbled over, too.
    const bool speaks = random() % 2 == 0;
    while (true) {
        scribble(random, memory, strokes);
        if (speaks && random() % 4 != 0) speak(Deadline::after(100us));
    }
}
MILLRACE_CHILD(faults_liar) { return lie(arguments); }

/// The victim: puts or takes for a while, whatever comes; then closes, and ends by itself.
int suffer(const std::vector<std::string>& a) {
    const std::string& kind = a[0];
    const Setup setup{a[2], 64, policy_of(a[3])};
    std::unique_ptr<Out> out;
    std::unique_ptr<In> in;
    if (a[1] == "produces") {
        out = make_out(kind, setup, true, Deadline::after(20s));
    } else {
        in = make_in(kind, setup, true, Deadline::after(20s));
    }
    const Deadline end = Deadline::after(std::chrono::milliseconds{std::stoul(a[4])});
    Status status = Status::ok;
    std::uint64_t number = 0;
    unsigned after_the_end = 0;
    while (!end.expired() && after_the_end < 3) {
        bool right = false;
        status = out != nullptr ? out->put(number, Deadline::after(5ms))
                                : in->take(number, right, Deadline::after(5ms));
        if (status == Status::ok) ++number;
        // What has ended must bear to be asked again.
        if (status == Status::closed || status == Status::peer_lost) ++after_the_end;
    }
    if (out != nullptr) (void)out->close(Deadline::after(20ms));
    if (in != nullptr) in->close();
    out.reset();
    in.reset();
    // The device has survived too: an honest pair works, in this same process.
    ChildProcess honest = ChildProcess::start("faults_honest", {kind, a[2] + "-honest"});
    in = make_in(kind, {a[2] + "-honest"}, true, Deadline::after(20s));
    for (std::uint64_t i = 0; i < 50; ++i) {
        bool right = false;
        if (in->take(i, right, Deadline::after(20s)) != Status::ok || !right) {
            say("the honest pair failed at " + std::to_string(i));
            return 1;
        }
    }
    say("survived: " + std::string{name_of(status)} + " after " + std::to_string(number));
    return 0;
}
MILLRACE_CHILD(faults_victim_of_lies) {
    try {
        return suffer(arguments);
    } catch (const base::Error& error) {
        say(std::string{"error: "} + error.what());
        return 2;
    }
}
MILLRACE_CHILD(faults_honest) {
    const auto out = make_out(arguments[0], {arguments[1]}, false, Deadline::after(20s));
    for (std::uint64_t i = 0; i < 50; ++i) {
        if (out->put(i, Deadline::after(20s)) != Status::ok) return 1;
    }
    return out->close(Deadline::after(20s)) == Status::ok ? 0 : 1;
}

struct Side {
    std::string kind;
    bool liar_produces;
};
void PrintTo(const Side& side, std::ostream* out) {
    *out << side.kind << (side.liar_produces ? ", producer lies" : ", consumer lies");
}

/// Liars of a kind and a side that `choose` names, one after the other.
template <class Choose>
void lie_many(unsigned long usual_rounds, Choose&& choose) {
    const char* const asked = std::getenv("MILLRACE_TEST_ROUNDS");
    const bool lengthy = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    const unsigned long rounds = asked != nullptr ? std::stoul(asked)
                                 : lengthy        ? 12 * usual_rounds
                                                  : usual_rounds;
    const char* const chosen = std::getenv("MILLRACE_TEST_SEED");
    const std::uint64_t first = chosen != nullptr ? std::stoull(chosen) : std::random_device{}();
    static constexpr const char* waits[] = {"default", "blocking", "polling"};
    static constexpr const char* strokes[] = {"1", "10", "1000"};
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t seed = first + round;
        std::mt19937_64 random{seed};
        const Side side = choose(random);
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + side.kind);
        const std::string address = unique_address();
        ChildProcess victim = ChildProcess::start(
            "faults_victim_of_lies", {side.kind, side.liar_produces ? "consumes" : "produces",
                                      address, waits[random() % 3], "200"});
        ChildProcess liar = ChildProcess::start(
            "faults_liar", {side.kind, side.liar_produces ? "produces" : "consumes", address,
                            std::to_string(seed), strokes[random() % 3]});
        EXPECT_EQ(liar.read_line().value_or("nothing").substr(0, 8), "lying in");
        const std::string heard = victim.read_line(60s).value_or("nothing");
        EXPECT_EQ(heard.substr(0, 9), "survived:") << heard;
        if (std::getenv("MILLRACE_TEST_TELL") != nullptr) std::printf("%s\n", heard.c_str());
        const auto exit = victim.wait();
        EXPECT_TRUE(exit.success()) << exit;
        liar.kill();
        if (testing::Test::HasFailure()) return;
    }
}

class LyingPeer : public testing::TestWithParam<Side> {};

TEST_P(LyingPeer, HarmsNothingButItsOwnConnection) {
    lie_many(4, [](std::mt19937_64&) { return GetParam(); });
}

INSTANTIATE_TEST_SUITE_P(
    Every, LyingPeer,
    testing::Values(Side{"flow1", true}, Side{"flow1", false}, Side{"flow2", true},
                    Side{"flow2", false}, Side{"bytes1", true}, Side{"bytes1", false},
                    Side{"bytes2", true}, Side{"bytes2", false}, Side{"message", true},
                    Side{"message", false}, Side{"stream", true}, Side{"stream", false}),
    [](const auto& chosen) {
        return chosen.param.kind + (chosen.param.liar_produces ? "ProducerLies" : "ConsumerLies");
    });

/// All points of the design space, each round batched and moved another way.
class LyingPeerAtEveryPoint : public testing::TestWithParam<std::string> {};

TEST_P(LyingPeerAtEveryPoint, HarmsNothingButItsOwnConnection) {
    lie_many(1, [](std::mt19937_64& random) {
        std::string kind = some_way(GetParam(), random);
        return Side{std::move(kind), random() % 2 == 0};
    });
}

INSTANTIATE_TEST_SUITE_P(Points, LyingPeerAtEveryPoint, testing::ValuesIn(every_point()),
                         [](const auto& point) { return test_name_of(point.param); });

}  // namespace
}  // namespace millrace::faults
