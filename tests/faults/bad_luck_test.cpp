// Mode `faulty`, on every abstraction: an end whose requests are given up (retries exhausted), and
// an end that dies at a given operation. Whatever happens, both ends come to an end by themselves
// before their deadlines, what was taken is right, and whoever did not get everything says so.
//
// MILLRACE_TEST_ROUNDS: seeds per abstraction and fault (default 3; with MILLRACE_TEST_LONG 200).
// MILLRACE_TEST_SEED: the first, default 1.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "faults/ends.hpp"
#include "millrace/base/error.hpp"
#include "support/child_process.hpp"
#include "support/settings.hpp"

namespace millrace::faults {
namespace {

using millrace::test::ChildProcess;
using millrace::test::say;

constexpr auto budget = 20s;
constexpr std::uint64_t total = 400;

// arguments: kind, produces or consumes, listens or connects, address, wait.
// Says how it ended and how many items it has put or taken, or "error" and the error.
int end_of_luck(const std::vector<std::string>& a) {
    const bool listens = a[2] == "listens";
    const Setup setup{a[3], 32, policy_of(a[4])};
    std::uint64_t number = 0;
    Status status = Status::ok;
    if (a[1] == "produces") {
        const auto out = make_out(a[0], setup, listens, Deadline::after(budget));
        while (number < total &&
               (status = out->put(number, Deadline::after(budget))) == Status::ok) {
            ++number;
        }
        if (status == Status::ok) status = out->close(Deadline::after(budget));
    } else {
        const auto in = make_in(a[0], setup, listens, Deadline::after(budget));
        bool right = false;
        while ((status = in->take(number, right, Deadline::after(budget))) == Status::ok) {
            if (!right) {
                say("wrong " + std::to_string(number));
                return 1;
            }
            ++number;
        }
    }
    say(std::string{name_of(status)} + ' ' + std::to_string(number));
    return 0;
}
MILLRACE_CHILD(faults_end_of_luck) {
    try {
        return end_of_luck(arguments);
    } catch (const base::Error& error) {
        say("error " + std::string{name_of(error.code())});
        return 0;
    }
}

struct Ended {
    std::string how;  ///< a status, "error", "killed", or what else was said
    std::uint64_t items = 0;
    std::string error;
};

Ended end_of(ChildProcess& child) {
    const std::string said = child.read_line(60s).value_or("");
    const auto exit = child.wait(60s);
    if (exit.killed_by(SIGKILL)) return {"killed", 0, {}};
    if (!exit.success()) return {"failed: " + said + ", " + describe(exit), 0, {}};
    std::istringstream words{said};
    Ended ended;
    words >> ended.how;
    if (ended.how == "error") {
        words >> ended.error;
    } else {
        words >> ended.items;
    }
    return ended;
}

/// What an end may say that did not die itself.
bool is_an_end(const Ended& ended, bool produces) {
    if (ended.how == "peer_lost") return true;
    if (ended.how == (produces ? "ok" : "closed")) return true;
    // Bad luck while they connect.
    return ended.how == "error" && (ended.error == "peer_lost" || ended.error == "refused");
}

struct Outcome {
    Ended producer;
    Ended consumer;
};

class BadLuck : public testing::TestWithParam<const char*> {
  protected:
    /// One pair; the unlucky end has `fault` in its mode. Both run to their ends.
    static Outcome run(std::uint64_t seed, bool producer_is_unlucky, const std::string& fault) {
        const std::string link =
            "MILLRACE_SOFT_MODE=faulty:10g,latency=1us,loss=0%,duplicate=0%,reorder=0%,seed=" +
            std::to_string(seed);
        const std::string unlucky = link + ',' + fault;
        const std::string address = unique_address();
        const bool producer_listens = seed % 2 == 0;
        const char* const wait = seed % 3 == 0 ? "blocking" : "default";
        ChildProcess producer = ChildProcess::start(
            "faults_end_of_luck",
            {GetParam(), "produces", producer_listens ? "listens" : "connects", address, wait},
            {producer_is_unlucky ? unlucky : link});
        ChildProcess consumer = ChildProcess::start(
            "faults_end_of_luck",
            {GetParam(), "consumes", producer_listens ? "connects" : "listens", address, wait},
            {producer_is_unlucky ? link : unlucky});
        Outcome outcome;
        outcome.producer = end_of(producer);
        outcome.consumer = end_of(consumer);
        return outcome;
    }

