// kill -9 of one of three at a random instant, while all three WRITE, SEND, READ and do atomics
// with each other: the two others are told within two seconds, go on with each other without a
// mistake, and the next one connects. Nothing of the dead one stays.
//
// MILLRACE_TEST_ROUNDS: how many are killed (default 25, in other modes than fast 9; with
// MILLRACE_TEST_LONG 1000). MILLRACE_TEST_SEED: of the first; printed, and named by a failure.
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "millrace/soft/survey.hpp"
#include "soft/remote_endpoint.hpp"
#include "soft/talk.hpp"
#include "support/resources.hpp"
#include "support/settings.hpp"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

// Within this a death must be known to who looks for it.
constexpr auto told_within = 2s;
// Ends only tests that have failed.
constexpr auto limit = 20s;

// ---- a participant

class Member {
  public:
    explicit Member(const std::vector<std::string>& arguments)
        : shared_{arguments.at(0) == "shared"},
          events_{arguments.at(1) == "events"},
          seed_{std::stoull(arguments.at(2))},
          // Who stays keeps the device open; who asks for nothing holds nothing.
          context_{soft::open_device(soft::device_list(nullptr)[0])} {}
    ~Member() {
        talks_.clear();
        soft::close_device(context_);
    }

    int run() {
        for (;;) {
            // With nothing to do it sleeps until it is spoken to.
            const bool sleeps = talks_.empty();
            pollfd input{STDIN_FILENO, POLLIN, 0};
            if (::poll(&input, 1, sleeps ? -1 : 0) == 1) {
                const auto line = hear();
                if (!line) return 0;
                say(answer(*line));
            }
            turn();
        }
    }

  private:
    /// A turn of every connection; who waits by events sleeps until one of them has one.
    void turn() {
        for (auto& [name, talk] : talks_) talk->step();
        if (!events_ || talks_.empty()) return;
        std::vector<pollfd> waited{{STDIN_FILENO, POLLIN, 0}};
        for (auto& [name, talk] : talks_) waited.push_back({talk->event_descriptor(), POLLIN, 0});
        ::poll(waited.data(), waited.size(), 5);
    }

    /// Goes on with everything until `done`. False: it was looked for in vain for that long.
    template <class Done>
    bool go_on_until(std::chrono::nanoseconds how_long, Done&& done) {
        TimeOfLooking time;
        while (!done()) {
            if (time.look() > how_long) return false;
            turn();
        }
        return true;
    }

    std::string answer(const std::string& line) {
        std::istringstream said{line};
        std::string verb;
        std::string name;
        said >> verb >> name;
        if (verb == "held") {
            return std::to_string(open_descriptors()) + ' ' + std::to_string(shared_mappings());
        }
        if (verb == "make") {
            auto talk = std::make_unique<Talk>(shared_, events_, ++seed_);
            const Talk::Facts facts = talk->facts();
            talks_[name] = std::move(talk);
            return std::to_string(facts.qpn) + ' ' + std::to_string(facts.address) + ' ' +
                   std::to_string(facts.rkey);
        }
        if (verb == "work") {
            for (auto& [peer, talk] : talks_) talk->work(true);
            return "working";
        }
        if (verb == "sleep") {  // beyond all verbs, until it is killed
            say("sleeping");
            for (;;) pause();
        }
        const auto found = talks_.find(name);
        if (found == talks_.end()) return "no such connection";
        Talk& talk = *found->second;
        if (verb == "connect") {
            Talk::Facts facts;
            said >> facts.qpn >> facts.address >> facts.rkey;
            return std::to_string(talk.connect(facts));
        }
        if (verb == "stop") {  // nothing new to that one
            talk.work(false);
            if (!go_on_until(limit, [&] { return talk.idle(); })) return "stuck, " + talk.state();
            return std::to_string(talk.sent()) + ' ' + std::to_string(talk.added());
        }
        if (verb == "check") {  // what that one has told
            std::uint64_t sent = 0;
            std::uint64_t added = 0;
            said >> sent >> added;
            if (!go_on_until(limit, [&] { return talk.received() == sent; })) {
                return std::to_string(talk.received()) + " messages of " + std::to_string(sent);
            }
            if (talk.counter() != added) {
                return "the counter is " + std::to_string(talk.counter()) + ", added were " +
                       std::to_string(added);
            }
            if (!talk.written_well()) return "what was written is not the pattern";
            return talk.wrong().empty() ? "well" : talk.wrong();
        }
        if (verb == "lost") {
            if (!go_on_until(told_within, [&] { return talk.lost(); })) {
                return "not told, " + talk.state();
            }
            if (!talk.wrong().empty()) return talk.wrong();
            if (const int error = talk.deregister(); error != 0) {
                return "dereg_mr: " + std::to_string(error);
            }
            talks_.erase(found);
            return "told";
        }
        if (verb == "drop") {
            talks_.erase(found);
            return "dropped";
        }
        return "what?";
    }

    bool shared_;
    bool events_;
    std::uint64_t seed_;
    ibv_context* context_;
    std::map<std::string, std::unique_ptr<Talk>> talks_;
};

MILLRACE_CHILD(soft_one_of_three) { return Member{arguments}.run(); }

// ---- the test

/// Speaks with the participant. "gone" if it is.
std::string ask_hub(ChildProcess& member, const std::string& line) {
    if (!member.write_line(line)) return "gone";
    return member.read_line(30s).value_or("gone");
}

class ThreeParticipants : public testing::Test {
  protected:
    ThreeParticipants() { setenv("MILLRACE_FABRIC", fabric_.c_str(), 1); }
    ~ThreeParticipants() override { unsetenv("MILLRACE_FABRIC"); }

    ChildProcess start(std::mt19937_64& random) {
        return ChildProcess::start("soft_one_of_three", {random() % 2 == 0 ? "shared" : "private",
                                                         random() % 3 == 0 ? "events" : "polling",
                                                         std::to_string(random() % (1U << 30))});
    }

    /// False: one of the two is not there any more.
    static bool join(ChildProcess& one, const std::string& one_name, ChildProcess& other,
                     const std::string& other_name) {
        const std::string of_one = ask_hub(one, "make " + other_name);
        const std::string of_other = ask_hub(other, "make " + one_name);
        if (of_one == "gone" || of_other == "gone") return false;
        const std::string one_did = ask_hub(one, "connect " + other_name + ' ' + of_other);
        const std::string other_did = ask_hub(other, "connect " + one_name + ' ' + of_one);
        if (one_did == "gone" || other_did == "gone") return false;
        EXPECT_EQ(one_did, "0");
        EXPECT_EQ(other_did, "0");
        return true;
    }

    /// Both stop and find that they have got what the other gave.
    static void finish(ChildProcess& one, const std::string& one_name, ChildProcess& other,
                       const std::string& other_name) {
        const std::string given_by_one = ask_hub(one, "stop " + other_name);
        const std::string given_by_other = ask_hub(other, "stop " + one_name);
        ASSERT_EQ(ask_hub(one, "check " + other_name + ' ' + given_by_other), "well")
            << one_name << " with " << other_name << ", which gave " << given_by_other;
        ASSERT_EQ(ask_hub(other, "check " + one_name + ' ' + given_by_one), "well")
            << other_name << " with " << one_name << ", which gave " << given_by_one;
        ASSERT_EQ(ask_hub(one, "drop " + other_name), "dropped");
        ASSERT_EQ(ask_hub(other, "drop " + one_name), "dropped");
    }

    /// The fabric as others see it: two participants, which hold nothing of the third.
    void expect_nothing_left() const {
        const auto until = std::chrono::steady_clock::now() + limit;
        soft::Survey seen;
        do {
            seen = soft::survey(fabric_);
        } while ((!seen.leftovers.empty() || seen.participants.size() != 2) &&
                 std::chrono::steady_clock::now() < until);
        EXPECT_TRUE(seen.leftovers.empty()) << "node memory of a dead participant is still held";
        EXPECT_EQ(seen.participants.size(), 2U);
        for (const soft::Participant& one : seen.participants) {
            EXPECT_TRUE(one.queue_pairs.empty());
            EXPECT_TRUE(one.regions.empty());
        }
    }