    /// Who has not got everything has said that something is amiss.
    static void expect_nothing_silent(const Outcome& outcome) {
        EXPECT_LE(outcome.consumer.items, total);
        if (outcome.consumer.how == "closed") {
            EXPECT_EQ(outcome.consumer.items, total) << "closed in good order, but not complete";
        }
        if (outcome.producer.how == "ok") {
            EXPECT_TRUE(outcome.consumer.items == total || outcome.consumer.how != "closed")
                << "the producer closed in good order";
        }
    }

    static std::uint64_t rounds() {
        return test::number_from("MILLRACE_TEST_ROUNDS",
                                 std::getenv("MILLRACE_TEST_LONG") != nullptr ? 200 : 3);
    }
    /// How many requests a seed has to strike depends on how the machine runs the two ends: where
    /// the first rounds saw nothing happen, more follow.
    static bool goes_on(std::uint64_t seed, std::uint64_t happened) {
        const std::uint64_t round = seed - first_seed();
        return round < rounds() || (happened == 0 && round < 50 && !HasFailure());
    }
    static std::uint64_t first_seed() { return test::number_from("MILLRACE_TEST_SEED", 1); }
};

TEST_P(BadLuck, OfExhaustedRetriesIsToldToBothEnds) {
    std::uint64_t told = 0;
    for (std::uint64_t seed = first_seed(); goes_on(seed, told); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        const Outcome outcome = run(seed, seed % 4 < 2, "exhaust=1%");
        EXPECT_TRUE(is_an_end(outcome.producer, true))
            << "the producer: " << outcome.producer.how << ' ' << outcome.producer.error;
        EXPECT_TRUE(is_an_end(outcome.consumer, false))
            << "the consumer: " << outcome.consumer.how << ' ' << outcome.consumer.error;
        expect_nothing_silent(outcome);
        if (outcome.producer.how == "peer_lost" || outcome.consumer.how == "peer_lost") ++told;
    }
    EXPECT_GT(told, 0U) << "no request was given up";
}

TEST_P(BadLuck, OfAnEndThatDiesAtAGivenOperationIsToldToTheOther) {
    std::uint64_t died = 0;
    for (std::uint64_t seed = first_seed(); goes_on(seed, died); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        const bool producer_dies = seed % 4 < 2;
        // The first ones belong to the meeting; a consumer posts few. That of a byte stream, which
        // connects, measures the way by up to four before it says a word: who dies there has met
        // nobody.
        const bool measures = !producer_dies && GetParam() == std::string_view{"stream"};
        const std::uint64_t operation = (measures ? 5 : 1) + seed * 7 % (producer_dies ? 200 : 12);
        const Outcome outcome = run(seed, producer_dies, "die=" + std::to_string(operation));
        const Ended& victim = producer_dies ? outcome.producer : outcome.consumer;
        const Ended& other = producer_dies ? outcome.consumer : outcome.producer;
        if (victim.how == "killed") {
            ++died;
            EXPECT_TRUE(is_an_end(other, !producer_dies)) << other.how << ' ' << other.error;
        } else {  // it had less to do than that
            EXPECT_TRUE(is_an_end(victim, producer_dies)) << victim.how << ' ' << victim.error;
        }
        expect_nothing_silent(outcome);
    }
    EXPECT_GT(died, 0U) << "nobody posted as many operations";
}

INSTANTIATE_TEST_SUITE_P(Every, BadLuck, testing::ValuesIn(kinds),
                         [](const auto& chosen) { return std::string{chosen.param}; });

}  // namespace
}  // namespace millrace::faults