    const std::string fabric_ = "three-" + std::to_string(getpid());
};

TEST_F(ThreeParticipants, OfWhichOneIsKilledAtARandomInstantLoseOnlyThatOne) {
    const bool slow = std::getenv("MILLRACE_SOFT_MODE") != nullptr;
    const bool whole = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    const std::uint64_t rounds =
        number_from("MILLRACE_TEST_ROUNDS", whole ? 1000 : (slow ? 9 : 25));
    const std::uint64_t first_seed =
        number_from("MILLRACE_TEST_SEED", std::random_device{}() % 1'000'000);
    std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first_seed),
                static_cast<unsigned long long>(first_seed + rounds - 1));
    std::mt19937_64 staying{first_seed};
    ChildProcess a = start(staying);
    ChildProcess b = start(staying);
    std::string held_by_a;
    std::string held_by_b;
    std::uint64_t never_connected = 0;
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t seed = first_seed + round;
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937_64 random{seed};
        ASSERT_TRUE(join(a, "a", b, "b"));
        // It is killed while it starts and connects, while it works, or while it sleeps; now and
        // then it lives, which shows that the fabric bore the deaths before.
        const bool lives = round % 10 == 9 || round + 1 == rounds;
        const bool early = !lives && random() % 4 == 0;
        const bool asleep = !lives && random() % 4 == 0;
        const std::chrono::microseconds delay{random() % (early ? 40'000 : 6'000)};
        ChildProcess c = start(random);
        std::jthread killer;
        const auto kill_later = [&] {
            killer = std::jthread{[&c, delay] {
                std::this_thread::sleep_for(delay);
                c.kill();
            }};
        };
        if (early) kill_later();
        ASSERT_EQ(ask_hub(a, "work"), "working");
        ASSERT_EQ(ask_hub(b, "work"), "working");
        const bool with_a = join(a, "a", c, "c");
        const bool with_b = with_a && join(b, "b", c, "c");
        never_connected += with_b ? 0 : 1;
        ASSERT_TRUE(with_b || early);
        for (ChildProcess* const one : {&a, &b}) ASSERT_EQ(ask_hub(*one, "work"), "working");
        ASSERT_TRUE(ask_hub(c, "work") == "working" || early);
        if (asleep) {
            std::this_thread::sleep_for(std::chrono::microseconds{random() % 3000});
            ASSERT_TRUE(ask_hub(c, "sleep") == "sleeping" || early);
        }
        if (lives) {
            std::this_thread::sleep_for(delay);
            finish(a, "a", c, "c");
            finish(b, "b", c, "c");
            if (HasFatalFailure()) return;
            c.close_input();
            EXPECT_TRUE(c.wait().success());
        } else {
            if (!early) kill_later();
            killer.join();
            EXPECT_TRUE(c.wait().killed_by(SIGKILL));
            if (with_a) {
                ASSERT_EQ(ask_hub(a, "lost c"), "told");
            } else {
                ASSERT_NE(ask_hub(a, "drop c"), "gone");
            }
            if (with_b) {
                ASSERT_EQ(ask_hub(b, "lost c"), "told");
            } else {
                ASSERT_NE(ask_hub(b, "drop c"), "gone");
            }
        }
        finish(a, "a", b, "b");
        if (HasFatalFailure()) return;
        expect_nothing_left();
        if (HasFailure()) return;
        if (round == 4) {
            held_by_a = ask_hub(a, "held");
            held_by_b = ask_hub(b, "held");
        }
    }
    if (rounds > 5) {  // each counts itself as it was after some rounds
        EXPECT_EQ(ask_hub(a, "held"), held_by_a);
        EXPECT_EQ(ask_hub(b, "held"), held_by_b);
    }
    std::printf("%llu of them were killed before they were connected\n",
                static_cast<unsigned long long>(never_connected));
    a.close_input();
    b.close_input();
    EXPECT_TRUE(a.wait().success());
    EXPECT_TRUE(b.wait().success());
    EXPECT_TRUE(soft::survey(fabric_).participants.empty());
}

}  // namespace
}  // namespace millrace::test
